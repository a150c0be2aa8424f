"""`penstock pipeline replay`: what it refuses and shows, and a backfill that is killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from penstock.apps.pipeline.replay import whoami
from penstock.client import Client
from penstock.spark.pipeline.parsing import load
from penstock.spark.pipeline.replay.dead_letters import Filters
from penstock.spark.pipeline.replay.refusals import NoSuchDeadLetters, check_filters
from penstock.spark.pipeline.retry_store import SCHEMA, RetryStore
from penstock.spark.pipeline.state import PipelinePaths
from penstock.testing import Broker
from tests.apps.conftest import Run
from tests.apps.test_serve import environment

TIMEOUT_SECONDS = 400
TEXT = """
name = "lines"
[run]
trigger = "once"
[source.lines]
topic = "lines"
format = "json"
schema = "n bigint"
[source.lines.expect]
"small" = "n < 1000"
[sink.first]
from = "lines"
table = "first"
{late}
[errors]
dead_letters = "dead"
"""
LATE = """
[sink.second]
from = "lines"
table = "second"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "lines.toml"
    path.write_text(TEXT.replace("{late}", ""))
    return path


# What needs no Java


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "give one of --dead-letters, --parked and --sink"),
        (["--parked", "--sink", "first"], "give one of --dead-letters, --parked and --sink"),
        (["--parked", "--rule", "small"], "--rule requires --dead-letters"),
        (["--dead-letters", "--all"], "--all requires --parked"),
        (["--dead-letters", "--from", "earliest"], "--from requires --sink"),
        (["--dead-letters", "--since", "noon"], "--since noon: "),
        (["--dead-letters", "--offsets", "0-5"], "must read PARTITION:FROM-TO"),
        (["--dead-letters", "--offsets", "0:5-4"], "4 comes before 5"),
        (["--parked", "--key-hex", "xy"], "--key-hex xy: "),
        (
            ["--parked", "--all", "--key", "a"],
            "give --all, or keys with --key and --key-hex, not both",
        ),
        (["--parked", "--execute"], "--execute needs --key, --key-hex or --all"),
        (["--parked", "--all", "--execute"], "no parked record matches"),
        (["--parked", "--query", "lines"], "query lines has no held records"),
        (["--sink", "first", "--from", "noon"], "--from noon: "),
        (["--sink", "other"], "unknown sink other; the file has first"),
    ],
)
def test_invalid_options_are_reported(bare: Run, file: Path, words: list[str], told: str) -> None:
    ran = bare("pipeline", "replay", str(file), "-b", "127.0.0.1:1", *words)
    assert ran.status != 0
    assert told in ran.err
    assert "Traceback" not in ran.err


def test_names_that_nothing_has(file: Path) -> None:
    spec = load(file, bootstrap="127.0.0.1:1")
    for wanted in (Filters(), Filters(rule="small"), Filters(rule="undecodable", topic="lines")):
        check_filters(spec, wanted)
    for wanted, told in (
        (
            Filters(rule="smal"),
            f"{file}: --rule smal: no dead letter has this rule, .*; write 'small'",
        ),
        (Filters(rule="xyz"), "known: 'small', 'undecodable'"),
        (Filters(topic="line"), "--topic line: no dead letter has this topic, .*; write 'lines'"),
    ):
        with pytest.raises(NoSuchDeadLetters, match=told):
            check_filters(spec, wanted)


def test_parked_records_are_shown_and_asked_for(bare: Run, file: Path) -> None:
    base = ["pipeline", "replay", str(file), "-b", "127.0.0.1:1", "--parked"]
    assert bare(*base).out == "no held records\n"
    assert bare(*base, "--key", "a").out == "no held records of these keys\n"
    spec = load(file, bootstrap="127.0.0.1:1")
    kinds = ["park", "follow", "retry", "park"]
    rows = {
        "key": [b"a", b"a", b"\xff", None], "value": [b"v"] * 4, "topic": ["lines"] * 4,
        "partition": [0] * 4, "offset": [3, 4, 5, 6], "timestamp": [0] * 4, "headers": [None] * 4,
        "rule": ["small", None, "small", "small"], "reason": ["too large", None, "why", "why"],
        "otherwise": kinds, "attempt": [0, 0, 1, 0], "held_ms": [1_000] * 4,
        "due_ms": [None, None, 5_000, None],
    }  # fmt: skip
    lot = RetryStore(PipelinePaths(spec).held("lines"), application="test")
    lot.save(pa.Table.from_pydict(rows, schema=SCHEMA), 0)
    shown = bare(*base)
    assert shown.status == 0
    assert "query lines: 4 held records, 2 of them parked" in shown.out
    assert "too large" in shown.out
    (found,) = json.loads(bare(*base, "--output", "json").out)
    assert (found["records"], found["parked"], found["requested"]) == (4, 2, [])
    keys = [(entry["key"], entry["key_hex"], entry["behind"]) for entry in found["keys"]]
    assert keys == [("a", "61", 1), ("\\xff", "ff", 0), (None, None, 0)]
    asked = bare(*base, "--key", "a", "--dead-letter", "--execute", "--output", "json")
    assert asked.status == 0, asked.err
    (request,) = json.loads(asked.out)["requests"].values()
    body: dict[str, Any] = json.loads(
        (PipelinePaths(spec).releases("lines") / f"{request}.json").read_bytes()
    )
    assert (body["keys"], body["dead_letter"], body["by"]) == (["61"], True, whoami())
    assert f"pending release requests: {request}" in bare(*base).out


# What runs


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def call(broker: Broker, file: Path) -> Callable[..., list[str]]:
    def words(command: str, *more: str) -> list[str]:
        where = ["-b", broker.bootstrap, "--admin", str(broker.admin_url)]
        return [sys.executable, "-m", "penstock", "pipeline", command, str(file), *where, *more]

    return words


def ended(words: list[str]) -> str:
    ran = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS,
        env=environment(),
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def write(client: Client, first: int, end: int) -> None:
    values = [b'{"n": %d}' % number for number in range(first, end)]
    client.write_arrow("lines", pa.table({"value": values}))


def numbers(folder: Path, table: str) -> list[int]:
    found: list[int] = DeltaTable(str(folder / table)).to_pyarrow_table()["n"].to_pylist()
    return sorted(found)


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_killed_backfill_continues_and_dead_letters_are_replayed(
    broker: Broker, file: Path, call: Callable[..., list[str]]
) -> None:
    with broker.client() as client:
        for topic in ("lines", "dead"):
            client.create_topic(topic, configs={"retention.ms": "-1"})
        write(client, 900, 1_010)
        ended(call("run", "--once"))
        file.write_text(TEXT.replace("{late}", LATE))
        write(client, 0, 10)
        ended(call("run", "--once"))
        assert numbers(file.parent, "second") == list(range(10))

        words = call("replay", "--sink", "second", "--chunk-records", "10")
        child = subprocess.Popen(
            [*words, "--execute"], stderr=subprocess.PIPE, text=True, env=environment()
        )
        assert child.stderr is not None
        lines = []
        for line in child.stderr:
            lines.append(line)
            if line.startswith("2 of 11 chunks"):
                break
        child.send_signal(signal.SIGKILL)
        child.wait(TIMEOUT_SECONDS)
        child.stderr.close()
        assert any(line.startswith("2 of 11 chunks") for line in lines), lines
        done = json.loads(ended([*words, "--execute", "--output", "json"]))
        assert (done["done"], done["chunks"], done["by"]) == (11, 11, whoami())
        everything = [*range(10), *range(900, 1_000)]
        assert numbers(file.parent, "second") == numbers(file.parent, "first") == everything

        found = json.loads(ended(call("replay", "--dead-letters", "--output", "json")))
        assert (found["going"], found["groups"][0]["rule"]) == (10, "small")
        shown = ended(call("replay", "--dead-letters", "--limit", "4", "--execute"))
        assert shown.startswith("returned 4 records to their topics, replay ")
        assert client.list_offsets("lines")[0] == 110 + 10 + 4
