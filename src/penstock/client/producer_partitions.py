"""Appends of one producer to one partition, in order. No I/O in here.

A producer partition wraps a `ProduceCore` of one partition and knows which append each batch
belongs to. An append ends exactly once: when all of its batches are acknowledged, or when the
producer partition gives up. A producer partition of its own for each partition keeps a failure
where it belongs: what is wrong with one partition's batch says nothing about another's.

A producer partition that has failed waits until nothing of it is under way any more, so that what
the broker did write is still acknowledged, and so that nobody looks at the batches' memory. Then
every append that is left fails: the one at fault with its error, the others with `EarlierFailed`;
and a new core takes over.

| appends that come next       | because                                                      |
|------------------------------|--------------------------------------------------------------|
| begin where the oldest       | the producer repeats, or replaces, what failed: they are     |
| failed one began, or before  | taken                                                        |
| begin after it               | they were sent before the producer knew: refused. A broker   |
|                              | that has not seen the producer yet would take them, and      |
|                              | what is missing before them could never follow               |

Source: KIP-98; `docs/decisions/0008-first-batch-alone.md`, `0010-identity-carried-into-the-log.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

from penstock.base.errors import PenstockError, RetriableError
from penstock.base.retry import RetryPolicy
from penstock.client.produce import Acknowledged, Batch, ProduceCore, ProduceRequest

_SEQUENCES: Final = 2**31

Done = Callable[[PenstockError | None], None]


class EarlierFailed(RetriableError):
    """Another append of the producer failed; this one may be sent again after that one."""

    code: ClassVar[str] = "out_of_order_sequence_number"


class ProducerPartition(NamedTuple):
    """Whose batches, for which partition."""

    producer_id: int
    producer_epoch: int
    topic: str
    partition: int
    idempotent: bool
    transactional_id: str | None = None
    """Of the transaction whose part the batches are."""

    def __str__(self) -> str:
        who = f"producer {self.producer_id} epoch {self.producer_epoch}"
        return f"{self.topic}-{self.partition} of {who}"


class Pieces(NamedTuple):
    """An encoded batch: its bytes, perhaps in two parts, and its number of records."""

    data: bytes | memoryview
    record_count: int
    tail: memoryview | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class Append:
    """Batches that succeed or fail together."""

    base_sequence: int
    left: int
    done: Done


@dataclass(slots=True, eq=False)
class _Part(Batch):
    append: Append | None = None


Settled = tuple[Done, PenstockError | None]


class ProducerPartitionState:
    """Appends in, requests out, answers in, settled appends out."""

    def __init__(self, producer_partition: ProducerPartition, retry: RetryPolicy) -> None:
        self.producer_partition = producer_partition
        self._retry = retry
        self._appends: dict[Append, None] = {}
        self._requests = 0
        self._resume_at = -1
        self.core = self._new_core()

    def _new_core(self) -> ProduceCore:
        return ProduceCore(
            self.producer_partition.topic,
            retry=self._retry,
            idempotent=self.producer_partition.idempotent,
        )

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing is under way."""
        return not self._appends and not self._requests

    def admit(self, base_sequence: int) -> PenstockError | None:
        """Why an append that begins at this sequence cannot be taken; None if it will be added."""
        if self.core.error is not None:
            return self._earlier(self.core.error)
        if self._resume_at < 0 or base_sequence < 0:
            return None
        ahead = (base_sequence - self._resume_at) % _SEQUENCES
        if ahead == 0:
            self._resume_at = -1
        elif ahead < _SEQUENCES // 2:
            return EarlierFailed(
                f"append to {self.producer_partition} from sequence {base_sequence} on:"
                f" an earlier one failed;"
                f" the producer partition goes on at sequence {self._resume_at}"
            )
        return None

    def add(self, batches: Iterable[Pieces], base_sequence: int, done: Done) -> None:
        """Queue an append that `admit` has nothing against."""
        append = Append(base_sequence=base_sequence, left=0, done=done)
        parts = [
            _Part(self.producer_partition.partition, data, count, tail=tail, append=append)
            for data, count, tail in batches
        ]
        append.left = len(parts)
        self._appends[append] = None
        self.core.add(parts)

    def next_request(self, leaders: Mapping[int, int], now_ms: float) -> ProduceRequest | None:
        """The next request that may be sent; `answered` or `disconnected` follows."""
        request = self.core.next_request(leaders, now_ms)
        if request is not None:
            self._requests += 1
        return request

    def answered(
        self,
        request: ProduceRequest,
        results: Mapping[int, Acknowledged],
        *,
        now_ms: float,
        chance: float,
    ) -> list[Settled]:
        """Take in an answer; returns the appends that it completes."""
        self._requests -= 1
        self.core.answered(request, results, now_ms=now_ms, chance=chance)
        settled: list[Settled] = []
        for batch in request.batches:
            if batch.acknowledged and isinstance(batch, _Part) and batch.append is not None:
                append = batch.append
                append.left -= 1
                if append.left == 0:
                    del self._appends[append]
                    settled.append((append.done, None))
        return settled

    def disconnected(
        self,
        requests: Sequence[ProduceRequest],
        error: PenstockError,
        *,
        now_ms: float,
        chance: float,
    ) -> None:
        """The connection that carried these requests, oldest first, is gone or never was."""
        self._requests -= len(requests)
        self.core.disconnected(requests, error, now_ms=now_ms, chance=chance)

    def fail(self, error: PenstockError) -> None:
        """Give up all appends, for a reason that is none of the core's."""
        if self.core.error is None:
            self.core.error = error

    def collapse(self) -> list[Settled]:
        """Settle what is left of a failed producer partition, once nothing is under way; then begin
        anew.
        """
        error = self.core.error
        if error is None or self._requests:
            return []
        failed, culprit = self.core.failed, None
        if isinstance(failed, _Part):
            culprit = failed.append
        appends = list(self._appends)
        settled: list[Settled] = []
        for append in appends:
            own = culprit is None or append is culprit
            settled.append((append.done, error if own else self._earlier(error)))
        if self.producer_partition.idempotent and appends:
            self._resume_at = appends[0].base_sequence
        self._appends.clear()
        self.core = self._new_core()
        return settled

    def _earlier(self, error: PenstockError) -> EarlierFailed:
        return EarlierFailed(f"append to {self.producer_partition}: another one failed: {error}")
