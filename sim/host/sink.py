"""A model of the sink that appends to the log: verdicts at once and later, failures of all kinds.

A lane's frames reach the log in order. When one fails, those behind it fail too, and the lane takes
none after it until that one comes again: so the product's sink does it.

When the agent dies its verdicts vanish. What was on its way to the log may still arrive there,
later, in order.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from penstock.host.port import (
    ACCEPTED,
    PENDING,
    ChunkFormat,
    Chunks,
    Completion,
    Failed,
    FinalVerdict,
    Verdict,
)
from sim.host.history import HEAD, Item
from sim.host.log import MODULUS, Append
from sim.host.scheduler import Violation

if TYPE_CHECKING:
    from sim.host.world import World

FRAMES_MAX = 12
EARLIER = Failed("an earlier frame of this lane failed", retryable=True)


class _Job:
    """A frame on its way to the log."""

    __slots__ = ("chunks", "complete", "due", "failed", "item", "lane", "payload", "written")

    def __init__(self, lane: _Lane, chunks: Chunks, item: Item, complete: Completion) -> None:
        self.lane = lane
        self.chunks = chunks
        self.item = item
        self.complete = complete
        # A payload in the ring is looked at when it is written, as the product's sink does.
        inline = isinstance(chunks.payload.obj, bytes)
        self.payload = memoryview(bytes(chunks.payload)) if inline else chunks.payload
        self.due = 0
        self.written = False
        self.failed: Failed | None = None


class _Lane:
    """One producer's frames for one partition."""

    __slots__ = ("jobs", "last_ms", "resume_at")

    def __init__(self) -> None:
        self.jobs: deque[_Job] = deque()
        self.last_ms = 0.0
        self.resume_at = -1

    def admits(self, sequence: int) -> bool:
        if self.resume_at < 0 or sequence < 0:
            return True
        ahead = (sequence - self.resume_at) % MODULUS
        if ahead == 0:
            self.resume_at = -1
        return ahead == 0 or ahead >= MODULUS // 2


class ModelSink:
    """One agent's sink."""

    name = "model"

    def __init__(self, world: World, *, accepts_early: bool = False) -> None:
        self._world = world
        self._lanes: dict[tuple[object, ...], _Lane] = {}
        self._accepts_early = accepts_early
        self.frames = 0
        self.from_ring = 0
        self.stopped = False
        self._dead = False

    def accept(self, chunks: Chunks, complete: Completion) -> Verdict:
        """As the port says."""
        world = self._world
        item = self._item(chunks)
        item.deliveries += 1
        self.from_ring += isinstance(chunks.payload.obj, bytearray)
        knobs = world.knobs
        if self.stopped or self.frames >= FRAMES_MAX or world.chance(knobs.saturation):
            return Failed("saturated", True, world.random.choice((0, 5, 60)))
        if item.poison:
            return Failed("poison", retryable=False)
        if world.chance(knobs.refusal):
            return Failed("refused", retryable=False)
        key = (
            chunks.producer_id, chunks.producer_epoch, chunks.topic, chunks.partition,
            chunks.log_sequence >= 0,
        )  # fmt: skip
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane()
        if not lane.admits(chunks.log_sequence):
            return EARLIER
        job = _Job(lane, chunks, item, complete)
        if not lane.jobs and world.random.random() < knobs.at_once:
            self._write(job)
            return self._verdict(job)
        self.frames += 1
        lane.jobs.append(job)
        self._plan(lane, job)
        if self._accepts_early:
            item.accepted_by_sink = True
            job.complete = lambda verdict: None
            return ACCEPTED
        return PENDING

    def _plan(self, lane: _Lane, job: _Job) -> None:
        world = self._world
        lane.last_ms = max(lane.last_ms, world.now_ms + world.delay_ms())
        job.due += 1
        due = job.due
        world.at(lane.last_ms, lambda: self._arrive(lane, job, due))

    def _arrive(self, lane: _Lane, job: _Job, due: int) -> None:
        if due != job.due or job not in lane.jobs:
            return
        self._write(job)
        job.written = True
        if self._dead:
            lane.jobs.remove(job)
            return
        self._world.after(self._world.delay_ms(), lambda: self._answered(lane, job))

    def _answered(self, lane: _Lane, job: _Job) -> None:
        if self._dead:
            return
        lane.jobs.remove(job)
        self.frames -= 1
        self._complete(job, self._verdict(job))

    def _complete(self, job: _Job, verdict: FinalVerdict) -> None:
        self._world.note("complete", job.item.number, type(verdict).__name__)
        job.complete(verdict)

    def _verdict(self, job: _Job) -> FinalVerdict:
        if job.failed is not None:
            return job.failed
        job.item.accepted_by_sink = True
        return ACCEPTED

    def _write(self, job: _Job) -> None:
        """Let a frame reach the log, or not, and remember what its verdict will be."""
        world, lane, chunks = self._world, job.lane, job.chunks
        if job.failed is not None:
            return
        unanswered = not self._dead and world.chance(world.knobs.broker_failure)
        if not (unanswered and world.random.random() < 0.5):
            job.failed = self._append(job)
        if unanswered and job.failed is None:
            job.failed = Failed("no answer of the broker", retryable=True)
        if job.failed is not None and chunks.log_sequence >= 0:
            lane.resume_at = chunks.log_sequence
            for behind in lane.jobs:
                if behind is not job and not behind.written:
                    behind.failed = EARLIER

    def _append(self, job: _Job) -> Failed | None:
        chunks, world = job.chunks, self._world
        sequence = chunks.log_sequence
        for data, records in self._batches(job):
            outcome = world.log.append(
                (chunks.topic, chunks.partition), chunks.producer_id, chunks.producer_epoch,
                sequence, records, data,
            )  # fmt: skip
            world.note("append", job.item.number, sequence, chunks.producer_epoch, outcome.value)
            if outcome in (Append.OUT_OF_ORDER, Append.FENCED):
                return Failed(outcome.value, retryable=outcome is Append.OUT_OF_ORDER)
            if sequence >= 0:
                sequence = (sequence + records) % MODULUS
        return None

    def _batches(self, job: _Job) -> list[tuple[bytes, int]]:
        chunks = job.chunks
        data = bytes(job.payload)
        if chunks.format is ChunkFormat.OPAQUE:
            return [(data, chunks.count)]
        batches, at = [], 0
        for size in chunks.lengths.tolist():
            piece = data[at : at + size]
            batches.append((piece, HEAD.unpack_from(piece)[2]))
            at += size
        return batches

    def _item(self, chunks: Chunks) -> Item:
        """The item that a frame is; every byte must be as it was sent."""
        data = bytes(chunks.payload)
        items = self._world.history.items
        number = HEAD.unpack_from(data)[0] if len(data) >= HEAD.size else len(items)
        if number >= len(items):
            raise Violation("the agent handed over bytes that nobody has sent")
        item = items[number]
        if data != b"".join(item.chunks) or chunks.count != len(item.chunks):
            raise Violation(f"the agent handed over {item} with other bytes")
        return item

    def die(self) -> None:
        """Lose all verdicts; some of what was on its way arrives, some does not."""
        self._dead = self.stopped = True
        world = self._world
        for lane in self._lanes.values():
            jobs = [job for job in lane.jobs if not job.written]
            survive = world.random.randint(0, len(jobs))
            lane.jobs = deque(jobs[:survive])
            if world.random.random() < 0.3:
                lane.last_ms = world.now_ms + 3_000 * world.random.random()
                for job in lane.jobs:
                    self._plan(lane, job)
