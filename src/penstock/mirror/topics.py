"""Topics of a mirror: the steps that give the target the topics, settings and ACLs of the source.

A topic's settings are those that were set for it. A setting is applied when the topic is created,
and when it has changed in the source since the mirror last looked. So two mirrors in opposite
directions do not undo each other's changes. Some settings are left out (`EXCLUDED`):
those of the cluster that a topic is on, and those by which the target would change or reject the
timestamps of mirrored records.

In the same way, an ACL is added or removed when it has appeared in the source, or disappeared from
it, since the mirror last looked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Final

from msgspec import Struct

from penstock.base.errors import InvalidError
from penstock.base.settings import LONG_MAX
from penstock.client import Client
from penstock.client.errors import BrokerRefused
from penstock.connect.positions import positions_topic
from penstock.control.rules.metadata import LINK_CONFIGS
from penstock.mirror.mirror_file import MirrorSpec
from penstock.security.acls import AclBinding, AclFilter, binding_of

EXCLUDED: Final = frozenset({
    "follower.replication.throttled.replicas", "leader.replication.throttled.replicas",
    "message.timestamp.type", "message.timestamp.difference.max.ms",
    "message.timestamp.before.max.ms", "message.timestamp.after.max.ms",
    "min.insync.replicas", "unclean.leader.election.enable", *LINK_CONFIGS,
})  # fmt: skip
"""Settings of topics that are not mirrored."""
_ANY_TIME: Final = {
    "message.timestamp.before.max.ms": str(LONG_MAX),
    "message.timestamp.after.max.ms": str(LONG_MAX),
}
AGAIN: Final = (
    "; it was deleted from the target, and records that were mirrored before are not copied again"
)
ACLS: Final = "acls"
"""Position with the source's ACLs that were mirrored."""
DIRECTION: Final = "direction"
"""Position with the facts of a mirror that a mirror in the opposite direction reads."""
_CHANGES: Final = frozenset({"write", "all", "create", "delete", "alter", "alter_configs"})


class MirrorRefused(InvalidError):
    """A mirror cannot run as its file describes it."""

    code = "invalid_config"


class Clusters(Struct, frozen=True):
    """Cluster ids of source and target."""

    source: str
    target: str


class Step(Struct, frozen=True):
    """Change of the target, and its description; `stored` has the positions that it changes."""

    text: str
    act: Callable[[], object]
    stored: dict[str, Any] = {}


def clusters_of(source: Client, target: Client) -> Clusters:
    """Return the ids of both clusters.

    Raises:
        MirrorRefused: both are the same cluster, or one has no id.
    """
    found = [client.metadata(()).cluster_id for client in (source, target)]
    if not found[0] or not found[1]:
        raise MirrorRefused("a cluster does not report its id, which mirrors need to prevent loops")
    if found[0] == found[1]:
        raise MirrorRefused(
            f"source and target are the same cluster {found[0]}. Set source.bootstrap or"
            " target.bootstrap to another cluster"
        )
    return Clusters(found[0], found[1])


def direction(spec: MirrorSpec, clusters: Clusters, topics: Mapping[str, int]) -> dict[str, Any]:
    """Return the facts of a mirror that a mirror in the opposite direction reads."""
    return {
        "source": clusters.source, "target": clusters.target, "policy": spec.target.policy,
        "syncs": spec.syncs_topic, "topics": sorted(topics),
    }  # fmt: skip


def check_direction(spec: MirrorSpec, clusters: Clusters, stored: Mapping[str, Any]) -> None:
    """Check that stored positions belong to these clusters.

    Raises:
        MirrorRefused: they belong to others.
    """
    known = stored.get(DIRECTION, {})
    for side in ("source", "target"):
        before, now = known.get(side), getattr(clusters, side)
        if before not in (None, now):
            raise MirrorRefused(
                f"mirror {spec.name} has positions of the {side} cluster {before}, but"
                f" {side}.bootstrap is cluster {now}. Set it to the former cluster, or give the"
                " mirror another name"
            )


def source_topics(spec: MirrorSpec, source: Client) -> dict[str, int]:
    """Return the topics that are mirrored, with their numbers of partitions."""
    return {
        topic.name: len(topic.partitions)
        for topic in source.list_topics()
        if spec.mirrors(topic.name)
    }


def source_groups(spec: MirrorSpec, source: Client) -> list[str]:
    """Return the names of the groups that are mirrored."""
    groups = source.list_groups()
    return [group.group_id for group in groups if spec.groups.match(group.group_id)]


def steps(
    spec: MirrorSpec, source: Client, target: Client, topics: Mapping[str, int],
    stored: Mapping[str, Any],
) -> list[Step]:  # fmt: skip
    """Return the steps that bring the target in line with the source.

    Args:
        topics: result of `source_topics`.
        stored: positions of the mirror, which include the settings that were seen before.
    """
    there = {topic.name: len(topic.partitions) for topic in target.list_topics()}
    known = _known_settings(spec, target, there)
    found: list[Step] = []
    for name, partitions in topics.items():
        to = spec.renamed(name)
        configs = {
            setting: value
            for setting, value in source.own_configs(name).items()
            if setting not in EXCLUDED and (not known or setting in known)
        }
        seen = {f"configs/{name}": configs}
        if to not in there:
            again = AGAIN if f"configs/{name}" in stored else ""
            found.append(_creation(spec, target, to, partitions, configs, seen, again))
            continue
        if there[to] < partitions:
            text = f"raise the partitions of topic {to} from {there[to]} to {partitions}"
            found.append(Step(text, partial(target.create_partitions, to, partitions)))
        before = stored.get(f"configs/{name}", {})
        if spec.options.configs and before != configs:
            found += _settings(target, to, before, configs, seen)
    return found + (_acl_steps(spec, source, target, topics, stored) if spec.options.acls else [])


def _known_settings(spec: MirrorSpec, target: Client, there: Mapping[str, int]) -> set[str]:
    """Return the names of the target's topic settings; empty if it has no topic of the mirror."""
    topic = positions_topic(spec.position_owner)
    if topic not in there:
        return set()
    return {entry.name for entry in target.describe_configs("topic", topic)}


def _creation(
    spec: MirrorSpec, target: Client, to: str, partitions: int, configs: dict[str, str],
    seen: dict[str, Any], again: str,
) -> Step:  # fmt: skip
    given = (configs if spec.options.configs else {}) | _ANY_TIME
    act = partial(
        target.create_topic, to, partitions, given,
        replication_factor=spec.target.replication_factor, exist_ok=True,
    )  # fmt: skip
    return Step(f"create topic {to} with {partitions} partitions{again}", act, seen)


def _settings(
    target: Client, to: str, before: Mapping[str, str], now: dict[str, str], seen: dict[str, Any]
) -> list[Step]:
    changed = {name: value for name, value in now.items() if before.get(name) != value}
    removed = sorted(before.keys() - now.keys())
    there = {entry.name: entry.value for entry in target.describe_configs("topic", to)}
    changed = {name: value for name, value in changed.items() if there.get(name) != value}
    if not changed and not removed:
        return [Step("", lambda: None, seen)]
    words = [f"{name} = {value}" for name, value in changed.items()]
    words += [f"{name} to its default" for name in removed]
    act = partial(target.alter_configs, "topic", to, changed, delete=removed)
    return [Step(f"set in topic {to}: {', '.join(words)}", act, seen)]


def _acl_steps(
    spec: MirrorSpec, source: Client, target: Client, topics: Mapping[str, int],
    stored: Mapping[str, Any],
) -> list[Step]:  # fmt: skip
    """Return the steps for ACLs that have appeared in the source, or disappeared from it."""
    try:
        bindings = source.list_acls()
        there = set(target.list_acls())
    except BrokerRefused as error:
        if error.code == "security_disabled":  # one of them has no authorizer
            return []
        raise
    now = {entry.text(): to for entry in bindings if (to := _mirrored(spec, entry, topics))}
    before = set(stored.get(ACLS, ()))
    steps = [
        Step(f"add ACL: {to}", partial(target.create_acls, [to]))
        for text, to in now.items()
        if text not in before and to not in there
    ]
    for text in sorted(before - {entry.text() for entry in bindings}):
        entry = binding_of(text)
        to = replace(entry, name=spec.renamed(entry.name))
        if to in there and to not in now.values():
            act = partial(target.delete_acls, AclFilter(**asdict(to)))
            steps.append(Step(f"remove ACL: {to}", act))
    if now.keys() != before:
        steps.append(Step("", lambda: None, {ACLS: sorted(now)}))
    return steps


def _mirrored(spec: MirrorSpec, entry: AclBinding, topics: Mapping[str, int]) -> AclBinding | None:
    """Return the target's form of an ACL; None if it does not belong to a mirrored topic.

    With the policy `prefix` only the mirror writes to the topic, so ACLs that allow changes are
    left out.
    """
    if entry.resource_type != "topic":
        return None
    literal = entry.pattern_type == "literal"
    applies = entry.name in topics if literal else any(t.startswith(entry.name) for t in topics)
    allowing = entry.permission == "allow"
    if not applies or (spec.prefixed and allowing and entry.operation in _CHANGES):
        return None
    return replace(entry, name=spec.renamed(entry.name))


def missing_users(source: Client, target: Client) -> list[str]:
    """Return the users with SCRAM credentials in the source that have none in the target."""
    try:
        return sorted(source.list_users().keys() - target.list_users().keys())
    except BrokerRefused:
        return []
