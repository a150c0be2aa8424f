"""Client of transaction coordinators on this broker and on others.

Partition leaders use it to verify that partitions belong to a transaction, or to add them. Group
coordinators use it to add groups whose offsets a transaction commits. Coordinators on other brokers
get AddPartitionsToTxn, with all checks of one event-loop turn in one request, and AddOffsetsToTxn.

Source: Kafka's `AddPartitionsToTxnManager`; KIP-890.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from penstock.base.errors import PenstockError
from penstock.base.ids import TopicPartition
from penstock.broker.groups.runtime.core import Refused
from penstock.broker.groups.runtime.saving import owner_of
from penstock.broker.net.errors import error_number
from penstock.broker.net.peers import PeerBatches, Peers
from penstock.broker.transactions import (
    AddToTransaction,
    ProducerIdentity,
    Verified,
    VerifyPartitions,
)
from penstock.client.errors import MalformedResponse, broker_error
from penstock.records.extents import LATEST, READ_UNCOMMITTED

if TYPE_CHECKING:
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.partitions.registry import PartitionRegistry
    from penstock.broker.transactions.coordinator import TransactionCoordinator
    from penstock.control import OpenTransaction


QUESTIONS_PER_REQUEST_MAX: Final = 500
"""Maximum number of transactions in one request; the next request contains the others."""
QUESTIONS_WAITING_MAX: Final = 20_000
TRANSACTION_ABORTABLE: Final = "transaction_abortable"

Answers = Sequence[PenstockError | None]


class _Question(NamedTuple):
    transactional_id: str
    producer: ProducerIdentity
    partitions: Sequence[TopicPartition]
    add: bool
    answers: asyncio.Future[Answers]


class TransactionLink:
    """Client that verifies the partitions of transactions at their coordinators, or adds some.

    Belongs to the event loop.
    """

    def __init__(
        self,
        node_id: int,
        cluster: ClusterMetadata,
        coordinator: TransactionCoordinator,
        peers: Peers,
    ) -> None:
        self._node_id = node_id
        self._cluster = cluster
        self._coordinator = coordinator
        self._peers = peers
        self._batches: PeerBatches[_Question] = PeerBatches(_take, self._send)
        self._waiting = 0

    async def stop(self) -> None:
        await self._batches.stop()

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        add: bool,
    ) -> Answers:
        producer = ProducerIdentity(producer_id, producer_epoch)
        try:
            owner = owner_of(self._cluster.image, transactional_id).broker_id
            if owner == self._node_id:
                return await self._ask_here(transactional_id, producer, partitions, add=add)
            return await self._ask(owner, transactional_id, producer, partitions, add=add)
        except PenstockError as error:
            return [error] * len(partitions)

    def verify_now(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
    ) -> Answers | None:
        response = self._coordinator.verify(
            VerifyPartitions(
                transactional_id=transactional_id,
                producer=ProducerIdentity(producer_id, producer_epoch),
                partitions=frozenset(partitions),
            )
        )
        return None if response is None else _answers(transactional_id, response, partitions)

    async def add_group(self, transaction: OpenTransaction, group_id: str) -> None:
        """Add the offsets of a group to an open transaction.

        Raises:
            PenstockError: the coordinator refuses it, or cannot be reached.
        """
        transactional_id = transaction.transactional_id
        producer = ProducerIdentity(transaction.producer_id, transaction.producer_epoch)
        owner = owner_of(self._cluster.image, transactional_id).broker_id
        if owner == self._node_id:
            response = await self._coordinator.call(
                AddToTransaction(
                    transactional_id=transactional_id,
                    producer=producer,
                    groups=frozenset({group_id}),
                )
            )
            if isinstance(response, Refused):
                raise refused_error(response)
            return
        body = {
            "transactional_id": transactional_id,
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
            "group_id": group_id,
        }
        answer = await self._peers.call(owner, "AddOffsetsToTxn", body)
        if int(answer.error_code):
            raise broker_error(int(answer.error_code), f"transaction {transactional_id!r}")

    async def _ask_here(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Sequence[TopicPartition],
        *,
        add: bool,
    ) -> Answers:
        kind = AddToTransaction if add else VerifyPartitions
        response = await self._coordinator.call(
            kind(
                transactional_id=transactional_id,
                producer=producer,
                partitions=frozenset(partitions),
            )
        )
        return _answers(transactional_id, response, partitions)

    async def _ask(
        self,
        owner: int,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Sequence[TopicPartition],
        *,
        add: bool,
    ) -> Answers:
        if self._waiting >= QUESTIONS_WAITING_MAX:
            raise refused_error(
                Refused(
                    error="coordinator_not_available",
                    message=f"{self._waiting} checks already wait for coordinators; no more may",
                )
            )
        answers: asyncio.Future[Answers] = asyncio.get_running_loop().create_future()
        question = _Question(transactional_id, producer, partitions, add, answers)
        self._waiting += 1
        try:
            self._batches.put(owner, question)
            return await answers
        finally:
            self._waiting -= 1

    async def _send(self, broker_id: int, batch: list[_Question]) -> None:
        body = {"transactions": [_requested(question) for question in batch]}
        try:
            answer = await self._peers.call(broker_id, "AddPartitionsToTxn", body)
            if int(answer.error_code):
                raise broker_error(int(answer.error_code), f"AddPartitionsToTxn at {broker_id}")
        except PenstockError as error:
            for question in batch:
                _answer(question, [error] * len(question.partitions))
            return
        found = {result.transactional_id: result for result in answer.results_by_transaction}
        for question in batch:
            _answer(question, _read(question, found.get(question.transactional_id), broker_id))


def refused_error(refused: Refused) -> PenstockError:
    number = error_number(refused.error)
    return broker_error(number, "the coordinator of the transaction", refused.message)


def _answers(transactional_id: str, response: Any, partitions: Sequence[TopicPartition]) -> Answers:
    """Return None for each partition that the transaction has, else an error.

    `response` is the response of this broker's coordinator.
    """
    if isinstance(response, Refused):
        return [refused_error(response)] * len(partitions)
    missing = response.missing if isinstance(response, Verified) else frozenset()
    return [
        _missing(transactional_id, partition) if partition in missing else None
        for partition in partitions
    ]


def _missing(transactional_id: str, where: TopicPartition) -> PenstockError:
    message = f"{where} is not part of the transaction of {transactional_id!r}"
    return refused_error(Refused(error=TRANSACTION_ABORTABLE, message=message))


def _take(waiting: list[_Question]) -> tuple[list[_Question], list[_Question]]:
    """Return the checks for the next AddPartitionsToTxn request, and the checks after them.

    A request has at most one check of each transactional id, because results are matched by id.
    """
    batch: dict[str, _Question] = {}
    rest: list[_Question] = []
    for question in waiting:
        if question.answers.done():
            continue
        if question.transactional_id in batch or len(batch) >= QUESTIONS_PER_REQUEST_MAX:
            rest.append(question)
        else:
            batch[question.transactional_id] = question
    return list(batch.values()), rest


def _requested(question: _Question) -> dict[str, Any]:
    return {
        "transactional_id": question.transactional_id,
        "producer_id": question.producer.producer_id,
        "producer_epoch": question.producer.producer_epoch,
        "verify_only": not question.add,
        "topics": [
            {"name": name, "partitions": indexes}
            for name, indexes in by_topic(question.partitions).items()
        ],
    }


def by_topic(partitions: Iterable[TopicPartition]) -> Mapping[str, list[int]]:
    found: dict[str, list[int]] = {}
    for partition in partitions:
        found.setdefault(partition.topic, []).append(partition.partition)
    return found


def _read(question: _Question, result: Any, broker_id: int) -> Answers:
    codes: dict[TopicPartition, int] = {}
    for topic in () if result is None else result.topic_results:
        for row in topic.results_by_partition:
            where = TopicPartition(topic.name, int(row.partition_index))
            codes[where] = int(row.partition_error_code)
    answers: list[PenstockError | None] = []
    for where in question.partitions:
        code = codes.get(where)
        subject = f"{where} in the transaction of {question.transactional_id!r}"
        if code is None:
            answers.append(MalformedResponse(f"broker {broker_id} omitted {subject}"))
        else:
            answers.append(broker_error(code, subject) if code else None)
    return answers


def _answer(question: _Question, answers: Answers) -> None:
    if not question.answers.done():
        question.answers.set_result(answers)


logger = logging.getLogger(__name__)

ASK_SECONDS: Final = 3.0
"""Timeout of ListOffsets requests to other leaders. Without a response the offset is unknown."""

RECENT_SECONDS: Final = 15.0
"""Age up to which `recent` reuses the responses of other leaders, and missing responses."""


class EndOffsets:
    """Look-up of partitions' high watermarks at their leaders, to show the lag of groups.

    Belongs to the event loop.
    """

    def __init__(
        self, node_id: int, cluster: ClusterMetadata, partitions: PartitionRegistry, peers: Peers
    ) -> None:
        self._node_id = node_id
        self._cluster = cluster
        self._partitions = partitions
        self._peers = peers
        self._reported: Mapping[TopicPartition, int] = {}
        self._asked: frozenset[TopicPartition] = frozenset()
        self._asked_at = -math.inf

    async def recent(
        self, topic_partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """Return the end offsets; those from other leaders may be `RECENT_SECONDS` old.

        Partitions whose leader does not respond are omitted.
        """
        requested = frozenset(topic_partitions)
        elsewhere = frozenset(self._elsewhere(requested))
        now = asyncio.get_running_loop().time()
        if now - self._asked_at >= RECENT_SECONDS or not elsewhere <= self._asked:
            self._asked, self._asked_at = elsewhere, now
            self._reported = await self.of(elsewhere)
        return self._here(requested) | {
            topic_partition: end
            for topic_partition, end in self._reported.items()
            if topic_partition in elsewhere
        }

    async def of(
        self, topic_partitions: Iterable[TopicPartition], isolation_level: int = READ_UNCOMMITTED
    ) -> Mapping[TopicPartition, int]:
        """Return the present end offsets, without those of leaders silent for `ASK_SECONDS`.

        Those from other leaders are last stable offsets if `isolation_level` is READ_COMMITTED.
        """
        requested = frozenset(topic_partitions)
        found = self._here(requested)
        led: dict[int, list[TopicPartition]] = {}
        for topic_partition, leader in self._elsewhere(requested).items():
            led.setdefault(leader, []).append(topic_partition)
        asked = [self.ask(*asked, isolation_level=isolation_level) for asked in led.items()]
        for ends in await asyncio.gather(*asked):
            found |= ends
        return found

    def _here(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        ends = [
            (topic_partition, self._end(topic_partition)) for topic_partition in topic_partitions
        ]
        return {topic_partition: end for topic_partition, end in ends if end is not None}

    def _elsewhere(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return, for each partition whose end offset only another broker has, its leader."""
        leaders = [
            (topic_partition, self.leader(topic_partition))
            for topic_partition in topic_partitions
            if self._end(topic_partition) is None
        ]
        return {
            topic_partition: leader
            for topic_partition, leader in leaders
            if leader is not None and leader != self._node_id
        }

    def _end(self, topic_partition: TopicPartition) -> int | None:
        return self._partitions.high_watermark(topic_partition.topic, topic_partition.partition)

    def leader(self, topic_partition: TopicPartition) -> int | None:
        """Return the leader of a partition as clients see it; None if it is unknown."""
        topic = self._cluster.image.topics.get(topic_partition.topic)
        if topic is None or not 0 <= topic_partition.partition < len(topic.partitions):
            return None
        leader = self._cluster.shown(topic)[topic_partition.partition].leader
        return leader if leader >= 0 else None

    async def ask(
        self,
        leader: int,
        topic_partitions: Iterable[TopicPartition],
        *,
        timestamp: int = LATEST,
        isolation_level: int = READ_UNCOMMITTED,
    ) -> dict[TopicPartition, int]:
        """Return the offsets at `timestamp` that a leader reports by ListOffsets.

        Empty if the leader does not respond within `ASK_SECONDS`.
        """
        body = {
            "replica_id": -1,
            "isolation_level": isolation_level,
            "topics": [
                {
                    "name": name,
                    "partitions": [
                        {"partition_index": index, "timestamp": timestamp} for index in indexes
                    ],
                }
                for name, indexes in by_topic(topic_partitions).items()
            ],
        }
        try:
            async with asyncio.timeout(ASK_SECONDS):
                answer: Any = await self._peers.call(leader, "ListOffsets", body)
        except (PenstockError, TimeoutError) as error:
            logger.warning(
                "broker %d did not report the offsets of its partitions: %s", leader, error
            )
            return {}
        return {
            TopicPartition(topic.name, int(row.partition_index)): int(row.offset)
            for topic in answer.topics
            for row in topic.partitions
            if not row.error_code
        }


# Port through which a leader verifies transactional batches with the transaction coordinator.
#
# A leader appends the first batch of a transaction only if the coordinator confirms that the
# transaction includes the partition. Without this check the partition might never get a marker for
# the transaction (KIP-890).


class Verifier(Protocol):
    """Interface of `TransactionLink` for partition leaders: checks of transactional batches."""

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        add: bool,
    ) -> Sequence[PenstockError | None]:
        """Verify that a producer's open transaction has these partitions; `add` adds them first.

        Returns None or the coordinator's error for each partition, in order:
        `InvalidProducerEpoch`, `InvalidTxnState`, or Kafka's codes `transaction_abortable`,
        `concurrent_transactions`, `not_coordinator` and so on. Never raises a PenstockError; an
        unreachable coordinator is an error of each partition.
        """
        ...

    def verify_now(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
    ) -> Sequence[PenstockError | None] | None:
        """Return the result of `verify` without `add` if it is known immediately, else None."""
        ...
