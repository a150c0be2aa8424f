"""A topic becomes diskless under librdkafka's clients, and through `kill -9` at every step."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from penstock.testing import Broker
from tests.broker.diskless.dying import STEPS
from tests.broker.diskless.live import SECONDS, Consuming, Producing
from tests.broker.diskless.test_configs import altered
from tests.broker.wire_client import WireClient
from tests.sampling import sample

PARTITIONS = 2
DISKLESS = {"diskless.enable": "true"}
LOCAL_STEPS = ("begun", "copied", "fenced", "tail copied")


def test_producer_and_consumer_continue() -> None:
    with Broker(admin=False) as broker, broker.client() as client:
        broker.create_topic("t", PARTITIONS)
        producing = Producing(broker.bootstrap, partitions=PARTITIONS)
        consuming = Consuming(broker.bootstrap, group="g", partitions=PARTITIONS)
        producing.start()
        consuming.start()
        producing.wait_for(400)
        client.alter_configs("topic", "t", DISKLESS)
        producing.wait_for(400)
        producing.finish()
        consuming.finish(producing.count)
        assert consuming.seen == producing.written()
        assert consuming.committed == [len(part) for part in producing.written()]
        assert not list(broker.directory.glob("log/t-?"))


class Dying:
    """A broker process that ends itself at a step."""

    def __init__(self, directory: Path, step: str) -> None:
        self._process = subprocess.Popen(
            [
                sys.executable, "-m", "tests.broker.diskless.dying", step, "serve",
                "-X", f"log.dirs={directory}", "-X", "listeners=PLAINTEXT://127.0.0.1:0",
                "-X", "admin.listener=",
            ],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        line = self._process.stdout.readline() if self._process.stdout else ""
        found = re.search(r"penstock ready kafka=(\S+)", line)
        assert found, line
        self.bootstrap = found[1]

    def ended(self) -> int:
        return self._process.wait(SECONDS)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


async def request_at_a_dying_broker(bootstrap: str) -> None:
    """Request the switch at a broker that dies during it."""
    host, port = bootstrap.rsplit(":", 1)
    client = await WireClient.connect((host, int(port)))
    with pytest.raises((OSError, asyncio.IncompleteReadError)):
        await altered(client, "t", diskless_enable="true")
    await client.close()


def values(client: Any) -> list[list[bytes]]:
    table = client.read_arrow("t", columns=("partition", "offset", "value"))
    rows = table.to_pylist()
    found = []
    for index in range(PARTITIONS):
        part = [row for row in rows if row["partition"] == index]
        assert [row["offset"] for row in part] == list(range(len(part)))
        found.append([row["value"] for row in part])
    return found


@pytest.mark.parametrize("step", sample(STEPS, 3))
def test_killed_broker_has_a_local_topic_or_a_diskless_one(step: str, tmp_path: Path) -> None:
    import pyarrow as pa

    table = pa.table({"value": [b"%d" % n for n in range(500)]})
    broker = Broker(directory=tmp_path, admin=False)
    with broker, broker.client() as client:
        broker.create_topic("t", PARTITIONS)
        client.write_arrow("t", table)
        before = values(client)
    dying = Dying(tmp_path, step)
    try:
        asyncio.run(request_at_a_dying_broker(dying.bootstrap))
        assert dying.ended() == -9
    finally:
        dying.end()
    with broker, broker.client() as client:
        entries = client.describe_configs("topic", "t")
        [kind] = [entry.value for entry in entries if entry.name == "diskless.enable"]
        assert kind == ("false" if step in LOCAL_STEPS else "true")
        end = monotonic() + SECONDS
        while bool(list(tmp_path.glob("log/t-?"))) is not (step in LOCAL_STEPS):
            assert monotonic() < end, list(tmp_path.glob("log/*"))
            sleep(0.01)
        assert values(client) == before
        client.alter_configs("topic", "t", DISKLESS)
        client.write_arrow("t", table)
        after = values(client)
        assert [part[: len(old)] for part, old in zip(after, before, strict=True)] == before
        assert sum(map(len, after)) == 1000
