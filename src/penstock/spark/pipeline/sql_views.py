"""Views and columns that a SQL text reads, found from the text without Spark or Java.

A text reads a view where an unqualified name is used as a table. Exceptions are a name with dots (a
table of a catalog), a name before `(` (a table function), and a name that WITH has defined. Inside
its own definition, such a name is a view unless the WITH is recursive. Names are case-insensitive.
A text can read only columns whose names are words of it, unless it has `*` or another form of all
columns.

sqlglot parses the text in its Databricks dialect, which has Spark's grammar and Variant paths.
Forms that only Spark accepts are rewritten first: `group by window(…)`, and `table x` as a query.
If sqlglot rejects the text, the names after FROM and JOIN are returned, and Spark reports the error
later.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from sqlglot import Dialect, Token, TokenType, exp
from sqlglot.errors import ParseError, TokenError

_DIALECT: Final = Dialect.get_or_raise("databricks")
_ALL_OF: Final = (
    (TokenType.SELECT, "select"), (TokenType.STAR, "*"), (TokenType.FROM, "from"),
)  # fmt: skip
_OPEN: Final = TokenType.L_PAREN
_BY_ALL: Final = frozenset({"natural", "pivot", "unpivot", "identifier", "|>"})
_PATTERN: Final = frozenset("*+?|()[]")
"""Characters by which Spark may interpret a quoted name as a regular expression."""
logging.getLogger("sqlglot").setLevel(logging.ERROR)  # no warnings of other statements


@dataclass(frozen=True, slots=True)
class ViewRead:
    """Name of a view that a SQL text reads, and the line (from 1) of its first use."""

    name: str
    line: int


def views_read(sql: str) -> tuple[ViewRead, ...]:
    """Return the views that a SQL text reads, each once, in the order of the text."""
    try:
        tokens = list(_tokens(_DIALECT.tokenize(sql)))
    except TokenError:  # a text or comment without an end
        return ()
    try:
        trees = _DIALECT.parser().parse(tokens, sql)
        names = [name for tree in trees if tree is not None for name in _names(tree)]
    except (ParseError, RecursionError):
        names = list(_after_from(tokens))
    found: dict[str, ViewRead] = {}
    for _, name, line in sorted(names):
        found.setdefault(name.lower(), ViewRead(name, line))
    return tuple(found.values())


def _tokens(tokens: Sequence[Token]) -> Iterator[Token]:
    """Yield the tokens, with `window(` as a function and `table x` as `select * from x`."""
    kinds = [TokenType.SEMICOLON, *(token.token_type for token in tokens), TokenType.SEMICOLON]
    for at, token in enumerate(tokens):
        before, kind, after = kinds[at : at + 3]
        if kind == TokenType.WINDOW and after == _OPEN:
            token.token_type = TokenType.VAR
        if kind == _OPEN and before == TokenType.TABLE:
            continue
        if kind != TokenType.TABLE:
            yield token
            continue
        if after == _OPEN:
            yield tokens[at + 1]
        for part, text in _ALL_OF:
            yield Token(part, text, line=token.line, start=token.start, end=token.end)


def words_of(sql: str) -> frozenset[str] | None:
    """Return the lower-case words of a query or expression, which include all columns it reads.

    Return None if it may read columns that it does not name, for example by `*`.
    """
    try:
        tokens = list(_tokens(_DIALECT.tokenize(sql)))
        trees = _DIALECT.parser().parse(tokens, sql)
    except (TokenError, ParseError, RecursionError):
        return None
    words = frozenset(token.text.lower() for token in tokens)
    if words & _BY_ALL or any(tree is None or tree.find(exp.Command) for tree in trees):
        return None
    quoted = [token.text for token in tokens if token.token_type == TokenType.IDENTIFIER]
    if any(set(text) & _PATTERN for text in quoted):
        return None
    stars = [star for tree in trees if tree is not None for star in tree.find_all(exp.Star)]
    return words if all(isinstance(star.parent, exp.Count) for star in stars) else None


_Name = tuple[int, str, int]
"""Position of a name in the text, the name, and its line."""


def _names(tree: exp.Expr) -> Iterator[_Name]:
    for table in tree.find_all(exp.Table):
        name = table.this
        plain = isinstance(name, exp.Identifier) and "start" in name.meta and not table.db
        if plain and not _defined(table) and not table.find_ancestor(exp.Hint):
            yield name.meta["start"], name.name, name.meta["line"]


def _defined(table: exp.Table) -> bool:
    """Whether a WITH clause defines the name of a table that is read here."""
    wanted, node, definition = table.name.lower(), table.parent, None
    while node is not None:
        clause = node.args.get("with_") or exp.With(expressions=[])
        for expression in clause.expressions:
            if expression is definition and not clause.recursive:
                break
            if expression.alias.lower() == wanted:
                return True
            if expression is definition:
                break
        definition = node if isinstance(node, exp.CTE) else definition
        node = node.parent
    return False


def _after_from(tokens: Sequence[Token]) -> Iterator[_Name]:
    kinds = [*(token.token_type for token in tokens), *[TokenType.SEMICOLON] * 2]
    followed_by = [*pairwise(kinds)][1:]
    defined = {
        token.text.lower() for token, pair in zip(tokens, followed_by, strict=True)
        if pair == (TokenType.ALIAS, _OPEN)
    }  # fmt: skip
    for at, token in enumerate(tokens[1:], 1):
        if (
            kinds[at - 1] in {TokenType.FROM, TokenType.JOIN}
            and kinds[at] in {TokenType.VAR, TokenType.IDENTIFIER}
            and kinds[at + 1] not in {TokenType.DOT, _OPEN}
            and token.text.lower() not in defined
        ):
            yield token.start, token.text, token.line
