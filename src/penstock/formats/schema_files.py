"""Schema files of bounded size, read as bytes or as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from penstock.formats.errors import InvalidFormat

SCHEMA_FILE_BYTES_MAX: Final = 16 << 20


def read_schema_file(path: Path) -> bytes:
    """Return the bytes of a schema file.

    Raises:
        InvalidFormat: the file cannot be read, or is larger than `SCHEMA_FILE_BYTES_MAX`.
    """
    try:
        with path.open("rb") as file:
            content = file.read(SCHEMA_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidFormat("schema_file", path, f"cannot be read: {error.strerror}") from error
    if len(content) > SCHEMA_FILE_BYTES_MAX:
        raise InvalidFormat(
            "schema_file", path, f"is larger than {SCHEMA_FILE_BYTES_MAX} bytes: not a schema"
        )
    return content


def read_json(path: Path) -> Any:
    """Return the parsed content of a JSON file.

    Raises:
        InvalidFormat: the file cannot be read or is not JSON.
    """
    content = read_schema_file(path)
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InvalidFormat("schema_file", path, f"is not JSON: {error}") from error
