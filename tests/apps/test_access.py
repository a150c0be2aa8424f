"""`penstock acl` and `penstock user`, against a broker whose ACLs decide."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.testing import Broker
from tests.apps.conftest import Run

SETTINGS = {"authorizer.class.name": "acls", "super.users": "User:ANONYMOUS; User:admin"}


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    """Start a broker that allows everything to ANONYMOUS and nothing to other users."""
    with Broker(SETTINGS, admin=False) as broker:
        yield broker.bootstrap


@pytest.fixture
def run(bare: Run, guarded: str) -> Run:
    return lambda *words, stdin="": bare("-b", guarded, *words, stdin=stdin)


def test_acls_are_added_listed_and_removed(run: Run) -> None:
    added = run(
        "acl", "add", "--topic", "orders", "--topic", "bills", "--principal", "User:alice",
        "--operation", "read", "--operation", "alter-configs",
    )  # fmt: skip
    assert (added.status, added.out) == (0, "4 entries in force\n")
    words = ("--group", "g", "--prefix", "--principal", "User:*", "--operation", "all", "--deny")
    assert run("acl", "add", *words, "--host", "10.0.0.1").status == 0
    listed = run("acl", "list", "--topic", "orders").out
    assert "alter_configs" in listed
    assert "bills" not in listed
    found = json.loads(run("acl", "list", "--group", "gamma", "--match", "--output", "json").out)
    assert found == [
        {
            "resource_type": "group", "name": "g", "pattern_type": "prefixed",
            "principal": "User:*", "host": "10.0.0.1", "operation": "all", "permission": "deny",
        }
    ]  # fmt: skip
    removed = run("acl", "remove", "--topic", "orders", "--operation", "read")
    assert removed.out == "1 entries removed\n"
    assert run("acl", "remove", "--all").out == "4 entries removed\n"
    assert json.loads(run("acl", "list", "--output", "json").out) == []


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("add", "--topic", "t", "--principal", "User:a"), 2, "--operation"),
        (("add", "--principal", "User:a", "--operation", "read"), 2, "give a resource"),
        (
            ("add", "--cluster", "--principal", "User:a", "--operation", "read"),
            2, "read is not valid on a cluster; valid: create",
        ),
        (("add", "--topic", "t", "--principal", "a", "--operation", "read"), 1, "TYPE:NAME"),
        (("remove",), 2, "or add --all"),
    ],
)  # fmt: skip
def test_what_makes_no_acl_is_refused(
    run: Run, words: tuple[str, ...], status: int, said: str
) -> None:
    ran = run("acl", *words)
    assert ran.status == status
    assert said in ran.err


def test_without_an_authorizer_there_are_no_acls(bare: Run, bootstrap: str) -> None:
    ran = bare("-b", bootstrap, "acl", "list")
    assert ran.status == 1
    assert "authorizer.class.name is not set" in ran.err


def test_users_are_made_changed_and_removed(run: Run, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cret\n")
    assert run("user", "add", "alice", "--password-file", str(secret)).status == 0
    again = run("user", "add", "alice", "--password-file", "-", stdin="other\n")
    assert again.status == 2
    assert "user alice exists already" in again.err
    sha_256 = ("--mechanism", "SCRAM-SHA-256", "--iterations", "8192")
    changed = run("user", "passwd", "alice", "--password-file", "-", *sha_256, stdin="other\n")
    assert changed.out == "password of alice changed\n"
    found = json.loads(run("user", "list", "--output", "json").out)
    assert [(entry["mechanism"], entry["iterations"]) for entry in found] == [
        ("SCRAM-SHA-256", 8192), ("SCRAM-SHA-512", 4096),
    ]  # fmt: skip
    assert run("user", "remove", "alice").status == 0
    assert run("user", "remove", "alice").status == 2
    assert run("user", "passwd", "alice", "--password-file", "-", stdin="x\n").status == 2
    few = run("user", "add", "bob", "--password-file", "-", "--iterations", "5", stdin="x\n")
    assert few.status == 1
    assert "iterations must be from 4096 to 16384, not 5" in few.err
    assert run("user", "add", "bob", "--password-file", "-", stdin="\n").status == 2


def test_the_first_user_is_made_before_the_first_start(bare: Run, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    place = ("--offline", "--data-dir", str(directory))
    made = bare("user", "add", "admin", "--password-file", "-", *place, stdin="s3cret\n")
    assert (made.status, made.err) == (0, "")
    assert "SCRAM-SHA-512" in bare("user", "list", *place).out
    again = ("user", "add", "admin", "--password-file", "-", *place)
    assert bare(*again, stdin="other\n").status == 2
    with closing(sqlite3.connect(directory / "control.sqlite")) as database:
        before = database.execute("SELECT configs FROM entity_configs").fetchall()
    kept = bare(*again, "--if-not-exists", stdin="other\n")
    assert (kept.status, kept.out) == (0, "user admin exists already\n")
    with closing(sqlite3.connect(directory / "control.sqlite")) as database:
        assert database.execute("SELECT configs FROM entity_configs").fetchall() == before
    with closing(sqlite3.connect(directory / "control.sqlite")) as database:
        (row,) = database.execute("SELECT kind, name, configs FROM entity_configs")
    assert row[:2] == ("scram", "admin")
    assert "s3cret" not in row[2]
    with Broker(SETTINGS, directory=directory, admin=False) as broker:
        found = bare("-b", broker.bootstrap, "user", "list").out
        assert "admin" in found
        held = bare("user", "remove", "admin", *place)
        assert held.status == 1
        assert "if a broker runs, omit --offline" in held.err
    assert bare("user", "remove", "admin", *place).status == 0
    assert bare("user", "list", "--data-dir", str(directory)).status == 2
