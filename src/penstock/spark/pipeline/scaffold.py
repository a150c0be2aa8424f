"""Templates of pipelines: a pipeline file, sample data, and a README with the commands to run it.

A template is a directory below `templates`, which is copied unchanged. If one of its files exists
already, none is written.
"""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import ClassVar

from penstock.base.errors import InvalidError
from penstock.spark.pipeline.kinds import nearest


class UnknownTemplate(InvalidError):
    """Template name that does not exist."""

    code: ClassVar[str] = "invalid_config"


class PathTaken(InvalidError):
    """Path of a template's file that is already in use."""

    code: ClassVar[str] = "invalid_config"


def templates() -> tuple[str, ...]:
    return tuple(sorted(entry.name for entry in _root().iterdir() if entry.is_dir()))


def init(directory: Path, template: str = "quickstart") -> tuple[Path, ...]:
    """Write a template's files into a directory, which is created if it is missing.

    Returns:
        The files written, by name.

    Raises:
        UnknownTemplate: no template has this name.
        PathTaken: a file exists already, or the directory is a file; then nothing is written.
    """
    known = templates()
    if template not in known:
        close = nearest(template, known)
        fix = f"did you mean {close}?" if close else f"write {', '.join(known[:-1])} or {known[-1]}"
        raise UnknownTemplate(f"unknown template {template!r}: {fix}")
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
