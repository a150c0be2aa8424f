"""Session that all calls of a client share: addresses, metadata, leaders, coordinators, retries.

The cores (`base.retry`, `metadata`, `protocol`) decide. This shell uses sockets, reads the clock
and pauses. One `Session` serves all threads of a client; the lock of its metadata cache is never
held during I/O.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from penstock.base.errors import PenstockError, RetriableError
from penstock.base.retry import RetryPolicy
from penstock.base.settings import whole_number
from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS, Clock, Randomness
from penstock.client.connection import Connection
from penstock.client.errors import (
    BrokerBusy,
    BrokerFailed,
    BrokersUnreachable,
    ClientClosed,
    InvalidArgument,
    UnknownTopic,
    broker_error,
    note_attempts,
)
from penstock.client.protocol import (
    ClusterMetadata,
    MetadataCache,
    Node,
    TopicMetadata,
    from_response,
)
from penstock.client.security import NO_SECURITY, ClientSecurity

# Connection pool of a client: leases for readers and writers, and for single calls.
#
# A reader or writer leases connections for itself, so that one thread's wait for records never
# delays a request of another thread. It returns a connection when no call on it is unanswered. At
# most `IDLE_CONNECTIONS_MAX` connections per broker are kept idle.


IDLE_CONNECTIONS_MAX: Final = 8
"""Maximum number of idle connections per broker that are kept for the next lease."""


class Unanswered(Struct, frozen=True):
    """Oldest unanswered call of a connection.

    `number` is the call's correlation id, or the number of a connection that is being opened.
    """

    where: str
    call: str
    number: int


class ConnectionPool:
    """Thread-safe pool that opens, leases and keeps connections."""

    def __init__(
        self,
        *,
        client_id: str,
        timeout_ms: int,
        connect_timeout_ms: int,
        security: ClientSecurity = NO_SECURITY,
    ) -> None:
        self._client_id = client_id
        self._security = security
        self._timeout_ms = timeout_ms
        self._connect_timeout_ms = connect_timeout_ms
        self._lock = threading.Lock()
        self._idle: dict[tuple[str, int], list[Connection]] = {}
        self._lent: set[Connection] = set()
        self._opening: dict[int, tuple[str, int]] = {}
        self._openings = 0
        self._closed = False

    def lease(self, host: str, port: int) -> Connection:
        """Return a connection that only the caller uses, until it calls `give_back`.

        Raises:
            Disconnected, TimedOut, MalformedResponse: no connection can be opened.
            ClientClosed: the pool is closed.
        """
        with self._lock:
            self._check_open()
            waiting = self._idle.get((host, port))
            connection = waiting.pop() if waiting else None
            if connection is not None:
                self._lent.add(connection)
                return connection
            self._openings += 1
            number = self._openings
            self._opening[number] = (host, port)
        try:
            connection = self._open(host, port)
        finally:
            with self._lock:
                del self._opening[number]
        with self._lock:
            if self._closed:
                connection.close()
            self._check_open()
            self._lent.add(connection)
        return connection

    def _open(self, host: str, port: int) -> Connection:
        connection = Connection(
            host,
            port,
            client_id=self._client_id,
            timeout_ms=self._timeout_ms,
            connect_timeout_ms=self._connect_timeout_ms,
            security=self._security,
        )
        try:
            connection.negotiate()
        except PenstockError:
            connection.close()
            raise
        return connection

    def unanswered(self) -> tuple[Unanswered, ...]:
        """Return the oldest unanswered call of each connection, and connections being opened."""
        with self._lock:
            lent = list(self._lent)
            found = [
                Unanswered(f"{host}:{port}", "a new connection", number)
                for number, (host, port) in self._opening.items()
            ]
        for connection in lent:
            call = connection.oldest_call
            if call is not None:
                found.append(Unanswered(connection.where, call.api.name, call.correlation_id))
        return tuple(found)

    def give_back(self, connection: Connection) -> None:
        """Keep a leased connection for the next lease, or close it if it is unusable."""
        with self._lock:
            self._lent.discard(connection)
            waiting = self._idle.setdefault(connection.address, [])
            usable = not (connection.broken or connection.under_way or self._closed)
            if usable and len(waiting) < IDLE_CONNECTIONS_MAX:
                waiting.append(connection)
                return
        connection.close()

    def drop_idle(self, host: str, port: int) -> None:
        """Close the idle connections to a broker, because they may be broken if another one was."""
        with self._lock:
            waiting = self._idle.pop((host, port), [])
        for connection in waiting:
            connection.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle = [item for waiting in self._idle.values() for item in waiting]
            lent = list(self._lent)
            self._idle.clear()
        for connection in idle:
            connection.close()
        for connection in lent:
            connection.shut_down()

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed("the client has been closed")


def unreachable(addresses: Iterable[str], last: Exception | None) -> BrokersUnreachable:
    names = ", ".join(addresses)
    return BrokersUnreachable(f"no broker of {names} responds; the last error: {last}")


DEFAULT_PORT: Final = 9092
LEADER_NOT_AVAILABLE: Final = 5
GROUP: Final = 0
TRANSACTION: Final = 1
"""Kinds of coordinators by number: for groups and for transactional ids."""
_KINDS: Final = ("group", "transactional id")

T = TypeVar("T")


def parse_bootstrap(bootstrap: str | Sequence[str]) -> tuple[tuple[str, int], ...]:
    """Return the addresses in `host:port,host:port` or in a list; the port defaults to 9092.

    Raises:
        InvalidArgument: there is no address, or a port is not a number from 1 to 65,535.
    """
    words = bootstrap.split(",") if isinstance(bootstrap, str) else list(bootstrap)
    addresses = tuple(parse_address(word.strip()) for word in words if word.strip())
    if not addresses:
        raise InvalidArgument(f"bootstrap = {bootstrap!r}: must have at least one host:port")
    return addresses


def parse_address(text: str) -> tuple[str, int]:
    """Return the host and port of `host:port`; an IPv6 address is written in brackets.

    Raises:
        InvalidArgument: there is no host, or the port is not a number from 1 to 65,535.
    """
    bare = text.split("://", 1)[-1]
    host, colon, port = bare.rpartition(":")
    if not colon or bare.endswith("]"):
        host, port = bare, str(DEFAULT_PORT)
    number = whole_number(port, 65_535)
    if not host or not number:
        raise InvalidArgument(
            f"broker address {text!r}: must be host:port with a port from 1 to 65535"
        )
    return host.removeprefix("[").removesuffix("]"), number


def metadata_body(topics: Iterable[str] | None) -> dict[str, Any]:
    """Return the body of a Metadata request; None requests all topics."""
    return {
        "topics": None if topics is None else [{"name": name} for name in topics],
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }


class Session:
    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        client_id: str,
        request_timeout_ms: int,
        connect_timeout_ms: int,
        api_timeout_ms: int,
        retry: RetryPolicy,
        clock: Clock = SYSTEM_CLOCK,
        randomness: Randomness = SYSTEM_RANDOMNESS,
        security: ClientSecurity = NO_SECURITY,
    ) -> None:
        self.bootstrap = parse_bootstrap(bootstrap)
        self.clock = clock
        self.randomness = randomness
        self.retry = retry
        self.request_timeout_ms = request_timeout_ms
        self.pool = ConnectionPool(
            client_id=client_id,
            timeout_ms=request_timeout_ms,
            connect_timeout_ms=connect_timeout_ms,
            security=security,
        )
        self._call_retry = replace(retry, timeout_ms=api_timeout_ms)
        self._lock = threading.Lock()
        self._cache = MetadataCache()
        self._coordinators: dict[tuple[int, str], Node] = {}
        self._closed = threading.Event()
        self.trouble = ""
        """Last failure that is being retried; empty after a success."""

    def close(self) -> None:
        self._closed.set()
        self.pool.close()

    def now_ms(self) -> float:
        return self.clock.monotonic() * 1000

    def pause(self, seconds: float) -> None:
        """Wait for a time, or until the client is closed.

        Raises:
            ClientClosed: the client was closed.
        """
        if self._closed.wait(seconds):
            raise ClientClosed("the client has been closed")

    def retrying(self, attempt: Callable[[], T]) -> T:
        """Call `attempt` until it succeeds, fails permanently, or the call's time has passed.

        A failure drops the cached leaders and controller, because their broker may be down.

        Raises:
            PenstockError: the error of the last attempt.
        """
        start_ms, failures = self.now_ms(), 0
        while True:
            try:
                result = attempt()
            except (RetriableError, BrokerFailed, BrokersUnreachable) as error:
                failures += 1
                self.trouble = str(error)
                with self._lock:
                    self._cache.forget_all()
                pause = self._call_retry.pause_seconds(
                    failures,
                    elapsed_ms=self.now_ms() - start_ms,
                    chance=self.randomness.uniform(),
                )
                if pause is None:
                    note_attempts(error, failures)
                    raise
            else:
                if failures:
                    self.trouble = ""
                return result
            self.pause(pause)

    # Calls

    def call_address(self, address: tuple[str, int], name: str, body: Mapping[str, Any]) -> Any:
        """Call the broker at an address once.

        Raises:
            Disconnected, TimedOut, MalformedResponse: the connection failed.
            UnsupportedByBroker: client and broker have no common version.
        """
        connection = self.pool.lease(*address)
        reused = connection.used
        connection.used = True
        try:
            return connection.call(name, body)
        except PenstockError:
            if connection.broken and reused:
                self.pool.drop_idle(*address)
            raise
        finally:
            self.pool.give_back(connection)

    def call_any(self, name: str, body: Mapping[str, Any]) -> Any:
        """Call known brokers and bootstrap addresses, each once, until one responds.

        Raises:
            BrokersUnreachable: no broker responds.
        """
        with self._lock:
            known = [(node.host, node.port) for node in self._cache.nodes.values()]
        addresses = list(dict.fromkeys([*known, *self.bootstrap]))
        start = int(self.randomness.uniform() * max(1, len(known)))
        if known:
            addresses = addresses[start : len(known)] + addresses[:start] + addresses[len(known) :]
        last: Exception | None = None
        for address in addresses:
            try:
                return self.call_address(address, name, body)
            except RetriableError as error:
                last = error
        raise unreachable((f"{host}:{port}" for host, port in addresses), last) from last

    def call_node(self, node_id: int, name: str, body: Mapping[str, Any]) -> Any:
        """Call a broker by id once.

        Raises:
            BrokerBusy: the metadata has no broker of this id now.
        """
        node = self.node(node_id)
        return self.call_address((node.host, node.port), name, body)

    def call_controller(self, name: str, body: Mapping[str, Any]) -> Any:
        """Call the controller once, or any broker if the controller is unknown."""
        if self._cache.controller_id not in self._cache.nodes:
            self.refresh(())
        controller = self._cache.nodes.get(self._cache.controller_id)
        if controller is None:
            return self.call_any(name, body)
        return self.call_address((controller.host, controller.port), name, body)

    # Metadata

    def refresh(self, topics: Iterable[str] | None) -> ClusterMetadata:
        """Request metadata from any broker and store it in the cache; None requests all topics."""
        answer = from_response(self.call_any("Metadata", metadata_body(topics)))
        with self._lock:
            self._cache.update(answer, now_ms=self.now_ms())
        return answer

    def node(self, node_id: int) -> Node:
        """Return a broker by id.

        Raises:
            BrokerBusy: the metadata has no broker of this id now.
        """
        with self._lock:
            node = self._cache.nodes.get(node_id)
        if node is None:
            raise BrokerBusy(f"broker {node_id} is not in the cluster's metadata")
        return node

    def nodes(self) -> list[Node]:
        return sorted(self.refresh(()).nodes.values(), key=lambda node: node.node_id)

    def topic(self, name: str) -> TopicMetadata:
        """Return a topic's metadata, from the cache if it is fresh.

        Raises:
            UnknownTopic: the cluster has no such topic.
        """
        with self._lock:
            known = self._cache.topic(name, now_ms=self.now_ms())
        return known or self.retrying(lambda: self.fetch_topic(name))

    def fetch_topic(self, name: str) -> TopicMetadata:
        """Request a topic's metadata once.

        Raises:
            UnknownTopic: the cluster has no such topic.
            BrokersUnreachable: no broker responds.
            BrokerBusy: the broker cannot describe the topic now.
        """
        topic = self.refresh([name]).topics.get(name)
        if topic is None:
            raise UnknownTopic(f"topic {name!r} is not in the broker's response")
        if topic.error_code:
            raise broker_error(topic.error_code, f"topic {name!r}")
        return topic

    def leaders(self, topic: str) -> dict[int, int]:
        self.topic(topic)
        with self._lock:
            return self._cache.leaders(topic, now_ms=self.now_ms())

    def forget(self, topic: str) -> None:
        with self._lock:
            self._cache.forget([topic])

    def leaders_of(self, topic: str, partitions: Iterable[int]) -> dict[int, list[int]]:
        """Return the given partitions by the id of their leader.

        Raises:
            UnknownTopic: the topic has no such partition.
            BrokerBusy: a partition has no leader.
        """
        leaders = self.leaders(topic)
        count = len(self.topic(topic).partitions)
        by_node: dict[int, list[int]] = {}
        for partition in partitions:
            if not 0 <= partition < count:
                raise UnknownTopic(
                    f"{topic}-{partition} does not exist: topic {topic!r} has partitions 0"
                    f" to {count - 1}"
                )
            if partition not in leaders:
                self.forget(topic)
                raise broker_error(LEADER_NOT_AVAILABLE, f"{topic}-{partition}")
            by_node.setdefault(leaders[partition], []).append(partition)
        return by_node

    # Coordinators

    def call_coordinator(
        self, key: str, name: str, body: Mapping[str, Any], kind: int = GROUP
    ) -> Any:
        """Call the coordinator of a group or transactional id once; find the coordinator first if
        unknown.
        """
        with self._lock:
            node = self._coordinators.get((kind, key))
        if node is None:
            node = self._find_coordinator(key, kind)
        try:
            return self.call_address((node.host, node.port), name, body)
        except RetriableError:
            self.forget_coordinator(key, kind)
            raise

    def forget_coordinator(self, key: str, kind: int = GROUP) -> None:
        with self._lock:
            self._coordinators.pop((kind, key), None)

    def _find_coordinator(self, key: str, kind: int) -> Node:
        response = self.call_any("FindCoordinator", {"key": key, "key_type": kind})
        code = int(response.error_code)
        if code:
            message = getattr(response, "error_message", None)
            raise broker_error(code, f"coordinator of {_KINDS[kind]} {key!r}", message)
        node = Node(node_id=int(response.node_id), host=str(response.host), port=int(response.port))
        with self._lock:
            self._coordinators[kind, key] = node
        return node

    # Leases

    def lease(self, node_id: int) -> Connection:
        node = self.node(node_id)
        return self.pool.lease(node.host, node.port)
