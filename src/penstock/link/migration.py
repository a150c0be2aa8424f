"""Move of a whole cluster by links: inventory, start, cut-over, and the way back. Calls block.

Clients pause from the stop of the source's producers until the topics are promoted. The slow steps
of a cut-over come before this pause: almost all records are copied, and their batches are compared.

`back` writes the records that the target got since the cut-over to the source, with their keys,
headers and timestamps. It reads committed records only. It refuses a source whose topics were
written since, because offsets would then differ by partition and record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import msgspec
from msgspec import Struct

from penstock.base.errors import PenstockError
from penstock.base.system import SYSTEM_CLOCK
from penstock.client import Client
from penstock.client.protocol import TopicAndPartition
from penstock.link.groups import GROUP_TYPES, copy_groups
from penstock.link.source import Origin
from penstock.link.topics import (
    LinkImpossible,
    checksum,
    common_starts,
    copied_configs,
    create,
    end_links,
    linked_topics,
    selected,
    wait_until_copied,
)
from penstock.security.acls import AclBinding, AclFilter

_LIVE: Final = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort"})
BACK_MS: Final = 3_600_000
"""Time after the cut-over in which `back` is allowed, in milliseconds."""
DISKLESS_DEFAULT: Final = "log.diskless.enable"
"""Setting that brokers of Penstock have, and brokers of Apache Kafka do not."""
LAG_RECORDS: Final = 1_000
"""Lag per partition, in records, at which a cut-over stops the producers."""

Ends = dict[str, dict[int, int]]
"""End offsets by topic and partition."""


class Inventory(Struct, frozen=True, kw_only=True):
    """Contents of a source cluster, and all reasons why parts of it do not move as they are.

    `problems` prevent the migration; `notes` do not.
    """

    topics: Sequence[Mapping[str, Any]]
    groups: Sequence[Mapping[str, Any]]
    transactions: Sequence[Mapping[str, Any]]
    acls: int
    users: Sequence[str]
    quotas: int
    problems: Sequence[str]
    notes: Sequence[str]


class CutOver(Struct, frozen=True, kw_only=True):
    """Record of a cut-over, which `back` reads."""

    source_cluster: str
    target_cluster: str
    at_ms: int
    pause_ms: int
    ends: Ends
    """End offsets of both sides at the cut-over."""
    denied: bool
    """Whether ACLs deny writes to the source's topics."""


# -- plan -----------------------------------------------------------------------------------


def plan(source: Client, target: Client, names: Sequence[str]) -> Inventory:
    """Return the inventory of a source, with all problems and notes at once.

    Raises:
        LinkImpossible: the source has no topic of one of the names.
    """
    topics = selected(source, names)
    problems = [*_unfit(source, target), *_taken(source, target, topics)]
    bindings = _acls(source) or ()
    if bindings and _acls(target) is None:
        problems.append(
            f"the source has {len(bindings)} ACLs, but the target has no authorizer: set"
            " authorizer.class.name in the configuration of its brokers"
        )
    notes: list[str] = []
    rows: list[Mapping[str, Any]] = []
    for name, topic in topics.items():
        configs, left = copied_configs(source, name)
        notes += [f"topic {name}: {setting}: {reason}" for setting, reason in left.items()]
        factor = max(len(row.replicas) for row in topic.partitions)
        rows.append({
            "topic": name, "partitions": len(topic.partitions), "replicas": factor,
            "settings": len(configs), "not_supported": len(left),
        })  # fmt: skip
        offline = [row.index for row in topic.partitions if row.leader < 0]
        if offline:
            problems.append(f"topic {name}: partitions {offline} have no leader in the source")
    if any(row["replicas"] > 1 for row in rows):
        notes.append(
            "linked topics have one replica until the cut-over, whose --replication-factor adds"
            " replicas"
        )
    groups = _groups(source)
    notes += [
        f"group {group['group']}: offsets of {group['type']} groups are not copied"
        for group in groups
        if group["type"] not in GROUP_TYPES
    ]
    transactions = [
        {"transactional_id": found.transactional_id, "state": found.state}
        for found in source.list_transactions()
        if found.state in _LIVE
    ]
    notes += [
        f"transaction {found['transactional_id']}: it is {found['state']}, and is aborted if it is"
        " still open at the cut-over"
        for found in transactions
    ]
    users = sorted(source.list_users())
    if users:
        notes.append(
            f"users {', '.join(users)}: passwords cannot be read; set them with `penstock user add`"
        )
    return Inventory(
        topics=rows, groups=groups, transactions=transactions, acls=len(bindings),
        users=users, quotas=len(source.list_quotas()), problems=problems, notes=notes,
    )  # fmt: skip


def _groups(source: Client) -> list[dict[str, Any]]:
    rows = []
    for group in source.list_groups():
        kind = group.group_type.lower()
        count = len(source.committed(group.group_id)) if kind in GROUP_TYPES else 0
        rows.append({
            "group": group.group_id, "type": kind or "classic", "state": group.state,
            "offsets": count,
        })  # fmt: skip
    return rows


def _unfit(source: Client, target: Client) -> list[str]:
    """Return reasons why brokers of either side cannot take part."""
    problems = []
    for node in source.metadata(()).nodes.values():
        missing = {"Fetch", "ListOffsets", "Metadata"} & set(source.unsupported_calls(node))
        if missing:
            problems.append(
                f"source broker {node.node_id} does not support the needed versions of"
                f" {', '.join(sorted(missing))}: it must be Apache Kafka 2.7 or newer"
            )
    for node in target.metadata(()).nodes.values():
        configs = {entry.name for entry in target.describe_configs("broker", node.node_id)}
        if DISKLESS_DEFAULT not in configs:
            problems.append(f"target broker {node.node_id} is not Penstock")
    return problems


def _taken(source: Client, target: Client, topics: Mapping[str, object]) -> list[str]:
    if source.metadata(()).cluster_id == target.metadata(()).cluster_id:
        return ["source and target are the same cluster"]
    there = {topic.name for topic in target.list_topics(internal=True)}
    return [
        f"topic {name}: the target has a topic of this name that is not linked"
        for name in sorted(topics.keys() & there - linked_topics(target).keys())
    ]


def _acls(client: Client) -> list[AclBinding] | None:
    """Return the ACLs of a cluster; None if it has no authorizer."""
    try:
        return client.list_acls()
    except PenstockError as error:
        if error.code == "security_disabled":
            return None
        raise


# -- run ------------------------------------------------------------------------------------


class Copied(Struct, frozen=True, kw_only=True):
    """Numbers of objects that `run` has copied."""

    topics: int
    acls: int
    quotas: int


def run(source: Client, target: Client, names: Sequence[str], origin: Origin) -> Copied:
    """Create links for all topics, and copy ACLs and quotas. A repeated call adds what is missing.

    Raises:
        LinkImpossible: the plan has problems; nothing is changed.
    """
    found = plan(source, target, names)
    if found.problems:
        raise LinkImpossible("; ".join(found.problems))
    linked = linked_topics(target)
    new = [row["topic"] for row in found.topics if row["topic"] not in linked]
    if new:
        create(source, target, new, origin)
    there = set(_acls(target) or ())
    bindings = [binding for binding in _acls(source) or () if binding not in there]
    if bindings:
        target.create_acls(bindings)
    quotas = source.list_quotas()
    for quota in quotas:
        target.alter_quotas(quota.entity, quota.values)
    return Copied(topics=len(new), acls=len(bindings), quotas=len(quotas))


# -- cut-over -------------------------------------------------------------------------------


def ends_of(client: Client, topics: Iterable[str]) -> Ends:
    return {name: client.list_offsets(name) for name in topics}


def cut_over(
    source: Client,
    target: Client,
    topics: Sequence[str],
    *,
    stop_writers: Callable[[], None],
    deny_writes: bool,
    timeout_seconds: float,
) -> tuple[CutOver, dict[str, str]]:
    """Compare, stop the producers, copy the rest, and promote all topics.

    `stop_writers` returns when the source's producers are stopped. With `deny_writes`, ACLs deny
    writes to the source; those of topics that stay linked are deleted again. Returns the record of
    the cut-over, and the reason for each group whose offsets were not copied.

    Raises:
        LinkBehind: the links lag; the topics stay linked.
        LinkImpossible: there is no topic, or batches differ; the topics stay linked. Or the source
            was written after its producers were stopped; the topics are promoted.
    """
    if not topics:
        raise LinkImpossible("no topic is linked: run `penstock migrate run` first")
    seconds = timeout_seconds
    wait_until_copied(source, target, topics, timeout_seconds=seconds, records=LAG_RECORDS)
    copy_groups(source, target, topics)
    compared = ends_of(target, topics)
    starts = {name: common_starts(source, target, name) for name in topics}
    _check_equal(source, target, starts, compared)
    try:
        if deny_writes:
            source.create_acls(denials(topics))
        stop_writers()
        begun = SYSTEM_CLOCK.monotonic()
        wait_until_copied(source, target, topics, timeout_seconds=seconds)
        ends = ends_of(target, topics)
        _check_equal(source, target, compared, ends)
        failed = copy_groups(source, target, topics)
        end_links(target, topics)
    except BaseException:
        if deny_writes:
            allow_writes(source, [name for name in linked_topics(target) if name in topics])
        raise
    pause_ms = int((SYSTEM_CLOCK.monotonic() - begun) * 1000)
    late = _differences(source, ends)
    if late:
        listed = ", ".join(f"{where}: {now - then}" for where, (now, then) in late.items())
        raise LinkImpossible(
            "the topics are promoted, but producers still wrote to the source; records by"
            f" partition that are only there: {listed}"
        )
    record = CutOver(
        source_cluster=source.metadata(()).cluster_id or "",
        target_cluster=target.metadata(()).cluster_id or "",
        at_ms=SYSTEM_CLOCK.now_ms(), pause_ms=pause_ms, ends=ends, denied=deny_writes,
    )  # fmt: skip
    return record, failed


def _differences(source: Client, ends: Ends) -> dict[str, tuple[int, int]]:
    """Return the source's end now and at the cut-over, for each partition where they differ."""
    return {
        f"{name}-{partition}": (end, then)
        for name, found in ends_of(source, ends).items()
        for partition, end in found.items()
        if end != (then := ends[name].get(partition, 0))
    }


def _check_equal(source: Client, target: Client, starts: Ends, ends: Ends) -> None:
    different = [
        f"{name}-{partition}"
        for name, found in ends.items()
        for partition, end in found.items()
        if (start := starts[name][partition]) < end
        and checksum(source, name, partition, start, end)
        != checksum(target, name, partition, start, end)
    ]
    if different:
        raise LinkImpossible(f"batches differ between the clusters in {', '.join(different)}")


def denials(topics: Iterable[str]) -> list[AclBinding]:
    """Return the ACLs that deny all principals except super users to write to topics."""
    return [
        AclBinding(
            resource_type="topic", name=name, pattern_type="literal", principal="User:*", host="*",
            operation="write", permission="deny",
        )
        for name in topics
    ]  # fmt: skip


def allow_writes(client: Client, topics: Iterable[str]) -> None:
    """Delete the ACLs of `denials`."""
    for binding in denials(topics):
        client.delete_acls(AclFilter(**asdict(binding)))


# -- back -----------------------------------------------------------------------------------


def back(source: Client, target: Client, record: CutOver) -> dict[TopicAndPartition, int]:
    """Write the target's records since the cut-over to the source; return counts by partition.

    Offsets of groups follow: a group continues in the source after the last record that it has
    committed in the target.

    Raises:
        LinkImpossible: more than an hour has passed since the cut-over, a cluster is another one,
            or the source was written since; nothing is changed.
    """
    problems = []
    if SYSTEM_CLOCK.now_ms() - record.at_ms > BACK_MS:
        problems.append("more than an hour has passed since the cut-over")
    for side, client, expected in (
        ("source", source, record.source_cluster), ("target", target, record.target_cluster),
    ):  # fmt: skip
        found = client.metadata(()).cluster_id
        if found != expected:
            problems.append(f"the {side} is cluster {found}, not {expected} of the cut-over")
    problems += [
        f"{where} of the source ends at {now}, not {then}"
        for where, (now, then) in _differences(source, record.ends).items()
    ]
    if problems:
        raise LinkImpossible("; ".join(problems))
    if record.denied:
        allow_writes(source, record.ends)
    written: dict[TopicAndPartition, int] = {}
    offsets: dict[TopicAndPartition, Any] = {}
    for name, ends in ends_of(target, sorted(record.ends)).items():
        for partition, end in ends.items():
            begin = record.ends[name].get(partition, 0)
            if end > begin:
                where = name, partition
                written[where], offsets[where] = _write_back(source, target, where, begin, end)
    _groups_back(source, target, record, offsets)
    return written


def _write_back(
    source: Client, target: Client, where: TopicAndPartition, begin: int, end: int
) -> tuple[int, list[Any]]:
    """Copy committed records of a partition; return their number, and their offsets by batch."""
    name, partition = where
    count, offsets = 0, []
    for batch in target.iter_arrow(
        name,
        partitions=[partition],
        start={partition: begin},
        end={partition: end},
        columns=("offset", "key", "value", "headers", "timestamp"),
        isolation="read_committed",
    ):
        source.write_arrow(name, batch.drop_columns(["offset"]), partition=partition)
        count += batch.num_rows
        offsets.append(batch.column("offset").to_numpy())
    return count, offsets


def _groups_back(
    source: Client, target: Client, record: CutOver, offsets: Mapping[TopicAndPartition, Any]
) -> None:
    """Commit the target's group offsets in the source, by the number of records before them."""
    import numpy as np

    for group in target.list_groups():
        if group.group_type.lower() not in GROUP_TYPES:
            continue
        moved = {}
        for (name, partition), found in target.committed(group.group_id).items():
            begin = record.ends.get(name, {}).get(partition)
            if begin is None:
                continue
            batches = offsets.get((name, partition), ())
            before = sum(int(np.searchsorted(batch, found.offset)) for batch in batches)
            moved[name, partition] = min(found.offset, begin) + before
        if moved:
            source.commit_offsets(group.group_id, moved)


def encode(record: CutOver) -> bytes:
    return msgspec.json.format(msgspec.json.encode(record), indent=2)


def decode(data: bytes) -> CutOver:
    """Return the record of a cut-over from its file.

    Raises:
        LinkImpossible: the file is not such a record.
    """
    try:
        return msgspec.json.decode(data, type=CutOver)
    except msgspec.DecodeError as error:
        raise LinkImpossible(f"the file is no record of a cut-over: {error}") from None
