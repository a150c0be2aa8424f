"""Values opened to Arrow columns: one core, in millions of values a CPU second.

Beside our reader stand DuckDB's `from_json` into a typed struct (which has other semantics: it
takes strings for numbers and the last of two equal names) and msgspec into typed structs row by
row (which still have to become columns). `memcpy` of the bytes is the limit of everything.

Prediction for JSON, in nanoseconds a value, from a trial: a byte read once by a loop of a load, a
table and a branch takes 1, a field that is matched and put into its column about 15, Arrow arrays
30: 97 bytes with five fields 200, so 5 M a second. Numbers of 17 digits are converted by Arrow for
100 each. A value that the kernel leaves to the slow reader takes 20 µs.

Prediction for Avro and Protobuf, set down beside the first figures: a value 15 (a message 20), a
field 8 (12, as it has a tag), its text 20 more, a nested message 30, an item or entry 20, Arrow
arrays 10. Beside Protobuf stands its own library in C, which makes an object of each value.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import duckdb
import msgspec
import numpy as np
import pyarrow as pa

from benchmarks.binary_values import binary_values
from benchmarks.columnar_codec import rate
from benchmarks.harness import Row, figure
from penstock.apps.loads.figures import interleaved
from penstock.formats.json.decode import JsonReader
from penstock.formats.json.json_schema import Field, Items, Leaf, Named, Record, Shape
from penstock.formats.readers import Reader

ROWS: Final = 100_000
ROWS_QUICK: Final = 20_000
BATCH_ROWS: Final = 10_000
"""Values of one batch, as Spark gives them to a worker."""
RUNS, RUNS_QUICK = 7, 3
PEERS: Final = {"duckdb": "DuckDB from_json", "upb": "google.protobuf (upb)", "memcpy": "memcpy"}
BINARY_PREDICTED: Final = {
    "Avro, orders": 11.8, "Avro, nested": 4.0,
    "Protobuf, orders": 9.1, "Protobuf, orders with a Timestamp": 6.0, "Protobuf, nested": 3.0,
}  # fmt: skip


class Order(msgspec.Struct):
    id: int
    customer: str
    amount: float
    at: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Values, what reads them, and what was predicted; peers are for values that all can read."""

    name: str
    reader: Reader
    values: list[bytes]
    prediction: float
    peers: Callable[[list[bytes]], dict[str, Callable[[], object]]] | None = None


def order_record(amount: pa.DataType) -> Record:
    parts: dict[str, Any] = {
        "id": pa.int64(), "customer": pa.string(), "amount": amount,
        "at": pa.timestamp("us", "UTC"), "text": pa.string(),
    }  # fmt: skip
    return Record(
        fields=tuple(
            Field(name=name, shape=Leaf(data_type=kind), required=name == "id")
            for name, kind in parts.items()
        )
    )


def order(dice: random.Random, number: int) -> dict[str, Any]:
    return {
        "id": number,
        "customer": f"c-{dice.randrange(1000)}",
        "amount": dice.randrange(100_000) / 100,
        "at": f"2026-01-{dice.randrange(1, 29):02}T03:04:{dice.randrange(60):02}Z",
        "text": f"hello {number}",
    }


def nested(dice: random.Random, number: int) -> dict[str, Any]:
    return {
        "id": number,
        "tags": ["abc", "defg"][: dice.randrange(3)],
        "place": {"x": dice.randrange(1000), "y": dice.randrange(100) / 4},
        "counts": {"a": dice.randrange(10), "b": dice.randrange(10)},
    }


def cases(rows: int) -> Iterator[Case]:
    dice = random.Random(5)
    orders = [order(dice, number) for number in range(rows)]
    made = JsonReader(record=order_record(pa.decimal128(12, 2)))
    packed = [json.dumps(value, separators=(",", ":")).encode() for value in orders]
    yield Case(name="JSON, orders", reader=made, values=packed, prediction=5.0, peers=json_peers)
    loose = [json.dumps(dict(reversed(value.items())) | {"more": {"a": [1, 2]}}).encode()
             for value in orders]  # fmt: skip
    yield Case(name="JSON, other order, surplus", reader=made, values=loose, prediction=3.0)
    long = [json.dumps(value | {"amount": dice.random()}).encode() for value in orders]
    doubles = JsonReader(record=order_record(pa.float64()))
    yield Case(name="JSON, 17 digits", reader=doubles, values=long, prediction=3.3)
    wide = [json.dumps(value | {"text": "x" * 940}).encode() for value in orders[: rows // 5]]
    yield Case(name="JSON, 1 KiB", reader=made, values=wide, prediction=0.8)
    some = [b'{"id":"x"}' if number % 100 == 0 else value for number, value in enumerate(packed)]
    yield Case(name="JSON, 1 % rejected", reader=made, values=some, prediction=2.5)
    shape: dict[str, Shape] = {
        "id": Leaf(data_type=pa.int64()),
        "tags": Items(item=Leaf(data_type=pa.string())),
        "place": order_place(),
        "counts": Named(value=Leaf(data_type=pa.int64())),
    }
    inner = Record(fields=tuple(Field(name=name, shape=part) for name, part in shape.items()))
    deep = [json.dumps(nested(dice, number)).encode() for number in range(rows)]
    yield Case(
        name="JSON, nested", reader=JsonReader(record=inner), values=deep, prediction=3.0
    )  # fmt: skip

    for each in binary_values(rows):
        yield Case(
            name=each.name, reader=each.reader, values=each.values,
            prediction=BINARY_PREDICTED[each.name],
            peers=None if each.parse is None else partial(library, each.parse),
        )  # fmt: skip


def order_place() -> Record:
    return Record(
        fields=(
            Field(name="x", shape=Leaf(data_type=pa.int64())),
            Field(name="y", shape=Leaf(data_type=pa.float64())),
        )
    )


def contenders(case: Case) -> dict[str, Callable[[], float]]:
    batches = [
        pa.array(case.values[first : first + BATCH_ROWS], pa.binary())
        for first in range(0, len(case.values), BATCH_ROWS)
    ]
    content = np.frombuffer(b"".join(case.values), np.uint8)
    actions: dict[str, Callable[[], object]] = {
        "ours": lambda: [case.reader.read(batch) for batch in batches],
        "memcpy": content.copy,
    }
    if case.peers is not None:
        actions |= case.peers(case.values)
    for action in actions.values():
        action()
    return {name: rate(len(case.values), action) for name, action in actions.items()}


def library(
    parse: Callable[[bytes], object], values: list[bytes]
) -> dict[str, Callable[[], object]]:
    """The format's own library, one value after the other."""
    return {"upb": lambda: [parse(value) for value in values]}


def json_peers(values: list[bytes]) -> dict[str, Callable[[], object]]:
    """What reads JSON orders elsewhere."""
    texts = pa.table({"v": pa.array([value.decode() for value in values])})
    database: Any = duckdb.connect()
    database.execute("SET threads = 1")
    database.register("texts", texts)
    wanted = json.dumps(
        {"id": "BIGINT", "customer": "VARCHAR", "amount": "DECIMAL(12,2)", "at": "TIMESTAMPTZ",
         "text": "VARCHAR"}
    )  # fmt: skip
    query = f"SELECT from_json(v, '{wanted}') FROM texts"
    decoder = msgspec.json.Decoder(Order)
    return {
        "duckdb": lambda: database.sql(query).to_arrow_table(),
        "msgspec": lambda: [decoder.decode(value) for value in values],
    }


def measure(*, quick: bool = False) -> list[Row]:
    """Every case; the reference is a peer where one can read the values, else the copy."""
    rows: list[Row] = []
    for case in cases(ROWS_QUICK if quick else ROWS):
        figures = interleaved(contenders(case), runs=RUNS_QUICK if quick else RUNS)
        peer = next(name for name in PEERS if name in figures)
        note = "; ".join(
            f"{name} {figure(value)} M/s" for name, value in figures.items() if name != "ours"
        )
        mean = sum(map(len, case.values)) / len(case.values)
        rows.append(
            Row(
                name=f"{case.name}, {mean:.0f} B", value=figures["ours"], unit="M values/s/core",
                prediction=case.prediction, reference=figures[peer],
                reference_name=PEERS[peer],
                note=note,
            )
        )  # fmt: skip
    return rows


def main() -> None:
    for row in measure():
        print(
            f"{row.name:36} {figure(row.value):>6} {row.unit}, predicted "
            f"{figure(row.prediction):>5}; {figure(row.ratio):>7} of {row.reference_name}; "
            f"{row.note}"
        )


if __name__ == "__main__":
    main()
