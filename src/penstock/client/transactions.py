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

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import Any, Final, TypeVar

from penstock.base.errors import PenstockError
from penstock.base.settings import LONG_MAX
from penstock.client import limits
from penstock.client.arguments import text, topic_partition, whole
from penstock.client.errors import InvalidArgument, broker_error, is_retriable
from penstock.client.groups import Committed
from penstock.client.metadata import TopicAndPartition
from penstock.client.producers import ProducerIdentity
from penstock.client.session import GROUP, TRANSACTION, Session
from penstock.client.writer import Progress, WriteReport, write_options, write_table

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
        max_in_flight: int = limits.IN_FLIGHT_MAX,
        batch_bytes: int = limits.BATCH_BYTES,
        progress: Progress | None = None,
    ) -> WriteReport:
        """Write a table as part of the open transaction, as `Client.write_arrow` does.

        Raises:
            InvalidArgument: options are invalid; the transaction is unchanged.
            PenstockError: the write was rejected, or columns are invalid; the transaction must be
                aborted.
        """
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
