"""Partition checks: missing leaders, out-of-sync replicas, and their causes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.apps.doctor.findings import Check, Finding, Status
from penstock.apps.log.cluster import troubled
from penstock.apps.log.replicas import DISKLESS
from penstock.apps.session import counted
from penstock.client.replicas import PERSISTENCE, SHORT_CALLS

if TYPE_CHECKING:
    from penstock.apps.session import State
    from penstock.client import Client, ClusterMetadata

NAME: Final = "partitions"
NAMED_MAX: Final = 5
"""Partitions that one finding names; the others are counted."""


class Trouble(NamedTuple):
    """Problem that several partitions share."""

    state: str
    gone: tuple[int, ...]
    """Brokers that are not registered, of those that should have a copy."""
    behind: tuple[int, ...]
    """Brokers that are, and whose copies are not in sync."""
    needed: int


def partitions(state: State) -> Check:
    """Check that every partition has a leader and all of its replicas in sync."""
    return Check(NAME, lambda: _look(state))


def _look(state: State) -> list[Finding]:
    alike: dict[Trouble, list[str]] = defaultdict(list)
    with state.client(**SHORT_CALLS) as client:
        found = client.metadata()
        others = _roles(client, found)
        for row in troubled(client, found):
            gone = tuple(sorted({*row["replicas"]} - found.nodes.keys()))
            behind = tuple(sorted({*row["replicas"]} - {*row["isr"], *gone}))
            trouble = Trouble(row["state"], gone, behind, row["needed"])
            alike[trouble].append(f"{row['topic']}-{row['partition']}")
    if alike:
        return [_finding(trouble, names) for trouble, names in sorted(alike.items())] + others
    count = sum(len(topic.partitions) for topic in found.topics.values())
    return [
        Finding(check=NAME, status="ok", cause=f"{count}, all have leaders, all replicas in sync"),
        *others,
    ]


def _roles(client: Client, found: ClusterMetadata) -> list[Finding]:
    """Report brokers whose roles exclude the replicas that they have."""
    return [
        Finding(
            check="roles",
            status="warn",
            cause=f"broker {broker_id} has broker.roles = {','.join(state.roles)}, and replicas of"
            f" {counted(len(held), 'partition')}, as of {held[0]}",
            fix=f"penstock broker drain {broker_id}, or give it the role {PERSISTENCE}",
        )
        for broker_id, state in sorted(client.broker_states().items())
        if state.roles is not None
        and PERSISTENCE not in state.roles
        and (held := _held(client, found, broker_id))
    ]


def _held(client: Client, found: ClusterMetadata, broker_id: int) -> list[str]:
    """Return the partitions with replicas on a broker's disk."""
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
    more = len(names) - NAMED_MAX
    where = ", ".join(names[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
    status: Status = "warn" if trouble.state == "behind" else "fail"
    state = {
        "stopped": "no leader",
        "refusing": f"fewer than the {trouble.needed} replicas in sync that must acknowledge",
        "behind": "copies that are not in sync",
    }[trouble.state]
    reasons = []
    if trouble.gone:
        reasons.append(f"brokers {_listed(trouble.gone)} are not registered")
    if trouble.behind:
        reasons.append(f"the replicas on brokers {_listed(trouble.behind)} are out of sync")
    cure = (
        f"start broker {' and '.join(map(str, trouble.gone))}, each with its own directory; with"
        " an empty one it copies the log from the other replicas"
        if trouble.gone
        else "they catch up without help; if not, check that those brokers reach the leader at"
        " its replication.listener, and read their logs"
    )
    return Finding(
        check=NAME, status=status, cause=f"{where}: {state}; {', '.join(reasons)}", fix=cure
    )


def _listed(brokers: Sequence[int]) -> str:
    return ", ".join(map(str, brokers))
