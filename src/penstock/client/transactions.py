"""Transactional producer: writes to any number of topics are committed together, or not at all.

    with producer.transaction():
        producer.write_arrow("totals", table)
        producer.send_offsets("summing", {("orders", 0): 1200})

A write or a commit of offsets adds its partition or group to the transaction (KIP-890), without an
earlier request. The end of a transaction starts a new epoch, which fences late requests of the
transaction.

| state   | meaning                                      | possible calls                     |
|---------|----------------------------------------------|------------------------------------|
| idle    | no transaction is open                       | begin                              |
| open    | a transaction is open                        | write, send offsets, commit, abort |
| failed  | a write or offset was rejected               | abort                              |
| unknown | the last commit or abort got no response     | begin; the coordinator ends it     |
| fenced  | another producer has the id                  | none                               |

Source: Kafka's `TransactionManager`; KIP-98, KIP-447, KIP-890.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import Struct

from penstock.base.errors import PenstockError
from penstock.base.extras import check_installed
from penstock.base.settings import LONG_MAX
from penstock.client import errors
from penstock.client.arguments import text, topic_partition, whole
from penstock.client.errors import InvalidArgument, broker_error, is_retriable
from penstock.client.groups import Committed
from penstock.client.producers import ProducerIdentity
from penstock.client.protocol import TopicAndPartition
from penstock.client.session import GROUP, TRANSACTION, Session

if TYPE_CHECKING:
    from penstock.client.produce import Batch
    from penstock.client.writer import Progress, WriteReport

_FENCED: Final = frozenset({"producer_fenced", "invalid_producer_epoch"})

T = TypeVar("T")


class _State(Enum):
    """State of a transactional producer; its value is used in error messages."""

    IDLE = "no transaction is open"
    OPEN = "a transaction is open"
    FAILED = "a write or a commit of offsets failed, so the transaction can only be aborted"
    UNKNOWN = "the outcome of the last transaction is unknown"
    FENCED = "another producer now has the transactional id"


class TransactionalProducer:
    """Producer of transactions, for one thread; created by `Client.transactional`."""

    def __init__(self, session: Session, transactional_id: str, timeout_ms: int) -> None:
        self._session = session
        self._id = transactional_id
        self._timeout_ms = timeout_ms
        self._state = _State.UNKNOWN
        self._identity = ProducerIdentity()
        self._joined = False
        """Whether the open transaction may contain writes or offsets."""

    def lend(self) -> ProducerIdentity:
        """Return the producer identity, so that other writers add batches to the open transaction.

        Raises:
            InvalidArgument: no transaction is open.
        """
        self._expect("write", _State.OPEN)
        self._joined = True
        return self._identity

    def begin(self) -> None:
        """Open a transaction; the first one fences earlier producers and aborts their transaction.

        Raises:
            InvalidArgument: a transaction is already open, or another producer has the id.
            PenstockError: the coordinator returned an error.
        """
        self._expect("begin", _State.IDLE, _State.UNKNOWN)
        if self._state is _State.UNKNOWN:
            self._identity = self._session.retrying(self._ask_identity)
        self._state, self._joined = _State.OPEN, False

    def write_arrow(
        self,
        topic: str,
        data: Any,
        *,
        key: str | None = "key",
        value: str = "value",
        timestamp: str | None = "timestamp",
        headers: str | None = "headers",
        partition: int | str | None = None,
        codec: str = "none",
        level: int | None = None,
        max_in_flight: int = errors.IN_FLIGHT_MAX,
        batch_bytes: int = errors.BATCH_BYTES,
        progress: Progress | None = None,
    ) -> WriteReport:
        """Write a table as part of the open transaction, as `Client.write_arrow` does.

        Raises:
            InvalidArgument: options are invalid; the transaction is unchanged.
            PenstockError: the write was rejected, or columns are invalid; the transaction must be
                aborted.
        """
        check_installed("client")
        from penstock.client.writer import write_options, write_table

        self._expect("write", _State.OPEN)
        options = write_options(
            codec=codec,
            level=level,
            partition=partition,
            max_in_flight=max_in_flight,
            batch_bytes=batch_bytes,
        )
        with self._part():
            return write_table(
                self._session,
                topic,
                data,
                self._identity,
                options,
                key=key,
                value=value,
                timestamp=timestamp,
                headers=headers,
                partition=partition if isinstance(partition, str) else None,
                progress=progress,
            )

    def write_batches(
        self, topic: str, groups: Callable[[ProducerIdentity], Iterable[Iterable[Batch]]]
    ) -> WriteReport:
        """Write encoded batches as part of the open transaction.

        `groups` returns the batches; their headers must have the given identity and its sequences.

        Raises:
            InvalidArgument: no transaction is open.
            PenstockError: the write was rejected; the transaction must be aborted.
        """
        from penstock.client.writer import WriteOptions, Writer

        self._expect("write", _State.OPEN)
        with self._part():
            writer = Writer(self._session, topic, self._identity, WriteOptions())
            return writer.write_batches(groups(self._identity))

    def send_offsets(
        self,
        group: str,
        offsets: Mapping[TopicAndPartition, int | Committed],
        *,
        generation: int = -1,
        member_id: str = "",
        instance_id: str | None = None,
    ) -> None:
        """Commit a group's offsets as part of the open transaction.

        A member of a consumer group passes its id and generation. The coordinator then rejects the
        offsets of a member that was replaced (KIP-447).

        Raises:
            InvalidArgument: an argument is invalid; the transaction is unchanged.
            PenstockError: the coordinator returned an error; the transaction must be aborted.
        """
        self._expect("send offsets", _State.OPEN)
        body = {
            "transactional_id": self._id,
            "group_id": text("group", group),
            "producer_id": self._identity.producer_id,
            "producer_epoch": self._identity.epoch,
            "generation_id": generation,
            "member_id": member_id,
            "group_instance_id": instance_id,
            "topics": _topics(offsets),
        }

        def read(response: Any) -> None:
            for topic in response.topics:
                for item in topic.partitions:
                    subject = f"offset of group {group!r} in {topic.name}-{item.partition_index}"
                    self._check(int(item.error_code), subject, group, GROUP)

        with self._part():
            self._coordinated(group, GROUP, "TxnOffsetCommit", body, read)

    def commit(self) -> None:
        """Commit the transaction; return when it is committed.

        Raises:
            InvalidArgument: no transaction is open, or a part of it failed.
            PenstockError: the coordinator returned an error. Without a response the outcome is
                unknown.
        """
        self._expect("commit", _State.OPEN)
        self._end(committed=True)

    def abort(self) -> None:
        """Abort the transaction; raise the errors of `commit`."""
        self._expect("abort", _State.OPEN, _State.FAILED)
        self._end(committed=False)

    @contextmanager
    def transaction(self) -> Iterator[TransactionalProducer]:
        """Run a block in a transaction, which is committed at the end, or aborted if the block
        raises.
        """
        self.begin()
        try:
            yield self
        except BaseException as error:
            try:
                self.abort()
            except PenstockError as failure:
                error.add_note(f"the transaction was not aborted: {failure}")
            raise
        self.commit()

    # Calls

    def _expect(self, what: str, *states: _State) -> None:
        if self._state not in states:
            raise InvalidArgument(f"cannot {what} by {self._id!r}: {self._state.value}")

    @contextmanager
    def _part(self) -> Iterator[None]:
        self._joined = True
        try:
            yield
        except BaseException:
            self._state = _State.FAILED
            raise

    def _ask_identity(self) -> ProducerIdentity:
        body = {
            "transactional_id": self._id,
            "transaction_timeout": self._timeout_ms,
            "producer_id": -1,
            "producer_epoch": -1,
        }
        return self._ask("InitProducerId", body)

    def _end(self, *, committed: bool) -> None:
        if not self._joined:
            self._state = _State.IDLE
            return
        body = {
            "transactional_id": self._id,
            "producer_id": self._identity.producer_id,
            "producer_epoch": self._identity.epoch,
            "committed": committed,
        }
        self._state = _State.UNKNOWN
        try:
            self._identity = self._session.retrying(lambda: self._ask("EndTxn", body))
        except PenstockError as error:
            if error.code in _FENCED:
                self._state = _State.FENCED
            raise
        self._state = _State.IDLE

    def _ask(self, name: str, body: Mapping[str, Any]) -> ProducerIdentity:
        response = self._session.call_coordinator(self._id, name, body, TRANSACTION)
        self._check(
            int(response.error_code), f"transactional id {self._id!r}", self._id, TRANSACTION
        )
        return ProducerIdentity(int(response.producer_id), int(response.producer_epoch), self._id)

    def _coordinated(
        self, key: str, kind: int, name: str, body: Mapping[str, Any], read: Callable[[Any], T]
    ) -> T:
        return self._session.retrying(
            lambda: read(self._session.call_coordinator(key, name, body, kind))
        )

    def _check(self, code: int, subject: str, key: str, kind: int) -> None:
        if code:
            if is_retriable(code):
                self._session.forget_coordinator(key, kind)
            raise broker_error(code, subject)


def _topics(offsets: Mapping[TopicAndPartition, int | Committed]) -> list[dict[str, Any]]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for key in sorted(map(topic_partition, offsets)):
        given = offsets[key]
        committed = given if isinstance(given, Committed) else Committed(offset=given)
        topics.setdefault(key[0], []).append(
            {
                "partition_index": key[1],
                "committed_offset": whole(
                    f"offset of {key[0]}-{key[1]}", committed.offset, 0, LONG_MAX
                ),
                "committed_leader_epoch": committed.leader_epoch,
                "committed_metadata": committed.metadata,
            }
        )
    return [{"name": name, "partitions": partitions} for name, partitions in topics.items()]


# Administrative calls for transactional ids: list, describe, abort.
#
# Source: KIP-664; KIP-360 for abort, which registers a new producer with the id.


STATES: Final = (
    "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead",
    "PrepareEpochFence",
)  # fmt: skip
"""Kafka's names of transaction states."""
ABORT_TIMEOUT_MS: Final = 60_000
"""`transaction.timeout.ms` of the producer that aborts a transaction; it writes nothing."""


class TransactionListing(Struct, frozen=True, kw_only=True):
    transactional_id: str
    producer_id: int
    state: str
    coordinator: int


class TransactionDescription(Struct, frozen=True, kw_only=True):
    """Transactional id with its producer and its latest transaction.

    `start_ms` is the start of the transaction, None if there was none. `partitions` are those of an
    open transaction, and those that have no end marker yet.
    """

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int | None
    partitions: tuple[tuple[str, int], ...] = ()


class TransactionCalls:
    _session: Session

    def list_transactions(
        self, states: Iterable[str] = (), *, running_ms: int = -1
    ) -> list[TransactionListing]:
        """Return the transactional ids of all brokers, sorted by id.

        `states` selects by names of states in upper or lower case. `running_ms` selects by the
        minimum age of the latest transaction.

        Raises:
            InvalidArgument: a state is unknown.
        """
        body = {
            "state_filters": tuple(map(_state, states)),
            "producer_id_filters": (),
            "duration_filter": running_ms,
        }

        def once() -> list[TransactionListing]:
            found: dict[str, TransactionListing] = {}
            for node in self._session.nodes():
                response = self._session.call_address(
                    (node.host, node.port), "ListTransactions", body
                )
                where = f"transactions of broker {node.node_id}"
                _check(int(response.error_code), where)
                for state in response.transaction_states:
                    found[str(state.transactional_id)] = TransactionListing(
                        transactional_id=str(state.transactional_id),
                        producer_id=int(state.producer_id),
                        state=str(state.transaction_state),
                        coordinator=node.node_id,
                    )
            return [found[name] for name in sorted(found)]

        return self._session.retrying(once)

    def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """Return the description of a transactional id.

        Raises:
            BrokerRefused: the id does not exist.
        """
        response = self._transactional(
            transactional_id, "DescribeTransactions", {"transactional_ids": [transactional_id]}
        )
        start_ms = milliseconds(response.transaction_start_time)
        return TransactionDescription(
            transactional_id=transactional_id,
            state=str(response.transaction_state),
            producer_id=int(response.producer_id),
            producer_epoch=int(response.producer_epoch),
            timeout_ms=milliseconds(response.transaction_timeout) or 0,
            start_ms=start_ms,
            partitions=tuple(
                (str(topic.topic), int(partition))
                for topic in response.topics
                for partition in topic.partitions
            ),
        )

    def abort_transaction(self, transactional_id: str) -> TransactionDescription:
        """Abort the open transaction of an id, and fence its producer.

        Raises:
            BrokerRefused: the id does not exist.
        """
        self.describe_transaction(transactional_id)
        body = {
            "transactional_id": transactional_id,
            "transaction_timeout": ABORT_TIMEOUT_MS,
            "producer_id": -1,
            "producer_epoch": -1,
        }
        self._transactional(transactional_id, "InitProducerId", body)
        return self.describe_transaction(transactional_id)

    def abort_open(self, topic: str) -> None:
        """Abort all open transactions in a topic by markers.

        Use this only for transactions that no coordinator of the cluster knows. A producer that is
        still running is not fenced: its later writes are not part of a transaction.

        Raises:
            PenstockError: a leader does not respond or rejects a marker.
        """
        session = self._session
        partitions = [row.index for row in session.topic(topic).partitions]
        for node_id, led in session.leaders_of(topic, partitions).items():
            body = {"topics": [{"name": topic, "partition_indexes": led}]}
            answer = session.call_node(node_id, "DescribeProducers", body)
            markers = []
            for found in answer.topics[0].partitions:
                if found.error_code:
                    where = f"producers of {topic}-{found.partition_index}"
                    raise broker_error(int(found.error_code), where, found.error_message)
                markers += [
                    {
                        "producer_id": int(producer.producer_id),
                        "producer_epoch": int(producer.producer_epoch),
                        "transaction_result": False,
                        "topics": [
                            {"name": topic, "partition_indexes": [int(found.partition_index)]}
                        ],
                        "coordinator_epoch": max(0, int(producer.coordinator_epoch)),
                    }
                    for producer in found.active_producers
                    if int(producer.current_txn_start_offset) >= 0
                ]
            if markers:
                answer = session.call_node(node_id, "WriteTxnMarkers", {"markers": markers})
                for marker in answer.markers:
                    for item in (item for row in marker.topics for item in row.partitions):
                        if item.error_code:
                            where = f"abort marker of producer {marker.producer_id} in {topic}"
                            raise broker_error(int(item.error_code), where)

    def _transactional(self, transactional_id: str, name: str, body: Mapping[str, Any]) -> Any:
        text("transactional id", transactional_id)

        def once() -> Any:
            answer = self._session.call_coordinator(transactional_id, name, body, TRANSACTION)
            found = answer.transaction_states[0] if name == "DescribeTransactions" else answer
            code = int(found.error_code)
            if is_retriable(code):
                self._session.forget_coordinator(transactional_id, TRANSACTION)
            _check(code, f"transactional id {transactional_id!r}")
            return found

        return self._session.retrying(once)


def _state(name: str) -> str:
    for known in STATES:
        if known.lower() == name.lower():
            return known
    raise InvalidArgument(
        f"transaction state {name!r} does not exist; the states are {', '.join(STATES)}"
    )


def _check(code: int, subject: str) -> None:
    if code:
        raise broker_error(code, subject)


def milliseconds(value: Any) -> int | None:
    """Return a time or duration of a response in milliseconds; None if it is negative."""
    if isinstance(value, datetime):
        value -= datetime.fromtimestamp(0, value.tzinfo)
    found = value // timedelta(milliseconds=1)
    return None if found < 0 else int(found)
