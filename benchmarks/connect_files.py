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
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil
from compat.parts import HERE, class_path, jars
from tests.ports import free_port

from benchmarks.connectors import cpu_seconds
from benchmarks.harness import Row
from penstock.client import Client
from penstock.testing import Broker

PREDICTED = {"source": 2_000_000.0, "sink": 2_000_000.0}
PEER = "Kafka Connect's file {role}"
LINE_BYTES = 100
WAIT_SECONDS = 240.0
_CLASSES = "org.apache.kafka.connect.file.FileStream"
_STRINGS = "org.apache.kafka.connect.storage.StringConverter"


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
    source = {"file": str(lines), "topic": topic, "batch.size": "5000"}
    sink = {"file": str(copied), "topics": topic}
    with Client(bootstrap) as client:
        client.create_topic(topic, 1)

        def produced() -> int:
            return client.list_offsets(topic, "latest")[0]

        def written() -> int:
            return copied.stat().st_size // LINE_BYTES if copied.exists() else 0

        found = {"source": peer(bootstrap, "Source", source, count, produced, folder)}
        found["sink"] = peer(bootstrap, "Sink", sink, count, written, folder)
    if copied.read_bytes() != lines.read_bytes():
        raise RuntimeError(f"{copied} differs from {lines}")
    return found


def peer(
    bootstrap: str, role: str, settings: Mapping[str, str], count: int,
    moved: Callable[[], int], folder: Path,
) -> float:  # fmt: skip
    """Run a file connector of Kafka Connect; return its rows per CPU second."""
    properties = {
        "worker": {
            "bootstrap.servers": bootstrap, "key.converter": _STRINGS, "value.converter": _STRINGS,
            "plugin.discovery": "service_load", "consumer.auto.offset.reset": "earliest",
            "consumer.max.poll.records": "5000", "offset.flush.interval.ms": "1000",
            "offset.storage.file.filename": str(folder / f"offsets-{role}"),
            "listeners": f"http://127.0.0.1:{free_port()}",
        },
        "connector": {
            "name": role, "connector.class": f"{_CLASSES}{role}Connector", "tasks.max": "1",
            **settings,
        },
    }  # fmt: skip
    places = [folder / f"{role}-{name}.properties" for name in properties]
    for place, pairs in zip(places, properties.values(), strict=True):
        place.write_text("".join(f"{name}={text}\n" for name, text in pairs.items()))
    libraries = class_path(jars("connect", HERE / "connect" / "pom.xml"))
    command = [
        "java", "-cp", libraries, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "org.apache.kafka.connect.cli.ConnectStandalone", *map(str, places),
    ]  # fmt: skip
    with (folder / f"{role}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        return _rate(process, count, moved, folder / f"{role}.log")
    finally:
        process.kill()
        process.wait()


def _rate(
    process: subprocess.Popen[bytes], count: int, moved: Callable[[], int], log: Path
) -> float:
    """Return the rows per CPU second from the first quarter to the last row."""
    usage = psutil.Process(process.pid)
    first: tuple[int, float] | None = None
    deadline = time.monotonic() + WAIT_SECONDS
    while (rows := moved()) < count:
        if process.poll() is not None or time.monotonic() > deadline:
            text = log.read_text(errors="replace")[-4000:]
            raise RuntimeError(f"{rows} of {count} rows:\n{text}")
        if first is None and rows >= count // 4:
            first = rows, sum(usage.cpu_times()[:2])
        time.sleep(0.05)
    if first is None:
        raise RuntimeError(f"{count} rows were moved between two looks; use more")
    return (count - first[0]) / (sum(usage.cpu_times()[:2]) - first[1])
