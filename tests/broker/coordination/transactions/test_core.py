"""Core of transactions: responses after saves, waiting, fencing, time, takeover."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from penstock.base.errors import CorruptError
from penstock.base.ids import TopicPartition
from penstock.broker.groups.runtime.core import (
    Effect,
    Refused,
    Reply,
    Save,
    Saved,
    SaveFailed,
    Stored,
    Tick,
)
from penstock.broker.transactions import (
    NO_PRODUCER,
    Added,
    AddToTransaction,
    DescribedTransaction,
    DescribeTransaction,
    Ended,
    EndTransaction,
    Initialised,
    InitProducerId,
    LeaveMarkers,
    ListedTransactions,
    ListTransactions,
    MarkersWritten,
    ProducerIdentity,
    ProducerIdNeeded,
    TransactionLimits,
    Transactions,
    TransactionState,
    Verified,
    VerifyPartitions,
    WriteMarkers,
)
from penstock.broker.transactions.core import SAVE_RETRY_MS
from penstock.broker.transactions.events import WAIT_MS
from penstock.broker.transactions.rules import COMPLETION_LINGER_MS

ID = "payments"
P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


class Driver:
    """A core, its stored rows and its responses; saves succeed at once unless `holding`."""

    def __init__(self, **limits: int) -> None:
        self.limits = TransactionLimits(**limits)
        self.core = Transactions(self.limits)
        self.stored: dict[str, bytes] = {}
        self.settled: list[str] = []
        self.answers: dict[int, Any] = {}
        self.markers: list[WriteMarkers] = []
        self.left: list[str] = []
        self.held: list[Save] = []
        self.holding = False
        self.now_ms = 1_000_000
        self.next_id = 100
        self._token = 0

    def ask(self, event: Any) -> Any:
        """Return the response, with a new producer id where needed; None while it waits."""
        self._token += 1
        token = self._token
        self.perform(self.core.handle(event, self.now_ms, token))
        answer = self.answers.get(token)
        if isinstance(answer, ProducerIdNeeded):
            self.next_id += 1
            return self.ask(replace(event, fresh_producer_id=self.next_id))
        return answer

    def tell(self, event: Any) -> None:
        self.perform(self.core.handle(event, self.now_ms))

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Reply):
                assert effect.token not in self.answers, "answered twice"
                self.answers[effect.token] = effect.response
            elif isinstance(effect, WriteMarkers):
                self.markers.append(effect)
            elif isinstance(effect, LeaveMarkers):
                self.left.append(effect.transactional_id)
            else:
                assert isinstance(effect, Save)
                self.held.append(effect)
        while self.held and not self.holding:
            self.store()

    def store(self) -> None:
        save = self.held.pop(0)
        self.stored = dict(save.rows)
        if save.completes_offsets:
            self.settled.append(save.completes_offsets)
        self.tell(Saved(key=save.key))

    def fail(self) -> None:
        self.tell(SaveFailed(key=self.held.pop(0).key, reason="no disk"))

    def after(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        self.tell(Tick())

    def write_markers(self) -> None:
        for marker in self.markers:
            self.marked(marker)
        self.markers.clear()

    def marked(self, marker: WriteMarkers, *partitions: TopicPartition) -> None:
        written = partitions or marker.partitions
        self.tell(MarkersWritten(transactional_id=ID, producer=marker.producer, partitions=written))

    def taken_over(self) -> Driver:
        """Return another broker's core over the stored rows."""
        other = Driver()
        other.limits, other.stored, other.now_ms = self.limits, self.stored, self.now_ms
        other.perform(other.core.load(Stored(key=ID, rows=self.stored), self.now_ms))
        return other

    # Requests

    def init(self, producer: ProducerIdentity = NO_PRODUCER, timeout_ms: int = 60_000) -> Any:
        return self.ask(
            InitProducerId(transactional_id=ID, timeout_ms=timeout_ms, producer=producer)
        )

    def begun(self) -> ProducerIdentity:
        answer = self.init()
        assert isinstance(answer, Initialised)
        return answer.producer

    def add(self, producer: ProducerIdentity, *partitions: TopicPartition, group: str = "") -> Any:
        groups = frozenset({group}) if group else frozenset()
        return self.ask(
            AddToTransaction(
                transactional_id=ID,
                producer=producer,
                partitions=frozenset(partitions),
                groups=groups,
            )
        )

    def end(self, producer: ProducerIdentity, *, commit: bool = True, version: int = 2) -> Any:
        return self.ask(
            EndTransaction(
                transactional_id=ID, producer=producer, commit=commit, raises_epoch=version >= 2
            )
        )

    def state(self) -> TransactionState:
        answer = self.ask(DescribeTransaction(transactional_id=ID))
        assert isinstance(answer, DescribedTransaction)
        return answer.metadata.state


def refused(answer: Any) -> str:
    assert isinstance(answer, Refused), answer
    assert answer.message
    return answer.error


@pytest.fixture
def driver() -> Driver:
    return Driver()


def test_a_transaction_of_version_2(driver: Driver) -> None:
    producer = driver.begun()
    assert driver.add(producer, P0, P1) == Added()
    ended = driver.end(producer)
    assert ended == Ended(producer=producer.raised)
    [marker] = driver.markers
    assert (marker.producer, marker.commit, marker.version) == (producer.raised, True, 2)
    assert marker.partitions == {P0, P1}
    driver.marked(marker, P0)
    assert driver.state() is TransactionState.PREPARE_COMMIT
    driver.marked(marker, P1)
    assert driver.state() is TransactionState.COMPLETE_COMMIT
    assert driver.end(producer) == ended, "a retry"
    assert refused(driver.end(producer, commit=False)) == "invalid_txn_state"


def test_a_transaction_of_version_1_keeps_its_epoch(driver: Driver) -> None:
    producer = driver.begun()
    driver.add(producer, P0)
    assert driver.end(producer, commit=False, version=1) == Ended(producer=producer)
    [marker] = driver.markers
    assert (marker.producer, marker.commit, marker.version) == (producer, False, 1)
    assert driver.end(producer, commit=False, version=1) == Ended(producer=producer), "a retry"
    assert refused(driver.end(producer, version=1)) == "invalid_txn_state"
    driver.write_markers()
    assert driver.add(producer, P1) == Added()


def test_nothing_leaves_before_its_save(driver: Driver) -> None:
    driver.holding = True
    assert driver.init() is None
    driver.store()
    [producer] = [
        answer.producer for answer in driver.answers.values() if isinstance(answer, Initialised)
    ]
    assert driver.add(producer, P0) is None
    driver.store()
    assert driver.end(producer) is None
    assert not driver.markers
    driver.store()
    assert driver.markers


def test_requests_wait_for_a_save_and_are_saved_together(driver: Driver) -> None:
    producer = driver.begun()
    driver.holding = True
    assert driver.add(producer, P0) is None
    assert driver.add(producer, P1) is None
    assert driver.end(producer) is None
    driver.store()
    [save] = driver.held
    assert len(save.rows) == 3, "both partitions, and the end"
    driver.store()
    answers = list(driver.answers.values())[-3:]
    assert answers == [Added(), Added(), Ended(producer=producer.raised)]


def test_the_next_transaction_waits_for_the_markers_of_the_last(driver: Driver) -> None:
    producer = driver.begun()
    driver.add(producer, P0)
    driver.end(producer)
    assert driver.add(producer.raised, P1) is None
    driver.write_markers()
    assert list(driver.answers.values())[-1] == Added()
    assert driver.state() is TransactionState.ONGOING


def test_a_request_that_waits_too_long_gets_concurrent_transactions(driver: Driver) -> None:
    producer = driver.begun()
    driver.add(producer, P0)
    driver.end(producer)
    assert driver.init() is None
    driver.after(WAIT_MS)
    assert refused(list(driver.answers.values())[-1]) == "concurrent_transactions"


def test_another_producer_fences_and_aborts(driver: Driver) -> None:
    first = driver.begun()
    driver.add(first, P0, group="readers")
    assert driver.init() is None
    [marker] = driver.markers
    assert (marker.producer, marker.commit) == (first.raised, False)
    assert driver.settled == ["abort"]
    driver.write_markers()
    assert list(driver.answers.values())[-1] == Initialised(producer=first.raised.raised)
    assert refused(driver.end(first)) == "producer_fenced"
    assert refused(driver.add(first, P0)) == "producer_fenced"
    assert refused(driver.init(first)) == "producer_fenced"


def test_a_producer_returns_as_itself(driver: Driver) -> None:
    first = driver.begun()
    assert driver.init(first) == Initialised(producer=first.raised)
    assert driver.init(first) == Initialised(producer=first.raised), "a retry"
    assert driver.init() == Initialised(producer=first.raised.raised)
    assert refused(driver.init(first)) == "producer_fenced"
    assert refused(driver.init(ProducerIdentity(9, 0))) == "producer_fenced"


def test_a_fenced_producer_does_not_abort_its_successor(driver: Driver) -> None:
    first = driver.begun()
    second = driver.begun()
    driver.add(second, P0)
    assert refused(driver.init(first)) == "producer_fenced"
    assert driver.end(second) == Ended(producer=second.raised)


def test_a_producer_returns_over_its_open_transaction(driver: Driver) -> None:
    first = driver.begun()
    driver.add(first, P0)
    assert driver.init(first) is None
    driver.write_markers()
    assert list(driver.answers.values())[-1] == Initialised(producer=first.raised)


@pytest.mark.parametrize("last", [32_766, 32_767])
def test_epochs_run_out(driver: Driver, last: int) -> None:
    driver.begun()
    row = driver.stored[""].replace(b'"producer":[101,0]', b'"producer":[101,%d]' % last)
    other = Driver()
    other.perform(other.core.load(Stored(key=ID, rows={"": row}), other.now_ms))
    other.next_id = 500
    assert other.begun() == ProducerIdentity(501, 0)


def test_the_end_of_the_last_epoch_gives_a_new_producer_id(driver: Driver) -> None:
    driver.begun()
    row = driver.stored[""].replace(b'"producer":[101,0]', b'"producer":[101,32766]')
    other = Driver()
    other.perform(other.core.load(Stored(key=ID, rows={"": row}), other.now_ms))
    other.next_id = 500
    producer = ProducerIdentity(101, 32_766)
    other.add(producer, P0)
    ended = Ended(producer=ProducerIdentity(501, 0))
    assert other.end(producer) == ended
    assert other.markers[0].producer == ProducerIdentity(101, 32_767)
    assert other.add(ProducerIdentity(501, 0), P1) is None, "waits for the markers"
    other.write_markers()
    assert list(other.answers.values())[-1] == Added()
    other = other.taken_over()
    assert other.end(ProducerIdentity(501, 0)) == Ended(producer=ProducerIdentity(501, 1))


def test_a_complete_transaction_is_saved_with_the_next_one(driver: Driver) -> None:
    producer = driver.begun()
    driver.add(producer, P0)
    driver.end(producer)
    driver.holding = True
    driver.write_markers()
    assert driver.state() is TransactionState.COMPLETE_COMMIT
    assert not driver.held
    driver.add(producer.raised, P1)
    [save] = driver.held
    assert b"Ongoing" in save.rows[""]
    assert [name for name in save.rows if name] == ["partition/orders/1"]


def test_a_complete_transaction_is_saved_after_a_while(driver: Driver) -> None:
    producer = driver.begun()
    driver.add(producer, P0)
    driver.end(producer)
    driver.write_markers()
    driver.after(COMPLETION_LINGER_MS - 1)
    assert driver.taken_over().state() is TransactionState.PREPARE_COMMIT
    driver.after(1)
    assert driver.taken_over().state() is TransactionState.COMPLETE_COMMIT


def test_nothing_to_mark_is_complete_at_once(driver: Driver) -> None:
    producer = driver.begun()
    driver.add(producer, group="readers")
    assert "group/readers" in driver.stored
    assert driver.end(producer) == Ended(producer=producer.raised)
    assert driver.settled == ["commit"]
    assert list(driver.stored) == [""]
    assert driver.state() is TransactionState.COMPLETE_COMMIT
    assert not driver.markers


def test_the_abort_of_nothing_raises_the_epoch(driver: Driver) -> None:
    producer = driver.begun()
    assert refused(driver.end(producer)) == "invalid_txn_state"
    assert refused(driver.end(producer, commit=False, version=1)) == "invalid_txn_state"
    assert driver.end(producer, commit=False) == Ended(producer=producer.raised)
    assert driver.end(producer, commit=False) == Ended(producer=producer.raised), "a retry"
    assert driver.end(producer.raised, commit=False) == Ended(producer=producer.raised.raised)


def test_a_transaction_times_out(driver: Driver) -> None:
    answer = driver.init(timeout_ms=5_000)
    driver.add(answer.producer, P0)
    driver.after(4_000)
    assert driver.state() is TransactionState.ONGOING
    deadline_ms = driver.core.next_deadline_ms()
    assert deadline_ms is not None
    assert deadline_ms % 10_000 == 0, "the interval of looking"
    driver.after(deadline_ms - driver.now_ms)
    assert driver.state() is TransactionState.PREPARE_ABORT
    assert driver.markers[0].producer == answer.producer.raised
    assert refused(driver.end(answer.producer)) == "producer_fenced"
    driver.write_markers()
    assert driver.state() is TransactionState.COMPLETE_ABORT


def test_an_idle_id_expires(driver: Driver) -> None:
    producer = driver.begun()
    driver.after(604_800_000 - 1)
    assert driver.stored
    driver.after(3_600_001)
    assert not driver.stored
    assert not driver.core.keys()
    assert refused(driver.add(producer, P0)) == "invalid_producer_id_mapping"
    assert driver.begun().producer_id != producer.producer_id


def test_a_save_in_doubt_is_tried_until_it_is_durable(driver: Driver) -> None:
    producer = driver.begun()
    driver.add(producer, P0)
    driver.holding = True
    assert driver.end(producer) is None
    driver.fail()
    assert refused(list(driver.answers.values())[-1]) == "coordinator_not_available"
    assert driver.end(producer, commit=False) is None
    driver.after(SAVE_RETRY_MS)
    [save] = driver.held
    assert b"PrepareCommit" in save.rows[""]
    driver.holding = False
    driver.store()
    assert driver.markers[0].commit


def test_a_new_owner_finishes_what_is_prepared(driver: Driver) -> None:
    producer = driver.begun()
    driver.add(producer, P0, P1)
    driver.end(producer, commit=False)
    other = driver.taken_over()
    [marker] = other.markers
    assert (marker.producer, marker.commit, marker.partitions) == (
        producer.raised, False, frozenset({P0, P1}),
    )  # fmt: skip
    assert other.end(producer, commit=False) == Ended(producer=producer.raised)
    other.write_markers()
    assert other.state() is TransactionState.COMPLETE_ABORT


def test_a_new_owner_keeps_the_time_of_what_is_open(driver: Driver) -> None:
    producer = driver.begun()
    driver.add(producer, P0)
    driver.now_ms += 80_000
    other = driver.taken_over()
    other.after(0)
    assert other.state() is TransactionState.PREPARE_ABORT


def test_waiting_requests_get_not_coordinator_when_the_owner_changes(driver: Driver) -> None:
    producer = driver.begun()
    driver.add(producer, P0)
    driver.end(producer)
    driver.holding = True
    assert driver.init() is None
    driver.perform(driver.core.forget(ID))
    assert refused(list(driver.answers.values())[-1]) == "not_coordinator"
    assert driver.left == [ID]
    assert not driver.core.keys()
    assert driver.core.next_deadline_ms() is None


def test_rows_that_cannot_be_read(driver: Driver) -> None:
    for rows in (
        {"": b"{"},
        {"": b'{"format":9}'},
        {"partition/a/0": b""},
    ):
        with pytest.raises(CorruptError, match="payments"):
            driver.core.load(Stored(key=ID, rows=rows), driver.now_ms)


def test_partitions_are_verified(driver: Driver) -> None:
    def verify(one: ProducerIdentity, *partitions: TopicPartition) -> Any:
        return driver.ask(
            VerifyPartitions(transactional_id=ID, producer=one, partitions=frozenset(partitions))
        )

    assert refused(verify(ProducerIdentity(1, 0), P0)) == "invalid_producer_id_mapping"
    producer = driver.begun()
    driver.add(producer, P0)
    assert verify(producer, P0, P1) == Verified(missing=frozenset({P1}))
    assert refused(verify(producer.raised, P0)) == "producer_fenced"
    driver.end(producer)
    assert refused(verify(producer.raised, P0)) == "concurrent_transactions"
    driver.write_markers()
    assert verify(producer.raised, P0) == Verified(missing=frozenset({P0}))


def test_limits_are_named_in_errors(driver: Driver) -> None:
    assert refused(driver.init(timeout_ms=900_001)) == "invalid_transaction_timeout"
    assert refused(driver.init(timeout_ms=0)) == "invalid_transaction_timeout"
    assert refused(driver.init(ProducerIdentity(1, -1))) == "invalid_request"
    small = Driver(transactional_ids_max=1, transaction_partitions_max=1)
    producer = small.begun()
    assert refused(small.add(producer, P0, P1)) == "transaction_abortable"
    other = InitProducerId(transactional_id="other", timeout_ms=1)
    answer = small.ask(other)
    assert refused(answer) == "coordinator_not_available"
    assert "transactional.ids.max = 1" in answer.message


def test_ids_are_listed(driver: Driver) -> None:
    producer = driver.begun()
    driver.add(producer, P0)
    driver.now_ms += 1_000

    def listed(**filters: Any) -> ListedTransactions:
        answer = driver.ask(ListTransactions(**filters))
        assert isinstance(answer, ListedTransactions)
        return answer

    [one] = listed().transactions
    assert (one.transactional_id, one.producer_id, one.state) == (
        ID, producer.producer_id, "Ongoing",
    )  # fmt: skip
    assert listed(running_ms=999).transactions
    assert not listed(running_ms=1_000).transactions
    assert not listed(producer_ids=frozenset({1})).transactions
    assert not listed(states=("Empty", "Nonsense")).transactions
    assert listed(states=("Empty", "Nonsense")).unknown_states == ("Nonsense",)
