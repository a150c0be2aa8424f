"""`penstock bench`: figures, what is left behind (nothing), and what it refuses."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import asyncpg
import pytest

from penstock.apps.bench.broker import Bed, look_for
from penstock.apps.bench.log import WARM_UP_REQUESTS, load_steps, request_step
from penstock.apps.bench.machine import filesystem
from penstock.apps.bench.steps import Step, measure, ratios, runs_of
from penstock.apps.bench.target import SPACE_BYTES, check_space
from penstock.apps.loads.figures import percentile, quantiles_ms
from penstock.apps.process.daemon import deferred, interruptible, run_async
from penstock.apps.process.wiring import DirectoryUnusable
from penstock.base.errors import PenstockError
from penstock.client import ClusterMetadata
from penstock.objects import open_store
from penstock.planner.calibration import Calibration, Measured, read_calibration
from penstock.testing import Broker
from tests.apps.conftest import Run
from tests.postgres import PostgresServer
from tests.s3 import S3Server

LIMIT_SECONDS = 60.0
HOST = {"loopback_mb_per_s", "sync_p50_ms", "sync_p99_ms", "disk_append_mb_per_s", "cores"}
LATENCIES = {"requests_per_s"} | {
    f"{way}_{q}_ms" for way in ("produce", "end_to_end", "delivery") for q in ("p50", "p99")
}
THROUGHPUT = {
    "produce_mb_per_s", "consume_mb_per_s", "produce_100b_mb_per_s", "consume_100b_mb_per_s",
    "partition_produce_mb_per_s", "diskless_produce_mb_per_s",
}  # fmt: skip
CPU = {name.replace("_mb_per_s", "_cpu_s_per_gb") for name in THROUGHPUT}
STORE = {f"{way}_{q}_ms" for way in ("put", "get", "put_4mib", "get_4mib") for q in ("p50", "p99")}
COMMIT = {"commit_p50_ms", "commit_p99_ms"}


def processes(of: Path) -> list[int]:
    """Processes whose command line names a directory."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if str(of).encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def problems(text: str) -> list[str]:
    """The lines of stderr that do not say what a command waits for on a busy machine."""
    return [line for line in text.splitlines() if not line.startswith("% waiting")]


def bench_topics(bootstrap: str) -> list[str]:
    from penstock.client import Client

    with Client(bootstrap) as client:
        return [t.name for t in client.list_topics() if t.name.startswith("penstock-bench")]


def calibration(text: str) -> Calibration:
    read = read_calibration(json.loads(text), "here")
    for name, one in read.measured.items():
        assert one.value > 0 or name.startswith("delivery"), name
        assert one.how, name
        assert one.unit, name
    return read


@pytest.fixture
def data(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    made.mkdir()
    return made


def test_a_broker_of_its_own(
    bare: Run, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CONTROL_URL", "postgresql://127.0.0.1:1/none")
    monkeypatch.setenv("KAFKA_LISTENERS", "PLAINTEXT://192.0.2.1:9092")
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP", "127.0.0.1:1")
    written = tmp_path / "calibration.json"
    ran = bare(
        "bench", "--data-dir", str(data), "--seconds", "1", "--write", str(written),
        "--output", "json",
    )  # fmt: skip
    assert (ran.status, problems(ran.err)) == (0, [])
    read = calibration(ran.out)
    assert read == calibration(written.read_text())
    assert set(read.measured) == HOST | LATENCIES | THROUGHPUT | CPU | STORE | COMMIT
    assert {one.runs for name, one in read.measured.items() if name != "cores"} == {3}
    assert read.host["cores"] == read.measured["cores"].value
    assert {"memory_bytes", "processor", "filesystem"} < set(read.host)
    document = json.loads(ran.out)
    assert document["subject"] == "a temporary broker"
    assert set(document["ratios"]) == {
        "produce_to_loopback", "consume_to_loopback", "produce_to_disk_append",
        "produce_p50_to_sync_p50",
    }  # fmt: skip
    assert list(data.iterdir()) == []
    assert processes(data) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["calibration.json", "data"]


def test_a_running_broker(bare: Run, data: Path) -> None:
    with Broker(process=True) as broker:
        words = ("bench", "-b", broker.bootstrap, "--data-dir", str(data), "--seconds", "1")
        ran = bare(*words, "--output", "json")
        assert (ran.status, problems(ran.err)) == (0, [])
        assert bench_topics(broker.bootstrap) == []
    read = calibration(ran.out)
    assert set(read.measured) == HOST | LATENCIES | THROUGHPUT | CPU
    notes = json.loads(ran.out)["notes"]
    assert any("object store" in note for note in notes)
    assert any("commits" in note for note in notes)
    assert list(data.iterdir()) == []


def test_the_table_shows_ratios_and_how(bare: Run, data: Path, bootstrap: str) -> None:
    ran = bare("-b", bootstrap, "bench", "--data-dir", str(data), "--seconds", "1", "--explain")
    assert (ran.status, problems(ran.err)) == (0, [])
    assert "× loopback" in ran.out
    assert "median of 3 runs" in ran.out
    assert (
        "not measured: the broker's CPU time (the broker runs in the process that measures it)"
        in (ran.out)
    )
    assert "produce_cpu_s_per_gb" not in ran.out
    assert bench_topics(bootstrap) == []


@pytest.mark.long
def test_a_store_and_a_database_are_left_as_they_were(
    bare: Run, data: Path, s3: S3Server, postgres: PostgresServer
) -> None:
    url, database = s3.fresh_url(), postgres.schema()
    options = [f"--store-option={name}={value}" for name, value in s3.options().items()]
    ran = bare(
        "bench", "--data-dir", str(data), "--seconds", "1", "--store", url, *options,
        "--control", database, "--output", "json",
    )  # fmt: skip
    assert (ran.status, problems(ran.err)) == (0, [])
    read = calibration(ran.out)
    remote = {f"remote_{name}" for name in STORE}
    assert remote | COMMIT | {"diskless_produce_mb_per_s"} < set(read.measured)
    assert not STORE & set(read.measured)
    assert "PostgreSQL" in read.measured["commit_p50_ms"].how
    assert url in read.measured["remote_put_p50_ms"].how

    async def left() -> tuple[list[str], int]:
        store = open_store(url, options=s3.options())
        keys = [info.key async for info in store.list("")]
        await store.close()
        connection = await asyncpg.connect(database)
        query = "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'penstock_bench%'"
        schemas = await connection.fetchval(query)
        await connection.close()
        return keys, schemas

    assert asyncio.run(left()) == ([], 0)
    assert list(data.iterdir()) == []


@contextmanager
def started(*words: str) -> Iterator[tuple[subprocess.Popen[bytes], Future[str]]]:
    """A measurement in a process of its own, and what its terminal will have shown."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "penstock", "bench", "--seconds", "60", *words]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    with ThreadPoolExecutor(1) as pool:
        shown = pool.submit(read_all, ours)
        try:
            yield process, shown
        finally:
            process.kill()
            process.wait()
    os.close(ours)


def wait_for(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def read_all(terminal: int) -> str:
    """Return everything written to a terminal until it is closed."""
    text = b""
    try:
        while piece := os.read(terminal, 65536):
            text += piece
    except OSError:
        pass  # as Linux says that the other end is closed
    return text.decode()


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        *(pytest.param(n, marks=pytest.mark.long) for n in (signal.SIGINT, signal.SIGHUP)),
    ],
)
def test_an_interrupted_measurement_cleans_up(data: Path, number: signal.Signals) -> None:
    with started("--data-dir", str(data)) as (process, terminal):
        wait_for(lambda: list(data.glob("*/broker/log/penstock-bench-*")))
        process.send_signal(number)
        assert process.wait(LIMIT_SECONDS) == 130
        shown = terminal.result(LIMIT_SECONDS)
    assert "loopback" in shown
    assert "Traceback" not in shown
    assert "not acknowledged" not in shown
    assert list(data.iterdir()) == []
    assert processes(data) == []


def test_an_interrupted_measurement_deletes_its_topics(data: Path, bootstrap: str) -> None:
    assert bench_topics(bootstrap) == []
    with started("-b", bootstrap, "--data-dir", str(data)) as (process, terminal):
        wait_for(lambda: bench_topics(bootstrap))
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_SECONDS) == 130, terminal.result(LIMIT_SECONDS)
    assert bench_topics(bootstrap) == []
    assert list(data.iterdir()) == []


def test_a_topic_whose_measurement_never_began_is_deleted(bootstrap: str) -> None:
    with bed_of(bootstrap) as bed:
        interrupted = bed.topic()  # a signal between `__enter__` and the body leaves it like this
        name = interrupted.__enter__()
        assert bench_topics(bootstrap) == [name]
        bed.delete_topics()
        assert bench_topics(bootstrap) == []


@pytest.mark.long
def test_the_death_of_the_broker_is_reported(data: Path) -> None:
    timeouts = ("-X", "delivery.timeout.ms=2000", "-X", "default.api.timeout.ms=3000")
    with started("--data-dir", str(data), *timeouts) as (process, terminal):
        wait_for(lambda: list(data.glob("*/broker/log/penstock-bench-*")))
        serving = [pid for pid in processes(data) if pid != process.pid]
        assert len(serving) == 1
        os.kill(serving[0], signal.SIGKILL)
        assert process.wait(LIMIT_SECONDS) == 1
        shown = terminal.result(LIMIT_SECONDS)
    assert "the temporary broker ended during the measurement: it ended with status -9" in shown
    assert list(data.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "status", "why"),
    [
        (["--quick", "--seconds", "5"], 2, "give --quick or --seconds, not both"),
        (["--seconds", "0"], 2, "--seconds"),
        (["--store-option", "a=b"], 2, "--store-option requires --store"),
        (["--store", "s3://x", "--store-option", "a"], 2, "must read key=value"),
        (["--data-dir", "/nowhere/at/all"], 1, "/nowhere/at/all does not exist"),
        (["--data-dir", "/proc"], 1, "data directory /proc: "),
        (["--write", "/nowhere/c.json"], 1, "--write /nowhere/c.json: No such file"),
        (["--write", "/"], 1, "--write /: is a directory"),
        (["--store", "ftp://x"], 1, "--store ftp://x: must begin with"),
        (["--store", "file:///nowhere"], 1, "file:///nowhere: the directory does not exist"),
        (["--control", "mysql://x"], 1, "--control mysql://x: must begin with postgresql://"),
        (["--control", "postgresql://127.0.0.1:1/none"], 1, "database none on 127.0.0.1:1"),
        (["-b", "127.0.0.1:1", "-X", "default.api.timeout.ms=300"], 3, "127.0.0.1:1"),
        (["-b", "nonsense:port"], 1, "nonsense:port"),
    ],
)
def test_bad_input_is_named_in_one_line(
    bare: Run, data: Path, words: list[str], status: int, why: str
) -> None:
    given = words if "--data-dir" in words else ["--data-dir", str(data), *words]
    ran = bare("bench", *given)
    assert (ran.status, ran.out) == (status, "")
    assert why in ran.err
    if status != 2:
        assert ran.err.count("\n") == 1
    assert list(data.iterdir()) == []


def test_a_store_that_refuses_is_named_and_nothing_is_started(bare: Run, data: Path) -> None:
    words = ["--store", "s3://bucket/here"]
    for option in ("endpoint=http://127.0.0.1:1", "access_key_id=a", "secret_access_key=b"):
        words += ["--store-option", f"aws_{option}"]
    ran = bare("bench", "--data-dir", str(data), *words)
    assert (ran.status, ran.err.count("\n")) == (1, 1)
    assert "s3://bucket/here" in ran.err
    assert list(data.iterdir()) == []


def test_too_little_room_is_refused() -> None:
    check_space(Path("/x"), SPACE_BYTES)
    with pytest.raises(
        DirectoryUnusable, match="/x: 1 MiB are free, but the measurement needs 2048"
    ):
        check_space(Path("/x"), 2 << 20 - 1)


def test_a_signal_cancels_a_loop_and_is_raised_when_it_is_closed() -> None:
    cleaned: list[str] = []
    loops: list[asyncio.AbstractEventLoop] = []

    async def work() -> None:
        loops.append(asyncio.get_running_loop())
        signal.raise_signal(signal.SIGTERM)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append("work")

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        run_async(work())
    assert cleaned == ["work"]
    assert loops[0].is_closed()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_waits_for_what_must_not_be_torn() -> None:
    made: list[str] = []

    def make(number: signal.Signals) -> None:
        with deferred():
            signal.raise_signal(number)
            made.append("broker")
        made.append("never")

    with interruptible():
        with pytest.raises(KeyboardInterrupt):
            make(signal.SIGINT)
        assert made == ["broker"]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGHUP)
    assert run_async(asyncio.sleep(0, "done")) == "done"


def test_a_broker_in_this_process_is_seen_as_such(bootstrap: str) -> None:
    from penstock.client import Client

    with Client(bootstrap) as client:
        seen = look_for(client)
    assert (seen.here, seen.pid) == (True, None)
    assert seen.why_not


def test_the_file_system_is_that_of_the_deepest_mount() -> None:
    assert filesystem(Path("/proc/self")) == "proc"


def test_medians_are_over_rounds_in_which_all_take_turns() -> None:
    seen: list[tuple[str, object]] = []
    values = iter([3.0, 1.0, 2.0])

    def first(seconds: float) -> dict[str, float]:
        seen.append(("first", seconds))
        return {"a_mb_per_s": next(values)}

    def second(seconds: float) -> dict[str, float]:
        seen.append(("second", seconds))
        return {"b_p50_ms": 4.0} if len(seen) > 2 else {}

    labels: list[str] = []
    found = measure(
        [
            Step(label="one", share=0.2, run=first, hows={"a_mb_per_s": "so"}),
            Step(label="two", share=0.6, run=second, hows={"b_p50_ms": "thus"}),
        ],
        seconds=12,
        runs=3,
        begin=labels.append,
    )
    assert seen == [("first", pytest.approx(1.0)), ("second", pytest.approx(3.0))] * 3
    assert labels == ["one", "two"] * 3
    assert found == {
        "a_mb_per_s": Measured(value=2.0, unit="MB/s", how="so", runs=3),
        "b_p50_ms": Measured(value=4.0, unit="ms", how="thus", runs=2),
    }


def test_ratios_need_both_figures() -> None:
    def one(value: float) -> Measured:
        return Measured(value=value, unit="MB/s", how="")

    assert ratios({"produce_mb_per_s": one(100)}) == {}
    both = {"produce_mb_per_s": one(100), "loopback_mb_per_s": one(400)}
    assert ratios(both) == {"produce_to_loopback": 0.25}


def test_quantiles() -> None:
    assert percentile([], 0.5) == 0.0
    assert percentile([3, 1, 2], 0.5) == 2
    assert quantiles_ms("x", [0.001 * n for n in range(1, 101)]) == {
        "x_p50_ms": pytest.approx(51.0),
        "x_p99_ms": pytest.approx(100.0),
    }
    assert (runs_of(15), runs_of(60)) == (3, 5)


@contextmanager
def bed_of(bootstrap: str, timeout_ms: int = 20_000) -> Iterator[Bed]:
    from penstock.client import Client

    with Client(bootstrap) as client:
        yield Bed(bootstrap, client, lambda: Client(bootstrap), os.getpid(), timeout_ms)


def test_every_figure_says_how(bootstrap: str) -> None:
    """A figure whose words are missing would fail at the end of a minute."""
    with bed_of(bootstrap) as bed:
        for step in load_steps(bed, where="a topic"):
            assert set(step.run(0.01)) <= set(step.hows)


def test_every_small_request_is_a_record_in_the_log(bootstrap: str) -> None:
    with bed_of(bootstrap) as bed:
        ends: list[int] = []
        delete = bed.client.delete_topic

        def counted(name: str) -> None:
            ends.append(sum(bed.client.list_offsets(name, "latest").values()))
            delete(name)

        bed.client.delete_topic = counted  # type: ignore[method-assign]
        step = request_step(bed, where="a topic")
        found = step.run(0.2)
        assert set(found) == set(step.hows) == {"requests_per_s"}
        assert WARM_UP_REQUESTS + found["requests_per_s"] * 0.2 <= ends[0]
        assert bench_topics(bootstrap) == []


def test_small_requests_that_are_refused_for_good() -> None:
    with (
        Broker({"message.max.bytes": 50}) as broker,
        bed_of(broker.bootstrap) as bed,
        pytest.raises(PenstockError, match="one record"),
    ):
        request_step(bed, where="a topic").run(0.1)


def test_small_requests_that_are_refused_for_now(bootstrap: str) -> None:
    """The broker does not know the topic, which is deleted before the requests."""
    with bed_of(bootstrap, 500) as bed:
        known = bed.client.metadata

        def deleted_after(topics: Sequence[str]) -> ClusterMetadata:
            found = known(topics)
            bed.client.delete_topic(topics[0])
            return found

        bed.client.metadata = deleted_after  # type: ignore[method-assign, assignment]
        with pytest.raises(PenstockError, match="only 0 requests were answered within 500 ms"):
            request_step(bed, where="a topic").run(0.1)
