"""File connectors between lines of text and a topic: rows per CPU second of the connector.

A file of lines of 100 bytes is read into a topic, and the topic is written to files of lines. The
peer is Kafka Connect's file source and sink in a standalone worker, at the same broker. The
broker has a process of its own. The processor time is that of the connector's process; the first
quarter of the peer's rows is not measured, because the JVM warms up; a run over few lines before
the first one loads our modules.

Predicted, before the first run. The source costs 0.05 µs a row to find the lines and 0.4 µs to
encode records: 2,000,000 rows per CPU second. The sink decodes records in 0.3 µs and joins lines in
0.1 µs: 2,000,000. The peer makes a string, a record and a map for each line, and converts the
string to bytes: 300,000 rows for the source, 400,000 for the sink, so the ratios are 7 and 5.
"""

from __future__ import annotations

import statistics
import tempfile
from collections import defaultdict
from pathlib import Path

from compat.connect.standalone import STRINGS, Standalone
from compat.parts import kafka_connect

from benchmarks.connectors import cpu_seconds, peer_rate
from benchmarks.harness import Row
from penstock.client import Client
from penstock.testing import Broker

PREDICTED = {"source": 2_000_000.0, "sink": 2_000_000.0}
PEER = "Kafka Connect's file {role}"
SINK_AIM = 5.0
LINE_BYTES = 100
_CLASSES = "org.apache.kafka.connect.file.FileStream"
_STRINGS = {"key.converter": STRINGS, "value.converter": STRINGS}


def measure(*, quick: bool) -> list[Row]:
    """Rows per CPU second of the source and of the sink, medians of three runs."""
    runs, count = (1, 1_000_000) if quick else (3, 2_000_000)
    found: dict[str, list[float]] = defaultdict(list)
    with (
        Broker(process=True) as broker,
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as name,
    ):
        lines = Path(name) / "in" / "lines.txt"
        lines.parent.mkdir()
        with lines.open("w") as file:
            file.writelines(f"{number:0{LINE_BYTES - 1}}\n" for number in range(count))
        few = Path(name) / "few"
        (few / "in").mkdir(parents=True)
        (few / "in" / "lines.txt").write_text("a line\n" * 1000)
        for role, text in files(few, few / "in", runs).items():
            cpu_seconds(few / role, text, broker.bootstrap)
        for run in range(runs):
            folder = Path(name) / f"run-{run}"
            folder.mkdir()
            for role, text in files(folder, lines.parent, run).items():
                found[role].append(count / cpu_seconds(folder / role, text, broker.bootstrap))
            check(folder, lines)
            for role, rate in peers(broker.bootstrap, folder, lines, run, count).items():
                found[PEER.format(role=role)].append(rate)
    return [
        Row(
            name=f"file {role}", value=statistics.median(found[role]), unit="rows per CPU second",
            prediction=predicted,
            reference=statistics.median(found[PEER.format(role=role)]),
            reference_name=PEER.format(role=role),
            aim_ratio=SINK_AIM if role == "sink" else None,
        )
        for role, predicted in PREDICTED.items()
    ]  # fmt: skip


def files(folder: Path, lines: Path, run: int) -> dict[str, str]:
    """Return the files of a run's connectors by their roles."""
    return {
        "source": f'name = "source-{run}"\n[source]\nconnector = "files"\nurl = "{lines}"\n'
        f'topic = "lines-{run}"\n',
        "sink": f'name = "sink-{run}"\n[sink]\nconnector = "files"\nurl = "{folder / "out"}"\n'
        f'topics = ["lines-{run}"]\nfile_format = "text"\nbatch_rows = 50000\n',
    }


def check(folder: Path, lines: Path) -> None:
    """Check that the sink's files have all lines in their order."""
    parts = sorted((folder / "out").rglob("*.txt"))
    if b"".join(part.read_bytes() for part in parts) != lines.read_bytes():
        raise RuntimeError(f"the files in {folder} differ from {lines}")


def peers(bootstrap: str, folder: Path, lines: Path, run: int, count: int) -> dict[str, float]:
    """Run Kafka Connect's source and sink over the same lines; return their rates by role."""
    topic, copied = f"peer-{run}", folder / "copied.txt"
    found: dict[str, float] = {}
    with Client(bootstrap) as client:
        client.create_topic(topic, 1)
        moved = {
            "source": lambda: sum(client.list_offsets(topic, "latest").values()),
            "sink": lambda: copied.stat().st_size // LINE_BYTES if copied.exists() else 0,
        }
        settings = {
            "source": {"file": str(lines), "topic": topic, "batch.size": "5000"},
            "sink": {"file": str(copied), "topics": topic},
        }
        for role, more in settings.items():
            connector = {
                "name": role, **more,
                "connector.class": f"{_CLASSES}{role.capitalize()}Connector",
            }  # fmt: skip
            with Standalone(bootstrap, folder, kafka_connect(), connector, _STRINGS) as worker:
                found[role] = peer_rate(worker, count, moved[role])
    if copied.read_bytes() != lines.read_bytes():
        raise RuntimeError(f"{copied} differs from {lines}")
    return found
