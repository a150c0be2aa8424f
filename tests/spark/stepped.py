"""The source and the sink with a stop at each step, at which a test may end or move a leader.

    <folder>/<step>.order      written by the test: the next process to come by the step stops there
    <folder>/<step>.reached    that process waits until the test removes it

Steps are taken by the driver, by the processes that plan, and by tasks. Classes are made for each
folder, so that Spark ships them by value with the folder in them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

from pyspark.sql.types import StructType

from penstock.spark.reads.stream import PenstockReader, PenstockStreamReader
from penstock.spark.sessions.source import PenstockSource
from penstock.spark.sink.options import parse as parse_sink
from penstock.spark.sink.writer import LogStreamWriter

FORMAT: Final = "stepped"
SOURCE_STEPS: Final = ("load", "offsets", "planning", "read")
SINK_STEPS: Final = ("staging", "staged", "committed")
LOOK_SECONDS: Final = 0.02
HELD_SECONDS: Final = 300.0
Action = Callable[[], Callable[[], object]]


def reach(folder: str, step: str) -> None:
    """Stop at a step if that is ordered, until the test removes the file."""
    order, reached = Path(folder, f"{step}.order"), Path(folder, f"{step}.reached")
    with suppress(FileNotFoundError):
        order.rename(reached)
        end = time.monotonic() + HELD_SECONDS
        while reached.exists() and time.monotonic() < end:
            time.sleep(LOOK_SECONDS)


def batch_reader(folder: str) -> type[PenstockReader]:
    class Reader(PenstockReader):
        def partitions(self) -> Any:
            reach(folder, "planning")
            return super().partitions()

        def read(self, partition: Any) -> Iterator[Any]:
            reach(folder, "read")
            yield from super().read(partition)

    return Reader


def stream_reader(folder: str) -> type[PenstockStreamReader]:
    class Reader(PenstockStreamReader):
        def latestOffset(self, start: Any, limit: Any) -> Any:  # noqa: N802
            reach(folder, "offsets")
            return super().latestOffset(start, limit)

        def partitions(self, start: Any, end: Any) -> Any:
            reach(folder, "planning")
            return super().partitions(start, end)

        def read(self, partition: Any) -> Iterator[Any]:
            reach(folder, "read")
            yield from super().read(partition)

    return Reader


def stream_writer(folder: str) -> type[LogStreamWriter]:
    class Writer(LogStreamWriter):
        def write(self, iterator: Iterator[Any]) -> Any:
            reach(folder, "staging")
            return super().write(iterator)

        def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803
            reach(folder, "staged")
            super().commit(messages, batchId)
            reach(folder, "committed")

    return Writer


def source(folder: str) -> type[PenstockSource]:
    """The source of format `FORMAT`, with the steps of this folder."""

    class Source(PenstockSource):
        @classmethod
        def name(cls) -> str:
            return FORMAT

        def schema(self) -> StructType:
            reach(folder, "load")
            return super().schema()

        def reader(self, schema: StructType) -> Any:
            end = self._end or self._resolved_end()
            return batch_reader(folder)(self._parsed, end, self._opening)

        def streamReader(self, schema: StructType) -> Any:  # noqa: N802
            return stream_reader(folder)(self._parsed, self._opening)

        def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802
            return stream_writer(folder)(parse_sink(self._given), schema, overwrite)

    return Source


class Orders(threading.Thread):
    """Carries out one action at each step, in this order, while Spark works.

    What an action returns is done once the step has gone on.
    """

    def __init__(self, folder: Path, orders: Sequence[tuple[str, Action]]) -> None:
        super().__init__(daemon=True)
        self._folder = folder
        self._orders = orders
        self._over = threading.Event()
        self.done: list[str] = []
        """The steps at which the action was carried out."""

    def __enter__(self) -> Orders:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()

    def run(self) -> None:
        steps = [step for step, _ in self._orders]
        self._order(steps[0])
        for (step, act), following in zip_longest(self._orders, steps[1:]):
            reached = self._folder / f"{step}.reached"
            while not reached.exists():
                if self._over.wait(LOOK_SECONDS):
                    return
            after = act()
            self.done.append(step)
            if following is not None:  # before Spark goes on, which may be done soon
                self._order(following)
            reached.unlink()
            after()

    def _order(self, step: str) -> None:
        (self._folder / f"{step}.order").touch()
