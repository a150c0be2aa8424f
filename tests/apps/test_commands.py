"""The client commands against a broker: tables, JSON, kcat's letters, errors."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from compat.conftest import missing
from compat.parts import PartMissing, kcat

from penstock.apps.checks.brokers import clock_skew_ms
from penstock.apps.client.session import counted
from penstock.base.errors import PenstockError
from penstock.client import Client
from penstock.testing import Broker
from tests.apps.conftest import Run
from tests.ports import free_port

MakeTopic = Callable[..., str]


def test_topics(run: Run) -> None:
    name = f"cli-{uuid4().hex[:8]}"
    assert run("topic", "create", name, "-p", "2", "-c", "retention.ms=7000000").status == 0
    assert name in run("topic", "list").out
    listed = json.loads(run("topic", "list", "--output", "json").out)
    assert {"topic": name, "partitions": 2, "replicas": 1, "internal": False} in listed
    assert run("topic", "add-partitions", name, "-n", "1").out == f"topic {name} has 3 partitions\n"
    assert run("topic", "alter-config", name, "-s", "retention.ms=8000000").status == 0
    found = json.loads(run("--output", "json", "topic", "describe", name).out)
    assert [part["partition"] for part in found["partitions"]] == [0, 1, 2]
    assert {"name": "retention.ms", "value": "8000000", "source": "dynamic topic"} in found[
        "configs"
    ]
    assert "retention.ms" in run("topic", "describe", name).out
    again = run("topic", "create", name)
    assert again.status == 1
    assert again.err.startswith(f"penstock: topic '{name}': TOPIC_ALREADY_EXISTS (36)")
    assert again.err.count("\n") == 1
    assert run("topic", "create", name, "--if-not-exists").status == 0
    assert run("topic", "delete", name, stdin="n\n").status == 130
    assert run("topic", "delete", name, "--yes").out == f"topic {name} deleted\n"
    assert run("topic", "describe", name).status == 1


def test_produce_and_consume(run: Run, topic: MakeTopic) -> None:
    name = topic(1)
    made = run("produce", name, "-K", ":", "-H", "h=1", stdin="a:1\nb:2:3\nnone\n")
    assert (made.status, made.out) == (0, "")
    found = run("consume", "-t", name, "-e", "-f", "%p %o %k=%s %h\\n")
    assert found.out == "0 0 a=1 h=1\n0 1 b=2:3 h=1\n0 2 =none h=1\n"
    assert "% Reached end of topic" in found.err
    assert run("consume", name, "-c", "1", "-o", "-2").out == "2:3\n"
    assert run("consume", name, "-e", "-q", "-o", "1", "-K", "|").out == "b|2:3\n|none\n"
    report = run("produce", name, "-k", "one", "-z", "zstd", "--output", "json", stdin="x\ny")
    assert json.loads(report.out)["records"] == 2
    lines = run("topic", "consume", name, "-e", "-q", "-o", "3", "-J").out.splitlines()
    assert [json.loads(line)["payload"] for line in lines] == ["x", "y"]
    assert run("produce", name, "-Z", "-K", "=", stdin="k=\n").status == 0
    (last,) = run("consume", name, "-o", "-1", "-e", "-q", "-J").out.splitlines()
    assert json.loads(last)["payload"] is None
    assert run("consume", name, "-e", "-q", "-o", "end").out == ""


def test_files_and_times(run: Run, topic: MakeTopic, tmp_path: Path, bootstrap: str) -> None:
    name = topic(1)
    lines = [f"line {index}" for index in range(5000)]
    (tmp_path / "lines").write_text("\n".join(lines))
    assert run("produce", "-t", name, "-l", str(tmp_path / "lines")).status == 0
    assert run("consume", name, "-e", "-q").out.splitlines() == lines
    with Client(bootstrap) as client:
        times = client.read_arrow(name)["timestamp"].to_pylist()
    end = max(times) + 1
    assert run("consume", name, "-q", "-e", "-o", f"s@{end}").out == ""
    both = run("consume", name, "-q", "-o", f"s@{min(times)}", "-o", f"e@{end}")
    assert len(both.out.splitlines()) == 5000


@pytest.mark.interop
def test_prints_what_kcat_prints(run: Run, topic: MakeTopic, bootstrap: str) -> None:
    try:
        program = kcat()
    except PartMissing as error:
        missing(error)
    name = topic(1)
    run("produce", name, "-K", ":", "-H", "h=1", "-H", "g", stdin="a:1\n:empty\nwörter\n")
    for options in (["-J"], ["-f", "%t %p %o %k %s %h %T %K %S\\n"], ["-K", "::"], []):
        words = [program, "-b", bootstrap, "-C", "-t", name, "-e", "-q", *options]
        theirs = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
        assert run("consume", name, "-e", "-q", *options).out == theirs.stdout


def test_groups(run: Run, topic: MakeTopic) -> None:
    name, group = topic(2), f"group-{uuid4().hex[:8]}"
    run("produce", name, "-p", "1", stdin="a\nb\nc\n")
    assert "give a topic" in run("group", "seek", group, "--to", "end").err
    dry = run("group", "seek", group, "-t", name, "--to", "end")
    assert "dry run" in dry.out
    assert "does not exist" in run("group", "describe", group).err
    done = run("--output", "json", "group", "seek", group, "-t", name, "--to", "-2", "--execute")
    assert [(row["partition"], row["to"]) for row in json.loads(done.out)] == [(0, 0), (1, 1)]
    found = json.loads(run("group", "describe", group, "--output", "json").out)
    assert found["state"] == "Empty"
    assert found["total_lag"] == 2
    assert group in run("group", "list").out
    assert name in run("group", "describe", group).out
    assert run("group", "offset-delete", group, "-t", name, "-p", "0").status == 0
    assert run("group", "delete", group, "--yes").status == 0
    assert group not in run("group", "list").out


def test_configs(run: Run, topic: MakeTopic) -> None:
    name = topic(1)
    assert run("config", "set", "topic", name, "retention.ms=9000000").status == 0
    assert "9000000" in run("config", "describe", "topic", name).out
    assert run("config", "delete", "topic", name, "retention.ms").status == 0
    assert "9000000" not in run("config", "describe", "topic", name).out
    everything = run("config", "describe", "topic", name, "--all", "--output", "json")
    assert len(json.loads(everything.out)) > 20
    wrong = run("config", "set", "topic", name, "retention.ms=soon")
    assert wrong.status == 1
    assert "INVALID_CONFIG" in wrong.err


def test_transactions(run: Run, topic: MakeTopic, bootstrap: str) -> None:
    name, key = topic(2), f"tx-{uuid4().hex[:8]}"
    unknown = run("transaction", "describe", key)
    assert unknown.status == 1
    assert "TRANSACTIONAL_ID_NOT_FOUND" in unknown.err
    assert run("transaction", "abort", key).status == 1
    with Client(bootstrap) as client:
        _abort_while_it_writes(run, client, name, key)


def _abort_while_it_writes(run: Run, client: Client, name: str, key: str) -> None:
    producer = client.transactional(key)
    producer.begin()
    producer.write_arrow(name, pa.table({"value": [b"one", b"two"]}), partition=1)
    listed = json.loads(run("transaction", "list", "--state", "ongoing", "--output", "json").out)
    assert listed == json.loads(
        run("transaction", "list", "--state", "Ongoing", "--output", "json").out
    )
    [row] = [row for row in listed if row["id"] == key]
    assert (row["state"], row["coordinator"]) == ("Ongoing", 1)
    assert key not in run("transaction", "list", "--running-ms", "3600000").out
    found = json.loads(run("transaction", "describe", key, "--output", "json").out)
    assert found["partitions"] == [{"topic": name, "partition": 1}]
    assert (found["state"], found["producer_epoch"]) == ("Ongoing", 0)
    assert found["start_ms"] > 1_700_000_000_000
    assert run("transaction", "abort", key).out == (
        f"transaction of {key} aborted, its producer is fenced\n"
    )
    found = json.loads(run("transaction", "describe", key, "--output", "json").out)
    assert (found["state"], found["producer_epoch"], found["start_ms"]) == ("Empty", 2, None)
    with pytest.raises(PenstockError, match="PRODUCER_FENCED"):
        producer.commit()


def test_tables_are_as_wide_as_their_content(run: Run, topic: MakeTopic) -> None:
    name = topic(1)
    shown = run("topic", "describe", name).out.splitlines()
    assert shown[0].startswith(f"topic {name} ("), "the title is one line above its table"
    assert all(line == line.rstrip() for line in shown)
    assert shown[-1] == "no configurations that differ from the defaults (--all shows the others)"
    everything = run("topic", "describe", name, "--all").out
    assert "retention.ms" in everything
    assert run("topic", "alter-config", name, "-s", "retention.ms=9000").status == 0
    changed = run("topic", "describe", name).out
    assert "retention.ms" in changed
    assert "segment.bytes" not in changed
    assert len(json.loads(run("topic", "describe", name, "--output", "json").out)["configs"]) > 10


@pytest.mark.parametrize("width", [20, 44, 70, 80, 200])
def test_headings_are_whole_on_narrow_terminals(
    monkeypatch: pytest.MonkeyPatch, run: Run, width: int
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    shown = re.sub(r"\x1b\[[0-9;]*m", "", run("cluster", "status").out)
    words = shown.replace("\n", " ").split()
    for heading in ("broker", "address", "state", "rack", "roles", "leads", "replicas", "behind"):
        assert heading in words


@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_things_are_counted_in_words(number: int) -> None:
    assert counted(number, "partition") == f"{number} partition" + "s" * (number != 1)
    assert counted(number, "batch") == f"{number} batch" + "es" * (number != 1)


def test_empty_lists_say_so_in_words(bare: Run) -> None:
    with Broker(admin=False) as broker:
        for words, said in (
            (("topic", "list"), "no topics\n"),
            (("group", "list"), "no groups\n"),
            (("transaction", "list"), "no transactional ids\n"),
            (("quota", "list"), "no quotas\n"),
            (("user", "list"), "no users\n"),
            (("queue", "list"), "no share groups\n"),
            (("topic", "replicas"), "no partitions\n"),
        ):
            assert bare("-b", broker.bootstrap, *words).out == said
            assert json.loads(bare("-b", broker.bootstrap, *words, "--output", "json").out) == []


def test_times_are_shown_as_times(run: Run, topic: MakeTopic) -> None:
    name = topic(1)
    assert run("produce", name, stdin="a\n").status == 0
    shown = run("log", "stats", name).out
    stored = json.loads(run("log", "stats", name, "--output", "json").out)
    (row,) = stored if isinstance(stored, list) else stored["partitions"]
    at = datetime.fromtimestamp(row["last_timestamp"] / 1000, UTC)
    assert at.isoformat(timespec="milliseconds") in shown
    assert str(row["last_timestamp"]) not in shown


def test_wrong_arguments_are_errors(run: Run, bootstrap: str) -> None:
    wrong = run("transaction", "list", "--state", "Foo")
    assert (wrong.status, wrong.out) == (1, "")
    assert "transaction state 'Foo' does not exist; the states are Empty, Ongoing, " in wrong.err
    for more in ((), ("--dry-run",), ("--undo",)):
        wrong = run("broker", "drain", "99", *more)
        assert (wrong.status, wrong.out) == (1, "")
        assert wrong.err == "penstock: unknown broker 99; the cluster has brokers 1\n"
    with Client(bootstrap) as client:
        assert client.excluded_brokers() == frozenset()


def test_a_local_retention_needs_a_tiered_topic(run: Run, topic: Callable[..., str]) -> None:
    name = topic(1)
    for words in (
        ("topic", "create", f"{name}-local", "-c", "local.retention.ms=1000"),
        ("topic", "alter-config", name, "-s", "local.retention.ms=1000"),
        ("config", "set", "topic", name, "local.retention.ms=1000"),
    ):
        wrong = run(*words)
        assert (wrong.status, wrong.out) == (2, "")
        assert "local.retention.ms=1000: this setting affects tiered topics only" in wrong.err
    assert f"{name}-local" not in run("topic", "list").out


def test_quotas(run: Run) -> None:
    alice = ("--user", "alice", "--default", "client-id")
    assert run("quota", "set", "producer_byte_rate=1048576", *alice).status == 0
    assert run("quota", "set", "connection_creation_rate=1e6", "--ip", "::1").status == 0
    assert run("quota", "set", "request_percentage=2.5", *alice).status == 0
    shown = run("quota", "list", "--user", "alice").out
    assert "user alice, client-id (default)" in shown
    assert "1048576" in shown
    assert "::1" not in shown
    found = json.loads(run("quota", "list", "--output", "json").out)
    assert found == [
        {"entity": {"ip": "::1"}, "quotas": {"connection_creation_rate": 1e6}},
        {
            "entity": {"client-id": None, "user": "alice"},
            "quotas": {"producer_byte_rate": 1048576, "request_percentage": 2.5},
        },
    ]
    assert run("quota", "remove", "request_percentage", *alice).status == 0
    assert "request_percentage" not in run("quota", "list").out
    assert run("quota", "remove", *alice).status == 0
    for keys in ((), ("request_percentage",)):
        absent = run("quota", "remove", *keys, *alice)
        assert (absent.status, absent.out) == (1, "")
        assert absent.err.startswith("penstock: user alice, client-id (default) has no quota ")
    assert run("quota", "remove", "--ip", "::1").status == 0
    assert json.loads(run("quota", "list", "--output", "json").out) == []


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("producer_byte_rate=1",), 2, "no entity given: add --user"),
        (("producer_byte_rate=x", "--user", "a"), 2, "'x' is not a number"),
        (("producer_byte_rate=0", "--user", "a"), 1, "0 must be above 0"),
        (("speed=1", "--user", "a"), 1, "unknown quota of users and client ids"),
        (("producer_byte_rate=1", "--user", "a", "--default", "user"), 2, "give one of --user"),
        (("connection_creation_rate=1", "--ip", "here"), 1, "'here' is not an IP address"),
    ],
)
def test_quotas_that_cannot_be(
    run: Run, arguments: tuple[str, ...], status: int, message: str
) -> None:
    failed = run("quota", "set", *arguments)
    assert (failed.status, message in failed.err) == (status, True), failed.err


def test_trim_prefix(run: Run, topic: MakeTopic) -> None:
    name = topic(1)
    run("produce", name, stdin="a\nb\nc\n")
    done = run("topic", "trim-prefix", name, "-o", "2", "--yes", "--output", "json")
    assert json.loads(done.out) == [{"topic": name, "partition": 0, "log_start_offset": 2}]
    assert run("consume", name, "-e", "-q").out == "c\n"


def test_doctor(run: Run, bare: Run, tmp_path: Path) -> None:
    found = run("doctor", "--data-dir", str(tmp_path), "--output", "json")
    findings = json.loads(found.out)
    assert {"broker", "disk space", "disk sync", "open files", "Java", "Spark"} <= {
        item["check"] for item in findings
    }
    assert next(item for item in findings if item["check"] == "broker")["status"] in ("ok", "warn")
    wrong = bare("-b", f"127.0.0.1:{free_port()}", "doctor", "--data-dir", str(tmp_path))
    assert wrong.status == 1
    assert "penstock serve" in wrong.out


def test_doctor_compares_its_clock_with_a_brokers(bare: Run, tmp_path: Path) -> None:
    with Broker() as broker:
        address = broker.admin_url.removeprefix("http://")
        words = ("doctor", "--data-dir", str(tmp_path), "--admin", address, "--output", "json")
        found = bare("-b", broker.bootstrap, *words)
    clock = next(item for item in json.loads(found.out) if item["check"] == f"clock of {address}")
    assert (clock["status"], clock["cause"]) == (
        "ok",
        "differs from this machine's clock by about 0 s",
    )


@pytest.mark.parametrize(
    ("date", "status", "cause"),
    [
        (None, "warn", "no Date header"),
        ("Mon, 01 Jan 2024 00:00:00 GMT", "warn", "differs from this machine's clock by about"),
        ("nonsense", "warn", "its Date header is invalid"),
    ],
)
def test_doctor_compares_clocks(
    run: Run, tmp_path: Path, date: str | None, status: str, cause: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with suppress(OSError):  # until the listener is shut down
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        connection.recv(1 << 16)
                        line = "" if date is None else f"Date: {date}\r\n"
                        text = f"HTTP/1.1 200 OK\r\n{line}Content-Length: 0\r\n\r\n"
                        connection.sendall(text.encode())

        thread = threading.Thread(target=answer)
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        found = run("doctor", "--data-dir", str(tmp_path), "--admin", address, "--output", "json")
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)
    clock = next(item for item in json.loads(found.out) if item["check"] == f"clock of {address}")
    assert clock["status"] == status
    assert cause in clock["cause"]


@pytest.mark.parametrize(
    ("date_ms", "answered_ms", "skew_ms"),
    [
        (60_000, 60_000, 0),  # written in the second that began before it was asked for
        (59_001, 60_000, 0),
        (58_000, 60_000, 1_000),
        (65_000, 65_000, 0),  # a slow answer, written at its end
        (60_000, 65_000, 0),  # and at its begin
        (67_000, 65_000, 2_000),
        (30_000, 65_000, 29_000),
    ],
)
def test_a_slow_answer_is_no_difference_of_clocks(
    date_ms: float, answered_ms: float, skew_ms: float
) -> None:
    assert clock_skew_ms(60_000, date_ms, answered_ms) == skew_ms


def test_errors_are_one_line_and_a_status(bare: Run, run: Run) -> None:
    port = free_port()
    words = ("-b", f"127.0.0.1:{port}", "topic", "list", "-X", "default.api.timeout.ms=100")
    nobody = bare(*words)
    assert nobody.status == 3
    assert nobody.err.startswith(f"penstock: no broker of 127.0.0.1:{port} responds")
    assert nobody.err.count("\n") == 1
    assert "penstock serve" in nobody.err
    assert bare("topic", "list", "-b", "host:port").status == 1
    assert bare("no-such-command").status == 2
    assert bare("consume").status == 2
    missing = run("consume", "no-such-topic", "-e")
    assert missing.status == 1
    assert "penstock topic list" in missing.err
    assert run("produce", "no-such-topic", stdin="x\n").status == 1
    assert bare("topic", "list", "-X", "novalue").status == 2
    assert "known: bootstrap.servers" in bare("topic", "list", "-X", "security=none").err
    assert "serve" in bare("--help").out


def test_profiles(
    bare: Run, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "profiles.toml"
    file.write_text(f'[default]\nbootstrap = "127.0.0.1:1"\n[here]\nbootstrap = "{bootstrap}"\n')
    monkeypatch.setenv("PENSTOCK_PROFILES", str(file))
    assert bare("--profile", "here", "topic", "list").status == 0
    missing = bare("--profile", "there", "topic", "list")
    assert missing.status == 1
    assert "its profiles: default, here" in missing.err
    monkeypatch.setenv("PENSTOCK_PROFILE", "here")
    assert bare("topic", "list").status == 0
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP", "127.0.0.1:1")
    assert bare("topic", "list", "-X", "default.api.timeout.ms=50").status == 3
