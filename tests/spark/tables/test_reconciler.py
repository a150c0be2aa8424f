"""The materialiser's decisions, state by state, without Spark or a broker."""

from __future__ import annotations

import dataclasses

import pytest

from penstock.spark.errors import InvalidOption
from penstock.spark.tables.reconciler import (
    Changes,
    TableReconciler,
    WantedTable,
    location_of,
)


def wanted(*topics: str, **more: object) -> dict[str, WantedTable]:
    return {
        topic: WantedTable(
            **{"topic": topic, "topic_id": f"id-{topic}", "location": f"/lake/{topic}",
               "commit_interval_ms": 1_000, "partitions": (0,)} | more  # type: ignore[arg-type]
        )
        for topic in topics
    }  # fmt: skip


def names(changes: Changes) -> tuple[list[str], list[str]]:
    return list(changes.stop), [table.topic for table in changes.start]


def test_queries_follow_the_wish() -> None:
    kept = TableReconciler()
    assert names(kept.changes(wanted("b", "a"), 0)) == ([], ["a", "b"])
    assert names(kept.changes(wanted("b", "a"), 1)) == ([], [])
    assert names(kept.changes(wanted("b", "c"), 2)) == (["a"], ["c"])
    assert sorted(kept.states) == ["b", "c"]


@pytest.mark.parametrize("field", ["topic_id", "location", "commit_interval_ms"])
def test_a_changed_table_is_restarted(field: str) -> None:
    kept = TableReconciler()
    kept.changes(wanted("a"), 0)
    new: object = 9 if field == "commit_interval_ms" else "/other"
    assert names(kept.changes(wanted("a", **{field: new}), 1)) == (["a"], ["a"])


def test_more_partitions_change_nothing() -> None:
    kept = TableReconciler()
    kept.changes(wanted("a"), 0)
    assert names(kept.changes(wanted("a", partitions=(0, 1)), 1)) == ([], [])


def test_a_failure_is_tried_again_after_a_growing_pause() -> None:
    kept = TableReconciler()
    now, pauses = 0.0, []
    for _ in range(10):
        assert names(kept.changes(wanted("a"), now)) == ([], ["a"])
        kept.failed("a", "disk full", by_hand=False, now=now)
        pause = kept.states["a"].retry_at - now
        assert names(kept.changes(wanted("a"), now + pause - 0.01)) == ([], [])
        pauses.append(pause)
        now += pause
    assert pauses[:3] == [2, 4, 8]
    assert pauses == sorted(pauses)
    assert pauses[-1] == 120
    kept.changes(wanted("a"), now)
    kept.worked("a")
    assert (kept.states["a"].failures, kept.states["a"].problem) == (0, None)


def test_what_is_mended_by_hand_waits_for_a_change() -> None:
    kept = TableReconciler()
    kept.changes(wanted("a", "b"), 0)
    kept.failed("a", "made anew", by_hand=True, now=0)
    assert kept.states["a"].phase == "stopped"
    assert names(kept.changes(wanted("a", "b"), 1e9)) == ([], [])
    assert names(kept.changes(wanted("a", location="/new"), 1e9)) == (["b"], ["a"])


def test_topics_beyond_the_limit_wait_with_a_reason() -> None:
    kept = TableReconciler(tables_max=2)
    assert names(kept.changes(wanted("b", "c"), 0)) == ([], ["b", "c"])
    assert names(kept.changes(wanted("a", "b", "c"), 1)) == ([], [])
    assert kept.states["a"].phase == "waiting"
    assert "maintains 2 tables" in (kept.states["a"].problem or "")
    kept.failed("b", "disk full", by_hand=False, now=1)  # keeps its place
    assert names(kept.changes(wanted("a", "b", "c"), 100)) == ([], ["b"])
    kept.done("c")
    assert names(kept.changes(wanted("a", "b", "c"), 101)) == ([], ["a"])


def test_a_place_has_one_topic() -> None:
    kept = TableReconciler()
    both = wanted("a", "b", location="/lake/x")
    assert names(kept.changes(both, 0)) == ([], ["a"])
    assert kept.states["b"].phase == "blocked"
    assert "topic a already uses" in (kept.states["b"].problem or "")
    assert names(kept.changes({"b": both["b"]}, 1)) == (["a"], ["b"])


def test_an_impossible_table_is_reported_once() -> None:
    kept = TableReconciler()
    bad = {"a": dataclasses.replace(wanted("a")["a"], problem="must be absolute")}
    assert names(kept.changes(bad, 0)) == ([], [])
    assert (kept.states["a"].phase, kept.states["a"].problem) == ("stopped", "must be absolute")
    assert names(kept.changes(wanted("a"), 1)) == ([], ["a"])


def test_places() -> None:
    assert location_of("/lake/", "a", "") == "/lake/a"
    assert location_of("s3://b/lake", "a", "") == "s3://b/lake/a"
    assert location_of("/lake", "a", "/x/y/") == "/x/y"
    assert location_of("/lake", "a", "s3://b/x") == "s3://b/x"
    with pytest.raises(InvalidOption, match="absolute path or a URI"):
        location_of("/lake", "a", "x/y")
