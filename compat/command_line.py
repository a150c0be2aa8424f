"""Apache Kafka's command line: one Java machine runs all tools (`java/Tools.java`).

Most of what a tool takes is the machine's start. It ends with the suite.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from compat.drivers.remote import Program
from compat.parts import class_path, jars, java_program
from compat.security import ADMIN, Security, security_of

TOOL_SECONDS = 60
SMALL = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"


@dataclass(frozen=True, slots=True)
class Ran:
    """How a tool ended, and what it printed."""

    status: int
    out: str
    errors: str


class CommandLine:
    """The machine, started when the first tool is run."""

    def __init__(self) -> None:
        self._program: Program | None = None

    def run(self, bootstrap: str, tool: str, *arguments: str, who: Security | None = None) -> Ran:
        """Run a tool, by its class; `bootstrap` is empty for one that asks no broker.

        It connects as `who`, by default as the suite's administrator.

        Raises:
            PartMissing: the tools cannot be had.
        """
        if self._program is None:
            classes = os.pathsep.join([java_program("Tools"), class_path(jars("tools"))])
            java = ["java", "-cp", classes, *SMALL, QUIET, "Tools"]
            self._program = Program(java, {}, answer_seconds=TOOL_SECONDS)
        words = ["--bootstrap-server", bootstrap] if bootstrap else []
        if bootstrap and not (one := who or security_of(ADMIN)).plain:
            words += ["--command-config", one.properties_file()]
        words += arguments
        return Ran(*self._program.call("run", tool=tool, arguments=words))

    @contextmanager
    def ended(self) -> Iterator[None]:
        """It is not running afterwards."""
        try:
            yield
        finally:
            program, self._program = self._program, None
            if program is not None:
                program.close()


COMMAND_LINE = CommandLine()
