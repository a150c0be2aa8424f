"""Administrative calls for transactional ids: list, describe, abort.

Source: KIP-664; KIP-360 for abort, which registers a new producer with the id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from msgspec import Struct

from penstock.client.arguments import text
from penstock.client.errors import InvalidArgument, broker_error, is_retriable
from penstock.client.session import TRANSACTION, Session

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
        start_ms = _milliseconds(response.transaction_start_time)
        return TransactionDescription(
            transactional_id=transactional_id,
            state=str(response.transaction_state),
            producer_id=int(response.producer_id),
            producer_epoch=int(response.producer_epoch),
            timeout_ms=_milliseconds(response.transaction_timeout) or 0,
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


def _milliseconds(value: Any) -> int | None:
    """Return a time or duration of a response in milliseconds; None if it is negative."""
    if isinstance(value, datetime):
        value -= datetime.fromtimestamp(0, value.tzinfo)
    found = value // timedelta(milliseconds=1)
    return None if found < 0 else int(found)
