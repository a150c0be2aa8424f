"""Exactly-once sink of a broker: posted commits, retries of unfinished commits, staged blobs.

One commit per query, and at most `sink.commits.max` in total, run at a time. `commit.py` decides,
`roll_forward.py` appends. If a commit fails after its intent is saved, the broker retries it in the
background, with growing pauses; at its start it retries all open intents. The client need not
repeat the post. A batch that writes only diskless topics has no intent (`roll_forward.py`): if its
commit fails, the client must repeat the post.

Open intents protect their blobs from the sweep of orphans, and their producers from expiry. These
protections are restored before the broker's first upkeep.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from penstock.base.errors import CorruptError, InvalidError, PenstockError
from penstock.base.retry import Backoff
from penstock.broker.batch_commits.commit import (
    Decision,
    SinkContext,
    SinkCounters,
    continued,
    decide,
    has_producer,
    key_of,
    plan_targets,
    runs_to_verify,
)
from penstock.broker.batch_commits.manifest import (
    CommitUnderWay,
    InconsistentTopicId,
    InvalidCommit,
    Manifest,
    NotFinished,
    SinkOwnerChanged,
    StagingUnavailable,
    TopicIdPartition,
    UnknownSink,
    decode_manifest,
    encode_manifest,
)
from penstock.broker.batch_commits.pieces import PieceReader, check_blobs, remove_blobs
from penstock.broker.batch_commits.roll_forward import (
    ReplicatedTarget,
    RollForward,
    check_size,
    commit_objects,
    last_sequence,
    target_of,
)
from penstock.broker.batch_commits.staging import StagingArea
from penstock.broker.net.errors import InternalTopic, ShuttingDown, UnknownTopicOrPartition
from penstock.broker.requests.schema_ids import Candidate
from penstock.control import SinkCommit, SinkTarget
from penstock.partitions import LocalPartition, Partition, ReplicatedPartition, look_up_watermarks

if TYPE_CHECKING:
    from penstock.base.metrics import Sample
    from penstock.broker.requests.opening import Opened
    from penstock.storage import LogConfig, PartitionLog

SWEEP_SECONDS: Final = 60.0
REDRIVE_BACKOFF: Final = Backoff(first_ms=100, ceiling_ms=30_000)

logger = logging.getLogger(__name__)

Outcome = Literal["appended", "replayed"]


class Committed(Struct, frozen=True, kw_only=True):
    """Response to a posted commit; `targets` are the written partitions with known offsets."""

    query: str
    batch_id: int
    outcome: Outcome
    records: int
    targets: tuple[SinkTarget, ...] = ()


class _Turn:
    """Lock of a query, and the number of its holders and waiters."""

    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0


class SinkService:
    """Service that commits batches of exactly-once sinks; belongs to the event loop."""

    def __init__(self, context: SinkContext) -> None:
        self._context = context
        self.area = StagingArea(
            context.settings, clock=context.clock, randomness=context.randomness
        )
        self.counters = SinkCounters()
        self._turns: dict[str, _Turn] = {}
        self._slots = asyncio.Semaphore(context.settings.sink_commits_max)
        self._held: dict[str, frozenset[str]] = {}
        self._open: dict[str, frozenset[int]] = {}
        self._due: dict[str, tuple[int, float]] = {}
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[Committed]] = set()
        self._upkeep: asyncio.Task[None] | None = None

    # -- life --------------------------------------------------------------------------------

    async def start(self) -> None:
        """Create the staging directory and restore open intents.

        Raises:
            StagingUnavailable: the directory cannot be used.
            ControlUnavailable: the control plane cannot be reached.
        """
        await self.area.start()
        for known in await self._context.control.sink_commits():
            if known.state == "intent":
                row = await self._context.control.sink_commit(known.query_id)
                if row is not None:
                    await self._take_up(row)
                    self._due[row.query_id] = (0, self._context.clock.monotonic())
        self._context.registry.add(self.samples)
        self._upkeep = asyncio.create_task(self._keep_up())

    async def stop(self) -> None:
        """Cancel commits; the next start retries them."""
        tasks: list[asyncio.Task[Committed] | asyncio.Task[None]] = [*self._tasks]
        if self._upkeep is not None:
            tasks.append(self._upkeep)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def posts_ended(self) -> None:
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    @property
    def prepared_commits(self) -> int:
        return len(self._open)

    def samples(self) -> Iterator[Sample]:
        counters, staged = self.counters, self.area.staged
        counters.open_intents = self.prepared_commits
        counters.staged_bytes, counters.staged_blobs = staged.size_bytes, staged.files
        counters.orphans = self.area.removed_orphans
        return counters.samples()

    # -- requests ----------------------------------------------------------------------------

    async def post(
        self, *, query: str, batch_id: int, owner: str | None, manifest: Manifest
    ) -> Committed:
        """Commit a batch; on return, all its records are in the log and durable.

        Idempotent. The commit continues if its caller is cancelled.

        Raises:
            InvalidCommit, UnknownTopicOrPartition, NotLeader, InconsistentTopicId,
            SinkOwnerChanged, NotEnoughReplicas, TooFewReplicas: nothing was recorded.
            NotFinished: the commit may be recorded; repeat the post to wait for it.
        """
        if self._context.stopping.is_set():
            raise ShuttingDown("the broker is stopping")
        task = asyncio.create_task(self._post(query, batch_id, owner, manifest))
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    async def check(
        self, *, query: str, batch_id: int, owner: str | None, manifest: Manifest
    ) -> None:
        """Check that a post of this batch would be accepted now.

        Raises:
            PenstockError: the error with which `post` would refuse the batch.
        """
        async with self._turn(query):
            row = await self._context.control.sink_commit(query)
            decision = decide(row, batch_id=batch_id, owner=owner)
            if decision is Decision.OWNER_CHANGED:
                raise SinkOwnerChanged(query, str(owner), "" if row is None else str(row.owner))
            if decision is Decision.BEGIN:
                await self._check_post(manifest, self._context.clock.now_ms())

    async def forget(self, query: str, *, abandon: bool = False) -> SinkCommit:
        """Delete the state of a query, whose next commit may then have any batch id.

        `abandon` allows this during an open intent, of which the log may have a part.

        Raises:
            UnknownSink: the query has no state.
            CommitUnderWay: a commit of the query is not finished.
        """
        async with self._turn(query):
            row = await self.commit_of(query)
            if row.state == "intent" and not abandon:
                raise CommitUnderWay(
                    f"query {query!r} has not finished batch {row.batch_id}, which is being"
                    " retried; repeat the request when it is done"
                )
            await self._context.control.delete_sink_commit(query, expected_version=row.version)
            self._close(query)
            return row

    async def commit_of(self, query: str) -> SinkCommit:
        """Return the newest commit of a query.

        Raises:
            UnknownSink: the query has no commit.
        """
        row = await self._context.control.sink_commit(query)
        if row is None:
            raise UnknownSink(f"query {query!r} has no known commit")
        return row

    # -- a post ------------------------------------------------------------------------------

    def _ended(self, task: asyncio.Task[Committed]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self.counters.commits[task.result().outcome] += 1
        else:
            self.counters.commits["failed" if isinstance(error, NotFinished) else "refused"] += 1

    async def _post(
        self, query: str, batch_id: int, owner: str | None, manifest: Manifest
    ) -> Committed:
        async with self._turn(query):
            while True:
                row = await self._context.control.sink_commit(query)
                decision = decide(row, batch_id=batch_id, owner=owner)
                if decision is Decision.BEGIN:
                    done = await self._begin(row, query, batch_id, owner, manifest)
                    return _committed(done, "appended")
                if row is None or decision is Decision.OWNER_CHANGED:
                    found = "" if row is None else str(row.owner)
                    raise SinkOwnerChanged(query, str(owner), found)
                if decision is Decision.FINISH:
                    await self._finish(row)
                    continue
                await self._discard(manifest.names)
                if row.batch_id == batch_id:
                    await self._look_at_ends(row)
                    return _committed(row, "replayed")
                return Committed(query=query, batch_id=batch_id, outcome="replayed", records=0)

    async def _begin(
        self,
        row: SinkCommit | None,
        query: str,
        batch_id: int,
        owner: str | None,
        manifest: Manifest,
    ) -> SinkCommit:
        now_ms = self._context.clock.now_ms()
        async with self.area.guard:
            self._held[query] = manifest.names
        try:
            found, remotes = await self._check_post(manifest, now_ms)
            local = {key: p.log for key, p in found.items() if isinstance(p, LocalPartition)}
            at_once = _at_once(manifest, remotes, len(found))
            begun = SinkCommit(
                query_id=query,
                owner=owner if owner is not None or row is None else row.owner,
                batch_id=batch_id,
                state="intent" if manifest.blobs else "done",
                targets=await self._targets(row, manifest, local, remotes),
                updated_ms=now_ms,
                version=0 if row is None else row.version,
            )
            if not at_once:
                stored = await asyncio.to_thread(encode_manifest, manifest)
                begun = replace(begun, manifest=stored)
                self._pin(begun)
        except BaseException:
            self._close(query)
            raise
        if at_once:
            return await self._commit_at_once(begun, manifest, remotes)
        try:
            saved = await self._save(begun)
        except InvalidError:
            self._close(query)
            raise
        except PenstockError as error:
            self._schedule_retry(query)
            raise NotFinished(
                f"query {query!r}: batch {batch_id} may or may not be recorded: {error}"
            ) from error
        if saved.state == "intent":
            return await self._finish(saved)
        self._close(query)
        return saved

    async def _commit_at_once(
        self, begun: SinkCommit, manifest: Manifest, remotes: Mapping[TopicIdPartition, Partition]
    ) -> SinkCommit:
        """Commit a batch that writes only diskless partitions, which needs no intent."""
        query = begun.query_id
        try:
            done = await commit_objects(
                replace(begun, state="done"),
                manifest,
                remotes,
                context=self._context,
                directory=self.area.directory,
                counters=self.counters,
            )
        except InvalidError:
            self._close(query)
            raise
        except (PenstockError, OSError) as error:
            self._schedule_retry(query)
            raise NotFinished(
                f"query {query!r}: batch {begun.batch_id} may or may not be recorded: {error}"
            ) from error
        except BaseException:
            self._schedule_retry(query)
            raise
        self._close(query)
        await self._discard(manifest.names)
        return done

    async def _look_at_ends(self, row: SinkCommit) -> None:
        """Look up the ends of a commit's diskless partitions, so that readers see its records.

        The broker that committed may have failed before it reported the ends.
        """
        written = {target.topic_id.bytes for target in row.targets if not has_producer(target)}
        topics = [self._context.partitions.topics_by_id.get(topic_id) for topic_id in written]
        try:
            await look_up_watermarks(
                partition for topic in topics if topic is not None for partition in topic.partitions
            )
        except PenstockError as error:
            logger.warning("query %r: cannot look up ends of partitions: %s", row.query_id, error)

    async def _check_post(
        self, manifest: Manifest, now_ms: int
    ) -> tuple[
        dict[TopicIdPartition, Partition | ReplicatedTarget], dict[TopicIdPartition, Partition]
    ]:
        """Check that all sections can be appended; return all partitions, and the diskless ones."""
        await self._context.cluster.refresh()
        await self._verify(manifest, now_ms)
        found = self._partitions(manifest)
        remotes = {
            key: partition
            for key, partition in found.items()
            if not isinstance(partition, (LocalPartition, ReplicatedTarget))
        }
        check_size(self._context, manifest, remotes)
        return found, remotes

    async def _verify(self, manifest: Manifest, now_ms: int) -> None:
        partitions = self._partitions(manifest)
        directory = self.area.directory
        try:
            await asyncio.to_thread(check_blobs, directory, manifest.blobs)
            configs = {key: partition.config for key, partition in partitions.items()}
            reader = PieceReader(directory, runs_to_verify(manifest), configs)
            while (with_ids := await asyncio.to_thread(reader.verify, now_ms)) is not None:
                if with_ids:
                    await self._check_ids(manifest, configs, with_ids)
        except InvalidCommit:
            raise
        except (InvalidError, CorruptError) as error:
            raise InvalidCommit(f"a staged section is invalid: {error}") from error
        except OSError as error:
            raise StagingUnavailable(f"reading {directory} failed: {error}") from error

    async def _check_ids(
        self,
        manifest: Manifest,
        configs: Mapping[TopicIdPartition, LogConfig],
        pieces: Sequence[tuple[TopicIdPartition, Opened]],
    ) -> None:
        """Check the schema ids of pieces as those of produced batches; raises PenstockError."""
        targets = manifest.targets()
        candidates = [Candidate(targets[key][0], configs[key], piece) for key, piece in pieces]
        for outcome in await self._context.schema_checks.checked(candidates):
            if isinstance(outcome, Exception):
                raise outcome

    def _partitions(
        self, manifest: Manifest
    ) -> dict[TopicIdPartition, Partition | ReplicatedTarget]:
        context = self._context
        partitions: dict[TopicIdPartition, Partition | ReplicatedTarget] = {}
        for key, (name, _) in manifest.targets().items():
            topic = context.partitions.topics.get(name)
            if topic is None:
                raise UnknownTopicOrPartition(f"topic {name!r} does not exist")
            if topic.topic.internal:
                raise InternalTopic(name)
            if topic.topic.topic_id != key.topic_id:
                raise InconsistentTopicId(
                    f"topic {name!r} was recreated: it has id {topic.topic.topic_id}, but the blobs"
                    f" were staged for {key.topic_id}"
                )
            count = len(topic.partitions)
            if key.partition >= count:
                raise InvalidCommit(
                    f"topic {name!r} has partitions 0 to {count - 1}, not {key.partition}"
                )
            if topic.diskless:
                partitions[key] = context.partitions.partition_of(topic, key.partition)
                continue
            found = partitions[key] = target_of(context, topic, key.partition)
            if isinstance(found, LocalPartition):
                if found.log.state.fence is not None:
                    raise found.log.state.fence
                if isinstance(found, ReplicatedPartition):
                    found.check_in_sync()
        return partitions

    async def _targets(
        self,
        row: SinkCommit | None,
        manifest: Manifest,
        logs: Mapping[TopicIdPartition, PartitionLog],
        diskless: Collection[TopicIdPartition],
    ) -> tuple[SinkTarget, ...]:
        if manifest.transactional:  # each attempt has a new producer
            logs, diskless = {}, manifest.targets()
        known = {} if row is None else {key_of(target): target for target in row.targets}
        continuing = continued(
            row,
            manifest,
            {
                key: last_sequence(log, known[key].producer_id)
                for key, log in logs.items()
                if key in known
            },
        )
        count = len(manifest.targets().keys() - continuing.keys() - {*diskless})
        ids = await self._context.control.allocate_producer_ids(count) if count else range(0)
        topics = self._context.partitions.topics.values()
        return plan_targets(
            row,
            manifest,
            continuing=continuing,
            diskless=diskless,
            new_producers=iter(ids),
            topic_ids=frozenset([topic.topic.topic_id for topic in topics]),
        )

    async def _finish(self, row: SinkCommit) -> SinkCommit:
        query = row.query_id
        try:
            names = self._held.get(query, frozenset())
            drive = RollForward(self._context, self.area.directory, self.counters, save=self._save)
            done = await drive.finish(row)
        except (PenstockError, OSError) as error:
            self._schedule_retry(query)
            raise NotFinished(
                f"query {query!r}: batch {row.batch_id} is recorded but not finished: {error}"
            ) from error
        except BaseException:
            self._schedule_retry(query)
            raise
        self._close(query)
        await self._discard(names)
        return done

    async def _save(self, row: SinkCommit) -> SinkCommit:
        self._pin(row)
        version = await self._context.control.save_sink_commit(row, expected_version=row.version)
        return replace(row, version=version)

    # -- protection by open intents ----------------------------------------------------------

    async def _take_up(self, row: SinkCommit) -> None:
        manifest = await asyncio.to_thread(decode_manifest, row.manifest)
        async with self.area.guard:
            self._held[row.query_id] = manifest.names
        self._pin(row)

    def _pin(self, row: SinkCommit) -> None:
        before = self._open.get(row.query_id, frozenset())
        written = [target for target in row.targets if target.records and has_producer(target)]
        now = frozenset([target.producer_id for target in written])
        self._open[row.query_id] = now
        kept = self._context.store.kept_producers
        kept -= before
        kept |= now

    def _close(self, query: str) -> None:
        self._held.pop(query, None)
        self._due.pop(query, None)
        self._context.store.kept_producers.difference_update(self._open.pop(query, ()))

    def _all_held(self) -> frozenset[str]:
        return frozenset().union(*self._held.values())

    async def _discard(self, names: frozenset[str]) -> None:
        """Remove the blobs of a finished batch; the sweep retries failed removals."""
        try:
            async with self.area.guard:
                free = sorted(names - self._all_held())
                await asyncio.to_thread(remove_blobs, self.area.directory, free)
        except OSError as error:
            logger.warning("removing staged blobs failed: %s", error)

    # -- turns and upkeep --------------------------------------------------------------------

    @asynccontextmanager
    async def _turn(self, query: str) -> AsyncIterator[None]:
        turn = self._turns.setdefault(query, _Turn())
        turn.users += 1
        try:
            async with turn.lock, self._slots:
                yield
        finally:
            turn.users -= 1
            if not turn.users:
                del self._turns[query]

    def _schedule_retry(self, query: str) -> None:
        attempts = self._due.get(query, (0, 0.0))[0] + 1
        pause = REDRIVE_BACKOFF.pause_seconds(attempts)
        self._due[query] = attempts, self._context.clock.monotonic() + pause
        self._wake.set()

    async def _keep_up(self) -> None:
        sweep_at = self._context.clock.monotonic()
        while True:
            self._wake.clear()
            now = self._context.clock.monotonic()
            for query in [query for query, (_, at) in self._due.items() if at <= now]:
                await self._retry_commit(query)
            if now >= sweep_at:
                sweep_at = now + SWEEP_SECONDS
                await self.area.sweep(self._all_held)
            until = min([sweep_at, *[at for _, at in self._due.values()]])
            # Not wait_for, which loses a cancellation that arrives together with the event.
            pause = max(0.0, until - self._context.clock.monotonic())
            timer = asyncio.get_running_loop().call_later(pause, self._wake.set)
            try:
                await self._wake.wait()
            finally:
                timer.cancel()

    async def _retry_commit(self, query: str) -> None:
        try:
            async with self._turn(query):
                row = await self._context.control.sink_commit(query)
                if row is None or row.state == "done":
                    self._close(query)
                    if row is not None:
                        await self._look_at_ends(row)
                    return
                self.counters.redrives += 1
                await self._take_up(row)
                await self._finish(row)
                logger.info("query %r: batch %d is finished", query, row.batch_id)
        except NotFinished as error:
            logger.warning("%s", error)
        except Exception:
            logger.exception("retrying the commit of query %r failed", query)
            self._schedule_retry(query)


def _at_once(manifest: Manifest, remotes: Collection[TopicIdPartition], count: int) -> bool:
    return 0 < len(remotes) == count


def _committed(row: SinkCommit, outcome: Outcome) -> Committed:
    return Committed(
        query=row.query_id,
        batch_id=row.batch_id,
        outcome=outcome,
        records=sum([target.records for target in row.targets]),
        targets=tuple(
            target for target in row.targets if target.records and target.base_offset >= 0
        ),
    )
