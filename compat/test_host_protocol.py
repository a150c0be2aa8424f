"""The host protocol in JavaScript, written from its specification alone, without any library.

`host/check.js` holds itself to the test vectors, as this project's codec is held to them;
`host/publish.js` is a producer that publishes to a real agent, through to the log.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest

from compat.conftest import missing
from compat.parts import PartMissing, node
from compat.security import SCENARIO, administrator, grant, security_of, write
from compat.servers import PenstockProcess
from penstock.client import Client

HERE = Path(__file__).resolve().parent
VECTORS = HERE.parent / "tests" / "vectors" / "host-protocol"
TIMEOUT_SECONDS = 60
Script = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def script() -> Script:
    """Runs one of the programs; its last line as an object."""
    try:
        program = node()
    except PartMissing as error:
        missing(error)

    def run(name: str, argument: str) -> dict[str, Any]:
        done = subprocess.run(
            [program, str(HERE / "host" / name), argument],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
        )
        assert done.stdout, done.stderr
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return {**found, "status": done.returncode}

    return run


@contextmanager
def agent(*flags: str) -> Iterator[str]:
    """`penstock host serve` in a process of its own; the path of its socket."""
    with tempfile.TemporaryDirectory(prefix="ps-") as folder:
        path = f"{folder}/host.sock"
        command = [sys.executable, "-m", "penstock", "host", "serve", "--socket", path, *flags]
        with (Path(folder) / "log").open("wb") as log:
            process = subprocess.Popen(
                command,
                env=security_of(SCENARIO).environment(),
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert process.stdout is not None
        try:
            readable = wait([process.stdout.fileno()], TIMEOUT_SECONDS)
            line = process.stdout.readline() if readable else b""
            assert line.startswith(b"penstock host ready"), (Path(folder) / "log").read_text()
            yield path
        finally:
            process.terminate()
            process.wait(TIMEOUT_SECONDS)
            process.stdout.close()


# Vectors


def test_every_vector_holds(script: Script) -> None:
    found = script("check.js", str(VECTORS))
    assert found["failed"] == []
    refused = json.loads((VECTORS / "refused.json").read_text("utf-8"))
    assert found["passed"] == {
        "frames": len(json.loads((VECTORS / "frames.json").read_text("utf-8"))["frames"]),
        "malformed": len(refused["malformed"]),
        "violations": len(refused["violations"]),
        "conversations": len(
            json.loads((VECTORS / "conversations.json").read_text("utf-8"))["conversations"]
        ),
    }


def _raise_sequence(vectors: dict[str, Any]) -> str:
    vector = next(each for each in vectors["frames"] if each["name"] == "batch")
    vector["header"]["first_sequence"] = "11"
    return "frames batch:"


def _change_payload(vectors: dict[str, Any]) -> str:
    vector = next(each for each in vectors["frames"] if each["name"] == "data-checksum")
    vector["hex"] = vector["hex"][:-1] + "0"
    return "frames data-checksum:"


def _rename_class(vectors: dict[str, Any]) -> str:
    vector = next(each for each in vectors["malformed"] if each["name"] == "length-two-gib")
    vector["class"] = "flags"
    return "malformed length-two-gib:"


def _mend_violation(vectors: dict[str, Any]) -> str:
    vector = next(each for each in vectors["violations"] if each["name"] == "sequence-twice")
    del vector["hex"][0]
    return "violations sequence-twice:"


def _steal_credit(vectors: dict[str, Any]) -> str:
    vector = next(each for each in vectors["conversations"] if each["name"] == "more-credit")
    vector["steps"][3]["credit"][0] += 1
    return "conversations more-credit:"


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("frames.json", _raise_sequence),
        ("frames.json", _change_payload),
        ("refused.json", _rename_class),
        ("refused.json", _mend_violation),
        ("conversations.json", _steal_credit),
    ],
)
def test_a_vector_that_is_wrong_is_found(
    script: Script, tmp_path: Path, name: str, spoil: Callable[[dict[str, Any]], str]
) -> None:
    for path in VECTORS.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    vectors = json.loads((tmp_path / name).read_text("utf-8"))
    expected = spoil(vectors)
    (tmp_path / name).write_text(json.dumps(vectors), encoding="utf-8")
    found = script("check.js", str(tmp_path))
    assert found["status"] == 1
    assert len(found["failed"]) == 1
    assert found["failed"][0].startswith(expected)


# A real agent


@pytest.fixture
def events(tmp_path: Path) -> Iterator[tuple[str, Client]]:
    """A broker's address, and a client of it; what agents need to write to `events`."""
    with PenstockProcess(tmp_path) as broker, administrator(broker.bootstrap) as client:
        client.create_topic("events", partitions=3)
        grant(broker.bootstrap, SCENARIO, [write("events")])
        yield broker.bootstrap, client


@pytest.mark.parametrize("checksum", [False, True])
def test_a_foreign_producer_is_accepted(script: Script, checksum: bool) -> None:
    with agent("--sink", "null") as path:
        options = {"path": path, "frames": 2_000, "chunks": 100, "bytes": 200, "checksum": checksum}
        found = script("publish.js", json.dumps(options))
    assert found["status"] == 0, found
    assert (found["accepted"], found["failed"]) == (2_000, [])
    assert found["credit"] == [65_536, 16_777_216, 16 << 20], "all of it came back"


def test_a_foreign_producer_writes_to_the_log_once(
    script: Script, events: tuple[str, Client]
) -> None:
    """The same frames again, under the same identity, as after a crash: accepted, not repeated."""
    frames, chunks = 5, 3
    bootstrap, client = events
    with agent("--sink", "log", "--bootstrap", bootstrap) as path:
        options = {
            "path": path, "frames": frames, "chunks": chunks, "topic": "events", "partition": 2
        }  # fmt: skip
        first = script("publish.js", json.dumps(options))
        assert first["status"] == 0, first
        assert first["partitions"] == [3]
        options["producerId"] = first["producerId"]
        again = script("publish.js", json.dumps(options))
    with agent("--sink", "log", "--bootstrap", bootstrap) as path:
        elsewhere = script("publish.js", json.dumps({**options, "path": path}))
    tables = list(client.iter_arrow("events", columns=("partition", "value")))
    for found in (first, again, elsewhere):
        assert (found["status"], found["accepted"], found["failed"]) == (0, frames, [])
        assert found["producerId"] == first["producerId"]
    rows = [row for table in tables for row in table.to_pylist()]
    assert [row["partition"] for row in rows] == [2] * len(rows)
    expected = list(range(3 + 2 * chunks))
    assert [int(row["value"].split()[0]) for row in rows] == expected


@pytest.mark.long
def test_a_foreign_producer_learns_what_cannot_be_written(
    script: Script, events: tuple[str, Client]
) -> None:
    bootstrap, _ = events
    with agent("--sink", "log", "--bootstrap", bootstrap) as path:
        options = {"path": path, "frames": 3, "topic": "events", "partition": 3}
        found = script("publish.js", json.dumps(options))
    assert (found["status"], found["accepted"]) == (0, 0), found
    assert found["partitions"] == [3]
    assert "events" in found["failed"][0]
    assert len(found["failed"]) == 3


def test_a_foreign_producer_gets_the_reason_of_its_refusal(script: Script) -> None:
    with agent("--sink", "null") as path:
        found = script("publish.js", json.dumps({"path": path, "producerEpoch": 40_000}))
    assert found == {"status": 1, "error": "refused: producer epoch 40000; at most 32767"}


def test_a_violation_is_explained(script: Script) -> None:
    with agent("--sink", "null") as path:
        options = {"path": path, "firstSequence": str(2**63 - 1)}
        found = script("publish.js", json.dumps(options))
    assert found["status"] == 1
    assert found["error"].startswith(f"violation: sequence {2**63 - 1} is under way already, or")


def test_the_programs_need_nothing_but_node() -> None:
    for path in (HERE / "host").glob("*.js"):
        required = [part.split("'")[1] for part in path.read_text("utf-8").split("require(")[1:]]
        assert all(name.startswith(("node:", "./")) for name in required), path
    assert not os.path.exists(HERE / "host" / "package.json")
