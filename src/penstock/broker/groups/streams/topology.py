"""Topology of a Kafka Streams application, and its configuration by the topics of the cluster.

The first member sends the topology: subtopologies with their source topics, the repartition topics
between them, and the changelog topics of their stores. `configure` decides the partition counts of
these internal topics and the number of tasks of each subtopology:

    repartition topic   its own count, that of topics it is copartitioned with, or the largest count
                        of the source topics of a subtopology that writes to it
    tasks               the largest count of a subtopology's source and repartition topics
    changelog topic     the number of tasks of its subtopology

Source: KIP-1071; Kafka's `InternalTopicManager` and `CopartitionedTopicsEnforcer`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from penstock.base.errors import InvalidTopicName
from penstock.base.ids import validate_topic_name
from penstock.broker.groups.runtime.topic_regex import InvalidRegex, compile_regex

if TYPE_CHECKING:
    from penstock.control import Topic

REGEXES_MAX: Final = 100
"""Maximum number of regular expressions in a topology."""
TASKS_MAX: Final = 100_000
"""Maximum number of active tasks of a group."""


class Status(IntEnum):
    """Status codes in the response to StreamsGroupHeartbeat."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5


class InternalTopic(Struct, frozen=True, kw_only=True):
    """Repartition or changelog topic; a count or factor of 0 is decided by the broker."""

    name: str
    partitions: int = 0
    replication_factor: int = 0
    configs: tuple[tuple[str, str], ...] = ()


class Subtopology(Struct, frozen=True, kw_only=True):
    subtopology_id: str
    source_topics: tuple[str, ...] = ()
    source_regexes: tuple[str, ...] = ()
    repartition_sinks: tuple[str, ...] = ()
    repartition_sources: tuple[InternalTopic, ...] = ()
    changelogs: tuple[InternalTopic, ...] = ()
    copartition_groups: tuple[tuple[str, ...], ...] = ()
    """Topics and regular expressions whose topics must have the same number of partitions."""


class Topology(Struct, frozen=True, kw_only=True):
    epoch: int
    subtopologies: tuple[Subtopology, ...]

    @property
    def regexes(self) -> frozenset[str]:
        return frozenset([r for sub in self.subtopologies for r in sub.source_regexes])

    @property
    def internal_topics(self) -> Mapping[str, InternalTopic]:
        return {
            topic.name: topic
            for sub in self.subtopologies
            for topic in (*sub.repartition_sources, *sub.changelogs)
        }

    @property
    def topics(self) -> frozenset[str]:
        """Names of all topics in the topology, except the matches of regular expressions."""
        named = [
            name
            for sub in self.subtopologies
            for name in (*sub.source_topics, *sub.repartition_sinks)
        ]
        return frozenset([*self.internal_topics, *named])


class Configured(Struct, frozen=True, kw_only=True):
    """Topology with partition counts; `tasks` is empty unless the group can get tasks."""

    tasks: Mapping[str, int] = {}
    """Number of tasks by subtopology id."""
    stateful: frozenset[str] = frozenset()
    counts: Mapping[str, int] = {}
    """Partition counts of all topics of the topology."""
    sources: Mapping[str, tuple[str, ...]] = {}
    """Source topics of each subtopology, including matches and repartition topics."""
    status: Status | None = None
    detail: str = ""
    missing: tuple[InternalTopic, ...] = ()
    """Internal topics to be created, with their partition counts."""


class _Problem(Exception):
    def __init__(self, status: Status, detail: str) -> None:
        self.status, self.detail = status, detail


def refuse_topology(topology: Topology) -> str:
    """Return all errors of a topology that is invalid whatever topics exist; empty if valid."""
    problems = []
    ids = [sub.subtopology_id for sub in topology.subtopologies]
    if not ids:
        problems.append("Topology must have at least one subtopology.")
    if len(set(ids)) != len(ids):
        problems.append("Subtopology ids must be unique.")
    for sub in topology.subtopologies:
        if not (sub.source_topics or sub.source_regexes or sub.repartition_sources):
            problems.append(f"Subtopology {sub.subtopology_id} has no source topics.")
        problems += [
            f"Internal topic {topic.name} has {topic.partitions} partitions and replication factor"
            f" {topic.replication_factor}; they must be at least 0 and -1."
            for topic in (*sub.repartition_sources, *sub.changelogs)
            if topic.partitions < 0 or topic.replication_factor < -1
        ]
    if len(topology.regexes) > REGEXES_MAX:
        problems.append(
            f"Topology has {len(topology.regexes)} regular expressions, at most {REGEXES_MAX} are"
            " allowed."
        )
    for name in sorted(topology.topics):
        try:
            validate_topic_name(name)
        except InvalidTopicName as error:
            problems.append(str(error))
    return " ".join(problems)


def refuse_regexes(topology: Topology) -> str:
    """Return the errors of the topology's regular expressions; empty if all are valid."""
    problems = []
    for regex in sorted(topology.regexes)[:REGEXES_MAX]:
        try:
            compile_regex(regex)
        except InvalidRegex as error:
            problems.append(f"SourceTopicRegex {regex!r} is invalid: {error}.")
    return " ".join(problems)


def matches(topology: Topology, topics: Iterable[str]) -> Mapping[str, frozenset[str]]:
    """Return the topics that match each regular expression, except internal topics."""
    internal = topology.internal_topics
    names = [name for name in topics if name not in internal]
    return {regex: frozenset(filter(compile_regex(regex), names)) for regex in topology.regexes}


def configure(
    topology: Topology, resolved: Mapping[str, frozenset[str]], topics: Mapping[str, Topic]
) -> Configured:
    """Return the topology's tasks and internal topics, or the status of what prevents them.

    `resolved` are the topics that match each regular expression, `topics` those of the cluster.
    """
    try:
        return _Configuration(topology, resolved, topics).configured()
    except _Problem as problem:
        return Configured(status=problem.status, detail=problem.detail)


class _Configuration:
    def __init__(
        self,
        topology: Topology,
        resolved: Mapping[str, frozenset[str]],
        topics: Mapping[str, Topic],
    ) -> None:
        self._topology = topology
        self._resolved = resolved
        self._topics = topics
        self._repartition = {
            topic.name: topic for sub in topology.subtopologies for topic in sub.repartition_sources
        }
        self._counts = {
            name: topic.partitions for name, topic in self._repartition.items() if topic.partitions
        }
        self._sources = {sub.subtopology_id: self._read(sub) for sub in topology.subtopologies}

    def configured(self) -> Configured:
        self._require_sources()
        self._count_repartition_topics()
        for sub in self._topology.subtopologies:
            for group in sub.copartition_groups:
                self._copartition(group)
        sources = self._sources
        tasks = {
            sub_id: max([self._count(name) for name in names]) for sub_id, names in sources.items()
        }
        if sum(tasks.values()) > TASKS_MAX:
            raise _Problem(
                Status.INCORRECTLY_PARTITIONED_TOPICS,
                f"The topology has {sum(tasks.values())} tasks, at most {TASKS_MAX} are allowed.",
            )
        changelogs = {
            topic.name: tasks[sub.subtopology_id]
            for sub in self._topology.subtopologies
            for topic in sub.changelogs
        }
        sizes = {name: self._count(name) for names in sources.values() for name in names}
        counts = {**sizes, **self._counts, **changelogs}
        missing = self._missing(counts)
        names = ", ".join([topic.name for topic in missing])
        return Configured(
            tasks={} if missing else tasks,
            stateful=frozenset(
                [sub.subtopology_id for sub in self._topology.subtopologies if sub.changelogs]
            ),
            counts=counts,
            sources=sources,
            status=Status.MISSING_INTERNAL_TOPICS if missing else None,
            detail=f"Internal topics are missing: {names}" if missing else "",
            missing=missing,
        )

    def _require_sources(self) -> None:
        subs = self._topology.subtopologies
        absent = {
            name
            for sub in subs
            for name in sub.source_topics
            if name not in self._topics and name not in self._repartition
        }
        unmatched = {regex for regex in self._topology.regexes if not self._resolved.get(regex)}
        if absent:
            raise _Problem(
                Status.MISSING_SOURCE_TOPICS,
                f"Source topics {', '.join(sorted(absent))} are missing.",
            )
        if unmatched:
            raise _Problem(
                Status.MISSING_SOURCE_TOPICS,
                f"No topic matches the source topic expressions {', '.join(sorted(unmatched))}.",
            )

    def _read(self, sub: Subtopology) -> tuple[str, ...]:
        """Return the topics that a subtopology reads."""
        found = [self._resolved.get(regex, frozenset()) for regex in sub.source_regexes]
        matched = sorted(frozenset().union(*found))
        repartition = [topic.name for topic in sub.repartition_sources]
        return tuple(dict.fromkeys([*sub.source_topics, *matched, *repartition]))

    def _known(self, name: str) -> int:
        """Return the partition count of a topic; 0 if it is not decided yet."""
        if name in self._repartition:
            return self._counts.get(name, 0)
        topic = self._topics.get(name)
        return 0 if topic is None else len(topic.partitions)

    def _count(self, name: str) -> int:
        return max(1, self._known(name))

    def _count_repartition_topics(self) -> None:
        """Decide counts along the topology; each round decides at least one more topic."""
        undecided = [name for name in self._repartition if name not in self._counts]
        written_from: dict[str, list[tuple[str, ...]]] = {name: [] for name in undecided}
        for sub in self._topology.subtopologies:
            for name in sub.repartition_sinks:
                written_from.setdefault(name, []).append(self._sources[sub.subtopology_id])
        while undecided:
            for name in undecided:
                count = max(
                    [self._known(source) for sources in written_from[name] for source in sources],
                    default=0,
                )
                if count:
                    self._counts[name] = count
            left = [name for name in undecided if name not in self._counts]
            if len(left) == len(undecided):
                raise _Problem(
                    Status.INCORRECTLY_PARTITIONED_TOPICS,
                    "The number of partitions of repartition topics"
                    f" {', '.join(sorted(left))} cannot be determined: no subtopology with source"
                    " topics writes to them.",
                )
            undecided = left

    def _copartition(self, group: tuple[str, ...]) -> None:
        names: set[str] = set()
        for name in group:
            names |= self._resolved.get(name, frozenset([name]))
        fixed = {
            name: self._count(name)
            for name in sorted(names)
            if name not in self._repartition or self._repartition[name].partitions
        }
        if len(set(fixed.values())) > 1:
            listed = ", ".join([f"{name} ({count})" for name, count in fixed.items()])
            raise _Problem(
                Status.INCORRECTLY_PARTITIONED_TOPICS,
                f"Topics must have the same number of partitions, because they are copartitioned:"
                f" {listed}.",
            )
        flexible = names - fixed.keys()
        decided = [*fixed.values()] or [self._count(name) for name in flexible]
        for name in flexible:
            self._counts[name] = max(decided)

    def _missing(self, counts: Mapping[str, int]) -> tuple[InternalTopic, ...]:
        missing = []
        for name, topic in sorted(self._topology.internal_topics.items()):
            known = self._topics.get(name)
            if known is None:
                missing.append(
                    InternalTopic(
                        name=name,
                        partitions=counts[name],
                        replication_factor=topic.replication_factor or -1,
                        configs=topic.configs,
                    )
                )
            elif len(known.partitions) != counts[name]:
                raise _Problem(
                    Status.INCORRECTLY_PARTITIONED_TOPICS,
                    f"Existing topic {name} has different number of partitions: expected"
                    f" {counts[name]}, found {len(known.partitions)}",
                )
        return tuple(missing)
