"""A local topic becomes diskless: copied while it is used, fenced for a moment, and committed.

| state    | producers             | consumers      | after a crash                       |
|----------|-----------------------|----------------|-------------------------------------|
| copying  | append to the log     | read the log   | a local topic; what was copied is   |
|          |                       |                | swept                               |
| fenced   | NOT_LEADER, and retry | read the log   | as above                            |
| the control plane commits: objects, index, producers, configs, leader epochs, at once           |
| diskless | submit to objects     | read objects   | a diskless topic; the log is deleted|

The logs are copied in passes, each of which begins where the one before ended, until a pass was
short. Then appends and deletions are refused, what was appended becomes durable and is copied, and
all of it is committed. If anything fails before the commit, the fence goes and the topic is as it
was: the request may be made again.

The outcome of the commit may be unknown. Then the fence stays, and the commit is made again, until
it is known: records appended behind a commit that took effect would be lost. A commit that comes
after this process has died is refused, as another incarnation owns the broker's id by then.

One broker must lead all partitions of the topic: its fence is all that keeps producers out.

A request waits for the end, though not for ever: the switch goes on without it, and the same
request joins it.

Source: KIP-405 (segments in an archive), KIP-101 (leader epochs); Inkless has no such switch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final
from uuid import UUID

from penstock.base.errors import PenstockError, RetriableError
from penstock.broker.admin_errors import InvalidConfig
from penstock.broker.diskless import check_local, is_diskless
from penstock.broker.errors import NotLeader, UnknownTopicId
from penstock.broker.limits import (
    SWITCH_COMMITS_MAX,
    SWITCH_FENCE_SECONDS,
    SWITCH_PASSES_MAX,
    SWITCH_PAUSE_SECONDS,
    SWITCH_TAIL_BYTES,
    SWITCH_WAIT_SECONDS,
)
from penstock.broker.metrics import switch_samples
from penstock.control import (
    InvalidCommit,
    ObjectLeaseLost,
    StaleTopic,
    SwitchRefused,
    Topic,
    UnknownTopic,
)
from penstock.control.diskless_rules import DISKLESS_CONFIG

if TYPE_CHECKING:
    from penstock.base.metrics import Sample
    from penstock.broker.state import BrokerState
    from penstock.diskless.service import DisklessService
    from penstock.diskless.switching import TopicCopy
    from penstock.storage import PartitionLog

logger = logging.getLogger(__name__)

Changed = Callable[[Topic], Mapping[str, str]]
"""What a topic's configs become, as the topic is now."""

_REFUSALS: Final = (InvalidCommit, ObjectLeaseLost, SwitchRefused, UnknownTopic, InvalidConfig)
"""Answers after which a commit can never take effect any more."""


class SwitchRunning(RetriableError):
    """A topic is still becoming diskless; the same request asks for it again."""

    code: ClassVar[str] = "request_timed_out"


class SwitchFailed(RetriableError):
    """A topic could not become diskless for now, and is local as before."""

    code: ClassVar[str] = "kafka_storage_error"


def check_switch(state: BrokerState, topic: Topic) -> None:
    """Raise InvalidConfig if this broker cannot make a local topic diskless."""
    if state.diskless is None:
        check_local(topic.name, {DISKLESS_CONFIG: "true"})
    if topic.internal:
        raise InvalidConfig(f"topic {topic.name!r} is internal and cannot become diskless")
    leaders = sorted({partition.leader for partition in topic.partitions})
    if leaders != [state.node_id]:
        raise InvalidConfig(
            f"topic {topic.name!r}: {DISKLESS_CONFIG} = true must be asked of the broker that leads"
            f" all of its partitions; brokers {leaders} lead them, this is broker {state.node_id}"
        )


class TopicSwitches:
    """The switches of this broker, by topic id; belongs to the event loop."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._running: dict[UUID, _Switch] = {}
        self._copied_bytes = 0
        self._outcomes = {"done": 0, "failed": 0}

    async def switch(self, topic: Topic, changed: Changed) -> None:
        """Make a local topic diskless, or join whoever does; on return it is.

        Raises:
            SwitchRunning: it goes on.
            SwitchFailed, SwitchRefused, ObjectLeaseLost: the topic is local as before.
            PenstockError: so it is; store, log or control plane failed.
        """
        switch = self._running.get(topic.topic_id)
        if switch is None:
            switch = self._running[topic.topic_id] = _Switch(self._state, topic, changed)
            switch.task = asyncio.ensure_future(switch.run())
            switch.task.add_done_callback(lambda _: self._ended(topic, switch))
        done, _ = await asyncio.wait([switch.task], timeout=SWITCH_WAIT_SECONDS)
        if not done:
            raise SwitchRunning(
                f"topic {topic.name!r} is becoming diskless: {switch.state},"
                f" {switch.copied_bytes} bytes copied; it goes on, ask again"
            )
        switch.task.result()

    def _ended(self, topic: Topic, switch: _Switch) -> None:
        del self._running[topic.topic_id]
        self._copied_bytes += switch.copied_bytes
        if switch.task.cancelled():
            return
        error = switch.task.exception()
        self._outcomes["failed" if error else "done"] += 1
        if error is None:
            logger.info("topic %s is diskless: %d bytes", topic.name, switch.copied_bytes)
        elif isinstance(error, PenstockError):
            logger.warning("topic %s did not become diskless: %s", topic.name, error)
        else:
            logger.error("topic %s did not become diskless", topic.name, exc_info=error)

    async def stop(self) -> None:
        """End all; their topics stay local, unless their commit is under way."""
        tasks = [switch.task for switch in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def view(self, topic_id: UUID) -> dict[str, Any] | None:
        """How far a topic is, for the admin interface; None for one that does not switch."""
        switch = self._running.get(topic_id)
        if switch is None:
            return None
        return {
            "state": switch.state,
            "passes": switch.passes,
            "copied_bytes": switch.copied_bytes,
            "started_ms": switch.started_ms,
        }

    def samples(self) -> Iterator[Sample]:
        running = sum([switch.copied_bytes for switch in self._running.values()])
        copied_bytes = self._copied_bytes + running
        return switch_samples(len(self._running), copied_bytes, self._outcomes)


class _Switch:
    """One topic on its way."""

    task: asyncio.Future[None]

    def __init__(self, state: BrokerState, topic: Topic, changed: Changed) -> None:
        self.state = "copying"
        self.passes = 0
        self.started_ms = state.clock.now_ms()
        self._broker = state
        self._topic = topic
        self._changed = changed
        self._copy: TopicCopy | None = None
        self._logs: list[PartitionLog] = []

    @property
    def copied_bytes(self) -> int:
        return 0 if self._copy is None else self._copy.copied_bytes

    async def run(self) -> None:
        service = self._broker.diskless
        if service is None:
            check_local(self._topic.name, {DISKLESS_CONFIG: "true"})
            return
        name, count = self._topic.name, len(self._topic.partitions)
        self._logs = [self._broker.local_log(name, index) for index in range(count)]
        copy = self._copy = await service.copy_of(self._topic, self._logs)
        await self._catch_up(copy)
        self._fence(NotLeader(f"topic {name!r} is becoming diskless: ask for its leader again"))
        try:
            await self._take_the_rest(copy)
            await self._commit(service, copy)
        except Exception:
            self._fence(None)
            raise
        self.state = "diskless"
        await self._until_known(self._broker.refresh)

    async def _catch_up(self, copy: TopicCopy) -> None:
        while self.passes < SWITCH_PASSES_MAX:
            size_bytes = await copy.catch_up()
            self.passes += 1
            if size_bytes <= SWITCH_TAIL_BYTES:
                return
        raise SwitchFailed(
            f"topic {self._topic.name!r} grows as fast as it is copied: {self.passes} passes were"
            f" not enough; raise diskless.switch.bytes.per.second, or slow its producers down"
        )

    def _fence(self, error: PenstockError | None) -> None:
        self.state = "copying" if error is None else "fenced"
        for log in self._logs:
            log.fence = error

    async def _take_the_rest(self, copy: TopicCopy) -> None:
        """Behind the fence: everything that was appended becomes durable and is copied."""
        try:
            async with asyncio.timeout(SWITCH_FENCE_SECONDS):
                if self._broker.sinks is not None:
                    await self._broker.sinks.posts_ended()
                await self._durable()
                await copy.catch_up(at_once=True)
                await copy.renew()
        except TimeoutError:
            raise SwitchFailed(
                f"topic {self._topic.name!r}: its last records were not copied within"
                f" {SWITCH_FENCE_SECONDS} s"
            ) from None

    async def _durable(self) -> None:
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def ended(error: PenstockError | None) -> None:
            if durable.done():
                return
            if error is None:
                durable.set_result(None)
            else:
                durable.set_exception(error)

        self._broker.store.flush(ended)
        self._broker.commit_soon()
        await durable

    async def _commit(self, service: DisklessService, copy: TopicCopy) -> None:
        """Commit until the outcome is known; raises when it can never take effect."""
        self.state = "committing"
        for attempt in range(1, SWITCH_COMMITS_MAX + 1):
            topic = self._now()
            if is_diskless(topic):
                return
            configs = self._changed(topic)
            try:
                await self._until_known(partial(service.switch_topic, topic, configs, copy))
            except StaleTopic:
                if attempt == SWITCH_COMMITS_MAX:
                    raise
                await self._until_known(self._broker.refresh)
            else:
                return

    def _now(self) -> Topic:
        found = self._broker.topics_by_id.get(self._topic.topic_id.bytes)
        if found is None:
            raise UnknownTopicId(f"topic {self._topic.name!r} was deleted")
        return found.topic

    async def _until_known(self, attempt: Callable[[], Awaitable[None]]) -> None:
        """Do something until it is done, or refused for good; the fence stays meanwhile."""
        while True:
            try:
                return await attempt()
            except (StaleTopic, *_REFUSALS):
                raise
            except PenstockError as error:
                logger.warning("topic %s is fenced: %s; trying on", self._topic.name, error)
            except Exception:
                logger.exception("topic %s is fenced; trying on", self._topic.name)
            over = asyncio.Event()
            asyncio.get_running_loop().call_later(SWITCH_PAUSE_SECONDS, over.set)
            await over.wait()
