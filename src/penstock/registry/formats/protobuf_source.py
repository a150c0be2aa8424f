"""Reader of .proto source: a bounded scanner, and the parse tree of the library's grammar.

The scanner checks the size limits before the parser runs, because the parser is recursive and
reads about 100,000 tokens a second. It also removes comments, rewrites syntax that the grammar
lacks, and gives each literal one spelling:

| source                       | token                                           |
|------------------------------|-------------------------------------------------|
| `0x1F`, `037`                | `31`                                            |
| `'caf\\u00e9'`               | `"caf\\303\\251"`: UTF-8 bytes, escaped by octal  |
| `reserved a, b;`             | `reserved "a", "b";`                            |
| `export message A {`         | `message A {`, noted in `visibilities`          |
| `import option "a.proto";`   | `import "a.proto";`, noted in `option_imports`  |

Source: the Protocol Buffers language specification, "Lexical elements" and "Editions".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from antlr4 import CommonTokenStream
from antlr4.atn.PredictionMode import PredictionMode
from antlr4.error.Errors import ParseCancellationException
from antlr4.error.ErrorStrategy import BailErrorStrategy
from antlr4.ListTokenSource import ListTokenSource
from antlr4.Token import CommonToken, Token
from google.protobuf import text_encoding
from proto_schema_parser.antlr.ProtobufParser import ProtobufParser

from penstock.registry.formats.schema import (
    DEPTH_MAX,
    REFERENCES_MAX,
    SCHEMA_BYTES_MAX,
    TYPES_MAX,
    InvalidSchema,
)

TOKENS_MAX: Final = 40_000
"""Most tokens of a source text. The parser needs about half a second for them."""
TOTAL_TOKENS_MAX: Final = 100_000
"""Most tokens of a schema together with its references."""
NUMBER_CHARACTERS_MAX: Final = 400
"""Longest number in a source text, in characters."""
NAME_CHARACTERS_MAX: Final = 1_000
"""Longest name in a source text, in characters."""
DOTS_MAX: Final = 100
"""Most dots in a qualified name."""

_TOKEN: Final = re.compile(
    r"""
    (?P<space>[ \t\r\n\f\v]++)
    | (?P<comment>//[^\n]*+ | /\*[\s\S]*?\*/)
    | (?P<open>/\*)
    | (?P<name>[A-Za-z_][A-Za-z0-9_]*+)
    | (?P<number>\.?[0-9](?:[eE][+-]|[A-Za-z0-9_.])*+)
    | (?P<string>"(?:[^"\\\n\0]++|\\[^\n\0])*+" | '(?:[^'\\\n\0]++|\\[^\n\0])*+')
    | (?P<symbol>[;,./:=+(){}\[\]<>-])
    | (?P<other>[\s\S])
    """,
    re.VERBOSE,
)
_INTEGER: Final = re.compile(r"0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*")
_FLOAT: Final = re.compile(
    r"[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|\.[0-9]+(?:[eE][+-]?[0-9]+)?"
)
_ESCAPE: Final = re.compile(
    r"\\(?:[xX][0-9a-fA-F]{1,2}|[0-7]{1,3}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[\s\S])"
)
_PLAIN_ESCAPES: Final = {
    "a": b"\a", "b": b"\b", "f": b"\f", "n": b"\n", "r": b"\r", "t": b"\t", "v": b"\v",
    "\\": b"\\", "'": b"'", '"': b'"', "?": b"?",
}  # fmt: skip
_TYPES: Final[Mapping[str, int]] = {
    name[1:-1]: number
    for number, name in enumerate(ProtobufParser.literalNames)
    if name != "<INVALID>"
}
"""Token types of keywords and symbols."""
KEYWORDS: Final = frozenset(word for word in _TYPES if word.isidentifier())
"""Words that the grammar treats differently from other names in some places."""
_OPENING: Final = frozenset("({[<")
_CLOSING: Final = frozenset(")}]>")
_BOUNDARIES: Final = frozenset((";", "{", "}", ""))
"""Tokens before a declaration. The empty text stands for the start of the source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Parse tree of a source text.

    Attributes:
        tree: `FileContext` of the grammar.
        tokens: all tokens without comments, and an end token.
        visibilities: `export` or `local`, by the offset of the declaration's keyword.
        option_imports: offsets of the `import` keywords of imports that serve options only.
    """

    text: str
    tree: Any
    tokens: Sequence[Any]
    visibilities: Mapping[int, str]
    option_imports: frozenset[int]

    def reject(self, where: Any, reason: str) -> NoReturn:
        """Raise InvalidSchema with the line of a part of the tree."""
        raise InvalidSchema(f"Line {self.line(where)}: {reason}")

    def line(self, where: Any) -> int:
        """Return the line number on which a part of the tree begins."""
        return self.text.count("\n", 0, where.start.start) + 1

    def spelling(self, where: Any) -> str:
        """Return a part of the tree in the spelling of Protobuf's text format."""
        begin, end = where.start.tokenIndex, where.stop.tokenIndex + 1
        return _spelled([token.text for token in self.tokens[begin:end]])


def read_source(text: str) -> Source:
    """Return the parse tree of a .proto source text.

    Raises:
        InvalidSchema: the text is malformed, or exceeds a limit.
    """
    check_size(text)
    tokens = list(_scan(text))
    visibilities, option_imports = _rewrite(tokens)
    tokens.append(_token(Token.EOF, "the end of the text", len(text)))
    parser = ProtobufParser(CommonTokenStream(ListTokenSource(tokens)))
    parser.removeErrorListeners()
    parser._errHandler = BailErrorStrategy()
    parser._interp.predictionMode = PredictionMode.SLL
    try:
        tree = parser.file_()
    except ParseCancellationException as error:
        token = error.args[0].offendingToken
        raise _invalid(text, token.start, f"unexpected {token.text[:40]}") from None
    return Source(
        text=text,
        tree=tree,
        tokens=tokens,
        visibilities=visibilities,
        option_imports=option_imports,
    )


def check_size(text: str) -> None:
    """Raise InvalidSchema if a text has more than `SCHEMA_BYTES_MAX` bytes, or is not Unicode."""
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        raise InvalidSchema("The schema has a surrogate, which is not a character.") from None
    if size > SCHEMA_BYTES_MAX:
        raise InvalidSchema(
            f"The schema has {size} bytes. At most {SCHEMA_BYTES_MAX} are allowed. Split the"
            " schema, and refer to the parts."
        )


def check_total(texts: Sequence[str]) -> None:
    """Raise InvalidSchema if texts have more than `TOTAL_TOKENS_MAX` tokens.

    Counting tokens takes a tenth of the time of parsing them.
    """
    if sum(map(len, texts)) <= TOTAL_TOKENS_MAX:
        return
    count = 0
    for text in texts:
        for match in _TOKEN.finditer(text):
            count += match.lastgroup not in ("space", "comment")
            if count > TOTAL_TOKENS_MAX:
                raise InvalidSchema(
                    f"The schema and its references have more than {TOTAL_TOKENS_MAX} tokens."
                    " Split the schema."
                )


def unescaped(literal: str) -> bytes:
    """Return the bytes of a quoted string literal."""
    body = literal[1:-1]
    if "\\" not in body:
        return body.encode()
    parts: list[bytes] = []
    end = 0
    for match in _ESCAPE.finditer(body):
        parts.append(body[end : match.start()].encode())
        parts.append(_unescaped_one(match.group()[1:]))
        end = match.end()
    parts.append(body[end:].encode())
    return b"".join(parts)


def escaped(value: bytes) -> str:
    """Return bytes as a string literal in double quotes, with octal escapes."""
    escapes = text_encoding.CEscape(value, as_utf8=False).replace("\\'", "'")
    return f'"{escapes}"'


def _unescaped_one(escape: str) -> bytes:
    first = escape[0]
    if first in _PLAIN_ESCAPES:
        return _PLAIN_ESCAPES[first]
    if first in "xX" and len(escape) > 1:
        return bytes((int(escape[1:], 16),))
    if first in "uU" and len(escape) > 1:
        code = int(escape[1:], 16)
        if code > 0x10FFFF or 0xD800 <= code < 0xE000:
            raise InvalidSchema(f"The escape \\{escape} in a string is not a Unicode character.")
        return chr(code).encode()
    if first in "01234567":
        return bytes((int(escape, 8) & 0xFF,))
    raise InvalidSchema(f"The escape \\{first} in a string is unknown.")


def _scan(text: str) -> Iterator[Any]:
    depth = statements = count = dots = 0
    for match in _TOKEN.finditer(text, 1 if text.startswith("\ufeff") else 0):
        kind, spelling, start = match.lastgroup, match.group(), match.start()
        if kind in ("space", "comment"):
            continue
        count += 1
        if count > TOKENS_MAX:
            raise InvalidSchema(
                f"The schema has more than {TOKENS_MAX} tokens. Split it, and refer to the parts."
            )
        if kind == "symbol":
            statements += spelling == ";"
            depth += (spelling in _OPENING) - (spelling in _CLOSING)
            dots = dots + 1 if spelling == "." else dots * (spelling in "()")
            if depth > DEPTH_MAX:
                raise _invalid(text, start, f"brackets nest deeper than {DEPTH_MAX} levels")
            if dots > DOTS_MAX:
                raise _invalid(text, start, f"a name has more than {DOTS_MAX} dots")
            if statements > TYPES_MAX:
                raise InvalidSchema(
                    f"The schema has more than {TYPES_MAX} statements. Split it, and refer to the"
                    " parts."
                )
            yield _token(_TYPES[spelling], spelling, start)
        else:
            yield _word(text, kind, spelling, start)


def _word(text: str, kind: str | None, spelling: str, start: int) -> Any:
    if kind == "name" and len(spelling) <= NAME_CHARACTERS_MAX:
        return _token(_TYPES.get(spelling, ProtobufParser.IDENTIFIER), spelling, start)
    if kind == "string":
        try:
            literal = escaped(unescaped(spelling))
        except InvalidSchema as error:
            raise _invalid(text, start, str(error)) from None
        return _token(ProtobufParser.STRING_LITERAL, literal, start)
    if kind == "number" and len(spelling) <= NUMBER_CHARACTERS_MAX:
        if _INTEGER.fullmatch(spelling):
            return _token(ProtobufParser.INT_LITERAL, _decimal(spelling), start)
        if _FLOAT.fullmatch(spelling):
            return _token(ProtobufParser.FLOAT_LITERAL, spelling, start)
        raise _invalid(text, start, f"malformed number {spelling[:40]}")
    if kind in ("name", "number"):
        raise _invalid(text, start, f"a {kind} has {len(spelling)} characters")
    if kind == "open":
        raise _invalid(text, start, "a comment is not closed")
    if spelling in "\"'":
        raise _invalid(text, start, "a string is not closed")
    raise _invalid(text, start, f"unexpected character {spelling!a}")


def _decimal(spelling: str) -> str:
    if len(spelling) == 1 or spelling[0] != "0":
        return spelling
    return str(int(spelling, 16 if spelling[1] in "xX" else 8))


def _token(kind: int, spelling: str, start: int) -> Any:
    token = CommonToken(type=kind, start=start, stop=start)
    token.text = spelling
    return token


def _rewrite(tokens: list[Any]) -> tuple[Mapping[int, str], frozenset[int]]:
    """Replace syntax of editions that the grammar lacks; return the fields of `Source` for it."""
    visibilities: dict[int, str] = {}
    option_imports: set[int] = set()
    kept: list[Any] = []
    before, imports = "", 0
    for index, token in enumerate(tokens):
        spelling = token.text
        if before in _BOUNDARIES:
            imports += spelling == "import"
            if spelling in ("export", "local") and _declares(tokens, index):
                visibilities[tokens[index + 1].start] = spelling
                continue
            if spelling == "reserved":
                _quote_names(tokens, index + 1)
        elif before == "import" and spelling == "option":
            option_imports.add(kept[-1].start)
            continue
        kept.append(token)
        before = spelling
    if imports > REFERENCES_MAX:
        raise InvalidSchema(f"The schema imports more than {REFERENCES_MAX} files.")
    tokens[:] = kept
    return visibilities, frozenset(option_imports)


def _declares(tokens: Sequence[Any], index: int) -> bool:
    return (
        len(tokens) > index + 3
        and tokens[index + 1].text in ("message", "enum")
        and tokens[index + 3].text == "{"
    )


def _quote_names(tokens: Sequence[Any], begin: int) -> None:
    end = begin
    while end + 1 < len(tokens) and tokens[end].text.isidentifier():
        end += 2
        if tokens[end - 1].text == ",":
            continue
        if tokens[end - 1].text == ";":
            for token in tokens[begin:end:2]:
                token.type, token.text = ProtobufParser.STRING_LITERAL, f'"{token.text}"'
        return


def _spelled(spellings: Sequence[str]) -> str:
    parts: list[str] = []
    tight = True
    for spelling in spellings:
        joins = spelling in (".", "/")
        if not (tight or joins):
            parts.append(" ")
        parts.append(spelling)
        tight = joins or spelling == "-"
    return "".join(parts)


def _invalid(text: str, start: int, reason: str) -> InvalidSchema:
    line = text.count("\n", 0, start) + 1
    column = start - text.rfind("\n", 0, start)
    return InvalidSchema(f"Line {line}, column {column}: {reason}")
