"""Repeated Produce requests: not decoded, and joined if a turn has several to one partition.

    connections --take--> requests of each target --flush--> one append each --> responses

A producer repeats all bytes of its requests before the records, except the correlation id. After
an ordinary batch, the connection stores these bytes with a `Target`: topic, partition and version.
Later requests that begin with the same bytes are not decoded. Where an append needs no group
(`Committer.write_through`), a kernel (`kernels/produce.py`) checks the batch of each, which is then
appended at once.

Once a turn of the event loop has several requests to a partition, those of the next turn share an
append, until a turn has only one. They wait until the turn ends, or until the broker handles any
other request. Another kernel then checks their batches and copies them into one buffer. From the
first request that it does not accept on, requests are handled one by one.

This needs the kernels' machine code: compiling them with Numba would load NumPy into the broker.
"""

from __future__ import annotations

import logging
import struct
from array import array
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import accumulate
from operator import add
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import Struct

from penstock.base.crc import crc32c
from penstock.base.errors import BugError, PenstockError
from penstock.broker.net.connection import Connection, Expiring, RequestContext
from penstock.broker.net.errors import error_number, error_of
from penstock.partitions import LocalPartition
from penstock.records.header import (
    CHECKED_FROM,
    FLAGS_AT,
    HEADER,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    BatchHeader,
    header_of,
)
from penstock.security import EVERYTHING
from penstock.storage.log.validation import PlainLimits, plain_limits
from penstock.wire.kafka.apis import BY_NAME
from penstock.wire.kafka.framing import uvarint
from penstock.wire.kafka.produce import FLEXIBLE_FROM, PartitionResult, encode_single_frame

if TYPE_CHECKING:
    from penstock.base.system import Clock
    from penstock.broker.partitions.registry import PartitionRegistry, ServedTopic
    from penstock.broker.quotas.service import Quotas
    from penstock.broker.requests.metrics import RequestMetrics
    from penstock.partitions import GroupCommits
    from penstock.security import Authoriser, Rights
    from penstock.storage import LogConfig, StorageError

logger = logging.getLogger(__name__)

JOINED_FRAME_BYTES_MAX: Final = 2 << 10
"""Size of the largest request that is joined; larger ones gain little."""
JOINED_REQUESTS_MAX: Final = 64
"""Most requests that share an append."""
QUEUED_REQUESTS: Final = 32
"""Requests that are queued for a group after one could not be appended at once."""
REPEATS_MAX: Final = 1024
"""Most targets of a connection."""
TARGETS_MAX: Final = 64 << 10
"""Most targets of the broker."""
SIZES_MAX: Final = 4
"""Most sizes of the beginnings that a connection repeats, one for each length of a topic's name."""

_PRODUCE: Final = BY_NAME["Produce"]
_CORRELATION = struct.Struct(">i")
_CORRELATION_AT: Final = 4
_REPEATED_FROM: Final = 8
"""Position of the repeated bytes, after API key, version and correlation id."""
_TAGS_BYTES: Final = 3


class Target(Struct, eq=False):
    """Partition to which requests of one version are joined, and the requests that wait."""

    version: int
    key: bytes
    index: int
    topic: ServedTopic | None
    partition: LocalPartition | None
    requests: list[Request]
    turn: int = -1
    """Last turn of the event loop with a request (`GroupCommits.turn`)."""
    busy: bool = False
    """Whether a turn had several requests, so that it pays to join them."""
    queued: int = 0
    """Number of next requests that are not tried to be appended at once, after one failed."""
    config: LogConfig | None = None
    limits_ms: int = 0
    limits: PlainLimits | None = None

    def arrived(self, turn: int) -> None:
        """Count a request that is not joined with others."""
        self.busy = self.busy or self.turn == turn
        self.turn = turn

    def limits_at(self, config: LogConfig, now_ms: int) -> PlainLimits | None:
        """Return `plain_limits`, which stay the same for a millisecond."""
        if self.limits_ms != now_ms or self.config is not config:
            self.limits_ms, self.config = now_ms, config
            self.limits = plain_limits(config, now_ms)
        return self.limits

    def retire(self) -> None:
        """Release the objects, which may have been replaced; the requests are handled alone."""
        self.topic = self.partition = None


class Repeat(NamedTuple):
    """Fields of a connection's requests that begin with the same bytes."""

    target: Target
    client_id: str | None
    body_offset: int
    timeout_seconds: float


class Repeats(Struct, eq=False):
    """Beginnings of the requests of a connection, and their sizes."""

    joining: Joining
    connection: Connection
    sizes: list[int]
    known: dict[bytes, Repeat]
    missed: bool = True
    """Whether the last request began in an unknown way."""

    def take(self, frame: memoryview) -> bool:
        """Handle a request, at once or at the next flush; return whether that is possible."""
        return self.joining.take(self, frame)

    def find(self, data: bytes) -> tuple[Repeat | None, int]:
        """Return the fields of a request that begins like an earlier one, and the position of its
        records' length."""
        head = data[:_CORRELATION_AT]
        for at in self.sizes:
            known = self.known.get(head + data[_REPEATED_FROM:at])
            if known is not None:
                self.missed = False
                return known, at
        self.missed = True
        return None, 0

    def store(self, beginning: bytes, size: int, repeat: Repeat) -> None:
        """Store a beginning; forget all others first if there are too many."""
        new_size = size not in self.sizes
        if len(self.known) >= REPEATS_MAX or (new_size and len(self.sizes) >= SIZES_MAX):
            self.known.clear()
            self.sizes[:] = [size]
        elif new_size:
            self.sizes.append(size)
        self.known[beginning] = repeat


Request = tuple[RequestContext, bytes, int, Repeat]
"""Request that waits, its frame, and the position of its records' length."""


class Joining:
    """Joins the Produce requests of each event loop turn; belongs to the event loop."""

    def __init__(
        self,
        *,
        authoriser: Authoriser,
        clock: Clock,
        commits: GroupCommits,
        metrics: RequestMetrics,
        partitions: PartitionRegistry,
        quotas: Quotas,
        produce_waiting: dict[Expiring, None],
    ) -> None:
        self._authoriser = authoriser
        self.clock = clock
        self._commits = commits
        self.metrics = metrics
        self._partitions = partitions
        self._quotas = quotas
        self.produce_waiting = produce_waiting
        self._targets: dict[tuple[int, bytes, int], Target] = {}
        self._generation = -1
        self._arrived = 0.0
        self.handle: Callable[[RequestContext, memoryview, int], None] = _no_handler
        """Handles a request alone, given its frame and the position of its body."""
        self.answer: Callable[[RequestContext, bytes, PartitionResult], None] = _no_handler
        """Sends the response to a request alone, given its topic's name or id."""
        self._waiting: list[Target] = []
        """Targets with requests, in the order of their first request."""
        commits.before_commit = self.flush

    def remember(
        self,
        context: RequestContext,
        frame: memoryview,
        body_offset: int,
        records_bytes: int,
        topic: ServedTopic,
        partition: LocalPartition,
        place: tuple[bytes, int, float],
    ) -> None:
        """Handle later requests of the connection that begin like this one without decoding them.

        `place` has the topic's name or id, the partition's index, and the timeout in seconds.
        """
        version, connection = context.version, context.connection
        if (
            len(frame) > JOINED_FRAME_BYTES_MAX
            or connection.checks_requests
            or _native("join_batches") is None
        ):
            return
        if self._generation != self._partitions.generation or len(self._targets) >= TARGETS_MAX:
            self._retire()
        key, index, timeout_seconds = place
        target = self._targets.get((version, key, index))
        if target is None:
            target = Target(version, key, index, topic, partition, [])
            self._targets[version, key, index] = target
        target.arrived(self._commits.turn)
        if not (target.busy or self._commits.at_once):
            return
        repeats = connection.repeats
        if not isinstance(repeats, Repeats):
            repeats = connection.repeats = Repeats(self, connection, [], {})
        elif not repeats.missed:
            return
        at = len(frame) - records_bytes
        if version >= FLEXIBLE_FROM:
            at -= _TAGS_BYTES + len(uvarint(records_bytes + 1))
        else:
            at -= _CORRELATION.size
        repeats.store(
            bytes(frame[:_CORRELATION_AT]) + bytes(frame[_REPEATED_FROM:at]),
            at,
            Repeat(target, context.client_id, body_offset, timeout_seconds),
        )

    def take(self, repeats: Repeats, frame: memoryview) -> bool:
        if not self._commits.repeats or len(frame) > JOINED_FRAME_BYTES_MAX or self._quotas.active:
            return False
        if self._generation != self._partitions.generation:
            self._retire()
        data = bytes(frame)
        known, at = repeats.find(data)
        if known is None:
            return False
        target, connection = known.target, repeats.connection
        topic, version = target.topic, target.version
        if topic is None or at + HEADER_BYTES >= len(data):
            repeats.missed = topic is None
            return False
        length_bytes = 4 if version < FLEXIBLE_FROM else 1 if data[at] < 128 else 2
        if data[at + length_bytes + FLAGS_AT]:  # compressed or transactional
            return False
        rights = self._rights(connection)
        if not rights.allows("write", "topic", topic.topic.name):
            return False
        if not (target.busy and self._commits.crowded):
            return self._commits.at_once and self._append_alone(connection, known, data, at)
        if not self._waiting:
            self._arrived = self.clock.monotonic()
            self._commits.gathered = True
            self._commits.schedule()
        context = RequestContext(
            api=_PRODUCE, version=version, client_id=known.client_id, connection=connection,
            correlation_id=_CORRELATION.unpack_from(data, _CORRELATION_AT)[0],
            started=self._arrived, rights=rights,
        )  # fmt: skip
        connection.opened(context)
        if not target.requests:
            self._waiting.append(target)
            target.turn = self._commits.turn
        target.requests.append((context, data, at, known))
        return True

    def _append_alone(self, connection: Connection, known: Repeat, data: bytes, at: int) -> bool:
        """Append the batch of a request at once, and respond; return whether that was possible."""
        find, target, clock = _native("find_batch"), known.target, self.clock
        partition = target.partition
        if find is None or partition is None or connection.has_others:
            return False
        if target.queued:
            target.queued -= 1
            return False
        started, now_ms, log = clock.monotonic(), clock.now_ms(), partition.log
        config = log.state.config
        limits = target.limits_at(config, now_ms)
        if limits is None:
            target.queued = QUEUED_REQUESTS
            return False
        start, size_bytes = find(data, at, target.version >= FLEXIBLE_FROM, *limits)
        if not size_bytes:
            return False
        batch = memoryview(bytearray(data[start : start + size_bytes]))
        header = header_of(HEADER.unpack_from(batch))
        if crc32c(batch[CHECKED_FROM:]) != header.crc:
            return False
        try:
            appended = log.append_checked(batch, header, config=config, now_ms=now_ms)
        except PenstockError:
            return False  # the usual path responds with the error
        if appended is None:
            target.queued = QUEUED_REQUESTS
            return False
        if self._commits.count_alone():
            target.arrived(self._commits.turn)
        response = encode_single_frame(
            target.version, _CORRELATION.unpack_from(data, _CORRELATION_AT)[0], target.key,
            target.index, appended.base_offset, -1, appended.log_start_offset,
        )  # fmt: skip
        connection.respond_at_once(response, started)
        self.metrics.observe(_PRODUCE.name, clock.monotonic() - started)
        return True

    def _rights(self, connection: Connection) -> Rights:
        if not self._authoriser.refuses:
            return EVERYTHING
        return self._authoriser.rights(connection.principal, connection.client_host)

    def _retire(self) -> None:
        """Release all targets, whose partitions may have been replaced."""
        self._generation = self._partitions.generation
        for target in self._targets.values():
            target.retire()
        self._targets.clear()

    def flush(self) -> None:
        """Append the requests that wait."""
        if self._generation != self._partitions.generation:
            self._retire()
        waiting, self._waiting = self._waiting, []
        self._commits.gathered = False
        for target in waiting:
            requests, target.requests = target.requests, []
            target.busy = len(requests) > 1
            try:
                for start in range(0, len(requests), JOINED_REQUESTS_MAX):
                    self._append(target, requests[start : start + JOINED_REQUESTS_MAX])
            except Exception:
                logger.exception("appending joined requests failed")
                for context, *_ in requests:
                    context.connection.close("an internal error")

    def _append(self, target: Target, requests: list[Request]) -> None:
        joined = self._joined(target, requests) if len(requests) > 1 else 0
        for context, frame, _, known in requests[joined:]:
            context.connection.in_order(
                partial(self.handle, context, memoryview(bytearray(frame)), known.body_offset)
            )

    def _joined(self, target: Target, requests: list[Request]) -> int:
        """Append requests together, up to the first one that must be handled alone.

        Return the number of appended requests.
        """
        join, partition = _native("join_batches"), target.partition
        if join is None or partition is None:
            return 0
        log, now_ms = partition.log, self.clock.now_ms()
        limits = plain_limits(log.config, now_ms)
        if limits is None:
            return 0
        contexts, frames, places, known = zip(*requests, strict=True)
        starts = array("q", accumulate(map(len, frames), initial=0))
        data = b"".join(frames)
        batches, heads = bytearray(len(data)), bytearray(HEADER_BYTES * len(frames))
        count, size_bytes = join(
            data, starts, array("q", map(add, starts, places)), target.version >= FLEXIBLE_FROM,
            *limits, log.log_end_offset, log.leader_epoch, batches, heads,
        )  # fmt: skip
        fields = HEADER.iter_unpack(memoryview(heads)[: HEADER_BYTES * count])
        view, headers = _verified(
            memoryview(batches)[:size_bytes],
            list(map(header_of, fields)),
        )
        if not headers:
            return 0
        try:
            start_offset = log.append_joined(view, headers, now_ms=now_ms)
        except PenstockError:
            start_offset = None  # handled alone, each request gets its own error
        if start_offset is None:
            return 0
        joined = len(headers)
        deadline = self._arrived + min([repeated.timeout_seconds for repeated in known[:joined]])
        offsets = [header.base_offset for header in headers]
        pending = Joined(self, target, contexts[:joined], offsets, start_offset, deadline)
        self.produce_waiting[pending] = None
        self._commits.flush_then(pending, joined, durable=offsets[-1] < log.durable_offset)
        return joined


def _verified(
    batches: memoryview, headers: list[BatchHeader]
) -> tuple[memoryview, list[BatchHeader]]:
    """Return the batches and headers before the first batch with a wrong checksum."""
    start = 0
    for place, header in enumerate(headers):
        end = start + header.batch_length + LENGTH_OVERHEAD_BYTES
        if crc32c(batches[start + CHECKED_FROM : end]) != header.crc:
            return batches[:start], headers[:place]
        start = end
    return batches, headers


class Joined(Struct, eq=False):
    """Joined requests, which wait until their append is durable; called by the store."""

    joining: Joining
    target: Target
    contexts: Sequence[RequestContext]
    offsets: list[int]
    start_offset: int
    deadline: float

    def __call__(self, error: StorageError | None) -> None:
        joining, target = self.joining, self.target
        if joining.produce_waiting.pop(self, self) is self:
            return  # it has timed out
        if error is not None:
            self._refuse(*error_of(error))
            return
        for context, base_offset in zip(self.contexts, self.offsets, strict=True):
            context.reply((
                encode_single_frame(
                    target.version, context.correlation_id, target.key, target.index, base_offset,
                    -1, self.start_offset,
                ),
            ))  # fmt: skip
        joining.metrics.answered(self.contexts[0], joining.clock.monotonic(), len(self.contexts))

    def expire(self) -> None:
        """Respond with REQUEST_TIMED_OUT; the batches may still become durable."""
        self.joining.produce_waiting.pop(self, None)
        message = f"{LocalPartition.append_takes} took longer than the timeout"
        self._refuse(error_number("request_timed_out"), message)

    def _refuse(self, number: int, message: str | None) -> None:
        for context in self.contexts:
            result = PartitionResult(self.target.index, number, message=message)
            self.joining.answer(context, self.target.key, result)


@cache
def _native(kernel: str) -> Callable[..., Any] | None:
    from penstock.kernels.sources import NATIVE

    return None if NATIVE is None else getattr(NATIVE, f"produce_{kernel}")


def _no_handler(*_: object) -> None:
    raise BugError("requests are joined before the handler of Produce is attached")
