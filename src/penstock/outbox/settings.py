"""Settings of the outbox writer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

from penstock.base.errors import InvalidSetting
from penstock.base.settings import INT_MAX, LONG_MAX, check, setting

PAYLOAD_BYTES_MAX: Final = 1 << 30
"""Largest payload."""
THRESHOLD_BYTES: Final = 64 << 10
"""Largest payload that `send` puts into the record itself, which saves a file's two syncs; a topic
accepts records of up to 1 MiB."""
INLINE_BYTES_MAX: Final = 16 << 20
"""Largest threshold that can be set."""
IN_FLIGHT_BYTES: Final = 256 << 20
"""Payload bytes of writes in progress."""
IN_FLIGHT_OPERATIONS: Final = 16
"""Writes in progress, including those whose pointer is being published."""
PENDING_MAX: Final = 1024
"""Writes that wait for admission."""
IO_THREADS: Final = 8
"""Threads that perform file calls."""
ACQUIRE_TIMEOUT_MS: Final = 30_000
"""Longest wait for admission."""
WRITE_TIMEOUT_MS: Final = 60_000
"""Longest time that a caller waits for its file, including all attempts."""
PUBLISH_TIMEOUT_MS: Final = 60_000
"""Longest time that a caller waits for its record's acknowledgement."""
ATTEMPTS_MAX: Final = 5
"""Attempts of one write."""
BACKOFF_FIRST_MS: Final = 20
"""Ceiling of the pause before the second attempt; it doubles up to `BACKOFF_MAX_MS`."""
BACKOFF_MAX_MS: Final = 2_000
PUBLISH_QUEUE_RECORDS: Final = 8192
"""Records that wait to be published."""
PUBLISH_QUEUE_BYTES: Final = 64 << 20
"""Bytes of keys and values that wait to be published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxSettings:
    """Settings of one writer below one root to one topic.

    Raises:
        InvalidSetting: a value of the wrong type or out of its bounds.
    """

    PREFIX: ClassVar = "outbox."

    root: str = setting(
        "", "Directory of the tree, on a file system that writers and readers share. It must"
        " exist: it is never created, since a missing directory may be a missing mount.",
    )  # fmt: skip
    topic: str = setting("", "Topic of the pointers and inline payloads.")
    durable: bool = setting(
        True, "Whether files and their directories are synced before a write succeeds. Without it"
        " a crash of the machine may lose acknowledged writes; a crash of the process loses"
        " nothing.",
    )  # fmt: skip
    access: str = setting(
        "owner", "Readers of the written files, regardless of the umask: the writer's own user"
        " (files 0600, directories 0700), its group too (0640, 0750), or all (0644, 0755). An"
        " existing directory stays unchanged, and passes on its group if it has the setgid bit.",
        choices=("owner", "group", "all"),
    )  # fmt: skip
    threshold_bytes: int = setting(
        THRESHOLD_BYTES, "Largest payload that is sent in the record itself; larger ones"
        " are written to files. Must be below the topic's max.message.bytes. -1 writes all to"
        " files.", -1, INLINE_BYTES_MAX, name="outbox.inline.threshold.bytes",
    )  # fmt: skip
    payload_bytes_max: int = setting(
        PAYLOAD_BYTES_MAX, "Largest payload; a larger one is rejected.", 1, 1 << 40
    )
    in_flight_bytes: int = setting(
        IN_FLIGHT_BYTES, "Payload bytes of writes in progress. A larger payload counts as"
        " this, and runs alone.", 1, 1 << 40,
    )  # fmt: skip
    in_flight_operations: int = setting(
        IN_FLIGHT_OPERATIONS, "Writes in progress, including those whose pointer is being"
        " published.", 1, 4096,
    )  # fmt: skip
    pending_max: int = setting(
        PENDING_MAX, "Writes that wait for admission; further ones are rejected.",
        0, INT_MAX,
    )  # fmt: skip
    io_threads: int = setting(IO_THREADS, "Threads that perform file calls.", 1, 256)
    acquire_timeout_ms: int = setting(ACQUIRE_TIMEOUT_MS, "Longest wait for admission.", 1, INT_MAX)
    write_timeout_ms: int = setting(
        WRITE_TIMEOUT_MS, "Longest time that a caller waits for its file, including"
        " admission and all attempts. The write continues after it, and keeps its memory and its"
        " share of the limits.", 1, INT_MAX,
    )  # fmt: skip
    publish_timeout_ms: int = setting(
        PUBLISH_TIMEOUT_MS, "Longest time that a caller waits for its record's"
        " acknowledgement.", 1, INT_MAX,
    )  # fmt: skip
    attempts_max: int = setting(ATTEMPTS_MAX, "Attempts of one write.", 1, 1000)
    backoff_first_ms: int = setting(
        BACKOFF_FIRST_MS, "Ceiling of the pause before the second attempt; it doubles with"
        " every further one.", 1, INT_MAX,
    )  # fmt: skip
    backoff_max_ms: int = setting(BACKOFF_MAX_MS, "Longest pause between attempts.", 1, INT_MAX)
    publish_queue_records: int = setting(
        PUBLISH_QUEUE_RECORDS, "Records that wait to be published; further ones are"
        " rejected.", 1, INT_MAX,
    )  # fmt: skip
    publish_queue_bytes: int = setting(
        PUBLISH_QUEUE_BYTES, "Bytes of keys and values that wait to be published; further"
        " ones are rejected.", 1, 1 << 40,
    )  # fmt: skip

    def __post_init__(self) -> None:
        check(self)


def check_numbers(given: Any, **least: int) -> None:
    """Check numbers of an object without a settings class, by their names.

    Raises:
        InvalidSetting: a number that is not whole or is too small.
    """
    for name, minimum in least.items():
        value = getattr(given, name)
        if type(value) is not int or not minimum <= value <= LONG_MAX:
            raise InvalidSetting(name, value, f"must be a whole number from {minimum} up")
