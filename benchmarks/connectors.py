"""Runs of connectors in the process of a benchmark."""

from __future__ import annotations

import time
from pathlib import Path

from penstock.client import Client
from penstock.connect import running
from penstock.connect.connector_file import load
from penstock.connect.status import StatusFile


def cpu_seconds(place: Path, text: str, bootstrap: str) -> float:
    """Run the connector of a file's text until it has caught up; return this process's CPU time.

    Args:
        place: path of the file to write, without its suffix.
    """
    file = place.with_suffix(".toml")
    file.write_text(text)
    spec = load(file, bootstrap=bootstrap)
    with Client(bootstrap) as client:
        run = running.Run(
            spec=spec, client=client, stop=running.Stop(), once=True,
            status=StatusFile(spec.name, spec.direction, spec.state),
        )  # fmt: skip
        began = time.process_time()
        running.run(run)
        return time.process_time() - began
