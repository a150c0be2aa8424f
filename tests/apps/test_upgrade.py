"""`penstock upgrade check` with data of this release, of earlier ones, and of later ones."""

from __future__ import annotations

import io
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.apps.upgrade.formats import sqlite_schema
from penstock.control.migrations import migrations
from penstock.testing import Broker
from tests.apps.conftest import Run

ROOT = Path(__file__).resolve().parents[2]
NEWEST = migrations("sqlite")[-1][0]
OLDEST = migrations("sqlite")[0][0]
VALUES = [b"first", b"second"]

OLD_SCHEMA = f"""
DROP TABLE registry_rows;
DELETE FROM counters WHERE name = 'registry_version';
PRAGMA user_version = {OLDEST};
"""
"""Takes a database back to the schema of the first migration; what it undoes is tested below."""


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a broker that was stopped, with one topic."""
    directory = tmp_path_factory.mktemp("stored") / "data"
    with Broker(directory=directory, admin=False) as broker, broker.client() as client:
        broker.create_topic("orders")
        client.write_arrow("orders", pa.table({"value": VALUES}))
    return directory


@pytest.fixture
def data(stored: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stored, tmp_path / "data"))


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def check(run: Run, directory: Path) -> tuple[int, dict[str, object]]:
    done = run("upgrade", "check", "--data-dir", str(directory), "--output", "json")
    return done.status, json.loads(done.out)


def test_data_of_this_release_needs_no_change(bare: Run, data: Path) -> None:
    before = contents(data)
    status, found = check(bare, data)
    assert status == 0
    assert found["readable"] is found["downgrade_possible"] is True
    assert found["in_use"] is found["changes"] is False
    assert contents(data) == before


def test_the_oldest_schema_is_upgraded_and_read_back(bare: Run, data: Path) -> None:
    with sqlite3.connect(data / "control.sqlite") as database:
        database.executescript(OLD_SCHEMA)
    schema = "SELECT name, sql FROM sqlite_master ORDER BY name"
    assert database.execute(schema).fetchall() == first_schema().execute(schema).fetchall()
    database.close()
    done = bare("upgrade", "check", "--data-dir", str(data))
    assert done.status == 0
    assert f"runs the sqlite migrations {NEWEST}, to schema version {NEWEST}" in done.out
    assert "a downgrade is not possible" in done.out.splitlines()[-1]
    with Broker(directory=data, admin=False) as broker, broker.client() as client:
        assert client.read_arrow("orders")["value"].to_pylist() == VALUES
    assert check(bare, data)[1]["changes"] is False


def first_schema() -> sqlite3.Connection:
    """A database with the first migration alone."""
    database = sqlite3.connect(":memory:")
    database.executescript(migrations("sqlite")[0][1])
    return database


def test_a_directory_in_use_is_read_and_named(bare: Run, tmp_path: Path) -> None:
    with Broker(directory=tmp_path, admin=False, process=True) as broker:
        broker.create_topic("orders")
        status, found = check(bare, tmp_path)
        assert (status, found["in_use"]) == (0, True)
        text = bare("upgrade", "check", "--data-dir", str(tmp_path)).out
        assert "A process is using the directory" in text
        copied = Path(shutil.copytree(tmp_path, tmp_path.parent / "copy"))
        assert check(bare, copied)[1]["in_use"] is False
        assert sqlite_schema(copied / "control.sqlite").version == str(NEWEST)


@pytest.mark.parametrize(
    ("name", "at", "content"),
    [
        ("log/partitions.checkpoint", 0, b"PCP9"),
        ("log/journal/00000000.journal", 0, b"PJE9"),
        ("log/orders-0/partition.metadata", 9, b"7"),
        ("log/orders-0/00000000000000000000.log", 16, b"\x01"),
        ("control.sqlite", 60, (NEWEST + 1).to_bytes(4, "big")),
        ("control.sqlite", 0, b"other"),
    ],
)
def test_an_unknown_format_is_named(
    bare: Run, data: Path, name: str, at: int, content: bytes
) -> None:
    with (data / name).open("r+b") as file:
        file.seek(at)
        file.write(content)
    status, found = check(bare, data)
    assert (status, found["readable"]) == (1, False)
    assert name in str(found["verdict"])
    assert str(found["verdict"]).count("\n") == 0


def test_an_older_checkpoint_is_rewritten(bare: Run, data: Path) -> None:
    checkpoint = data / "log" / "partitions.checkpoint"
    checkpoint.write_bytes(b"PCP1" + checkpoint.read_bytes()[4:])
    status, found = check(bare, data)
    assert (status, found["changes"], found["downgrade_possible"]) == (0, True, False)


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_a_directory_without_data_is_refused(bare: Run, tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    done = bare("upgrade", "check", "--data-dir", str(tmp_path / name))
    assert done.status == 1
    assert name in done.err
    assert done.err.count("\n") == 1


def test_the_newest_commit_in_the_write_ahead_log_counts(tmp_path: Path) -> None:
    path = tmp_path / "control.sqlite"
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA journal_mode = wal")
    for version in range(1, NEWEST + 1):
        database.execute(f"PRAGMA user_version = {version}")
        assert sqlite_schema(path).version == str(version)
    database.execute("BEGIN")
    database.execute("PRAGMA user_version = 3")
    assert sqlite_schema(path).version == str(NEWEST)
    database.close()
    assert sqlite_schema(path).version == str(NEWEST)


def test_the_schema_of_postgresql_is_read(bare: Run, data: Path, postgres_url: str) -> None:
    words = ("upgrade", "check", "--data-dir", str(data), "--control-url", postgres_url)
    for _ in range(2):  # the first check creates nothing
        done = bare(*words, "--output", "json")
        assert done.status == 0, done.err
        (found,) = (
            item for item in json.loads(done.out)["formats"] if "PostgreSQL" in item["where"]
        )
        assert found["version"] == "0"
        assert "runs the postgres migrations" in found["change"]


# Earlier and later code: that of a commit, from git's archive.


def commit_with(name: str) -> str:
    """The commit that added a file."""
    words = ["git", "-C", str(ROOT), "log", "--diff-filter=A", "--format=%H", "--", name]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()[-1]


def code_of(commit: str, folder: Path) -> Path:
    words = ["git", "-C", str(ROOT), "archive", commit, "src"]
    packed = subprocess.run(words, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


class Code:
    """Commands of Penstock as another commit has them."""

    def __init__(self, source: Path, kernels: Path) -> None:
        self._environment = {
            **os.environ, "PYTHONPATH": str(source), "PENSTOCK_KERNELS": str(kernels),
        }  # fmt: skip

    def serve(self, directory: Path) -> subprocess.Popen[str]:
        words = ["serve", "--data-dir", str(directory), "--listener", "127.0.0.1:0"]
        return subprocess.Popen(
            [sys.executable, "-m", "penstock", *words, "--admin", "127.0.0.1:0"],
            env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, *words: str, stdin: str = "") -> str:
        return subprocess.run(
            [sys.executable, "-m", "penstock", *words],
            env=self._environment, input=stdin, capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip


def records(code: Code, directory: Path, *written: str) -> Iterator[str]:
    """Serve a directory by some code; write records, and yield all that are stored."""
    with code.serve(directory) as broker:
        try:
            assert broker.stdout is not None
            ready = broker.stdout.readline()
            address = ready.split("kafka=")[1].split()[0]
            if written:
                code.run("-b", address, "produce", "orders", stdin="\n".join(written) + "\n")
            yield from code.run("-b", address, "consume", "orders", "-e").split()
        finally:
            broker.terminate()


@pytest.mark.timeout(600)
def test_earlier_code_and_this_code_share_a_directory(bare: Run, tmp_path: Path) -> None:
    """The previous schema is upgraded, and refused afterwards; the same schema goes both ways."""
    added = commit_with("src/penstock/control/migrations/sqlite/0018_registry.sql")
    previous = Code(code_of(f"{added}^", tmp_path / "previous"), tmp_path / "kernels")
    same = Code(code_of(added, tmp_path / "same"), tmp_path / "kernels")
    present = Code(ROOT / "src", tmp_path / "present")
    data = tmp_path / "data"

    with previous.serve(data) as broker:
        assert broker.stdout is not None
        address = broker.stdout.readline().split("kafka=")[1].split()[0]
        previous.run("-b", address, "topic", "create", "orders")
        broker.terminate()
    assert list(records(previous, data, "one")) == ["one"]
    assert check(bare, data)[1]["downgrade_possible"] is False
    assert list(records(present, data, "two")) == ["one", "two"]

    with previous.serve(data) as refused:
        _, errors = refused.communicate(timeout=60)
    assert refused.returncode != 0
    assert f"is at schema version {NEWEST}" in errors

    assert list(records(same, data, "three")) == ["one", "two", "three"]
    assert check(bare, data)[1]["downgrade_possible"] is True
    assert list(records(present, data)) == ["one", "two", "three"]
