"""Parts of benchmarks: data, moments of arrival, quantiles, medians and CPU time."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from penstock.base.errors import UnavailableError
from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS

if TYPE_CHECKING:
    from penstock.client.producer_partitions import Pieces

_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that `share` of all values do not exceed; 0 without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def quantiles_ms(stem: str, seconds: Sequence[float]) -> dict[str, float]:
    """Return the figures `<stem>_p50_ms` and `<stem>_p99_ms` of latencies given in seconds."""
    return {
        f"{stem}_p50_ms": percentile(seconds, 0.5) * 1000,
        f"{stem}_p99_ms": percentile(seconds, 0.99) * 1000,
    }


def interleaved(
    contenders: Mapping[str, Callable[[], float]], *, runs: int = 5
) -> dict[str, float]:
    """Run all contenders in turn, `runs` times, and return the median of each.

    If the machine becomes slower or faster over time, all contenders are affected alike.
    """
    figures: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(runs):
        for name, contender in contenders.items():
            figures[name].append(contender())
    return {name: median(values) for name, values in figures.items()}


def cpu_seconds(pid: int) -> float | None:
    """Return the CPU time of a process in seconds; None if the system has no /proc.

    Raises:
        UnavailableError: the process has ended.
    """
    if not Path("/proc/self/stat").exists():
        return None
    process = Path("/proc") / str(pid)
    try:
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        if not (process / "schedstat").exists():
            return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND
        total = 0
        for task in (process / "task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
                total += int((task / "schedstat").read_text().split()[0])
        return total / 1e9
    except OSError:
        raise UnavailableError(f"the broker's process {pid} has ended") from None


def write_plainly(directory: Path, name: str, payload: bytes, durable: bool) -> None:
    """Write a file as a program without an outbox does, for comparison with the outbox.

    It writes a temporary file and renames it. With `durable` it syncs the file before the rename,
    and the directory after it.
    """
    temporary = directory / f"{name}.tmp"
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        view = memoryview(payload)
        while view:
            view = view[os.write(file, view) :]
        if durable:
            os.fdatasync(file)
    finally:
        os.close(file)
    temporary.rename(directory / name)
    if durable:
        folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def moments(
    begin: float,
    count: int,
    per_second: float,
    uniform: Callable[[], float] = SYSTEM_RANDOMNESS.uniform,
) -> list[float]:
    """Return `count` random moments after `begin`, in seconds, at a mean rate of `per_second`.

    They are those of a Poisson process; `uniform` draws numbers from [0, 1).
    """
    moment, found = begin, []
    for _ in range(count):
        moment -= math.log(1.0 - uniform()) / per_second
        found.append(moment)
    return found


CHUNK_RECORDS: Final = 1_000


def noise(size_bytes: int) -> bytes:
    """Return random bytes, which cannot be compressed."""
    return SYSTEM_RANDOMNESS.bits(8 * size_bytes).to_bytes(size_bytes, "big")


def values(value_bytes: int, size_bytes: int) -> Any:
    """Return a table with a column `value`: values of `value_bytes`, about `size_bytes` in total.

    Its chunks share memory.
    """
    import pyarrow as pa

    content = noise(CHUNK_RECORDS * value_bytes)
    ends = range(value_bytes, len(content) + 1, value_bytes)
    chunk = pa.array([content[end - value_bytes : end] for end in ends], pa.binary())
    count = max(1, size_bytes // len(content))
    return pa.table({"value": pa.chunked_array([chunk] * count)})


def one_record(value_bytes: int) -> Pieces:
    """Return an encoded batch with one record, whose value has `value_bytes` bytes."""
    import numpy as np

    from penstock.client.producer_partitions import Pieces
    from penstock.records.columnar.arrays import Column, Input
    from penstock.records.columnar.encode import encode_batches

    now_ms = SYSTEM_CLOCK.now_ms()
    record = Input(value=Column.of([noise(value_bytes)]), timestamps=np.array([now_ms], np.int64))
    (batch,) = encode_batches(record, now_ms=now_ms)
    return Pieces(batch.data, batch.record_count)
