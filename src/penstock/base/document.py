"""Document: a TOML file as text and values, with the line of every key, and its problems.

Pipelines and connectors are such files. `read` rejects text that is not TOML. Later checks use the
stored lines: they convert line n of a step's SQL, as Spark counts it, to a line of the file.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

from penstock.base.errors import InvalidError

# Line numbers of the keys in a TOML text, and of the lines inside its strings.
#
# `tomllib` returns values without lines. This second pass reads a text that `tomllib` has accepted.
# It follows only what determines the line of a key: tables, dotted and quoted keys, inline tables,
# arrays, and the four kinds of strings. For each line of a string's *value* it stores the line in
# the file. So line n of a SQL text can be reported as a line of the file, despite escapes and
# folded lines.
#
# Source: TOML 1.0.0, https://toml.io/en/v1.0.0.


Key = tuple[str | int, ...]
"""Path of keys; the elements of arrays count from 0."""

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_BLANK: Final = re.compile(r"[ \t]*")
_SPACE: Final = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_PLAIN: Final = re.compile(r"[^,\]}#\n]*")
_FOLD: Final = re.compile(r"\\[ \t]*\r?\n[ \t\r\n]*")
_ESCAPE: Final = re.compile(r"\\(?:u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)")
_NEWLINES: Final = frozenset({"\\n", "\\u000a", "\\u000A", "\\U0000000a", "\\U0000000A"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Line of a key, counted from 1; for a string, the file's line of each of its lines."""

    line: int
    text_lines: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Locations:
    """Lines of all keys of one text."""

    by_key: Mapping[Key, Place] = field(default_factory=dict)

    def line(self, key: Key) -> int | None:
        """Return the line of a key, or of its nearest enclosing table that the text has."""
        while key:
            place = self.by_key.get(key)
            if place is not None:
                return place.line
            key = key[:-1]
        return None

    def line_in(self, key: Key, number: int) -> int | None:
        """Return the file's line of line `number` (from 1) of a string, else the nearest line."""
        place = self.by_key.get(key)
        if place is None or not place.text_lines:
            return self.line(key)
        return place.text_lines[min(max(number, 1), len(place.text_lines)) - 1]


def dotted(key: Key) -> str:
    """Return a key as it is written: `source.orders.expect."amount is positive"`."""
    parts = []
    for part in key:
        if isinstance(part, int):
            parts.append(str(part + 1))
        else:
            parts.append(part if _BARE.fullmatch(part) else f'"{part}"')
    return ".".join(parts)


def locate(text: str) -> Locations:
    """Return the lines of the keys of a text that `tomllib.loads` accepts."""
    reader = _Reader(text)
    reader.document()
    return Locations(reader.by_key)


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text.replace("\r\n", "\n")
        self.at = 0
        self.line = 1
        self.by_key: dict[Key, Place] = {}
        self._arrays: dict[Key, int] = {}

    def document(self) -> None:
        table: Key = ()
        self._skip(_SPACE)
        while self.at < len(self.text):
            if self.text[self.at] == "[":
                table = self._header()
            else:
                self._pair(table)
            self._skip(_SPACE)

    def _skip(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.text, self.at)
        taken = found.group() if found is not None else ""
        self.at += len(taken)
        self.line += taken.count("\n")
        return taken

    def _next_is(self, mark: str) -> bool:
        return self.text.startswith(mark, self.at)

    def _note(self, key: Key, line: int, text_lines: tuple[int, ...] = ()) -> None:
        for size in range(1, len(key)):
            self.by_key.setdefault(key[:size], Place(line=line))
        self.by_key[key] = Place(line=line, text_lines=text_lines)

    def _header(self) -> Key:
        many = self._next_is("[[")
        line = self.line
        self.at += 2 if many else 1
        table = self._inside(self._key())
        self.at += 2 if many else 1
        if many:
            number = self._arrays.get(table, -1) + 1
            self._arrays[table] = number
            self._note(table, self.by_key[table].line if number else line)
            table = (*table, number)
        self._note(table, line)
        return table

    def _inside(self, key: Key) -> Key:
        """Return a header's key path, with the index of the current element of arrays of tables."""
        path: Key = ()
        for index, part in enumerate(key):
            path = (*path, part)
            if path in self._arrays and index < len(key) - 1:
                path = (*path, self._arrays[path])
        return path

    def _key(self) -> Key:
        parts: list[str] = []
        while True:
            self._skip(_BLANK)
            if self.text[self.at] in "\"'":
                parts.append(self._quoted_key())
            else:
                parts.append(self._skip(_BARE))
            self._skip(_BLANK)
            if not self._next_is("."):
                return tuple(parts)
            self.at += 1

    def _quoted_key(self) -> str:
        start = self.at
        self._string()
        parsed: str = tomllib.loads(f"key = {self.text[start : self.at]}")["key"]
        return parsed

    def _pair(self, table: Key) -> None:
        line = self.line
        key = (*table, *self._key())
        self.at += 1  # the equals sign
        self._skip(_BLANK)
        self._value(key, line)

    def _value(self, key: Key, line: int) -> None:
        first = self.text[self.at : self.at + 1]
        self._note(key, line)
        if first in {'"', "'"}:
            self._note(key, line, self._string())
        elif first == "[":
            self._array(key)
        elif first == "{":
            self._inline(key)
        else:
            self._skip(_PLAIN)

    def _array(self, key: Key) -> None:
        self.at += 1
        number = 0
        self._skip(_SPACE)
        while not self._next_is("]"):
            self._value((*key, number), self.line)
            number += 1
            self._skip(_SPACE)
            if self._next_is(","):
                self.at += 1
                self._skip(_SPACE)
        self.at += 1

    def _inline(self, key: Key) -> None:
        self.at += 1
        self._skip(_SPACE)
        while not self._next_is("}"):
            self._pair(key)
            self._skip(_SPACE)
            if self._next_is(","):
                self.at += 1
                self._skip(_SPACE)
        self.at += 1

    def _string(self) -> tuple[int, ...]:
        """Skip a string; return the file's line for each line of its value."""
        quote = self.text[self.at]
        mark = quote * 3 if self._next_is(quote * 3) else quote
        self.at += len(mark)
        if len(mark) == 3 and self._next_is("\n"):
            self._step("\n")
        lines: list[int] = []
        begun = False
        while not self._next_is(mark):
            taken = self._piece(escapes=quote == '"')
            if taken is None:
                continue
            here, ends = taken
            if not begun:
                lines.append(here)
            begun = not ends
        if not begun:
            lines.append(self.line)
        self.at += len(mark)
        for _ in range(2):  # one or two quotes before the mark belong to the text
            if len(mark) == 3 and self._next_is(quote):
                self.at += 1
        return tuple(lines)

    def _piece(self, *, escapes: bool) -> tuple[int, bool] | None:
        """Skip a character of a string; return its line, and whether it ends a line of the value.

        Return None for a line continuation, which is not part of the value.
        """
        if escapes and self._next_is("\\"):
            if self._skip(_FOLD):
                return None
            here = self.line
            return here, self._skip(_ESCAPE) in _NEWLINES
        here = self.line
        character = self.text[self.at]
        self._step(character)
        return here, character == "\n"

    def _step(self, character: str) -> None:
        self.at += 1
        self.line += character == "\n"


FILE_BYTES_MAX: Final = 1 << 20
"""Largest TOML file, and largest file with SQL or Python."""

_AT: Final = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_FIXES: Final = (
    ("overwrite", "write each key and each table once"),
    ("twice", "write each key and each table once"),
    ("Unescaped", 'write \\\\ for a backslash, or put the text between \'single quotes\''),
    ("escape", 'write \\\\ for a backslash, or put the text between \'single quotes\''),
    ("Illegal character", 'put text of several lines between """ and """'),
    ("Invalid value", 'put text in quotes, as key = "text"'),
    ("Unterminated", "close the quotes"),
    ("Expected '='", "write key = value; a key with spaces or dots in it needs quotes"),
    ("Unclosed", "close the bracket"),
    ("Expected newline", "begin a new line for the next key"),
    ("Expected ']'", "close the table's name with ]"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Problem that makes a file unusable; `where` is a key like `source.orders.topic`."""

    file: Path
    line: int | None
    where: str
    message: str
    fix: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else str(self.file)
        fix = f"; {self.fix}" if self.fix else ""
        return f"{place}: {self.where}: {self.message}{fix}"


def in_order(problems: Iterable[Problem], file: Path) -> tuple[Problem, ...]:
    """Return problems by line, those of `file` before those of the files that it names."""

    def place(one: Problem) -> tuple[bool, str, int]:
        return one.file != file, str(one.file), one.line or 0

    return tuple(sorted(problems, key=place))


class DocumentInvalid(InvalidError):
    """File with problems; the message lists all of them."""

    code: ClassVar[str] = "invalid_config"

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class DocumentKind:
    """Kind of TOML file: the name that a directory's file has, and the command that creates one."""

    name: str
    init: str

    @property
    def file_name(self) -> str:
        return f"{self.name}.toml"


PIPELINE: Final = DocumentKind("pipeline", "penstock pipeline init")
CONNECTOR: Final = DocumentKind("connector", "penstock connect init")


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """TOML file. `file` is absolute; relative paths in it start at its directory."""

    file: Path
    kind: DocumentKind
    text: str
    values: dict[str, Any]
    locations: Locations = field(repr=False)

    @property
    def default_name(self) -> str:
        """Default name: the file's stem, or for a directory's file the name of the directory."""
        same = self.file.name == self.kind.file_name
        return self.file.parent.name if same else self.file.stem

    def path(self, given: str) -> Path:
        return Path(self.file.parent, Path(given).expanduser()).resolve()

    def place(self, key: Key, number: int | None = None) -> tuple[Path, int | None]:
        """Return file and line of a key, or of line `number` (from 1) of its text."""
        if number is None:
            return self.file, self.locations.line(key)
        return self.file, self.locations.line_in(key, number)

    def sql_place(self, step: str, number: int) -> tuple[Path, int | None]:
        """Return file and line of line `number` (from 1) of a step's SQL."""
        given = self.values.get("step", {}).get(step, {})
        if "sql_file" in given:
            return self.path(str(given["sql_file"])), number
        return self.place(("step", step, "sql"), number)

    def problem(self, key: Key, message: str, fix: str = "", *, under: Key = ()) -> Problem:
        """Return a problem of a key, with the line of the key `under` if that is given."""
        line = self.locations.line(under or key)
        return Problem(file=self.file, line=line, where=dotted(key), message=message, fix=fix)


def read(path: Path, kind: DocumentKind = PIPELINE) -> Document:
    """Read a file, or the file of a directory (`pipeline.toml` for a pipeline).

    Raises:
        DocumentInvalid: the file is missing, too large, or not TOML.
    """
    file = path.resolve()
    if file.is_dir():
        file = file / kind.file_name
    text = read_text(file, _missing(path, kind))
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DocumentInvalid((_syntax_problem(file, text, str(error)),)) from error
    except RecursionError as error:
        raise DocumentInvalid((_syntax_problem(file, text, "Lists nested too deep"),)) from error
    return Document(file=file, kind=kind, text=text, values=values, locations=locate(text))


def _missing(path: Path, kind: DocumentKind) -> str:
    if path.is_dir():
        return f"put a {kind.file_name} there, or make one with `{kind.init}`"
    return f"name the {kind.name}'s file or directory, or make one with `{kind.init}`"


def read_text(file: Path, fix: str) -> str:
    r"""Read a text file of at most `FILE_BYTES_MAX` bytes, with `\n` between lines.

    Raises:
        DocumentInvalid: the file is missing (`fix` is the remedy), unreadable, too large, or not
            UTF-8.
    """

    def refused(message: str, fix: str, line: int | None = None) -> DocumentInvalid:
        problem = Problem(file=file, line=line, where="file", message=message, fix=fix)
        return DocumentInvalid((problem,))

    try:
        with file.open("rb") as opened:
            content = opened.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError as error:
        raise refused("there is no such file", fix) from error
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise refused(f"cannot be read: {reason}", "fix its permissions") from error
    if len(content) > FILE_BYTES_MAX:
        raise refused(f"is larger than {FILE_BYTES_MAX} bytes", "split the file")
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise refused("is not UTF-8", "save the file as UTF-8", line) from error


def _syntax_problem(file: Path, text: str, message: str) -> Problem:
    found = _AT.search(message)
    line, column = text.rstrip("\n").count("\n") + 1, None
    if found is not None and found[1]:
        line, column = int(found[1]), int(found[2])
    said = _AT.sub("", message)
    said = said[0].lower() + said[1:] if said else "no TOML"
    fix = next((fix for mark, fix in _FIXES if mark in message), "write valid TOML (see toml.io)")
    where = f"column {column}" if column else "end of file"
    return Problem(file=file, line=line, where=where, message=said, fix=fix)
