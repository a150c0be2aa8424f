"""Apache Kafka's command line: runs a tool, and reads the table that it prints."""

from __future__ import annotations

import subprocess

from compat.conftest import missing
from compat.parts import PartMissing, class_path, jars

TOOL_SECONDS = 60
SMALL = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"

Table = list[dict[str, str]]


def run_tool(bootstrap: str, name: str, *arguments: str) -> Table:
    """The rows of the last table, by the names of their columns; none where it prints none."""
    try:
        classes = class_path(jars("tools"))
    except PartMissing as error:
        missing(error)
    java = ["java", "-cp", classes, *SMALL, QUIET, f"org.apache.kafka.tools.{name}"]
    done = subprocess.run(
        [*java, "--bootstrap-server", bootstrap, *arguments],
        capture_output=True,
        text=True,
        timeout=TOOL_SECONDS,
    )
    assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    begin = next((n for n, line in enumerate(lines) if line.split()[0].isidentifier()), 0)
    columns, *rows = (line.split() for line in lines[begin:] or [""])
    return [dict(zip(columns, row, strict=False)) for row in rows]
