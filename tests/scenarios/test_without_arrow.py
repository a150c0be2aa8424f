"""Broker and administrative commands of an installation without PyArrow.

The broker is a process that cannot import PyArrow, and one process runs all commands. The client of
the test has PyArrow, and checks by it what the broker has written.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import msgspec
import pyarrow as pa
import pytest
from msgspec import Struct

from penstock.client import Client, Queue
from penstock.testing import Broker

BLOCK = "import sys\nsys.modules['pyarrow'] = None\n"
"""Start-up file of Python processes that cannot import PyArrow."""
EXTRA = "the Python package pyarrow is not installed. Install it with: pip install"
AUDIT = "audit.log"
SCHEMA = '{"type": "record", "name": "order", "fields": [{"name": "id", "type": "long"}]}'
SETTINGS = {
    "authorizer.class.name": "acls",
    "super.users": "User:ANONYMOUS",
    "audit.topic": AUDIT,
    "registry.enable": "true",
    "registry.listener": "127.0.0.1:0",
}
RUN = """
import contextlib, io, json, sys
from penstock.apps.cli import main

done = []
for words in json.load(sys.stdin):
    out, errors = io.StringIO(), io.StringIO()
    status = None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            main(words)
        except SystemExit as ended:
            status = ended.code
    done.append({"words": words, "status": status, "out": out.getvalue(), "err": errors.getvalue()})
json.dump(done, sys.stdout)
"""
"""Program that runs commands one after the other."""
PAGES = (
    "", "/topics", "/topics/work", "/groups", "/groups/readers", "/queues", "/queues/g",
    "/transactions", "/schemas", "/schemas/work-value", "/pipelines", "/hosts", "/outboxes",
    "/diskless", "/brokers", "/reassignments", "/access", "/users", "/quotas", "/planner/capacity",
)  # fmt: skip


class Done(Struct, frozen=True):
    """A command that has ended: its words, its exit status and its output."""

    words: list[str]
    status: int | None
    out: str
    err: str


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    """A broker whose process, and all further processes, cannot import PyArrow."""
    folder = tmp_path / "blocked"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(BLOCK)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    with Broker(SETTINGS, process=True) as broker:
        yield broker


def run_all(broker: Broker, commands: Sequence[Sequence[str]]) -> Iterator[Done]:
    """Run commands in one process without PyArrow; yield them with their results."""
    words = [["-b", broker.bootstrap, *command] for command in commands]
    done = subprocess.run(
        [sys.executable, "-c", RUN], input=json.dumps(words), capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    yield from msgspec.json.decode(done.stdout, type=list[Done])


def page(broker: Broker, path: str) -> str:
    with urlopen(f"{broker.admin_url}/console{path}") as response:
        text: str = response.read().decode()
    return text


def taken(queue: Queue) -> Any:
    for _ in range(100):
        found = queue.take()
        if len(found):
            return found
    raise AssertionError("the queue returned no record")


def records(client: Client, topic: str, count: int) -> list[dict[str, Any]]:
    """Return the records of a topic, as soon as it has `count`."""
    for _ in range(500):
        found: list[dict[str, Any]] = client.read_arrow(topic).to_pylist()
        if len(found) >= count:
            return found
    raise AssertionError(found)


def administration(broker: Broker, folder: Path) -> list[list[str]]:
    """Return commands that must succeed, in their order."""
    (folder / "order.avsc").write_text(SCHEMA)
    places = {
        "FOLDER": str(folder),
        "DATA": str(broker.directory),
        "REGISTRY": broker.registry_address,
    }
    lines = """
        topic list
        topic describe work
        topic alter-config work -s retention.ms=1000000000
        topic add-partitions work -n 1
        topic trim-prefix work -o 1 -p 0 --yes
        topic replicas work
        topic elect work
        group seek readers -t work --to beginning --execute
        group list
        group describe readers
        group watch readers --once
        queue list
        queue describe g
        transaction list
        cluster status
        cluster advise
        config describe topic work
        quota set --user alice producer_byte_rate=1000
        quota list
        acl add --principal User:alice --operation read --topic work
        acl list
        user list
        tls dev-ca FOLDER/tls
        log dump work
        log verify work
        log verify --data-dir DATA
        log stats work
        keys init --ring FOLDER/ring
        keys list --ring FOLDER/ring
        plan capacity
        plan cost
        doctor --local --data-dir DATA
        upgrade check --data-dir DATA
        support bundle --output-file FOLDER/support.tar.gz --data-dir DATA
        schema register work-value FOLDER/order.avsc --registry REGISTRY
        schema list --registry REGISTRY
        man --directory FOLDER/man
        completion bash
    """
    for name, place in places.items():
        lines = lines.replace(name, place)
    return [words for words in map(str.split, lines.splitlines()) if words]


WITH_RECORDS = (
    "produce work", "consume work -e", "queue oldest g", "queue peek g", "queue redrive g",
    "log dump work --deep", "log stats work --deep", "plan keys work", "bench --quick",
    "outbox write -t work --root . --partition-id a pyproject.toml",
)  # fmt: skip
"""Commands that convert records to columns."""


def test_a_broker_and_its_commands_do_without_pyarrow(broker: Broker, tmp_path: Path) -> None:
    with broker.client() as client:
        client.create_topic("work", partitions=1)
        client.create_topic("dlq.work", configs={"errors.deadletterqueue.group.enable": "true"})
        client.alter_configs(
            "group",
            "g",
            {
                "share.auto.offset.reset": "earliest",
                "errors.deadletterqueue.topic.name": "dlq.work",
            },
        )
        headers = [[{"key": "h", "value": None}], [{"key": "h", "value": b"x"}]]
        for number, codec in enumerate(("none", "zstd")):
            table = pa.table(
                {
                    "key": [b"k", None],
                    "value": [b"a", b"b"],
                    "timestamp": [1000 + number, 2000 + number],
                    "headers": headers,
                }
            )
            client.write_arrow("work", table, codec=codec)
        assert client.list_offsets("work", 1001) == {0: 1}
        assert client.list_offsets("work", 2001) == {0: 3}
        with client.queue("g", "work") as queue:
            found = taken(queue)
            found.reject([1, 2])
            letters = records(client, "dlq.work", 2)
            found.ack()
        assert [(letter["key"], letter["value"]) for letter in letters] == [
            (None, b"b"), (b"k", b"a")
        ]  # fmt: skip
        pairs = {header["key"]: header["value"] for header in letters[1]["headers"]}
        assert (pairs["h"], pairs["__dlq.errors.offset"]) == (None, b"2")

    commands = administration(broker, tmp_path)
    failures = [words.split() for words in WITH_RECORDS]
    results = list(run_all(broker, [*commands, *failures]))
    for done in results[: len(commands)]:
        assert done.status == 0, done
    for done in results[len(commands) :]:
        assert (done.status, done.err.count("\n")) == (1, 1), done
        assert f"{EXTRA} 'penstock[client]'" in done.err
    by_words = {" ".join(done.words[2:]): done.out for done in results}
    assert "readers" in by_words["group list"]
    assert "work-value" in by_words[f"schema list --registry {broker.registry_address}"]

    for path in PAGES:
        assert "<h1" in page(broker, path), path
    for path in ("/topics/work/messages", "/topics/work/produce"):
        assert "pip install 'penstock[client]'" in page(broker, path)

    with broker.client() as client:
        [first, *_] = records(client, AUDIT, 1)
        assert json.loads(first["value"])
    assert "Traceback" not in (broker.directory / "broker.log").read_text()
