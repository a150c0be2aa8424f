"""Audit log: one line for each authentication, each denied request, and each change.

`line_of` encodes an event as a line, `AuditLog` passes the line to its sinks, and the sink
`AuditFile` writes it to a file. Brokers can also write lines to a topic.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import queue
import stat
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, Final, Literal, NamedTuple, Protocol

import msgspec
from msgspec import Struct

from penstock.base.errors import InvalidError, InvalidSetting, InvalidTopicName
from penstock.base.ids import validate_topic_name
from penstock.base.metrics import Metrics, Sample, counters
from penstock.base.settings import INT_MAX, LONG_MAX, setting

if TYPE_CHECKING:
    from penstock.base.system import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings:
    """Settings of the audit log: its file, its topic, and limits."""

    PREFIX: ClassVar = "audit."

    log_file: str = setting(
        "", "Path of the audit log file, with one line of JSON for each authentication, denial and"
        " administrative change. Only its owner can read it. If empty, no file is written.",
    )  # fmt: skip
    log_file_bytes: int = setting(
        64 << 20, "Size in bytes at which a new file is started; older files get the suffixes .1,"
        " .2 and so on.",
        4096, LONG_MAX, name="audit.log.file.max.bytes",
    )  # fmt: skip
    log_files: int = setting(10, "Number of files to keep, including the current one.", 1, 1000)
    queue_events: int = setting(
        10_000, "Most events that wait to be written, separately for file and topic; further events"
        " are dropped and counted.", 1, INT_MAX,
        name="audit.queue.max.events",
    )  # fmt: skip
    topic: str = setting(
        "", "Topic to which brokers write the same lines as records, such as __audit. Brokers"
        " create it as an internal topic with one partition. If empty, no topic is written.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        try:
            if self.topic:
                validate_topic_name(self.topic)
        except InvalidTopicName as error:
            raise InvalidSetting("audit.topic", self.topic, error.reason) from None


# Format of the audit log: one JSON object per authentication, denial and administrative change.
#
#     {"time":"2026-01-31T12:00:00.123Z","broker":1,"event":"denial","outcome":"denied",
#      "principal":"User:alice","mechanism":"","address":"10.0.0.7","listener":"PLAINTEXT",
#      "operation":"Produce","resource_type":"topic","resources":["orders"],"resource_count":1,
#      "reason":"User:alice may not write topic orders"}
#
# An event contains only names, such as those of the principal, the resources and the error. No
# field may contain a secret. Texts are cut to `TEXT_CHARS_MAX` characters and lists to
# `RESOURCES_MAX` items. JSON escapes line breaks, so an event is always one line.
#
# Source: Kafka's `kafka.authorizer.logger`; Redpanda's audit log has the same facts.


TEXT_CHARS_MAX: Final = 1024
RESOURCES_MAX: Final = 50

EventKind = Literal["authentication", "denial", "change"]
Outcome = Literal["success", "failure", "denied"]


class AuditEvent(Struct, frozen=True, kw_only=True):
    """Audit event; fields that do not apply are empty.

    `mechanism` is the authentication mechanism: PLAIN, SCRAM-SHA-512, OAUTHBEARER, SSL, basic,
    bearer or SO_PEERCRED. `operation` is the name of the Kafka API, or method and path of an HTTP
    request.
    """

    event: EventKind
    outcome: Outcome
    principal: str
    mechanism: str = ""
    address: str = ""
    listener: str = ""
    operation: str = ""
    resource_type: str = ""
    resources: Iterable[str] = ()
    reason: str = ""


class Audit(Protocol):
    """Port of the audit log; it never raises and never blocks."""

    def record(self, event: AuditEvent) -> None: ...

    def close(self) -> None:
        """Write the events recorded so far, as many as possible within a short timeout."""


class NoAudit:
    """Audit log that discards all events."""

    def record(self, event: AuditEvent) -> None:
        """Discard the event."""

    def close(self) -> None:
        """Do nothing."""


NO_AUDIT: Final = NoAudit()


def line_of(event: AuditEvent, *, now_ms: int, origin: dict[str, int | str]) -> bytes:
    """Return an event as one line of JSON.

    `origin` identifies the process that writes it, such as `{"broker": 1}`.
    """
    resources = list(event.resources)
    return (
        msgspec.json.encode(
            {
                "time": _time(now_ms),
                **origin,
                "event": event.event,
                "outcome": event.outcome,
                "principal": cut(event.principal),
                "mechanism": cut(event.mechanism),
                "address": cut(event.address),
                "listener": cut(event.listener),
                "operation": cut(event.operation),
                "resource_type": event.resource_type,
                "resources": [cut(resource) for resource in islice(resources, RESOURCES_MAX)],
                "resource_count": len(resources),
                "reason": cut(event.reason),
            }
        )
        + b"\n"
    )


def _time(now_ms: int) -> str:
    seconds, ms = divmod(now_ms, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{ms:03}Z"


def cut(text: str) -> str:
    """Return the first `TEXT_CHARS_MAX` characters of a text, with lone surrogates replaced."""
    return text[:TEXT_CHARS_MAX].encode("utf-8", "replace").decode()


KINDS: Final[Sequence[EventKind]] = ("authentication", "denial", "change")


class Line(NamedTuple):
    """Audit event as one line of JSON, with its time and its principal (may be empty)."""

    text: bytes
    time_ms: int
    principal: bytes


class LineSink(Protocol):
    """Sink for audit lines, with a limited queue."""

    name: str
    dropped: int
    """Number of lines that were dropped, because the queue was full or writing failed."""

    def offer(self, line: Line) -> None:
        """Queue a line, or drop it if the queue is full; never block."""

    def close(self) -> None:
        """Write the queued lines, as many as possible within a short timeout."""


class AuditMetrics(Metrics, prefix="penstock_audit_"):
    events: dict[str, int] = counters(
        "events_total",
        "Audit events: authentications, denials and administrative changes.",
        "event",
    )
    dropped: dict[str, int] = counters(
        "dropped_total",
        "Audit events that were dropped, because the queue was full or writing failed.",
        "sink",
    )


class AuditLog:
    def __init__(
        self, sinks: Iterable[LineSink], *, clock: Clock, origin: dict[str, int | str]
    ) -> None:
        """Create the log; `origin` identifies the broker or agent and is added to every line."""
        self._sinks = list(sinks)
        self._now_ms = clock.now_ms
        self._origin = origin
        self._metrics = AuditMetrics()
        self._metrics.events.update(dict.fromkeys(KINDS, 0))

    def record(self, event: AuditEvent) -> None:
        self._metrics.events[event.event] += 1
        if self._sinks:
            now_ms = self._now_ms()
            text = line_of(event, now_ms=now_ms, origin=self._origin)
            line = Line(text, now_ms, cut(event.principal).encode())
            for sink in self._sinks:
                sink.offer(line)

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()

    def samples(self) -> Iterator[Sample]:
        self._metrics.dropped = {sink.name: sink.dropped for sink in self._sinks}
        return self._metrics.samples()


# Audit log file: a thread appends lines, and files are rotated by size.
#
# audit.log, audit.log.1, audit.log.2, … from the newest to the oldest; `audit.log.files` of them


logger = logging.getLogger(__name__)

BATCH_LINES_MAX: Final = 1000
CLOSE_SECONDS: Final = 5.0
_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_MODE: Final = 0o600


class AuditFileUnusable(InvalidError):
    """Audit log file that cannot be opened, or that another process has locked."""

    code: ClassVar[str] = "invalid_config"


class AuditFile:
    """Sink that writes audit lines to a file, from a thread of its own."""

    name = "file"

    def __init__(self, path: str, *, bytes_max: int, files_max: int, queue_max: int) -> None:
        """Open or create the file, and start the thread.

        Raises:
            AuditFileUnusable: the file cannot be opened or locked; the message has the reason.
        """
        self._path = path
        self._bytes_max = bytes_max
        self._files_max = files_max
        self.dropped = 0
        self._failing = False
        self._closed = False
        self._lines: queue.Queue[bytes | None] = queue.Queue(queue_max)
        try:
            self._file, self._size = _open(path)
        except OSError as error:
            raise AuditFileUnusable(f"audit.log.file {path}: {error.strerror}") from None
        self._thread = threading.Thread(target=self._work, name="audit", daemon=True)
        self._thread.start()

    def offer(self, line: Line) -> None:
        try:
            self._lines.put_nowait(line.text)
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(queue.Full):
            self._lines.put(None, timeout=CLOSE_SECONDS)
        self._thread.join(CLOSE_SECONDS)

    def _work(self) -> None:
        going_on = True
        while going_on:
            lines = [self._lines.get()]
            with contextlib.suppress(queue.Empty):
                while len(lines) < BATCH_LINES_MAX:
                    lines.append(self._lines.get_nowait())
            going_on = None not in lines
            self._write([line for line in lines if line is not None])
        os.close(self._file)

    def _write(self, lines: list[bytes]) -> None:
        """Append lines; start a new file after the line that reaches the size limit."""
        begin = written = 0
        try:
            for end, line in enumerate(lines, 1):
                self._size += len(line)
                if self._size >= self._bytes_max or end == len(lines):
                    _append(self._file, b"".join(lines[begin:end]))
                    begin = written = end
                    if self._size >= self._bytes_max:
                        self._rotate()
            self._failing = False
        except OSError as error:
            self.dropped += len(lines) - written
            if not self._failing:
                logger.error(
                    "dropping audit events: cannot write audit.log.file %s: %s",
                    self._path,
                    error.strerror,
                )
            self._failing = True

    def _rotate(self) -> None:
        for number in range(self._files_max - 1, 0, -1):
            older = f"{self._path}.{number - 1}" if number > 1 else self._path
            with contextlib.suppress(FileNotFoundError):
                os.replace(older, f"{self._path}.{number}")
        if self._files_max == 1:
            os.unlink(self._path)
        old = self._file
        self._file, self._size = _open(self._path)
        os.close(old)


def _open(path: str) -> tuple[int, int]:
    """Open a file for appending and lock it; return its descriptor and its size in bytes."""
    file = os.open(path, _FLAGS, _MODE)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(0, "not a regular file")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(0, "another process has locked it") from None
    except OSError:
        os.close(file)
        raise
    return file, found.st_size


def _append(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]
