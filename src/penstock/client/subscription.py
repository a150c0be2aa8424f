"""Subscription to a topic, with its positions.

It uses the reader of every read, and adds the positions after the last returned batch.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from penstock.client.errors import LogTruncated
from penstock.client.fetch import FetchCore, ReadPosition, Run


class Subscription:
    """Iterator of record batches, for one thread. It ends after an error.

    `positions` are after the last returned batch, by partition: pass them as `start` to
    `Client.subscribe` to continue there. After `LogTruncated` they are the end of the records that
    the log still has.
    """

    def __init__(self, core: FetchCore, batches: Generator[tuple[Run, Any]]) -> None:
        self._batches = batches
        self.positions = {
            partition: ReadPosition(cursor.epoch, cursor.position)
            for partition, cursor in core.cursors.items()
        }

    def __iter__(self) -> Subscription:
        return self

    def __next__(self) -> Any:
        """Return the next record batch.

        Raises:
            LogTruncated: a leader election discarded records that were already returned.
            OffsetOutOfRange: the log now begins after the next offset.
            UnreadableBatch: a stored batch cannot be read; earlier ones were returned.
            PenstockError: the broker rejected the request, or retries were exhausted.
        """
        try:
            run, batch = next(self._batches)
        except LogTruncated as error:
            self.positions[error.partition] = ReadPosition(*error.left)
            raise
        self.positions[run.partition] = run.behind
        return batch

    def close(self) -> None:
        self._batches.close()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
