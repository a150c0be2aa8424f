"""A transactional id: its producer, its coordinator, and what must be true of what it writes.

The producer writes a batch after the other, to any broker, and sends one again that is not
acknowledged in time; what it gave up waiting for may still arrive. A broker looks up where the
partition ends (in version 1 of transactions), asks the coordinator whether the transaction is going
on, and takes the batch in. The coordinator decides when the producer asks for it, or when it has
waited too long, and has a marker written until one is acknowledged; it lives on a broker, and on
another one, with a higher epoch, once that is gone.

| checked      | what must hold                                                              |
|--------------|-----------------------------------------------------------------------------|
| a batch      | its transaction has not ended there, and no other one of the id is open     |
| a marker     | it ends its own transaction, or none                                        |
| every change | the last stable offset is where the first open one begins; it never falls;  |
|              | the rows of aborted ones are those that were aborted                        |
| retention    | nothing behind the last stable offset goes                                  |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.base.errors import PenstockError
from penstock.control import PartitionKey, Watermarks
from penstock.diskless.writing.objects import Submission
from penstock.records import split_batches
from penstock.records.appends import AppendResult, Done, Outcome
from penstock.records.header import TRANSACTIONAL_FLAG
from penstock.records.transactions import (
    EPOCH_VERSION,
    OFFSET_MAX,
    AbortedTransaction,
    Marker,
    encode_marker,
)
from sim.diskless.batches import Batch, Identity, make
from sim.host.scheduler import Violation

if TYPE_CHECKING:
    from sim.diskless.broker import Broker
    from sim.diskless.world import World

FIRST_PRODUCER = 9_000
WAIT_MS = 120.0
TIMEOUT_MS = 900.0
_ENDS = ("unknown_topic_id",)


class Transaction(NamedTuple):
    """One of a producer's transactions; they are numbered."""

    producer_id: int
    number: int


class TransactionTruth:
    """What is true of transactions in one partition."""

    def __init__(self) -> None:
        self.open: dict[int, tuple[int, int]] = {}
        """By producer id: which one is open, and its first offset."""
        self.ended: dict[int, int] = {}
        self.aborted: set[tuple[int, int, int]] = set()
        self.stable = 0

    def data(self, of: Transaction, offset: int) -> None:
        """A batch was placed."""
        producer_id, number = of
        if number <= self.ended.get(producer_id, 0):
            raise Violation(f"a batch of {of} landed at {offset}, behind its marker")
        known, _ = self.open.setdefault(producer_id, (number, offset))
        if known != number:
            raise Violation(f"a batch of {of} landed at {offset}, while {known} is open")

    def marker(self, of: Transaction, offset: int, *, commit: bool) -> None:
        """A marker was placed."""
        producer_id, number = of
        known, first = self.open.pop(producer_id, (number, -1))
        if known != number:
            raise Violation(f"the marker of {of} at {offset} ended {known}")
        if first >= 0 and not commit:
            self.aborted.add((producer_id, first, offset))
        self.ended[producer_id] = max(number, self.ended.get(producer_id, 0))

    def check(self, marks: Watermarks, rows: tuple[AbortedTransaction, ...]) -> None:
        """Compare with what the plane says."""
        start, end = marks.log_start_offset, marks.high_watermark
        stable = max(start, min([first for _, first in self.open.values()], default=end))
        if marks.last_stable_offset != stable or stable < self.stable:
            raise Violation(f"{stable} is stable, it was {self.stable}: {marks}")
        self.stable = stable
        expected = {transaction for transaction in self.aborted if transaction[2] >= start}
        if {row[:3] for row in rows if row.last_offset >= start} != expected:
            raise Violation(f"{sorted(expected)} were aborted, and not {rows}")


class TransactionalProducer:
    """See the module's text."""

    def __init__(self, world: World, number: int, where: PartitionKey) -> None:
        self.world = world
        self.where = where
        self.version = world.random.choice((1, 2))
        self.identity = Identity(FIRST_PRODUCER + number, 0, 0)
        self.number = 0
        self.ongoing = False
        """As the coordinator has it."""
        self.quiet = False
        self._left = world.random.randint(3, 12)
        self._batches = self._sent = self._answers = 0
        self._unsure = False
        self._coordinator: Broker | None = None
        self._coordinator_epoch = 0
        world.after(400 * world.random.random(), self._begin)

    # The producer

    def _begin(self) -> None:
        if not self._left:
            self.quiet = True
            return
        self._left -= 1
        self.number += 1
        self.ongoing, self._unsure = True, False
        self._batches = self.world.random.randint(1, 3)
        number = self.number
        self.world.after(TIMEOUT_MS, lambda: self._end(number, commit=False))
        self._write(number)

    def _write(self, number: int) -> None:
        """The next batch; or the end."""
        world = self.world
        if number != self.number or not self.ongoing:
            return
        if not self._batches:
            commit = world.random.random() < 0.6
            world.after(world.delay_ms(), lambda: self._end(number, commit=commit))
            return
        self._batches -= 1
        count = world.random.randint(1, 3)
        now_ms = int(world.now_ms)
        batch = make(world.next_tag(), count, 8, now_ms, self.identity, TRANSACTIONAL_FLAG)
        self.identity = self.identity.after(count)
        world.ledger.send(batch, self.where, idempotent=True)
        world.ledger.transactions[batch.tag] = Transaction(self.identity.producer_id, number), None
        self._send(number, batch)

    def _send(self, number: int, batch: Batch) -> None:
        world = self.world
        self._sent += 1
        sent = self._sent
        world.after(WAIT_MS, lambda: self._again(number, batch, sent))
        broker = world.any_broker()
        if broker is not None:
            world.after(world.delay_ms(), broker.here(lambda: self._arrive(broker, number, batch)))

    def _again(self, number: int, batch: Batch, sent: int) -> None:
        if number == self.number and self.ongoing and sent == self._sent:
            self._unsure = True
            self.world.ledger.seen["transaction written again"] += 1
            self._send(number, batch)

    def _answered(self, number: int, outcome: Outcome) -> None:
        if number != self.number or not self.ongoing:
            return
        if isinstance(outcome, AppendResult) and outcome.error is None:
            self._sent += 1
            self._write(number)
        elif isinstance(outcome, AppendResult) and outcome.error in _ENDS:
            self.ongoing, self.quiet = False, True

    # The broker that a batch comes to

    def _arrive(self, broker: Broker, number: int, batch: Batch) -> None:
        world = self.world

        def looked_up(marks: list[Watermarks]) -> None:
            verified_from = marks[0].high_watermark
            world.after(world.delay_ms(), lambda: asked(verified_from))

        def asked(verified_from: int) -> None:
            if self.ongoing and self.number == number:
                take = broker.here(lambda: self._take(broker, number, batch, verified_from))
                world.after(world.delay_ms(), take)

        if self.version >= EPOCH_VERSION:
            asked(0)
            return
        world.line.call(
            lambda: world.plane.watermarks([self.where]),
            broker.here(looked_up),
            broker.here(lambda error: None),
            changes=False,
        )

    def _take(self, broker: Broker, number: int, batch: Batch, verified_from: int) -> None:
        world = self.world

        def done(outcome: Outcome) -> None:
            world.after(world.delay_ms(), lambda: self._answered(number, outcome))

        self._submit(broker, batch, done, verified_from=verified_from)

    def _submit(self, broker: Broker, batch: Batch, done: Done, **more: Any) -> None:
        data = memoryview(batch.data)
        submission = Submission(
            *self.where, data, split_batches(data), self.world.append_time(self.where), None, done,
            **more,
        )  # fmt: skip
        try:
            broker.submit(submission)
        except PenstockError as error:
            submission.done(error)

    # The coordinator

    def _end(self, number: int, *, commit: bool) -> None:
        if number == self.number and self.ongoing:
            self.ongoing = False
            self.world.ledger.seen["committed" if commit else "aborted"] += 1
            self._mark(commit)

    def _mark(self, commit: bool) -> None:
        """Have a marker written; again, if that is not acknowledged."""
        world, number = self.world, self.number
        self._answers += 1
        attempt = self._answers

        def again() -> None:
            if attempt == self._answers and number == self.number and not self.quiet:
                world.ledger.seen["marked again"] += 1
                self._mark(commit)

        world.after(WAIT_MS * (1 + 2 * world.random.random()), again)
        broker = self._coordinator
        if broker is None or broker.dead or broker not in world.brokers:
            broker = self._coordinator = world.any_broker()
            self._coordinator_epoch += 1
        if broker is not None:
            broker.here(lambda: self._look_up(broker, attempt, commit))()

    def _look_up(self, broker: Broker, attempt: int, commit: bool) -> None:
        world, coordinator_epoch = self.world, self._coordinator_epoch
        if self.version >= EPOCH_VERSION:
            self._place(broker, attempt, commit, coordinator_epoch, OFFSET_MAX)
            return
        world.line.call(
            lambda: world.plane.watermarks([self.where]),
            broker.here(
                lambda marks: self._place(
                    broker, attempt, commit, coordinator_epoch, marks[0].high_watermark
                )
            ),
            broker.here(lambda error: None),
            changes=False,
        )

    def _place(
        self, broker: Broker, attempt: int, commit: bool, coordinator_epoch: int, made_at: int
    ) -> None:
        if attempt != self._answers or self.quiet:
            return
        world, of = self.world, Transaction(self.identity.producer_id, self.number)
        epoch = self.identity.epoch + (self.version >= EPOCH_VERSION)
        marker = Marker(of.producer_id, epoch, coordinator_epoch, commit, self.version)
        tag = world.next_tag()
        batch = Batch(-tag, 1, bytes(encode_marker(marker, tag)))
        world.ledger.send(batch, self.where, idempotent=False)
        world.ledger.transactions[-tag] = of, commit

        def done(outcome: Outcome) -> None:
            world.after(world.delay_ms(), lambda: self._marked(of.number, outcome))

        self._submit(broker, batch, done, marker=marker, verified_from=made_at)

    def _marked(self, number: int, outcome: Outcome) -> None:
        world = self.world
        if number != self.number or self.ongoing or not isinstance(outcome, AppendResult):
            return
        if outcome.error is None:
            self._answers += 1
            self.number += 1
            raised = self.version >= EPOCH_VERSION or self._unsure
            if raised:
                epoch = self.identity.epoch + 1
                self.identity = self.identity._replace(epoch=epoch, sequence=0)
            world.after(60 * world.random.random(), self._begin)
        elif outcome.error in _ENDS:
            self.quiet = True
