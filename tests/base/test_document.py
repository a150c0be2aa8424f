"""The lines of keys and texts, against files whose lines are known as they are written."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.document import Key, dotted, locate

TEXT = '''\
# a pipeline
name = "orders"   # = "not this"

[run]
trigger = "2 seconds"

[source."web orders"] # [not.this]
topics = [
    "a",  # one ]
    "b]",
]
at.time = 2026-01-31T08:00:00Z
expect = {"is fine" = "a > 0", 'b "c"' = {that = """x
> 1""", otherwise = "drop"}}

[step.masked]
sql = """
select id, \\"quoted\\"
from orders
-- [sink.not]
where name = '''+"'''"+'''
"""
other = \'\'\'
raw \\ text
more\'\'\'\'\'
folded = """\\
    one \\
    line
  two\\nthree
four"""

[[list]]
a = 1
[list.inner]
b = 2
[[list]]
a = 3
[list.inner]
b = 4
'''  # fmt: skip


@pytest.mark.parametrize(
    ("key", "line"),
    [
        (("name",), 2),
        (("run",), 4),
        (("run", "trigger"), 5),
        (("source",), 7),
        (("source", "web orders"), 7),
        (("source", "web orders", "topics"), 8),
        (("source", "web orders", "topics", 0), 9),
        (("source", "web orders", "topics", 1), 10),
        (("source", "web orders", "at"), 12),
        (("source", "web orders", "at", "time"), 12),
        (("source", "web orders", "expect", "is fine"), 13),
        (("source", "web orders", "expect", 'b "c"', "that"), 13),
        (("source", "web orders", "expect", 'b "c"', "otherwise"), 14),
        (("step", "masked"), 16),
        (("step", "masked", "sql"), 17),
        (("step", "masked", "other"), 23),
        (("step", "masked", "folded"), 26),
        (("list",), 32),
        (("list", 0, "a"), 33),
        (("list", 0, "inner", "b"), 35),
        (("list", 1), 36),
        (("list", 1, "inner"), 38),
        (("list", 1, "inner", "b"), 39),
    ],
)
def test_lines_of_every_form_of_key(key: Key, line: int) -> None:
    assert locate(TEXT).line(key) == line


def test_a_key_that_is_not_there_has_the_line_of_the_table_around_it() -> None:
    located = locate(TEXT)
    assert located.line(("run", "tick")) == 4
    assert located.line(("source", "web orders", "expect", "none", "that")) == 13
    assert located.line(("sink", "none")) is None


@pytest.mark.parametrize(
    ("key", "number", "line"),
    [
        (("step", "masked", "sql"), 1, 18),
        (("step", "masked", "sql"), 4, 21),
        (("step", "masked", "sql"), 99, 22),
        (("step", "masked", "sql"), 0, 18),
        (("step", "masked", "other"), 2, 25),
        (("step", "masked", "folded"), 1, 27),
        (("step", "masked", "folded"), 2, 29),
        (("step", "masked", "folded"), 3, 29),
        (("step", "masked", "folded"), 4, 30),
        (("source", "web orders", "expect", 'b "c"', "that"), 2, 14),
        (("run", "trigger"), 1, 5),
        (("run",), 3, 4),
    ],
)
def test_a_line_of_a_text_is_a_line_of_the_file(key: Key, number: int, line: int) -> None:
    assert locate(TEXT).line_in(key, number) == line


def test_windows_line_ends_count_once() -> None:
    located = locate('a = """\r\nx\r\ny"""\r\nb = 1\r\n')
    assert located.line_in(("a",), 2) == 3
    assert located.line(("b",)) == 4


def test_a_key_is_written_as_in_the_file() -> None:
    key = ("source", "orders", "expect", "amount is positive")
    assert dotted(key) == 'source.orders.expect."amount is positive"'


NAMES = st.text("ab-_1 .\"'\\é#[]=", min_size=1, max_size=6)
LINE = st.text("ab #='[]{},.é", max_size=8)


class Writer:
    """Writes TOML and notes where it has put what."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.text = ""
        self.lines: dict[Key, int] = {}
        self.texts: dict[Key, list[int]] = {}

    @property
    def line(self) -> int:
        return self.text.count("\n") + 1

    def add(self, text: str) -> None:
        self.text += text

    def blank(self) -> None:
        self.add(self.draw(st.sampled_from(["", "\n", "# [a] = \"'''\n", "  \n\n", " \t"])))

    def key(self, name: str) -> None:
        bare = all(character in "ab-_1" for character in name)
        self.add(name if bare and self.draw(st.booleans()) else json.dumps(name))

    def pairs(self, around: Key, depth: int) -> None:
        for name in self.draw(st.lists(NAMES, max_size=4, unique=True)):
            self.blank()
            self.pair((*around, name), depth)
            self.add(self.draw(st.sampled_from(["\n", ' # "\n', "\t\n\n"])))

    def pair(self, key: Key, depth: int) -> None:
        self.lines[key] = self.line
        self.key(str(key[-1]))
        self.add(self.draw(st.sampled_from([" = ", "=", "  =\t"])))
        self.value(key, depth)

    def value(self, key: Key, depth: int) -> None:
        kinds = ["plain", "basic", "literal", "lines", "raw lines"]
        kind = self.draw(st.sampled_from(kinds + ["array", "inline"] * (depth > 0)))
        if kind == "plain":
            plain = [
                "1",
                "true",
                "2026-01-31T08:00:00Z",
                "07:32:00",
                "-1.5e3",
                "1979-05-27 07:32:00",
            ]
            self.add(self.draw(st.sampled_from(plain)))
        elif kind in {"array", "inline"}:
            getattr(self, kind)(key, depth - 1)
        else:
            self.string(key, kind)

    def string(self, key: Key, kind: str) -> None:
        lines = self.draw(st.lists(LINE, min_size=1, max_size=4))
        if kind == "literal":
            self.texts[key] = [self.line]
            self.add("'" + lines[0].replace("'", "") + "'")
        elif kind == "basic":
            escaped = "\\n".join(lines)
            self.texts[key] = [self.line] * len(lines)
            self.add(f'"{escaped}"')
        else:
            quotes = '"""' if kind == "lines" else "'''"
            first = self.draw(st.sampled_from(["\n", ""]))
            kept = [line.replace("'", "") for line in lines]
            # A first line that is empty is taken for the newline after the quotes.
            kept[0] = kept[0] or ("" if first else "x")
            self.add(quotes + first)
            self.texts[key] = [self.line + index for index in range(len(kept))]
            self.add("\n".join(kept) + quotes)

    def array(self, key: Key, depth: int) -> None:
        self.add("[")
        for index in range(self.draw(st.integers(0, 3))):
            self.add(self.draw(st.sampled_from(["", "\n", " # ]\n  ", "\n\n"])))
            self.lines[(*key, index)] = self.line
            self.value((*key, index), depth)
            self.add(self.draw(st.sampled_from([",", " , # ,\n", ",\n"])))
        self.add("]")

    def inline(self, key: Key, depth: int) -> None:
        self.add("{")
        names = self.draw(st.lists(NAMES, max_size=3, unique=True))
        for index, name in enumerate(names):
            self.add(", " if index else self.draw(st.sampled_from(["", " "])))
            self.pair((*key, name), depth)
        self.add("}")


@st.composite
def files(draw: st.DrawFn) -> Writer:
    writer = Writer(draw)
    writer.pairs((), 2)
    for number, name in enumerate(draw(st.lists(NAMES, max_size=3, unique=True))):
        writer.blank()
        table = f"table{number}"
        for element in range(draw(st.integers(1, 3)) if draw(st.booleans()) else 0):
            at = (table, element)
            writer.lines[at] = writer.line
            writer.lines.setdefault((table,), writer.line)
            writer.add(f"[[{table}]]\n")
            writer.pairs(at, 1)
        if (table,) not in writer.lines:
            writer.lines[(table,)] = writer.lines[(table, name)] = writer.line
            writer.add(f"[ {table} . {json.dumps(name)} ] # ]\n")
            writer.pairs((table, name), 2)
    return writer


def parsed_keys(value: Any, key: Key = ()) -> Iterator[tuple[Key, Any]]:
    pairs: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        pairs = list(value.items())
    elif isinstance(value, list):
        pairs = list(enumerate(value))
    for name, inner in pairs:
        yield (*key, name), inner
        yield from parsed_keys(inner, (*key, name))


@given(files())
def test_lines_are_those_that_were_written(written: Writer) -> None:
    values = dict(parsed_keys(tomllib.loads(written.text)))
    located = locate(written.text)
    assert {key: place.line for key, place in located.by_key.items()} == written.lines
    assert set(located.by_key) == set(values)
    for key, lines in written.texts.items():
        assert list(located.by_key[key].text_lines) == lines
        assert len(lines) == values[key].count("\n") + 1


@given(
    st.lists(st.sampled_from(["a", "\\n", "\n", "\\\n  ", "\\u000A", '\\"', "\\\\", '""x', " "]))
)
def test_a_text_has_a_line_of_the_file_for_each_of_its_own(pieces: list[str]) -> None:
    text = 'a = """' + "".join(pieces) + '"""\nb = 1\n'
    value = tomllib.loads(text)["a"]
    place = locate(text).by_key[("a",)]
    assert len(place.text_lines) == value.count("\n") + 1
    assert list(place.text_lines) == sorted(place.text_lines)
    assert locate(text).line(("b",)) == text.count("\n")
