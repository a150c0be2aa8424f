"""A first pipeline in a directory of its own: file, sample data, and the commands to run it.

A template is a directory beside this module, copied as it is. Nothing of the user's is
overwritten: the files are all new, or none is written.
"""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import ClassVar

from penstock.base.errors import InvalidError
from penstock.spark.pipeline.kinds import nearest


class UnknownTemplate(InvalidError):
    """There is no template of that name."""

    code: ClassVar[str] = "invalid_config"


class PathTaken(InvalidError):
    """A file that a template would write is there."""

    code: ClassVar[str] = "invalid_config"


def templates() -> tuple[str, ...]:
    """The names of the templates."""
    return tuple(sorted(one.name for one in _root().iterdir() if one.is_dir()))


def init(directory: Path, template: str = "quickstart") -> tuple[Path, ...]:
    """Write a template's files into a directory, which is made if it is not there.

    Returns:
        The files written, by name.

    Raises:
        UnknownTemplate: no template is called that.
        PathTaken: one of the files is there already, or the directory's name is a file's; then
            nothing is written.
    """
    known = templates()
    if template not in known:
        close = nearest(template, known)
        fix = f"did you mean {close}?" if close else f"there are {', '.join(known)}"
        raise UnknownTemplate(f"there is no template {template!r}: {fix}")
    if directory.exists() and not directory.is_dir():
        raise PathTaken(f"{directory} is a file: name another directory")
    sources = sorted((_root() / template).iterdir(), key=lambda one: one.name)
    taken = [source.name for source in sources if (directory / source.name).exists()]
    if taken:
        raise PathTaken(f"{directory} has {', '.join(taken)} already: name another directory")
    directory.mkdir(parents=True, exist_ok=True)
    return tuple(_write(source, directory / source.name) for source in sources)


def _root() -> Traversable:
    return files("penstock.spark.pipeline") / "templates"


def _write(source: Traversable, path: Path) -> Path:
    with path.open("xb") as file:
        file.write(source.read_bytes())
    return path
