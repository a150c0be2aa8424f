"""Client of transaction coordinators on this broker and on others.

Partition leaders use it to verify that partitions belong to a transaction, or to add them
(`broker/verifier.py`). Group coordinators use it to add groups. Coordinators on other brokers get
AddPartitionsToTxn, with all checks of one event-loop turn in one request, and AddOffsetsToTxn.

Source: Kafka's `AddPartitionsToTxnManager`; KIP-890.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.base.errors import PenstockError
from penstock.base.ids import TopicPartition
from penstock.broker.coordination.core import Refused
from penstock.broker.coordination.ownership import owner_of
from penstock.broker.coordination.transactions import (
    AddToTransaction,
    ProducerIdentity,
    Verified,
    VerifyPartitions,
)
from penstock.broker.errors import error_number
from penstock.broker.peers import PeerBatches
from penstock.client.errors import MalformedResponse, broker_error

if TYPE_CHECKING:
    from penstock.broker.coordination.transaction_coordinator import TransactionCoordinator
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.peers import Peers
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
    """Client that verifies and extends transactions at their coordinators, on the event loop."""

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
        try:
            if owner_of(self._cluster.image, transactional_id).broker_id != self._node_id:
                return None
            response = self._coordinator.verify(
                VerifyPartitions(
                    transactional_id=transactional_id,
                    producer=ProducerIdentity(producer_id, producer_epoch),
                    partitions=frozenset(partitions),
                )
            )
        except PenstockError as error:
            return [error] * len(partitions)
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
    """Return an error or None for each partition, from the local coordinator's response."""
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
    """Return the checks of the next request, and the checks left over.

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
