"""Benchmarks: failures are reported, aims are listed, and recorded results are not too old."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks import __main__ as bench
from benchmarks import page
from benchmarks.aims import aims, limits
from benchmarks.harness import (
    RECORDED,
    ROOT,
    SCRATCH,
    Chart,
    Result,
    Row,
    load,
    load_all,
    save,
)
from benchmarks.measured import MEASURES, changed, releases, sources, too_old
from benchmarks.outbox import Runs, Size
from benchmarks.peers.bare_client import next_frame, received
from benchmarks.peers.log_clients import (
    KafkaClient,
    LogClient,
    NatsClient,
    RabbitClient,
    RedisClient,
)
from benchmarks.pipelines import FILES, SINKS
from rich.console import Console

from penstock.spark.pipeline.parsing import survey

WORKS = """
from benchmarks.harness import Row

def measure(quick):
    return [Row(name="rate", value=2 if quick else 3, unit="1/s", aim_value=5)]
"""
BREAKS = """
def measure(quick):
    raise ValueError("no [peer] here")
"""


def bench_planted(tmp_path: Path, *names: str) -> tuple[list[str], str]:
    """Run planted benchmarks; return those that broke, and the output."""
    out = io.StringIO()
    broken = bench.run(
        names,
        quick=True,
        console=Console(file=out, width=1_000),
        results=tmp_path / "results",
        failures=tmp_path / "failures",
        package="planted",
    )
    return broken, out.getvalue()


def test_a_failed_benchmark_is_reported_and_the_others_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "planted"
    package.mkdir()
    (package / "breaks.py").write_text(BREAKS)
    (package / "works.py").write_text(WORKS)
    monkeypatch.syspath_prepend(tmp_path)

    broken, printed = bench_planted(tmp_path, "breaks", "absent", "works")
    assert broken == ["breaks", "absent"]
    failure = tmp_path / "failures" / "breaks.failure.txt"
    assert f"breaks broke: ValueError: no [peer] here (traceback: {failure})" in printed
    assert 'breaks.py", line 3, in measure' in failure.read_text()
    assert "absent broke: ModuleNotFoundError" in printed
    results = tmp_path / "results"
    assert sorted(path.name for path in results.iterdir()) == ["README.md", "works.json"]
    assert json.loads((results / "works.json").read_text())["rows"][0]["value"] == 2
    assert "| rate | 2 | 1/s |" in (results / "README.md").read_text()
    assert printed.index("aims") > printed.index("rate") > 0
    assert "≥ 5 1/s" in printed

    (tmp_path / "failures" / "works.failure.txt").write_text("of an earlier run")
    assert bench_planted(tmp_path, "works")[0] == []
    assert [path.name for path in failure.parent.glob("works*")] == []


def test_only_what_is_recorded_goes_to_the_repository() -> None:
    assert ROOT / "benchmarks" / "results" == RECORDED
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert f"{SCRATCH.relative_to(ROOT).parts[0]}/" in ignored


@pytest.mark.parametrize("sink", SINKS)
def test_the_pipeline_files_of_the_main_job_are_valid(sink: str) -> None:
    assert not survey(FILES / f"{sink}.toml").problems


DONE = Result(benchmark="tls", taken_at="2026-11-30T10:00:00+00:00", quick=False, host={}, rows=())
TIMED = Row(name="time", value=30, unit="µs", lower_is_better=True, aim_value=25, limit="two syncs")
AIMED = (
    Row(name="ratio", value=6, unit="1/s", reference=2, reference_name="peer", aim_ratio=3),
    TIMED,
    replace(TIMED, reference=60, reference_name="peer"),
    Row(name="rate", value=1, unit="1/s", reference=2, reference_name="peer", aim_ratio=1 / 1.1),
    Row(name="plain", value=1, unit="s"),
    replace(TIMED, name="slow", bare=20),
    replace(TIMED, name="bare", bare=28),
)


def test_each_row_with_an_aim_is_listed_with_its_result() -> None:
    done = replace(DONE, rows=AIMED)
    assert [cells[1:] for cells in aims([done])] == [
        ("ratio", "≥ 3 × peer", "3 ×", "met"),
        ("time", "≤ 25 µs", "30 µs", "limit"),
        ("rate", "≥ 0.909 × peer", "0.5 ×", "**not met**"),
        ("slow", "≤ 25 µs", "30 µs", "**not met**"),
        ("bare", "≤ 25 µs", "30 µs", "limit"),
    ]
    assert list(limits([done])) == [
        (f"tls, {name}", "two syncs") for name in ("time", "slow", "bare")
    ], "rows that are listed once give their reason once"


def test_a_result_is_read_as_it_was_saved(tmp_path: Path) -> None:
    chart = Chart(title="t", unit="1/s", lines={"a": [(1, 2), (10, 3)]}, x="connections")
    done = replace(DONE, rows=list(AIMED), charts=[chart], sources={"broker": "1"}, release="0.2")
    path = save(tmp_path, done)
    assert load(path) == done
    assert json.loads(path.read_text())["rows"][0]["met"] is True

    body = json.loads(path.read_text())
    for row in body["rows"]:
        for key in ("aim_ratio", "aim_value", "limit", "bare", "met"):
            del row[key]
    del body["release"], body["sources"], body["charts"]
    path.write_text(json.dumps(body))
    assert [row.met for row in load(path).rows] == [None] * len(AIMED)

    save(tmp_path, done)
    text = page.write(tmp_path).read_text()
    assert text.index("| tls | time | ≤ 25 µs | 30 µs | limit |") < text.index("## tls")
    assert "- tls, time: two syncs" in text
    assert (tmp_path / "tls-time.png").exists()


def test_every_benchmark_names_the_code_that_it_measures() -> None:
    assert list(MEASURES) == sorted(MEASURES, key=bench.ALL.index)
    assert len(MEASURES) == len(bench.ALL)
    source = ROOT / "src" / "penstock"
    names = {name for names in MEASURES.values() for name in names}
    assert [name for name in names if not (source / name).exists()] == []


def test_changed_code_makes_old_results_too_old(tmp_path: Path) -> None:
    for name in MEASURES["tls"]:
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "code.py").write_text("x = 1")
    before = sources("tls", tmp_path)
    done = replace(DONE, release="0.2", sources=before)
    (tmp_path / MEASURES["tls"][0] / "code.py").write_text("x = 2")
    now = sources("tls", tmp_path)
    assert changed(done, now) == [MEASURES["tls"][0]]

    def found(result: Result, *known: str) -> list[str]:
        return list(too_old([result], known, lambda _: now))

    assert found(done, "0.2", "0.1") == found(done, "0.3", "0.2") == []
    message = f"tls: recorded with 0.2; changed: {MEASURES['tls'][0]}"
    assert found(done, "0.4", "0.3", "0.2") == [message]
    assert found(replace(done, sources=now), "0.4", "0.3", "0.2") == []
    [unknown] = found(DONE, "0.2")
    assert "recorded with an unknown release" in unknown
    assert found(replace(done, quick=True), "0.2") == ["tls: a quick run"]
    [stray] = found(replace(done, benchmark="gone"), "0.2")
    assert "no such benchmark" in stray


def test_recorded_results_are_not_too_old() -> None:
    stale = list(too_old(load_all(RECORDED), releases()))
    names = " ".join(dict.fromkeys(line.partition(":")[0] for line in stale))
    assert stale == [], f'run make bench-record ARGS="{names}"'


def test_the_page_of_results_is_up_to_date() -> None:
    assert (RECORDED / "README.md").read_text() == page.text(load_all(RECORDED))


PRODUCED = struct.pack(">iiih1sii", 49, 1, 1, 1, b"t", 1, 0) + struct.pack(">hqqqi", 0, 7, -1, 0, 0)
ANSWERS: list[tuple[type[LogClient], bytes, bytes]] = [
    (KafkaClient, PRODUCED, PRODUCED.replace(struct.pack(">hq", 0, 7), struct.pack(">hq", 3, -1))),
    (RedisClient, b"$15\r\n1764500000000-0\r\n", b"-OOM no memory\r\n"),
    (NatsClient, b'MSG inbox.0 1 9\r\n{"seq":1}\r\n', b'MSG inbox.0 1 9\r\n{"error":1}\r\n'),
    (
        RabbitClient,
        struct.pack(">IHHbiq", 17, RabbitClient.CONFIRM, 1, 0, 1, 0),
        struct.pack(">IHHbiqh", 19, RabbitClient.PUBLISH_ERROR, 1, 0, 1, 0, 5),
    ),
]


@pytest.mark.parametrize(("kind", "answer", "error"), ANSWERS)
def test_clients_of_logs_count_answers_however_they_arrive(
    kind: type[LogClient], answer: bytes, error: bytes
) -> None:
    client = kind(0)
    assert client.answers(1)(answer * 3) == 3
    count = client.answers(2)
    pieces = [answer[at : at + 1] for at in range(len(answer))] * 4
    assert sum(count(piece) for piece in pieces) == (4 if kind is KafkaClient else 2)
    with pytest.raises(RuntimeError):
        client.answers(1)(error)


def test_a_closed_connection_is_an_error_of_its_client() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            theirs.sendall(struct.pack(">i3s", 3, b"one") + struct.pack(">i1s", 3, b"t"))
        assert bytes(next_frame(ours)) == b"one"
        with pytest.raises(ConnectionError):
            next_frame(ours)
        with pytest.raises(ConnectionError):
            received(ours)


def test_a_run_of_the_outbox_frees_its_bytes_but_deletes_nothing(tmp_path: Path) -> None:
    size = Size(name="2 B", size_bytes=2, count=3, durable=1, durable_many=1, lazy=1, lazy_many=1)
    loop = asyncio.new_event_loop()
    try:
        runs = Runs(tmp_path, size, loop)
        for run in (runs.plain, runs.bare, runs.outbox):
            assert run(False, 2) > 0
    finally:
        loop.close()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 3 * size.count + 2  # the outbox writes two more
    assert not any(file.stat().st_size for file in files)
