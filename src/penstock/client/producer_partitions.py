"""State machine for the ordered appends of one producer to one partition, without I/O.

A producer partition has a `ProduceCore` for its one partition, and maps batches to appends. An
append ends exactly once: when all of its batches are acknowledged, or when the producer partition
fails. Each partition has its own state, so a failure in one does not affect others.

A failed producer partition first waits until its requests in flight are answered. So batches that
the broker did write are still acknowledged, and no connection reads the batches' memory any more.
Then each remaining append fails. The append that caused the failure gets its error, the others get
`EarlierFailed`. A new core replaces the failed one.

| first sequence of a later append | result                                                   |
|----------------------------------|----------------------------------------------------------|
| that of the oldest failed        | accepted: the producer retries or replaces the failed    |
| append, or lower                 | append                                                   |
| higher                           | rejected: the producer sent it before it received the    |
|                                  | failure. A broker without state for the producer would   |
|                                  | accept it, and then reject the missing batches forever   |

Source: KIP-98; `docs/decisions/0008-first-batch-alone.md`, `0010-identity-carried-into-the-log.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar, Final, NamedTuple

from msgspec import Struct

from penstock.base.errors import PenstockError, RetriableError
from penstock.base.retry import RetryPolicy
from penstock.client.produce import Acknowledged, Batch, ProduceCore, ProduceRequest

_SEQUENCES: Final = 2**31

Done = Callable[[PenstockError | None], None]


class EarlierFailed(RetriableError):
    """Another append of the producer failed; repeat this one after the failed append."""

    code: ClassVar[str] = "out_of_order_sequence_number"


class ProducerPartition(NamedTuple):
    producer_id: int
    producer_epoch: int
    topic: str
    partition: int
    idempotent: bool
    transactional_id: str | None = None
    """Transactional id of the transaction that the batches belong to."""

    def __str__(self) -> str:
        who = f"producer {self.producer_id} epoch {self.producer_epoch}"
        return f"{self.topic}-{self.partition} of {who}"


class Pieces(NamedTuple):
    """Encoded batch: its bytes, in one or two parts, and its number of records."""

    data: bytes | memoryview
    record_count: int
    tail: memoryview | None = None


class Append(Struct, kw_only=True, eq=False):
    """Batches that succeed or fail together."""

    base_sequence: int
    left: int
    done: Done


class _Part(Batch, eq=False):
    append: Append | None = None


Completed = tuple[Done, PenstockError | None]


class ProducerPartitionState:
    """State machine from appends to requests, and from responses to completed appends."""

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
        return not self._appends and not self._requests

    def admit(self, base_sequence: int) -> PenstockError | None:
        """Return None if an append may begin at this sequence, otherwise the error.

        After a failed append, one with a higher sequence is rejected until the producer has sent
        the failed sequence again; the table at the top of this file has the reason.
        """
        if self.core.error is not None:
            return self._earlier(self.core.error)
        if self._resume_at < 0 or base_sequence < 0:
            return None
        ahead = (base_sequence - self._resume_at) % _SEQUENCES
        if ahead == 0:
            self._resume_at = -1
        elif ahead < _SEQUENCES // 2:
            return EarlierFailed(
                f"append to {self.producer_partition} from sequence {base_sequence} on: an"
                " earlier append failed, so the next append must start at sequence"
                f" {self._resume_at}"
            )
        return None

    def add(self, batches: Iterable[Pieces], base_sequence: int, done: Done) -> None:
        append = Append(base_sequence=base_sequence, left=0, done=done)
        parts = [
            _Part(self.producer_partition.partition, data, count, tail=tail, append=append)
            for data, count, tail in batches
        ]
        append.left = len(parts)
        self._appends[append] = None
        self.core.add(parts)

    def next_request(self, leaders: Mapping[int, int], now_ms: float) -> ProduceRequest | None:
        """Return the next request to send, or None; after sending it, call `answered` or
        `disconnected`.
        """
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
    ) -> list[Completed]:
        """Process a response; return the completed appends."""
        self._requests -= 1
        self.core.answered(request, results, now_ms=now_ms, chance=chance)
        completed: list[Completed] = []
        for batch in request.batches:
            if batch.acknowledged and isinstance(batch, _Part) and batch.append is not None:
                append = batch.append
                append.left -= 1
                if append.left == 0:
                    del self._appends[append]
                    completed.append((append.done, None))
        return completed

    def disconnected(
        self,
        requests: Sequence[ProduceRequest],
        error: PenstockError,
        *,
        now_ms: float,
        chance: float,
    ) -> None:
        """Record that the connection of these requests, oldest first, was lost or could not be
        opened.
        """
        self._requests -= len(requests)
        self.core.disconnected(requests, error, now_ms=now_ms, chance=chance)

    def fail(self, error: PenstockError) -> None:
        if self.core.error is None:
            self.core.error = error

    def collapse(self) -> list[Completed]:
        """Complete all appends of a failed producer partition and reset it.

        It does nothing while requests are in flight.
        """
        error = self.core.error
        if error is None or self._requests:
            return []
        failed, culprit = self.core.failed, None
        if isinstance(failed, _Part):
            culprit = failed.append
        appends = list(self._appends)
        completed: list[Completed] = []
        for append in appends:
            own = culprit is None or append is culprit
            completed.append((append.done, error if own else self._earlier(error)))
        if self.producer_partition.idempotent and appends:
            self._resume_at = appends[0].base_sequence
        self._appends.clear()
        self.core = self._new_core()
        return completed

    def _earlier(self, error: PenstockError) -> EarlierFailed:
        return EarlierFailed(f"append to {self.producer_partition}: another append failed: {error}")
