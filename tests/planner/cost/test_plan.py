"""Cost plan: figures, the cheapest option and its limits, findings, charts."""

from __future__ import annotations

from datetime import date

import pytest

from penstock.planner.cost import PRESETS, cost_plan, read_prices
from penstock.planner.cost.inputs import kept, scaled
from penstock.planner.cost.options import all_options, fitting, reasons_against
from penstock.planner.results import Finding, Plan
from tests.planner.cost.bills import PRICES, bills, inputs

TODAY = date(2026, 11, 22)


def plan(preset: str | None = None, **changes: object) -> Plan:
    return cost_plan(inputs(preset, **changes), PRICES, TODAY, preset=preset)


def about(found: Plan, subject: str) -> Finding:
    return next(finding for finding in found.findings if finding.subject == subject)


@pytest.mark.parametrize("preset", [None, *PRESETS])
def test_figures_say_where_they_come_from_and_add_up(preset: str | None) -> None:
    found = plan(preset)
    names = [figure.name for figure in found.figures]
    assert len(set(names)) == len(names)
    assert all(figure.formula and figure.source and figure.label for figure in found.figures)
    for option in all_options(inputs(preset), PRICES):
        key = option.key.replace("-", "_")
        lines = [found.value(f"{key}_{line.name}_usd_per_month") for line in option.lines]
        assert found.value(f"{key}_total_usd_per_month") == pytest.approx(sum(lines))


def test_per_gb_is_of_what_was_produced() -> None:
    found = plan(bytes_per_day=1e12, compression=4)
    assert found.value("local_usd_per_gb") == pytest.approx(
        found.value("local_total_usd_per_month") / 30_000
    )


def test_cross_zone_traffic_of_the_log_article() -> None:
    found = plan(rate=500e6, compression=1, consumer_groups=3)
    assert found.value("cross_zone_replication_bytes_per_month") == pytest.approx(2.592e15)
    assert found.figure("cross_zone_replication_bytes_per_month").text == "2.592 PB/month"
    assert found.value("cross_zone_replication_usd_per_month") == pytest.approx(25_920)
    assert found.value("cross_zone_consumer_bytes_per_month") == pytest.approx(2.592e15)
    note = about(found, "traffic between zones")
    assert "client.rack on consumers avoids up to 50%" in note.fix
    assert "Replication within a managed service is free" in note.cause
    charged = plan(managed_replication_free=False)
    assert "is charged" in about(charged, "traffic between zones").cause


@pytest.mark.parametrize("preset", [None, "outbox-article", "s3-native-split"])
def test_break_evens_are_where_the_cheapest_changes(preset: str | None) -> None:
    given = inputs(preset)
    found = cost_plan(given, PRICES, TODAY, preset=preset)
    best = found.value("cheapest_option")

    def cheapest_at(bytes_per_day: float | None = None, days: float | None = None) -> str:
        moved = given if days is None else kept(given, days)
        if bytes_per_day is not None:
            now = given.rate * 86_400 or given.bytes_per_day
            moved = scaled(given, bytes_per_day / now)
        return fitting(all_options(moved, PRICES), moved)[0].key

    assert cheapest_at() == best
    some = 0
    for name, inside, outside in (
        ("from", 1.001, 0.999), ("to", 0.999, 1.001),
    ):  # fmt: skip
        volume = found.value(f"cheapest_{name}_bytes_per_day")
        if volume is not None:
            some += 1
            assert cheapest_at(volume * inside) == best != cheapest_at(volume * outside)
        days = found.value(f"cheapest_{name}_retention_d")
        if days is not None:
            some += 1
            assert cheapest_at(days=days * inside) == best != cheapest_at(days=days * outside)
    assert some >= 2


def test_the_cheapest_is_named_with_what_it_wins_by_and_until_where() -> None:
    found = plan()
    first = found.findings[0]
    assert (first.severity, first.subject) == ("ok", "cheapest")
    assert first.cause.startswith("S3, written by producers: $")
    assert (
        "less than outbox, FSx Intelligent-Tiering, which costs more for throughput" in first.cause
    )
    assert "below 1" in first.fix
    assert "GB/day: Kinesis, provisioned" in first.fix
    log = about(found, "cheapest option that delivers records")
    assert log.cause.startswith("Kinesis, provisioned")


def test_a_limit_that_ends_an_option_is_reported() -> None:
    assert (
        "because the currently cheapest does not fit there"
        in plan("outbox-article").findings[0].fix
    )


def test_what_is_too_slow_or_delivers_files_does_not_fit() -> None:
    found = plan(latency_p99="50ms", per_record=True, rate=1e9)
    assert found.value("cheapest_option") not in ("diskless", "s3-direct", "outbox-fsx-tiering")
    slow = about(found, "diskless does not meet the requirements")
    assert slow.severity == "warn"
    assert "is up to 500 ms at p99, but latency-p99 is 50 ms" in slow.cause
    assert (
        "delivers files" in about(found, "outbox, EFS Elastic does not meet the requirements").cause
    )
    assert (
        "at most 200 MB/s" in about(found, "MSK, Serverless does not meet the requirements").cause
    )
    long = plan(retention=400)
    assert "at most 365 d" in about(long, "Kinesis, on demand does not meet the requirements").cause
    wide = plan(rate=100e9)
    assert (
        "at most 10,240 MB/s" in about(wide, "outbox, FSx SSD does not meet the requirements").cause
    )
    assert (
        "at most 20,000 MB/s"
        in about(wide, "outbox, FSx Intelligent-Tiering does not meet the requirements").cause
    )


def test_nothing_fits_is_a_failure() -> None:
    given = inputs(latency_p99="1ms", per_record=True, retention=400, rate=3e9)
    assert all(reasons_against(bill, given) for bill in bills(given).values())
    found = cost_plan(given, PRICES, TODAY)
    assert found.failed
    assert found.findings[0].subject == "no option fits"
    assert found.value("cheapest_option") is None


def test_limits_of_the_sources_are_findings() -> None:
    small = plan(bytes_per_day=5e9)
    assert "5 GB/day is less than 1 TB/day" in about(small, "little traffic").cause
    assert "below 100,000" in about(small, "few records").cause
    assert "200 to 500 ms" in about(small, "latency").cause
    assert "mount" in about(small, "filesystem outbox").cause
    assert "upgrades" in about(small, "work that no bill shows").cause
    large = plan(bytes_per_day=5e15)
    assert not {"little traffic", "few records"} & {finding.subject for finding in large.findings}
    many = plan("classic-split")
    assert about(many, "consolidation").severity == "note"
    assert "3,500/s for one prefix" in about(many, "PUTs of diskless brokers").cause
    article = about(plan("outbox-article"), "Intelligent-Tiering")
    assert article.severity == "warn"
    assert "infrequent-share or archive-share is above 0" in article.cause


def test_assumptions_of_a_preset_are_listed() -> None:
    found = plan("outbox-article")
    said = {finding.subject for finding in found.findings if finding.subject.startswith("assumed")}
    assert said == {f"assumed: {name}" for name in PRESETS["outbox-article"].assumed}
    assert not [finding for finding in plan().findings if finding.subject.startswith("assumed")]


def test_old_prices_are_noted() -> None:
    assert not [finding for finding in plan().findings if finding.subject == "old prices"]
    mine = {"zone": {"gb": {"usd": 0.02, "date": date(2024, 1, 1), "source": "an old bill"}}}
    given = inputs()
    found = cost_plan(given, read_prices(mine, "mine", PRICES), TODAY)
    assert about(found, "old prices").cause == "1 prices are older than 365 days: zone.gb"
    late = cost_plan(given, PRICES, date(2030, 1, 1))
    assert f"{len(PRICES)} prices are older" in about(late, "old prices").cause


def test_charts() -> None:
    found = plan("outbox-article")
    volume, retention, moved = found.charts
    for chart in (volume, retention):
        assert chart.x_log
        assert chart.y_log
        assert len(chart.curves) == 13
        for curve in chart.curves:
            assert len(curve.x) == len(curve.y) > 15
    now = volume.marks["this workload"]  # type: ignore[index]
    at = [round(float(place) / now, 6) for place in volume.curves[0].x].index(1.0)
    for curve, option in zip(volume.curves, all_options(inputs("outbox-article"), PRICES),
                             strict=True):  # fmt: skip
        assert curve.y[at] == pytest.approx(option.total_usd)
    assert moved.kind == "bar"
    assert moved.title.startswith("outbox-fsx-tiering")
    names = moved.curves[0].x
    assert names[0] == "fsx-tiering-throughput"
    assert moved.curves[0].y[0] == pytest.approx(-moved.curves[1].y[0])


def test_sensitivity_of_another_option_and_of_a_rate() -> None:
    moved = plan(option="local", rate=500e6).charts[2]
    assert moved.title.startswith("local")
    swings = dict(zip(moved.curves[0].x, moved.curves[0].y, strict=True))
    assert swings["bytes-per-day"] < 0
    assert swings["retention"] < 0 < swings["compression"]
    assert len(swings) == 10
