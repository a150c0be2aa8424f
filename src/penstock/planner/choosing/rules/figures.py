"""The numbers that decide, by name."""

from __future__ import annotations

from typing import Final

from penstock.planner.choosing.rules.language import Test, above, below, from_on, up_to
from penstock.planner.choosing.workload import SECONDS_PER_DAY
from penstock.storage import LogConfig

RATE: Final = "messages_per_second"

QUEUE_RATE_MAX: Final = 50_000
TABLE_RATE_FINE: Final = 1_000
TABLE_RATE_MAX: Final = 10_000
PARTITION_BYTES_PER_SECOND: Final = 100_000_000
SOCKET_RATE_MIN: Final = 10
LARGE_BYTES_PER_DAY: Final = 1e12
SHORT_LIFE_S: Final = 2 * 3600.0
LONG_LIFE_S: Final = 30.0 * SECONDS_PER_DAY
CALL_MS: Final = 50.0
FEW_HOPS: Final = 3
MESSAGE_BYTES_MAX: Final = LogConfig().max_message_bytes

SEVERAL: Final = from_on("consumers", 2)
SINGLE: Final = up_to("consumers", 1)
FAST: Final = above(RATE, QUEUE_RATE_MAX)
MODEST: Final = up_to(RATE, QUEUE_RATE_MAX)
SMALL: Final = below(RATE, TABLE_RATE_FINE)
SUB_MS: Final = below("latency_ms", 1.0)
FROM_MS: Final = from_on("latency_ms", 1.0)
AS_CALL: Final = below("latency_ms", CALL_MS)
LATER_THAN_CALL: Final = from_on("latency_ms", CALL_MS)
LARGE_VOLUME: Final = from_on("bytes_per_day", LARGE_BYTES_PER_DAY)
SMALL_VOLUME: Final = below("bytes_per_day", LARGE_BYTES_PER_DAY)
SHORT_LIVED: Final = up_to("lifetime_s", SHORT_LIFE_S)
BIG_MESSAGE: Final = above("message_bytes", MESSAGE_BYTES_MAX)


def tests(*all_of: Test) -> tuple[Test, ...]:
    """Tests that must all hold."""
    return all_of
