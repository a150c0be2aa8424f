"""The main job, log to table: a pipeline file beside the program that one writes by hand.

Both are in `main_job/` and are read in a minute: orders in JSON (about 85 B: id, customer, amount,
time, note), those with `amount >= 0`, the customer hashed by `sha2`, the note left out; appended to
a Delta table, upserted into one by id, and put on a topic as JSON. The pipeline is run by `penstock
pipeline run`, the program by `spark-submit` with Spark's Kafka connector, on Penstock and on Apache
Kafka with the same bytes. Each is a process of its own, on the same two cores, with the same
memory; contenders that wrote different rows stop the benchmark.

Three questions. How long a backlog takes (`--once`): rows a second of the query, which is what
Spark says of its batches, and beside it the seconds from the command to its end. What a run with
nothing to do takes. How long 1,000 rows take that come while the query runs, from the call that
produces them to the commit of the table; the next are sent at a random moment after that. What of
it is Spark's and its connector's shows the program with a count of each batch in the place of the
table.

CPU seconds are those of the program and all that it started (`peers/whole_tree.py`) and of its
broker. Beside those of the pipeline are those of bare programs (`main_job/no_sink.py`) that have
Spark make the same rows from our source, and throw them away, which no sink can go below, or write
them as plain Parquet files.

Prediction. The program is bound by Spark: 0.6 µs a record for the connector, `from_json` 3 µs,
`sha2` 0.6, Parquet and the rest 1.5; about 6 µs and as much again while Java is not yet compiled, a
fifth of a minute for 2 M rows: 0.15 M rows/s. The pipeline has to be three times that: values
opened at 1 M/s per core, 1 µs, `sha2` 0.3 by OpenSSL, Parquet 0.5, and 0.5 for reading and handing
over: 2.3 µs, 0.8 M rows/s on two cores without the first second of each process. Start-up: 3 s of
Java and Spark for both. 1,000 rows: a trigger of 0.1 s, a job of 0.2 and a commit of 0.1: 0.4 s.

What an upsert cannot do without, in CPU seconds of 2 M orders, half of whose keys come twice, on
two cores that others kept busy, each part by a bare program, everything warm: records, read and
opened by the source, through the filter and `sha2` into nothing 2.5; the 1 M rows that remain,
ready in Arrow, by `write_deltalake` 0.7. Between them rows go from Java to Python by Arrow: 2.4
where the driver reads all of them, as in a local session, 4.0 where tasks reduce them first, and
5.5 where Spark sorts them by key. So 5.6 in all, against a limit of 3.2. In a first batch Java also
interprets and compiles, and Python's workers start. Merges of 10,000 rows into 1 M: 0.02 for new
keys, 0.13 for those of one file of four, 0.45 for keys of all files, which are then rewritten.
Both take 2 M records in a batch. The merges of 20 M orders alone, ten of
2 M records, take 1.0 s/M: each of the last five rewrites one of five files (`main_job/merges.py`).

The scale is chosen by environment:

    PENSTOCK_BENCH_SCALE   quick (0.2 M rows), middle (2 M; the default), full (20 M), or a number
    PENSTOCK_BENCH_RUNS    runs of every contender: 1 by default
    PENSTOCK_BENCH_PARTS   of `table,upsert,topic,latency`; all of it by default
    PENSTOCK_BENCH_DIR     where everything is kept; a temporary directory by default
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from benchmarks.harness import Row
from benchmarks.peers import spark_connector
from benchmarks.spark_bed import (
    CORES,
    JAVA_MEMORY,
    PARTITIONS,
    AnyWork,
    Brokers,
    Work,
    brokers,
    in_turns,
    middle,
    tree_cpu_seconds,
)
from penstock.client import Client

FILES: Final = Path(__file__).parent / "main_job"
PIPELINE: Final = "pipeline file"
BY_HAND, BY_HAND_KAFKA = "by hand, same broker", "by hand, Apache Kafka"
PEERS: Final = (BY_HAND, BY_HAND_KAFKA)
CONTENDERS: Final = (PIPELINE, *PEERS)
NO_SINK: Final = "Spark, nothing written"
FILES_SINK: Final = "Spark, Parquet files"
BARE: Final = {"table": (NO_SINK, FILES_SINK), "upsert": (NO_SINK,), "topic": (NO_SINK,)}
AIM: Final = 3.0
AIM_OF_BARE: Final = 1 / 1.15
"""Least share of the bare program's speed: 1.15 times its CPU and wall seconds."""
COUNTED: Final = "by hand, only counted"
SCALES: Final = {"quick": 200_000, "middle": 2_000_000, "full": 20_000_000}
SINKS: Final = ("table", "upsert", "topic")
START_LIMIT: Final = (
    "Spark takes {bare:.1f} s to write nothing, and the aim leaves {left:.1f}. In profiles Java and"
    " its session take 2.1 s, the start of the query 2.4 s, and the stop 0.9 s."
)
BARE_LIMITS: Final = {
    "table": "Spark alone takes {files:.1f} CPU s per million rows to write plain Parquet files,"
    " and {bare:.1f} to write nothing; the pipeline takes {ours:.1f}. Python's imports, the file's"
    " analysis and the commit are the rest, whatever the number of rows is.",
    "upsert": "Spark alone takes {bare:.1f} CPU s per million rows to write nothing; the pipeline"
    " takes {ours:.1f}. The rest moves rows from Java to Python, where deltalake merges them.",
    "topic": "Spark alone takes {bare:.1f} CPU s per million rows to write nothing; the pipeline"
    " takes {ours:.1f}. The rest moves JSON from Java to Python by Arrow, encodes record batches,"
    " and stores them in the broker.",
}
"""Reasons for missed aims, with seconds and CPU seconds of the run."""
LATENCY: Final = "latency"
PREDICTED: Final = {"table": 0.8, "upsert": 0.4, "topic": 0.6}
PREDICTED_IDLE_SECONDS: Final = 6.0
PREDICTED_P50_SECONDS: Final = 0.4

TOPIC, TICKS, OUT = "orders", "ticks", "out"
CHUNK: Final = 1_000_000
TICK_ROWS: Final = 1_000
TICKS_COUNT, TICKS_COUNT_QUICK, TICKS_WARM = 100, 20, 10
TICK_PAUSE_SECONDS: Final = (0.1, 0.6)
LOOK_SECONDS: Final = 0.002
RUN_SECONDS: Final = 3_600
COMMIT_SECONDS: Final = 180
DISK_BYTES_A_ROW: Final = 700
TICKS_BYTES: Final = 1 << 30
"""Disk space for the rows that come while a query runs."""
# Half of the orders are the newer state of an order that is there; 2 % are refunds.
ORDERS: Final = """
select encode(id::varchar) as key, encode(
    '{"id":' || id || ',"customer":"c' || hash(number) % 100000
    || '","amount":' || ((hash(number + 7) % 100000)::bigint - 2000) / 100::decimal(12, 2)
    || ',"at":"' || strftime(make_timestamp(1790000000000000 + number * 1000000), '%xT%XZ')
    || '","note":"' || chr((65 + hash(number) % 26)::int) || '"}') as value
from (select number, number % greatest(1, $total // 2) as id
      from range($first, $last) as numbers(number))
"""
FACTS: Final = 'count(*), sum(amount), sum(hash(id, customer, amount, epoch_us("at")))'


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(Work):
    """One run of a program: `seconds` are those of its batches, `total_seconds` of the command."""

    total_seconds: float

    @property
    def cpu_seconds_a_million(self) -> float:
        """Of the program and its broker."""
        return (self.client_cpu_seconds + self.broker_cpu_seconds) * 1e6 / max(1, self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A contender with a sink: how it is started, and where it leaves what it makes."""

    beds: Brokers
    contender: str
    sink: str
    topic: str
    place: Path

    @property
    def bootstrap(self) -> str:
        """The broker that it reads from, and writes to."""
        kafka = self.contender == BY_HAND_KAFKA
        return (self.beds.kafka if kafka else self.beds.penstock).bootstrap

    @property
    def broker_pid(self) -> int:
        """The process of that broker."""
        kafka = self.contender == BY_HAND_KAFKA
        return (self.beds.kafka if kafka else self.beds.penstock).pid

    @property
    def table(self) -> Path:
        """The Delta table."""
        return self.place / OUT

    def prepare(self) -> None:
        """Make its directory, its file and the topic that it writes."""
        self.place.mkdir()
        text = (FILES / f"{self.sink}.toml").read_text()
        text = text.replace(f'topic = "{TOPIC}"', f'topic = "{self.topic}"')
        (self.place / "pipeline.toml").write_text(text)
        if self.sink == "topic":
            with Client(self.bootstrap) as client:
                client.create_topic(OUT, partitions=PARTITIONS)

    def remove(self) -> None:
        """Leave nothing behind."""
        shutil.rmtree(self.place)
        if self.sink == "topic":
            with Client(self.bootstrap) as client:
                client.delete_topic(OUT)

    def command(self, trigger: str) -> list[str]:
        """What starts it, with the trigger `once` or `now`."""
        if self.contender == PIPELINE:
            return self._pipeline(trigger)
        if self.contender in (NO_SINK, FILES_SINK):
            brokers = (self.bootstrap, self.beds.penstock.admin_url)
            sink = "files" if self.contender == FILES_SINK else self.sink
            words = (sink, JAVA_MEMORY, *brokers, self.topic, str(self.place / "checkpoint"))
            return [sys.executable, str(FILES / "no_sink.py"), *words]
        sink = "small" if trigger == "now" else self.sink
        if self.contender == COUNTED:
            sink = "count"
        jars = [*spark_connector.connector_jars(), *spark_connector.delta_jars()]
        settings = {
            "spark.driver.memory": JAVA_MEMORY,
            "spark.sql.session.timeZone": "UTC",
            "spark.ui.enabled": "false",
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        }
        return [
            str(Path(sys.executable).parent / "spark-submit"),
            *("--master", f"local[{CORES}]", "--jars", ",".join(map(str, jars))),
            *(word for pair in settings.items() for word in ("--conf", "=".join(pair))),
            *(str(FILES / "hand_written.py"), sink, trigger, self.bootstrap, self.topic),
            *(OUT if self.sink == "topic" else str(self.table), str(self.place / "checkpoint")),
        ]

    def _pipeline(self, trigger: str) -> list[str]:
        admin = ("--admin", self.beds.penstock.admin_url)
        return [
            *(sys.executable, "-m", "penstock", "pipeline", "run", str(self.place)),
            *("-b", self.bootstrap, *admin, "--master", f"local[{CORES}]", "--output", "json"),
            *("--set", f"spark.driver.memory={JAVA_MEMORY}"),
            *(("--once",) if trigger == "once" else ()),
        ]

    @contextmanager
    def running(self, trigger: str) -> Iterator[subprocess.Popen[bytes]]:
        """The started program; its files are `out.txt`, `errors.txt` and `used.json`."""
        environment = os.environ | {
            "SPARK_LOCAL_DIRS": str(self.beds.directory / "spark"),
            "PYSPARK_PYTHON": sys.executable,
        }
        with (self.place / "out.txt").open("wb") as out, self._errors.open("wb") as errors:
            counter = [sys.executable, "-m", "benchmarks.peers.whole_tree", str(self._used)]
            process = subprocess.Popen(
                [*counter, *self.command(trigger)], stdout=out, stderr=errors, env=environment
            )
            try:
                yield process
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(RUN_SECONDS)

    @property
    def _used(self) -> Path:
        return self.place / "used.json"

    @property
    def _errors(self) -> Path:
        return self.place / "errors.txt"

    def run_once(self) -> Run:
        """Run it to the end of what is there.

        Raises:
            RuntimeError: it failed; with the end of what it said.
        """
        before = tree_cpu_seconds(self.broker_pid)
        with self.running("once") as process:
            process.wait(RUN_SECONDS)
        used = json.loads(self._used.read_text())
        if used["status"]:
            raise RuntimeError(f"{self.contender}, {self.sink}: {self.said()}")
        return Run(
            rows=0,
            seconds=sum(self._batch_milliseconds()) / 1_000,
            client_cpu_seconds=used["cpu_seconds"],
            broker_cpu_seconds=tree_cpu_seconds(self.broker_pid) - before,
            total_seconds=used["seconds"],
            answer=self._answer(),
        )

    def _answer(self) -> tuple[Any, ...]:
        """What it has written."""
        if self.contender in (NO_SINK, FILES_SINK):
            return ()
        return _facts_of_topic(self.bootstrap) if self.sink == "topic" else _facts(self.table)

    def said(self) -> str:
        """The end of what it wrote."""
        return (self._errors.read_text() + (self.place / "out.txt").read_text())[-2_000:]

    def _batch_milliseconds(self) -> Iterator[int]:
        for line in (self.place / "out.txt").read_text().splitlines():
            if self.contender == PIPELINE:
                told = json.loads(line)
                if told.get("event") == "batch":
                    yield told["batch_ms"]
            elif line.startswith("["):
                yield from (progress["batchDuration"] for progress in json.loads(line))


def measure(*, quick: bool = False) -> list[Row]:
    """Every part that the environment asks for."""
    name = "quick" if quick else os.environ.get("PENSTOCK_BENCH_SCALE", "middle")
    count = int(name) if name.isdecimal() else SCALES[name]
    known = (*SINKS, LATENCY)
    parts = os.environ.get("PENSTOCK_BENCH_PARTS", ",".join(known)).split(",")
    if unknown := set(parts) - set(known):
        raise ValueError(f"PENSTOCK_BENCH_PARTS has {unknown.pop()!r}; there are {known}")
    rows = measure_backlogs(count, [sink for sink in SINKS if sink in parts])
    if LATENCY in parts:
        with brokers(TICKS_BYTES) as beds:
            rows += _latency(beds, TICKS_COUNT_QUICK if quick else TICKS_COUNT)
    return rows


def measure_backlogs(count: int, sinks: Sequence[str]) -> list[Row]:
    """Return the rows of some sinks for a backlog of `count` orders."""
    runs = int(os.environ.get("PENSTOCK_BENCH_RUNS", "1"))
    with brokers(count * DISK_BYTES_A_ROW) as beds:
        _fill(beds, count)
        return [row for sink in sinks for row in _backlog(beds, sink, count, runs)]


def orders(start: int, end: int, *, total: int) -> pa.Table:
    """Orders as keys and values; of `total` that there will be."""
    with duckdb.connect() as database:
        numbers = {"first": start, "last": end, "total": total}
        made = database.sql(ORDERS, params=numbers)
        assert made is not None  # a query has rows
        return made.to_arrow_table()


def _fill(beds: Brokers, count: int) -> None:
    for client in beds.clients():
        client.create_topic(TOPIC, partitions=PARTITIONS, configs={"retention.ms": "-1"})
        for start in range(0, count, CHUNK):
            client.write_arrow(TOPIC, orders(start, min(count, start + CHUNK), total=count))
    os.sync()


# A backlog, and nothing to do


def _backlog(beds: Brokers, sink: str, count: int, runs: int) -> list[Row]:
    idle: dict[str, list[Run]] = {name: [] for name in CONTENDERS}

    def contender(name: str) -> Callable[[], Run]:
        def work() -> Run:
            program = Program(
                beds=beds, contender=name, sink=sink, topic=TOPIC, place=beds.directory / "run"
            )
            program.prepare()
            done = program.run_once()
            if sink == "table" and name in idle:
                idle[name].append(program.run_once())
            program.remove()
            return replace(done, rows=count)

        return work

    found = in_turns({name: contender(name) for name in CONTENDERS}, runs=runs)
    bare = in_turns({name: contender(name) for name in BARE[sink]}, runs=runs)
    if any(again.answer != found[name][0].answer for name in idle for again in idle[name]):
        raise RuntimeError(f"a run with nothing to do changed the {sink}")
    rows = list(_compared(f"{sink}, {count / 1e6:g} M rows", found | bare, sink))
    return rows + (list(_idle_rows(idle)) if sink == "table" else [])


def _compared(what: str, found: Mapping[str, list[Run]], sink: str) -> Iterator[Row]:
    total = {name: middle(runs, _total_seconds) for name, runs in found.items()}
    cpu = {name: middle(runs, _cpu_seconds) for name, runs in found.items()}
    limit_of_bare = BARE_LIMITS[sink].format(
        ours=cpu[PIPELINE], bare=cpu[NO_SINK], files=cpu.get(FILES_SINK)
    )
    limit_of_rate = limit_of_bare if sink == "upsert" else ""
    yield from _against_peers(
        f"{what}: rows of the query",
        found,
        lambda run: run.million_rows_a_second,
        unit="M rows/s",
        prediction=PREDICTED[sink],
        note=f"answer {found[PIPELINE][0].answer}",
        aims={peer: {"aim_ratio": AIM, "limit": limit_of_rate} for peer in PEERS},
    )
    started = {
        peer: {
            "aim_ratio": AIM,
            "limit": START_LIMIT.format(bare=total[NO_SINK], left=total[peer] / AIM),
            "bare": total[NO_SINK],
        }
        for peer in PEERS
    }
    for called, unit, figure, of, aims in (
        ("the whole command", "s", _total_seconds, total, started),
        ("CPU", "s/M rows", _cpu_seconds, cpu, {}),
    ):
        bare = {"aim_ratio": AIM_OF_BARE, "limit": limit_of_bare, "bare": of.get(FILES_SINK)}
        yield from _against_peers(
            f"{what}: {called}", found, figure, unit=unit, peers=(*PEERS, *BARE[sink]), lower=True,
            aims={**aims, NO_SINK: bare},
        )  # fmt: skip


def _total_seconds(run: Run) -> float:
    return run.total_seconds


def _cpu_seconds(run: Run) -> float:
    return run.cpu_seconds_a_million


def _idle_rows(found: Mapping[str, list[Run]]) -> Iterator[Row]:
    yield from _against_peers(
        "nothing to do: the whole command",
        found,
        _total_seconds,
        unit="s",
        lower=True,
        prediction=PREDICTED_IDLE_SECONDS,
    )
    yield from _against_peers(
        "nothing to do: CPU", found, lambda run: run.client_cpu_seconds, unit="s", lower=True
    )


def _against_peers(
    name: str,
    found: Mapping[str, list[AnyWork]],
    figure: Callable[[AnyWork], float],
    *,
    unit: str,
    peers: Sequence[str] = PEERS,
    lower: bool = False,
    prediction: float | None = None,
    note: str = "",
    aims: Mapping[str, Mapping[str, Any]] | None = None,
) -> Iterator[Row]:
    for peer in peers:
        yield Row(
            name=name,
            value=middle(found[PIPELINE], figure),
            unit=unit,
            prediction=prediction,
            reference=middle(found[peer], figure),
            reference_name=peer,
            lower_is_better=lower,
            note=note if peer == BY_HAND else "",
            **(aims or {}).get(peer, {}),
        )


def _facts(table: Path) -> tuple[Any, ...]:
    """What a table has, whoever wrote it in whatever order."""
    files = [uri.removeprefix("file://") for uri in DeltaTable(str(table)).file_uris()]
    return _one(f"select {FACTS} from read_parquet($files)", files=files)


def _facts_of_topic(bootstrap: str) -> tuple[Any, ...]:
    """The same of a topic with rows as JSON."""
    with Client(bootstrap) as client:
        values = pa.table({"value": client.read_arrow(OUT).column("value")})
    with duckdb.connect() as database:
        database.register("lines", values)
        types = {"id": "bigint", "customer": "varchar", "amount": "decimal(12,2)"}
        columns = json.dumps(types | {"at": "timestamptz"})
        fields = f"unnest(from_json(decode(value), '{columns}'))"
        found = database.execute(f"select {FACTS} from (select {fields} from lines)")
        return found.fetchone() or ()


def _one(query: str, **parameters: object) -> tuple[Any, ...]:
    with duckdb.connect() as database:
        return database.execute(query, parameters).fetchone() or ()


# Rows that come while the query runs


class _Committed:
    """The rows of a Delta table that is only added to, from the commits as they appear."""

    def __init__(self, table: Path) -> None:
        self._log = table / "_delta_log"
        self._version = 0
        self.rows = 0

    def look(self) -> int:
        """Take new commits in; all rows so far."""
        while (commit := self._log / f"{self._version:020}.json").exists():
            for line in commit.read_text().splitlines():
                if added := json.loads(line).get("add"):
                    self.rows += json.loads(added["stats"])["numRecords"]
            self._version += 1
        return self.rows


def _latency(beds: Brokers, ticks: int) -> list[Row]:
    found = {name: _latencies(beds, name, ticks) for name in (*CONTENDERS, COUNTED)}
    rows: list[Row] = []
    for called, share, prediction in (("p50", 50, PREDICTED_P50_SECONDS), ("p99", 99, None)):
        figures = {
            name: statistics.quantiles(seconds, n=100, method="inclusive")[share - 1]
            for name, seconds in found.items()
        }
        rows += [
            Row(
                name=f"{TICK_ROWS:,} rows from produce to commit, {called}",
                value=figures[PIPELINE],
                unit="s",
                prediction=prediction,
                reference=figures[peer],
                reference_name=peer,
                lower_is_better=True,
            )
            for peer in (*PEERS, COUNTED)
        ]
    return rows


def _latencies(beds: Brokers, contender: str, ticks: int) -> list[float]:
    """Seconds from the call that produces rows to the commit that has the last of them."""
    program = Program(
        beds=beds, contender=contender, sink="table", topic=TICKS, place=beds.directory / "run"
    )
    program.prepare()
    pauses, committed = random.Random(contender), _Committed(program.table)
    wanted, figures = 0, []
    with Client(program.bootstrap) as client:
        client.create_topic(TICKS, partitions=PARTITIONS)
        with program.running("now") as process:
            for number in range(TICKS_WARM + ticks):
                first = number * TICK_ROWS
                batch = orders(first, first + TICK_ROWS, total=10 * TICK_ROWS)
                wanted += TICK_ROWS - _refunds(batch)
                begun = time.perf_counter()
                client.write_arrow(TICKS, batch)
                while committed.look() < wanted:
                    if process.poll() is not None or time.perf_counter() > begun + COMMIT_SECONDS:
                        raise RuntimeError(f"{contender} committed nothing: {program.said()}")
                    time.sleep(LOOK_SECONDS)
                figures.append(time.perf_counter() - begun)
                time.sleep(pauses.uniform(*TICK_PAUSE_SECONDS))
        client.delete_topic(TICKS)
    program.remove()
    return figures[TICKS_WARM:]


def _refunds(batch: pa.Table) -> int:
    """How many of some orders the rule leaves out."""
    return int(pc.sum(pc.match_substring(batch["value"].cast(pa.string()), '"amount":-')).as_py())
