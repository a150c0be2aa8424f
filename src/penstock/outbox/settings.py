"""The outbox writer's settings; those of its readers and sweeper are theirs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.base.errors import InvalidSetting
from penstock.base.settings import INT_MAX, LONG_MAX, check, setting
from penstock.outbox import limits


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxSettings:
    """How one writer writes below one root and publishes to one topic.

    Raises:
        InvalidSetting: a value of the wrong type or out of its bounds.
    """

    root: str = setting(
        "",
        name="outbox.root",
        doc=(
            "Directory of the tree, on a file system that writers and readers share. It must be"
            " there: a missing mount is an error, and is not made up for by a new directory."
        ),
    )
    topic: str = setting(
        "",
        name="outbox.topic",
        doc="Topic of the pointers, and of the payloads that travel inline.",
    )
    durable: bool = setting(
        True,
        name="outbox.durable",
        doc=(
            "Whether files and their directories are synced before a write succeeds. Without it"
            " a crash of the machine may lose what was acknowledged; a crash of the process"
            " loses nothing."
        ),
    )
    threshold_bytes: int = setting(
        limits.THRESHOLD_BYTES,
        name="outbox.inline.threshold.bytes",
        doc=(
            "Largest payload that is sent in the record itself; larger ones are written to files."
            " Must be below the topic's max.message.bytes. -1 writes all to files."
        ),
        unit="bytes",
        minimum=-1,
        maximum=limits.INLINE_BYTES_MAX,
    )
    payload_bytes_max: int = setting(
        limits.PAYLOAD_BYTES_MAX,
        name="outbox.payload.bytes.max",
        doc="Largest payload; a larger one is refused.",
        unit="bytes",
        minimum=1,
        maximum=1 << 40,
    )
    in_flight_bytes: int = setting(
        limits.IN_FLIGHT_BYTES,
        name="outbox.in.flight.bytes",
        doc="Payload bytes of writes under way. A larger payload counts as this, and runs alone.",
        unit="bytes",
        minimum=1,
        maximum=1 << 40,
    )
    in_flight_operations: int = setting(
        limits.IN_FLIGHT_OPERATIONS,
        name="outbox.in.flight.operations",
        doc="Writes under way, those included whose pointer is being published.",
        minimum=1,
        maximum=4096,
    )
    pending_max: int = setting(
        limits.PENDING_MAX,
        name="outbox.pending.max",
        doc="Writes that wait for room among those under way; further ones are refused.",
        minimum=0,
        maximum=INT_MAX,
    )
    io_threads: int = setting(
        limits.IO_THREADS,
        name="outbox.io.threads",
        doc="Threads that perform file calls.",
        minimum=1,
        maximum=256,
    )
    acquire_timeout_ms: int = setting(
        limits.ACQUIRE_TIMEOUT_MS,
        name="outbox.acquire.timeout.ms",
        doc="Longest wait for room among the writes under way.",
        unit="ms",
        minimum=1,
        maximum=INT_MAX,
    )
    write_timeout_ms: int = setting(
        limits.WRITE_TIMEOUT_MS,
        name="outbox.write.timeout.ms",
        doc=(
            "Longest time that a caller waits for its file, waiting for room and all attempts"
            " included. The write under way goes on after it, and keeps its memory and its room."
        ),
        unit="ms",
        minimum=1,
        maximum=INT_MAX,
    )
    publish_timeout_ms: int = setting(
        limits.PUBLISH_TIMEOUT_MS,
        name="outbox.publish.timeout.ms",
        doc="Longest time that a caller waits for its record's acknowledgement.",
        unit="ms",
        minimum=1,
        maximum=INT_MAX,
    )
    attempts_max: int = setting(
        limits.ATTEMPTS_MAX,
        name="outbox.attempts.max",
        doc="Attempts of one write.",
        minimum=1,
        maximum=1000,
    )
    backoff_first_ms: int = setting(
        limits.BACKOFF_FIRST_MS,
        name="outbox.backoff.first.ms",
        doc="Ceiling of the pause before the second attempt; it doubles with every further one.",
        unit="ms",
        minimum=1,
        maximum=INT_MAX,
    )
    backoff_max_ms: int = setting(
        limits.BACKOFF_MAX_MS,
        name="outbox.backoff.max.ms",
        doc="Ceiling that the pauses between attempts do not pass.",
        unit="ms",
        minimum=1,
        maximum=INT_MAX,
    )
    publish_queue_records: int = setting(
        limits.PUBLISH_QUEUE_RECORDS,
        name="outbox.publish.queue.records",
        doc="Records that wait to be published; further ones are refused.",
        minimum=1,
        maximum=INT_MAX,
    )
    publish_queue_bytes: int = setting(
        limits.PUBLISH_QUEUE_BYTES,
        name="outbox.publish.queue.bytes",
        doc="Bytes of keys and values that wait to be published; further ones are refused.",
        unit="bytes",
        minimum=1,
        maximum=1 << 40,
    )

    def __post_init__(self) -> None:
        check(self)


def check_numbers(given: Any, **least: int) -> None:
    """Check numbers of a value that is no settings class, by their names.

    Raises:
        InvalidSetting: one that is not whole or is below its least value.
    """
    for name, minimum in least.items():
        value = getattr(given, name)
        if type(value) is not int or not minimum <= value <= LONG_MAX:
            raise InvalidSetting(name, value, f"must be a whole number from {minimum} up")
