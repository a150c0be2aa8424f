"""Reading history in Spark: our source, Spark's own Kafka connector, and a table of the topic.

A part of `spark_pipelines`. Three shapes of work, the same for every contender: a hash over every
value; a hash over every column; and a query (values parsed as JSON, sums and counts by kind). The
hashes' sum must come out the same, so whoever reads less is found out.

Prediction, at 100 B. Our source decodes about 7 M records/s per core and hands Arrow batches to
the JVM at 2.8 to 4.7 M rows/s on two cores; the hash is small beside that: 3.5 M rows/s of values,
2.2 of all columns. Fetched from the broker instead of read from its files the bytes cross a socket
once more: 3.0. The connector makes objects of one record at a time, about 0.6 µs for Kafka's
consumer and 0.7 µs for rows, and a core takes care of the broker now and then: 1.3 M rows/s, so a
ratio of 2.7. Spark's Parquet reader needs about 0.2 µs of CPU for a value of 100 B (0.06 snappy,
0.1 columns, 0.03 hash): 9 M rows/s, 7 times the connector; 5 M for all columns. `history` takes
nine tenths from the table and the last from the log: 7 M rows/s. JSON costs Spark
about 1.5 µs a value whoever brings it: 0.9 M rows/s from the log, 1.1 from the table.

At 1 KiB bytes decide. A record is copied five times on our way (file, column, two sides of the
socket, row), one of them into fresh memory, about 1.1 µs: 1.6 M rows/s from the page cache, where
the disk does not limit. The connector's own 1.3 µs stay and the copies are as many: 0.9 M rows/s, a
ratio of 1.8. A table of random text costs 0.8 µs, most of it snappy: 2.4 M rows/s. Parsing takes
about 3 µs: 0.5 M rows/s.

The first row of a batch takes a plan, and a task or two that read one chunk: 0.25 s for our
source, whose planner is a Python process asked by the driver, 0.15 s for a table.

The limit of a source in Python is one that reads nothing and hands out ready rows
(`prepared_source.py`): what Spark takes for the transport, the rows and the hash.

`rows per core` is rows divided by all CPU seconds used, the broker's among them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from benchmarks.harness import Row
from benchmarks.peers import spark_connector
from benchmarks.prepared_source import NAME, PreparedSource
from benchmarks.spark_bed import DATA, VALUE_SCHEMA, WARM, Bed, Work, in_turns, middle
from penstock.apps.loads.figures import interleaved
from penstock.client import Client
from penstock.spark.schema import DEFAULT_COLUMNS
from penstock.spark.tables import DeltaSink, history, read_table
from penstock.spark.tables.positions import app_id_of

SOURCE, TABLE, FETCHED = "source", "table", "source, by fetch"
HISTORY = "history, a tenth from the log"
CONNECTOR, APACHE = "connector", "connector, Apache Kafka"
READY = "ready rows of a Python source"
PEERS: Final = {CONNECTOR: "connector, same broker", APACHE: APACHE}
FIRST_ROW_PREDICTED: Final = {SOURCE: 0.25, TABLE: 0.15}
FIRST_ROW_RUNS: Final = 5

Frames = Mapping[str, Callable[[str], DataFrame]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Work to do with every record; `predicted` has million rows/s by contender and size."""

    name: str
    columns: tuple[str, ...]
    action: Callable[[DataFrame], object]
    predicted: Mapping[tuple[str, int], float]


def hashed(columns: tuple[str, ...]) -> Callable[[DataFrame], object]:
    """Count, and sum of the hashes' upper halves: it sees every byte, and cannot overflow."""

    def action(frame: DataFrame) -> object:
        upper = F.shiftrightunsigned(F.xxhash64(*columns), 32)
        return tuple(frame.agg(F.count("*"), F.sum(upper)).collect()[0])

    return action


def by_kind(frame: DataFrame) -> object:
    """A query as pipelines have it: parse, group, aggregate."""
    parsed = F.from_json(F.col("value").cast("string"), VALUE_SCHEMA)
    grouped = frame.select(parsed.alias("v")).groupBy("v.kind")
    found = grouped.agg(F.count("*"), F.sum("v.amount"), F.max(F.length("v.note"))).collect()
    return sorted(tuple(row) for row in found)


SHAPES: Final = (
    Shape(
        name="values",
        columns=("value",),
        action=hashed(("value",)),
        predicted={
            (SOURCE, 100): 3.5, (FETCHED, 100): 3.0, (TABLE, 100): 9.0, (HISTORY, 100): 7.0,
            (SOURCE, 1024): 1.6, (FETCHED, 1024): 1.3, (TABLE, 1024): 2.4, (HISTORY, 1024): 2.2,
        },
    ),
    Shape(
        name="all columns",
        columns=DEFAULT_COLUMNS,
        action=hashed(DEFAULT_COLUMNS),
        predicted={
            (SOURCE, 100): 2.2, (TABLE, 100): 5.0, (SOURCE, 1024): 1.3, (TABLE, 1024): 2.0,
        },
    ),
    Shape(
        name="JSON query",
        columns=("value",),
        action=by_kind,
        predicted={
            (SOURCE, 100): 0.9, (TABLE, 100): 1.1, (SOURCE, 1024): 0.5, (TABLE, 1024): 0.55,
        },
    ),
)  # fmt: skip


def measure(bed: Bed) -> list[Row]:
    """The scans, each shape by every contender, and the time to the first row of a batch."""
    for topic in (WARM, DATA):
        _keep_table(bed, topic)
    rows: list[Row] = []
    for shape in SHAPES:
        frames = _frames(bed, shape)
        contenders = {name: _scan(bed, shape, name, frame) for name, frame in frames.items()}
        for contender in contenders.values():
            contender(WARM)
        found = in_turns(
            {name: _of_data(contender) for name, contender in contenders.items()},
            runs=bed.scale.runs,
        )
        rows += _rows(bed, shape, found)
    rows += [_limit(bed, shape) for shape in SHAPES if shape.action is not by_kind]
    return [*rows, *_first_rows(bed)]


def _limit(bed: Bed, shape: Shape) -> Row:
    """Our source beside rows that need no reading: what transport and hash take at the least."""
    frames = _frames(bed, shape)
    contenders = {
        SOURCE: _scan(bed, shape, SOURCE, frames[SOURCE]),
        READY: _scan(bed, shape, READY, lambda topic: ready(bed, topic, shape.columns)),
    }
    for contender in contenders.values():
        contender(WARM)
    turns = {name: _of_data(contender) for name, contender in contenders.items()}
    found = in_turns(turns, runs=bed.scale.runs, agree=False)
    costs = {
        name: middle(works, lambda work: work.million_rows_a_core_second)
        for name, works in found.items()
    }
    return Row(
        name=f"{shape.name}, {bed.scale.size_name}, {SOURCE}: rows per core",
        value=costs[SOURCE],
        unit="M rows/CPU s",
        reference=costs[READY],
        reference_name=READY,
    )


def ready(bed: Bed, topic: str, columns: tuple[str, ...]) -> DataFrame:
    """As many rows as a topic has, of a source that reads nothing."""
    bed.spark.dataSource.register(PreparedSource)
    return bed.spark.read.format(NAME).options(**ready_options(bed, topic, columns)).load()


def ready_options(bed: Bed, topic: str, columns: tuple[str, ...]) -> dict[str, str]:
    """The options of that source."""
    scale = bed.scale
    rows = scale.records if topic == DATA else scale.pool_records
    return {"columns": ",".join(columns), "rows": str(rows), "valueBytes": str(scale.value_bytes)}


def _keep_table(bed: Bed, topic: str) -> None:
    """A table beside the topic in two commits; its first version lacks the topic's last tenth."""
    with Client(bed.penstock.bootstrap) as client:
        topic_id = str(client.describe_topic(topic).topic_id)
        reached = {at: end * 9 // 10 for at, end in client.list_offsets(topic, "latest").items()}
    edge = json.dumps({topic: {str(at): offset for at, offset in reached.items()}})
    sink = DeltaSink(_table(bed, topic), application="bench")
    app_transactions = {app_id_of(topic_id, at): offset for at, offset in reached.items()}
    sink.write(bed.ours(topic, endingOffsets=edge), 0, app_transactions=app_transactions)
    sink.write(bed.ours(topic, startingOffsets=edge), 1)


def _frames(bed: Bed, shape: Shape) -> Frames:
    """How each contender reads a topic; anew every time, as a program does."""
    columns = ",".join(shape.columns)

    def theirs(topic: str, name: str) -> DataFrame:
        return spark_connector.batch(bed.spark, address(bed, name), topic)

    frames: dict[str, Callable[[str], DataFrame]] = {
        SOURCE: lambda topic: bed.ours(topic, columns=columns),
        TABLE: lambda topic: read_table(bed.spark, _table(bed, topic)),
        CONNECTOR: lambda topic: theirs(topic, CONNECTOR),
        APACHE: lambda topic: theirs(topic, APACHE),
    }
    if (HISTORY, bed.scale.value_bytes) in shape.predicted:
        frames[HISTORY] = lambda topic: history(
            bed.spark,
            topic=topic,
            table=_table(bed, topic),
            version=0,
            bootstrap=bed.penstock.bootstrap,
            admin_url=bed.penstock.admin_url,
            columns=shape.columns,
        )
    if (FETCHED, bed.scale.value_bytes) in shape.predicted:
        frames[FETCHED] = lambda topic: bed.ours(topic, by_fetch=True, columns=columns)
    return frames


def _scan(
    bed: Bed, shape: Shape, name: str, frame: Callable[[str], DataFrame]
) -> Callable[[str], Work]:
    broker = None if name in (TABLE, READY) else address(bed, name)

    def scan(topic: str) -> Work:
        scale = bed.scale
        count = scale.records if topic == DATA else scale.pool_records
        return bed.measured(count, lambda: shape.action(frame(topic)), broker=broker)

    return scan


def address(bed: Bed, contender: str) -> str:
    """The broker that a contender talks to."""
    return (bed.kafka if contender == APACHE else bed.penstock).bootstrap


def _of_data(contender: Callable[[str], Work]) -> Callable[[], Work]:
    return lambda: contender(DATA)


def _table(bed: Bed, topic: str) -> str:
    return str(bed.directory / "tables" / topic)


def _rows(bed: Bed, shape: Shape, found: Mapping[str, list[Work]]) -> Iterator[Row]:
    _check_count(bed, shape, found[SOURCE][0].answer)
    for name in (SOURCE, FETCHED, TABLE, HISTORY):
        if name in found:
            what = f"{shape.name}, {bed.scale.size_name}, {_called(name)}"
            predicted = shape.predicted[name, bed.scale.value_bytes]
            yield from comparison(what, found, name, predicted, costs=name == SOURCE)


def _called(name: str) -> str:
    return "replay from the table" if name == TABLE else name


def comparison(
    what: str,
    found: Mapping[str, list[Work]],
    ours: str,
    predicted: float,
    *,
    peers: Mapping[str, str] = PEERS,
    costs: bool = True,
) -> Iterator[Row]:
    """Throughput and throughput per core against every peer, and the cost against the first.

    With `costs` a note has the figures of all contenders.
    """
    cost = "; ".join(f"{name}: {_cost(works)}" for name, works in found.items())
    for number, (peer, called) in enumerate(peers.items()):
        yield Row(
            name=f"{what}: rows",
            value=middle(found[ours], _rate),
            unit="M rows/s",
            prediction=predicted,
            reference=middle(found[peer], _rate),
            reference_name=called,
            note=cost if costs and not number else "",
        )
        yield Row(
            name=f"{what}: rows per core",
            value=middle(found[ours], lambda work: work.million_rows_a_core_second),
            unit="M rows/CPU s",
            reference=middle(found[peer], lambda work: work.million_rows_a_core_second),
            reference_name=called,
        )
    first, called = next(iter(peers.items()))
    for side, figure in (("client", _client_cost), ("broker", _broker_cost)):
        yield Row(
            name=f"{what}: {side} CPU",
            value=middle(found[ours], figure),
            unit="s/M rows",
            reference=middle(found[first], figure),
            reference_name=called,
            lower_is_better=True,
        )


def _rate(work: Work) -> float:
    return work.million_rows_a_second


def _client_cost(work: Work) -> float:
    return work.client_cpu_seconds * 1e6 / work.rows


def _broker_cost(work: Work) -> float:
    return work.broker_cpu_seconds * 1e6 / work.rows


def _cost(works: list[Work]) -> str:
    rate, client, broker = (middle(works, of) for of in (_rate, _client_cost, _broker_cost))
    return f"{rate:.2f} M rows/s, CPU s/M rows client {client:.2f}, broker {broker:.2f}"


def _check_count(bed: Bed, shape: Shape, answer: Any) -> None:
    counted = sum(row[1] for row in answer) if shape.action is by_kind else answer[0]
    if counted != bed.scale.records:
        raise RuntimeError(f"the scan of {shape.name} saw {counted} of {bed.scale.records} rows")


def _first_rows(bed: Bed) -> list[Row]:
    """From `load()` to the first row on the driver."""

    def first(frame: Callable[[str], DataFrame]) -> Callable[[], float]:
        def taken() -> float:
            begun = time.perf_counter()
            found = frame(DATA).limit(1).collect()
            took = time.perf_counter() - begun
            if len(found) != 1:
                raise RuntimeError("there was no first row")
            return took

        return taken

    frames = _frames(bed, SHAPES[1])
    frames = {**frames, READY: lambda topic: ready(bed, topic, SHAPES[1].columns)}
    contenders = {name: first(frame) for name, frame in frames.items()}
    interleaved(contenders, runs=1)
    figures = interleaved(contenders, runs=FIRST_ROW_RUNS)
    return [
        Row(
            name=f"first row of a batch, {bed.scale.size_name}, {_called(name)}",
            value=figures[name],
            unit="s",
            prediction=FIRST_ROW_PREDICTED[name],
            reference=figures[peer],
            reference_name=called,
            lower_is_better=True,
        )
        for name in (SOURCE, TABLE)
        for peer, called in (PEERS | {READY: READY}).items()
    ]
