"""Tables that come with the planner: TOML files beside the code that they are data of."""

from __future__ import annotations

import tomllib
from importlib import resources
from typing import Any


def table_text(package: str, name: str) -> str:
    """Return a table's file as it is written."""
    return (resources.files(package) / name).read_text("utf-8")


def read_table(package: str, name: str) -> dict[str, Any]:
    """Return a table's document."""
    return tomllib.loads(table_text(package, name))
