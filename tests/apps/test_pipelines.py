"""`penstock pipeline`: files checked and begun, and pipelines run as processes."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO, Any

import pytest

from penstock.apps.console.pages.pipelines import PipelineStatus, replay_command
from penstock.apps.console.sources import get_json
from penstock.apps.pipeline.run import DEFAULT_LISTEN
from penstock.testing import Broker
from tests.apps.conftest import Run
from tests.apps.test_serve import environment

TIMEOUT_SECONDS = 400
# Short runs end before Java's thorough compiler pays off.
JAVA = {"SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
PIPELINE = """
name = "lines"

[run]
max_records = 600

[source.lines]
topic = "{topic}"
format = "text"

[step.upper]
sql = "select upper(value) as value from lines"

[sink.lake]
from = "upper"
table = "lake/lines"

[errors]
dead_letters = "lines.dead"
"""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a pipeline's file; its topic is `lines` unless the text says otherwise."""

    def write_file(text: str) -> Path:
        path = tmp_path / "lines.toml"
        path.write_text(text.replace("{topic}", "lines"))
        return path

    return write_file


# What needs no Java


def test_help_is_quick_and_whole(bare: Run) -> None:
    ran = bare("pipeline", "--help")
    assert ran.status == 0
    for command in ("run", "plan", "validate", "status", "init"):
        assert f"  {command} " in ran.out
    assert DEFAULT_LISTEN in bare("pipeline", "run", "--help").out


def test_begin_and_check(bare: Run, tmp_path: Path) -> None:
    directory = tmp_path / "my shop"
    ran = bare("pipeline", "init", str(directory))
    assert ran.status == 0, ran.err
    assert f"cd {shlex.quote(str(directory))}\n" in ran.out
    assert "penstock pipeline run ." in ran.out
    assert (directory / "pipeline.toml").is_file()
    ran = bare("pipeline", "validate", str(directory), "--static")
    assert (ran.status, ran.out) == (0, f"{directory}: no problems\n")
    ran = bare("pipeline", "validate", str(directory), "--static", "--output", "json")
    assert (ran.status, json.loads(ran.out)) == (0, [])
    again = bare("pipeline", "init", str(directory))
    assert again.status == 1
    assert "pipeline.toml" in again.err
    unknown = bare("pipeline", "init", str(tmp_path / "other"), "--template", "quikstart")
    assert (unknown.status, (tmp_path / "other").exists()) == (1, False)
    assert "quickstart" in unknown.err


@pytest.mark.parametrize("template", ["quickstart", "aggregate", "cdc", "relay"])
def test_every_template_is_sound(bare: Run, tmp_path: Path, template: str) -> None:
    ran = bare("pipeline", "init", str(tmp_path), "--template", template, "--output", "json")
    facts = json.loads(ran.out)
    assert facts["template"] == template
    assert all(Path(path).is_file() for path in facts["files"])
    assert "penstock pipeline run ." in facts["commands"]
    assert bare("pipeline", "validate", str(tmp_path), "--static").status == 0


def errors(text: str) -> list[str]:
    """The lines of stderr that do not say what a command waits for."""
    return [line for line in text.splitlines() if not line.startswith("% ")]


def test_problems_are_reported_with_their_lines(bare: Run, write: Callable[[str], Path]) -> None:
    text = (
        PIPELINE.replace("{topic}", "lines")
        .replace('from = "upper"', 'from = "uper"')
        .replace('"text"', '"txt"')
    )
    file = write(text)
    lines = text.splitlines()
    ran = bare("pipeline", "validate", str(file), "--static")
    assert ran.status == 1
    assert ran.err == ""
    told = ran.out.splitlines()
    assert len(told) == 2
    at = {lines.index('format = "txt"') + 1: "source.lines.format"}
    at[lines.index('from = "uper"') + 1] = "sink.lake.from"
    for number, key in at.items():
        assert any(line.startswith(f"{file}:{number}: {key}: ") for line in told), told
    ran = bare("--output", "json", "pipeline", "validate", str(file), "--static")
    assert ran.status == 1
    found = {problem["line"]: problem for problem in json.loads(ran.out)}
    assert {number: problem["where"] for number, problem in found.items()} == at
    assert all(problem["file"] == str(file) and problem["message"] for problem in found.values())


@pytest.mark.parametrize("command", ["run", "plan", "status"])
def test_other_commands_report_problems_on_stderr(
    bare: Run, write: Callable[[str], Path], command: str
) -> None:
    file = write("name = 3\n")
    ran = bare("pipeline", command, str(file))
    assert (ran.status, ran.out) == (1, "")
    assert f"{file}:1: name: " in ran.err


def test_words_that_are_wrong(bare: Run, write: Callable[[str], Path]) -> None:
    file = str(write(PIPELINE))
    for words, text in (
        (("--set", "master=x"), "spark.key=value"),
        (("--set", "spark.x"), "spark.key=value"),
        (("--master", "local", "--remote", "sc://x"), "not both"),
    ):
        ran = bare("pipeline", "run", file, *words)
        assert ran.status == 2
        assert text in ran.err
    ran = bare("pipeline", "run", file, "--listen", "nowhere")
    assert ran.status == 1
    assert "--listen" in ran.err


def test_status_before_the_first_run(
    bare: Run, write: Callable[[str], Path], broker: Broker
) -> None:
    file = str(write(PIPELINE))
    ran = bare("pipeline", "status", file, "-b", broker.bootstrap)
    assert ran.status == 0
    assert "has never run with this state directory" in ran.out
    ran = bare("pipeline", "status", file, "-b", broker.bootstrap, "--output", "json")
    assert json.loads(ran.out)["queries"] == []


@pytest.mark.parametrize("command", [("run",), ("replay", "--dead-letters")])
def test_topics_and_brokers_that_are_not_there(
    bare: Run, write: Callable[[str], Path], broker: Broker, command: tuple[str, ...]
) -> None:
    text = PIPELINE.replace("{topic}", "absent").replace("lines.dead", "absent.dead")
    file = write(text.replace("[run]", '[run]\nbootstrap = "127.0.0.1:1"'))
    lines = file.read_text().splitlines()
    words = ("pipeline", command[0], str(file), *command[1:])
    ran = bare(*words, "-b", broker.bootstrap)
    assert (ran.status, ran.out) == (1, "")
    topic, dead = errors(ran.err)
    line = lines.index('topic = "absent"') + 1
    assert topic == (
        f"{file}:{line}: source.lines.topic: {broker.bootstrap} has no topic absent; "
        "create it with `penstock topic create absent`"
    )
    line = lines.index('dead_letters = "absent.dead"') + 1
    assert dead.startswith(f"{file}:{line}: errors.dead_letters: ")
    ran = bare(*words)
    assert (ran.status, ran.out) == (3, "")
    line = lines.index('bootstrap = "127.0.0.1:1"') + 1
    assert "% waiting for brokers at 127.0.0.1:1 (2 s so far)" in ran.err
    (said,) = errors(ran.err)
    assert said.startswith(f"penstock: {file}:{line}: run.bootstrap: no broker of 127.0.0.1:1 ")
    assert said.endswith(
        "start a broker with `penstock serve`, or name a running one with -b HOST:PORT"
    )


def test_without_java(write: Callable[[str], Path]) -> None:
    ran = penstock("validate", write(PIPELINE), PATH="/nowhere", JAVA_HOME="")
    assert ran.returncode == 1
    assert ran.stderr.startswith(
        "penstock: no `java` is on the path, but Spark needs a Java runtime"
    )
    assert "--static" in ran.stderr
    assert penstock("validate", write(PIPELINE), "--static", PATH="/nowhere").returncode == 0
    ran = penstock("validate", write("naem = 3\n" + PIPELINE), PATH="/nowhere", JAVA_HOME="")
    assert ran.returncode == 1
    assert "naem: is not known here" in ran.stdout
    assert "skipped Spark's checks: no `java` is on the path" in ran.stderr


# Processes


def command_line(*words: object) -> list[str]:
    return [sys.executable, "-m", "penstock", "pipeline", *map(str, words)]


def penstock(*words: object, **extra: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command_line(*words),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        env=environment(**JAVA | extra),
        check=False,
    )


@contextmanager
def running(*words: object) -> Iterator[subprocess.Popen[str]]:
    """A pipeline's process; it is killed in the end if it still lives."""
    with subprocess.Popen(
        command_line("run", *words),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**JAVA),
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def events(stdout: IO[str], holds: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Reads JSON lines up to one that is looked for."""
    while line := stdout.readline():
        event: dict[str, Any] = json.loads(line)
        if holds(event):
            return event
    raise AssertionError("the process ended")


def fill(broker: Broker, topic: str, count: int) -> None:
    with broker.client() as client:
        for name in (topic, "lines.dead"):
            if name not in {item.name for item in client.list_topics()}:
                client.create_topic(name, partitions=2)
        import pyarrow as pa

        values = [f"line {number}".encode() for number in range(count)]
        client.write_arrow(topic, pa.table({"value": pa.array(values)}))


def console_shows(bare: Run, admin: str) -> None:
    """Check that the console reads a running pipeline's page, and that its command works."""
    found = asyncio.run(get_json(admin, "/status", PipelineStatus))
    assert (found.queries[0].rows, found.queries[0].written) == (1_000, {"lake": 1_000})
    assert found.dead_letter_topic == "lines.dead"
    _, *words = shlex.split(replay_command(found, "--parked", {}))
    assert bare(*words).out == "no held records\n"


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_run_from_start_to_stop(
    broker: Broker, bare: Run, write: Callable[[str], Path], tmp_path: Path
) -> None:
    fill(broker, "whole", 1_000)
    file = write(PIPELINE.replace("{topic}", "whole"))
    where = (str(file), "-b", broker.bootstrap, "--admin", broker.admin_url)
    with running(*where, "--master", "local[2]") as process:
        assert process.stdout is not None
        started = json.loads(process.stdout.readline())
        assert (started["event"], started["pid"]) == ("started", process.pid)
        done = events(process.stdout, lambda event: event.get("rows") == 1_000)
        assert done["written"] == {"lake": 1_000}
        assert done["batches"] == 2
        assert done["rows_per_second"] > 0
        # The page, and the command that asks it.
        with urllib.request.urlopen(f"{started['admin']}/readyz", timeout=30) as answer:
            assert answer.status == 200
        ran = bare("pipeline", "status", *where, "--output", "json")
        live = json.loads(ran.out)
        assert (live["running"], live["pid"], live["admin"]) == (
            True,
            process.pid,
            started["admin"],
        )
        assert live["queries"][0]["rows"] == 1_000
        table = bare("pipeline", "status", *where).out
        assert f"process {process.pid}" in table
        assert "lines: written lake: 1000" in table
        console_shows(bare, started["admin"])
        # A second run is refused before Spark starts.
        second = bare("pipeline", "run", *where)
        assert second.status == 1
        assert f"is already running as process {process.pid}" in second.err
        process.send_signal(signal.SIGTERM)
        ended = events(process.stdout, lambda event: event["event"] == "ended")
        assert ended["query"] == "lines"
        assert process.wait(TIMEOUT_SECONDS) == 0
        assert process.stderr is not None
        assert errors(process.stderr.read()) == []
    stopped(bare, where)
    # Nothing is left to do, and that takes no Spark.
    idle = penstock("run", *where, "--once", PATH="/nowhere", JAVA_HOME="")
    assert (idle.returncode, idle.stderr) == (0, "")
    lines = [json.loads(line) for line in idle.stdout.splitlines()]
    assert [(line["event"], line.get("admin"), line.get("rows")) for line in lines] == [
        ("started", None, None),
        ("ended", None, 0),
    ]


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_run_goes_through_what_is_there_and_then_what_came(
    broker: Broker, bare: Run, write: Callable[[str], Path]
) -> None:
    fill(broker, "twice", 1_000)
    file = write(PIPELINE.replace("{topic}", "twice"))
    where = (str(file), "-b", broker.bootstrap, "--admin", broker.admin_url)
    first = penstock("run", *where, "--once")
    assert (first.returncode, errors(first.stderr)) == (0, [])
    fill(broker, "twice", 10)
    ran = bare("pipeline", "status", *where, "--output", "json")
    assert json.loads(ran.out)["queries"][0]["lag_records"] == 10
    once = penstock("run", *where, "--once")
    assert (once.returncode, errors(once.stderr)) == (0, [])
    lines = [json.loads(line) for line in once.stdout.splitlines()]
    assert [line["event"] for line in lines] == ["started", "batch", "ended"]
    assert (lines[1]["batch_id"], lines[1]["rows"], lines[2]["lag_records"]) == (2, 10, 0)
    for line in lines[1:]:
        assert line["rows_per_second"] == round(10_000 / line["batch_ms"], 1) > 0


def stopped(bare: Run, where: tuple[str, ...]) -> None:
    ran = bare("pipeline", "status", *where, "--output", "json")
    left = json.loads(ran.out)
    assert left["running"] is False
    (query,) = left["queries"]
    assert (query["query"], query["group"], query["batch_id"]) == ("lines", "lines.lines", 1)
    assert sum(place["committed_offset"] for place in query["partitions"]) == 1_000
    assert query["lag_records"] == 0
    assert "is not running" in bare("pipeline", "status", *where).out


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_plan_names_offsets_steps_and_tables(
    broker: Broker, write: Callable[[str], Path], tmp_path: Path
) -> None:
    fill(broker, "planned", 1_000)
    file = write(PIPELINE.replace("{topic}", "planned"))
    where = (str(file), "-b", broker.bootstrap, "--admin", broker.admin_url)
    once = penstock("run", *where, "--once")
    assert once.returncode == 0, once.stderr
    ran = penstock("plan", *where, "--explain", "--output", "json")
    assert ran.returncode == 0, ran.stderr
    (query,) = json.loads(ran.stdout)["queries"]
    assert query["group"] == "lines.lines"
    assert query["sources"][0]["topics"] == ["planned"]
    assert sum(place["offset"] for place in query["offsets"]) == 1_000
    assert [(step["name"], step["runs"]) for step in query["steps"]] == [("upper", "per batch")]
    assert query["sinks"][0]["table"] == str(tmp_path / "lake" / "lines")
    assert "upper(value" in query["explain"]


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_classes_of_java_are_kept_and_used(write: Callable[[str], Path], tmp_path: Path) -> None:
    kept = {"PENSTOCK_JAVA_CLASSES": str(tmp_path / "java")}
    ran = penstock("prepare", **kept)
    assert (ran.returncode, errors(ran.stderr)) == (0, [])
    (path,) = (tmp_path / "java").iterdir()
    assert ran.stdout == f"Java's classes: {path}\n"
    # Java tells of an archive that it was to use and could not.
    used = {"SPARK_SUBMIT_OPTS": "-Xshare:on"}
    ran = penstock("validate", write(PIPELINE), **kept, **used)
    assert (ran.returncode, errors(ran.stderr)) == (0, [])
    path.chmod(0o600)
    path.write_bytes(b"no archive")
    ran = penstock("validate", write(PIPELINE), **kept)
    assert (ran.returncode, errors(ran.stderr)) == (0, [])
    assert penstock("validate", write(PIPELINE), **kept, **used).returncode == 1


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_failure_is_one_line(broker: Broker, write: Callable[[str], Path]) -> None:
    fill(broker, "failing", 3)
    text = PIPELINE.replace("{topic}", "failing").replace(
        "upper(value) as value", "cast(raise_error(concat('no good: ', value)) as string) as value"
    )
    file = write(text.replace("[run]", "[run]\nrestarts = 0"))
    ran = penstock("run", file, "-b", broker.bootstrap, "--admin", broker.admin_url)
    assert ran.returncode == 1
    (said,) = [line for line in ran.stderr.splitlines() if not line.startswith("% ")]
    assert said.startswith("penstock: query lines: [USER_RAISED_EXCEPTION] no good: line ")
    last = json.loads(ran.stdout.splitlines()[-1])
    assert (last["event"], last["phase"]) == ("failed", "failed")
    assert last["error"].startswith("[USER_RAISED_EXCEPTION] no good: line ")
    assert not list(file.parent.rglob("run.json"))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_spark_finds_what_the_file_does_not_show(write: Callable[[str], Path]) -> None:
    text = PIPELINE.replace("upper(value)", "upper(valu)").replace("max_records", "max_record")
    file = write(text)
    lines = text.splitlines()
    ran = penstock("validate", file)
    assert (ran.returncode, errors(ran.stderr)) == (1, [])
    file_says, spark_says = ran.stdout.splitlines()
    assert file_says.startswith(f"{file}:{lines.index('max_record = 600') + 1}: run.max_record: ")
    number = lines.index('sql = "select upper(valu) as value from lines"') + 1
    assert spark_says.startswith(f"{file}:{number}: step.upper.sql: ")
    assert "`valu`" in spark_says


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_terminal_shows_a_table(broker: Broker, write: Callable[[str], Path]) -> None:
    fill(broker, "shown", 20)
    file = write(PIPELINE.replace("{topic}", "shown"))
    words = ("run", file, "-b", broker.bootstrap, "--admin", broker.admin_url)
    master, slave = pty.openpty()
    extra = JAVA | {"TERM": "xterm", "COLUMNS": "160", "LINES": "40"}
    try:
        with subprocess.Popen(
            command_line(*words),
            stdout=slave,
            stderr=subprocess.PIPE,
            env=environment(**extra),
        ) as process:
            try:
                text = read_until(master, "pipeline lines: http://127.0.0.1:", "idle")
                process.send_signal(signal.SIGINT)
                text += read_until(master, "ended")
                assert process.wait(TIMEOUT_SECONDS) == 0
            finally:
                process.kill()
    finally:
        os.close(master)
        os.close(slave)
    assert "batch time" in text
    assert '"event"' not in text


def read_until(descriptor: int, *words: str) -> str:
    """Return a terminal's output once it contains all of some words."""
    text = ""
    end = time.monotonic() + TIMEOUT_SECONDS
    while not all(word in text for word in words):
        assert time.monotonic() < end, text[-2_000:]
        if wait([descriptor], 1.0):
            text += os.read(descriptor, 1 << 16).decode(errors="replace")
    return text
