"""Repair of damaged committed records with the records of another replica.

Committed records at an offset are the same on every replica. Any broker that has them below a known
high watermark may therefore send them, leader or not. A follower asks its leader; a leader asks its
followers, one after another. One range is requested at a time. The answer is verified, and replaces
the damaged range (`PartitionLog.mend`). Until then, reads of that range are rejected as retriable.

Source: `docs/decisions/0047-damaged-records-are-fetched-from-a-replica.md`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from penstock.base.errors import PenstockError
from penstock.replication.leadership import CHUNK_BYTES
from penstock.replication.peer_format import AskCopy, CopyAnswer

if TYPE_CHECKING:
    from penstock.replication.peer_format import Said
    from penstock.storage import PartitionLog
    from penstock.storage.damage import Damage
    from penstock.storage.values import Buffer

logger = logging.getLogger(__name__)

ANSWER_MS: Final = 3_000
"""Milliseconds after which another replica is asked."""


class Mending:
    """Requests for damaged ranges of one log. Belongs to the event loop."""

    __slots__ = ("_asked", "_asked_ms", "_damage", "_log", "_tell")

    def __init__(
        self, log: PartitionLog, tell: Callable[[int, Said, list[Buffer], int], None]
    ) -> None:
        self._log = log
        self._tell = tell
        self._damage: Damage | None = None
        self._asked: list[int] = []
        """Brokers that were asked for the range; the answer of the last one is awaited."""
        self._asked_ms = 0

    def ask(self, damage: Damage, brokers: Sequence[int], mark: int, now_ms: int) -> bool:
        """Request a damaged range from one of these brokers; return False if none can send it.

        Records above the high watermark `mark` cannot be requested, because replicas may differ.
        """
        if damage.next_offset > mark or not brokers:
            return False
        known = self._damage
        if known is None or known[:3] != damage[:3] or known.first_offset != damage.first_offset:
            if known is not None and now_ms - self._asked_ms < ANSWER_MS:
                return True  # one range at a time
            self._damage, self._asked = damage, []
        elif self._asked and now_ms - self._asked_ms < ANSWER_MS:
            return True
        following = [broker for broker in brokers if broker not in self._asked]
        if not following:
            self._asked = []
            following = list(brokers)
        self._asked.append(following[0])
        self._asked_ms = now_ms
        self._tell(following[0], AskCopy(damage.first_offset, damage.next_offset), [], 0)
        return True

    def answer(self, sender: int, asked: AskCopy, mark: int) -> None:
        """Send the committed records that another broker requests, below the high watermark."""
        answer, buffers, size_bytes = CopyAnswer(asked.base, asked.base), list["Buffer"](), 0
        end = min(asked.next, mark)
        try:
            if self._log.log_start_offset <= asked.base < end:
                read = self._log.read(asked.base, max_bytes=CHUNK_BYTES, end_offset=end)
                answer = answer._replace(next=read.next_offset)
                buffers, size_bytes = list(read.buffers), read.size_bytes
        except PenstockError as error:
            logger.error(
                "%s: cannot send records to repair another replica: %s",
                self._log.topic_partition,
                error,
            )
        self._tell(sender, answer, buffers, size_bytes)

    def heard(self, answer: CopyAnswer, data: memoryview, now_ms: int) -> bool:
        """Handle an answer, or a part of it; return whether a range was repaired.

        Raises:
            StorageError: the range cannot be written.
        """
        damage, broker = self._damage, self._asked[-1:]
        if damage is None or answer.base != damage.first_offset or not broker:
            return False
        self._asked_ms = now_ms - ANSWER_MS
        if answer.next <= answer.base or not self._log.mend(damage, data):
            return False
        self._damage = None
        rest = self._log.damage_in(answer.next, damage.next_offset)
        if rest is not None:
            self.ask(rest, broker, rest.next_offset, now_ms)
        return True
