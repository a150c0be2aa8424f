"""InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, DescribeTransactions, and
ListTransactions.

InitProducerId without a transactional id always returns a new producer id, even if the producer
sends its old one. With a transactional id the transaction coordinator handles it.

AddPartitionsToTxn has two uses. Producers send versions 0 to 3, for one transaction. Brokers send
later versions, for several transactions, to add or verify partitions. Versions of a request that do
not include PRODUCER_FENCED get INVALID_PRODUCER_EPOCH instead.

Source: KIP-98, KIP-360, KIP-588 (PRODUCER_FENCED), KIP-664 (describe, list), KIP-679 (who may be
idempotent), KIP-890, KIP-994, KIP-1152 (pattern of ListTransactions).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from msgspec import Struct

from penstock.base.errors import BugError, InvalidError, PenstockError
from penstock.base.ids import TopicPartition
from penstock.broker.groups.runtime.core import Refused
from penstock.broker.groups.runtime.saving import CoordinatorNotAvailable
from penstock.broker.net.errors import BadRequest, UnknownTopicOrPartition, error_number, error_of
from penstock.broker.transactions import (
    PEER_WAIT_MS,
    Added,
    AddToTransaction,
    DescribedTransaction,
    DescribeTransaction,
    Ended,
    EndTransaction,
    Initialised,
    InitProducerId,
    ListedTransactions,
    ListTransactions,
    ProducerIdentity,
    Verified,
    VerifyPartitions,
)
from penstock.broker.transactions.link import by_topic, refused_error
from penstock.records.transactions import Marker
from penstock.security import CLUSTER
from penstock.wire.kafka.framing import milliseconds

if TYPE_CHECKING:
    from penstock.base.system import Clock
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.net.connection import RequestContext
    from penstock.broker.partitions.registry import PartitionRegistry
    from penstock.broker.transactions.coordinator import ProducerIds, TransactionCoordinator
    from penstock.records.appends import Outcome
    from penstock.security import Rights


logger = logging.getLogger(__name__)

LOOK_FOR_TOPICS_SECONDS: Final = 1.0
"""Longest time that AddPartitionsToTxn waits for a metadata image with an unknown topic."""

FENCED: Final = "producer_fenced"
OLD_EPOCH: Final = "invalid_producer_epoch"
INIT_FENCED_FROM: Final = 4
"""First version of InitProducerId with PRODUCER_FENCED."""
FENCED_FROM: Final = 2
"""First version of AddPartitionsToTxn, AddOffsetsToTxn and EndTxn with PRODUCER_FENCED."""
BATCHED_FROM: Final = 4
"""First version of AddPartitionsToTxn for several transactions."""
RAISES_EPOCH_FROM: Final = 5
"""First version of EndTxn for transaction version 2, which raises the producer epoch."""

Entry = dict[str, Any]
_ADD_SOON: Final = partial(AddToTransaction, wait_ms=PEER_WAIT_MS)


class Transactions(Struct, frozen=True, kw_only=True):
    cluster: ClusterMetadata
    producer_ids: ProducerIds
    transactions: TransactionCoordinator

    # -- a producer -----------------------------------------------------------------------------

    async def init_producer_id(self, context: RequestContext, request: Any) -> dict[str, Any]:
        """Return a new producer id with epoch 0, or the id and epoch of a transactional id."""
        _authorise(context, request.transactional_id)
        if request.transactional_id is None:
            return {"producer_id": await self.producer_ids.next(), "producer_epoch": 0}
        if not request.transactional_id:
            raise BadRequest(
                "the transactional id must not be empty; it must be null for a producer without"
                " transactions"
            )
        response = await self.transactions.call(
            InitProducerId(
                transactional_id=request.transactional_id,
                timeout_ms=milliseconds(request.transaction_timeout),
                producer=ProducerIdentity(
                    int(getattr(request, "producer_id", -1)),
                    int(getattr(request, "producer_epoch", -1)),
                ),
            )
        )
        if isinstance(response, Refused):
            logger.info("%s", response.message)
        return identity_answer(response, context.version, INIT_FENCED_FROM)

    # -- a transaction --------------------------------------------------------------------------

    async def add_partitions_to_txn(self, context: RequestContext, request: Any) -> Entry:
        if context.version >= BATCHED_FROM:
            results = await asyncio.gather(
                *[
                    self._added_by_broker(context.version, transaction)
                    for transaction in request.transactions
                ]
            )
            return {"results_by_transaction": results}
        producer = ProducerIdentity(
            int(request.v3_and_below_producer_id), int(request.v3_and_below_producer_epoch)
        )
        partitions = _partitions(request.v3_and_below_topics)
        refused = {
            partition: context.refusal("write", "topic", partition.topic).code
            for partition in partitions
            if not context.rights.allows("write", "topic", partition.topic)
        }
        if refused:
            return {"results_by_topic_v3_and_below": _refused(partitions, refused)}
        return {
            "results_by_topic_v3_and_below": await self._added(
                context.version,
                request.v3_and_below_transactional_id,
                producer,
                partitions,
                kind=AddToTransaction,
            )
        }

    async def _added_by_broker(self, version: int, transaction: Any) -> Entry:
        partitions, producer = _partitions(transaction.topics), _identity(transaction)
        kind = VerifyPartitions if transaction.verify_only else _ADD_SOON
        return {
            "transactional_id": transaction.transactional_id,
            "topic_results": await self._added(
                version, transaction.transactional_id, producer, partitions, kind=kind
            ),
        }

    async def _added(
        self,
        version: int,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Sequence[TopicPartition],
        *,
        kind: Callable[..., AddToTransaction | VerifyPartitions],
    ) -> list[Entry]:
        """Add or verify the partitions of one transaction, and return the result of each.

        `kind` is the class of the coordinator's event. Either all partitions are added or none.
        """
        unknown = await self._unknown(partitions)
        if unknown:
            return _refused(partitions, dict.fromkeys(unknown, UnknownTopicOrPartition.code))
        try:
            response = await self.transactions.call(
                kind(
                    transactional_id=transactional_id,
                    producer=producer,
                    partitions=frozenset(partitions),
                )
            )
        except PenstockError as error:
            number, _ = error_of(error)
            return _results(dict.fromkeys(partitions, number))
        if isinstance(response, Refused):
            code = known_code(response.error, version, FENCED_FROM)
            return _results(dict.fromkeys(partitions, code))
        if isinstance(response, Added):
            return _results(dict.fromkeys(partitions, 0))
        if not isinstance(response, Verified):
            raise unexpected(response)
        abortable = error_number("transaction_abortable")
        return _results(
            {
                partition: abortable if partition in response.missing else 0
                for partition in partitions
            }
        )

    async def _unknown(self, partitions: Sequence[TopicPartition]) -> set[TopicPartition]:
        unknown = self._missing(partitions)
        if unknown:
            await self.cluster.look(LOOK_FOR_TOPICS_SECONDS)
            unknown = self._missing(partitions)
        return unknown

    def _missing(self, partitions: Sequence[TopicPartition]) -> set[TopicPartition]:
        topics = self.cluster.image.topics
        return {
            partition
            for partition in partitions
            if partition.topic not in topics
            or not 0 <= partition.partition < len(topics[partition.topic].partitions)
        }

    async def add_offsets_to_txn(self, context: RequestContext, request: Any) -> Entry:
        response = await self.transactions.call(
            AddToTransaction(
                transactional_id=request.transactional_id,
                producer=_identity(request),
                groups=frozenset({request.group_id}),
            )
        )
        if isinstance(response, Refused):
            return {"error_code": known_code(response.error, context.version, FENCED_FROM)}
        if not isinstance(response, Added):
            raise unexpected(response)
        return {}

    async def end_txn(self, context: RequestContext, request: Any) -> Entry:
        response = await self.transactions.call(
            EndTransaction(
                transactional_id=request.transactional_id,
                producer=_identity(request),
                commit=request.committed,
                raises_epoch=context.version >= RAISES_EPOCH_FROM,
            )
        )
        return identity_answer(response, context.version, FENCED_FROM)

    # -- administration -------------------------------------------------------------------------

    async def describe_transactions(self, context: RequestContext, request: Any) -> Entry:
        return {
            "transaction_states": [
                await self._described(context.rights, transactional_id)
                for transactional_id in request.transactional_ids
            ]
        }

    async def _described(self, rights: Rights, transactional_id: str) -> Entry:
        nothing = {
            "transactional_id": transactional_id,
            "transaction_state": "",
            "transaction_timeout": 0,
            "transaction_start_time": 0,
            "producer_id": -1,
            "producer_epoch": -1,
            "topics": (),
        }
        try:
            response = await self.transactions.call(
                DescribeTransaction(transactional_id=transactional_id)
            )
            if isinstance(response, Refused):
                raise refused_error(response)
            if not isinstance(response, DescribedTransaction):
                raise unexpected(response)
        except PenstockError as error:
            number, _ = error_of(error)
            return {**nothing, "error_code": number}
        known = response.metadata
        return {
            "transactional_id": transactional_id,
            "transaction_state": known.state.value,
            "transaction_timeout": known.timeout_ms,
            "transaction_start_time": known.start_ms,
            "producer_id": known.producer.producer_id,
            "producer_epoch": known.producer.producer_epoch,
            "topics": [
                {"topic": name, "partitions": indexes}
                for name, indexes in by_topic(sorted(response.unmarked)).items()
                if rights.allows("describe", "topic", name)
            ],
        }

    async def list_transactions(self, context: RequestContext, request: Any) -> Entry:
        matches = _pattern(getattr(request, "transactional_id_pattern", None))
        response = await self.transactions.list(
            ListTransactions(
                states=tuple(request.state_filters),
                producer_ids=frozenset(map(int, request.producer_id_filters)),
                running_ms=int(getattr(request, "duration_filter", -1)),
            )
        )
        if not isinstance(response, ListedTransactions):
            raise unexpected(response)
        return {
            "unknown_state_filters": response.unknown_states,
            "transaction_states": [
                {
                    "transactional_id": transaction.transactional_id,
                    "producer_id": transaction.producer_id,
                    "transaction_state": transaction.state,
                }
                for transaction in response.transactions
                if matches is None or matches(transaction.transactional_id)
            ],
        }


class InvalidPattern(InvalidError):
    """Pattern of transactional ids that is not a valid regular expression."""

    code: ClassVar[str] = "invalid_regular_expression"


def _pattern(text: str | None) -> Callable[[str], bool] | None:
    """Return the filter of a pattern in RE2's syntax, which matches whole transactional ids."""
    if not text:
        return None
    from penstock.broker.groups.runtime.topic_regex import InvalidRegex, compile_regex

    try:
        return compile_regex(text)
    except InvalidRegex as error:
        raise InvalidPattern(f"transactional id pattern {text!r:.200}: {error}") from None


def _identity(request: Any) -> ProducerIdentity:
    return ProducerIdentity(int(request.producer_id), int(request.producer_epoch))


def known_code(error: str, version: int, known_from: int) -> int:
    """Return the number of an error; PRODUCER_FENCED as INVALID_PRODUCER_EPOCH in old versions."""
    return error_number(OLD_EPOCH if error == FENCED and version < known_from else error)


def unexpected(response: object) -> PenstockError:
    """Return the error for a response of the core that the caller cannot represent."""
    if isinstance(response, Refused):
        return CoordinatorNotAvailable(response.message)
    return BugError(f"the transaction core returned an unexpected {type(response).__name__}")


def identity_answer(response: Any, version: int, known_from: int) -> Entry:
    """Return the response fields of a producer's new id and epoch, or of an error."""
    if isinstance(response, Refused):
        return {
            "error_code": known_code(response.error, version, known_from),
            "producer_id": -1,
            "producer_epoch": -1,
        }
    if not isinstance(response, (Initialised, Ended)):
        raise unexpected(response)
    producer = response.producer
    return {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}


def _partitions(topics: Sequence[Any]) -> list[TopicPartition]:
    return [
        TopicPartition(topic.name, int(index)) for topic in topics for index in topic.partitions
    ]


def _refused(
    partitions: Sequence[TopicPartition], errors: Mapping[TopicPartition, str]
) -> list[Entry]:
    """Return the results if some partitions have errors, and so none was added."""
    others = "operation_not_attempted"
    return _results(
        {partition: error_number(errors.get(partition, others)) for partition in partitions}
    )


def _results(codes: Mapping[TopicPartition, int]) -> list[Entry]:
    return [
        {
            "name": name,
            "results_by_partition": [
                {
                    "partition_index": index,
                    "partition_error_code": codes[TopicPartition(name, index)],
                }
                for index in indexes
            ],
        }
        for name, indexes in by_topic(codes).items()
    ]


def _authorise(context: RequestContext, transactional_id: str | None) -> None:
    """Check the permissions for InitProducerId.

    Without a transactional id a producer needs write on at least one topic, or idempotent_write on
    the cluster.
    """
    rights = context.rights
    if transactional_id is None:
        if not (
            rights.allows("idempotent_write", "cluster", CLUSTER)
            or rights.allows_some("write", "topic")
        ):
            raise context.refusal("idempotent_write", "cluster", CLUSTER)
    else:
        context.authorise("write", "transactional_id", transactional_id)


# WriteTxnMarkers: writes the transaction markers of a coordinator to partitions of this broker.
#
# The response is sent when the markers are durable.
#
# Source: KIP-98, KIP-1228 (version 2: transaction version of a marker).


class Markers(Struct, frozen=True, kw_only=True):
    clock: Clock
    partitions: PartitionRegistry

    async def write_txn_markers(self, context: RequestContext, request: Any) -> Entry:
        written = [
            (
                int(marker.producer_id),
                [
                    (topic.name, [(i, self._write(marker, topic.name, i)) for i in _indexes(topic)])
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
        return {
            "markers": [
                {
                    "producer_id": producer_id,
                    "topics": [
                        {
                            "name": name,
                            "partitions": [
                                {"partition_index": index, "error_code": _code(await outcome)}
                                for index, outcome in partitions
                            ],
                        }
                        for name, partitions in topics
                    ],
                }
                for producer_id, topics in written
            ]
        }

    def _write(self, request: Any, topic: str, index: int) -> asyncio.Future[Outcome]:
        outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        marker = Marker(
            int(request.producer_id),
            int(request.producer_epoch),
            int(request.coordinator_epoch),
            bool(request.transaction_result),
            max(1, int(getattr(request, "transaction_version", 1))),
        )
        try:
            self.partitions.partition(topic, index).write_marker(
                marker, now_ms=self.clock.now_ms(), done=partial(_complete, outcome)
            )
        except PenstockError as error:
            outcome.set_result(error)
        return outcome


def _indexes(topic: Any) -> list[int]:
    return [int(index) for index in topic.partition_indexes]


def _complete(outcome: asyncio.Future[Outcome], result: Outcome) -> None:
    if not outcome.done():
        outcome.set_result(result)


def _code(outcome: Outcome) -> int:
    return error_of(outcome)[0] if isinstance(outcome, PenstockError) else 0
