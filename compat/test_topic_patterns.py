"""Expressions of subscriptions match the names that they match for Apache Kafka, which uses RE2/J.

RE2 itself differs twice: it accepts a name of two groups, and rejects an escaped letter that is not
ASCII.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator, Sequence

from compat.conftest import missing
from compat.parts import PartMissing, java_program
from penstock.broker.groups.runtime.topic_regex import InvalidRegex, compile_regex

ATOMS = [
    "a", "b", "-", ".", "[ab]", "[^b]", "[a-c]", "[]a]", "[a-]", r"[\d-z]", "[[:alpha:]]",
    "[[:^digit:]]", r"\d", r"\w", r"\W", r"\s", r"\.", r"\x61", r"\x{62}", r"\pL", r"\p{Lu}",
    r"\Qa.b\E", "(a|b)", "(ab)", "(?:a|)", "(?P<n>a)", "(?i:A)", "(?i)", "(?s)", "^", "$", r"\A",
    r"\z", r"\b", r"\B", "()", "é", "A", "_", "1",
]  # fmt: skip
ODD = [
    "(", ")", "[a", "[b-a]", "(?=a)", "(?<=a)", "(?!a)", r"\1", "\\", r"\xZZ", "[[:none:]]",
    "(?P<>a)", "(?P<n", "(?x)", r"\Z", "a**", "{2}", "x{,2}", "|", "a{1001}", "a{3,2}",
]  # fmt: skip
REPEATS = ["", "", "", "*", "+", "?", "*?", "+?", "??", "{2}", "{1,3}", "{2,}", "{0}", "{1,2}?"]
LETTERS = "ab-.1_A"
CASES = 20_000


def differs(text: str) -> bool:
    return text.count("(?P<n>") > 1 or r"\é" in text


def generated(dice: random.Random) -> Iterator[list[str]]:
    for _ in range(CASES):
        parts = []
        for _ in range(dice.randint(0, 5)):
            odd = dice.random() < 0.02
            parts.append(dice.choice(ODD) if odd else dice.choice(ATOMS) + dice.choice(REPEATS))
            if dice.random() < 0.15:
                parts.append("|")
        names = ["".join(dice.choices(LETTERS, k=dice.randint(0, 8))) for _ in range(6)]
        yield ["".join(parts), *names]


def answer(words: Sequence[str]) -> str:
    try:
        matches = compile_regex(words[0])
    except InvalidRegex:
        return "invalid"
    return "".join(str(int(matches(name))) for name in words[1:])


def test_names_match_as_by_apache_kafka() -> None:
    try:
        classes = java_program("TopicPatterns")
    except PartMissing as error:
        missing(error)
    cases = list(generated(random.Random(848)))
    command = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-cp", classes, "TopicPatterns"]
    lines = "".join("\t".join(words) + "\n" for words in cases)
    ran = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)
    expected = ran.stdout.splitlines()
    assert len(expected) == CASES
    assert expected.count("invalid") < CASES / 3
    wrong = {
        words[0]: (answer(words), told)
        for words, told in zip(cases, expected, strict=True)
        if not differs(words[0]) and answer(words) != told
    }
    assert not wrong
