"""Connectors with the settings of Kafka Connect's file connectors: lines of a file, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.base.errors import InvalidError
from penstock.connect import (
    MISSING,
    ConnectorSettings,
    Sink,
    SinkBatch,
    Source,
    SourceBatch,
    setting,
)


class SourceSettings(ConnectorSettings):
    file: str = setting("", "File whose lines are read.")
    topic: str = setting(MISSING, "Topic that the lines are written to.")
    batch_size: int = setting(2000, "Most lines of a batch.", 1)


class FileStreamSource(Source[SourceSettings]):
    settings_type = SourceSettings

    def read(self, positions: Mapping[str, Any]) -> Iterator[SourceBatch]:
        name = self.settings.file
        at = positions.get(name, {"position": 0})["position"]
        while True:
            lines = Path(name).read_bytes()[at:]
            if lines:
                at += len(lines)
                rows = pa.table({"value": [line.decode() for line in lines.splitlines()]})
                yield SourceBatch.of(self.settings.topic, rows, {name: {"position": at}})
            yield SourceBatch(caught_up=True)


class SinkSettings(ConnectorSettings):
    file: str = setting("", "File that the lines are appended to.")


class FileStreamSink(Sink[SinkSettings]):
    settings_type = SinkSettings
    raw = True

    def write(self, batch: SinkBatch) -> None:
        lines = [line for part in batch.parts for line in part.rows["value"].to_pylist()]
        try:
            with Path(self.settings.file).open("ab") as file:
                file.writelines(line + b"\n" for line in lines)
        except FileNotFoundError as error:
            raise InvalidError(f"Couldn't find or create file '{self.settings.file}'") from error
