"""Submissions for the tests of diskless topics, and what became of them."""

from __future__ import annotations

from uuid import UUID

from penstock.base.errors import PenstockError
from penstock.control.values.diskless import ObjectLease
from penstock.diskless.writing.objects import Submission
from penstock.records import split_batches
from penstock.records.appends import AppendResult, Outcome
from penstock.storage.files.values import Lease
from tests.storage.batches import batch

TOPIC = UUID(int=7)


class Sent:
    """A submission and its outcomes, of which there must be exactly one."""

    def __init__(
        self,
        *,
        partition: int = 0,
        count: int = 1,
        size: int = 40,
        fill: int = 0,
        producer_id: int = -1,
        sequence: int = -1,
        epoch: int = 0,
        batches: int = 1,
        topic_id: UUID = TOPIC,
        lease: Lease | None = None,
        append_time: bool = False,
    ) -> None:
        self.outcomes: list[Outcome] = []
        data = bytearray()
        for index in range(batches):
            data += batch(
                count,
                size=size,
                fill=fill,
                producer_id=producer_id,
                epoch=epoch if producer_id >= 0 else -1,
                sequence=(sequence + index * count) % 2**31 if producer_id >= 0 else -1,
            )
        self.data = bytes(data)
        view = memoryview(data)
        self.submission = Submission(
            topic_id, partition, view, split_batches(view), append_time, lease,
            self.outcomes.append,
        )  # fmt: skip

    @property
    def placed(self) -> AppendResult:
        """The result of the append."""
        (outcome,) = self.outcomes
        assert isinstance(outcome, AppendResult), outcome
        return outcome

    @property
    def error(self) -> PenstockError:
        """Why it is unknown where it went."""
        (outcome,) = self.outcomes
        assert isinstance(outcome, PenstockError), outcome
        return outcome


class CountedLease:
    """A receive buffer's lease that counts."""

    def __init__(self) -> None:
        self.count = 1

    def retain(self) -> None:
        self.count += 1

    def release(self) -> None:
        self.count -= 1


def keys(first: int, count: int) -> list[ObjectLease]:
    """Leases of adjacent ids."""
    return [ObjectLease(number, f"wal/{number}") for number in range(first, first + count)]
