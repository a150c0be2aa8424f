"""Core of sinks: decisions as a table, sequences by brute force, and histories with crashes."""

from __future__ import annotations

from itertools import count
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.errors import BugError
from penstock.broker.batch_commits.commit import (
    Decision,
    appended_records,
    continued,
    decide,
    key_of,
    plan_targets,
    renewed,
    runs_to_verify,
    schedule,
)
from penstock.broker.batch_commits.manifest import (
    TARGET_RECORDS_MAX,
    Blob,
    Manifest,
    Section,
    TargetBehind,
    TopicIdPartition,
)
from penstock.control import SinkCommit, SinkState, SinkTarget

T = UUID(int=1)
GONE = UUID(int=2)
MODULUS = 2**31


def row(batch_id: int, state: SinkState, owner: str | None = "a", **more: object) -> SinkCommit:
    return SinkCommit(query_id="q", owner=owner, batch_id=batch_id, state=state, **more)  # type: ignore[arg-type]


def target(base: int = 0, records: int = 10, partition: int = 0, **more: object) -> SinkTarget:
    values = {"topic": "t", "topic_id": T, "producer_id": 9, **more}
    return SinkTarget(base_sequence=base, records=records, partition=partition, **values)  # type: ignore[arg-type]


def manifest(*blobs: list[tuple[int, int]]) -> Manifest:
    """Make blobs of (partition, records); a record has 100 bytes."""
    made = []
    for number, sections in enumerate(blobs):
        position = 0
        entries = []
        for partition, records in sections:
            entries.append(
                Section(
                    topic="t",
                    topic_id=T,
                    partition=partition,
                    position=position,
                    size_bytes=100 * records,
                    records=records,
                )
            )
            position += 100 * records
        made.append(Blob(name=f"b{number}", size_bytes=position, sections=tuple(entries)))
    return Manifest(blobs=tuple(made))


DECISIONS = [
    # (row, owner, batch, decision)
    (None, "a", 0, Decision.BEGIN),
    (None, None, 2**63 - 1, Decision.BEGIN),
    (row(5, "done"), "a", 4, Decision.REPLAYED),
    (row(5, "done"), "a", 5, Decision.REPLAYED),
    (row(5, "done"), "a", 6, Decision.BEGIN),
    (row(5, "done"), "a", 900, Decision.BEGIN),
    (row(5, "intent"), "a", 4, Decision.REPLAYED),
    (row(5, "intent"), "a", 5, Decision.FINISH),
    (row(5, "intent"), "a", 6, Decision.FINISH),
    (row(5, "done"), "b", 4, Decision.OWNER_CHANGED),
    (row(5, "done"), "b", 6, Decision.OWNER_CHANGED),
    (row(5, "intent"), "b", 5, Decision.OWNER_CHANGED),
    (row(5, "done"), None, 6, Decision.BEGIN),
    (row(5, "done", None), "b", 6, Decision.BEGIN),
    (row(5, "intent", None), None, 5, Decision.FINISH),
]


@pytest.mark.parametrize(("known", "owner", "batch", "decision"), DECISIONS)
def test_decisions(
    known: SinkCommit | None, owner: str | None, batch: int, decision: Decision
) -> None:
    assert decide(known, batch_id=batch, owner=owner) is decision


@given(st.integers(0, MODULUS - 1), st.integers(1, TARGET_RECORDS_MAX), st.data())
def test_the_last_sequence_shows_the_appended_records(
    base: int, records: int, data: st.DataObject
) -> None:
    there = data.draw(st.one_of(st.just(0), st.just(records), st.integers(0, records)))
    last = (base + there - 1) % MODULUS
    assert appended_records(target(base, records), last) == there


@given(st.integers(0, MODULUS - 1), st.integers(1, TARGET_RECORDS_MAX), st.data())
def test_a_log_that_lost_its_end_is_behind(base: int, records: int, data: st.DataObject) -> None:
    missing = data.draw(
        st.integers(1, MODULUS - records - 1).filter(lambda n: n <= TARGET_RECORDS_MAX)
    )
    with pytest.raises(TargetBehind):
        appended_records(target(base, records), (base - 1 - missing) % MODULUS)


def test_an_unknown_producer_has_written_nothing() -> None:
    assert appended_records(target(77, 5), None) == 0


def test_a_producer_beyond_its_commit_is_a_fault() -> None:
    with pytest.raises(BugError, match="beyond the 5 records"):
        appended_records(target(0, 5), 5)


def test_producers_continue_where_the_row_ended() -> None:
    known = row(1, "done", targets=(target(MODULUS - 3, 5), target(7, 0, 1), target(40, 2, 2)))
    posted = manifest([(0, 4), (1, 1)], [(2, 1), (3, 6), (0, 2)])
    lasts: dict[TopicIdPartition, int | None] = {
        TopicIdPartition(T, 0): 1,  # where the row says
        TopicIdPartition(T, 1): None,  # expired
        TopicIdPartition(T, 2): 40,  # one record was lost
    }
    continuing = continued(known, posted, lasts)
    assert sorted(key.partition for key in continuing) == [0, 1]
    planned = plan_targets(
        known, posted, continuing=continuing, new_producers=count(100), topic_ids=frozenset([T])
    )
    assert [
        (lane.partition, lane.producer_id, lane.base_sequence, lane.records) for lane in planned
    ] == [
        (0, 9, 2, 6),
        (1, 9, 7, 1),
        (2, 100, 0, 1),
        (3, 101, 0, 6),
    ]


def test_idle_producers_are_kept_while_their_topic_exists() -> None:
    gone = target(3, 3, topic_id=GONE)
    rests = target(5, 5, 8, base_offset=1, next_offset=6)
    known = row(1, "done", targets=(gone, rests))
    posted = manifest([(0, 1)])
    planned = plan_targets(
        known, posted, continuing={}, new_producers=count(50), topic_ids=frozenset([T])
    )
    assert planned == (target(0, 1, 0, producer_id=50), target(10, 0, 8))


def test_a_dropped_target_gets_a_new_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.broker.batch_commits.commit.SINK_TARGETS_MAX", 2)
    known = row(1, "done", targets=tuple(target(5, 5, n) for n in range(4)))
    planned = plan_targets(
        known, manifest([(9, 1)]), continuing={}, new_producers=count(50), topic_ids=frozenset([T])
    )
    assert [lane.partition for lane in planned] == [9, 0]


def test_renewed_producers_start_at_sequence_zero() -> None:
    targets = (target(5, 5, 0), target(6, 6, 1))
    assert renewed(targets, frozenset([TopicIdPartition(T, 1)]), count(70)) == (
        targets[0],
        target(0, 6, 1, producer_id=70),
    )


def test_every_section_is_verified() -> None:
    runs = runs_to_verify(manifest([(0, 4), (1, 1)], [(0, 2)]))
    assert [(run.blob, run.position, run.end, run.records, run.skip) for run in runs] == [
        ("b0", 0, 400, 4, 0),
        ("b0", 400, 500, 1, 0),
        ("b1", 0, 200, 2, 0),
    ]


sections = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), min_size=1, max_size=5)


@given(st.lists(sections, max_size=5), st.integers(0, MODULUS - 1), st.data())
def test_any_number_of_interrupted_attempts_make_one_log(
    blobs: list[list[tuple[int, int]]], base: int, data: st.DataObject
) -> None:
    """Each attempt appends part of the schedule: every record is appended once."""
    posted = manifest(*blobs)
    targets = tuple(
        target(base, records, key.partition) for key, (_, records) in posted.targets().items()
    )
    logs: dict[TopicIdPartition, list[int]] = {key_of(lane): [] for lane in targets}
    for last_attempt in (False, False, True):
        lasts = {key: log[-1] if log else None for key, log in logs.items()}
        appended = {key_of(lane): appended_records(lane, lasts[key_of(lane)]) for lane in targets}
        runs = schedule(posted, targets, appended)
        cut = len(runs) if last_attempt else data.draw(st.integers(0, len(runs)))
        for place, run in enumerate(runs[: cut + 1]):
            rest = run.records - run.skip
            take = rest if place < cut else data.draw(st.integers(0, rest))
            first = run.base_sequence + run.skip
            logs[run.target] += [(first + n) % MODULUS for n in range(take)]
    assert logs == {
        key_of(lane): [(base + n) % MODULUS for n in range(lane.records)] for lane in targets
    }
    assert schedule(posted, targets, {key_of(lane): lane.records for lane in targets}) == []


def test_a_partition_that_takes_no_appends_is_left_out() -> None:
    posted = manifest([(0, 4), (1, 1)], [(0, 2), (1, 3)])
    targets = (target(0, 6, 0), target(0, 4, 1))
    runs = schedule(posted, targets, {TopicIdPartition(T, 1): 2})
    assert [(run.blob, run.target.partition, run.skip, run.base_sequence) for run in runs] == [
        ("b1", 1, 1, 1)
    ]
