"""Mirror and link between two brokers, beside MirrorMaker 2: megabytes per CPU second.

Records have 1 KiB and are stored in batches of up to 1 MB, uncompressed, in four partitions. All
three copy the same topic. Mirror and MirrorMaker 2 are processes of their own, which start from
nothing, with the topic already there, so their start is a part of the measured time. A link is a
thread of the broker that follows: its time is that of the broker's process from the creation of the
linked topic until its ends equal the source's.

Expected, after a first trial of 410 MB that reached 386 MB per CPU second without its start: the
start takes 1.2 CPU seconds, so 614 MB are mirrored in 2.8 CPU seconds, 220 MB per CPU second.
MirrorMaker was measured at 33 MB per CPU second, and 12 CPU seconds before its first record. A
link receives a megabyte in 0.4 ms, checks its CRC-32C in 0.1 ms, and writes it to the page cache in
0.5 ms: 1,000 MB per CPU second. A quick run reached 436.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Final

import psutil
import pyarrow as pa
from compat.parts import mirror_java

from benchmarks.harness import Row
from penstock.client import Client
from penstock.testing import Broker

PREDICTED: Final = {"mirror": 220.0, "link": 1_000.0, "start of a mirror": 1.2}
PEER: Final = "MirrorMaker 2"
RECORD_BYTES: Final = 1_024
PARTITIONS: Final = 4
CHUNK: Final = 20_000
WAIT_SECONDS: Final = 600.0


def measure(*, quick: bool) -> list[Row]:
    """Megabytes per CPU second, medians of three runs, and the CPU time before the first record."""
    runs, count = (1, 200_000) if quick else (3, 600_000)
    megabytes = count * RECORD_BYTES / 1e6
    found: dict[str, list[float]] = defaultdict(list)
    for _ in range(runs):
        with (
            Broker(process=True) as source,
            Broker(process=True) as target,
            tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder,
            target.client() as client,
        ):
            fill(source, count)
            command = mirror_command(Path(folder), source, target)
            first, total = cpu_seconds(command, client, "orders", count)
            found["start of a mirror"].append(first)
            found["mirror"].append(megabytes / total)
            command = peer_command(Path(folder), source, target)
            first, total = cpu_seconds(command, client, "source.orders", count)
            found["start of MirrorMaker 2"].append(first)
            found[PEER].append(megabytes / total)
            found["link"].append(megabytes / followed(source))
    middle = {name: statistics.median(values) for name, values in found.items()}
    rows = [
        Row(
            name=name, value=middle[name], unit="MB per CPU second", prediction=PREDICTED[name],
            reference=middle[PEER], reference_name=PEER,
        )
        for name in ("mirror", "link")
    ]  # fmt: skip
    start = Row(
        name="start of a mirror", value=middle["start of a mirror"], unit="CPU seconds",
        prediction=PREDICTED["start of a mirror"], reference=middle["start of MirrorMaker 2"],
        reference_name=PEER, lower_is_better=True,
    )  # fmt: skip
    return [*rows, start]


def followed(source: Broker) -> float:
    """Return the CPU seconds of a new broker that follows the topic from its start to its end."""
    with source.client() as client:
        ends = client.list_offsets("orders")
    with Broker(process=True) as broker, broker.client() as target:
        process = psutil.Process(broker.pid)
        before = sum(process.cpu_times()[:2])
        target.create_topic("orders", PARTITIONS, {"link.source": source.bootstrap})
        while target.list_offsets("orders") != ends:
            time.sleep(0.05)
        return sum(process.cpu_times()[:2]) - before


def fill(broker: Broker, count: int) -> None:
    broker.create_topic("orders", PARTITIONS)
    noise = os.urandom(RECORD_BYTES * CHUNK)
    values = [noise[at : at + RECORD_BYTES] for at in range(0, len(noise), RECORD_BYTES)]
    table = pa.table({"value": values})
    with broker.client() as client:
        for _ in range(count // CHUNK):
            client.write_arrow("orders", table)


def mirror_command(folder: Path, source: Broker, target: Broker) -> list[str]:
    file = folder / "dr.toml"
    file.write_text(
        f'name = "dr"\n[source]\nbootstrap = "{source.bootstrap}"\ntopics = ["orders"]\n'
        f'[target]\nbootstrap = "{target.bootstrap}"\n'
    )
    return [sys.executable, "-m", "penstock", "mirror", "run", str(file)]


def peer_command(folder: Path, source: Broker, target: Broker) -> list[str]:
    file = folder / "mm2.properties"
    file.write_text(
        "clusters = source, target\n"
        f"source.bootstrap.servers = {source.bootstrap}\n"
        f"target.bootstrap.servers = {target.bootstrap}\n"
        "source->target.enabled = true\nsource->target.topics = orders\n"
        "source->target.emit.heartbeats.enabled = false\ntarget->source.enabled = false\n"
        "source->target.consumer.auto.offset.reset = earliest\n"
        "replication.factor = 1\noffset-syncs.topic.replication.factor = 1\n"
        "checkpoints.topic.replication.factor = 1\nheartbeats.topic.replication.factor = 1\n"
        "offset.storage.replication.factor = 1\nconfig.storage.replication.factor = 1\n"
        "status.storage.replication.factor = 1\n"
    )
    return [
        "java", "-cp", mirror_java(), "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "org.apache.kafka.connect.mirror.MirrorMaker", str(file),
    ]  # fmt: skip


def cpu_seconds(command: list[str], client: Client, topic: str, count: int) -> tuple[float, float]:
    """Return a process's CPU time before its first record and until all records are mirrored.

    Raises:
        RuntimeError: the process has ended, or has not mirrored the records within the time limit.
    """
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    measured = psutil.Process(process.pid)
    first, deadline = 0.0, time.monotonic() + WAIT_SECONDS
    try:
        while True:
            names = {found.name for found in client.list_topics()}
            offsets = client.list_offsets(topic, isolation=1) if topic in names else {}
            mirrored = sum(offsets.values())
            if not first and mirrored:
                first = sum(measured.cpu_times()[:2])
            if mirrored >= count:
                return first, sum(measured.cpu_times()[:2])
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{mirrored} of {count} records are mirrored")
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait()
