"""The Spark driver of the demo: `python -m examples.flights.pipeline FOLDER BOOTSTRAP ADMIN`.

Two queries read the log:

- **rows** takes flights, and weather from the files the log points to, joins each flight to the
  weather at its departure, and appends every row exactly once: to a table, or to the dead letters
  with the reason.
- **delays** counts flights and sums delays by carrier and hour of departure, in event-time
  windows; each window's row is updated exactly once per batch.

Weather is joined from a snapshot: the weather topic up to offsets that are fixed before the first
batch and kept beside the checkpoint. A replayed batch therefore sees the same weather and gives
the same rows. (A join of two streams would hold flights without weather back until the watermark
has passed, and would drop what comes later; here every flight must come out, and at once.)

The process may be killed at any moment and started again with the same arguments.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from examples.flights import data, rules
from examples.flights.dead_letters import DeadLetters
from penstock.client import Client
from penstock.spark import DeltaSink, DeltaUpsert, session
from penstock.spark.pipeline.causes import cause_of

BATCH_RECORDS: Final = 50_000
WATERMARK: Final = "30 days"  # partitions are read side by side, and may be days apart
POLL_SECONDS: Final = 0.1
WORKER_LATE: Final = "Python worker failed to connect back"
"""An error of Spark's: a Python process took more than 10 s to start, as on a machine that is busy.
That time is fixed in Spark, so the query is started again, after a pause."""
RESTARTS_MAX: Final = 20
RESTART_SECONDS: Final = 5.0
TOPICS: Final = {"rows": (data.FLIGHTS, data.WEATHER), "delays": (data.FLIGHTS,)}
COLUMNS: Final = "key,value,headers,topic,partition,offset"  # the outbox's records have headers
SETTINGS: Final = {
    "spark.driver.memory": "2g",
    # A run of a minute is over before Java's thorough compiler pays off.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}
NOT_STORED: Final = ("value", "reason")


class QueryFailed(Exception):
    """A query that has ended; the message has its name and the cause, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where everything is: the output folder and the broker."""

    folder: Path
    bootstrap: str
    admin: str

    def table(self, name: str) -> Path:
        return self.folder / "tables" / name

    def checkpoint(self, name: str) -> Path:
        return self.folder / "checkpoints" / name

    @property
    def outbox(self) -> Path:
        return self.folder / "outbox"

    @property
    def stop_file(self) -> Path:
        return self.folder / "stop"


def read_stream(spark: SparkSession, place: Place, query: str, topics: str) -> DataFrame:
    """The log as a stream, from the beginning, shown as a consumer group."""
    return (
        spark.readStream.format("penstock")
        .option("bootstrap", place.bootstrap)
        .option("penstock.admin.url", place.admin)
        .option("subscribe", topics)
        .option("startingOffsets", "earliest")
        .option("maxRecordsPerTrigger", BATCH_RECORDS)
        .option("groupId", f"demo-{query}")
        .option("columns", COLUMNS)
        .load()
    )


def weather_snapshot(spark: SparkSession, place: Place) -> DataFrame:
    """The weather topic up to offsets that never change once they are chosen."""
    kept = place.folder / "weather-snapshot.json"
    if not kept.exists():
        with Client(place.bootstrap, api_timeout_ms=data.CALL_TIMEOUT_MS) as client:
            ends = client.list_offsets(data.WEATHER, "latest")
        draft = kept.with_suffix(".draft")
        draft.write_text(json.dumps({data.WEATHER: {str(p): end for p, end in ends.items()}}))
        os.replace(draft, kept)
    records = (
        spark.read.format("penstock")
        .option("bootstrap", place.bootstrap)
        .option("penstock.admin.url", place.admin)
        .option("subscribe", data.WEATHER)
        .option("endingOffsets", kept.read_text())
        .option("columns", COLUMNS)
        .load()
    )
    return rules.weather(records, place.outbox)


def reference(spark: SparkSession) -> tuple[DataFrame, DataFrame]:
    """Planes and airlines, small enough to be sent to every task."""
    planes = data.read("planes").select(["tailnum", "year", "type", "model"])
    planes = planes.rename_columns(["tailnum", "built", "aircraft", "model"])
    airlines = data.read("airlines").rename_columns(["carrier", "airline"])
    return spark.createDataFrame(planes), spark.createDataFrame(airlines)


def start_rows(spark: SparkSession, place: Place, client: Client) -> StreamingQuery:
    """Every record once: into a table, or into the dead letters."""
    planes, airlines = reference(spark)
    hours = weather_snapshot(spark, place).cache()
    flights = DeltaSink(str(place.table("flights")), application="demo-rows")
    weather = DeltaSink(str(place.table("weather")), application="demo-rows")
    letters = DeadLetters(place.table("dead_letters"), client, application="demo-rows")

    def write(batch: DataFrame, batch_id: int) -> None:
        batch.cache()
        judged = rules.judged_flights(rules.flights(batch), planes, airlines).cache()
        reports = rules.weather(batch, place.outbox).cache()
        good = rules.with_weather(judged.where("reason is null"), hours)
        flights.write(good.drop(*NOT_STORED), batch_id)
        weather.write(reports.where("reason is null").drop(*NOT_STORED), batch_id)
        wanted = [*rules.SOURCE, "reason", "value"]
        bad = judged.select(wanted).unionByName(reports.select(wanted))
        letters.write(bad.where("reason is not null"), batch_id)
        for frame in (judged, reports, batch):
            frame.unpersist()

    stream = read_stream(spark, place, "rows", f"{data.FLIGHTS},{data.WEATHER}")
    return _start(stream, "rows", place, write, mode="append")


def start_delays(spark: SparkSession, place: Place) -> StreamingQuery:
    """Delay by carrier and hour of scheduled departure."""
    planes, airlines = reference(spark)
    stream = read_stream(spark, place, "delays", data.FLIGHTS)
    possible = rules.judged_flights(rules.flights(stream), planes, airlines).where("reason is null")
    windows = (
        possible.withWatermark("scheduled", WATERMARK)
        .groupBy("carrier", F.window("scheduled", "1 hour").start.alias("hour"))
        .agg(
            F.count("*").alias("flights"),
            F.sum(F.col("cancelled").cast("int")).alias("cancelled"),
            F.sum("dep_delay").alias("dep_delay_minutes"),
            F.count("dep_delay").alias("departed"),
        )
    )
    sink = DeltaUpsert(
        str(place.table("delays")), application="demo-delays", keys=["carrier", "hour"]
    )
    return _start(windows, "delays", place, sink, mode="update")


def _start(stream: DataFrame, name: str, place: Place, write: Any, *, mode: str) -> StreamingQuery:
    writer = stream.writeStream.queryName(name).outputMode(mode).foreachBatch(write)
    return writer.option("checkpointLocation", str(place.checkpoint(name))).start()


def report(query: StreamingQuery, logged: int, seen: dict[str, int]) -> int:
    """Print a query's newest progress once, as a line of JSON for whoever watches.

    Returns:
        The number of records that the query has read and committed.
    """
    progress = query.lastProgress
    if progress is None:
        return 0
    end = _total(progress["sources"][0]["endOffset"])
    if seen.get(query.name) == progress["batchId"]:
        return end
    seen[query.name] = progress["batchId"]
    line = {
        "query": query.name,
        "batch": progress["batchId"],
        "rows": progress["numInputRows"],
        "rows_per_second": progress.get("processedRowsPerSecond", 0),
        "milliseconds": progress["durationMs"].get("triggerExecution", 0),
        "read": end,
        "lag": max(0, logged - end),
    }
    print(json.dumps(line), flush=True)
    return end


def _behind(
    query: StreamingQuery, topics: tuple[str, ...], client: Client, seen: dict[str, int]
) -> bool:
    logged = sum(sum(client.list_offsets(topic, "latest").values()) for topic in topics)
    return report(query, logged, seen) < logged


def _total(position: Any) -> int:
    body = json.loads(position) if isinstance(position, str) else position
    topics = (body or {}).get("topics", {})
    places = [entry["partitions"].values() for entry in topics.values()]
    return sum(place["offset"] for values in places for place in values)


def main(arguments: list[str]) -> int:
    place = Place(folder=Path(arguments[0]).resolve(), bootstrap=arguments[1], admin=arguments[2])
    try:
        run(place)
    except Exception as error:
        print(json.dumps({"failed": cause_of(error)}), flush=True)
        raise
    return 0


def run(place: Place) -> None:
    """Run both queries until they have read all that there is, once the stop file is there.

    Raises:
        QueryFailed: one of them has ended.
    """
    spark = session(application="flights", settings=SETTINGS)
    spark.sparkContext.setLogLevel("ERROR")
    with Client(place.bootstrap, api_timeout_ms=data.CALL_TIMEOUT_MS) as client:
        starts = {
            "rows": partial(start_rows, spark, place, client),
            "delays": partial(start_delays, spark, place),
        }
        queries = {name: start() for name, start in starts.items()}
        restarts = RESTARTS_MAX
        seen: dict[str, int] = {}
        while True:
            last = place.stop_file.exists()
            for name, query in queries.items():
                if error := query.exception():
                    if WORKER_LATE not in str(error) or not restarts:
                        raise QueryFailed(f"query {name}: {cause_of(error)}")
                    restarts -= 1
                    time.sleep(RESTART_SECONDS)
                    queries[name] = starts[name]()
            behind = [_behind(queries[name], TOPICS[name], client, seen) for name in queries]
            if last and not any(behind):
                break
            time.sleep(POLL_SECONDS)
        for query in queries.values():
            query.stop()
    spark.stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
