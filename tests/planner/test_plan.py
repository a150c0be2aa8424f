"""Common parts of all plans: inputs, figures, charts, a calibration."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from penstock.base.errors import InvalidError, InvalidSetting
from penstock.base.settings import setting
from penstock.planner.calibration import (
    Calibration,
    Measured,
    calibration_document,
    read_calibration,
)
from penstock.planner.quantities import InvalidPlanFile, read_inputs
from penstock.planner.results import (
    Chart,
    Curve,
    Figure,
    Finding,
    Plan,
    draw,
    given_rows,
    input_rows,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    size_bytes: int = setting(
        100, name="size-bytes", doc="A record's size.", unit="bytes", minimum=1, maximum=1 << 30
    )
    wait_ms: float = setting(2.5, name="wait-ms", doc="A pause.", unit="ms", minimum=0)
    kind: str = setting("a", name="kind", doc="A word.", choices=("a", "b"))
    sure: bool = setting(True, name="sure", doc="Yes or no.")


def plan(*findings: Finding) -> Plan:
    lines = Curve(label="one", x=(1, 10), y=(2, 3)), Curve(label="two", x=(1, 10), y=(5, 4))
    bars = Curve(label="cost", x=("left", "right"), y=(2, 3))
    return Plan(
        title="a plan",
        inputs=Inputs(),
        figures=(
            Figure(name="size_bytes", label="size", value=2048, unit="bytes", formula="2 × 1024",
                   source="RFC", minimum=1024),
        ),
        findings=findings,
        charts=(
            Chart(title="lines", x_label="x", y_label="y", curves=lines, x_log=True, y_log=True,
                  marks={"here": 5}),
            Chart(title="bars", x_label="", y_label="y", curves=(bars, bars), kind="bar"),
        ),
    )  # fmt: skip


def test_inputs_are_read_with_units() -> None:
    found = read_inputs(Inputs, {"size-bytes": "2KiB", "wait-ms": "100us", "kind": "b"})
    assert found == Inputs(size_bytes=2048, wait_ms=0.1, kind="b")
    other = read_inputs(Inputs, {"size-bytes": 7, "sure": "false"})
    assert other == Inputs(size_bytes=7, sure=False)
    assert [row[:3] for row in input_rows(found)] == [
        ("size-bytes", 2048, "bytes"),
        ("wait-ms", 0.1, "ms"),
        ("kind", "b", ""),
        ("sure", True, ""),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Guesses:
    ring: int = setting(0, name="ring", doc="0: not known.", unit="entries", minimum=0)
    share: float = setting(-1.0, name="share", doc="-1: by the plan.")
    replay: bool = setting(False, name="replay", doc="Yes or no.")


def test_empty_inputs_are_left_out() -> None:
    assert [row[:2] for row in given_rows(Guesses())] == [("replay", False)]
    given = given_rows(Guesses(ring=5, share=0.0))
    assert [row[:2] for row in given] == [("ring", 5), ("share", 0.0), ("replay", False)]


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"size-bytes": "0"}, "size-bytes = .*must be at least 1"),
        ({"size-bytes": "-5k"}, "must be at least 1"),
        ({"size-bytes": "2GiB"}, "must be at most 1073741824"),
        ({"size-bytes": "1.5"}, "size-bytes = '1.5': must be a whole number of bytes"),
        ({"size-bytes": "ten"}, "must be a number of bytes"),
        ({"wait-ms": float("nan")}, "must be finite"),
        ({"wait-ms": "1e999"}, "must be finite"),
        ({"kind": "c"}, "must be one of a, b"),
        ({"size": "1"}, "there is no setting of this name"),
    ],
)
def test_bad_inputs_are_named(values: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidSetting, match=why):
        read_inputs(Inputs, values)


def test_figures_are_found_by_name() -> None:
    found = plan()
    assert (found.value("size_bytes"), found.figure("size_bytes").text) == (2048, "2 KiB")
    assert found.figure("size_bytes").minimum_text == "1 KiB"
    with pytest.raises(KeyError):
        found.value("other")
    assert not found.failed
    assert plan(Finding(severity="fail", subject="ring", cause="small")).failed


def test_charts_are_drawn() -> None:
    assert draw(plan(), ".png").startswith(b"\x89PNG")
    drawn = draw(plan(), ".SVG")
    assert b"<svg" in drawn
    with pytest.raises(InvalidError, match=r"plot files end in \.png or \.svg, not in '\.pdf'"):
        draw(plan(), ".pdf")
    bare = Plan(title="bare", inputs=Inputs(), figures=())
    with pytest.raises(InvalidError, match="plan 'bare' has no charts"):
        draw(bare, ".png")


def test_calibration_survives_a_file() -> None:
    written = Calibration(
        taken_at="2026-11-22T08:00:00+00:00",
        host={"cores": 2},
        measured={"put_p50_ms": Measured(value=1.8, unit="ms", how="64 KiB PUTs", runs=3)},
    )
    read = read_calibration(json.loads(json.dumps(calibration_document(written))), "here")
    assert read == written
    assert (read.value("put_p50_ms", 9.0), read.value("other", 9.0)) == (1.8, 9.0)


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ([], "here is not a calibration of version 1"),
        ({"version": 2}, "here is not a calibration of version 1"),
        ({"version": 1}, "here: measured must be a table"),
        ({"version": 1, "measured": {"a": 5}}, r"here: measured\.a must be a table"),
        ({"version": 1, "measured": {"a": {"value": -1}}}, r"measured\.a\.value = -1"),
        ({"version": 1, "measured": {"a": {"value": True}}}, r"measured\.a\.value = True"),
        ({"version": 1, "measured": {"a": {"value": 1, "runs": 0}}}, r"measured\.a\.runs = 0"),
    ],
)
def test_bad_calibrations_are_refused(document: object, why: str) -> None:
    with pytest.raises(InvalidPlanFile, match=why):
        read_calibration(document, "here")
