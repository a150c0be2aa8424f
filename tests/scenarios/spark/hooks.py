"""Points in Spark's workers and planners: the same classes, that come by `deadly.reach`.

A worker gets them from its parent (`daemon.py`), a planner with the class of the source, which is
this module's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from penstock.base.files import Buffer, Files, write_all
from penstock.spark.reads.reading import TaskReader
from penstock.spark.reads.stream import PenstockStreamReader
from penstock.spark.sessions.source import PenstockSource
from penstock.spark.sink import blobs
from penstock.spark.sink.blobs import BlobStore
from tests.scenarios.spark.deadly import reach
from tests.scenarios.spark.points import PLANNING

_read, _put = TaskReader.read, BlobStore.put
_latest_offset = PenstockStreamReader.latestOffset


def read(self: TaskReader, task: Any) -> Iterator[Any]:
    for batch in _read(self, task):
        reach("worker: reading the source", "executor: reading the source")
        yield batch


def put(self: BlobStore, name: str, pieces: list[Any], size_bytes: int) -> tuple[str, ...]:
    reach("worker: blob not written")
    holders = _put(self, name, pieces, size_bytes)
    reach("worker: blob durable, entry not returned", "executor: blob durable")
    return holders


def write_in_halves(files: Files, file: int, position: int, pieces: Sequence[Buffer]) -> int:
    first = memoryview(pieces[0])
    half = len(first) // 2
    position = write_all(files, file, position, [first[:half]])
    reach("worker: blob half written", "executor: blob half written")
    return write_all(files, file, position, [first[half:], *pieces[1:]])


def latest_offset(self: PenstockStreamReader, start: Any, limit: Any) -> Any:
    reach(PLANNING.name, "planner: asked for the next batch")
    return _latest_offset(self, start, limit)


class Source(PenstockSource):
    """The same source, from here."""


TaskReader.read = read  # type: ignore[method-assign]
BlobStore.put = put  # type: ignore[method-assign]
vars(blobs)[write_all.__name__] = write_in_halves
PenstockStreamReader.latestOffset = latest_offset  # type: ignore[method-assign]
