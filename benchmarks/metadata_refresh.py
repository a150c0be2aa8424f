"""A broker's refresh of its metadata after one topic changed, beside all that there are.

10,000 partitions lie in 10,000 topics: whatever walks over topics or partitions shows.
The control plane is in memory and costs next to nothing, the logs are real and exist; the
reference is a refresh that knows nothing of what was before and looks at every topic, as the first
one does.

Prediction: what changed costs some 30 µs, whatever there is beside it, and creating the files of a
log 60 µs more.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, cast
from uuid import UUID

from benchmarks.harness import Row
from benchmarks.log_append import open_store
from penstock.broker.metadata import ClusterMetadata
from penstock.broker.partitions.registry import PartitionRegistry
from penstock.control import MetadataImage
from penstock.control.rules import metadata
from penstock.storage import LogStore

TOPICS = 10_000
NODE = 1


class Control:
    """Holds an image, which is changed by the control plane's own rules."""

    def __init__(self, topics: int) -> None:
        image = MetadataImage(version=1, cluster_id="c")
        made = {}
        for number in range(topics):
            name = f"topic-{number:05}"
            _, topic = metadata.create_topic(
                image,
                name=name,
                topic_id=UUID(int=number),
                partitions=[[NODE]],
                configs={},
                internal=False,
            )
            made[name] = topic
        self.now = dataclasses.replace(image, topics=made)

    async def image(self) -> MetadataImage:
        return self.now


class Bed:
    """A broker's metadata and partitions over a number of topics."""

    def __init__(self, topics: int, store: LogStore) -> None:
        self.control = Control(topics)
        self.registry = PartitionRegistry(node_id=NODE, store=store, commits=cast("Any", None))
        self.cluster = ClusterMetadata(cast("Any", self.control), self.registry)

    async def refreshed(self, image: MetadataImage) -> float:
        """Seconds of a refresh to an image."""
        self.control.now = image
        before = time.perf_counter()
        await self.cluster.refresh()
        return time.perf_counter() - before

    async def configured(self) -> float:
        image, _ = metadata.set_topic_configs(
            self.control.now,
            topic_id=UUID(int=TOPICS // 2),
            configs={"retention.ms": str(self.control.now.version)},
            expected=None,
        )
        return await self.refreshed(image)

    async def created(self) -> float:
        version = self.control.now.version
        image, _ = metadata.create_topic(
            self.control.now,
            name=f"new-{version}",
            topic_id=UUID(int=TOPICS * 2 + version),
            partitions=[[NODE]],
            configs={},
            internal=False,
        )
        return await self.refreshed(image)

    async def deleted(self) -> float:
        name = list(self.control.now.topics)[-1]
        topic_id = self.control.now.topics[name].topic_id
        image, _ = metadata.delete_topic(self.control.now, topic_id)
        return await self.refreshed(image)


async def _measured(rounds: int, directory: Path) -> dict[str, float]:
    store = open_store(directory)
    creating = Bed(TOPICS, store)
    await creating.refreshed(creating.control.now)
    bed = Bed(TOPICS, store)
    first = await bed.refreshed(bed.control.now)
    kinds = {
        "a topic's configuration changed": bed.configured,
        "a topic was created": bed.created,
        "a topic was deleted": bed.deleted,
    }
    found: dict[str, list[float]] = {name: [] for name in kinds}
    gc.collect()
    for _ in range(rounds):
        for name, change in kinds.items():
            found[name].append(await change())
    return {"first": first} | {name: statistics.median(times) for name, times in found.items()}


def measure(quick: bool) -> list[Row]:
    """Run everything; seconds."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        found = asyncio.run(_measured(20 if quick else 200, Path(directory)))
    first = found.pop("first")
    return [
        Row(
            name=f"refresh, {name}, {TOPICS:,} topics",
            value=seconds * 1e6,
            unit="µs",
            prediction=30.0,
            reference=first * 1e6,
            reference_name="a refresh that compares all topics",
            lower_is_better=True,
        )
        for name, seconds in found.items()
    ]
