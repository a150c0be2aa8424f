"""`penstock plan capacity`: table, JSON, explanations, plots, files, errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.configuration.settings import BrokerSettings
from penstock.planner.calibration import Calibration, Measured, calibration_document
from penstock.storage import LogConfig
from tests.apps.conftest import Run


def document(ran: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ran.out)
    return found


def values(ran: Any) -> dict[str, Any]:
    return {figure["name"]: figure["value"] for figure in document(ran)["figures"]}


def test_table(bare: Run) -> None:
    ran = bare("plan", "capacity", "--storage", "diskless", "--zones", "3", "--explain")
    assert (ran.status, ran.err) == (0, "")
    for words in ("partitions", "5 MB/s", "3.024 TB", "room to grow", "type 1 (uniform)"):
        assert words in ran.out


def test_the_answers_come_first(bare: Run) -> None:
    """README's own command: what is asked for in a few lines, and nothing padded."""
    ran = bare("plan", "capacity", "--messages-per-second", "50k", "--message-bytes", "1KiB",
               "--retention", "7d")  # fmt: skip
    lines = ran.out.splitlines()
    assert (ran.status, len(lines) < 25) == (0, True)
    assert lines[0] == "capacity (messages-per-second 50,000 messages/s, message-bytes 1 KiB)"
    words = {line.split("  ")[0].strip() for line in lines}
    assert {"partitions", "brokers", "mean partition on a disk", "the fullest disk"} <= words
    assert [line for line in lines if line != line.rstrip()] == []
    assert "--explain" in lines[-1]
    tiered = bare("plan", "capacity", "--storage", "tiered")
    assert tiered.status == 0


def test_explain(bare: Run) -> None:
    ran = bare("plan", "capacity", "--explain", "--storage", "diskless")
    assert "(assumed: Penstock's benchmarks on 2 cores: fetches of 1 KiB" in ran.out
    assert "Lindley's recursion" in ran.out
    assert "Amazon S3: 3,500 PUT" in ran.out


def test_json(bare: Run) -> None:
    ran = bare("--output", "json", "plan", "capacity", "--messages-per-second", "1m",
               "--message-bytes", "500", "--retention", "24h", "--storage", "diskless")  # fmt: skip
    found = document(ran)
    assert found["inputs"]["messages-per-second"] == {"value": 1e6, "unit": "messages/s"}
    assert found["inputs"]["retention"]["value"] == 1.0
    assert values(ran)["store_bytes"] == 43.2e12
    assert len(found["charts"]) == 4


@pytest.mark.parametrize(
    ("suffix", "magic"),
    [("svg", b"<?xml"), pytest.param("png", b"\x89PNG", marks=pytest.mark.long)],
)
def test_plots(bare: Run, tmp_path: Path, suffix: str, magic: bytes) -> None:
    file = tmp_path / f"capacity.{suffix}"
    assert bare("plan", "capacity", "--storage", "diskless", "--plot", str(file)).status == 0
    assert file.read_bytes().startswith(magic)


def test_a_file_of_inputs(bare: Run, tmp_path: Path) -> None:
    file = tmp_path / "load.toml"
    file.write_text('messages-per-second = 1000\nretention = "2d"\nzone-aware = true\n')
    ran = bare("--output", "json", "plan", "capacity", "--inputs", str(file), "--retention", "3d")
    found = document(ran)["inputs"]
    assert found["retention"]["value"] == 3
    assert found["messages-per-second"]["value"] == 1000
    assert found["zone-aware"]["value"] is True


def test_a_hot_key_fails_the_plan(bare: Run) -> None:
    ran = bare("plan", "capacity", "--messages-per-second", "100k", "--keys", "100",
               "--top-percent-share", "0.5", "--partitions", "32")  # fmt: skip
    assert ran.status == 1
    assert "split the busiest key into" in " ".join(ran.out.split())


def test_settings_of_brokers(bare: Run, tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('"diskless.commit.interval.ms" = "700"\n"log.segment.bytes" = "2097152"\n')
    told = ("--output", "json", "plan", "capacity", "--config", str(file))
    assert values(bare(*told, "--storage", "diskless"))["object_interval_ms"] == 700
    local = values(bare(*told))
    assert local["disk_slack_bytes"] == local["partitions"] * 2_097_152
    assert BrokerSettings().log_segment_bytes == LogConfig().segment_bytes


def test_what_was_measured(bare: Run, tmp_path: Path) -> None:
    row = Measured(value=10, unit="MB/s", how="here", runs=3)
    written = Calibration(taken_at="now", measured={"produce_mb_per_s": row})
    file = tmp_path / "host.json"
    file.write_text(json.dumps(calibration_document(written)))
    told = ("--output", "json", "plan", "capacity", "--messages-per-second", "100k")
    slow = values(bare(*told, "--calibration", str(file)))
    assert slow["brokers_by_throughput"] > values(bare(*told))["brokers_by_throughput"]
    ran = bare("plan", "capacity", "--calibration", str(file), "--explain")
    assert "10 (measured on this host: produce_mb_per_s)" in ran.out


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--messages-per-second", "0"), "messages-per-second"),
        (("--retention", "-1"), "retention"),
        (("--message-bytes", "5 apples"), "apples"),
        (("--storage", "tape"), "storage"),
        (("--zipf-exponent", "1"), "needs the number of keys"),
        (("--storage", "tiered", "--local-retention", "8"), "lower local-retention"),
        (("--put-p50", "9", "--put-p99", "8"), "put-p99 must be at least put-p50"),
    ],
)
def test_bad_inputs(bare: Run, options: tuple[str, ...], named: str) -> None:
    ran = bare("plan", "capacity", *options)
    assert ran.status == 2
    assert ran.err.count("\n") == 1
    assert named in ran.err
    assert ran.out == ""


@pytest.mark.parametrize("content", ["no json", "[]", '{"version": 1, "measured": 3}'])
def test_bad_calibrations(bare: Run, tmp_path: Path, content: str) -> None:
    file = tmp_path / "host.json"
    file.write_text(content)
    ran = bare("plan", "capacity", "--calibration", str(file))
    assert ran.status == 2
    assert str(file) in ran.err


def test_large_calibrations_are_refused(bare: Run, tmp_path: Path) -> None:
    file = tmp_path / "host.json"
    file.write_text(" " * ((1 << 20) + 1))
    ran = bare("plan", "capacity", "--calibration", str(file))
    assert ran.status == 2
    assert "is larger than" in ran.err
