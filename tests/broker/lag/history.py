"""Histories of groups whose lag Burrow evaluates too, and Burrow's answers in a comparable form.

Each round appends `ROUND_RECORDS` records to partition 0, then each group commits, and the clock
moves by ten seconds. Partition 1 has no commits.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from typing import Any, Final

from tests.broker.lag.scene import SECOND, TOPIC, Scene

ROUNDS: Final = 22
ROUND_MS: Final = 10 * SECOND
ROUND_RECORDS: Final = 20
FIRST_RECORDS: Final = 100

Committed = Callable[[str, int, int], Awaitable[None]]
"""Function that is called after each commit, with the group, the offset and the time in ms."""
Produced = Callable[[int], Awaitable[None]]
"""Function that is called after each round's records, with the end offset."""


def _end(number: int) -> int:
    return FIRST_RECORDS + ROUND_RECORDS * (number + 1)


OFFSETS: Final[dict[str, Callable[[int], int | None]]] = {
    "caught-up": _end,
    "keeping-up": lambda number: _end(number) - 50 - 10 * (number % 3),
    "slow": lambda number: 10 * number,
    "stalled": lambda number: 7,
    "stopped": lambda number: 10 * number if number < 10 else None,
    "rewound": lambda number: 10 * number if number < ROUNDS - 2 else 50,
    "recovered": lambda number: 50 if number == ROUNDS - 5 else 20 * number,
    "first": lambda number: 5 if number == ROUNDS - 1 else None,
}
"""Offset that each group commits in a round; None for no commit."""
STATES: Final = {
    "caught-up": "OK", "keeping-up": "OK", "slow": "WARN", "stalled": "STALL", "stopped": "STOP",
    "rewound": "REWIND", "recovered": "OK", "first": "OK",
}  # fmt: skip
FALSE_ALARMS: Final = {"first": "STOP"}
"""States in which Burrow sees groups that are OK: a single commit covers no time at all."""


async def play(scene: Scene, committed: Committed, produced: Produced) -> int:
    """Play the histories, which end at the present time, and return the time of their begin."""
    start_ms = scene.clock.now_ms() - ROUNDS * ROUND_MS
    await scene.produce(FIRST_RECORDS)
    for number in range(ROUNDS):
        await scene.produce(ROUND_RECORDS)
        await produced(_end(number))
        scene.clock.set(start_ms + ROUND_MS * (number + 1))
        for group, offset_of in OFFSETS.items():
            offset = offset_of(number)
            if offset is not None:
                at_ms = scene.clock.now_ms()
                await scene.commit(group, offset, step_ms=0)
                await committed(group, offset, at_ms)
    return start_ms


def offset_commit(
    group: str, topic: str, partition: int, offset: int, at_ms: int
) -> tuple[bytes, bytes]:
    """Return key and value of a commit in Kafka's topic `__consumer_offsets`."""
    key = struct.pack(">h", 1) + _text(group) + _text(topic) + struct.pack(">i", partition)
    return key, struct.pack(">hq", 1, offset) + _text("") + struct.pack(">qq", at_ms, at_ms)


def _text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def comparable(answer: Any, *, start_ms: int, cluster: str) -> Any:
    """Return an answer without what differs between two runs.

    Times become numbers of rounds. Time of observation, host and URL become the names of their
    types, and the name of the cluster becomes `CLUSTER`.
    """
    if isinstance(answer, dict):
        return {
            name: type(value).__name__
            if name in {"observedAt", "host", "url"}
            else round((value - start_ms) / ROUND_MS)
            if name == "timestamp"
            else comparable(value, start_ms=start_ms, cluster=cluster)
            for name, value in answer.items()
        }
    if isinstance(answer, list):
        return [comparable(value, start_ms=start_ms, cluster=cluster) for value in answer]
    if isinstance(answer, float):
        return round(answer, 3)
    return "CLUSTER" if answer == cluster else answer


def paths() -> list[str]:
    """Return the paths below `/v3/kafka/CLUSTER` whose answers are compared."""
    groups = [f"/consumer/{group}{part}" for group in OFFSETS for part in ("", "/status", "/lag")]
    return [*groups, "/consumer/none", "/consumer/none/status", "/consumer/none/lag",
            f"/topic/{TOPIC}", "/topic/none"]  # fmt: skip
