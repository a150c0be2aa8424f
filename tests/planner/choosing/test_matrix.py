"""Every row and threshold of the decision matrix, and every use case, with its recommendation."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.planner.choosing import Workload, judge, plan_choice

DAY = 86_400.0


def workload(rate: float, **answers: Any) -> Workload:
    return Workload(messages_per_second=rate, **answers)


CALL = {"reply": True, "consumer_down": False, "latency_ms": 40.0}
LOCAL = {"same_host": True, "consumer_down": False, "latency_ms": 5.0}
# 100 TB a day: 700 MB/s of events that live for a minute and a half.
TRANSITIONAL = {
    "message_bytes": 1000,
    "lifetime_s": 90.0,
    "shared_files": True,
    "latency_ms": 10_000.0,
}

ROWS: list[tuple[str, Workload, tuple[str, ...]]] = [
    # the matrix, row by row
    ("log: fan-out", workload(20_000, consumers=2), ("log",)),
    ("log: replay", workload(20_000, replay=True), ("log",)),
    ("log: throughput", workload(50_001), ("log",)),
    ("queue: modest rate, acked is gone", workload(50_000), ("queue",)),
    ("queue: rich semantics", workload(20_000, semantics=True), ("queue",)),
    ("queue: request and reply while down", workload(20_000, reply=True), ("queue",)),
    ("table: small, single, database there", workload(999, database="there"), ("db-outbox",)),
    ("table: no database", workload(999), ("queue",)),
    ("rpc: value needed in 50 ms", workload(5_000, **CALL), ("rpc",)),
    ("workflow: days, people, timers", workload(1, steps=6, waits=True), ("workflow",)),
    ("workflow: steps undone together", workload(1, steps=6), ("workflow",)),
    ("processor: windows", workload(100_000, stateful=True), ("log", "stream-processor")),
    # the thresholds below it
    ("outbox is cheaper", workload(999, database="transaction"), ("db-outbox",)),
    ("multi-consumer", workload(999, consumers=2, database="transaction"), ("log",)),
    ("queue or rpc: no response needed", workload(5_000, consumer_down=False), ("queue",)),
    ("queue or rpc: response", workload(5_000, reply=True, consumer_down=False), ("rpc",)),
    # why a table is no queue
    ("a million a second, five groups", workload(1e6, consumers=5, database="there"), ("log",)),
    ("small webhook queue", workload(100, database="there"), ("db-outbox",)),
    # what queues and logs are for, and the design space
    ("50/s with priorities and reply-to", workload(50, semantics=True, reply=True), ("queue",)),
    ("50/s with priorities, a database", workload(50, semantics=True, database="there"),
     ("db-outbox",)),
    ("payments outbox at 5K events/s", workload(5_000, database="transaction"), ("queue",)),
    ("click-stream at 5M events/s", workload(5e6, ordering="key"), ("log",)),
    # the gallery
    ("event sourcing in payments",
     workload(5_000, consumers=4, replay=True, ordering="key", database="transaction"), ("log",)),
    ("real-time analytics of clicks",
     workload(5e6, consumers=2, latency_ms=900.0, ordering="key", stateful=True),
     ("log", "stream-processor")),
    ("change data capture to three sinks",
     workload(1e6, consumers=3, replay=True, ordering="key", database="transaction"), ("log",)),
    ("booking events between services", workload(50_000, consumers=5), ("log",)),
    ("telemetry of a fleet", workload(1e6, consumers=3, bursts=True, ordering="key"), ("log",)),
    ("log shipping from the edge",
     workload(1e12 / DAY, consumers=3, latency_ms=100.0, lifetime_s=30 * DAY), ("log",)),
    # the other two articles
    ("100 TB a day of transitional data", workload(700_000, **TRANSITIONAL), ("file-outbox",)),
    ("containers on one host", workload(100_000, **LOCAL), ("host-socket",)),
]  # fmt: skip


@pytest.mark.parametrize(("given", "expected"), [row[1:] for row in ROWS], ids=[r[0] for r in ROWS])
def test_recommendation(given: Workload, expected: tuple[str, ...]) -> None:
    assert judge(given).recommended == expected


NOT = [
    # the matrix: when not to pick
    ("log", "sub-millisecond", workload(1e6, latency_ms=0.9)),
    ("log", "too small", workload(999)),
    ("log", "global order", workload(50_001, ordering="global")),
    ("log", "global order of many bytes", workload(20_000, ordering="global", message_bytes=5_001)),
    ("queue", "throughput", workload(50_001)),
    ("queue", "fan-out", workload(10, consumers=2)),
    ("queue", "replay", workload(10, replay=True)),
    ("db-outbox", "fan-out", workload(10, consumers=2)),
    ("db-outbox", "throughput", workload(10_001, database="there")),
    ("db-outbox", "replay", workload(10, replay=True)),
    ("rpc", "fire and forget", workload(10)),
    ("rpc", "fan-out", workload(10, consumers=2, **CALL)),
    ("rpc", "bursts", workload(10, bursts=True, **CALL)),
    ("rpc", "absent consumers", workload(10, reply=True)),
    ("workflow", "simple fan-out", workload(10, consumers=2)),
    ("workflow", "sub-second steps", workload(10, steps=5, latency_ms=999.0)),
    ("stream-processor", "stateless", workload(10)),
    # the filesystem outbox: when it is wrong
    ("file-outbox", "small traffic", workload(10, shared_files=True)),
    ("file-outbox", "no shared file system", workload(700_000, lifetime_s=90.0)),
    ("file-outbox", "per-event latency",
     workload(700_000, **{**TRANSITIONAL, "latency_ms": 9.9})),
    ("file-outbox", "replay", workload(700_000, replay=True, **TRANSITIONAL)),
    ("file-outbox", "stateful computation", workload(700_000, stateful=True, **TRANSITIONAL)),
    # the host socket: when it is wrong
    ("host-socket", "other hosts", workload(1_000, **{**LOCAL, "same_host": False})),
    ("host-socket", "sub-microsecond", workload(1_000, **{**LOCAL, "latency_ms": 0.00025})),
    ("host-socket", "absent consumers", workload(1_000, same_host=True)),
    # the other side of a threshold speaks no more
    ("queue", "quick replies", workload(10, reply=True, latency_ms=49.0)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("candidate", "subject", "given"), NOT, ids=[f"{c}: {s}" for c, s, _ in NOT]
)
def test_not_to_pick(candidate: str, subject: str, given: Workload) -> None:
    verdict = judge(given).verdicts[candidate]
    assert verdict.fit == "does not fit"
    assert subject in [reason.rule.subject for reason in verdict.of("against")]


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (ROWS[22][1], "outbox_table_and_broker"),
        (ROWS[23][1], "log_and_stream_processor"),
        (workload(700_000, **TRANSITIONAL), "file_outbox_and_pointers"),
        (workload(1e6, consumers=2, same_host=True), "host_socket_and_log"),
        (workload(10, consumers=2, **CALL), "rpc_and_log"),
        (workload(10, consumers=2, steps=3), "workflow_and_log"),
        (workload(2e6, shared_files=True, replay=True), "log_and_file_outbox"),
    ],
)
def test_usual_combinations(given: Workload, name: str) -> None:
    assert plan_choice(given).figure(name).label == "usual combination"


def test_reasons_contain_the_thresholds() -> None:
    plan = plan_choice(workload(60_000, consumers=3))
    assert plan.title == "recommended for this workload: distributed log"
    fan_out = plan.figure("log_fan_out")
    assert fan_out.formula == "consumers ≥ 2"
    assert "consumers 3 ≥ 2" in str(fan_out.value)
    assert fan_out.source == "log and queue article: thresholds below the decision matrix"
    against = plan.figure("queue_throughput")
    assert "rate 60,000 messages/s > 50,000 messages/s" in str(against.value)
    assert against.group == "queue: does not fit"
    assert plan.value("log_part").startswith("the log: `penstock serve`")


def test_missing_parts_are_reported() -> None:
    plan = plan_choice(workload(100, database="there"))
    (finding,) = [finding for finding in plan.findings if finding.subject == "outbox table"]
    assert finding.severity == "note"
    assert "not there yet" in finding.cause
    assert "is planned" in str(plan.value("db_outbox_part"))


def test_a_queue_names_share_groups_as_the_part_of_penstock() -> None:
    plan = plan_choice(workload(20_000))
    assert plan.title == "recommended for this workload: queue"
    assert "share groups" in str(plan.value("queue_part"))
    assert not [finding for finding in plan.findings if finding.subject == "queue"]


def test_caveats_are_warnings() -> None:
    plan = plan_choice(workload(100_000, message_bytes=2 << 20, replay=True))
    (finding,) = [finding for finding in plan.findings if finding.severity == "warn"]
    assert finding.subject == "distributed log: large messages"


def test_nothing_fits() -> None:
    # A value within 50 ms from one who may be down: each of the three can be given up.
    plan = plan_choice(workload(5_000, reply=True, latency_ms=40.0))
    assert plan.failed
    assert plan.value("recommendation") == "nothing fits"
    changes = {
        figure.label: figure.value
        for figure in plan.figures
        if figure.group == "single answers that would change the recommendation"
    }
    assert changes == {
        "latency: at least 50 ms": "queue",
        "reply: no": "queue",
        "consumer-down: no": "synchronous RPC",
    }
