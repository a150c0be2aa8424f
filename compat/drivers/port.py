"""The port that every foreign client is driven through, so that each scenario is written once.

A driver translates these calls into its client's own idiom and nothing more: the scenario decides
what must hold. What a client cannot do is left out of its `able`, and the scenario is not run for
it. Everything is bounded by `WAIT_SECONDS`.
"""

from __future__ import annotations

import os
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Self, TypeVar

from compat.security import Allowed, Need, Security, realm, security_of

T = TypeVar("T")
WAIT_SECONDS = 20.0
POLL_SECONDS = 0.02
SESSION_TIMEOUT_MS = 30_000
REPLICAS = 3 if os.environ.get("PENSTOCK_COMPAT_TOPICS") == "replicated" else 1
"""For a client that cannot ask for the server's default."""
HEARTBEAT_MS = 200
# What a driver may be able to do beyond producing and consuming; `static` is a way to join. Few
# are also able to do `log_dirs`, `config_topics`, `tiers` and `transactions`.
EVERYTHING = frozenset(
    {"join", "static", "commit", "offsets_at", "bounds", "create_topic", "delete_topic", "topics"}
    | {"create_partitions", "configs", "alter_config", "delete_records", "groups"}
    | {"describe_group", "delete_group", "cluster"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record as a client gives or gets it; `timestamp` in milliseconds."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int
    partition: int = 0
    offset: int = -1

    def at(self, offset: int) -> Record:
        """The same record with its offset."""
        return replace(self, offset=offset)


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """What a client says of a group: its state in lower case, and how many members it has."""

    state: str
    members: int


class KafkaProblem(Exception):
    """A client's own error, under Kafka's name for it (`TOPIC_ALREADY_EXISTS`)."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class Member(ABC):
    """A consumer in a group that polls in the background until it is closed."""

    @abstractmethod
    def assignment(self) -> frozenset[int]:
        """The partitions that it owns now."""

    @abstractmethod
    def rebalances(self) -> int:
        """How often it was given an assignment, or had one taken."""

    @abstractmethod
    def revoked(self) -> frozenset[int]:
        """Every partition that was ever taken from it while it went on."""

    @abstractmethod
    def records(self) -> list[Record]:
        """What it has received so far."""

    @abstractmethod
    def close(self) -> None:
        """Commit and end; leaves the group unless it is a static member."""


class Transactional(ABC):
    """A transactional producer; what fails is raised under Kafka's name where it has one."""

    @abstractmethod
    def begin(self) -> None:
        """Begin a transaction."""

    @abstractmethod
    def send(self, topic: str, records: Sequence[Record]) -> list[int]:
        """Produce within it, and return the offsets in the order of the records."""

    @abstractmethod
    def send_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Commit offsets of a group without members with it."""

    @abstractmethod
    def end(self, *, commit: bool) -> None:
        """Commit it, or abort it."""

    @abstractmethod
    def close(self) -> None:
        """End the producer; a transaction is left as it is where the client lets it be."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Driver(ABC):
    """One foreign client against one server."""

    name: str
    version: str = ""
    codecs: tuple[str, ...]
    # eager, cooperative and server (KIP-848): what the client calls its assignor of that kind
    assignors: Mapping[str, str] = {}
    able: frozenset[str] = frozenset()
    reads: tuple[str, ...] = ("none", "gzip", "snappy", "lz4", "zstd")
    metadata_end: str = ""  # what the client adds to committed metadata
    sets_timestamps: bool = True
    # Groups that it cannot do without, where a scenario is in none: what it needs of them.
    groups_needed: tuple[Need, ...] = ()
    keeps_nulls: bool = True  # tells null from empty, and binary from text

    def __init__(self, bootstrap: str, security: Security | None = None) -> None:
        """`security` is that of the run by default, in which the client may do what it does."""
        self.bootstrap = bootstrap
        self.security = security or security_of(self.name)
        if security is None and realm() is not None:
            Allowed(bootstrap, self.name, self.groups_needed).watch(self)

    @abstractmethod
    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        codec: str = "none",
        idempotent: bool = False,
    ) -> list[int]:
        """Produce with acks=all, and return the offsets in the order of the records."""

    @abstractmethod
    def consume(
        self, topic: str, starts: Mapping[int, int], count: int, *, committed: bool = False
    ) -> list[Record]:
        """Read `count` records from the given offsets on, outside any group.

        `committed` leaves out those of transactions that are open or were aborted.
        """

    def join(
        self, group: str, topic: str, *, kind: str = "eager", instance_id: str | None = None
    ) -> Member:
        """A new member of the group, from the earliest offset, with automatic commits."""
        raise NotImplementedError

    def commit(self, group: str, topic: str, offsets: Mapping[int, tuple[int, str]]) -> None:
        """Commit offsets with their metadata."""
        raise NotImplementedError

    def committed(
        self, group: str, topic: str, partitions: Sequence[int]
    ) -> dict[int, tuple[int, str]]:
        """Committed offsets and metadata; partitions without one are left out."""
        raise NotImplementedError

    def offsets_at(self, topic: str, timestamp: int, partitions: Sequence[int]) -> dict[int, int]:
        """The first offset at or after a time; −1, or the end offset, where there is none."""
        raise NotImplementedError

    def bounds(self, topic: str, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        """The earliest and the latest offset of each partition."""
        raise NotImplementedError

    def tiers(self, topic: str, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        """The first offset on a broker's disk, and the last in the archive."""
        raise NotImplementedError

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> None:
        """Create a topic."""
        raise NotImplementedError

    def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        raise NotImplementedError

    def topics(self) -> dict[str, int]:
        """Topics with their partition counts."""
        raise NotImplementedError

    def create_partitions(self, name: str, total: int) -> None:
        """Grow a topic to `total` partitions."""
        raise NotImplementedError

    def configs(self, name: str) -> dict[str, str]:
        """A topic's configuration, defaults included."""
        raise NotImplementedError

    def alter_config(self, name: str, key: str, value: str) -> None:
        """Set one configuration of a topic."""
        raise NotImplementedError

    def delete_records(self, topic: str, offsets: Mapping[int, int]) -> None:
        """Delete the records before the given offsets."""
        raise NotImplementedError

    def groups(self) -> set[str]:
        """The names of all groups."""
        raise NotImplementedError

    def describe_group(self, group: str) -> GroupDescription:
        """A group's state and size."""
        raise NotImplementedError

    def delete_group(self, group: str) -> None:
        """Delete an empty group."""
        raise NotImplementedError

    def cluster(self) -> tuple[str, int]:
        """The cluster's id and how many brokers it has."""
        raise NotImplementedError

    def log_dirs(self, topic: str) -> dict[int, int]:
        """The bytes of a topic's partitions, over the log dirs of all brokers."""
        raise NotImplementedError

    def config_topics(self) -> set[str]:
        """The topics among the resources that have configurations."""
        raise NotImplementedError

    def transactional(self, transactional_id: str, *, timeout_ms: int = 60_000) -> Transactional:
        """A producer of transactions, ready to begin one; who had the id before is fenced."""
        raise NotImplementedError

    @abstractmethod
    def close(self) -> None:
        """End everything that was started: threads, connections, programs."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ThreadMember(Member):
    """A member whose client is polled by a thread of its own; subclasses own the client.

    The client is touched by that thread alone, callbacks included, since most clients demand it.
    """

    def __init__(self) -> None:
        self._seen: list[Record] = []
        self._revoked: set[int] = set()
        self._rebalances = 0
        self._closing = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._guard, daemon=True)

    @abstractmethod
    def _run(self) -> None:
        """Poll until `_closing` is set, then close the client."""

    def _guard(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self._failure = error

    def check(self) -> None:
        """Raise what ended the thread, if anything did."""
        if self._failure is not None:
            raise self._failure

    def rebalances(self) -> int:
        self.check()
        return self._rebalances

    def revoked(self) -> frozenset[int]:
        return frozenset(self._revoked)

    def records(self) -> list[Record]:
        self.check()
        return list(self._seen)

    def close(self) -> None:
        self._closing.set()
        self._thread.join(WAIT_SECONDS)
        if self._thread.is_alive():
            raise TimeoutError(f"{type(self).__name__} did not close within {WAIT_SECONDS} s")
        self.check()


def eventually(
    holds: Callable[[], bool],
    says: Callable[[], object],
    *,
    seconds: float = WAIT_SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Wait until a condition holds; a failure says how things stood. `clock` counts the seconds."""
    begin, deadline = time.monotonic(), clock() + seconds
    while not holds():
        if clock() > deadline:
            waited = time.monotonic() - begin
            raise AssertionError(f"not within {seconds} s ({waited:.0f} s); last seen: {says()}")
        time.sleep(POLL_SECONDS)


_NOT_TAKEN = re.compile(
    "ECONNREFUSED|NodeNotReady|NOT_LEADER|Not leader|NOT_COORDINATOR|NO_BROKERS_AVAILABLE"
)
"""What clients say when nobody has taken a request."""


def patient(driver: Driver) -> Driver:
    """The driver, whose calls are made again for a while where no broker has taken them.

    Clients follow leaders and coordinators when they produce and consume; the admin clients of
    some leave it to who calls them, when a broker is restarted.
    """
    for name in ("commit", "committed", "offsets_at", "bounds", "topics", "configs", "groups"):
        setattr(driver, name, partial(_until_taken, getattr(driver, name)))
    for name in ("alter_config", "delete_records", "describe_group", "delete_group", "cluster"):
        setattr(driver, name, partial(_until_taken, getattr(driver, name)))
    return driver


def _until_taken(call: Callable[..., T], *arguments: object, **options: object) -> T:
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            return call(*arguments, **options)
        except Exception as problem:
            if not _NOT_TAKEN.search(repr(problem)) or time.monotonic() > deadline:
                raise
            time.sleep(POLL_SECONDS)


def by_position(records: Iterable[Record]) -> dict[tuple[int, int], Record]:
    """Records by partition and offset."""
    return {(record.partition, record.offset): record for record in records}
