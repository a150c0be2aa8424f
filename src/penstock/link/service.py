"""Links of one broker: fetches from source clusters, and appends to the linked partitions it leads.

All linked topics with the same source and client options share one link. For each broker of the
source that leads a followed partition, the link has one fetch in flight, on a thread. The response
is appended on the event loop before the next fetch is sent, so memory is bounded by one response
for each source broker. The position of a partition is the end of its log. A restart, a failed
append or a response that comes late therefore needs no bookkeeping.

Clients get the topic's link epoch as leader epoch. It is raised before batches with a higher epoch
are appended; otherwise a consumer would see records that are newer than its metadata.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final, Protocol, TypeVar

from msgspec import Struct

from penstock.base.errors import CorruptError, PenstockError, RetriableError
from penstock.base.pause import pause
from penstock.base.retry import Backoff
from penstock.client.client import Client
from penstock.client.errors import MessageTooLarge, broker_error, code_name
from penstock.client.fetch import OFFSET_OUT_OF_RANGE, Asked, FetchedPartition
from penstock.control.rules.metadata import LINK_CLIENT, LINK_TOPIC_ID, link_epoch
from penstock.link.groups import copy_groups
from penstock.link.source import (
    CALL_TIMEOUT_MS,
    CLIENT_ID,
    Fetched,
    Origin,
    Source,
    options_of,
    source_problem,
)
from penstock.partitions.linked import LinkedPartition

if TYPE_CHECKING:
    from penstock.base.system import Clock, Randomness
    from penstock.client.protocol import TopicMetadata
    from penstock.client.security import ClientSecurity
    from penstock.control import Topic
    from penstock.partitions import Partition

logger = logging.getLogger(__name__)

THREADS_MAX: Final = 32
"""Maximum number of calls to source clusters at a time."""
METADATA_SECONDS: Final = 10.0
"""Time after which a link reads the source's metadata again, and so follows added partitions.

A failure after this time is logged as a new one.
"""
RETRY_SECONDS: Final = 1.0
"""Time after which a partition that could not be followed is fetched again."""
GROUPS_SECONDS: Final = 2.0
"""Time between two copies of the groups' offsets."""
UNAUTHORIZED: Final = "topic_authorization_failed"
_BACKOFF: Final = Backoff(first_ms=100, ceiling_ms=5_000, steady=0.5)

T = TypeVar("T")


class LinkDiverged(CorruptError):
    """Log of a linked partition that is no copy of its source's log."""

    code: ClassVar[str] = "offset_out_of_range"


class LinkedServed(Protocol):
    """Linked topic with the partitions that this broker leads."""

    topic: Topic
    partitions: list[Partition | None]


class LinkParts(Struct, frozen=True, kw_only=True):
    """Services of the broker that links use.

    `linked` has the linked topics by name. `keep` stores a topic's new link epoch and the id of the
    source's topic, and loads them. `add_partitions` adds partitions up to a total. `prepare` makes
    the producer ids of this broker differ from those of any source.
    """

    clock: Clock
    randomness: Randomness
    linked: Mapping[str, LinkedServed]
    keep: Callable[[Topic, int, str], Awaitable[None]]
    add_partitions: Callable[[Topic, int], Awaitable[None]]
    prepare: Callable[[], None]
    address: Callable[[], str]
    as_client: Callable[[], ClientSecurity]


def is_kept(topic: Topic, epoch: int, source_id: str) -> bool:
    """Return whether a topic has at least this link epoch, and this id of its source's topic."""
    same = source_id in ("", topic.configs.get(LINK_TOPIC_ID))
    return same and link_epoch(topic) >= epoch


class LinkService:
    """Links of one broker; belongs to the event loop."""

    def __init__(self, parts: LinkParts) -> None:
        self._parts = parts
        self._links: dict[Origin, _Link] = {}
        self._ending: set[asyncio.Future[tuple[None, None]]] = set()
        self._prepared = False
        self._threads = ThreadPoolExecutor(THREADS_MAX, "link")

    def image_changed(self) -> None:
        """Start and end links as the linked topics of the metadata image require."""
        if self._parts.linked and not self._prepared:  # also if other brokers lead the topics
            self._prepared = True
            self._parts.prepare()
        wanted: dict[Origin, set[str]] = {}
        for name, served in self._parts.linked.items():
            if any(partition is not None for partition in served.partitions):
                wanted.setdefault(Origin.of(served.topic.configs), set()).add(name)
        for origin in self._links.keys() - wanted.keys():
            self._end(self._links.pop(origin))
        for origin, names in wanted.items():
            link = self._links.get(origin)
            if link is None:
                link = self._links[origin] = _Link(origin, self._parts, self._threads)
            link.follow(names)

    async def stop(self) -> None:
        """Cancel all links, so that no unavailable source delays the stop. Idempotent."""
        links, self._links = list(self._links.values()), {}
        for link in links:
            self._end(link)
        for ending in self._ending:
            ending.cancel()
        await asyncio.gather(*self._ending, return_exceptions=True)
        self._threads.shutdown(wait=False)

    def _end(self, link: _Link) -> None:
        link.end()
        self._ending.add(link.done)
        link.done.add_done_callback(self._ending.discard)


class _Link:
    """Followed topics of one source cluster."""

    def __init__(self, origin: Origin, parts: LinkParts, threads: ThreadPoolExecutor) -> None:
        self._origin = origin
        self._parts = parts
        self._threads = threads
        self._names: set[str] = set()
        self._stale = False
        self._ended = False
        self._failed: dict[tuple[str, int], tuple[str, float]] = {}
        """Last error of each partition that could not be followed, and the time to try it again."""
        loop = asyncio.get_running_loop()
        self.done: asyncio.Future[tuple[None, None]] = asyncio.gather(
            loop.create_task(self._run(self._follow_all, "following topics")),
            loop.create_task(self._run(self._copy_groups, "copying groups")),
        )

    def follow(self, names: set[str]) -> None:
        if names != self._names:
            self._names, self._stale = names, True

    def end(self) -> None:
        self._ended = self._stale = True

    async def _call(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)

    async def _run(self, work: Callable[[], Awaitable[None]], task: str) -> None:
        """Repeat `work`, which fails or ends with the link; log the first of several failures."""
        failures = 0
        while not self._ended:
            begun = self._parts.clock.monotonic()
            try:
                await work()
            except Exception as error:
                steady = self._parts.clock.monotonic() - begun > METADATA_SECONDS
                failures = 1 if steady else failures + 1
                if not isinstance(error, PenstockError | OSError):
                    logger.exception("%s of %s failed, retrying", task, self._origin.bootstrap)
                elif failures == 1:
                    logger.warning(
                        "%s of %s failed, retrying: %s", task, self._origin.bootstrap, error
                    )
                chance = self._parts.randomness.uniform()
                await pause(_BACKOFF.pause_seconds(failures, chance=chance))

    # -- records

    async def _follow_all(self) -> None:
        """Follow the topics until the link ends, or the metadata must be read again."""
        with closing(await self._call(lambda: Source(*self._origin))) as source:
            while not self._ended:
                await self._follow_leaders(source)

    async def _follow_leaders(self, source: Source) -> None:
        self._stale = False
        names = sorted(self._names)
        found = await self._call(lambda: source.topics(names))
        topics: dict[str, TopicMetadata] = {}
        for name in self._followable(names, found):
            topics[name] = found[name]
            await self._keep_up(name, found[name])
        nodes: dict[int, list[tuple[str, int]]] = {}
        for name, topic in topics.items():
            for row in topic.partitions:
                if row.leader >= 0 and self._partition(name, row.index) is not None:
                    nodes.setdefault(row.leader, []).append((name, row.index))
        until = self._parts.clock.monotonic() + METADATA_SECONDS
        if not nodes:
            await pause(_BACKOFF.ceiling_ms / 1000)
        following = [self._follow(source, node, topics, nodes[node], until) for node in nodes]
        for result in await asyncio.gather(*following, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    def _followable(
        self, names: Sequence[str], found: Mapping[str, TopicMetadata]
    ) -> Iterator[str]:
        """Yield the topics that the source has; report the others."""
        for name in names:
            if (served := self._parts.linked.get(name)) is None:
                continue
            own, known_id = served.topic, served.topic.configs.get(LINK_TOPIC_ID, "")
            if reason := source_problem(name, found.get(name), known_id, len(own.partitions)):
                self._fail(name, -1, reason)
            else:
                yield name

    async def _keep_up(self, name: str, found: TopicMetadata) -> None:
        """Store the epoch and the id of the source's topic, and add its new partitions."""
        epoch = max([row.leader_epoch for row in found.partitions])
        await self._keep(name, epoch, str(found.topic_id or ""))
        served, count = self._parts.linked.get(name), len(found.partitions)
        try:
            if served is not None and len(served.topic.partitions) < count:
                await self._parts.add_partitions(served.topic, count)
            self._failed.pop((name, -1), None)
        except PenstockError as error:
            self._fail(name, -1, f"partitions of the source cannot be added: {error}")

    async def _follow(
        self,
        source: Source,
        node_id: int,
        topics: Mapping[str, TopicMetadata],
        places: Sequence[tuple[str, int]],
        until: float,
    ) -> None:
        """Fetch from one source broker and append, until the metadata must be read again."""
        turn = 0
        try:
            while not self._stale and self._parts.clock.monotonic() < until:
                turn, now = (turn + 1) % len(places), self._parts.clock.monotonic()
                wanted: dict[str, dict[int, Asked]] = {}
                for name, index in (*places[turn:], *places[:turn]):
                    partition = self._partition(name, index)
                    _, later = self._failed.get((name, index), ("", 0.0))
                    if partition is not None and later <= now:
                        wanted.setdefault(name, {})[index] = Asked(*partition.next_position)
                if not wanted:
                    await pause(RETRY_SECONDS)
                    continue
                for fetched in await self._call(lambda: source.fetch(node_id, wanted, topics)):  # noqa: B023
                    await self._apply(source, node_id, fetched)
        finally:
            self._stale = True

    async def _apply(self, source: Source, node_id: int, fetched: Fetched) -> None:
        partition = self._partition(fetched.topic, fetched.part.partition)
        if partition is None or partition.next_position[0] != fetched.asked.offset:
            return
        try:
            if fetched.part.error_code == OFFSET_OUT_OF_RANGE:
                await self._restart(source, node_id, partition, fetched)
            else:
                await self._append(partition, fetched)
                self._failed.pop((fetched.topic, fetched.part.partition), None)
        except RetriableError as error:
            logger.info("%s is fetched again: %s", partition.topic_partition, error)
            await pause(_BACKOFF.first_ms / 1000)
        except PenstockError as error:
            self._fail(fetched.topic, fetched.part.partition, str(error))

    async def _restart(
        self, source: Source, node_id: int, partition: LinkedPartition, fetched: Fetched
    ) -> None:
        """Restart a log at the source's log start, if the source has deleted the records below.

        Raises:
            PenstockError: the log ends above the source's log, or cannot be restarted.
        """
        name, index, end = fetched.topic, fetched.part.partition, fetched.asked.offset
        start = await self._call(lambda: source.earliest(node_id, name, index))
        if start <= end:
            raise LinkDiverged(
                f"offset {end}, the end of the log, is outside the source's log, which starts at"
                f" {start}: delete the topic, and link it again"
            )
        if partition.next_position[0] == end:
            partition.start_at(start)

    async def _append(self, partition: LinkedPartition, fetched: Fetched) -> None:
        part, walked = fetched.part, fetched.walked
        end = fetched.asked.offset
        if part.error_code:
            self._stale = True
            raise broker_error(part.error_code, f"fetch at offset {end}", self._remedy(part))
        if part.parts is not None:
            epoch, own_end = partition.end_offset_for_epoch(part.parts.epoch)
            common = min(part.parts.offset, own_end) if epoch >= 0 else part.log_start_offset
            logger.warning(
                "%s: the source's log ends epoch %d at offset %d; removing the records above",
                partition.topic_partition, part.parts.epoch, common,
            )  # fmt: skip
            partition.truncate_to(common)
            return
        partition.start_at(part.log_start_offset)
        if walked.size_bytes:
            epoch = walked.behind.epoch
            await self._keep(fetched.topic, epoch)
            if self._partition(fetched.topic, part.partition) is not partition:
                return
            batches = part.records[: walked.size_bytes]
            partition.append_linked(batches, now_ms=self._parts.clock.now_ms())
        elif len(part.records):
            raise MessageTooLarge(f"the source did not send the whole batch at offset {end}")

    def _remedy(self, part: FetchedPartition) -> str | None:
        if code_name(part.error_code) != UNAUTHORIZED:
            return None
        return (
            "the source does not permit the link to read the topic. Grant READ at the source to the"
            f" user of {LINK_CLIENT} = {self._origin.client_config or '(not set)'}"
        )

    async def _keep(self, name: str, epoch: int, source_id: str = "") -> None:
        served = self._parts.linked.get(name)
        if served is not None and not is_kept(served.topic, epoch, source_id):
            await self._parts.keep(served.topic, epoch, source_id)

    def _partition(self, name: str, index: int) -> LinkedPartition | None:
        served = self._parts.linked.get(name)
        if served is None or not 0 <= index < len(served.partitions):
            return None
        partition = served.partitions[index]
        return partition if isinstance(partition, LinkedPartition) else None

    def _fail(self, topic: str, partition: int, reason: str) -> None:
        before, _ = self._failed.get((topic, partition), ("", 0.0))
        if before != reason:
            where = topic if partition < 0 else f"{topic}-{partition}"
            logger.warning("%s cannot follow its source: %s", where, reason)
        again = self._parts.clock.monotonic() + RETRY_SECONDS
        self._failed[topic, partition] = reason, again

    # -- groups

    async def _copy_groups(self) -> None:
        """Copy the groups' offsets of topics whose first partition this broker leads."""
        address, security = self._parts.address(), self._parts.as_client()
        source, target = await self._call(lambda: self._clients(address, security))
        with source, target:  # a cancellation closes both, which ends a call on a thread
            while not self._ended:
                names = [name for name in self._names if self._partition(name, 0) is not None]
                if names:
                    failed = await self._call(partial(copy_groups, source, target, names))
                    for group, reason in failed.items():
                        logger.info("offsets of group %s were not copied: %s", group, reason)
                until = self._parts.clock.monotonic() + GROUPS_SECONDS
                while not self._ended and self._parts.clock.monotonic() < until:
                    await pause(_BACKOFF.first_ms / 1000)

    def _clients(self, address: str, security: ClientSecurity) -> tuple[Client, Client]:
        """Return clients of the source, and of this cluster."""
        options = options_of(self._origin.client_config)
        make = partial(Client, client_id=CLIENT_ID, api_timeout_ms=CALL_TIMEOUT_MS)
        return make(self._origin.bootstrap, security=options), make(address, security=security)
