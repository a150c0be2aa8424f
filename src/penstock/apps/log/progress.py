"""Progress bar on stderr, on terminals only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int], object]


@contextmanager
def progress(label: str, total: int, *, offsets: bool = False) -> Iterator[Advance]:
    """Yield a function that advances the bar by bytes or offsets."""
    if not sys.stderr.isatty():
        yield lambda size: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    counted: tuple[ProgressColumn, ...] = (DownloadColumn(), TransferSpeedColumn())
    if offsets:
        counted = (MofNCompleteColumn(), TextColumn("offsets"))
    columns = (TextColumn("{task.description}"), BarColumn(), *counted, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda size: bar.advance(task, size)
