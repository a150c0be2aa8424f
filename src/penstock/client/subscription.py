"""A topic that is followed: record batches, and where the caller stands.

The reader is that of every read; this is the place that it reads to, kept for who goes on later.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from penstock.client.errors import LogTruncated
from penstock.client.fetch import FetchCore, ReadPosition, Run


class Subscription:
    """Iterate over it for record batches, in one thread. After an error it is over.

    `positions` are behind the last batch that was handed out, by partition: hand them to
    `Client.subscribe` as its `start` to go on there. After `LogTruncated` they are where the log
    still has the records that were read.
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
        """The next record batch.

        Raises:
            LogTruncated: records that came were given up by an election.
            OffsetOutOfRange: the log does not begin before what comes next any more.
            UnreadableBatch: what is stored cannot be read; what is before it came.
            PenstockError: what the broker refused for good.
        """
        try:
            run, batch = next(self._batches)
        except LogTruncated as error:
            self.positions[error.partition] = ReadPosition(*error.left)
            raise
        self.positions[run.partition] = run.behind
        return batch

    def close(self) -> None:
        """Fetch no more."""
        self._batches.close()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
