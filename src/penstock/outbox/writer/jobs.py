"""State of a call of the writer, and its results.

A job may continue after its caller has stopped waiting. It keeps the payload until no file call can
read it any more. It keeps its share of the limits until its file calls and its publish have ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec import Struct

from penstock.base.errors import InvalidError, PenstockError
from penstock.outbox.errors import (
    BatchIdentity,
    OutboxBusy,
    OutboxClosed,
    PublishFailed,
    PublishRefused,
)
from penstock.outbox.layout import BATCH_PREFIX, DATA_FILE
from penstock.outbox.metrics import PartitionCounts
from penstock.outbox.pointer import Pointer


class WriteResult(Struct, frozen=True, kw_only=True):
    """Result of a write: the pointer to a complete file.

    `idempotent_existing_write` is true if an earlier attempt had written the file.
    """

    identity: BatchIdentity
    pointer: Pointer
    idempotent_existing_write: bool
    attempts: int


class SendResult(Struct, frozen=True, kw_only=True):
    """Result of a send: the identity of a published record.

    `pointer` is None for an inline payload.
    """

    identity: BatchIdentity
    pointer: Pointer | None
    size_bytes: int
    crc32c: int
    idempotent_existing_write: bool
    attempts: int

    @property
    def inline(self) -> bool:
        return self.pointer is None


class Job(Struct, kw_only=True, eq=False):
    """Call of the writer in progress. It may continue after its caller has stopped waiting."""

    identity: BatchIdentity
    hour_directory: str
    buffers: list[memoryview]
    size_bytes: int
    event_count: int
    codec: str
    counts: PartitionCounts
    released: Callable[[], None] | None
    to_publish: bool = False
    begun: bool = False  # the writer's own task releases the payload
    has_room: bool = False
    abandoned: bool = False
    attempts: int = 0
    waiter: asyncio.Future[None] | None = None  # for admission, or the end of a pause

    @property
    def path(self) -> str:
        name = f"{BATCH_PREFIX}{self.identity.batch_id}"
        return f"{self.hour_directory}/{name}/{DATA_FILE}"

    def abandon(self) -> None:
        """Start no further step, because the caller has stopped waiting."""
        self.abandoned = True
        self.wake()

    def wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def release(self) -> None:
        self.buffers = []
        released, self.released = self.released, None
        if released is not None:
            released()


class Late(Exception):
    """The timeout of a caller has passed."""


def publish_error(error: PenstockError, where: str) -> PenstockError:
    """Return a new error for one call, because several calls may share the publisher's error."""
    text = f"{where}: its record was not published: {error}"
    if isinstance(error, OutboxClosed):
        return OutboxClosed(text)
    if isinstance(error, OutboxBusy):
        return OutboxBusy(text)
    if isinstance(error, InvalidError):
        return PublishRefused(text)
    return PublishFailed(text)
