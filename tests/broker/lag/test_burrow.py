"""Burrow's answers: those of the real Burrow, live or recorded, compared field by field.

Burrow reads commits from a topic in the format of `__consumer_offsets`. The test writes each commit
to such a topic, too. `PENSTOCK_RECORD=1` records the answers again.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from compat.conftest import missing
from compat.daemons import Daemon
from compat.parts import PartMissing, program

from tests.broker.lag.history import (
    FALSE_ALARMS,
    OFFSETS,
    STATES,
    comparable,
    offset_commit,
    paths,
    play,
)
from tests.broker.lag.scene import TOPIC, Scene
from tests.ports import free_port

RECORDED = Path(__file__).parent / "burrow_answers.json"
COMMITS = "commits"
CONFIG = """
[client-profile.p]
kafka-version = "2.0.0"
[cluster.local]
class-name = "kafka"
servers = ["{bootstrap}"]
client-profile = "p"
topic-refresh = 1
offset-refresh = 1
[consumer.local]
class-name = "kafka"
cluster = "local"
servers = ["{bootstrap}"]
client-profile = "p"
offsets-topic = "{commits}"
[storage.default]
class-name = "inmemory"
intervals = 10
min-distance = 5
[evaluator.default]
class-name = "caching"
expire-cache = 1
[httpserver.default]
address = "127.0.0.1:{port}"
"""


async def _nothing(*_: object) -> None:
    return


async def _cluster(scene: Scene) -> str:
    status, answer = await scene.get("/v3/kafka")
    assert (status, answer["error"]) == (200, False)
    [cluster] = answer["clusters"]
    return str(cluster)


async def _own_answers(scene: Scene, start_ms: int) -> dict[str, Any]:
    cluster = await _cluster(scene)
    return {
        path: comparable(
            list(await scene.get(f"/v3/kafka/{cluster}{path}")), start_ms=start_ms, cluster=cluster
        )
        for path in paths()
    }


def differences(ours: Any, burrows: Any) -> dict[str, tuple[Any, Any]]:
    """Return the answers that differ from Burrow's, apart from its false alarms."""
    return {
        path: (ours[path], answer)
        for path, answer in burrows.items()
        if ours[path] != answer and not any(f"/{group}/" in path for group in FALSE_ALARMS)
    }


async def test_the_answers_are_those_that_burrow_gave(scene: Scene) -> None:
    burrows = json.loads(RECORDED.read_text())
    await scene.create(partitions=2)
    start_ms = await play(scene, _nothing, _nothing)
    ours = await _own_answers(scene, start_ms)
    assert differences(ours, burrows) == {}
    for group, expected in STATES.items():
        [found] = [
            row
            for row in ours[f"/consumer/{group}/lag"][1]["status"]["partitions"]
            if row["partition"] == 0
        ]
        assert (group, found["status"]) == (group, expected)


async def test_other_answers_have_burrows_shape(scene: Scene) -> None:
    await scene.create(partitions=2)
    await scene.commit("g", 0)
    cluster = await _cluster(scene)
    _, consumers = await scene.get(f"/v3/kafka/{cluster}/consumer")
    assert (consumers["message"], consumers["consumers"]) == ("consumer list returned", ["g"])
    _, topics = await scene.get(f"/v3/kafka/{cluster}/topic")
    assert (topics["message"], topics["topics"]) == ("topic list returned", [TOPIC])
    _, readers = await scene.get(f"/v3/kafka/{cluster}/topic/{TOPIC}/consumers")
    assert (readers["message"], readers["consumers"]) == ("consumers of topic returned", ["g"])
    _, detail = await scene.get(f"/v3/kafka/{cluster}")
    assert detail["module"]["servers"] == [scene.bootstrap]
    for path in ("", "/consumer", "/topic", f"/topic/{TOPIC}", "/consumer/g"):
        status, failure = await scene.get(f"/v3/kafka/other{path}")
        assert (status, failure["error"]) == (404, True)
        assert set(failure) == {"error", "message", "request"}


# The real Burrow


@asynccontextmanager
async def burrow(scene: Scene, directory: Path) -> AsyncIterator[Daemon]:
    """Run Burrow against the broker, and yield it once it knows the topic's offsets."""
    try:
        executable = program("Burrow", "1.9.5")
    except PartMissing as error:
        missing(error)
    port = free_port()
    config = CONFIG.format(bootstrap=scene.bootstrap, port=port, commits=COMMITS)
    (directory / "burrow.toml").write_text(config)
    command = [executable, "--config-dir", str(directory)]
    with Daemon(command, directory / "burrow.out", f"http://127.0.0.1:{port}") as running:
        await _until_end(running, 0)
        yield running


async def _until_end(real: Daemon, end: int) -> None:
    """Wait until Burrow has read the end offset of partition 0."""
    async with asyncio.timeout(60):
        while True:
            _, answer = await _get(real, f"/topic/{TOPIC}")
            if answer and answer.get("offsets", [None])[:1] == [end]:
                return
            await asyncio.sleep(0.05)


async def _get(real: Daemon, path: str) -> tuple[int, Any]:
    return await asyncio.to_thread(real.call, "GET", f"/v3/kafka/local{path}")


async def _burrows_answers(real: Daemon, start_ms: int) -> dict[str, Any]:
    return {
        path: comparable(list(await _get(real, path)), start_ms=start_ms, cluster="local")
        for path in paths()
    }


@pytest.mark.long
async def test_the_real_burrow_agrees(scene: Scene, tmp_path: Path) -> None:
    await scene.create(partitions=2)
    await scene.create(COMMITS)
    async with burrow(scene, tmp_path) as real:

        async def committed(group: str, offset: int, at_ms: int) -> None:
            await scene.write(COMMITS, *offset_commit(group, TOPIC, 0, offset, at_ms))

        async def produced(end: int) -> None:
            await _until_end(real, end)

        start_ms = await play(scene, committed, produced)
        ours = await _own_answers(scene, start_ms)
        theirs: dict[str, Any] = {}
        with suppress(TimeoutError):  # Burrow reads asynchronously, and caches evaluations
            async with asyncio.timeout(30):
                while not theirs or differences(ours, theirs):
                    theirs = await _burrows_answers(real, start_ms)
    if os.environ.get("PENSTOCK_RECORD"):
        lines = ",\n".join(f"{json.dumps(path)}: {json.dumps(theirs[path])}" for path in theirs)
        RECORDED.write_text(f"{{\n{lines}\n}}\n")
    assert differences(ours, theirs) == {}
    for group in OFFSETS:
        status = theirs[f"/consumer/{group}/lag"][1]["status"]
        states = {row["partition"]: row["status"] for row in status["partitions"]}
        assert (group, states[0]) == (group, FALSE_ALARMS.get(group, STATES[group]))
