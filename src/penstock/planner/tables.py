"""Tables of the planner: TOML files beside the code that uses them."""

from __future__ import annotations

import tomllib
from importlib import resources
from typing import Any


def table_text(package: str, name: str) -> str:
    return (resources.files(package) / name).read_text("utf-8")


def read_table(package: str, name: str) -> dict[str, Any]:
    return tomllib.loads(table_text(package, name))
