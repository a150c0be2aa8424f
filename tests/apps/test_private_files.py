"""Permissions of a broker's files, whatever the umask of its start."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.apps.process.private_files import protect
from penstock.client import Client
from tests.apps.test_serve import LOCAL, READY, serving


@pytest.fixture(autouse=True)
def _usual_umask() -> Iterator[None]:
    """Set the usual umask for the test and the processes that it starts."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(directory: Path) -> dict[str, int]:
    """The permissions of all files and directories below one."""
    return {
        str(path.relative_to(directory)): stat.S_IMODE(path.stat().st_mode)
        for path in [directory, *directory.rglob("*")]
    }


@pytest.mark.parametrize(("access", "denied"), [("owner", 0o077), ("group", 0o027)])
def test_a_broker_creates_files_that_others_cannot_read(
    tmp_path: Path, access: str, denied: int
) -> None:
    data = tmp_path / "data"
    with serving(data, *LOCAL, "-X", f"log.dirs.access={access}") as (_, line):
        found = READY.fullmatch(line)
        assert found is not None, line
        with Client(found.group(1)) as client:
            client.create_topic("orders")
            client.create_topic("events", configs={"diskless.enable": "true"})
            for topic in ("orders", "events"):
                client.write_arrow(topic, pa.table({"value": [b"v"]}))
        made = modes(data)
    assert {"control.sqlite", "control.sqlite-wal"} <= made.keys()
    assert any(name.startswith("log/orders-0") for name in made)
    assert {name: oct(mode) for name, mode in made.items() if mode & denied} == {}
    if access == "group":
        assert made["control.sqlite"] == 0o640
        assert made["log"] == 0o750


def test_several_brokers_of_one_directory_do_so_too(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(data, *LOCAL, "--processes", "2") as (_, line):
        assert line.startswith("penstock ready"), line
        assert {name: oct(mode) for name, mode in modes(data).items() if mode & 0o077} == {}


def test_older_files_are_closed_at_a_start(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "log" / "orders-0").mkdir(parents=True)
    (data / "staging").mkdir()
    (data / "staging").chmod(0o775)
    for name in ("control.sqlite", "control.sqlite-wal", "control.sqlite-journal", "notes.txt"):
        (data / name).write_bytes(b"")
    protect(data, "owner")
    found = modes(data)
    for name in ("control.sqlite", "control.sqlite-wal", "control.sqlite-journal"):
        assert oct(found[name]) == "0o600"
    assert oct(found["log"]) == "0o750"
    assert oct(found["staging"]) == "0o770", "the group keeps its rights"
    assert oct(found["notes.txt"]) == "0o644", "no file of a broker"
    assert oct(os.umask(0o022)) == "0o77"


def test_another_directory_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "projects").mkdir()
    protect(tmp_path, "owner")
    assert oct(modes(tmp_path)["projects"]) == "0o755"
