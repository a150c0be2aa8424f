"""Logging of the command line: to stderr, as text or as one JSON object a line."""

from __future__ import annotations

import json
import logging
import sys
from typing import Final

FORMATS: Final = ("text", "json")
LEVELS: Final = ("debug", "info", "warning", "error")


class JsonFormatter(logging.Formatter):
    """One object a line: time, level, logger, message, and the error if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line)


def set_up(log_format: str, level: str) -> None:
    """Send all logging to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    if log_format == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
