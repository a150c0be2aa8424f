"""Diskless part of a commit: staged sections become objects, committed in one transaction.

    staged blobs ──> pieces ──> objects (PENDING) ──> one transaction: offsets, index, row `done`

After this transaction readers see the whole diskless part, before it nothing. A commit that writes
only diskless partitions therefore has no intent: its row shows whether it took effect. A commit
that also writes partitions on brokers first saves its intent and appends to them; the transaction
then ends the commit.

A failed attempt leaves PENDING objects, which the sweeper deletes; the next attempt writes others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from penstock.broker.batch_commits.commit import schedule
from penstock.broker.batch_commits.errors import InvalidCommit
from penstock.broker.batch_commits.pieces import PieceReader
from penstock.broker.errors import NoObjectStore
from penstock.storage.batch_validation import prepared

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.broker.batch_commits.context import SinkContext
    from penstock.broker.batch_commits.manifest import Manifest, TopicIdPartition
    from penstock.broker.batch_commits.metrics import SinkCounters
    from penstock.control import SinkCommit
    from penstock.diskless.service import DisklessService
    from penstock.partitions import Partition


def service_of(context: SinkContext) -> DisklessService:
    """Return the broker's diskless service.

    Raises:
        NoObjectStore: the broker has no object store.
    """
    if context.diskless is None:
        raise NoObjectStore("this broker has no object store")
    return context.diskless


def check_size(
    context: SinkContext, manifest: Manifest, remotes: Collection[TopicIdPartition]
) -> None:
    if not remotes:
        return
    size_bytes, most = manifest.size_of(remotes), service_of(context).sink_bytes_max
    if size_bytes > most:
        raise InvalidCommit(
            f"the commit has {size_bytes} bytes for diskless topics, at most {most} are allowed:"
            " commit smaller batches, or raise diskless.buffer.max.bytes"
        )


async def commit_objects(
    done: SinkCommit,
    manifest: Manifest,
    remotes: Mapping[TopicIdPartition, Partition],
    *,
    context: SinkContext,
    directory: Path,
    counters: SinkCounters,
) -> SinkCommit:
    """Write the sections of diskless partitions to objects, and commit them with the query's row.

    `remotes` are the diskless partitions; `done` is the row to save. Returns the row as saved, with
    the offsets.

    Raises:
        EntryRefused: a topic was deleted; nothing was committed.
        PenstockError, OSError: the commit failed, or its outcome is unknown.
    """
    service = service_of(context)
    runs = schedule(manifest, done.targets, dict.fromkeys(remotes, 0))
    configs = {key: remote.config for key, remote in remotes.items()}
    reader = PieceReader(directory, runs, configs)
    records = size_bytes = 0
    async with service.staged_objects(sum([run.end - run.position for run in runs])) as objects:
        while pieces := await asyncio.to_thread(reader.read):
            for piece in pieces:
                config = configs[piece.run.target]
                # Validate with the time at which the commit began, as in the first check.
                batches, headers = await asyncio.to_thread(
                    prepared, piece.data, config, done.updated_ms, internal=True
                )
                append_time = config.message_timestamp_type != "CreateTime"
                await objects.take(*piece.run.target, batches, headers, append_time)
                records += piece.records
                size_bytes += len(batches)
        commits = await objects.finish()
        done = replace(done, updated_ms=context.clock.now_ms())
        saved = await service.commit_sink(done, commits)
    counters.records += records
    counters.size_bytes += size_bytes
    return saved
