"""Source that writes a row twice a second, and dies while a file of its settings exists."""

import resource
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.connect import ConnectorSettings, Source, SourceBatch, SourceUnavailable, setting


class DyingSettings(ConnectorSettings):
    topic: str = setting("dying", "Topic of the rows.")
    memory: str = setting("", "File that exists while the process may not use enough memory.")
    down: str = setting("", "File that exists while the system is down.")
    value: str = setting("a", "Value of the rows.")


class Dying(Source[DyingSettings]):
    settings_type = DyingSettings

    def read(self, positions: Mapping[str, Any]) -> Iterator[SourceBatch]:
        at = int(positions.get("at", 0))
        while True:
            if self.settings.down and Path(self.settings.down).exists():
                raise SourceUnavailable("the system is down")
            if self.settings.memory and Path(self.settings.memory).exists():
                _, most = resource.getrlimit(resource.RLIMIT_AS)
                resource.setrlimit(resource.RLIMIT_AS, (1 << 30, most))
                np.ones(1 << 30)
            at += 1
            rows = pa.table({"value": [{"at": at, "text": self.settings.value}]})
            yield SourceBatch.of(self.settings.topic, rows, {"at": at}, caught_up=True)
            for _ in range(10):
                time.sleep(0.05)
                yield SourceBatch()
