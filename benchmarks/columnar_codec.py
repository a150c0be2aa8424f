"""The columnar codec: batches to Arrow and back, one core, in millions of records a second.

The predictions are sums of parts, in nanoseconds a record of 100 bytes, timed alone or estimated;
they were set down beside the first figures, not before them, and for an encoder that joined its
pieces, where today's gathers them. A spike of that method took 143 to decode and 93 to encode. A
key costs one more Arrow take (8) or three more joined pieces (25) and two varints (5); two
headers about 100; a batch header with its checksum 1.4 µs to read and 3 µs to write. Records of
one size save the search for their starts (60). A codec adds what its library takes for 112 bytes:
gzip 1440 and 132, snappy 105 and 32, lz4 110 and 22, zstd 221 and 65. Larger values cost 0.39 a
byte, the price of memory that is fresh.

References of the same run: `memcpy` of the same bytes, and Arrow's `take` of all values. Times
are CPU seconds of this thread, because the figures are per core.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from benchmarks.harness import Row, figure
from penstock.apps.loads.figures import interleaved
from penstock.records import Codec
from penstock.records.columnar import decode_batches, encode_batches

PASS_BYTES: Final = 8 << 20
RUNS: Final = 7
QUICK_RUNS: Final = 3
_SMALL_BATCH_RECORDS: Final = 10

# Millions of records a second, from the costs above: (encode, decode).
PREDICTED: Final = {
    ("100 B", "values", Codec.NONE): (10.7, 7.0),
    ("100 B", "fixed-size values", Codec.NONE): (10.7, 12.0),
    ("100 B", "keyed", Codec.NONE): (8.1, 6.4),
    ("100 B", "keyed, two headers", Codec.NONE): (4.5, 3.9),
    ("100 B", "batches of 10", Codec.NONE): (2.5, 3.5),
    ("1 KiB", "values", Codec.NONE): (2.2, 2.0),
    ("1 KiB", "keyed", Codec.NONE): (2.1, 1.9),
    ("100 B", "values", Codec.GZIP): (0.65, 3.6),
    ("100 B", "values", Codec.SNAPPY): (5.0, 5.7),
    ("100 B", "values", Codec.LZ4): (4.9, 6.0),
    ("100 B", "values", Codec.ZSTD): (3.2, 4.8),
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
    source = np.frombuffer(case.batches, np.uint8)
    values = case.table.column("value").chunk(0)
    everything = pa.array(np.arange(count))
    actions: dict[str, Callable[[], object]] = {
        "encode": lambda: encode_batches(case.table, **case.options),
        "decode": lambda: decode_batches(case.batches),
        "memcpy": source.copy,
        "take": lambda: values.take(everything),
    }
    for action in actions.values():
        action()
    return {name: rate(count, action) for name, action in actions.items()}


def rows(case: Case, runs: int) -> Iterator[Row]:
    """Both directions of a case; the reference is Arrow's take, memcpy stands in the note."""
    figures = interleaved(contenders(case), runs=runs)
    predictions = PREDICTED[case.size, case.shape, case.codec]
    for direction, prediction in zip(("encode", "decode"), predictions, strict=True):
        yield Row(
            name=f"{direction} {case.name}",
            value=figures[direction],
            unit="M records/s/core",
            prediction=prediction,
            reference=figures["take"],
            reference_name="Arrow take of the values",
            note=(
                f"memcpy of the {len(case.batches) / 2**20:.1f} MiB of batches moves "
                f"{figure(figures['memcpy'])} M records/s: "
                f"{figure(figures[direction] / figures['memcpy'])} of it"
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
            f"{row.name:41} {figure(row.value):>6} {row.unit}, predicted "
            f"{figure(row.prediction):>5}; {figure(row.ratio):>7} of {row.reference_name}; "
            f"{row.note}"
        )


if __name__ == "__main__":
    main()
