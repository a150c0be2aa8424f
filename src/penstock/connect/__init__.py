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
from typing import TYPE_CHECKING

from penstock.base.settings import setting

if TYPE_CHECKING:
    from penstock.connect.errors import (
        ConnectorFailed,
        RowsRejected,
        SinkUnavailable,
        SourceUnavailable,
    )
    from penstock.connect.plugins import (
        ConnectorSettings,
        Records,
        Sink,
        SinkBatch,
        Source,
        SourceBatch,
        SourceContext,
    )

_HOMES = {
    "ConnectorFailed": "errors",
    "ConnectorSettings": "plugins",
    "Records": "plugins",
    "RowsRejected": "errors",
    "Sink": "plugins",
    "SinkBatch": "plugins",
    "SinkUnavailable": "errors",
    "Source": "plugins",
    "SourceBatch": "plugins",
    "SourceContext": "plugins",
    "SourceUnavailable": "errors",
}

__all__ = [
    "MISSING",
    "ConnectorFailed",
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
    "setting",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from penstock.base.extras import required

    return getattr(required(f"penstock.connect.{home}", "client"), name)
