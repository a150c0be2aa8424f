"""The diskless part of a commit: staged sections become objects, and one transaction has them all.

    staged blobs ──> pieces ──> objects (PENDING) ──> one transaction: offsets, index, row `done`

Until that transaction nothing of it can be seen, from then on all of it. So a commit for diskless
partitions alone has no intent: it is made or not, and the row tells which. Where a batch has local
partitions, too, its intent is there and they are appended to before: the transaction is its end.

A failed attempt leaves objects PENDING, which the sweeper takes; the next one writes others.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from penstock.broker.batch_commits.commit import schedule
from penstock.broker.batch_commits.errors import InvalidCommit
from penstock.broker.batch_commits.pieces import PieceReader
from penstock.broker.errors import NoObjectStore
from penstock.storage.batch_validation import prepared

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.broker.batch_commits.manifest import Manifest, TopicIdPartition
    from penstock.broker.batch_commits.metrics import SinkCounters
    from penstock.broker.batch_commits.parts import SinkParts
    from penstock.control import SinkCommit
    from penstock.diskless.service import DisklessService
    from penstock.partitions import Partition


def service_of(parts: SinkParts) -> DisklessService:
    """The broker's service of diskless topics; raises NoObjectStore."""
    if parts.diskless is None:
        raise NoObjectStore("this broker has no object store")
    return parts.diskless


def check_size(parts: SinkParts, manifest: Manifest, remotes: Collection[TopicIdPartition]) -> None:
    """Raise InvalidCommit for what would not fit into the objects of one transaction."""
    if not remotes:
        return
    size_bytes, most = manifest.size_of(remotes), service_of(parts).sink_bytes_max
    if size_bytes > most:
        raise InvalidCommit(
            f"{size_bytes} bytes for diskless topics in one commit, the limit is {most}: commit"
            " smaller batches, or raise diskless.buffer.max.bytes"
        )


async def commit_objects(
    done: SinkCommit,
    manifest: Manifest,
    remotes: Mapping[TopicIdPartition, Partition],
    *,
    parts: SinkParts,
    directory: Path,
    counters: SinkCounters,
) -> SinkCommit:
    """Write the sections of these partitions, and commit them together with the row.

    `done` follows on its own version; returned is the row as it is saved, with its offsets.

    Raises:
        EntryRefused: a topic is gone; nothing was committed.
        PenstockError, OSError: it was not committed, or that is not known.
    """
    service = service_of(parts)
    runs = schedule(manifest, done.targets, dict.fromkeys(remotes, 0))
    configs = {key: remote.config for key, remote in remotes.items()}
    reader = PieceReader(directory, runs, configs)
    records = size_bytes = 0
    async with service.staged_objects(sum([run.end - run.position for run in runs])) as objects:
        while pieces := await asyncio.to_thread(reader.read):
            for piece in pieces:
                config = configs[piece.run.target]
                # Checked against the time at which the commit began, as it was then.
                batches, headers = await asyncio.to_thread(
                    prepared, piece.data, config, done.updated_ms, internal=True
                )
                append_time = config.message_timestamp_type != "CreateTime"
                await objects.take(*piece.run.target, batches, headers, append_time)
                records += piece.records
                size_bytes += len(batches)
        commits = await objects.finish()
        done = dataclasses.replace(done, updated_ms=parts.clock.now_ms())
        saved = await service.commit_sink(done, commits)
    counters.records += records
    counters.size_bytes += size_bytes
    return saved
