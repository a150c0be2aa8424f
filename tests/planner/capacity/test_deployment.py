"""Settings and measurements reach the figures, and the planner's copies of defaults match them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock.control.rules.diskless import object_key
from penstock.control.values.errors import TOPIC_PARTITIONS_MAX
from penstock.diskless.settings import DisklessSettings
from penstock.objects import FetchSettings
from penstock.planner.calibration import Calibration, Measured
from penstock.planner.capacity import CapacityInputs, Deployment, capacity_plan
from penstock.planner.capacity.inputs import ASSUMED, WAL_PREFIXES
from penstock.planner.results import Plan
from penstock.storage import LogConfig, StorageSettings


def plan(deployment: Deployment | None = None, **inputs: Any) -> Plan:
    return capacity_plan(CapacityInputs(**inputs), deployment)


def subjects(found: Plan) -> dict[str, str]:
    return {finding.subject: finding.severity for finding in found.findings}


def measured(**values: float) -> Deployment:
    rows = {name: Measured(value=value, unit="", how="here") for name, value in values.items()}
    return Deployment(calibration=Calibration(taken_at="now", measured=rows))


def test_defaults_are_those_of_brokers() -> None:
    deployment = Deployment()
    assert deployment.diskless == DisklessSettings()
    assert deployment.fetching == FetchSettings()
    assert deployment.storage == StorageSettings()
    assert deployment.log == LogConfig()
    assert deployment.topic_partitions_max == TOPIC_PARTITIONS_MAX
    found = plan(storage="diskless", producers=1_000, messages_per_second=100_000)
    assert found.value("object_interval_ms") == DisklessSettings().interval_ms(local=False)
    found = plan(storage="diskless", store="directory", producers=1_000)
    assert found.value("object_interval_ms") == DisklessSettings().interval_ms(local=True)


def test_keys_of_objects_are_spread_over_as_many_prefixes_as_assumed() -> None:
    prefixes = {object_key(number, 0).rpartition("/")[0] for number in range(4 * WAL_PREFIXES)}
    assert len(prefixes) == WAL_PREFIXES


def test_formulas_say_what_was_measured_and_what_is_assumed() -> None:
    found = plan()
    assert "261 (assumed: " in found.figure("brokers_by_throughput").formula
    assert "Penstock's benchmarks" in found.figure("brokers_by_throughput").formula
    found = plan(measured(produce_mb_per_s=123))
    formula = found.figure("brokers_by_throughput").formula
    assert "123 (measured on this host: produce_mb_per_s)" in formula
    assert f"{ASSUMED['consume_mb_per_s'].value:g} (assumed: " in formula


@pytest.mark.parametrize(
    ("name", "figure", "inputs"),
    [
        ("produce_mb_per_s", "brokers_by_throughput", {}),
        ("diskless_produce_mb_per_s", "brokers_by_throughput", {"storage": "diskless"}),
        ("consume_mb_per_s", "brokers_by_throughput", {"groups": 20}),
        ("partition_produce_mb_per_s", "partitions_by_produce", {}),
    ],
)
def test_slower_hosts_need_more(name: str, figure: str, inputs: dict[str, Any]) -> None:
    load = {"messages_per_second": 1e6, **inputs}
    assert plan(measured(**{name: 10}), **load).value(figure) > plan(**load).value(figure)


@pytest.mark.parametrize("name", ["produce_cpu_s_per_gb", "consume_cpu_s_per_gb"])
def test_slower_processors_need_more(name: str) -> None:
    found = plan(measured(**{name: 100}), messages_per_second=1e6)
    assert found.value("brokers_by_cores") > plan(messages_per_second=1e6).value("brokers_by_cores")


def test_replicas_cost_what_was_measured_with_three() -> None:
    load: dict[str, Any] = {"messages_per_second": 1e6, "replication": 3}
    usual = plan(**load)
    assert "2.43 (assumed" in usual.figure("brokers_by_cores").formula
    slow = plan(measured(replicated_produce_cpu_s_per_gb=100), **load)
    assert slow.value("brokers_by_cores") > usual.value("brokers_by_cores")


def test_measured_latencies() -> None:
    slow = measured(put_p50_ms=40, put_p99_ms=90, commit_p50_ms=20, commit_p99_ms=30)
    found = plan(slow, storage="diskless", store="directory")
    assert found.value("put_p50_ms") == pytest.approx(40, rel=0.01)
    assert found.value("put_p99_ms") == pytest.approx(90, rel=0.01)
    assert found.value("commit_p99_ms") == pytest.approx(30, rel=0.01)
    remote = plan(slow, storage="diskless")
    assert remote.value("put_p50_ms") == pytest.approx(50, rel=0.01)
    given = plan(slow, storage="diskless", put_p50=7.0, put_p99=9.0, commit_p50=2.0, commit_p99=2.5)
    assert given.value("put_p99_ms") == pytest.approx(9, rel=0.01)
    assert given.value("commit_p50_ms") == pytest.approx(2, rel=0.01)
    assert given.figure("put_p50_ms").formula == "given"
    one = plan(storage="diskless", put_p50=10.0)
    assert one.value("put_p99_ms") == pytest.approx(40, rel=0.01)
    other = plan(storage="diskless", put_p99=400.0)
    assert other.value("put_p50_ms") == pytest.approx(100, rel=0.01)
    nothing = plan(measured(produce_p50_ms=0, produce_p99_ms=0))
    assert nothing.value("produce_p99_ms") < plan().value("produce_p99_ms")


def test_settings_reach_the_figures() -> None:
    load: dict[str, Any] = {"storage": "diskless", "messages_per_second": 1e5, "producers": 50}
    usual = plan(**load)
    longer = plan(Deployment(diskless=DisklessSettings(commit_interval_ms=1_000)), **load)
    assert longer.value("object_puts_per_second") < usual.value("object_puts_per_second")
    assert longer.value("produce_p50_ms") > usual.value("produce_p50_ms")
    off = plan(Deployment(diskless=DisklessSettings(consolidation_interval_ms=0)), **load)
    assert off.value("consolidation_gets_per_second") == off.value("segment_puts_per_second") == 0
    lagging = {**load, "lagging_groups": 1}
    some = plan(Deployment(fetching=FetchSettings(lagging_rate_limit=1)), **lagging)
    assert some.value("replay_gets_per_second") == some.value("brokers")
    small = Deployment(log=LogConfig(segment_bytes=1 << 20))
    assert plan(small).value("disk_slack_bytes") == plan(small).value("partitions") << 20
    journal = replace(StorageSettings(), journal_files_max=2)
    fewer = plan(Deployment(storage=journal)).value("disk_bytes_per_broker")
    assert plan().value("disk_bytes_per_broker") - fewer == 14 * journal.journal_file_bytes


def test_limits_that_are_passed_are_findings() -> None:
    many = plan(partitions=200_000, messages_per_second=1e6)
    assert subjects(many)["partitions of a topic"] == "fail"
    few = plan(partitions=2, messages_per_second=1e6)
    assert subjects(few)["partitions"] == "fail"
    assert subjects(few)["consumer parallelism"] == "fail"
    assert few.failed
    chatty = plan(producers=100_000, messages_per_second=1e6, linger=0, retention=0.1)
    assert subjects(chatty)["produce requests"] == "warn"


README: dict[str, Any] = {"messages_per_second": 50_000, "message_bytes": 1024, "retention": 7}


def test_no_partition_fills_a_disk_while_brokers_idle() -> None:
    """README's own command once planned eight partitions of 3.87 TB on eight of 14 brokers."""
    found = plan(**README)
    assert found.value("partitions") >= found.value("brokers")
    assert found.value("partition_disk_bytes") <= 4e12 * 0.6 / 10
    assert found.value("fullest_disk_bytes") <= 4e12 * 0.6
    assert found.value("idle_brokers") == 0
    assert not {"used space of a disk", "size of a partition", "brokers without partitions"} & set(
        subjects(found)
    )


def test_partitions_too_large_for_disks_and_too_few_for_brokers_are_findings() -> None:
    said = {finding.subject: finding for finding in plan(**README, partitions=8).findings}
    assert said["used space of a disk"].severity == "warn"
    assert "1 of 8 replicas with 3.872 TB" in said["used space of a disk"].cause
    assert "the busiest partition has 3.872 TB" in said["size of a partition"].cause
    assert "8 of 16 brokers have no partition" in said["brokers without partitions"].cause
    assert "16 partitions or more" in said["brokers without partitions"].fix
    assert subjects(plan(**README, partitions=7))["used space of a disk"] == "fail"
    skewed = plan(**README, keys=1_000, hottest_key_share=0.5)
    fixes = {finding.subject: finding.fix for finding in skewed.findings}
    assert fixes["size of a partition"] == "use a key with more distinct values"


def test_settings_too_small_for_the_load_are_findings() -> None:
    load: dict[str, Any] = {
        "storage": "diskless", "messages_per_second": 1e6, "message_bytes": 1_000.0,
        "producers": 100, "put_p50": 500.0, "put_p99": 2_000.0,
    }  # fmt: skip
    tight = DisklessSettings(
        pending_bytes_max=8 << 20, objects_in_flight_max=1, consolidation_bytes_per_second=1 << 20
    )
    found = subjects(plan(Deployment(diskless=tight), **load))
    assert found["diskless.pending.bytes.max"] == "fail"
    assert found["diskless.objects.in.flight.max"] == "fail"
    assert found["diskless.consolidation.bytes.per.second"] == "warn"
    assert found["diskless.commit.interval.ms"] == "warn"
    quick = DisklessSettings(commit_interval_ms=1, consolidation_interval_ms=0)
    busy: dict[str, Any] = {
        "storage": "diskless", "store": "directory", "messages_per_second": 1e6,
        "message_bytes": 20_000.0, "producers": 10_000, "put_p50": 0.1, "put_p99": 0.2,
        "commit_p50": 0.1, "commit_p99": 0.2,
    }  # fmt: skip
    assert subjects(plan(Deployment(diskless=quick), **busy))["PUT rate"] == "warn"


def test_findings_explain_replicas() -> None:
    assert subjects(plan(replication=1))["one replica"] == "warn"
    assert subjects(plan(replication=2))["two replicas"] == "warn"
    assert subjects(plan(replication=3))["replication"] == "note"
    assert "two replicas" not in subjects(plan(replication=3))
    assert subjects(plan(storage="tiered"))["tiered storage"] == "note"
    assert subjects(plan(replication=3, storage="diskless"))["replication"] == "note"
    assert plan(replication=3, storage="diskless").value("replicated_bytes_per_second") == 5e6
    assert "one replica" not in subjects(plan(storage="diskless"))
