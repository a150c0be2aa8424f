"""Regular expressions over topic names: RE2's syntax, rejected syntax, and linear time."""

import random
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.groups.runtime.topic_regex import (
    EXPRESSION_BYTES_MAX,
    InvalidRegex,
    compile_regex,
)


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
        ("é|a", ["a", "é"], [""]),
        (r"\p{L}+", ["ab", "é"], ["a1", ""]),
        (r"[\d-z]", ["1", "-", "z"], ["y"]),
        ("(" * 200 + "a" + ")" * 200, ["a"], [""]),
        ("(a*)*", ["", "aaa"], ["b"]),
        ("", [""], ["a"]),
    ],
)
def test_what_matches(text: str, match: list[str], other: list[str]) -> None:
    matches = compile_regex(text)
    assert [name for name in [*match, *other] if matches(name)] == match


@pytest.mark.parametrize(
    "text",
    [
        "(", ")", "a)", "[a", "[b-a]", "*", "a**", "a{2}{3}", "a{1001}", "a{3,2}", "(?=a)",
        "(?<=a)", "(?!a)", r"(a)\1", "\\", r"\xZZ", "[[:none:]]", "(?P<>a)", "(?P<n",
        "(?x)a", "(a{1000}){1000}", "((){1000}){1000}a", "(" * 2000, "a" * 20_000,
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
    matches = compile_regex(text)
    for name in names:
        assert matches(name) == (expected.fullmatch(name) is not None), (text, name)


def test_time_is_linear_where_going_back_would_take_for_ever() -> None:
    started = time.perf_counter()
    assert not compile_regex("(a+)+b")("a" * 249)
    assert not compile_regex("(a?){100}a{100}")("a" * 99)
    assert not compile_regex("(a|a)*c")("a" * 249)
    assert compile_regex("(a|b)*a(a|b){200}")("ab" * 110 + "a" * 9)
    assert time.perf_counter() - started < 30


def test_answers_stay_right_where_an_automaton_exceeds_its_memory() -> None:
    matches = compile_regex("(a|b)*a(a|b){50}")
    dice, size = random.Random(1), 0
    while size < 4 * EXPRESSION_BYTES_MAX:  # each character of a name is a state
        name = "".join(dice.choices("ab", k=2_000))
        assert matches(name) == (name[-51] == "a")
        size += len(name) * 8
