"""Topologies with the topics of a cluster: partition counts, missing and wrong topics."""

from __future__ import annotations

import pytest
from sim.consumer_groups.world import topic

from penstock.broker.groups.streams import InternalTopic, Status, Subtopology, Topology
from penstock.broker.groups.streams.topology import (
    REGEXES_MAX,
    TASKS_MAX,
    Configured,
    configure,
    matches,
    refuse_regexes,
    refuse_topology,
)
from penstock.control import Topic


def cluster(**counts: int) -> dict[str, Topic]:
    return {name: topic(name, count, number) for number, (name, count) in enumerate(counts.items())}


def configured(topics: dict[str, Topic], *subtopologies: Subtopology) -> Configured:
    topology = Topology(epoch=0, subtopologies=subtopologies)
    return configure(topology, matches(topology, topics), topics)


COUNT = (
    Subtopology(subtopology_id="0", source_topics=("lines",), repartition_sinks=("words",)),
    Subtopology(
        subtopology_id="1",
        repartition_sources=(InternalTopic(name="words"),),
        changelogs=(InternalTopic(name="counts", configs=(("cleanup.policy", "compact"),)),),
    ),
)


def test_internal_topics_get_the_partition_counts_of_their_sources() -> None:
    found = configured(cluster(lines=3), *COUNT)
    assert found.status is Status.MISSING_INTERNAL_TOPICS
    assert [(t.name, t.partitions, t.replication_factor, t.configs) for t in found.missing] == [
        ("counts", 3, -1, (("cleanup.policy", "compact"),)),
        ("words", 3, -1, ()),
    ]
    assert found.tasks == {}
    complete = configured(cluster(lines=3, words=3, counts=3), *COUNT)
    assert (complete.status, complete.tasks) == (None, {"0": 3, "1": 3})
    assert complete.stateful == {"1"}


def test_a_missing_source_topic_or_match_is_named() -> None:
    missing = configured(cluster(other=1), *COUNT)
    assert missing.status is Status.MISSING_SOURCE_TOPICS
    assert "lines" in missing.detail
    pattern = Subtopology(subtopology_id="0", source_regexes=("in-.*",))
    unmatched = configured(cluster(other=1), pattern)
    assert unmatched.status is Status.MISSING_SOURCE_TOPICS
    assert "in-.*" in unmatched.detail


def test_an_expression_reads_all_matching_topics_but_no_internal_ones() -> None:
    pattern = Subtopology(
        subtopology_id="0",
        source_regexes=("t.*",),
        changelogs=(InternalTopic(name="t-changelog"),),
    )
    topics = {"t-1": topic("t-1", 2, 1), "t-2": topic("t-2", 5, 2)}
    topics["t-changelog"] = topic("t-changelog", 5, 3)
    assert configured(topics, pattern).sources == {"0": ("t-1", "t-2")}
    assert configured(topics, pattern).tasks == {"0": 5}


def test_an_internal_topic_with_another_partition_count_is_named() -> None:
    found = configured(cluster(lines=3, words=2, counts=3), *COUNT)
    assert found.status is Status.INCORRECTLY_PARTITIONED_TOPICS
    assert found.detail == (
        "Existing topic words has different number of partitions: expected 3, found 2"
    )


def _join(*group: str, **repartition: int) -> Subtopology:
    return Subtopology(
        subtopology_id="1",
        source_topics=tuple(name for name in group if name not in repartition),
        repartition_sources=tuple(
            InternalTopic(name=name, partitions=count) for name, count in repartition.items()
        ),
        copartition_groups=(group,),
    )


def test_copartitioned_topics_have_the_same_partition_count() -> None:
    wrong = configured(cluster(left=3, right=4), _join("left", "right"))
    assert wrong.status is Status.INCORRECTLY_PARTITIONED_TOPICS
    assert "left (3), right (4)" in wrong.detail
    writer = Subtopology(subtopology_id="0", source_topics=("a",), repartition_sinks=("r", "q"))
    coerced = configured(cluster(a=7, left=3), writer, _join("left", "r", r=0))
    assert coerced.counts["r"] == 3
    fixed = configured(cluster(a=7, left=3), writer, _join("left", "r", r=5))
    assert "left (3), r (5)" in fixed.detail
    largest = configured(cluster(a=7, b=2), writer, _join("r", "q", r=0, q=0))
    assert (largest.counts["r"], largest.counts["q"]) == (7, 7)


def test_a_repartition_topic_without_a_source_cannot_be_counted() -> None:
    lonely = Subtopology(subtopology_id="0", repartition_sources=(InternalTopic(name="r"),))
    found = configured(cluster(), lonely)
    assert found.status is Status.INCORRECTLY_PARTITIONED_TOPICS
    assert "r cannot be determined" in found.detail


def test_the_number_of_tasks_is_bounded() -> None:
    many = [
        Subtopology(subtopology_id=str(number), source_topics=("lines",)) for number in range(11)
    ]
    found = configured(cluster(lines=TASKS_MAX // 10), *many)
    assert found.status is Status.INCORRECTLY_PARTITIONED_TOPICS
    assert str(TASKS_MAX) in found.detail


def test_all_problems_of_an_invalid_topology_are_named() -> None:
    topology = Topology(
        epoch=0,
        subtopologies=(
            Subtopology(subtopology_id="0", changelogs=(InternalTopic(name="c", partitions=-1),)),
            Subtopology(subtopology_id="0", source_topics=("a b",)),
            Subtopology(
                subtopology_id="1",
                source_regexes=tuple(f"t{number}" for number in range(REGEXES_MAX + 1)),
            ),
        ),
    )
    problems = refuse_topology(topology)
    for part in ("unique", "no source topics", "-1 partitions", "a b", str(REGEXES_MAX)):
        assert part in problems
    assert "at least one" in refuse_topology(Topology(epoch=0, subtopologies=()))
    assert refuse_topology(Topology(epoch=0, subtopologies=COUNT)) == ""


@pytest.mark.parametrize(("regex", "valid"), [("in-[0-9]+", True), ("in-[", False)])
def test_regular_expressions_are_checked(regex: str, valid: bool) -> None:
    sub = Subtopology(subtopology_id="0", source_regexes=(regex,))
    assert (refuse_regexes(Topology(epoch=0, subtopologies=(sub,))) == "") is valid
