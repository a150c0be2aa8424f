"""Spark's home with an unpacked Python library, and the cases in which the installed one stays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from penstock.spark.sessions import java as module
from penstock.spark.sessions.java import HOME_VARIABLE, HOMES_VARIABLE, spark_home

INSTALLED = Path(pyspark.__file__).parent
LIBRARY = Path("python/lib/pyspark.zip")
FOUND = (
    "from importlib.util import find_spec; "
    "found = find_spec('pyspark'); print(found.origin, found.cached)"
)


@pytest.fixture(autouse=True)
def none_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HOME_VARIABLE, raising=False)
    monkeypatch.setenv(HOMES_VARIABLE, str(tmp_path / "homes"))
    module._unpacked.cache_clear()


def test_the_library_is_a_folder_whose_compiled_modules_are_kept() -> None:
    home = spark_home()
    assert home != INSTALLED
    assert (home / "jars").resolve() == INSTALLED / "jars"
    assert (home / "bin" / "spark-submit").exists()
    assert not list(home.glob("*.py")), "it is no Python package"
    command = [sys.executable, "-S", "-c", FOUND]
    environment = {"PYTHONPATH": str(home / LIBRARY)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    loaded, compiled = ran.stdout.split()
    assert Path(loaded).parent == home / LIBRARY / "pyspark"
    assert Path(compiled).resolve().parent == INSTALLED / "__pycache__"


def test_a_home_is_made_once() -> None:
    first = spark_home()
    made = first.stat().st_ino
    module._unpacked.cache_clear()
    assert spark_home() == first
    assert first.stat().st_ino == made
    assert [entry.name for entry in first.parent.iterdir()] == [first.name]


def test_a_home_of_the_environment_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOME_VARIABLE, "/opt/spark")
    assert spark_home() == Path("/opt/spark")


def test_the_installed_home_stays_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(HOMES_VARIABLE, str(tmp_path / "file"))
    assert spark_home() == INSTALLED
