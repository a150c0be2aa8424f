"""Runs of connectors in the process of a benchmark."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from compat.connect.standalone import Standalone

from penstock.client import Client
from penstock.connect import running
from penstock.connect.connector_file import load
from penstock.connect.status import StatusFile


def cpu_seconds(place: Path, text: str, bootstrap: str) -> float:
    """Run the connector of a file's text until it has caught up; return this process's CPU time.

    Args:
        place: path of the file to write, without its suffix.
    """
    file = place.with_suffix(".toml")
    file.write_text(text)
    spec = load(file, bootstrap=bootstrap)
    with Client(bootstrap) as client:
        run = running.Run(
            spec=spec, client=client, stop=running.Stop(), once=True,
            status=StatusFile(spec.name, spec.direction, spec.state),
        )  # fmt: skip
        began = time.process_time()
        running.run(run)
        return time.process_time() - began


def peer_rate(worker: Standalone, count: int, moved: Callable[[], int]) -> float:
    """Return the rows per CPU second of Kafka Connect, from the first quarter to the last row.

    Args:
        count: number of rows that the connector moves.
        moved: returns the number of rows that it has moved so far.

    Raises:
        RuntimeError: the worker has ended, took too long, or moved all rows between two looks.
    """
    first = worker.wait_for(count // 4, moved)
    began = worker.cpu_seconds()
    if first >= count:
        raise RuntimeError(f"{count} rows were moved between two looks; use more")
    worker.wait_for(count, moved)
    return (count - first) / (worker.cpu_seconds() - began)
