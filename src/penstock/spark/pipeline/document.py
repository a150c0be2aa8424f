"""Document: a pipeline's file as text and values, with the line of every key, and its problems.

`read` rejects text that is not TOML. Later checks use the stored lines: they convert line n of a
step's SQL, as Spark counts it, to a line of the file.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

from penstock.base.errors import InvalidError
from penstock.spark.pipeline.locations import Key, Locations, dotted, locate

FILE_NAME: Final = "pipeline.toml"
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
    """Problem that keeps a pipeline from running; `where` is a key like `source.orders.topic`."""

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


class PipelineInvalid(InvalidError):
    """Pipeline file with problems; the message lists all of them."""

    code: ClassVar[str] = "invalid_config"

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """File of a pipeline. `file` is absolute; relative paths in it start at its directory."""

    file: Path
    text: str
    values: dict[str, Any]
    locations: Locations = field(repr=False)

    @property
    def default_name(self) -> str:
        """Default pipeline name: the file's stem, or the directory of a `pipeline.toml`."""
        return self.file.parent.name if self.file.name == FILE_NAME else self.file.stem

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


def read(path: Path) -> Document:
    """Read a file, or the `pipeline.toml` of a directory.

    Raises:
        PipelineInvalid: the file is missing, too large, or not TOML.
    """
    file = path.resolve()
    if file.is_dir():
        file = file / FILE_NAME
    text = read_text(file, _missing(path, file))
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PipelineInvalid((_syntax_problem(file, text, str(error)),)) from error
    except RecursionError as error:
        raise PipelineInvalid((_syntax_problem(file, text, "Lists nested too deep"),)) from error
    return Document(file=file, text=text, values=values, locations=locate(text))


def _missing(path: Path, file: Path) -> str:
    if path.is_dir():
        return f"put a {FILE_NAME} there, or make one with `penstock pipeline init`"
    return "name the pipeline's file or directory, or make one with `penstock pipeline init`"


def read_text(file: Path, fix: str) -> str:
    r"""Read a text file of at most `FILE_BYTES_MAX` bytes, with `\n` between lines.

    Raises:
        PipelineInvalid: the file is missing (`fix` is the remedy), unreadable, too large, or not
            UTF-8.
    """

    def refused(message: str, fix: str, line: int | None = None) -> PipelineInvalid:
        problem = Problem(file=file, line=line, where="file", message=message, fix=fix)
        return PipelineInvalid((problem,))

    try:
        with file.open("rb") as opened:
            content = opened.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError as error:
        raise refused("there is no such file", fix) from error
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise refused(f"cannot be read: {reason}", "fix its permissions") from error
    if len(content) > FILE_BYTES_MAX:
        raise refused(f"is larger than {FILE_BYTES_MAX} bytes", "split the pipeline")
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
