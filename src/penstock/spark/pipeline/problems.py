"""Problems of a pipeline's file: file, line, what is wrong, and how to fix it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from penstock.base.errors import InvalidError


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Problem that keeps a pipeline from running. `where` is a key, as `source.orders.topic`."""

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
    """Pipeline file with problems; the error has all of them."""

    code: ClassVar[str] = "invalid_config"

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems
