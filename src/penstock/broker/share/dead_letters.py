"""Dead letters of share groups: copies of archived records in the group's dead letter topic.

`broker/share/dead_letter_records.py` builds the dead letters; this module checks the topic and
writes them. A record is resolved only after its dead letter is written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final
from uuid import UUID

from msgspec import Struct

from penstock.base.errors import InvalidError, InvalidSetting, PenstockError, RetriableError
from penstock.base.pause import pause
from penstock.base.retry import Backoff
from penstock.broker.configuration.configs import Levels, topic_config
from penstock.broker.configuration.groups import check_letter_topic
from penstock.broker.net.errors import NotLeader, UnknownTopicId
from penstock.broker.share.shares import Shares, place_of
from penstock.broker.share.values import Cause, ShareSettings, Undeliverable
from penstock.broker.topics.audit_topic import OwnAppender
from penstock.broker.topics.plan import TopicSpec
from penstock.storage.files.values import Later

if TYPE_CHECKING:
    from penstock.base.system import Clock
    from penstock.broker.configuration.settings import BrokerSettings
    from penstock.broker.fetch.operation import FetchHub, SharedReads
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.net.listeners import Identity
    from penstock.broker.partitions.registry import PartitionRegistry
    from penstock.broker.share.dead_letter_records import DeadLetters
    from penstock.broker.share.dead_letter_records import Read as LogRead
    from penstock.broker.share.stored import StoredShare
    from penstock.broker.topics.admin import TopicAdmin
    from penstock.client.producers import ProducerIdentity
    from penstock.control import Topic
    from penstock.partitions import Partition


# Checks of a dead letter topic, and the size limit of its batches.
#
# The broker writes dead letters with its own identity, not with that of a client. The topic must
# therefore allow dead letters in its config, and its name must have the prefix from the broker's
# settings.
#
# Source: KIP-1191, "Security".


ENABLE: Final = "errors.deadletterqueue.group.enable"


class DeadLettersRefused(InvalidError):
    """The topic does not accept dead letters; the archived records wait."""

    code: ClassVar[str] = "invalid_config"


class DeadLetterTopicMissing(DeadLettersRefused):
    code: ClassVar[str] = "unknown_topic_or_partition"


class DeadLetterTooLarge(DeadLettersRefused):
    code: ClassVar[str] = "message_too_large"


class Target(Struct, frozen=True, kw_only=True):
    topic: str
    partitions: int
    batch_bytes_max: int

    def partition(self, of_source: int) -> int:
        return of_source % self.partitions


def target_of(
    group: str,
    name: str,
    topics: Mapping[str, Topic],
    *,
    settings: BrokerSettings,
    levels: Levels,
) -> Target:
    """Return the topic of a group's dead letters, with its partition count and size limit.

    Raises:
        DeadLettersRefused: the topic is missing, or does not allow dead letters.
    """
    subject = f"dead letters of group {group!r}"
    try:
        check_letter_topic(settings, name)
    except InvalidSetting as error:
        raise DeadLettersRefused(f"{subject}: {error}") from None
    topic = topics.get(name)
    if topic is None:
        raise DeadLetterTopicMissing(
            f"{subject}: topic {name!r} does not exist; create it with {ENABLE}=true"
        )
    try:
        config = topic_config(levels, topic.configs)
    except InvalidSetting as error:
        raise DeadLettersRefused(f"{subject}: topic {name!r}: {error}") from None
    if not config.errors_deadletterqueue_group_enable:
        raise DeadLettersRefused(f"{subject}: topic {name!r} must have {ENABLE}=true")
    return Target(
        topic=name,
        partitions=len(topic.partitions),
        batch_bytes_max=config.max_message_bytes,
    )


# Writer of dead letters: copies archived records to the dead letter topic, then resolves them.
#
#     archiving, stored ─▶ read by batches ─▶ built in a thread ─▶ appended ─▶ resolved, stored
#         ▲                    │ deleted, aborted: only counted                │
#         └── a pause ◀────────┴── any error: records wait, the cause is shown ◀┘
#
# A dead letter is written only for a record whose archiving state is stored. A record is resolved
# only after its dead letter is committed. After a crash, the next leader therefore continues from
# the stored row. A crash between the last two steps causes duplicate dead letters; their headers
# identify them (`broker/share/dead_letter_records.py`).
#
# The broker is a client of the dead letter topic, even for partitions that it leads
# (`topics/audit_topic.py`). A share partition has at most one task; at most `DEAD_LETTER_TASKS_MAX`
# tasks write concurrently. Waiting records count toward the lock limit of their share partition,
# which limits their number.


DEAD_LETTER_TASKS_MAX: Final = 8
"""Maximum number of share partitions whose dead letters are written concurrently."""
DEAD_LETTER_READ_BYTES: Final = 1 << 20
"""Maximum bytes of one read for dead letters; a single batch may be larger."""
DEAD_LETTER_WAIT_SECONDS: Final = 30.0
"""Time limit of a load from an object store for dead letters."""
DEAD_LETTER_TIMEOUT_MS: Final = 30_000
"""Time limit of one append of dead letters; the share partition then pauses and retries."""
DEAD_LETTER_PRODUCERS_IDLE_MAX: Final = 8
"""Maximum number of idle producers of dead letters that are kept for reuse."""

logger = logging.getLogger(__name__)

CLIENT_ID: Final = "penstock-dead-letters"
_BACKOFF: Final = Backoff(first_ms=100, ceiling_ms=30_000, steady=0.5)


class NotReadable(RetriableError):
    code: ClassVar[str] = "not_leader_or_follower"


class Trouble(Struct, frozen=True, kw_only=True):
    """Reason why the dead letters of a share partition cannot be written."""

    group: str
    topic: str
    partition: int
    letter_topic: str
    error: str
    reason: str


class _Arrival:
    def __init__(self) -> None:
        self.there = asyncio.Event()

    def look_again(self, reads: SharedReads) -> None:
        self.there.set()

    def expire(self) -> None:
        self.there.set()


class DeadLetterWriter:
    """Writer of the dead letters of share groups. Belongs to the event-loop thread."""

    def __init__(
        self,
        *,
        settings: BrokerSettings,
        clock: Clock,
        cluster: ClusterMetadata,
        partitions: PartitionRegistry,
        topic_admin: TopicAdmin,
        fetch_hub: FetchHub,
        identity: Identity,
        shares: Shares,
        settings_of: Callable[[str], ShareSettings],
        changed: Callable[[Iterable[object]], None],
    ) -> None:
        """Create the writer.

        `changed` is called with share partitions that have fewer locked records than before, so
        that waiting fetches may acquire records.
        """
        self._settings = settings
        self._clock = clock
        self._cluster = cluster
        self._partitions = partitions
        self._topic_admin = topic_admin
        self._fetch_hub = fetch_hub
        self._shares = shares
        self._settings_of = settings_of
        self._changed = changed
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._newest: dict[str, StoredShare] = {}
        self._turns = asyncio.Semaphore(DEAD_LETTER_TASKS_MAX)
        self._news = asyncio.Event()
        self._client = OwnAppender(identity, CLIENT_ID, timeout_ms=DEAD_LETTER_TIMEOUT_MS)
        self._producers: list[ProducerIdentity] = []
        self._stopped = False
        self.troubles: dict[str, Trouble] = {}
        """Causes of failed writes, by share partition."""
        self.written = dict.fromkeys(Cause, 0)
        self.deleted = self.aborted = self.unwanted = self.failures = 0
        """Numbers of records without a dead letter, by cause, and of failed attempts."""

    @property
    def waiting(self) -> int:
        return len(self._tasks)

    def look(self, stored: StoredShare) -> None:
        if self._stopped:
            return
        key = stored.key
        self._newest[key] = stored
        if key not in self._tasks:
            self._tasks[key] = asyncio.get_running_loop().create_task(self._run(key))

    def image_changed(self) -> None:
        """Retry paused share partitions now, because their topics may have changed."""
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def stop(self) -> None:
        """Cancel writes; the next leader of each partition writes its dead letters. Idempotent."""
        self._stopped = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.stop()

    # One share partition

    async def _run(self, key: str) -> None:
        failures = 0
        try:
            while (stored := self._newest[key]).share.awaiting_dead_letters() and not stored.lost:
                try:
                    async with self._turns:
                        await self._write(stored)
                    failures = 0
                except (NotLeader, UnknownTopicId):
                    return  # the new leader continues when it opens the share partition
                except PenstockError as error:
                    failures += 1
                    self._failed(stored, error, failures)
                    await self._pause(failures)
        except Exception:  # retried when the share partition is opened again
            logger.exception("writing dead letters of share partition %s failed", key)
        finally:
            for kept in (self._tasks, self._newest, self.troubles):
                kept.pop(key, None)

    async def _pause(self, failures: int) -> None:
        news = asyncio.ensure_future(self._news.wait())
        over = asyncio.ensure_future(pause(_BACKOFF.pause_seconds(failures)))
        try:
            await asyncio.wait((news, over), return_when=asyncio.FIRST_COMPLETED)
        finally:
            news.cancel()
            over.cancel()

    def _failed(self, stored: StoredShare, error: PenstockError, failures: int) -> None:
        self.failures += 1
        group, topic_id, index = place_of(stored.key)
        served = self._partitions.topics_by_id.get(topic_id.bytes)
        self.troubles[stored.key] = Trouble(
            group=group,
            topic=str(topic_id) if served is None else served.topic.name,
            partition=index,
            letter_topic=self._settings_of(group).dead_letter_topic,
            error=error.code,
            reason=str(error),
        )
        if failures == 1:
            logger.warning("dead letters of share partition %s wait: %s", stored.key, error)

    async def _write(self, stored: StoredShare) -> None:
        given = stored.share.awaiting_dead_letters()
        await stored.all_stored()
        group, topic_id, index = place_of(stored.key)
        settings = self._settings_of(group)
        source = self._source(topic_id, index)
        topic = source.topic_partition.topic
        if settings.dead_letter_topic in ("", topic):
            await self._resolve(stored, given)
            self.unwanted += sum(run.records for run in given)
            return
        target = await self._target(group, settings.dead_letter_topic)
        if source.look_up is not None:
            await source.look_up([source])
        self._shares.log_begins(stored, source)
        too_large = largest = 0
        at = max(given[0].first, source.log_start_offset)
        while any(run.last >= at for run in given):
            at = next(max(run.first, at) for run in given if run.last >= at)
            read = await self._read(source, at, committed=settings.committed)
            result = await self._copied(stored, given, read, target, settings)
            too_large += result.too_large
            largest = max(largest, result.largest)
            at = read.end
        if too_large:
            raise DeadLetterTooLarge(
                f"dead letters of group {group!r}: {too_large} dead letters of {topic}-{index} are"
                f" larger than max.message.bytes = {target.batch_bytes_max} of topic"
                f" {target.topic!r}, the largest has {largest} bytes; raise max.message.bytes"
            )

    def _source(self, topic_id: UUID, index: int) -> Partition:
        served = self._partitions.topics_by_id.get(topic_id.bytes)
        if served is None:
            raise UnknownTopicId(f"topic id {topic_id} does not exist")
        return self._partitions.partition_of(served, index)

    async def _resolve(self, stored: StoredShare, done: Sequence[Undeliverable]) -> int:
        """Store that records are resolved after their dead letters; return their number."""
        count = sum(stored.share.archived(run.first, run.last) for run in done)
        if count:
            self._changed((stored.key,))
            await asyncio.shield(stored.store())
        return count

    async def _target(self, group: str, name: str) -> Target:
        admin, settings = self._topic_admin, self._settings
        levels: Levels = admin.levels()
        create = settings.errors_deadletterqueue_auto_create_topics_enable
        if create and name not in self._cluster.image.topics:
            spec = TopicSpec(name=name, configs=((ENABLE, "true"),))
            [made] = await admin.create(admin.plan([spec]))
            if isinstance(made, PenstockError) and made.code != "topic_already_exists":
                raise made
        topics = self._cluster.image.topics
        return target_of(group, name, topics, settings=settings, levels=levels)

    async def _read(self, source: Partition, at: int, *, committed: bool) -> LogRead:
        from penstock.broker.share.dead_letter_records import Read

        end = source.last_stable_offset if committed else source.high_watermark
        if end <= at:
            raise NotReadable(f"{source.topic_partition} is readable up to {end}, not {at}")
        for _ in range(2):
            found = source.read(
                at, max_bytes=DEAD_LETTER_READ_BYTES, end_offset=end, at_least_one=True
            )
            if not isinstance(found, Later):
                break
            await self._loaded(source, found)
        else:
            raise NotReadable(f"{source.topic_partition} at {at} has not been loaded")
        if found.next_offset <= at:
            raise NotReadable(f"{source.topic_partition} has no batch at offset {at}")
        aborted = await source.all_aborted(at, found.next_offset) if committed else ()
        return Read(data=b"".join(found.buffers), begin=at, end=found.next_offset, aborted=aborted)

    async def _loaded(self, source: Partition, later: Later) -> None:
        hub, arrival = self._fetch_hub, _Arrival()
        sources: list[object] = [source]
        timer = hub.add(arrival, sources, DEAD_LETTER_WAIT_SECONDS)
        try:
            later.load([later.want], DEAD_LETTER_READ_BYTES)
            await arrival.there.wait()
        finally:
            hub.remove(arrival, sources)
            if timer is not None:
                timer.cancel()

    async def _copied(
        self,
        stored: StoredShare,
        given: Sequence[Undeliverable],
        read: LogRead,
        target: Target,
        settings: ShareSettings,
    ) -> DeadLetters:
        from penstock.broker.share.dead_letter_records import Source, Writing, dead_letters

        group, topic_id, index = place_of(stored.key)
        topic = self._source(topic_id, index).topic_partition.topic
        partition = target.partition(index)
        # Reuse only producers without failed appends: after a failure the sequence is unknown.
        producer = self._producers.pop() if self._producers else await self._client.producer()
        result = await asyncio.to_thread(
            dead_letters,
            read,
            given,
            Source(group=group, topic=topic, partition=index, copies=settings.copies),
            Writing(
                now_ms=self._clock.now_ms(),
                batch_bytes_max=target.batch_bytes_max,
                producer_id=producer.producer_id,
                base_sequence=producer.sequence(target.topic, partition),
            ),
        )
        if result.batches:
            await self._client.append(producer, target.topic, partition, result.batches)
        if len(self._producers) < DEAD_LETTER_PRODUCERS_IDLE_MAX:
            self._producers.append(producer)
        for cause, count in result.written.items():
            self.written[cause] += count
        self.deleted += result.deleted
        self.aborted += result.aborted
        await self._resolve(stored, result.done)
        return result
