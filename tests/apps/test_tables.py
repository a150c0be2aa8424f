"""`penstock table`: each command as a user would call it, with its words and its status."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from penstock.client import Client
from tests.apps.conftest import Run

pytestmark = [pytest.mark.spark, pytest.mark.slow]

Topic = Callable[..., str]
WAIT_SECONDS = 250.0
# Short runs end before Java's thorough compiler pays off.
QUICK = {**os.environ, "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"}
RUN = [sys.executable, "-m", "penstock", "table", "run"]


@pytest.fixture
def client(bootstrap: str) -> Iterator[Client]:
    with Client(bootstrap) as made:
        yield made


@pytest.fixture
def name(topic: Topic, client: Client) -> Iterator[str]:
    made = topic(2)
    client.alter_configs(
        "topic", made, {"table.format": "delta", "table.commit.interval.ms": "100"}
    )
    yield made
    client.alter_configs("topic", made, delete=["table.format"])


def write(client: Client, name: str, count: int) -> None:
    client.write_arrow(name, pa.table({"value": [b"%d" % number for number in range(count)]}))


def keep(bootstrap: str, root: Path) -> subprocess.CompletedProcess[str]:
    words = ["--root", str(root), "-b", bootstrap, "--once", "--output", "json"]
    return subprocess.run(
        [*RUN, *words], capture_output=True, text=True, check=False, timeout=WAIT_SECONDS,
        env=QUICK,
    )  # fmt: skip


@pytest.mark.long
@pytest.mark.timeout(600)
def test_run_status_compact_clean(
    run: Run, bootstrap: str, name: str, client: Client, tmp_path: Path
) -> None:
    before = run("table", "status", "--root", str(tmp_path), "--output", "json")
    assert before.status == 0, before.err
    write(client, name, 10)
    for _ in range(2):
        ran = keep(bootstrap, tmp_path)
        assert ran.returncode == 0, ran.stderr
        assert [(item["topic"], item["phase"]) for item in json.loads(ran.stdout)] == [
            (name, "done")
        ]
        write(client, name, 10)
    (found,) = json.loads(run("table", "status", "--root", str(tmp_path), "--output", "json").out)
    assert (found["topic"], found["version"], found["rows"]) == (name, 1, 20)
    assert (found["lag_records"], found["files"] >= 2) == (10, True)
    assert sum(found["ends"].values()) == 20
    shown = run("table", "status", "--root", str(tmp_path))
    assert name in shown.out
    made = run("table", "compact", name, "--root", str(tmp_path), "--output", "json")
    (done,) = json.loads(made.out)
    assert (done["files_removed"], done["files_added"]) == (found["files"], 1)
    for root, _, files in os.walk(tmp_path / name / "batches"):
        for file in files:
            os.utime(os.path.join(root, file), (0, 0))
    dry = run("table", "clean", "--root", str(tmp_path), "--age", "1h")
    assert dry.status == 0, dry.err
    assert "would remove" in dry.err
    real = run(
        "table", "clean", "--root", str(tmp_path), "--age", "1h", "--execute", "--output", "json"
    )
    assert json.loads(real.out)[0]["files"] > 0
    assert DeltaTable(str(tmp_path / name)).to_pyarrow_table().num_rows == 20


@pytest.mark.timeout(600)
@pytest.mark.long
def test_run_continues_until_a_signal(
    bootstrap: str, name: str, client: Client, tmp_path: Path
) -> None:
    write(client, name, 10)
    words = ["--root", str(tmp_path), "-b", bootstrap]
    child = subprocess.Popen([*RUN, *words], stderr=subprocess.PIPE, text=True, env=QUICK)
    try:
        end = time.monotonic() + WAIT_SECONDS
        while not DeltaTable.is_deltatable(str(tmp_path / name)):
            assert child.poll() is None, child.stderr and child.stderr.read()
            assert time.monotonic() < end
            time.sleep(0.1)
        child.send_signal(signal.SIGTERM)
        _, said = child.communicate(timeout=WAIT_SECONDS)
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
    assert child.returncode == 0, said
    assert f"topic {name}: maintaining table" in said


def test_what_is_wrong_with_a_table_is_said(
    run: Run, name: str, client: Client, tmp_path: Path
) -> None:
    client.alter_configs("topic", name, {"table.location": "not/absolute"})
    ran = run("table", "status", "--root", str(tmp_path))
    assert ran.status == 1
    assert "must be an absolute path or a URI" in ran.err
    assert run("table", "compact", "--root", str(tmp_path)).status == 0


def test_wrong_words_are_refused(run: Run, tmp_path: Path) -> None:
    ran = run("table", "compact", "nowhere", "--root", str(tmp_path))
    assert ran.status == 1
    assert "topic nowhere has no table" in ran.err
    ran = run("table", "clean", "--root", str(tmp_path), "--age", "90m")
    assert ran.status == 2
    assert "whole hours" in ran.err
    assert run("table", "status").status == 2
