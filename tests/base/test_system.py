"""The system's clock and dice behave as the ports say."""

from __future__ import annotations

import subprocess
import sys

from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS, Clock, Randomness


def test_the_clock_moves_forward() -> None:
    clock: Clock = SYSTEM_CLOCK
    first = clock.monotonic()
    assert clock.monotonic() >= first
    assert clock.now_ms() > 1_600_000_000_000


def test_identifiers_differ() -> None:
    randomness: Randomness = SYSTEM_RANDOMNESS
    assert len({randomness.uuid() for _ in range(100)}) == 100
    assert randomness.uuid().version == 4
    assert all(0 <= randomness.bits(7) < 128 for _ in range(100))
    assert 0 <= randomness.uniform() < 1


def _page_faults(kept: str) -> tuple[int, int]:
    """Page faults of two allocations of 16 MiB, the first of which is freed before the second."""
    code = (
        "import resource\n"
        "from penstock.base.system import keep_memory\n"
        f"keep_memory({kept})\n"
        "found = []\n"
        "for _ in range(2):\n"
        "    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "    bytearray(b'x') * (16 << 20)\n"
        "    found.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)\n"
        "print(*found)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60)
    first, second = map(int, done.stdout.split())
    return first, second


def test_freed_memory_is_kept_for_reuse() -> None:
    first, second = _page_faults("")
    assert second <= first // 4


def test_freed_memory_above_the_limit_is_returned() -> None:
    first, second = _page_faults("4 << 20")
    assert second >= first // 4
