"""What is possible: flights and weather from JSON, each row with the reason it cannot be true.

Nothing is made up here. The data set's flights were flown, and its quirks are real:

- A cancelled flight has no departure and no arrival. That is no error: it is flagged.
- A flight diverted or not heard of again departed without arriving as planned: flagged too.
- Some tail numbers lead to the wrong aircraft in the register: a Robinson R66 helicopter that
  crossed the continent 281 times, a two-seat Cessna on the line to Miami. Impossible.
- Four flights were faster over ground than any airliner of their time. Impossible.
- On 12 February at 3 in the morning Newark measured a wind of 1,048 miles an hour. Impossible.

The other rules find nothing in this data; they are what a pipeline would guard against.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from examples.flights import data
from penstock.spark.reads.outbox import read_outbox

MPH_MAX: Final = 600
WIND_MPH_MAX: Final = 230  # the strongest gust ever measured on the ground is 253

FLIGHT_JSON: Final = (
    "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int,"
    " sched_arr_time int, arr_delay int, carrier string, flight int, tailnum string,"
    " origin string, dest string, air_time int, distance int, hour int, minute int,"
    " time_hour timestamp"
)
WEATHER_JSON: Final = (
    "origin string, temp double, dewp double, humid double, wind_dir double, wind_speed double,"
    " wind_gust double, precip double, pressure double, visib double, time_hour timestamp"
)

Rules = Sequence[tuple[str, str]]

FLIGHT_RULES: Final[Rules] = (
    ("not a flight", "carrier is null or origin is null or time_hour is null or distance is null"),
    ("unknown airline", "airline is null"),
    ("arrived without departing", "arr_time is not null and dep_time is null"),
    ("no distance or time in the air", "distance <= 0 or air_time <= 0"),
    (
        "clock and delay disagree",
        "(clock(dep_time) - clock(sched_dep_time) - dep_delay) % 1440 <> 0",
    ),
    ("built after it flew", "built > year"),
    (
        "flown by a helicopter or a single-engine plane, says the register",
        "air_time is not null and aircraft in ('Rotorcraft', 'Fixed wing single engine')",
    ),
    (f"faster than {MPH_MAX} mph", f"distance / (air_time / 60) > {MPH_MAX}"),
)
WEATHER_RULES: Final[Rules] = (
    ("not a weather report", "origin is null or time_hour is null"),
    (f"wind over {WIND_MPH_MAX} mph", f"wind_speed > {WIND_MPH_MAX}"),
    ("humidity outside 0 to 100 %", "humid < 0 or humid > 100"),
    ("dew point above temperature", "dewp > temp + 0.1"),
    ("negative rain", "precip < 0"),
)
SOURCE: Final = ("topic", "partition", "offset", "line")
"""Where a row came from; `line` counts within a record that carries several."""


def flights(records: DataFrame) -> DataFrame:
    """Records of the flights topic as columns; `scheduled` is the event time, in UTC."""
    rows = records.where(F.col("topic") == data.FLIGHTS).withColumn("line", F.lit(0))
    return _parsed(rows, FLIGHT_JSON).withColumn(
        "scheduled", F.expr("time_hour + make_interval(0, 0, 0, 0, 0, minute)")
    )


def weather(records: DataFrame, outbox: Path) -> DataFrame:
    """The files that the weather topic points to as columns, a row for each line of each file.

    A row has the reason why it cannot be true, if there is one.
    """
    pointers = records.where(F.col("topic") == data.WEATHER)
    payloads = read_outbox(pointers, outbox, fail_on_error=True)
    lines = F.split(F.decode("payload", "UTF-8"), "\n")
    rows = payloads.select(
        "topic", "partition", "offset", F.posexplode(lines).alias("line", "value")
    )
    return _judged(_parsed(rows, WEATHER_JSON), WEATHER_RULES)


def judged_flights(rows: DataFrame, planes: DataFrame, airlines: DataFrame) -> DataFrame:
    """Flights with airline and aircraft, flags, and the reason why a row cannot be true."""
    known = rows.join(F.broadcast(airlines), "carrier", "left").join(
        F.broadcast(planes), "tailnum", "left"
    )
    flagged = known.withColumn("cancelled", F.expr("dep_time is null")).withColumn(
        "diverted", F.expr("dep_time is not null and arr_delay is null")
    )
    return _judged(flagged, FLIGHT_RULES)


def with_weather(rows: DataFrame, hours: DataFrame) -> DataFrame:
    """Flights with the weather at their airport in the hour of departure, where it is known."""
    at_departure = hours.where("reason is null").select(
        "origin", "time_hour", "temp", "humid", "wind_speed", "precip", "pressure", "visib"
    )
    return rows.join(F.broadcast(at_departure), ["origin", "time_hour"], "left")


def _parsed(rows: DataFrame, schema: str) -> DataFrame:
    text = F.col("value").cast("string")
    row = F.from_json(text, schema, {"mode": "PERMISSIVE"})
    wanted = rows.select(*SOURCE, text.alias("value"), row.alias("row"))
    return wanted.select(*SOURCE, "value", "row.*")


def _judged(rows: DataFrame, rules: Rules) -> DataFrame:
    reasons = [F.when(F.expr(_clocks(test)), F.lit(reason)) for reason, test in rules]
    first: Column = F.coalesce(*reasons)
    return rows.withColumn("reason", first)


def _clocks(test: str) -> str:
    # clock(517) is 5:17 in minutes of the day.
    for name in ("dep_time", "sched_dep_time"):
        test = test.replace(f"clock({name})", f"({name} div 100 * 60 + {name} % 100)")
    return test
