"""Connectors of the tests: a source of numbers, and a sink into a file."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.connect import (
    MISSING,
    ConnectorSettings,
    RowsRejected,
    Sink,
    SinkBatch,
    SinkUnavailable,
    Source,
    SourceBatch,
    setting,
)


class NumbersSettings(ConnectorSettings):
    last: int = setting(MISSING, "Last number.", minimum=1)
    topic: str = setting("numbers", "Topic of the numbers.")


class Numbers(Source[NumbersSettings]):
    """Source of the numbers from 1 on, ten in a batch."""

    settings_type = NumbersSettings

    def read(self, positions: Mapping[str, Any]) -> Iterator[SourceBatch]:
        at = positions.get("next", 1)
        while True:
            numbers = list(range(at, min(at + 10, self.settings.last + 1)))
            if numbers:
                rows = pa.table(
                    {"key": [str(n) for n in numbers], "value": [{"n": n} for n in numbers]}
                )
                at = numbers[-1] + 1
                yield SourceBatch.of(self.settings.topic, rows, {"next": at})
            yield SourceBatch(caught_up=at > self.settings.last)


class LinesSettings(ConnectorSettings):
    path: str = setting(MISSING, "File that lines are appended to.")
    refuse: int = setting(-1, "Value of `n` that is rejected.")
    down: str = setting("", "File that exists while the target is down.")


class Lines(Sink[LinesSettings]):
    """Sink that appends a line for each row."""

    settings_type = LinesSettings

    def write(self, batch: SinkBatch) -> None:
        if self.settings.down and Path(self.settings.down).exists():
            raise SinkUnavailable("the file system is away")
        values = [value for part in batch.parts for value in part.rows["value"].to_pylist()]
        numbers = [value["n"] for value in values]
        bad = [index for index, number in enumerate(numbers) if number == self.settings.refuse]
        if bad:
            raise RowsRejected(bad, ["is refused"] * len(bad))
        with Path(self.settings.path).open("a") as file:
            file.writelines(f"{number}\n" for number in numbers)
