"""Questions about a workload."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from penstock.base.settings import setting

SECONDS_PER_DAY: Final = 86_400
Fact = float | int | str | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Stream of messages. Rates and sizes are averages; latency is from end to end."""

    messages_per_second: float = setting(
        1000.0, name="rate", doc="Number of messages at busy times.", unit="messages/s",
        minimum=0.001, maximum=1e12,
    )  # fmt: skip
    message_bytes: int = setting(
        1024, name="message-bytes", doc="Size of a message.", unit="bytes", minimum=1,
        maximum=1 << 40,
    )  # fmt: skip
    consumers: int = setting(
        1, name="consumers", doc="Independent kinds of consumers that each get every message.",
        minimum=1, maximum=10_000,
    )  # fmt: skip
    replay: bool = setting(
        False, name="replay", doc="Whether messages are read again later: audit, backfill, a bug."
    )
    latency_ms: float = setting(
        1000.0, name="latency",
        doc="Allowed time from a message to its consumer, at the 99th percentile.", unit="ms",
        minimum=1e-6, maximum=1e12,
    )  # fmt: skip
    ordering: str = setting(
        "none", name="ordering",
        doc="Required order: none, of the messages of one key, or of all messages.",
        choices=("none", "key", "global"),
    )  # fmt: skip
    reply: bool = setting(
        False, name="reply", doc="Whether the sender waits for a value that the receiver computes."
    )
    consumer_down: bool = setting(
        True, name="consumer-down", doc="Whether sending must succeed while the consumer is down."
    )
    bursts: bool = setting(
        False, name="bursts", doc="Whether spikes are to be buffered, and not slow senders down."
    )
    semantics: bool = setting(
        False, name="semantics",
        doc="Whether messages have priorities, expiry or routing of their own.",
    )  # fmt: skip
    lifetime_s: float = setting(
        float(7 * SECONDS_PER_DAY), name="lifetime", doc="Useful life of a message.", unit="s",
        minimum=0, maximum=1e10,
    )  # fmt: skip
    database: str = setting(
        "none", name="database",
        doc="Whether a database is there already, or messages must even commit with its rows.",
        choices=("none", "there", "transaction"),
    )  # fmt: skip
    same_host: bool = setting(
        False, name="same-host",
        doc="Whether senders and receivers run on one host and can share a directory of it.",
    )  # fmt: skip
    shared_files: bool = setting(
        False, name="shared-files",
        doc="Whether both sides mount one file system, in one region, and people can operate it.",
    )  # fmt: skip
    hops: int = setting(
        1, name="hops", doc="Number of services that call each other in a row.",
        minimum=1, maximum=1000,
    )  # fmt: skip
    steps: int = setting(
        1, name="steps", doc="Steps of one process that are retried, or undone, together.",
        minimum=1, maximum=10_000,
    )  # fmt: skip
    waits: bool = setting(
        False, name="waits",
        doc="Whether the process waits for timers or people, for hours to weeks.",
    )  # fmt: skip
    stateful: bool = setting(
        False, name="stateful",
        doc="Whether results need several messages at once: windows, joins, aggregates.",
    )  # fmt: skip


DERIVED: Final[Mapping[str, tuple[str, str, float]]] = {
    "bytes_per_second": ("messages_per_second", "message_bytes", 1),
    "bytes_per_day": ("messages_per_second", "message_bytes", SECONDS_PER_DAY),
}
"""Facts that are products of two inputs and a factor."""

UNITS: Final[Mapping[str, str]] = {"bytes_per_second": "bytes/s", "bytes_per_day": "bytes/day"}


def fact_of(workload: Workload) -> Callable[[str], Fact]:
    """Return a function that looks up an answer, or a derived fact, by name."""

    def fact(name: str) -> Fact:
        derived = DERIVED.get(name)
        if derived is None:
            value: Fact = getattr(workload, name)
            return value
        one, other, factor = derived
        return float(getattr(workload, one) * getattr(workload, other) * factor)

    return fact
