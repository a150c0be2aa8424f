"""Producer ids of idempotent producers, with their next sequence numbers.

A writer borrows an identity: a producer id with its epoch and sequences. It returns the identity
after a success, so many small writes need only one InitProducerId request. After a failure the
identity is discarded, because the broker's state for it is unknown. A new identity starts at
sequence 0.

Source: KIP-98. Sequences count records per partition and wrap at 2^31 - 1.
"""

from __future__ import annotations

import threading
from typing import Final

from msgspec import Struct, field

from penstock.client.errors import broker_error
from penstock.client.session import Session

IDLE_PRODUCERS_MAX: Final = 16
"""Maximum number of idle identities that are kept for the next writers."""

_SEQUENCES: Final = 2**31


class ProducerIdentity(Struct, eq=False):
    """Producer id with its epoch; both are -1 if the producer is not idempotent.

    If it has a transactional id, its batches are part of the open transaction.
    """

    producer_id: int = -1
    epoch: int = -1
    transactional_id: str | None = None
    _next: dict[tuple[str, int], int] = field(default_factory=dict)

    @property
    def idempotent(self) -> bool:
        return self.producer_id >= 0

    def sequence(self, topic: str, partition: int) -> int:
        """Return the sequence of the next record of a partition; -1 if the producer is not
        idempotent.
        """
        return self._next.get((topic, partition), 0) if self.idempotent else -1

    def advance(self, topic: str, partition: int, record_count: int) -> None:
        """Advance the next sequence of a partition by the records that were encoded."""
        if self.idempotent:
            at = self._next.get((topic, partition), 0)
            self._next[topic, partition] = (at + record_count) % _SEQUENCES


class ProducerIdentities:
    """Idle identities that writers can borrow."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._idle: list[ProducerIdentity] = []

    def borrow(self) -> ProducerIdentity:
        """Return an identity that only the caller uses.

        Raises:
            PenstockError: no broker assigned a producer id.
        """
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return self._session.retrying(self._ask)

    def give_back(self, identity: ProducerIdentity) -> None:
        with self._lock:
            if identity.idempotent and len(self._idle) < IDLE_PRODUCERS_MAX:
                self._idle.append(identity)

    def _ask(self) -> ProducerIdentity:
        response = self._session.call_any(
            "InitProducerId", {"transactional_id": None, "transaction_timeout": 60_000}
        )
        if int(response.error_code):
            raise broker_error(int(response.error_code), "producer id")
        return ProducerIdentity(int(response.producer_id), int(response.producer_epoch))
