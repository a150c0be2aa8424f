"""`penstock serve` as a process: the ready line, signals, and errors of the start."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.client import Client

READY = re.compile(r"penstock ready kafka=(127\.0\.0\.1:\d+) admin=(127\.0\.0\.1:\d+)\n")
LOCAL = ("--listener", "127.0.0.1:0", "--admin", "127.0.0.1:0")
TIMEOUT_SECONDS = 60


def environment(**extra: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PENSTOCK_", "KAFKA_"))}
    return {**kept, **extra}


@contextmanager
def serving(
    directory: Path, *words: str, **extra: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "penstock", "serve", "--data-dir", str(directory), *words]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**extra),
    ) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline()
        finally:
            process.kill()


def refused(*words: str, **extra: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "serve", *words],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        env=environment(**extra),
        check=False,
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ready_and_a_clean_end(tmp_path: Path, number: signal.Signals) -> None:
    with serving(tmp_path / "data", *LOCAL) as (process, line):
        found = READY.fullmatch(line)
        assert found is not None, line
        with Client(found.group(1)) as client:
            client.create_topic("orders")
        process.send_signal(number)
        assert process.wait(TIMEOUT_SECONDS) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
    with serving(tmp_path / "data", *LOCAL) as (_, line):
        found = READY.fullmatch(line)
        assert found is not None
        with Client(found.group(1)) as client:
            assert [item.name for item in client.list_topics()] == ["orders"]


def test_memory_of_large_responses_is_reused(tmp_path: Path) -> None:
    """Memory is mapped for the first response, and later ones of the same size reuse it."""
    found = []
    with serving(tmp_path / "data", *LOCAL) as (process, line):
        match = READY.fullmatch(line)
        assert match is not None, line

        def page_faults() -> int:
            return int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[7])

        with Client(match.group(1)) as client:
            client.create_topic("orders")
            table = pa.table({"value": [b"x" * 10_000] * 1200})
            client.write_arrow("orders", table, partition=0, batch_bytes=500_000)
            for _ in range(2):
                before = page_faults()
                assert len(client.fetch_raw("orders", 0, 0, max_bytes=10 << 20).data) > 9 << 20
                found.append(page_faults() - before)
    assert found[1] < 500 < found[0], found


def test_settings_from_everywhere(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text("num.partitions = 2\nnode.id = 5\n")
    words = ("--config", str(file), *LOCAL, "-X", "node.id=6", "--log-format", "json")
    with serving(tmp_path / "data", *words, "--log-level", "info", PENSTOCK_NUM_PARTITIONS="4") as (
        process,
        line,
    ):
        found = READY.fullmatch(line)
        assert found is not None
        with Client(found.group(1)) as client:
            assert list(client.metadata().nodes) == [6]
            assert len(client.create_topic("orders", -1).partitions) == 4
        process.terminate()
        assert process.wait(TIMEOUT_SECONDS) == 0
        assert process.stderr is not None
        assert '"level": "info"' in process.stderr.readline()


@pytest.mark.parametrize("option", ["--listener", "--admin"])
def test_a_port_that_is_taken(tmp_path: Path, option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        taken = f"127.0.0.1:{holder.getsockname()[1]}"
        words = ("--data-dir", str(tmp_path), *LOCAL, "-X", "replication.listener=127.0.0.1:0")
        status, said = refused(*words, option, taken)
    assert status == 1
    assert taken in said
    assert "in use" in said
    assert f"another address with {option} HOST:PORT" in said
    assert said.count("\n") == 1


def test_a_directory_of_another_broker(tmp_path: Path) -> None:
    with serving(tmp_path, *LOCAL) as (_, line):
        assert READY.fullmatch(line)
        status, said = refused("--data-dir", str(tmp_path), *LOCAL)
    assert status == 1
    assert str(tmp_path) in said
    assert said.count("\n") == 1


def test_a_directory_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    status, said = refused("--data-dir", str(tmp_path / "file" / "data"), *LOCAL)
    assert status == 1
    assert said.count("\n") == 1
    assert "log.dirs" in said
    assert "Not a directory" in said


def test_settings_without_effect_are_logged_at_the_start(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text("log.preallocate = true\n")
    words = ("--config", str(file), *LOCAL, "-X", "request.timeout.ms=5")
    with serving(tmp_path / "data", *words) as (process, line):
        found = READY.fullmatch(line)
        assert found is not None
        create = [sys.executable, "-m", "penstock", "topic", "create", "a", "-b", found.group(1)]
        done = subprocess.run(
            [*create, "-c", "preallocate=true"],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            env=environment(),
            check=True,
        )
        assert done.stdout == "topic a has 1 partition\n"
        assert done.stderr == (
            "topic 'a': setting preallocate = 'true': it has no effect: segment files grow as they"
            " are written\n"
        )
        process.terminate()
        assert process.wait(TIMEOUT_SECONDS) == 0
        assert process.stderr is not None
        said = process.stderr.read().splitlines()
    assert len(said) == 3
    assert "log.preallocate = 'true': it has no effect" in said[0]
    assert f"({file}, line 1)" in said[0]
    assert "request.timeout.ms = '5': it has no effect" in said[1]
    assert "(flag -X)" in said[1]
    assert "topic a: setting preallocate" in said[2]


def test_bad_settings(tmp_path: Path) -> None:
    status, said = refused("--data-dir", str(tmp_path), *LOCAL, "-X", "num.partitions=none")
    assert status == 1
    assert said == ("penstock: setting num.partitions = 'none': must be a whole number (flag -X)\n")
    file = tmp_path / "bad.toml"
    file.write_text("\nnum.partitions = -1\n")
    status, said = refused("--config", str(file), *LOCAL)
    assert status == 1
    assert said == (f"penstock: setting num.partitions = -1: must be at least 1 ({file}, line 2)\n")
    status, said = refused("--data-dir", str(tmp_path), "--listener", "nonsense")
    assert status == 1
    assert "nonsense" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        (("diskless.storage.url=s4://bucket",), "must begin with one of file"),
        (("diskless.storage.options=plain",), "an option must read name=value"),
        (
            ("control.url=postgresql://user@127.0.0.1:1/x",),
            "diskless.storage.url = '': must name the object store that all brokers share",
        ),
        (
            ("control.url=mysql://me:word@h/x", "diskless.storage.url=s3://b"),
            "setting control.url = 'mysql://…': must begin with postgresql:// or postgres://",
        ),
        (("control.url=me:word@h/x", "diskless.storage.url=s3://b"), "control.url = '…': must"),
        (
            ("control.url=postgresql://me:word@a:1,h:notaport/x", "diskless.storage.url=s3://b"),
            "control.url = 'postgresql://…': the port must be a number from 0 to 65535",
        ),
        (("log.retentoin.ms=60000",), "did you mean log.retention.ms?"),
        (
            ("diskless.fetch.lagging.consumer.threshold.ms=5",),
            "diskless.consume.cache.expiration.lifespan.sec",
        ),
    ],
)
def test_stores_that_cannot_be(tmp_path: Path, settings: tuple[str, ...], match: str) -> None:
    words = [word for setting in settings for word in ("-X", setting)]
    status, said = refused("--data-dir", str(tmp_path / "data"), *LOCAL, *words)
    assert status == 1
    assert match in said
    assert "word" not in said
    assert said.count("\n") == 1
    assert not (tmp_path / "data").exists()


def test_a_second_signal_ends_it_at_once() -> None:
    text = (
        "import asyncio; from penstock.apps.process.daemon import _on_signal;"
        "stop = asyncio.Event(); _on_signal(stop); assert stop.is_set(); _on_signal(stop)"
    )
    done = subprocess.run([sys.executable, "-c", text], timeout=TIMEOUT_SECONDS, check=False)
    assert done.returncode == 1
