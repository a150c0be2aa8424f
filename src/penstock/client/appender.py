"""Appender of encoded batches of many producers, on an event loop.

An agent or gateway holds batches of many producers. Each batch must be appended with its producer's
own id and sequence, in order, exactly once. A producer partition is one producer's sequence of
batches to one partition. `ProducerPartitionState` decides for each producer partition which batches
may be sent, and how to handle a response. This module has the timers and the connections, one per
broker. The requests of all producer partitions are pipelined on a broker's connection.

    append -> its partition -> may it send now? -> the leader's connection -> response -> done
                       |  no: it waits for one of
                       |- its topic's metadata          (topic.waiting, woken by the look-up)
                       |- the leader's connection       (node.waiting, woken when it can write)
                       |- the pause after a failure     (a timer of the partition)
                       '- the response to an earlier batch

The blocking `Session` requests metadata and producer ids, on a few threads. The queue of appends
has no bound here, so the caller must bound what it appends. The caller may release a batch's memory
after `done`.

Source: `client/writer.py` is the blocking shell around the same core; KIP-98.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

from penstock.base.errors import BugError, InvalidError, PenstockError
from penstock.base.retry import RetryPolicy
from penstock.base.system import SYSTEM_RANDOMNESS, Randomness
from penstock.client import errors
from penstock.client.errors import (
    BrokerBusy,
    ClientClosed,
    Disconnected,
    InvalidArgument,
    UnknownTopic,
    broker_error,
)
from penstock.client.pipeline import Pipeline, connect
from penstock.client.produce import ProduceRequest, produce_call, read_acknowledgements
from penstock.client.producer_partitions import (
    Completed,
    Done,
    Pieces,
    ProducerPartition,
    ProducerPartitionState,
)
from penstock.client.producers import ProducerIdentities
from penstock.client.security import ClientSecurity, read_security
from penstock.client.session import Session

PRODUCER_PARTITIONS_MAX: Final = 16_384
"""Maximum number of producer partitions in an appender's memory; above it idle ones are dropped."""
APPENDER_CONNECT_TIMEOUT_MS: Final = 3_000
"""Maximum time in milliseconds for opening a connection."""
APPENDER_CALL_THREADS: Final = 2
"""Threads for blocking requests of producer ids, topics and sequences, off the event loop."""
APPENDER_PARTITIONS_LOOKED_AT: Final = 8
"""Maximum number of producer partitions that one append checks for an idle one to drop."""
METADATA_PAUSE_MS: Final = 100
"""Minimum time in milliseconds between two metadata requests for one topic."""

logger = logging.getLogger(__name__)
T = TypeVar("T")
_ACKS_ALL: Final = -1


class _Ticket(NamedTuple):
    producer_partition: ProducerPartitionState
    request: ProduceRequest


class _Topic:
    """Metadata of a topic, and the producer partitions that wait for fresher metadata."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.leaders: Mapping[int, int] = {}
        self.known = False
        self.loading = False
        self.failures = 0
        self.not_before = 0.0
        self.waiting: dict[ProducerPartitionState, None] = {}
        self.timer: asyncio.TimerHandle | None = None


class _Node:
    """Broker with its connection, or connection attempt, and the producer partitions waiting for
    it."""

    def __init__(self, appender: Appender, node_id: int) -> None:
        self.node_id = node_id
        self.pipeline: Pipeline[_Ticket] | None = None
        self.connecting = False
        self.failures = 0
        self.timer: asyncio.TimerHandle | None = None
        self.waiting: OrderedDict[ProducerPartitionState, None] = OrderedDict()
        self._appender = appender

    @property
    def writable(self) -> bool:
        return self.pipeline is not None and self.pipeline.writable

    def answered(self, ticket: _Ticket, response: Any) -> None:
        self._appender._answered(ticket, response)

    def may_send(self) -> None:
        self._appender._wake(self)

    def lost(self, tickets: list[_Ticket], error: PenstockError) -> None:
        self.pipeline = None
        self._appender._lost(self, tickets, error)


class Appender:
    """Appender of batches; all methods except the constructor run on one event loop.

    Args:
        bootstrap: `host:port`, several separated by commas, or a list of them.
        client_id: the client's name in the broker's logs.
        retry: limits of a batch's retries; beyond them its append fails with `TimedOut`.
        api_timeout_ms: maximum time of `start`, `producer_id`, `partitions` and `last_sequence`.
        security: as for `Client`.

    Raises:
        InvalidArgument: an address is invalid; no connection was opened.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        client_id: str = "penstock",
        retry: RetryPolicy = errors.RETRY,
        request_timeout_ms: int = errors.REQUEST_TIMEOUT_MS,
        connect_timeout_ms: int = APPENDER_CONNECT_TIMEOUT_MS,
        api_timeout_ms: int = errors.REQUEST_TIMEOUT_MS,
        randomness: Randomness = SYSTEM_RANDOMNESS,
        security: Mapping[str, str] | ClientSecurity | None = None,
    ) -> None:
        self._retry = retry
        self._security = read_security(security)
        self._client_id = client_id.encode()
        self._request_timeout_ms = request_timeout_ms
        self._connect_timeout_ms = connect_timeout_ms
        self._randomness = randomness
        self._session = Session(
            bootstrap,
            client_id=client_id,
            request_timeout_ms=request_timeout_ms,
            connect_timeout_ms=connect_timeout_ms,
            api_timeout_ms=api_timeout_ms,
            retry=self._retry,
            security=self._security,
        )
        self._identities = ProducerIdentities(self._session)
        # The owner's calls have other threads, so that they never delay metadata look-ups.
        self._looks = ThreadPoolExecutor(1, "penstock-appender-metadata")
        self._calls = ThreadPoolExecutor(APPENDER_CALL_THREADS, "penstock-appender")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._producer_partitions: OrderedDict[ProducerPartition, ProducerPartitionState] = (
            OrderedDict()
        )
        self._topics: dict[str, _Topic] = {}
        self._nodes: dict[int, _Node] = {}
        self._timers: dict[ProducerPartitionState, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._drained = asyncio.Event()
        self._stopping = False
        self._closed = False
        self.pending_appends = 0
        self.retries = 0

    @property
    def producer_partitions(self) -> int:
        return len(self._producer_partitions)

    async def start(self) -> None:
        """Connect to the cluster.

        Raises:
            PenstockError: no broker responds; the appender is then closed.
        """
        self._loop = asyncio.get_running_loop()
        try:
            await self.find()
        except BaseException:
            self._close()
            raise

    async def find(self) -> None:
        """Connect to any broker.

        Raises:
            PenstockError: no broker responds within the API timeout.
        """
        await self._call(lambda: self._session.retrying(lambda: self._session.refresh(())))

    async def producer_id(self) -> int:
        """Return a new producer id, whose first epoch is 0.

        Raises:
            PenstockError: no broker assigned an id.
        """
        return (await self._call(self._identities.borrow)).producer_id

    async def partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic.

        Raises:
            UnknownTopic: the cluster has no such topic.
            PenstockError: no broker responds.
        """
        return len((await self._call(lambda: self._session.topic(topic))).partitions)

    async def last_sequence(self, producer_partition: ProducerPartition) -> int | None:
        """Return the producer's last sequence, as the partition's leader knows it; None if it has
        none.

        Raises:
            UnknownTopic: the cluster has no such partition.
            PenstockError: no leader responds.
        """
        where = producer_partition
        return await self._call(lambda: self._session.retrying(lambda: self._last_sequence(where)))

    def _last_sequence(self, where: ProducerPartition) -> int | None:
        [leader] = self._session.leaders_of(where.topic, [where.partition])
        body = {"topics": [{"name": where.topic, "partition_indexes": [where.partition]}]}
        answer = self._session.call_node(leader, "DescribeProducers", body)
        [found] = answer.topics[0].partitions
        if found.error_code:
            raise broker_error(int(found.error_code), str(where), found.error_message)
        if found.error_message is not None:
            raise BrokerBusy(
                f"{where}: the broker did not respond as the leader: {found.error_message}"
            )
        known = {
            int(active_producer.producer_id): int(active_producer.last_sequence)
            for active_producer in found.active_producers
        }
        return known.get(where.producer_id)

    def append(
        self,
        producer_partition: ProducerPartition,
        batches: Sequence[Pieces],
        base_sequence: int,
        done: Done,
    ) -> PenstockError | None:
        """Queue batches that succeed or fail together, after earlier appends.

        `done` is called once, later, on the loop: with None when all batches are acknowledged, or
        with the error. The memory of the batches must not change until then. If an error is
        returned, nothing was queued and `done` is not called.

        `base_sequence` is the sequence of the first record; -1 if the producer is not idempotent.
        """
        if self._loop is None or self._stopping:
            return ClientClosed("the appender is not running")
        if not batches:
            return InvalidArgument(f"append to {producer_partition}: must have at least one batch")
        state = self._producer_partition(producer_partition)
        refused = state.admit(base_sequence)
        if refused is not None:
            return refused
        state.add(batches, base_sequence, done)
        self.pending_appends += 1
        self._pump(state, appending=True)
        return None

    async def stop(self, deadline_seconds: float) -> None:
        """Wait for queued appends up to the deadline; fail the others with `ClientClosed`."""
        self._stopping = True
        if self.pending_appends:
            try:
                async with asyncio.timeout(deadline_seconds):
                    await self._drained.wait()
            except TimeoutError:
                logger.warning(
                    "%d appends were not acknowledged within %.1f s",
                    self.pending_appends,
                    deadline_seconds,
                )
        self._close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        error = ClientClosed("the appender has been stopped")
        closing = [node.pipeline for node in self._nodes.values() if node.pipeline is not None]
        for pipeline in closing:
            pipeline.abort(error)
        if closing:
            await asyncio.wait([pipeline.closed for pipeline in closing])
        for state in list(self._producer_partitions.values()):
            if not state.idle:
                state.fail(error)
                self._complete(state.collapse())
        self._producer_partitions.clear()

    def _close(self) -> None:
        self._stopping = self._closed = True
        self._session.close()
        for executor in (self._looks, self._calls):
            executor.shutdown(wait=False, cancel_futures=True)
        timers = [topic.timer for topic in self._topics.values()]
        timers += [node.timer for node in self._nodes.values()]
        timers += self._timers.values()
        for timer in timers:
            if timer is not None:
                timer.cancel()

    # Producer partitions

    def _producer_partition(self, producer_partition: ProducerPartition) -> ProducerPartitionState:
        state = self._producer_partitions.get(producer_partition)
        if state is not None:
            self._producer_partitions.move_to_end(producer_partition)
            return state
        if len(self._producer_partitions) >= PRODUCER_PARTITIONS_MAX:
            self._forget_idle()
        state = self._producer_partitions[producer_partition] = ProducerPartitionState(
            producer_partition, self._retry
        )
        return state

    def _forget_idle(self) -> None:
        oldest = list(islice(self._producer_partitions, APPENDER_PARTITIONS_LOOKED_AT))
        for producer_partition in oldest:
            if len(self._producer_partitions) < PRODUCER_PARTITIONS_MAX:
                return
            if self._producer_partitions[producer_partition].idle:
                del self._producer_partitions[producer_partition]

    def _pump(
        self, state: ProducerPartitionState, *, looked_up: bool = False, appending: bool = False
    ) -> None:
        """Send the requests that the producer partition may send, or register it to be woken later.

        With `looked_up` the topic's metadata is fresh. With `appending`, no callback is called
        before `append` has returned.
        """
        while not self._closed and self._loop is not None:
            core = state.core
            if core.error is not None:
                if appending:
                    self._loop.call_soon(self._pump, state)
                else:
                    self._complete(state.collapse())
                return
            if not core.waiting:
                return
            now_ms = self._now_ms()
            if now_ms < core.not_before_ms:
                self._pause(state, core.not_before_ms - now_ms)
                return
            topic = self._topic(state.producer_partition.topic)
            if not looked_up and (core.metadata_stale or not topic.known):
                self._learn(topic, state)
                return
            looked_up = False
            node = self._leader(topic, state)
            if node is not None and not node.writable:
                self._await(node, state)
                return
            request = state.next_request(topic.leaders, now_ms)
            if request is not None and node is not None:
                self._send(node, state, request)
            elif core.error is None and not core.metadata_stale:
                return  # requests in flight must be answered first

    def _pause(self, state: ProducerPartitionState, pause_ms: float) -> None:
        if state not in self._timers and self._loop is not None:
            wake = self._loop.call_later(pause_ms / 1000, self._resume, state)
            self._timers[state] = wake

    def _resume(self, state: ProducerPartitionState) -> None:
        self._timers.pop(state, None)
        self._pump(state)

    def _complete(self, completed: Iterable[Completed]) -> None:
        for done, error in completed:
            self.pending_appends -= 1
            try:
                done(error)
            except Exception:
                logger.exception("the callback of an append failed")
        if self._stopping and not self.pending_appends:
            self._drained.set()

    # Topics

    def _topic(self, name: str) -> _Topic:
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = _Topic(name)
        return topic

    def _learn(self, topic: _Topic, state: ProducerPartitionState) -> None:
        topic.waiting[state] = None
        if topic.loading or topic.timer is not None or self._loop is None:
            return
        pause = topic.not_before - self._loop.time()
        if pause > 0:
            topic.timer = self._loop.call_later(pause, self._start_look_up, topic)
        else:
            self._start_look_up(topic)

    def _start_look_up(self, topic: _Topic) -> None:
        topic.timer = None
        topic.loading = True
        self._spawn(self._look_up(topic))

    async def _look_up(self, topic: _Topic) -> None:
        loop = asyncio.get_running_loop()
        count = 0
        fatal: PenstockError | None = None
        pause = METADATA_PAUSE_MS / 1000
        try:
            count, topic.leaders = await loop.run_in_executor(self._looks, self._ask, topic.name)
            topic.known, topic.failures = True, 0
        except InvalidError as error:
            fatal = error
            self._topics.pop(topic.name, None)
        except Exception as error:  # partitions retry later
            if not isinstance(error, PenstockError):
                logger.exception("requesting metadata of topic %s failed", topic.name)
            topic.failures += 1
            pause = self._backoff_seconds(topic.failures)
        topic.loading = False
        topic.not_before = loop.time() + pause
        waiting, topic.waiting = topic.waiting, {}
        for state in waiting:
            state.core.metadata_stale = False
            partition = state.producer_partition.partition
            if fatal is not None:
                state.fail(fatal)
            elif count and not 0 <= partition < count:
                text = f"topic {topic.name!r} has partitions 0 to {count - 1}"
                state.fail(UnknownTopic(f"{topic.name}-{partition}: {text}"))
            self._pump(state, looked_up=True)

    def _ask(self, name: str) -> tuple[int, Mapping[int, int]]:
        """Return a topic's number of partitions and the leader of each; runs on a thread."""
        self._session.forget(name)
        count = len(self._session.fetch_topic(name).partitions)
        return count, self._session.leaders(name)

    # Brokers

    def _leader(self, topic: _Topic, state: ProducerPartitionState) -> _Node | None:
        node_id = topic.leaders.get(state.producer_partition.partition)
        if node_id is None:
            return None
        node = self._nodes.get(node_id)
        if node is None:
            node = self._nodes[node_id] = _Node(self, node_id)
        return node

    def _await(self, node: _Node, state: ProducerPartitionState) -> None:
        node.waiting[state] = None
        if node.pipeline is None and not node.connecting and node.timer is None:
            self._connect(node)

    def _connect(self, node: _Node) -> None:
        node.timer = None
        node.connecting = True
        self._spawn(self._open(node))

    async def _open(self, node: _Node) -> None:
        try:
            address = self._session.node(node.node_id)
            pipeline = await connect(
                address.host,
                address.port,
                node,
                client_id=self._client_id,
                timeout_ms=self._request_timeout_ms,
                connect_timeout_ms=self._connect_timeout_ms,
                security=self._security,
            )
        except Exception as error:
            node.connecting = False
            if not isinstance(error, PenstockError):
                logger.exception("the connection to broker %d failed", node.node_id)
                error = Disconnected(f"broker {node.node_id}: {error!r}")
            self._unreachable(node, error)
            return
        node.connecting = False
        if pipeline.lost_by is not None:
            self._unreachable(node, pipeline.lost_by)
            return
        node.failures = 0
        node.pipeline = pipeline
        self._wake(node)

    def _wake(self, node: _Node) -> None:
        while node.waiting and node.writable:
            self._pump(node.waiting.popitem(last=False)[0])

    def _unreachable(self, node: _Node, error: PenstockError) -> None:
        node.failures += 1
        if self._loop is not None and not self._closed:
            pause = self._backoff_seconds(node.failures)
            node.timer = self._loop.call_later(pause, self._try_again, node)
        waiting, node.waiting = node.waiting, OrderedDict()
        for state in waiting:
            if isinstance(error, InvalidError):
                state.fail(error)
            request = state.next_request(
                {state.producer_partition.partition: node.node_id}, self._now_ms()
            )
            if request is not None:
                self._disconnected(state, [request], error)
            self._pump(state)

    def _try_again(self, node: _Node) -> None:
        node.timer = None
        if node.waiting:
            self._connect(node)

    def _send(self, node: _Node, state: ProducerPartitionState, request: ProduceRequest) -> None:
        pipeline = node.pipeline
        if pipeline is None:
            raise BugError(f"a request to broker {node.node_id} has no connection")
        call = produce_call(
            request,
            topic=state.producer_partition.topic,
            acks=_ACKS_ALL,
            timeout_ms=self._request_timeout_ms,
            correlation_id=pipeline.next_correlation_id(),
            client_id=self._client_id,
            transactional_id=state.producer_partition.transactional_id,
        )
        pipeline.send(call, _Ticket(state, request))

    def _answered(self, ticket: _Ticket, response: Any) -> None:
        state, request = ticket
        completed = state.answered(
            request,
            read_acknowledgements(response),
            now_ms=self._now_ms(),
            chance=self._randomness.uniform(),
        )
        self._complete(completed)
        self._pump(state)

    def _lost(self, node: _Node, tickets: list[_Ticket], error: PenstockError) -> None:
        by_lane: dict[ProducerPartitionState, list[ProduceRequest]] = {}
        for state, request in tickets:
            by_lane.setdefault(state, []).append(request)
        for state, requests in by_lane.items():
            self._disconnected(state, requests, error)
        waiting, node.waiting = node.waiting, OrderedDict()
        for state in dict.fromkeys((*by_lane, *waiting)):
            self._pump(state)

    def _disconnected(
        self,
        state: ProducerPartitionState,
        requests: Sequence[ProduceRequest],
        error: PenstockError,
    ) -> None:
        self.retries += len(requests)
        state.disconnected(
            requests, error, now_ms=self._now_ms(), chance=self._randomness.uniform()
        )
        state.core.metadata_stale = True

    # The loop

    def _now_ms(self) -> float:
        return 0.0 if self._loop is None else self._loop.time() * 1000

    def _backoff_seconds(self, failures: int) -> float:
        return self._retry.backoff.pause_seconds(failures, chance=self._randomness.uniform())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _call(self, work: Callable[[], T]) -> T:
        if self._loop is None or self._closed:
            raise ClientClosed("the appender is not running")
        return await self._loop.run_in_executor(self._calls, work)
