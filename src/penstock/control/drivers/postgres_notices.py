"""Change notices between brokers over PostgreSQL's LISTEN and NOTIFY.

Each cluster has one channel. A notice has one of these forms:

    i <sender>                                                          metadata changed
    m <sender> <topic id>,<partition>,<high watermark>,<log start> …    watermarks changed

A broker ignores its own notices. Notices are hints: they are lost while a connection is down, so
listeners reload the image after every reconnect.

A notice of metadata is part of the transaction that makes the change. Notices of watermarks are
sent after the commit, many in one statement, by a transaction with `synchronous_commit = off`. A
transaction with a NOTIFY holds a lock of the whole server until its commit is synced, which would
serialise all commits.

Source: PostgreSQL's documentation of NOTIFY; `PreCommit_Notify` in its `async.c` for the lock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from penstock.base.errors import PenstockError
from penstock.base.pause import pause
from penstock.base.system import Randomness
from penstock.control.drivers.notices import decode_watermarks, watermark_notices
from penstock.control.drivers.postgres_connections import (
    DATABASE_ERRORS,
    Connection,
    Connections,
    connect,
)
from penstock.control.values.diskless import PartitionKey, Watermarks
from penstock.control.values.errors import BACKOFF, CONNECT_TIMEOUT_SECONDS
from penstock.control.values.topics import WatermarksListener

LISTEN_PROBE_SECONDS: Final = 10.0
"""Interval of liveness checks of the listening connection."""

NOTICES_WAITING_MAX: Final = 100_000
"""Partitions whose watermarks wait to be sent to other brokers.

Beyond it, the oldest are dropped.
"""

logger = logging.getLogger(__name__)

_BEGIN_UNSYNCED: Final = "BEGIN; SET LOCAL synchronous_commit = off"


def channel_of(cluster_id: str) -> str:
    """Return the name of a cluster's channel. A database may hold several clusters."""
    return f"penstock_{cluster_id}"[:63]


def image_notice(sender: str) -> str:
    return f"i {sender}"


class Listener:
    """A connection that receives change notices, and reconnects after a loss."""

    def __init__(
        self,
        url: str,
        *,
        channel: str,
        sender: str,
        randomness: Randomness,
        on_image: Callable[[], None],
        on_watermarks: WatermarksListener,
    ) -> None:
        self._url = url
        self._channel = channel
        self._sender = sender
        self._randomness = randomness
        self._on_image = on_image
        self._on_watermarks = on_watermarks
        self._subscribed = asyncio.Event()
        self._late = False
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Subscribe, and retry in the background after `CONNECT_TIMEOUT_SECONDS`.

        A subscription that succeeds later calls `on_image`, because notices may have been missed.
        """
        self._task = asyncio.get_running_loop().create_task(self._run())
        try:
            await asyncio.wait_for(self._subscribed.wait(), CONNECT_TIMEOUT_SECONDS)
        except TimeoutError:
            self._late = True

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                await self._listen()
                failures = 0
            except DATABASE_ERRORS as error:
                logger.warning("cannot receive other brokers' notices, retrying: %s", error)
            failures += 1
            await pause(BACKOFF.pause_seconds(failures, chance=self._randomness.uniform()))

    async def _listen(self) -> None:
        lost = asyncio.Event()
        connection = await connect(self._url, {"application_name": "penstock notices"})
        try:
            connection.add_termination_listener(lambda _: lost.set())
            await connection.add_listener(self._channel, self._received)
            if self._late or self._subscribed.is_set():
                self._on_image()
            self._subscribed.set()
            while not lost.is_set():
                try:
                    await asyncio.wait_for(lost.wait(), LISTEN_PROBE_SECONDS)
                except TimeoutError:
                    await connection.fetchval("SELECT 1", timeout=CONNECT_TIMEOUT_SECONDS)
        finally:
            connection.terminate()

    def _received(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        kind, sender, *words = str(payload).split(" ")
        if sender == self._sender:
            return
        if kind == "i":
            self._on_image()
        elif kind == "m":
            try:
                watermarks = decode_watermarks(words)
            except ValueError:
                logger.warning("ignoring a malformed notice from process %s", sender)
            else:
                self._on_watermarks(watermarks)


class WatermarkPublisher:
    """Sender of watermarks to other brokers, after a commit of diskless batches.

    Watermarks that wait are merged, so that one notice has the newest of each partition.
    """

    def __init__(self, connections: Connections, *, channel: str, sender: str) -> None:
        self._connections = connections
        self._channel = channel
        self._sender = sender
        self._waiting: dict[PartitionKey, Watermarks] = {}
        self._task: asyncio.Task[None] | None = None

    def publish(self, watermarks: Mapping[PartitionKey, Watermarks]) -> None:
        """Queue new watermarks.

        A background task sends them, together with those queued meanwhile.
        """
        self._waiting.update(watermarks)
        while len(self._waiting) > NOTICES_WAITING_MAX:
            self._waiting.pop(next(iter(self._waiting)))
        if self._waiting and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._send())

    async def close(self) -> None:
        if self._task is not None:
            await self._task

    async def _send(self) -> None:
        while self._waiting:
            sent, self._waiting = self._waiting, {}
            notices = watermark_notices(f"m {self._sender}", sent)

            async def work(connection: Connection, notices: list[str] = notices) -> None:
                await connection.execute(
                    "SELECT pg_notify($1, notice) FROM unnest($2::text[]) AS notice",
                    self._channel,
                    notices,
                )

            try:
                await self._connections.transaction(work, begin=_BEGIN_UNSYNCED)
            except PenstockError as error:
                logger.warning(
                    "cannot send watermarks of %d partitions to other brokers: %s", len(sent), error
                )
