"""Producers and readers that go on while brokers die, and what must be true afterwards.

Idempotent producers that ask for all acknowledgements send numbered records to every partition in
turn; members of a group commit after each poll; others read all partitions by themselves, from the
replica in their rack where they name one; one asks the leaders where partitions end. All say what
they are told to one history (`history.py`).
"""

from __future__ import annotations

import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo, OffsetSpec

from compat.drivers import eventually
from compat.drivers.confluent import Confluent
from compat.history import NUMBERS_PER_PRODUCER, History
from compat.security import Need, read, scenario, write

PARTITIONS = 4
PROGRESS_RECORDS = 400
WINDOW_RECORDS = 2_000  # unacknowledged at most, so that a restart is not a flood
RECOVER_SECONDS = 45
END_SECONDS = RECOVER_SECONDS + 10
SLOW_SECONDS = 1.0
TOLD_KEPT = 30
ENDS_SECONDS = 2
_QUICK = {
    "socket.timeout.ms": 10_000,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "log_level": 0,
}


class Client(threading.Thread):
    """A client that works in a thread of its own from the begin of the context to `end`."""

    def __init__(self, bootstrap: str, topic: str, history: History, *needs: Need) -> None:
        super().__init__(daemon=True)
        self.topic = topic
        self.history = history
        self.done = threading.Event()
        self.settings = {**scenario(bootstrap, *needs), **_QUICK}
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.join(END_SECONDS)

    def end(self) -> None:
        """Let it finish what it has begun, and close its connections; raises what has ended it."""
        self.__exit__()
        if self._failure is not None:
            raise self._failure
        assert not self.is_alive(), f"{self!r} does not end"

    def run(self) -> None:
        try:
            self.work()
        except BaseException as error:
            # A callback that fails while a client closes is hidden behind a SystemError.
            self._failure = error.__cause__ if isinstance(error, SystemError) else error

    def work(self) -> None:
        """Until `done` is set."""
        raise NotImplementedError

    @property
    def story(self) -> str:
        """What it was told of late, but for records."""
        return "" if self._failure is None else f", and ended: {self._failure!r}"

    @property
    def count(self) -> int:
        """How far it has come."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return type(self).__name__


class Load(Client):
    """Produces `burst` records at a time, the next ones `rest` seconds later at the earliest."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        history: History,
        *,
        producer: int = 0,
        burst: int = 40,
        rest: float = 0.01,
        padding: int = 0,
    ) -> None:
        """Keys of `padding` bytes make records larger."""
        super().__init__(bootstrap, topic, history, write(topic))
        self.producer = producer
        self.sent = 0
        self.acked = 0
        self.failures: list[KafkaError] = []
        self._burst, self._rest, self._key = burst, rest, bytes(padding)
        self._last_ack = array("d", [0.0] * history.partitions)
        self._longest_pause = 0.0
        self.settings |= {
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 2,
            "message.timeout.ms": 600_000,
            "retry.backoff.ms": 20,
            "retry.backoff.max.ms": 200,
        }

    @property
    def count(self) -> int:
        return self.acked

    def __repr__(self) -> str:
        return f"producer {self.producer}"

    def pause_seconds(self) -> float:
        """The longest time that a partition had no acknowledgement, since the last call."""
        now = time.monotonic()
        open_pauses = [now - last for last in self._last_ack if last]
        longest, self._longest_pause = max([self._longest_pause, *open_pauses]), 0.0
        for partition, last in enumerate(self._last_ack):
            self._last_ack[partition] = now if last else 0.0
        return longest

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failures.append(error)
            return
        partition, now = message.partition(), time.monotonic()
        last, self._last_ack[partition] = self._last_ack[partition], now
        if last:
            self._longest_pause = max(self._longest_pause, now - last)
        self.acked += 1
        offset = message.offset()
        if offset is not None:  # else a duplicate so old that its place is not known any more
            self.history.acks(partition, offset, int(message.value()))

    def work(self) -> None:
        with Producer(self.settings) as producer:
            while not self.done.is_set():
                begin = time.monotonic()
                for _ in range(self._burst):
                    self._produce(producer)
                while len(producer) >= WINDOW_RECORDS and not self.done.is_set():
                    producer.poll(0.01)
                while (left := begin + self._rest - time.monotonic()) > 0:
                    producer.poll(min(left, 0.1))
            if producer.flush(RECOVER_SECONDS):
                producer.purge()  # the end waits for what is left; it counts as failed

    def _produce(self, producer: Producer) -> None:
        producer.produce(
            self.topic,
            key=self._key,
            value=b"%d" % (self.producer * NUMBERS_PER_PRODUCER + self.sent),
            partition=self.sent % self.history.partitions,
            on_delivery=self._delivered,
        )
        self.sent += 1
        producer.poll(0)


class Reader(Client):
    """Reads all partitions by itself, from the replica in its rack if it names one."""

    def __init__(
        self, bootstrap: str, topic: str, history: History, *, who: str, rack: str = ""
    ) -> None:
        super().__init__(bootstrap, topic, history, *read(topic, who))
        self.who = who
        self.settings |= {
            "group.id": who,
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 100,
            "client.rack": rack,
        }

    @property
    def count(self) -> int:
        return self.history.read_counts[self.who]

    def __repr__(self) -> str:
        return f"reader {self.who!r}"

    def work(self) -> None:
        with Consumer(self.settings) as consumer:
            self.begin(consumer)
            while not self.done.is_set():
                messages = consumer.consume(500, 0.05)
                for message in messages:
                    error = message.error()
                    if error is None:
                        place = message.partition(), message.offset()
                        self.history.reads(self.who, *place, int(message.value()))
                    elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                        raise KafkaException(error)
                self.after(consumer, any(message.error() is None for message in messages))

    def begin(self, consumer: Consumer) -> None:
        """Take all partitions, from the beginning."""
        every = range(self.history.partitions)
        consumer.assign([TopicPartition(self.topic, part, 0) for part in every])

    def after(self, consumer: Consumer, some: bool) -> None:
        """After a poll, which has brought some or none."""


class Member(Reader):
    """One member of a group: commits after each poll what it has received."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        history: History,
        *,
        group: str,
        protocol: str = "classic",
    ) -> None:
        super().__init__(bootstrap, topic, history, who=group)
        self._uncommitted = False
        self._told: deque[str] = deque(maxlen=TOLD_KEPT)
        self.settings |= {
            "auto.offset.reset": "earliest",
            "group.protocol": protocol,
            # It waits as long for the answer to a JoinGroup, also of a machine without power.
            "max.poll.interval.ms": 20_000,
        }
        if protocol == "classic":  # else the broker says
            self.settings |= {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 500}

    @property
    def story(self) -> str:
        now = f"{time.strftime('%H:%M:%S')} now"
        return super().story + "".join([f"\n    {line}" for line in (*self._told, now)])

    def begin(self, consumer: Consumer) -> None:
        consumer.subscribe(
            [self.topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
        )

    def _assigned(self, _: Consumer, places: Sequence[TopicPartition]) -> None:
        self._tell("assigned", places)
        for place in places:
            self.history.assigned(self.who, place.partition)

    def _revoked(self, _: Consumer, places: Sequence[TopicPartition]) -> None:
        self._tell("revoked", places)

    def _lost(self, _: Consumer, places: Sequence[TopicPartition]) -> None:
        self._tell("lost", places)

    def _tell(self, what: str, about: object, seconds: float = 0.0) -> None:
        self._told.append(f"{time.strftime('%H:%M:%S')} {what} after {seconds:.1f} s: {about}")

    def after(self, consumer: Consumer, some: bool) -> None:
        self._uncommitted = self._uncommitted or some
        if self._uncommitted:
            self._uncommitted = not self._commit(consumer)

    def _commit(self, consumer: Consumer) -> bool:
        """Whether it succeeded: the broker may be down, or the group rebalancing."""
        begin = time.monotonic()
        try:
            consumer.commit(asynchronous=False)
        except KafkaException as error:
            self._tell("commit failed", error, time.monotonic() - begin)
            return False
        if time.monotonic() - begin > SLOW_SECONDS:
            self._tell("committed", "slowly", time.monotonic() - begin)
        return True


class Ends(Client):
    """Asks the leaders again and again where the partitions end."""

    def __init__(self, bootstrap: str, topic: str, history: History) -> None:
        super().__init__(bootstrap, topic, history, ("describe", "topic", topic))
        self._asked = 0

    @property
    def count(self) -> int:
        return self._asked

    def work(self) -> None:
        places = [TopicPartition(self.topic, part) for part in range(self.history.partitions)]
        with AdminClient(self.settings) as admin:
            while not self.done.wait(0.05):
                floors = [self.history.floor(place.partition) for place in places]
                asked = dict.fromkeys(places, OffsetSpec.latest())
                found = admin.list_offsets(asked, request_timeout=ENDS_SECONDS)
                for place, future in found.items():
                    self._told(place.partition, floors[place.partition], future)

    def _told(self, partition: int, floor: int, future: Future[ListOffsetsResultInfo]) -> None:
        try:
            found = future.result()
        except KafkaException:
            return
        epoch, now = found.leader_epoch, time.monotonic()
        if epoch is not None:  # librdkafka's way to say that it got no answer
            self.history.ends(partition, floor, found.offset, epoch=epoch, now=now)
            self._asked += 1


@contextmanager
def at_work(
    bootstrap: str, topic: str, group: str, protocol: str = "classic"
) -> Iterator[tuple[Load, Member]]:
    """A producer and a member of a group at work; neither is in the end, whatever happened."""
    history = History(PARTITIONS)
    with (
        Load(bootstrap, topic, history) as load,
        Member(bootstrap, topic, history, group=group, protocol=protocol) as reader,
    ):
        yield load, reader


def stored(
    bootstrap: str, topic: str, partition: int, clock: Callable[[], float] = time.monotonic
) -> Iterator[tuple[int, int]]:
    """Every record of a partition: its offset and number, in their order."""
    deadline = clock() + RECOVER_SECONDS
    settings = {
        **scenario(bootstrap, *read(topic, "check")),
        "group.id": "check",
        "enable.partition.eof": True,
        **_QUICK,
    }
    with Consumer(settings) as consumer:
        consumer.assign([TopicPartition(topic, partition, 0)])
        while clock() < deadline:
            for message in consumer.consume(5_000, 0.1):
                deadline = clock() + RECOVER_SECONDS
                if message.error() is None:
                    yield message.offset(), int(message.value())
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    return
    raise AssertionError(f"the log of {topic}-{partition} is not read to its end")


def await_progress(
    *clients: Client,
    records: int = PROGRESS_RECORDS,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Wait until all have got on by so many records, or a producer has failed."""
    wanted = {client: client.count + records for client in clients}

    def holds() -> bool:
        if any(isinstance(client, Load) and client.failures for client in clients):
            return True
        return all(client.count >= count for client, count in wanted.items())

    def says() -> str:
        behind = [
            f"{client!r} has got to {client.count} of {count}{client.story}"
            for client, count in wanted.items()
            if client.count < count
        ]
        return "; ".join(behind)

    eventually(holds, says, seconds=RECOVER_SECONDS, clock=clock)


def check_history(
    bootstrap: str,
    history: History,
    loads: Sequence[Load],
    readers: Sequence[Reader],
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """End all of them, and find what cannot be; the violations are the history's."""
    for load in loads:
        load.end()
    acknowledged = sum(history.acknowledged)
    eventually(
        lambda: all(reader.count >= acknowledged for reader in readers),
        lambda: f"of {acknowledged} {[(each, each.count, each.story) for each in readers]}",
        seconds=RECOVER_SECONDS,
        clock=clock,
    )
    topic = loads[0].topic
    ends = history.check(
        {part: stored(bootstrap, topic, part, clock) for part in range(history.partitions)},
        {load.producer: load.sent for load in loads},
        refused=frozenset(load.producer for load in loads if load.failures),
    )
    for reader in readers:
        if isinstance(reader, Member):
            await_committed(bootstrap, reader, ends, clock)
        reader.end()


def assert_nothing_lost_or_doubled(load: Load, reader: Reader, bootstrap: str) -> None:
    """End both, and compare what was acknowledged, received and committed with what is stored."""
    check_history(bootstrap, load.history, [load], [reader])
    assert not load.failures, load.failures[:5]
    assert not load.history.violations, "\n".join(map(str, load.history.violations))


def await_committed(
    bootstrap: str,
    reader: Reader,
    ends: Mapping[int, int],
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Wait until the group has committed these offsets: a commit that fails is tried again."""

    def committed() -> dict[int, int]:
        try:
            found = driver.committed(reader.who, reader.topic, range(len(ends)))
        except KafkaException:  # the group may have another coordinator
            return {}
        return {part: offset for part, (offset, _) in found.items()}

    with Confluent(bootstrap) as driver:
        eventually(
            lambda: committed() == dict(ends),
            lambda: f"{committed()} of {dict(ends)}, at {reader.count}{reader.story}",
            seconds=RECOVER_SECONDS,
            clock=clock,
        )
