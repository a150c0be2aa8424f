"""The columnar codec: batches to Arrow and back, one core, in millions of records a second.

The predictions are sums of parts, in nanoseconds a record of 100 bytes, from a trial of compiled
loops: following the chain of records 12, its checksum 4, copying its value 9.5, writing it 16. A
key costs 5 more to read and copy and 8 to write; two headers 30; a batch's header 300 to read,
most of it the call for its checksum, and 3,000 to write. Views save the copy and write 16 bytes
(2). Per KiB the checksum takes 40 and the copy 60. A codec adds what its library takes for 112
bytes: gzip 1440 and 132, snappy 105 and 32, lz4 110 and 22, zstd 221 and 65.

The limits stand beside them, measured in the same run by bare programs that do only what no codec
can leave out, into memory that was used before: the checksum of all bytes; and to encode, one copy
of them; to decode, one copy of the values and one write of the other columns (offset, timestamp and
three bounds, 28 bytes a record); as views, one write of all columns (52 bytes). The rest is what
records cost: to find where each number and each value begins. The note says what the copy costs
into memory that is new to the process. Times are CPU seconds of this thread, because the figures
are per core.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from mmap import mmap
from typing import Any, Final

import numpy as np
import pyarrow as pa

from benchmarks.harness import Row, figure
from penstock.apps.loads.figures import interleaved
from penstock.base.crc import crc32c
from penstock.records import Codec
from penstock.records.columnar import decode_batches, encode_batches

PASS_BYTES: Final = 8 << 20
RUNS: Final = 7
QUICK_RUNS: Final = 3
_SMALL_BATCH_RECORDS: Final = 10
_COLUMNS_BYTES: Final = 28
_VIEW_COLUMNS_BYTES: Final = 52
_LIMITS: Final = {
    "encode": "checksum and copy",
    "decode": "checksum, copy and columns",
    "decode as views": "checksum and columns",
}

# Millions of records a second, from the costs above: (encode, decode, decode as views).
PREDICTED: Final = {
    ("100 B", "values", Codec.NONE): (40.0, 38.0, 55.0),
    ("100 B", "fixed-size values", Codec.NONE): (42.0, 40.0, 58.0),
    ("100 B", "keyed", Codec.NONE): (31.0, 32.0, 50.0),
    ("100 B", "keyed, two headers", Codec.NONE): (16.0, 16.0, 18.0),
    ("100 B", "batches of 10", Codec.NONE): (3.0, 17.0, 21.0),
    ("1 KiB", "values", Codec.NONE): (7.0, 8.0, 16.0),
    ("1 KiB", "keyed", Codec.NONE): (7.0, 8.0, 16.0),
    ("100 B", "values", Codec.GZIP): (0.65, 6.0, 6.0),
    ("100 B", "values", Codec.SNAPPY): (7.5, 17.0, 20.0),
    ("100 B", "values", Codec.LZ4): (7.4, 20.0, 24.0),
    ("100 B", "values", Codec.ZSTD): (4.0, 11.0, 12.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Records of one shape, as Arrow and as batches."""

    size: str
    shape: str
    codec: Codec
    table: Any
    batches: bytes
    options: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.size}, {self.shape}, {self.codec.name.lower()}"


def words(dice: random.Random, size_bytes: int) -> bytes:
    """Text that compresses about as well as log lines do."""
    line = b" ".join(dice.choice(_VOCABULARY) for _ in range(size_bytes // 6 + 1))
    return line[:size_bytes]


_VOCABULARY: Final = [bytes(random.Random(n).choices(range(97, 123), k=6)) for n in range(4_000)]


def make_case(size: str, shape: str, codec: Codec) -> Case:
    """Build the records of a case; value sizes vary by half unless they are fixed."""
    dice = random.Random(f"{size} {shape}")
    value_bytes = 100 if size == "100 B" else 1_024
    count = PASS_BYTES // value_bytes
    low, high = value_bytes // 2, value_bytes * 3 // 2
    if shape == "fixed-size values":
        low = high = value_bytes
    columns: dict[str, Any] = {
        "value": pa.array([words(dice, dice.randint(low, high)) for _ in range(count)]),
        "timestamp": pa.array(np.arange(count) // 10 + 1_700_000_000_000),
    }
    if "keyed" in shape:
        columns["key"] = pa.array([b"key-%d" % dice.randint(0, 10**6) for _ in range(count)])
    if "headers" in shape:
        pair = [{"key": "trace", "value": b"0123456789abcdef"}, {"key": "kind", "value": b"a"}]
        columns["headers"] = pa.array([pair] * count)
    options: dict[str, Any] = {"codec": codec, "now_ms": 0}
    if shape == "batches of 10":
        options["records_per_batch"] = _SMALL_BATCH_RECORDS
    table = pa.table(columns)
    batches = b"".join(batch.data for batch in encode_batches(table, **options))
    return Case(size=size, shape=shape, codec=codec, table=table, batches=batches, options=options)


def rate(records: int, action: Callable[[], object]) -> Callable[[], float]:
    """A contender: millions of records a second of this thread's processor time."""

    def once() -> float:
        start = time.thread_time()
        action()
        return records / (time.thread_time() - start) / 1e6

    return once


def contenders(case: Case) -> dict[str, Callable[[], float]]:
    count = case.table.num_rows
    used = np.frombuffer(case.batches, np.uint8).copy()
    values = np.frombuffer(case.table["value"].combine_chunks().buffers()[2], np.uint8)
    copied, columns = values.copy(), np.empty(count * _VIEW_COLUMNS_BYTES, np.uint8)

    def bare_encode() -> None:
        crc32c(case.batches)
        np.copyto(used, np.frombuffer(case.batches, np.uint8))

    def bare_decode() -> None:
        crc32c(case.batches)
        np.copyto(copied, values)
        columns[: count * _COLUMNS_BYTES].fill(1)

    def bare_views() -> None:
        crc32c(case.batches)
        columns.fill(1)

    def bare_in_fresh_memory() -> None:
        crc32c(case.batches)
        with mmap(-1, len(case.batches)) as memory:
            memory.write(case.batches)

    actions: dict[str, Callable[[], object]] = {
        "encode": lambda: encode_batches(case.table, **case.options),
        "decode": lambda: decode_batches(case.batches),
        "decode as views": lambda: decode_batches(case.batches, views=True),
        "bare encode": bare_encode,
        "bare decode": bare_decode,
        "bare decode as views": bare_views,
        "fresh": bare_in_fresh_memory,
    }
    for action in actions.values():
        action()
    return {name: rate(count, action) for name, action in actions.items()}


def rows(case: Case, runs: int) -> Iterator[Row]:
    """Both directions of a case, beside the programs that only check and copy the same bytes."""
    figures = interleaved(contenders(case), runs=runs)
    predictions = PREDICTED[case.size, case.shape, case.codec]
    names = ("encode", "decode", "decode as views")
    for direction, prediction in zip(names, predictions, strict=True):
        yield Row(
            name=f"{direction} {case.name}",
            value=figures[direction],
            unit="M records/s/core",
            prediction=prediction,
            reference=figures[f"bare {direction}"],
            reference_name=_LIMITS[direction],
            note=(
                f"the same {len(case.batches) / 2**20:.1f} MiB checked and copied into fresh"
                f" memory: {figure(figures['fresh'])} M records/s"
            ),
        )


def measure(quick: bool = False) -> list[Row]:
    """Every case, encoded and decoded, interleaved with its references."""
    result: list[Row] = []
    for size, shape, codec in PREDICTED:
        result += rows(make_case(size, shape, codec), QUICK_RUNS if quick else RUNS)
    return result


def main() -> None:
    for row in measure():
        print(
            f"{row.name:50} {figure(row.value):>6} {row.unit}, predicted "
            f"{figure(row.prediction):>5}; {figure(row.ratio):>7} of {row.reference_name}; "
            f"{row.note}"
        )


if __name__ == "__main__":
    main()
