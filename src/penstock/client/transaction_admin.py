"""Transactional ids from the outside: list, describe, abort.

Source: KIP-664; KIP-360 for what an abort is: somebody else begins with the id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from penstock.client.arguments import text
from penstock.client.errors import InvalidArgument, broker_error, is_retriable
from penstock.client.session import TRANSACTION, Session

STATES: Final = (
    "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead",
    "PrepareEpochFence",
)  # fmt: skip
"""Kafka's names of the states of transactions."""
ABORT_TIMEOUT_MS: Final = 60_000
"""`transaction.timeout.ms` of who begins with an id in order to abort: it writes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionListing:
    """A transactional id as lists show it."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionDescription:
    """A transactional id, its producer and its newest transaction.

    `start_ms` is when that began, None if there has been none. `partitions` are open, or lack the
    marker of its end.
    """

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int | None
    partitions: tuple[tuple[str, int], ...] = ()


class TransactionCalls:
    """The part of `Client` that is about transactional ids."""

    _session: Session

    def list_transactions(
        self, states: Iterable[str] = (), *, running_ms: int = -1
    ) -> list[TransactionListing]:
        """Return the transactional ids of all brokers, by id.

        `states` and `running_ms` choose those in some states, by names in any case, and those whose
        newest transaction began longer ago.

        Raises:
            InvalidArgument: there is no such state.
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
                for one in response.transaction_states:
                    found[str(one.transactional_id)] = TransactionListing(
                        transactional_id=str(one.transactional_id),
                        producer_id=int(one.producer_id),
                        state=str(one.transaction_state),
                        coordinator=node.node_id,
                    )
            return [found[name] for name in sorted(found)]

        return self._session.retrying(once)

    def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """One transactional id.

        Raises:
            BrokerRefused: there is none of this name.
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
        """Abort what is open under an id, and fence its producer.

        Raises:
            BrokerRefused: there is none of this name.
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
    """A time or a duration of an answer; None for a time that is none."""
    if isinstance(value, datetime):
        value -= datetime.fromtimestamp(0, value.tzinfo)
    found = value // timedelta(milliseconds=1)
    return None if found < 0 else int(found)
