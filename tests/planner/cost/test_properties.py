"""Properties of all workloads: no negative line, correct sums, and costs that grow with inputs."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base.errors import InvalidSetting
from penstock.diskless.settings import DisklessSettings
from penstock.planner.cost import CostInputs, all_options
from penstock.planner.cost.inputs import OPTIONS, kept, pointers_of, scaled, workload_of
from penstock.planner.cost.options import shares
from penstock.planner.quantities import ImpossiblePlan
from penstock.storage import LogConfig
from tests.planner.cost.bills import PRICES, bills, inputs

share = st.floats(0, 1)
WORKLOADS = st.builds(
    CostInputs,
    bytes_per_day=st.floats(1e6, 1e17),
    message_bytes=st.integers(1, 1_000_000),
    compression=st.floats(1, 20),
    retention=st.floats(0.01, 1000),
    replication_factor=st.integers(1, 5),
    zones=st.integers(1, 5),
    consumer_groups=st.integers(0, 30),
    rack_aware=st.booleans(),
    peak_factor=st.floats(1, 10),
    headroom=st.floats(0, 3),
    disk_free=st.floats(0, 0.9),
    partitions=st.integers(1, 1_000_000),
    operations_share=st.floats(0, 0.9),
    local_retention=st.floats(0.01, 100),
    commit_interval=st.floats(1, 10_000),
    file_bytes=st.integers(1, 1 << 30),
    pointer_carrier=st.sampled_from(("penstock", "kinesis", "existing")),
    outbox_same_zone=st.booleans(),
    enhanced_fan_out=st.booleans(),
    managed_replication_free=st.booleans(),
    kinesis_record_bytes=st.integers(0, 1_000_000),
)
quick = settings(max_examples=60, deadline=None)
NEARLY = 1 - 1e-9


@quick
@given(WORKLOADS)
def test_no_line_is_negative_and_all_options_are_there(workload: CostInputs) -> None:
    options = all_options(workload, PRICES)
    assert tuple([option.key for option in options]) == OPTIONS
    for option in options:
        names = [line.name for line in option.lines]
        assert len(set(names)) == len(names)
        assert all(line.usd >= 0 and line.formula and line.source for line in option.lines)
        assert option.total_usd == pytest.approx(sum(line.usd for line in option.lines))
        kinds = {line.kind for line in option.lines}
        assert option.total_usd == pytest.approx(sum(option.kind_usd(kind) for kind in kinds))


@quick
@given(WORKLOADS, st.integers(2, 8))
def test_more_bytes_are_never_cheaper(workload: CostInputs, times: int) -> None:
    less, more = bills(workload), bills(scaled(workload, times))
    for key, option in less.items():
        assert more[key].total_usd >= option.total_usd * NEARLY, key


@quick
@given(WORKLOADS, st.floats(1, 100))
def test_longer_retention_is_never_cheaper(workload: CostInputs, times: float) -> None:
    # Intelligent-Tiering stays: data that is kept longer moves to cheaper tiers, but stays paid.
    less, more = bills(workload), bills(kept(workload, workload.retention * times))
    for key, option in less.items():
        assert more[key].total_usd >= option.total_usd * NEARLY, key


@quick
@given(WORKLOADS)
def test_more_copies_are_never_cheaper_where_they_are_paid_for(workload: CostInputs) -> None:
    # With racks, more replicas save consumers their way across zones, and may save more than
    # they cost.
    plain = replace(workload, rack_aware=False)
    less, more = bills(plain), bills(replace(plain, replication_factor=6))
    for key in ("local", "tiered", "msk-provisioned"):
        assert more[key].total_usd > less[key].total_usd, key
    for key in ("diskless", "kinesis-on-demand", "msk-serverless"):
        assert more[key].total_usd == less[key].total_usd, key


@quick
@given(WORKLOADS, st.sampled_from(sorted(PRICES)), st.sampled_from((0.0, 0.5, 2.0)))
def test_a_line_follows_its_price(workload: CostInputs, key: str, factor: float) -> None:
    before, after = bills(workload), bills(workload, PRICES.scaled(key, factor))
    for name, option in before.items():
        for line in option.lines:
            times = factor if line.price_key == key else 1
            if line.kind != "operations":
                assert after[name].line(line.name).usd == pytest.approx(line.usd * times)


@quick
@given(WORKLOADS)
def test_more_compression_and_larger_files_never_cost_more(workload: CostInputs) -> None:
    before = bills(workload)
    small = bills(replace(workload, compression=workload.compression * 2))
    large = bills(replace(workload, file_bytes=workload.file_bytes * 2))
    for key in ("local", "tiered", "msk-provisioned", "msk-express", "msk-serverless", "s3-direct"):
        assert small[key].total_usd <= before[key].total_usd / NEARLY, key
    for key in ("s3-direct", "outbox-efs-elastic", "outbox-fsx-tiering"):
        assert large[key].total_usd <= before[key].total_usd / NEARLY, key


@quick
@given(WORKLOADS)
def test_tiers_are_all_of_it(workload: CostInputs) -> None:
    found = shares(workload)
    assert sum(found) == pytest.approx(1)
    assert all(value >= 0 for value in found)
    if workload.retention <= 30:
        assert found == (1, 0, 0)


def test_tiers_by_age() -> None:
    assert shares(inputs(retention=120)) == pytest.approx((0.25, 0.5, 0.25))
    assert shares(inputs(retention=120, infrequent_share=1)) == pytest.approx((0, 1, 0))
    assert shares(inputs(retention=1, archive_share=0.4)) == pytest.approx((0.6, 0, 0.4))


def test_zones() -> None:
    assert workload_of(inputs(zones=1)).copies_across_zones == 0
    assert workload_of(inputs(zones=2)).copies_across_zones == pytest.approx(4 / 3)
    assert workload_of(inputs(zones=2, replication_factor=2)).copies_across_zones == 1
    assert workload_of(inputs(zones=3)).copies_across_zones == 2
    assert workload_of(inputs(zones=3, replication_factor=1)).copies_across_zones == 0
    assert workload_of(inputs(zones=3)).reads_cross_zone == pytest.approx(2 / 3)
    assert workload_of(inputs(zones=4, rack_aware=True)).reads_cross_zone == 0.25
    assert bills(inputs(zones=1))["local"].kind_usd("cross-zone") == 0
    sent = bills(inputs(writes_cross_zone=0.5, rate=3e6))["local"].line("produce")
    assert sent.usd == pytest.approx(0.5 * 2592 * 0.01)
    outside = bills(inputs(outbox_same_zone=False))["outbox-fsx-ssd"]
    assert outside.kind_usd("cross-zone") > bills(inputs())["outbox-fsx-ssd"].kind_usd("cross-zone")


def test_rate_or_bytes_a_day() -> None:
    assert workload_of(inputs(rate="3MB/s")).bytes_s == 1e6
    assert workload_of(inputs(bytes_per_day="259.2GB")).bytes_s == pytest.approx(1e6)
    assert pointers_of(inputs(rate="3MB/s", file_bytes="100kB")).bytes_s == 2000


def test_diskless_requests_come_from_the_brokers_settings() -> None:
    diskless, log = DisklessSettings(), LogConfig()
    given = inputs()
    assert given.commit_interval == diskless.interval_ms(local=False)
    assert given.object_bytes == diskless.buffer_bytes_max
    assert given.sealed_bytes == diskless.consolidation_segment_bytes
    # 3 brokers close an object each 250 ms, and each is read by the 2 of the other zones.
    few = bills(inputs(rate=30e6, consolidation=False))["diskless"]
    assert few.size("puts_per_second") == 3 / 0.25
    assert few.size("gets_per_second") == 2 * few.size("puts_per_second")
    # Full objects follow bytes.
    full = bills(inputs(rate=3e9, consolidation=False, diskless_broker_rate=100e6))["diskless"]
    assert full.size("object_bytes") == diskless.buffer_bytes_max
    # A message a second is an object a second, however many intervals pass.
    rare = bills(inputs(rate=1000, consolidation=False))["diskless"]
    assert rare.size("puts_per_second") == 1
    # Each zone has a broker for each of 24 partitions: consolidation reads so many extents, and
    # makes a segment of 200.
    small = bills(inputs(rate=30e6))["diskless"]
    assert small.size("extents_per_object") == 24
    assert small.size("gets_per_second") == 12 * (24 + 2)
    assert small.size("puts_per_second") == 12 + 12 * 24 / diskless.consolidation_min_extents
    uploads = bills(inputs(rate=30e6))["tiered"].line("requests")
    assert uploads.usd == pytest.approx(1e7 * 2_592_000 / log.segment_bytes / 1000 * 0.005)


@pytest.mark.parametrize(
    ("given_inputs", "said"),
    [
        ({"rate": 1e6, "bytes_per_day": 5e12}, "set only one of them"),
        ({"zones": 1, "reads_cross_zone": 0.5}, "with one zone, no bytes can cross zones"),
        (
            {"reads_cross_zone": -0.5},
            "to be computed: reads-cross-zone = -0.5",
        ),
        (
            {"archive_share": -0.1},
            "to be computed: archive-share = -0.1",
        ),
        (
            {"archive_share": 0.6, "infrequent_share": 0.6},
            "the sum of infrequent-share",
        ),
    ],
)
def test_contradictions_name_the_rule_and_the_fix(given_inputs: dict[str, Any], said: str) -> None:
    with pytest.raises(ImpossiblePlan, match=said):
        inputs(**given_inputs)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bytes_per_day", 0), ("bytes_per_day", "-1TB"), ("compression", 0.5), ("retention", 0),
        ("replication_factor", 0), ("zones", 0), ("consumer_groups", -1), ("disk_free", 1),
        ("operations_share", 1), ("message_bytes", 0), ("file_bytes", 0), ("headroom", -0.1),
        ("peak_factor", "inf"), ("option", "pigeons"), ("pointer_carrier", "none"),
    ],
)  # fmt: skip
def test_bad_values(name: str, value: Any) -> None:
    with pytest.raises(InvalidSetting, match=name.replace("_", "-")):
        inputs(None, **{name: value})


def test_every_input_is_declared() -> None:
    assert all(field.metadata for field in fields(CostInputs))
