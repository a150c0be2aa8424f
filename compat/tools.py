"""Runs a tool of Apache Kafka's command line, and reads the table that it prints."""

from __future__ import annotations

from compat.command_line import COMMAND_LINE
from compat.conftest import missing
from compat.parts import PartMissing

Table = list[dict[str, str]]


def run_tool(bootstrap: str, name: str, *arguments: str) -> Table:
    """The rows of the last table, by the names of their columns; none where it prints none."""
    try:
        ran = COMMAND_LINE.run(bootstrap, f"org.apache.kafka.tools.{name}", *arguments)
    except PartMissing as error:
        missing(error)
    assert ran.status == 0, f"{arguments}: {ran.out}{ran.errors}"
    lines = [line for line in ran.out.splitlines() if line.strip()]
    begin = next((n for n, line in enumerate(lines) if line.split()[0].isidentifier()), 0)
    columns, *rows = (line.split() for line in lines[begin:] or [""])
    return [dict(zip(columns, row, strict=False)) for row in rows]
