"""Filter expressions of the messages pages: a small subset of jq's language.

    expression   conjunction { "or" conjunction }
    conjunction  term { "and" term }
    term         "not" term | "(" expression ")" [ "|" "not" ] | path [ test ]
    test         ("==" | "!=" | "<" | "<=" | ">" | ">=") literal
                 | "|" ("contains" | "startswith" | "endswith" | "test") "(" text ")"
                 | "|" "not"
    path         "." root { "." name | "[" text "]" | "[" index "]" }
    root         key | value | headers | partition | offset | timestamp | size
    literal      text in double quotes | number | true | false | null

Differences from jq: a pipe binds more tightly than `and`; a comparison with a value of another type
is false, except `!=`; the right side of a comparison is a literal. `test` takes a regular
expression of RE2.

Source: jq's manual; RFC 8259 for texts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, TypeAlias

from msgspec import Struct

from penstock.base.errors import InvalidError

if TYPE_CHECKING:
    from collections.abc import Callable

CHARS_MAX: Final = 2000
"""Longest filter."""
DEPTH_MAX: Final = 32
"""Deepest nesting of a filter."""
INDEX_MAX: Final = 100_000
"""Largest index of an array's element."""
NUMBERS: Final = ("partition", "offset", "timestamp", "size")
SIDES: Final = ("key", "value")
ROOTS: Final = (*SIDES, "headers", *NUMBERS)
FUNCTIONS: Final = ("contains", "startswith", "endswith", "test")
_TOKENS: Final = re.compile(
    r'\s*(?:(?P<text>"(?:[^"\\]|\\.)*")'
    r"|(?P<number>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<sign>==|!=|<=|>=|[<>()|.\[\]]))"
)
_COMPARISONS: Final = ("==", "!=", "<", "<=", ">", ">=")
_CONSTANTS: Final = {"true": True, "false": False, "null": None}

Literal: TypeAlias = str | int | float | bool | None


class InvalidFilter(InvalidError):
    """Filter expression that cannot be parsed."""

    code: ClassVar[str] = "invalid_request"


class Path(NamedTuple):
    """Place in a record: a root, and the names and indexes that lead from it."""

    root: str
    steps: tuple[str | int, ...] = ()


class Comparison(Struct, frozen=True):
    path: Path
    sign: str
    literal: Literal


class Match(Struct, frozen=True):
    """Test of a text; `function` is one of `FUNCTIONS`."""

    path: Path
    function: str
    text: str


class Truth(Struct, frozen=True):
    """Test whether a value is neither null nor false."""

    path: Path


class Not(Struct, frozen=True):
    term: Expression


class Joined(Struct, frozen=True):
    """Terms that are joined by `and` or `or`."""

    word: str
    terms: tuple[Expression, ...]


Expression: TypeAlias = Comparison | Match | Truth | Not | Joined


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


def parse(text: str) -> Expression:
    """Parse a filter.

    Raises:
        InvalidFilter: the text is not an expression; the message names the position.
    """
    if len(text) > CHARS_MAX:
        raise InvalidFilter(f"the filter has {len(text):,} characters; at most {CHARS_MAX:,}")
    return _Parser(text).whole()


def paths_of(expression: Expression) -> Iterator[Path]:
    """Yield the paths of an expression."""
    if isinstance(expression, Not):
        yield from paths_of(expression.term)
    elif isinstance(expression, Joined):
        for term in expression.terms:
            yield from paths_of(term)
    else:
        yield expression.path


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(self._split())
        self._next = 0
        self._depth = 0

    def _split(self) -> Iterator[_Token]:
        at, end = 0, len(self._text.rstrip())
        while at < end:
            found = _TOKENS.match(self._text, at)
            if found is None or found.lastgroup is None:
                at += len(self._text[at:]) - len(self._text[at:].lstrip())
                raise self._error(at, "this is not part of the filter language")
            yield _Token(found.lastgroup, found[found.lastgroup], found.start(found.lastgroup))
            at = found.end()
        yield _Token("end", "", end)

    def _error(self, at: int, reason: str) -> InvalidFilter:
        rest = self._text[at : at + 20].strip()
        where = f"at {rest!r} (character {at + 1})" if rest else "at its end"
        return InvalidFilter(f"the filter is invalid {where}: {reason}")

    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _take(self, *texts: str) -> bool:
        """Move past the next token if it is one of these names or signs."""
        token = self._token()
        if token.kind in ("name", "sign") and token.text in texts:
            self._next += 1
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._take(text):
            raise self._error(self._token().at, f"{text} must follow here")

    def whole(self) -> Expression:
        made = self._either()
        if self._token().kind != "end":
            raise self._error(self._token().at, "and, or, or the end must follow here")
        return made

    def _either(self) -> Expression:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self._error(self._token().at, f"it nests deeper than {DEPTH_MAX} levels")
        made = self._joined("or", lambda: self._joined("and", self._term))
        self._depth -= 1
        return made

    def _joined(self, word: str, term: Callable[[], Expression]) -> Expression:
        terms = [term()]
        while self._take(word):
            terms.append(term())
        return terms[0] if len(terms) == 1 else Joined(word, tuple(terms))

    def _term(self) -> Expression:
        negated = False
        while self._take("not"):
            negated = not negated
        if self._take("("):
            made = self._either()
            self._expect(")")
        else:
            made = self._test(self._path())
        while self._take("|"):
            self._expect("not")
            negated = not negated
        return Not(made) if negated else made

    def _test(self, path: Path) -> Expression:
        token = self._token()
        if token.kind == "sign" and token.text in _COMPARISONS:
            self._next += 1
            return Comparison(path, token.text, self._literal(path))
        following = self._tokens[min(self._next + 1, len(self._tokens) - 1)]
        if token.text == "|" and following.text != "not":
            self._next += 1
            return self._match(path)
        return Truth(path)

    def _match(self, path: Path) -> Expression:
        token = self._token()
        if not self._take(*FUNCTIONS):
            raise self._error(token.at, f"one of {', '.join(FUNCTIONS)} and not must follow here")
        self._expect("(")
        text = self._string()
        self._expect(")")
        if token.text == "test":
            _check_pattern(text)
        return Match(path, token.text, text)

    def _path(self) -> Path:
        self._expect(".")
        token = self._token()
        if not self._take(*ROOTS):
            raise self._error(token.at, f"a path begins with one of .{', .'.join(ROOTS)}")
        steps: list[str | int] = []
        while (step := self._step()) is not None:
            steps.append(step)
        if token.text in NUMBERS and steps:
            raise self._error(token.at, f".{token.text} is a number, without fields")
        if token.text == "headers" and (len(steps) != 1 or not isinstance(steps[0], str)):
            raise self._error(token.at, 'the name of a header must follow, as in .headers["name"]')
        return Path(token.text, tuple(steps))

    def _step(self) -> str | int | None:
        if self._take("."):
            token = self._token()
            self._next += token.kind in ("name", "text")
            if token.kind == "name":
                return token.text
            if token.kind == "text":
                return self._unquoted(token)
            raise self._error(token.at, "the name of a field must follow here")
        if not self._take("["):
            return None
        token = self._token()
        found: str | int
        if token.kind == "number":
            if not token.text.isdecimal() or int(token.text) > INDEX_MAX:
                raise self._error(token.at, f"an index is a whole number of at most {INDEX_MAX:,}")
            self._next += 1
            found = int(token.text)
        else:
            found = self._string()
        self._expect("]")
        return found

    def _string(self) -> str:
        token = self._token()
        if token.kind != "text":
            raise self._error(token.at, "a text in double quotes must follow here")
        self._next += 1
        return self._unquoted(token)

    def _unquoted(self, token: _Token) -> str:
        try:
            text = json.loads(token.text)
            text.encode()
        except (ValueError, UnicodeEncodeError):
            raise self._error(token.at, "the text is not a string of JSON") from None
        return str(text)

    def _literal(self, path: Path) -> Literal:
        token = self._token()
        if token.kind == "text":
            text = self._string()
            return self._moment(token, text) if path.root == "timestamp" else text
        self._next += 1
        if token.kind == "number":
            return int(token.text) if token.text.lstrip("-").isdecimal() else float(token.text)
        if token.kind == "name" and token.text in _CONSTANTS:
            return _CONSTANTS[token.text]
        raise self._error(
            token.at, "a text in double quotes, a number, true, false or null must follow"
        )

    def _moment(self, token: _Token, text: str) -> int:
        moment = moment_of(text)
        if moment is None:
            raise self._error(token.at, "this is not a time, such as 2026-01-31T12:00:00Z")
        return moment


def moment_of(text: str) -> int | None:
    """Return the milliseconds since 1970 of a time in ISO 8601, in UTC if it has no zone."""
    try:
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return round(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


def _check_pattern(pattern: str) -> None:
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        re2.compile(pattern, options=options)
    except re2.error as reason:
        words = reason.args[0].decode(errors="replace")
        raise InvalidFilter(f"the regular expression {pattern!r} is invalid: {words}") from None
