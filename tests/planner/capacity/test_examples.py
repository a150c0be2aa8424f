"""Worked examples of the literature, with their numbers."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.planner.capacity import CapacityInputs, capacity_plan
from penstock.planner.results import Plan


def plan(**inputs: Any) -> Plan:
    return capacity_plan(CapacityInputs(**inputs))


def severities(found: Plan) -> dict[str, str]:
    return {finding.subject: finding.severity for finding in found.findings}


def test_a_small_team_writes_5_mb_s_and_keeps_9_tb() -> None:
    found = plan(messages_per_second=10_000, message_bytes=500, replication=3, zones=3)
    assert found.value("write_bytes_per_second") == 5e6
    assert found.value("replicated_bytes_per_second") == 15e6
    assert found.value("disk_bytes") == pytest.approx(9e12, rel=0.01)
    assert found.value("brokers_by_replicas_and_zones") == 3
    assert found.value("brokers_by_throughput") == 1
    assert severities(found)["operations"] == "note"
    assert (
        "no technical limit"
        in {finding.subject: finding.cause for finding in found.findings}["nearest scale"]
    )


def test_a_mid_scale_event_bus_sends_3_5_gb_s() -> None:
    found = plan(
        messages_per_second=1_000_000, message_bytes=500, replication=3, groups=5, zones=3,
        retention=30, storage="tiered", local_retention=1,
    )  # fmt: skip
    assert found.value("write_bytes_per_second") == 500e6
    assert found.value("replicated_bytes_per_second") == 1.5e9
    sent = found.value("network_out_bytes_per_second")
    uploaded = found.value("write_bytes_per_second")
    assert sent - uploaded == 3.5e9
    assert (
        "15 to 30 brokers"
        in {finding.subject: finding.cause for finding in found.findings}["nearest scale"]
    )


def test_seven_trillion_messages_a_day_are_49_pb() -> None:
    found = plan(
        messages_per_second=7e12 / 86_400, message_bytes=1_000, retention=7, replication=3,
        compression_ratio=3, headroom=0,
    )  # fmt: skip
    assert found.value("disk_bytes") == pytest.approx(49e15, rel=1e-9)
    assert found.value("messages_per_second") == pytest.approx(81e6, rel=0.01)
    assert found.value("brokers_by_disk") > 10_000
    found = plan(messages_per_second=7e12 / 86_400, message_bytes=1_000, compression_ratio=3,
                 replication=3, zones=3, broker_disk=20e12, consumer_rate=1e9)  # fmt: skip
    assert found.value("first_bottleneck") == "disk"


def test_500_mb_s_three_times_replicated_cross_zones_with_2_6_pb_a_month() -> None:
    found = plan(messages_per_second=1_000_000, message_bytes=500, replication=3, zones=3)
    assert found.value("cross_zone_replication_bytes_per_second") == pytest.approx(1e9)
    month = found.value("cross_zone_replication_bytes_per_month")
    assert month == pytest.approx(2.6e15, rel=0.01)
    assert month / 1e9 * 0.01 == pytest.approx(26_000, rel=0.01)
    fetched = found.value("cross_zone_fetch_bytes_per_second")
    aware = plan(messages_per_second=1e6, message_bytes=500, replication=3, zones=3,
                 zone_aware=True)  # fmt: skip
    assert aware.value("cross_zone_fetch_bytes_per_second") <= fetched / 2


def test_a_day_of_seven_on_local_disks_moves_85_percent() -> None:
    found = plan(storage="tiered", retention=7, local_retention=1, replication=3)
    assert found.value("store_share") == pytest.approx(0.857, abs=0.001)
    whole = plan(storage="local", retention=7, replication=3)
    assert found.value("disk_bytes") == pytest.approx(whole.value("disk_bytes") / 7)
    assert found.value("store_bytes") == pytest.approx(6 * found.value("daily_bytes"))


def test_growth_without_skew_is_fine_on_32_partitions() -> None:
    found = plan(messages_per_second=10_000, partitions=32, groups=1)
    assert found.value("mean_partition_messages_per_second") == 312.5
    assert found.value("hottest_partition_messages_per_second") == pytest.approx(312.5)
    grown = plan(messages_per_second=10_000, peak_factor=10, partitions=32)
    assert grown.value("hottest_partition_messages_per_second") == pytest.approx(3_125)
    assert severities(grown)["growth of type 1 (uniform)"] == "ok"


def test_half_of_the_messages_on_one_percent_of_the_keys_is_one_partition_with_50k() -> None:
    skewed = {"keys": 100, "top_percent_share": 0.5, "peak_factor": 10.0}
    found = plan(messages_per_second=10_000, partitions=32, **skewed)
    assert found.value("hottest_key_messages_per_second") == pytest.approx(50_000, rel=0.001)
    hottest = found.value("hottest_partition_messages_per_second")
    assert hottest == pytest.approx(50_000 + 50_000 / 32, rel=0.001)
    assert severities(found)["growth of type 2 (hot spot)"] == "fail"
    fix = {finding.subject: finding.fix for finding in found.findings}[
        "growth of type 2 (hot spot)"
    ]
    assert "split the busiest key into 2 salted keys" in fix
    more = plan(messages_per_second=10_000, partitions=3_200, **skewed)
    assert more.value("hottest_partition_messages_per_second") >= 50_000


def test_one_of_many_vehicles_that_sends_a_thousand_times_as_much() -> None:
    """256 partitions, one with 50K, the others with hundreds."""
    total = 50_000 + 255 * 300
    found = plan(messages_per_second=total, partitions=256, keys=1_000_000,
                 hottest_key_share=50_000 / total)  # fmt: skip
    assert found.value("hottest_key_messages_per_second") == pytest.approx(50_000)
    assert found.value("hottest_partition_messages_per_second") == pytest.approx(50_300, rel=0.01)
    assert found.value("mean_partition_messages_per_second") < 500


def test_a_hundred_of_a_million_keys_may_have_half_of_the_messages() -> None:
    """A steep power law: the busiest key alone then has a tenth."""
    found = plan(messages_per_second=100_000, keys=1_000_000, zipf_exponent=1.0, partitions=64)
    assert found.value("hottest_key_messages_per_second") == pytest.approx(6_950, rel=0.01)
    assert found.value("hottest_partition_messages_per_second") > 6_950


def test_a_thousand_partitions_multiply_producer_memory() -> None:
    """A batch of 16 KB for each of 1,000 partitions is 16 MB; were batches 16 MB, it were 16 GB."""
    found = plan(partitions=1_000, batch_bytes=16_000)
    assert found.value("producer_batches_bytes") == 16e6
    large = plan(partitions=1_000, batch_bytes=16_000_000)
    assert large.value("producer_batches_bytes") == 16e9
    assert large.figure("producer_memory_bytes").minimum == 16e9
    assert found.value("producer_memory_bytes") == 32 << 20


def test_a_consumer_group_of_a_stream_of_row_changes() -> None:
    """1M row changes a second are 5 to 20 consumers of 50K to 200K, without headroom."""
    found = plan(messages_per_second=1e6, consumer_rate=200_000, headroom=0)
    assert found.value("consumers_per_group") == 5
    found = plan(messages_per_second=1e6, consumer_rate=50_000, headroom=0, retention=0.5)
    assert found.value("consumers_per_group") == 20
    assert found.figure("partitions").minimum == 20
    assert found.value("partitions") == 96
    slow = plan(messages_per_second=1_000, message_work=10, headroom=0)
    assert slow.value("consumers_per_group") == 10


def test_object_stores_answer_after_200_to_500_ms_at_the_99th_percentile() -> None:
    found = plan(storage="diskless", messages_per_second=1e6, message_bytes=1_000, producers=100,
                 linger=20)  # fmt: skip
    assert 200 <= found.value("produce_p99_ms") <= 500
    local = plan(storage="local", messages_per_second=10_000, replication=3, linger=0)
    assert local.value("produce_p99_ms") <= 15


def test_a_second_of_batching_keeps_puts_below_one_prefix() -> None:
    found = plan(storage="diskless", messages_per_second=1e6, message_bytes=1_000, producers=100)
    assert found.value("prefix_share") < 1
    assert found.value("store_puts_per_month") > 0


def test_inflection_points() -> None:
    found = plan(messages_per_second=20e6, message_bytes=500, replication=3, groups=3, regions=2,
                 growth_per_year=10, retention=7)  # fmt: skip
    said = severities(found)
    assert said["partition metadata"] == "note"
    assert said["size of the cluster"] == "warn"
    assert said["growth of storage"] == "warn"
    assert said["regions"] == "warn"
    small = severities(plan(messages_per_second=10_000, replication=3))
    for subject in ("partition metadata", "size of the cluster", "growth of storage", "regions"):
        assert subject not in small
