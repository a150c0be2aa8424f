"""Checks of partitions and consumer groups for `penstock doctor`.

They find missing leaders, replicas out of sync, and batches that cannot be read. For every
partition that a group has not read to its end, the batches of one fetch from the committed offset
are checked. If a batch cannot be read, the finding has the command that moves the group past it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.apps.checks.findings import Check, Finding, Status, listed
from penstock.apps.client.session import State, counted
from penstock.apps.log.cluster import troubled
from penstock.apps.log.replicas import DISKLESS
from penstock.client.replicas import PERSISTENCE, SHORT_CALLS

if TYPE_CHECKING:
    from penstock.client import Client, ClusterMetadata


NAME: Final = "partitions"
NAMED_MAX: Final = 5
"""Most partitions that one finding names; further ones are only counted."""


class Trouble(NamedTuple):
    """Problem that several partitions share; one finding reports all of them."""

    state: str
    gone: tuple[int, ...]
    """Brokers with an assigned replica that are not registered."""
    silent: tuple[int, ...]
    """Registered brokers with an assigned replica that do not respond."""
    behind: tuple[int, ...]
    """Other brokers whose replicas are out of sync."""
    needed: int


def partitions(state: State, silent: Collection[int]) -> Check:
    """Return the check that every partition has a leader and all of its replicas in sync.

    `silent` are the registered brokers that do not respond.
    """
    return Check(NAME, lambda: _look(state, silent))


def _look(state: State, silent: Collection[int]) -> list[Finding]:
    alike: dict[Trouble, list[str]] = defaultdict(list)
    with state.client(**SHORT_CALLS) as client:
        found = client.metadata()
        others = _roles(client, found)
        for row in troubled(client, found):
            replicas = sorted(row["replicas"])
            gone = tuple(broker for broker in replicas if broker not in found.nodes)
            away = tuple(broker for broker in replicas if broker in silent)
            behind = tuple(
                broker for broker in replicas if broker not in {*row["isr"], *gone, *away}
            )
            trouble = Trouble(row["state"], gone, away, behind, row["needed"])
            alike[trouble].append(f"{row['topic']}-{row['partition']}")
    if alike:
        return [_finding(trouble, names) for trouble, names in sorted(alike.items())] + others
    count = sum(len(topic.partitions) for topic in found.topics.values())
    return [
        Finding(
            NAME,
            "ok",
            f"{counted(count, 'partition')}; all have leaders, and all replicas are in sync",
        ),
        *others,
    ]


def _roles(client: Client, found: ClusterMetadata) -> list[Finding]:
    """Report brokers that hold replicas although their `broker.roles` exclude it."""
    return [
        Finding(
            "roles",
            "warn",
            f"broker {broker_id} has broker.roles = {','.join(state.roles)}, but holds replicas of"
            f" {counted(len(held), 'partition')}, such as {held[0]}",
            f"penstock broker drain {broker_id}, or add {PERSISTENCE} to its broker.roles",
        )
        for broker_id, state in sorted(client.broker_states().items())
        if state.roles is not None
        and PERSISTENCE not in state.roles
        and (held := _held(client, found, broker_id))
    ]


def _held(client: Client, found: ClusterMetadata, broker_id: int) -> list[str]:
    """Return the partitions with a replica on a broker's disk; diskless topics have none."""
    held = []
    for name, topic in sorted(found.topics.items()):
        here = [
            f"{name}-{partition.index}"
            for partition in topic.partitions
            if broker_id in partition.replicas
        ]
        configs = client.describe_configs("topic", name) if here else ()
        if all([(config.name, config.value) != (DISKLESS, "true") for config in configs]):
            held += here
    return held


def _finding(trouble: Trouble, names: Sequence[str]) -> Finding:
    where = listed(names, NAMED_MAX)
    status: Status = "warn" if trouble.state == "behind" else "fail"
    state = {
        "stopped": "no leader",
        "refusing": f"fewer replicas in sync than the {trouble.needed} that must acknowledge a"
        " record",
        "behind": "not fully replicated",
    }[trouble.state]
    reasons = []
    if trouble.gone:
        reasons.append(f"{_named(trouble.gone)} not registered")
    if trouble.silent:
        reasons.append(f"{_named(trouble.silent)} not responding")
    if trouble.behind:
        reasons.append(f"replicas on {_named(trouble.behind)} out of sync")
    stopped = sorted({*trouble.gone, *trouble.silent})
    cure = (
        (
            f"start {_named(stopped)}, with its own data directory; with an empty directory it"
            " copies the log from the other replicas"
        )
        if stopped
        else (
            "wait until they catch up. If they do not, check that their brokers can connect to"
            " the leader's replication.listener, and read their logs"
        )
    )
    return Finding(NAME, status, f"{where}: {state}; {', '.join(reasons)}", cure)


def _named(brokers: Sequence[int]) -> str:
    return f"broker{'s' if len(brokers) > 1 else ''} {', '.join(map(str, brokers))}"


GROUPS_MAX: Final = 100
PARTITIONS_MAX: Final = 200
"""Limits of one check: groups, and partitions that these groups have not read to the end."""

CONSUMERS: Final = "consumers"


def consumers(state: State) -> Check:
    """Return the check that all groups can read their next batches."""
    return Check(CONSUMERS, lambda: _read_ahead(state))


def _read_ahead(state: State) -> list[Finding]:
    with state.client() as client:
        groups = sorted(group.group_id for group in client.list_groups())
        behind = list(_behind(client, groups[:GROUPS_MAX]))
        stuck = [
            finding
            for group, topic, partition, offset in behind[:PARTITIONS_MAX]
            for finding in _stuck(client, group, topic, partition, offset)
        ]
    if stuck:
        return stuck
    left_out = len(groups) > GROUPS_MAX or len(behind) > PARTITIONS_MAX
    limits = f", of which {GROUPS_MAX} and {PARTITIONS_MAX} were checked" if left_out else ""
    partitions = counted(len(behind), "partition")
    cause = f"{counted(len(groups), 'group')}, {partitions} with records to read{limits}"
    return [Finding(CONSUMERS, "ok", f"{cause}: the next batches can be read")]


def _behind(client: Client, groups: list[str]) -> Iterator[tuple[str, str, int, int]]:
    """Yield group, topic, partition and committed offset of each partition with records to read."""
    there = {topic.name for topic in client.list_topics(internal=True)}
    ends: dict[str, dict[int, int]] = {}
    for group in groups:
        for (topic, partition), position in sorted(client.committed(group).items()):
            if topic in there and topic not in ends:
                ends[topic] = client.list_offsets(topic, "latest")
            if 0 <= position.offset < ends.get(topic, {}).get(partition, -1):
                yield group, topic, partition, position.offset


def _stuck(
    client: Client, group: str, topic: str, partition: int, offset: int
) -> Iterator[Finding]:
    from penstock.apps.log.verify import verify_fetched
    from penstock.client.errors import OffsetOutOfRange
    from penstock.storage.inspection.directories import BatchVerifier

    verifier = BatchVerifier()
    try:
        verify_fetched(client, topic, partition, offset, verifier)
    except OffsetOutOfRange:
        return  # its committed offset is deleted: auto.offset.reset applies
    for wrong in verifier.findings[:1]:
        follows = max(wrong.last_offset, offset) + 1
        yield Finding(
            CONSUMERS, "fail",
            f"group {group} is at offset {offset} of {topic}-{partition}, and the batch"
            f" at offsets {wrong.base_offset} to {wrong.last_offset} cannot be read:"
            f" {wrong.reason}",
            f"to skip the batch, stop the group and run penstock group seek {group} -t {topic} -p"
            f" {partition} --to {follows} --execute; penstock log verify {topic} lists all such"
            " batches",
        )  # fmt: skip
