"""Connectors as files: sources into topics, sinks out of topics, and transforms in between.

A connector of your own is a class with typed settings:

    class Settings(ConnectorSettings):
        path: str = setting(MISSING, "The file.")

    class Lines(Source[Settings]):
        settings_type = Settings

        def read(self, positions):
            ...
            yield SourceBatch.of("lines", rows, {"line": 1})

Install it with an entry point of the group `penstock.connectors`, or name it as `file.py:Lines`.
"""

from dataclasses import MISSING

from penstock.base.settings import setting
from penstock.connect.errors import RowsRejected, SinkUnavailable, SourceUnavailable
from penstock.connect.plugins import (
    ConnectorSettings,
    Records,
    Sink,
    SinkBatch,
    Source,
    SourceBatch,
    SourceContext,
    connector_settings,
)

__all__ = [
    "MISSING",
    "ConnectorSettings",
    "Records",
    "RowsRejected",
    "Sink",
    "SinkBatch",
    "SinkUnavailable",
    "Source",
    "SourceBatch",
    "SourceContext",
    "SourceUnavailable",
    "connector_settings",
    "setting",
]
