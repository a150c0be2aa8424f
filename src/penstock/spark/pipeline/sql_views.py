"""Which views a SQL text reads, found from the text without Spark.

The plan of a pipeline (what feeds what, in which order) is needed before a session is there, and
by `penstock pipeline validate` on machines without Java.

The rule: a view is read where an unqualified name stands in the place of a table:

- after FROM, JOIN and TABLE, and after a comma of a FROM list, also within parentheses there;
- not the FROM of an expression, as in `extract(day from at)` or `is distinct from`;
- not a name with dots (a table of a catalog), nor one followed by `(` (a table function);
- not a name that WITH has defined by then. Within its own definition such a name still means
  the view, as in `with orders as (select * from orders where …) select * from orders`.

Comments, hints and string literals are passed over; `` `quoted` `` names count. Names are
compared without regard to case, as Spark does. A name in the place of a column is no read, even
if a view is called the same.

Source: the grammar of Spark 4, `SqlBaseParser.g4` (rules `fromClause`, `relation`, `ctes`) and
`SqlBaseLexer.g4`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

_TOKEN: Final = re.compile(
    r"""
    (?P<space>\s+ | --[^\n]*)
  | (?P<comment>/\*)
  | (?P<text>[rR]'[^']*' | [rR]"[^"]*" | '(?:\\.|[^'\\])*' | "(?:\\.|[^"\\])*")
  | (?P<quoted>`(?:[^`]|``)*`)
  | (?P<word>[^\W\d]\w* | \d+[^\W\d]\w*)
  | (?P<number>\d+)
  | (?P<sign>\|> | => | .)
    """,
    re.VERBOSE | re.DOTALL,
)
_COMMENT_MARK: Final = re.compile(r"/\*|\*/")
_ENDS_FROM: Final = frozenset(
    {"where", "group", "order", "having", "window", "limit", "union", "except", "intersect"}
    | {"minus", "sort", "cluster", "distribute", "qualify", "|>"}
)
_BEFORE_TABLE: Final = frozenset(
    {"(", ",", "=>", "union", "all", "except", "intersect", "minus", "distinct", ""}
)
_NO_NAMES: Final = frozenset({"select", "from", "with", "table", "values", "lateral", "join"})


@dataclass(frozen=True, slots=True)
class ViewRead:
    """A name in the place of a table, and the line of the text (from 1) where it first stands."""

    name: str
    line: int


@dataclass(frozen=True, slots=True)
class _Token:
    kind: Literal["word", "quoted", "sign", "other"]
    text: str
    line: int

    @property
    def word(self) -> str:
        """What to compare with keywords and signs; a quoted name is neither."""
        return self.text.lower() if self.kind in {"word", "sign"} else ""


@dataclass(slots=True)
class _Frame:
    """What is open between two parentheses.

    `place` says that a table's name may come next; `query` that a FROM here begins a FROM list.
    """

    place: bool = False
    query: bool = False
    listing: bool = False
    naming: bool = False
    """A name that WITH defines may come next."""
    defines: str | None = None
    """The name that the parentheses' text is the definition of."""
    known: set[str] = field(default_factory=set)


def views_read(sql: str) -> tuple[ViewRead, ...]:
    """The names in the place of tables, each once, in the order of the text."""
    found: dict[str, ViewRead] = {}
    for read in _Scanner(list(_tokens(sql))).reads():
        found.setdefault(read.name.lower(), read)
    return tuple(found.values())


def _tokens(sql: str) -> Iterator[_Token]:
    at, line = 0, 1
    while at < len(sql):
        match = _TOKEN.match(sql, at)
        if match is None:
            return
        kind, text = match.lastgroup, match.group()
        end = _comment_end(sql, at) if kind == "comment" else match.end()
        if kind == "word":
            yield _Token("word", text, line)
        elif kind == "sign":
            yield _Token("sign", text, line)
        elif kind == "quoted":
            yield _Token("quoted", text[1:-1].replace("``", "`"), line)
        elif kind in {"text", "number"}:
            yield _Token("other", text, line)
        line += sql.count("\n", at, end)
        at = end


def _comment_end(sql: str, at: int) -> int:
    """Spark's comments nest; an open one takes the rest."""
    depth = 0
    for mark in _COMMENT_MARK.finditer(sql, at):
        depth += 1 if mark.group() == "/*" else -1
        if depth == 0:
            return mark.end()
    return len(sql)


class _Scanner:
    """A walk over the tokens with a stack of what is open."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._frames = [_Frame()]

    def reads(self) -> Iterator[ViewRead]:
        at = 0
        while at < len(self._tokens):
            frame = self._frames[-1]
            token = self._tokens[at]
            if frame.naming and token.kind in {"word", "quoted"}:
                at = self._definition(frame, at)
                continue
            if frame.place and self._is_name(token):
                end = self._name_end(at)
                frame.place = False
                if end == at + 1 and self._word(end) != "(" and not self._defined(token.text):
                    yield ViewRead(token.text, token.line)
                at = end
                continue
            self._turn(frame, token, at)
            at += 1

    def _word(self, at: int) -> str:
        return self._tokens[at].word if 0 <= at < len(self._tokens) else ""

    def _is_name(self, token: _Token) -> bool:
        if token.kind == "quoted":
            return True
        return token.kind == "word" and token.word not in _NO_NAMES

    def _name_end(self, at: int) -> int:
        end = at + 1
        while self._word(end) == "." and end + 1 < len(self._tokens):
            end += 2
        return end

    def _defined(self, name: str) -> bool:
        return any(name.lower() in frame.known for frame in self._frames)

    def _definition(self, frame: _Frame, at: int) -> int:
        """Pass `name [(columns)] … AS (`; the name counts from the end of its text on."""
        frame.naming = False
        recursive = self._word(at) == "recursive" and self._word(at + 1) != "as"
        at += recursive
        name = self._tokens[at].text.lower() if at < len(self._tokens) else ""
        if recursive:
            frame.known.add(name)
        while at < len(self._tokens) and self._word(at) != "as":
            at += 1
        if self._word(at + 1) == "(":
            self._frames.append(_Frame(defines=name))
            return at + 2
        return at + 1

    def _turn(self, frame: _Frame, token: _Token, at: int) -> None:
        word = token.word
        if word == "(":
            self._frames.append(_Frame(place=frame.place, query=frame.place, listing=frame.place))
            frame.place = False
        elif word == ")":
            self._close(at)
        elif word == ",":
            frame.place = frame.listing
        elif word == "with" and self._begins(at):
            frame.naming, frame.place = True, False
        elif word == "from":
            self._from(frame, at)
        elif word == "join":
            frame.place = frame.listing = True
        elif word == "table" and (frame.place or self._word(at - 1) in _BEFORE_TABLE):
            frame.place = True
        else:
            self._clause(frame, word)

    def _clause(self, frame: _Frame, word: str) -> None:
        if word == "select":
            frame.query, frame.place, frame.listing = True, False, False
        elif word in _ENDS_FROM:
            frame.place = frame.listing = False
        elif word == "lateral":
            # `lateral (…)` and `lateral f(…)` stand for a table, `lateral view` ends the list.
            frame.listing = frame.listing and frame.place
        else:
            frame.place = False

    def _begins(self, at: int) -> bool:
        return at == 0 or self._word(at - 1) == "("

    def _from(self, frame: _Frame, at: int) -> None:
        first = at == 0 or self._word(at - 1) == "("
        after_definitions = self._word(at - 1) == ")" and bool(frame.known)
        if (frame.query or first or after_definitions) and self._word(at - 1) != "distinct":
            frame.query = frame.listing = frame.place = True

    def _close(self, at: int) -> None:
        if len(self._frames) == 1:
            return
        closed = self._frames.pop()
        if closed.defines is not None:
            outer = self._frames[-1]
            outer.known.add(closed.defines)
            outer.naming = self._word(at + 1) == ","
