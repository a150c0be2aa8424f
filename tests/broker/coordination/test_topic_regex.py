"""Regular expressions over topic names: RE2's syntax, rejected syntax, and linear time."""

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.coordination.topic_regex import InvalidRegex, Matcher, compile_regex


def matcher(text: str) -> Matcher:
    return compile_regex(text).matcher()


@pytest.mark.parametrize(
    ("text", "match", "other"),
    [
        ("orders", ["orders"], ["orders2", "my-orders", ""]),
        ("team-(a|b)-.*", ["team-a-", "team-b-x.y"], ["team-c-x", "team-a"]),
        ("[a-c]x?", ["a", "cx"], ["d", "axx"]),
        ("[^a-c]+", ["xyz"], ["xaz", ""]),
        ("[]a]+", ["]a"], ["b"]),
        ("[a-]+", ["a-a"], ["b"]),
        ("[[:alpha:]_]+\\d{2,3}", ["ab_12", "a123"], ["a1", "a1234", "12"]),
        ("[[:^digit:]]", ["a"], ["1"]),
        ("^a$", ["a"], ["ab"]),
        ("a|^b|c$", ["a", "b", "c"], ["ab"]),
        ("x{3}", ["xxx"], ["xx", "xxxx"]),
        ("x{٣}", [], ["xxx"]),
        ("x{2,}", ["xx", "xxxxx"], ["x"]),
        ("x{,2}", ["x{,2}"], ["x"]),
        ("(?i)Ab[c]", ["aBC", "abc"], ["abd"]),
        ("a(?i:b)c", ["aBc"], ["aBC"]),
        ("(?P<n>a)(?<m>b)", ["ab"], ["a"]),
        (r"\Qa.b\E.", ["a.bx"], ["axbx"]),
        (r"\x61\x{62}\.", ["ab."], ["abc"]),
        (r"\w+\b-\b\w+", ["a-b"], ["a--b"]),
        (r"a\Bb", ["ab"], ["a-b"]),
        ("a??b*?c+?", ["abbcc", "c"], ["ab"]),
        ("é|a", ["a"], ["é", ""]),
        ("(a*)*", ["", "aaa"], ["b"]),
        ("((){1000}){1000}a", ["a"], [""]),
        ("", [""], ["a"]),
    ],
)
def test_what_matches(text: str, match: list[str], other: list[str]) -> None:
    matches = matcher(text).matches
    assert [name for name in [*match, *other] if matches(name)] == match


@pytest.mark.parametrize(
    "text",
    [
        "(", ")", "a)", "[a", "[b-a]", "*", "a**", "a{2}{3}", "a{1001}", "a{3,2}", "(?=a)",
        "(?<=a)", "(?!a)", r"(a)\1", "\\", r"\p{L}", r"\xZZ", "[[:none:]]", "(?P<>a)", "(?P<n",
        r"[\d-z]", "(?x)a", "(a{1000}){1000}", "(" * 200 + ")" * 200, "a" * 20_000,
    ],
)  # fmt: skip
def test_what_is_refused(text: str) -> None:
    with pytest.raises(InvalidRegex):
        compile_regex(text)


_ATOMS = st.sampled_from(
    ["a", "b", ".", "[ab]", "[^b]", "(a|b)", "(ab)", "(?:a|)", "^", "$", r"\b"]
)
_PARTS = st.tuples(_ATOMS, st.sampled_from(["", "*", "+", "?", "{2}", "{1,3}"])).map("".join)
_TEXTS = st.lists(st.lists(_PARTS, max_size=4).map("".join), min_size=1, max_size=3).map("|".join)


@settings(deadline=None, max_examples=100)
@given(_TEXTS, st.lists(st.text("ab-", max_size=8), max_size=8))
def test_names_match_as_by_the_standard_library(text: str, names: list[str]) -> None:
    try:
        expected = re.compile(text)
    except re.error:
        return
    matches = matcher(text).matches
    for name in names:
        assert matches(name) == (expected.fullmatch(name) is not None), (text, name)


def test_time_is_linear_where_going_back_would_take_for_ever() -> None:
    started = time.perf_counter()
    assert not matcher("(a+)+b").matches("a" * 249)
    assert not matcher("(a?){100}a{100}").matches("a" * 99)
    assert not matcher("(a|a)*c").matches("a" * 249)
    assert matcher("(a|b)*a(a|b){200}").matches("ab" * 110 + "a" * 9)
    assert time.perf_counter() - started < 30


def test_the_cache_of_an_automaton_is_bounded() -> None:
    matches = matcher("(a|b)*a(a|b){12}").matches
    for number in range(4_000):
        name = f"{number:012b}".replace("0", "a").replace("1", "b")
        assert matches("a" + name)
        assert not matches("b" + name)
