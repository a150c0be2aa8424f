"""`penstock plan cost`: table, JSON, explanations, plots, files of inputs and prices, errors."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from penstock.apps.plan.cost import our_price_text
from tests.apps.conftest import Run


def test_table(bare: Run) -> None:
    ran = bare("plan", "cost", "--preset", "outbox-article")
    assert (ran.status, ran.err) == (0, "")
    assert "cost: outbox-article" in ran.out
    for row in ("300,000 USD/month", "90,000 USD/month", "67,100 USD/month", "26,670 USD/month"):
        assert row in ran.out
    assert "assumed: message-bytes" in bare("plan", "cost", "--preset", "outbox-article",
                                            "--explain").out  # fmt: skip
    assert "cheapest" in ran.out
    assert "Formulas and sources" not in ran.out


def test_explain(bare: Run) -> None:
    ran = bare("plan", "cost", "--explain", "--rate", "500MB/s", "--compression", "1")
    assert "## local, replicated" in ran.out
    assert "= 2,592,000 × $0.01 per GB; 1,296,000 GB × 2 followers in other zones" in ran.out
    assert "section 12b" in ran.out


def test_json(bare: Run) -> None:
    ran = bare("--output", "json", "plan", "cost", "--bytes-per-day", "100TB", "--retention", "24h")
    document = json.loads(ran.out)
    assert document["inputs"]["retention"] == {"value": 1.0, "unit": "d"}
    figures = {figure["name"]: figure for figure in document["figures"]}
    assert figures["local_total_usd_per_month"]["unit"] == "USD/month"
    assert {finding["severity"] for finding in document["findings"]} <= {"ok", "note", "warn"}
    assert [len(chart["curves"]) for chart in document["charts"]] == [13, 13, 2]


@pytest.mark.parametrize(
    ("suffix", "magic"),
    [("svg", b"<?xml"), pytest.param("png", b"\x89PNG", marks=pytest.mark.long)],
)
def test_plots(bare: Run, tmp_path: Path, suffix: str, magic: bytes) -> None:
    file = tmp_path / f"cost.{suffix}"
    assert bare("plan", "cost", "--plot", str(file)).status == 0
    assert file.read_bytes().startswith(magic)


def test_inputs_file_wins_over_a_preset_and_options_over_both(bare: Run, tmp_path: Path) -> None:
    file = tmp_path / "workload.toml"
    file.write_text('retention = "2d"\nconsumer-groups = 5\n')
    ran = bare("--output", "json", "plan", "cost", "--preset", "outbox-article", "--inputs",
               str(file), "--consumer-groups", "3")  # fmt: skip
    found = {name: one["value"] for name, one in json.loads(ran.out)["inputs"].items()}
    assert (found["retention"], found["consumer-groups"]) == (2.0, 3)
    assert found["bytes-per-day"] == 100e12


def test_prices_are_written_edited_and_read(bare: Run, tmp_path: Path) -> None:
    file = tmp_path / "prices.toml"
    ran = bare("plan", "cost", "--write-prices", str(file))
    assert (ran.status, ran.out) == (0, f"prices written: {file}\n")
    assert file.read_text() == our_price_text()
    again = bare("plan", "cost", "--write-prices", str(file))
    assert again.status == 2
    assert "exists already" in again.err
    whole = tomllib.loads(file.read_text())
    file.write_text(
        '[zone.gb]\nusd = 0.02\ndate = 2024-01-01\nsource = "an old bill, both sides"\n'
    )
    assert whole["zone"]["gb"]["usd"] == 0.01
    file.write_text("[zone.gb]\nusd = 0.02\n")
    ran = bare("plan", "cost", "--preset", "outbox-article", "--prices", str(file), "--explain")
    assert "6,000,000 × $0.02 per GB" in ran.out
    assert f"{file} (" in ran.out
    assert "older than 365 days" not in ran.out
    file.write_text(
        '[zone.gb]\nusd = 0.02\ndate = 2024-01-01\nsource = "an old bill, both sides"\n'
    )
    ran = bare("plan", "cost", "--preset", "outbox-article", "--prices", str(file), "--explain")
    assert "6,000,000 × $0.02 per GB" in ran.out
    assert "an old bill, both sides (2024-01-01)" in ran.out
    assert "1 prices are older than 365 days: zone.gb" in ran.out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[zone.gb]\nusd = -1\ndate = 2026-01-01\nsource = 'x'\n",
         ": zone.gb.usd = -1: must not be negative"),
        ("[zone.gb]\nusd = 'x'\n", ": zone.gb.usd = 'x': must be a number"),
        ("[zone.tb]\nusd = 1\n", ": zone.tb: unknown price; did you mean zone.gb?"),
        ("[zone", ": "),
    ],
)  # fmt: skip
def test_bad_prices(bare: Run, tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "prices.toml"
    file.write_text(text)
    ran = bare("plan", "cost", "--prices", str(file))
    assert ran.status == 2
    assert ran.err.startswith(f"penstock: {file}{said}")
    assert ran.err.count("\n") == 1


def test_price_files_that_cannot_be_read_or_written(bare: Run, tmp_path: Path) -> None:
    missing = tmp_path / "none.toml"
    ran = bare("plan", "cost", "--prices", str(missing))
    assert (ran.status, ran.err) == (2, f"penstock: {missing}: No such file or directory\n")
    large = tmp_path / "large.toml"
    large.write_bytes(b"#" * ((1 << 20) + 1))
    assert "larger than 1048576 bytes" in bare("plan", "cost", "--prices", str(large)).err
    nowhere = tmp_path / "none" / "prices.toml"
    ran = bare("plan", "cost", "--write-prices", str(nowhere))
    assert (ran.status, ran.err) == (2, f"penstock: {nowhere}: No such file or directory\n")


def test_bad_inputs(bare: Run) -> None:
    ran = bare("plan", "cost", "--retention", "0")
    assert ran.status == 2
    assert ran.err.startswith("penstock: setting retention = 0.0: must be at least")
    ran = bare("plan", "cost", "--rate", "1MB/s", "--bytes-per-day", "5TB")
    assert ran.status == 2
    assert "set only one of them" in ran.err
    size = bare("plan", "cost", "--rate", "10TB")
    assert (size.status, size.err) == (
        2,
        "penstock: setting rate = '10TB': is a size, but a rate is required, such as 10TB/s or"
        " 10TB/day\n",
    )
    day = ("--output", "json", "plan", "cost", "--bytes-per-day")
    told = [json.loads(bare(*day, text).out)["inputs"]["bytes-per-day"]["value"]
            for text in ("10TiB/s", "10TB", "10TB/day")]  # fmt: skip
    assert told == [10 * 2**40 * 86_400, 1e13, 1e13]
    assert bare("plan", "cost", "--preset", "none").status == 2
    assert "unknown suffix" in bare("plan", "cost", "--bytes-per-day", "5parsec").err


def test_status_when_nothing_fits(bare: Run) -> None:
    ran = bare("plan", "cost", "--latency-p99", "1ms", "--per-record", "true", "--retention",
               "400d", "--rate", "3GB/s")  # fmt: skip
    assert ran.status == 1
    assert "no option fits" in ran.out
