"""A producer of one partition: sends in order, retries what was not acknowledged, on any broker.

Its requests go over a connection, on which they arrive in order, as do the answers, up to where it
was cut. When one fails, or is not answered in time, the producer waits for the end of all that are
under way, and sends what is not acknowledged again, in order, perhaps to another broker. What it
gave up waiting for may still arrive.

When what stands first is out of order, something behind it was accepted before it. As Kafka's
clients do, the producer then raises its epoch, and numbers anew what is not acknowledged: KIP-360.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.base.errors import PenstockError
from penstock.control import PartitionKey
from penstock.diskless.writing.objects import Submission
from penstock.records import split_batches
from penstock.records.appends import AppendResult, Outcome
from sim.diskless.batches import SEQUENCES, Batch, Identity, make, renumbered

if TYPE_CHECKING:
    from sim.diskless.broker import Broker
    from sim.diskless.world import World

REQUEST_TIMEOUT_MS = 700.0
_OUT_OF_ORDER = "out_of_order_sequence_number"
_ENDS = ("invalid_producer_epoch", "unknown_topic_id")


class Item:
    """What goes into one request: batches that are accepted or refused together."""

    __slots__ = ("batches", "data")

    def __init__(self, batches: list[Batch]) -> None:
        self.batches = batches
        self.data = b"".join([batch.data for batch in batches])


class Connection:
    """To one broker; `cut` ones deliver nothing any more."""

    __slots__ = ("answer_ms", "broker", "cut", "last_ms")

    def __init__(self, broker: Broker | None) -> None:
        self.broker = broker
        self.last_ms = self.answer_ms = 0.0
        self.cut = broker is None


class Attempt:
    """A request on its way."""

    __slots__ = ("connection", "ended", "item")

    def __init__(self, item: Item, connection: Connection) -> None:
        self.item = item
        self.connection = connection
        self.ended = False


class Producer:
    """See the module's text. `window` requests are under way at a time."""

    def __init__(self, world: World, number: int, where: PartitionKey) -> None:
        random = world.random
        self.world = world
        self.number = number
        self.where = where
        self.stopped = False
        self.window = random.randint(1, 5)
        self.identity = Identity()
        if random.random() < 0.75:
            first = random.choice((0, 0, SEQUENCES - 4))
            self.identity = Identity(1000 + number, random.choice((0, 7)), first)
        self._unacknowledged: list[Item] = []
        self._sent = 0
        """How many of them are under way or were answered."""
        self._flying: list[Attempt] = []
        self._failed = False
        self._gap = False
        self._resting = False
        self._connection = Connection(world.any_broker())

    @property
    def quiet(self) -> bool:
        """Everything is acknowledged, or never will be."""
        return self.stopped or not self._unacknowledged

    def produce(self) -> None:
        """One more request's worth of batches."""
        if self.stopped:
            return
        world, random = self.world, self.world.random
        batches = []
        for _ in range(random.choice((1, 1, 1, 2))):
            count = random.randint(1, 3)
            batch = make(
                world.next_tag(), count, random.randrange(24), int(world.now_ms), self.identity
            )
            self.identity = self.identity.after(count)
            world.ledger.send(batch, self.where, idempotent=self.identity.producer_id >= 0)
            batches.append(batch)
        self._unacknowledged.append(Item(batches))
        self._pump()

    def restart(self) -> None:
        """It dies, and comes back with the next epoch, knowing nothing of what it sent."""
        if self.stopped or self.identity.producer_id < 0:
            return
        self.world.note("producer", self.number, "restarts")
        self.identity = self.identity._replace(epoch=self.identity.epoch + 1, sequence=0)
        for attempt in self._flying:
            attempt.ended = True
        self._unacknowledged, self._flying, self._sent = [], [], 0
        self._failed = self._gap = self._resting = False
        self._connection = Connection(self.world.any_broker())

    def _pump(self) -> None:
        if self._failed or self._resting or self.stopped:
            return
        while self._sent < min(len(self._unacknowledged), self.window):
            item = self._unacknowledged[self._sent]
            self._sent += 1
            self._send(item)

    def _send(self, item: Item) -> None:
        world, connection = self.world, self._connection
        attempt = Attempt(item, connection)
        self._flying.append(attempt)
        world.after(REQUEST_TIMEOUT_MS, lambda: self._end(attempt, None))
        if connection.cut or world.chance(0.03):
            connection.cut = True
            return
        connection.last_ms = max(connection.last_ms, world.now_ms + world.delay_ms())
        world.at(connection.last_ms, lambda: self._arrive(attempt))

    def _arrive(self, attempt: Attempt) -> None:
        broker = attempt.connection.broker
        if attempt.connection.cut or broker is None:
            return
        if broker.dead:
            attempt.connection.cut = True
            return
        if self.world.now_ms < broker.stalled_ms:
            attempt.connection.last_ms = broker.stalled_ms
            self.world.at(broker.stalled_ms, lambda: self._arrive(attempt))
            return
        data = memoryview(attempt.item.data)
        submission = Submission(
            *self.where, data, split_batches(data), self.world.append_time(self.where), None,
            lambda outcome: self._answered(attempt, outcome),
        )  # fmt: skip
        try:
            broker.submit(submission)
        except PenstockError as error:
            self._answered(attempt, error)

    def _answered(self, attempt: Attempt, outcome: Outcome) -> None:
        """The broker says so; the answer may not arrive."""
        world = self.world
        if isinstance(outcome, AppendResult) and outcome.error is None:
            world.ledger.acknowledged(self.where, attempt.item.batches, outcome.base_offset)
        if world.chance(0.03):
            attempt.connection.cut = True
        connection = attempt.connection
        if not connection.cut:
            connection.answer_ms = max(connection.answer_ms, world.now_ms + world.delay_ms())
            world.at(connection.answer_ms, lambda: self._end(attempt, outcome))

    def _end(self, attempt: Attempt, outcome: Outcome | None) -> None:
        if attempt.ended or self.stopped:
            return
        attempt.ended = True
        self._flying.remove(attempt)
        if isinstance(outcome, AppendResult) and outcome.error is None:
            self._unacknowledged.remove(attempt.item)
            self._sent -= 1
        elif isinstance(outcome, AppendResult) and outcome.error in _ENDS:
            self.world.note("producer", self.number, outcome.error)
            self.stopped = True
            return
        else:
            first = attempt.item is self._unacknowledged[0]
            self._failed = True
            if first and isinstance(outcome, AppendResult) and outcome.error == _OUT_OF_ORDER:
                self._gap = True
        if self._failed and not self._flying:
            if self._gap:
                self._number_anew()
            self._failed, self._gap, self._sent, self._resting = False, False, 0, True
            self.world.after(10 + 60 * self.world.random.random(), self._rested)
        self._pump()

    def _number_anew(self) -> None:
        world = self.world
        world.note("producer", self.number, "numbers anew")
        world.ledger.seen["numbered anew"] += 1
        self.identity = self.identity._replace(epoch=self.identity.epoch + 1, sequence=0)
        for place, item in enumerate(self._unacknowledged):
            batches = []
            for batch in item.batches:
                batches.append(renumbered(batch, self.identity))
                self.identity = self.identity.after(batch.offsets)
                world.ledger.send(batches[-1], self.where, idempotent=True)
            self._unacknowledged[place] = Item(batches)

    def _rested(self) -> None:
        if self._resting:
            self._resting = False
            self._connection = Connection(self.world.any_broker())
            self._pump()
