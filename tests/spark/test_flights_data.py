"""The demo's records: JSON made by columns is the JSON of the rows, in event order."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.compute as pc
from examples.flights import data


def test_json_by_columns_is_json_by_rows() -> None:
    table = pa.table(
        {
            "word": ["plain", 'with "quotes"', "back\\slash", None],
            "number": [1, None, -3, 4],
            "ratio": [0.1, 1e300, None, -2.5],
        }
    )
    rows = [json.loads(row) for row in data.json_rows(table).to_pylist()]
    assert rows == table.to_pylist()


def test_flights_are_all_there_in_event_order() -> None:
    records = data.flight_records()
    assert records.num_rows == 336_776
    times = records["timestamp"].to_numpy()
    assert (times[1:] >= times[:-1]).all()
    first = json.loads(records["value"][0].as_py())
    assert first["time_hour"] == "2013-01-01T10:00:00Z"
    assert first["carrier"].encode() == records["key"][0].as_py()
    assert pc.min(records["timestamp"]).as_py() == 1_357_035_300_000


def test_weather_is_all_there_in_files_by_airport_and_day() -> None:
    files = data.weather_files()
    assert sum(file.line_count for file in files) == 26_115
    assert {file.airport for file in files} == {"EWR", "JFK", "LGA"}
    assert len({file.name for file in files}) == len(files)
    assert all(file.lines.count(b"\n") == file.line_count - 1 for file in files)
    first = json.loads(files[0].lines.splitlines()[0])
    assert files[0].name == f"{first['origin']}-2013-01-01"
    assert first["time_hour"] == "2013-01-01T06:00:00Z"
