"""The DuckDB example runs, and prunes by the tree's partition columns."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from examples.outbox_duckdb import PAYLOADS, READINGS, fill, volumes, warmest

from penstock.outbox.layout import data_path, temporary_name

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    fill(tmp_path)
    return tmp_path


def test_it_runs_as_a_script() -> None:
    command = [sys.executable, "examples/outbox_duckdb.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[0] == "EWR: 36 readings from 06 to 11 o'clock, at most 6.33 degrees"
    assert len(lines) == 6


def test_its_answers(filled: Path) -> None:
    assert warmest(filled, 6, 11) == [("EWR", 36, 6.33), ("JFK", 36, 7.33), ("LGA", 36, 8.33)]
    assert [(station, files) for station, files, _ in volumes(filled)] == [
        ("EWR", 24),
        ("JFK", 24),
        ("LGA", 24),
    ]


def test_temporary_files_are_not_read(filled: Path) -> None:
    for path in list(filled.rglob("data.bin")):
        path.with_name(temporary_name("abc", 1)).write_bytes(b"half a line {")
    assert warmest(filled, 0, 23)[0][:2] == ("EWR", 144)


def test_other_hours_are_not_opened(filled: Path) -> None:
    at_ms = 1_779_580_800_000 + 20 * 3_600_000
    broken = filled / data_path("JFK", "JFK-20", at_ms)
    broken.write_bytes(b"no JSON")
    assert warmest(filled, 0, 19)[1][:2] == ("JFK", 120)
    with pytest.raises(duckdb.Error, match="JFK-20"):
        warmest(filled, 0, 20)


def test_the_columns(filled: Path) -> None:
    with duckdb.connect() as connection:
        found = connection.execute(f"DESCRIBE {READINGS}", [str(filled / PAYLOADS)]).fetchall()
    columns = {name: kind for name, kind, *_ in found}
    assert {"station", "minute", "celsius", "year", "month", "day", "hour"} <= set(columns)
    assert columns["hour"] == "INTEGER"
