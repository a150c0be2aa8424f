"""Acknowledgements in ShareFetch and ShareAcknowledge: decoding, storing, and the response."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from penstock.base.errors import PenstockError, UnavailableError
from penstock.broker.net.errors import NotLeader, UnknownTopicId, error_number, error_of
from penstock.broker.share.sessions import Place
from penstock.broker.share.values import Acknowledge, Acknowledged, InvalidAcknowledgement
from penstock.wire.kafka.fetch import SharePartitionAnswer

if TYPE_CHECKING:
    from penstock.broker.net.connection import RequestContext
    from penstock.broker.partitions.registry import PartitionRegistry
    from penstock.broker.share.shares import Shares
    from penstock.broker.share.stored import StoredShare
    from penstock.partitions import Partition

logger = logging.getLogger(__name__)

FETCH_ERRORS: Final = frozenset(
    {
        "not_leader_or_follower",
        "fenced_leader_epoch",
        "kafka_storage_error",
        "unknown_topic_id",
        "unknown_topic_or_partition",
        "topic_authorization_failed",
        "corrupt_message",
        "unknown_server_error",
    }
)
"""Errors of a fetched partition that the Java consumer handles; other errors stop the consumer."""


def acknowledgements_of(batches: Iterable[Any]) -> list[Acknowledged]:
    """Return the decoded acknowledgements of a partition; adjacent ones of a type are joined.

    Raises:
        InvalidAcknowledgement: a type is unknown, or a range has neither one type nor one type per
            offset.
    """
    acknowledgements = []
    for batch in batches:
        first, last, types = batch.first_offset, batch.last_offset, batch.acknowledge_types
        count = last - first + 1
        if len(types) not in (1, count):
            raise InvalidAcknowledgement(
                f"offsets {first} to {last} have {len(types)} acknowledge types: must have 1 or"
                f" {count}"
            )
        at = first
        for number, same in groupby(types):
            length = count if len(types) == 1 else len(list(same))
            acknowledgements.append(Acknowledged(at, at + length - 1, _kind(number)))
            at += length
    return acknowledgements


def _kind(number: int) -> Acknowledge:
    try:
        return Acknowledge(number)
    except ValueError:
        raise InvalidAcknowledgement(
            f"acknowledge type {number} is unknown: must be 0 to 4"
        ) from None


class Answers:
    def __init__(
        self,
        group_id: str,
        member: str,
        *,
        shares: Shares,
        partitions: PartitionRegistry,
        renews: bool,
        context: RequestContext,
    ) -> None:
        """Create the response of a request. `renews` is true if members may renew locks."""
        self._renews = renews
        self._context = context
        self.group_id = group_id
        self.member = member
        self._shares = shares
        self._partitions = partitions
        self.found: dict[Place, SharePartitionAnswer] = {}
        self._acknowledging: list[tuple[Place, asyncio.Future[None]]] = []

    def source(self, place: Place) -> Partition:
        """Return the partition to read: this broker leads it, and the member may read it.

        Raises:
            PenstockError: the partition cannot be read here.
        """
        topic_id, index = place
        topic = self._partitions.topics_by_id.get(topic_id.bytes)
        if topic is None:
            raise UnknownTopicId(f"topic id {topic_id} does not exist")
        self._context.authorise("read", "topic", topic.topic.name)
        return self._partitions.partition_of(topic, index)

    async def open(self, partitions: Sequence[Place]) -> None:
        openings = []
        for place in partitions:
            try:
                source = self.source(place)
                if self._shares.held(self.group_id, source) is None:
                    openings.append((place, self._shares.open(self.group_id, source)))
            except Exception as error:
                self.failed(place, error)
        if openings:
            opened = await asyncio.gather(
                *(opening for _, opening in openings), return_exceptions=True
            )
            for (place, _), outcome in zip(openings, opened, strict=True):
                if isinstance(outcome, BaseException):
                    self.failed(place, outcome)

    def acknowledge(self, place: Place, batches: Iterable[Any]) -> None:
        answer = self.answer(place)
        if answer.error:
            answer.acknowledge_error, answer.acknowledge_message = answer.error, answer.message
            return
        try:
            acknowledgements = acknowledgements_of(batches)
            stored = self._shares.held(self.group_id, self.source(place))
            if stored is None:
                raise NotLeader(f"the leader of {place[0]}-{place[1]} has just changed")
            self._acknowledging.append((place, self._take(stored, acknowledgements)))
        except Exception as error:
            self._refused(place, error)

    def _take(
        self, stored: StoredShare, acknowledgements: Sequence[Acknowledged]
    ) -> asyncio.Future[None]:
        shares, share = self._shares, stored.share
        if not self._renews and any(kind == Acknowledge.RENEW for _, _, kind in acknowledgements):
            raise InvalidAcknowledgement(
                f"share.renew.acknowledge.enable = false for group {self.group_id!r}"
            )
        now_ms = shares.now_ms()
        undeliverable = share.expire(now_ms)
        undeliverable += share.acknowledge(self.member, acknowledgements, now_ms=now_ms)
        if any(kind == Acknowledge.RELEASE for _, _, kind in acknowledgements) or undeliverable:
            return shares.released(stored, undeliverable)
        shares.watch(stored)
        return stored.store()

    async def acknowledged(self) -> None:
        """Wait until all acknowledgements are stored; report an error for those that are not."""
        for place, future in self._acknowledging:
            try:
                await asyncio.shield(future)
            except PenstockError as error:
                self._refused(place, error)

    def _refused(self, place: Place, error: BaseException) -> None:
        answer = self.answer(place)
        answer.acknowledge_error, answer.acknowledge_message = _error_of(error, place)

    def nothing(self, place: Place) -> None:
        """Remove the records of a partition from the response; keep its acknowledgement result."""
        answer = self.answer(place)
        answer.buffers, answer.size_bytes, answer.acquired = (), 0, ()

    def failed(self, place: Place, error: BaseException) -> None:
        """Report an error for a partition, without records.

        An error that clients of ShareFetch do not handle is replaced by one to retry.
        """
        self.nothing(place)
        answer = self.answer(place)
        answer.error, answer.message = _error_of(error, place)
        if isinstance(error, PenstockError) and error.code not in FETCH_ERRORS:
            answer.error = error_number(UnavailableError.code)
        if isinstance(error, NotLeader) and error.leader is not None:
            answer.leader = error.leader

    def answer(self, place: Place) -> SharePartitionAnswer:
        return self.found.setdefault(place, SharePartitionAnswer(place[1]))

    def by_topic(self) -> dict[bytes, list[SharePartitionAnswer]]:
        topics: dict[bytes, list[SharePartitionAnswer]] = {}
        for (topic_id, _), answer in self.found.items():
            topics.setdefault(topic_id.bytes, []).append(answer)
        return topics


def _error_of(error: BaseException, place: Place) -> tuple[int, str]:
    if not isinstance(error, PenstockError):
        logger.error("share partition %s-%d failed", *place, exc_info=error)
    return error_of(error)
