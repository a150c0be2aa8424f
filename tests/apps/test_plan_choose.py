"""`penstock plan choose`: table, JSON, plots, files, questions, bad answers."""

from __future__ import annotations

import json
from pathlib import Path

from tests.apps.conftest import Run


def test_table(bare: Run) -> None:
    ran = bare("plan", "choose", "--rate", "60k", "--consumers", "3")
    assert ran.status == 0, ran.err
    assert ran.out.startswith(
        "recommended for this workload: distributed log (rate 60,000 messages/s, consumers 3)"
    )
    assert "log in Penstock" in ran.out
    assert "against" not in ran.out
    ran = bare("plan", "choose", "--rate", "60k", "--consumers", "3", "--explain")
    assert "against: throughput" in ran.out
    assert "rate 60,000 messages/s > 50,000 messages/s" in ran.out
    assert "single answers that would change the recommendation" in ran.out


def test_explain(bare: Run) -> None:
    ran = bare("plan", "choose", "--explain")
    assert "Formulas and sources" in ran.out
    assert "log and queue article: decision matrix" in ran.out


def test_json_and_plots(bare: Run, tmp_path: Path) -> None:
    svg, png = tmp_path / "a.svg", tmp_path / "a.png"
    ran = bare("--output", "json", "plan", "choose", "--database", "there", "--rate", "10",
               "--plot", str(svg))  # fmt: skip
    document = json.loads(ran.out)
    assert document["figures"][0]["value"] == "outbox table"
    assert document["inputs"]["rate"] == {"value": 10.0, "unit": "messages/s"}
    assert b"<svg" in svg.read_bytes()
    assert bare("plan", "choose", "--plot", str(png)).status == 0
    assert png.read_bytes().startswith(b"\x89PNG")


def test_inputs_file_and_status(bare: Run, tmp_path: Path) -> None:
    file = tmp_path / "workload.toml"
    file.write_text('rate = "5k"\nreply = true\nlatency = "40ms"\n')
    ran = bare("plan", "choose", "--inputs", str(file))
    assert ran.status == 1
    assert "nothing fits" in ran.out
    assert bare("plan", "choose", "--inputs", str(file), "--consumer-down", "false").status == 0


def test_bad_answers(bare: Run) -> None:
    ran = bare("plan", "choose", "--rate", "0")
    assert ran.status == 2
    assert ran.err.startswith("penstock: setting rate = 0.0: ")
    assert "must be at least 0.001" in ran.err
    assert "must be one of none, key, global" in bare("plan", "choose", "--ordering", "x").err


def test_questions_are_asked_with_their_thresholds(bare: Run) -> None:
    answers = ["60k", "", "lots", "3", "yes", *[""] * 14]
    ran = bare("--output", "json", "plan", "choose", "--ask", "--same-host", "true",
               stdin="\n".join(answers) + "\n")  # fmt: skip
    assert ran.status == 0, ran.err
    found = json.loads(ran.out)["inputs"]
    assert (found["rate"]["value"], found["consumers"]["value"]) == (60_000, 3)
    assert (found["replay"]["value"], found["same-host"]["value"]) == (True, True)
    assert "[1/18] Number of messages per second at busy times" in ran.err
    assert "rate > 50,000 messages/s: rules out queue" in ran.err
    assert "consumers = 'lots': must be a number" in ran.err


def test_questions_end_with_answers_that_cannot_be_read(bare: Run) -> None:
    ran = bare("plan", "choose", "--ask", stdin="a\n" * 5)
    assert ran.status == 2
    assert "rate: no valid answer in 5 attempts" in ran.err
    assert bare("plan", "choose", "--ask", stdin="").status == 130
