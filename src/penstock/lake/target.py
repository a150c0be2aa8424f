"""Target of a sink: the name of an Iceberg table, and the settings of its catalogue.

A catalogue is given by the properties that pyiceberg documents, or by a name for which pyiceberg's
own configuration has them (`.pyiceberg.yaml`, or variables `PYICEBERG_CATALOG__NAME__URI`):

    catalog = "prod"
    catalog = {type = "sql", uri = "sqlite:///lake.db", warehouse = "lake"}
    catalog = {type = "rest", uri = "https://catalog.example.com"}

A warehouse without a scheme and the file of an SQLite database are paths. They become absolute,
because a table stores the locations of its files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from penstock.base.errors import InvalidError, UnavailableError

DEFAULT_CATALOG: Final = "default"
_SQLITE: Final = "sqlite:///"
_POSTGRESQL: Final = "postgresql://"
"""Scheme for which SQLAlchemy would choose a driver that the extra `connect` does not install."""


class LakeMismatch(InvalidError):
    """Rows or settings that a table does not accept; the message has the remedy."""

    code: ClassVar[str] = "invalid_record"


class LakeConflict(InvalidError):
    """Table in which another process has committed the same offsets or batches."""

    code: ClassVar[str] = "invalid_request"


class LakeUnavailable(UnavailableError):
    """Catalogue or store that does not respond; a retry finds out whether a commit succeeded."""

    code: ClassVar[str] = "unknown_server_error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Table of a catalogue.

    Attributes:
        table: namespaces and name, with dots between them.
        catalog: properties of the catalogue; `name` is its name.
    """

    table: str
    catalog: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, table: str, catalog: Mapping[str, str], path: Callable[[str], Path]) -> Target:
        """Return a target whose paths are made absolute by `path`."""
        return cls(table=table, catalog=tuple(sorted(placed(catalog, path).items())))


def catalog_properties(value: object) -> dict[str, str]:
    """Return the properties of a catalogue from the value of the setting `catalog`.

    Raises:
        ValueError: the value is neither a name nor a table of texts, numbers and booleans.
    """
    if isinstance(value, str) and value.strip():
        return {"name": value.strip()}
    if isinstance(value, dict) and all(isinstance(item, str | int) for item in value.values()):
        return {str(name): _text(item) for name, item in value.items()}
    raise ValueError("must be the name of a catalogue, or a table of its properties")


def placed(catalog: Mapping[str, str], path: Callable[[str], Path]) -> dict[str, str]:
    """Return the properties of a catalogue with absolute paths; `path` makes them absolute."""
    found = dict(catalog)
    if "warehouse" in found and "://" not in found["warehouse"]:
        found["warehouse"] = path(found["warehouse"]).absolute().as_uri()
    uri = found.get("uri", "")
    if uri.startswith(_POSTGRESQL):
        found["uri"] = f"postgresql+psycopg2{uri.removeprefix('postgresql')}"
    file = uri.removeprefix(_SQLITE)
    if file != uri and not file.startswith(("/", ":")):
        found["uri"] = f"{_SQLITE}{path(file).absolute()}"
    return found


def table_name(value: object) -> str:
    """Return the name of a table.

    Raises:
        ValueError: the name has no namespace.
    """
    parts = value.split(".") if isinstance(value, str) else []
    if len(parts) < 2 or not all(part.strip() for part in parts):
        raise ValueError("must have a namespace and a name")
    return ".".join(part.strip() for part in parts)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
