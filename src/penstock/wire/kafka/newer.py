"""Message versions of Apache Kafka 4.4 that kio does not have, derived from the versions before.

Each entry of `CHANGES` names the fields that differ from the previous version. A field is inserted
in place of the field that it replaces, before another field, or at the end of its struct. A
response or request without changes has an empty entry.

Source: `kafka-clients` 4.4.0's message files; KIP-1242 (ApiVersions), KIP-1319 (TxnOffsetCommit),
KIP-1331 (streams groups).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, get_args, get_origin
from uuid import UUID

from msgspec import Struct

_CLASS_ATTRIBUTES: Final = ("__type__", "__flexible__", "__api_key__", "__header_schema__")

TYPES: Final[Mapping[str, Any]] = {
    "bool": bool,
    "int8": int,
    "int32": int,
    "int64": int,
    "string": str | None,
    "timedelta_i32": timedelta,
    "uuid": UUID | None,
}
"""Types of the new fields in Python, by kind."""


class NewField(Struct, frozen=True, kw_only=True):
    """Field of a newer version.

    `replaces` is the field of the same struct that it replaces, `before` the field that follows it.
    """

    struct: str
    name: str
    kind: str
    default: Any = dataclasses.MISSING
    replaces: str = ""
    before: str = ""


CHANGES: Final[Mapping[tuple[str, int, str], tuple[NewField, ...]]] = {
    ("ApiVersions", 5, "request"): (
        NewField(struct="ApiVersionsRequest", name="cluster_id", kind="string", default=None),
        NewField(struct="ApiVersionsRequest", name="node_id", kind="int32", default=-1),
    ),
    ("ApiVersions", 5, "response"): (),
    ("TxnOffsetCommit", 6, "request"): (
        NewField(
            struct="TxnOffsetCommitRequestTopic", name="topic_id", kind="uuid", replaces="name"
        ),
    ),
    ("TxnOffsetCommit", 6, "response"): (
        NewField(
            struct="TxnOffsetCommitResponseTopic", name="topic_id", kind="uuid", replaces="name"
        ),
    ),
    ("StreamsGroupHeartbeat", 1, "request"): (),
    ("StreamsGroupHeartbeat", 1, "response"): (
        NewField(
            struct="StreamsGroupHeartbeatResponse",
            name="task_offset_interval",
            kind="timedelta_i32",
            replaces="acceptable_recovery_lag",
        ),
        NewField(
            struct="StreamsGroupHeartbeatResponse",
            name="acceptable_recovery_lag",
            kind="int64",
            default=-1,
            replaces="task_offset_interval",
        ),
        NewField(
            struct="StreamsGroupHeartbeatResponse",
            name="topology_description_required",
            kind="bool",
            default=False,
            before="endpoint_information_epoch",
        ),
    ),
    ("StreamsGroupDescribe", 1, "request"): (
        NewField(
            struct="StreamsGroupDescribeRequest",
            name="include_topology_description",
            kind="bool",
            default=False,
        ),
    ),
    ("StreamsGroupDescribe", 1, "response"): (
        NewField(  # a nullable struct that is always null, of which the wire has the number -1
            struct="DescribedGroup",
            name="topology_description",
            kind="int8",
            default=-1,
        ),
        NewField(
            struct="DescribedGroup", name="topology_description_status", kind="int8", default=0
        ),
        NewField(struct="DescribedGroup", name="assignor_name", kind="string", default=None),
    ),
    ("DeleteGroups", 3, "request"): (),
    ("DeleteGroups", 3, "response"): (
        NewField(struct="DeletableGroupResult", name="error_message", kind="string", default=None),
    ),
}
"""New fields by API name, version and kind of message."""


def derived(entity: Any, version: int, changes: tuple[NewField, ...]) -> type[Any]:
    """Return the dataclass of a newer version, with its nested structs."""
    own = [change for change in changes if change.struct == entity.__name__]
    replaced = {change.replaces: change for change in own}
    kept = []
    for item in dataclasses.fields(entity):
        kept += [_new(change) for change in own if change.before == item.name]
        change = replaced.get(item.name)
        kept.append(_kept(item, version, changes) if change is None else _new(change))
    return dataclasses.make_dataclass(
        entity.__name__,
        [*kept, *[_new(change) for change in own if not (change.replaces or change.before)]],
        namespace={
            **{name: getattr(entity, name) for name in _CLASS_ATTRIBUTES},
            "__version__": version,
        },
        frozen=True,
        slots=True,
        kw_only=True,
    )


def _new(change: NewField) -> tuple[str, Any, Any]:
    metadata = {"kafka_type": change.kind}
    field = dataclasses.field(metadata=metadata, default=change.default)
    return change.name, TYPES[change.kind], field


def _kept(
    item: dataclasses.Field[Any], version: int, changes: tuple[NewField, ...]
) -> tuple[str, Any, Any]:
    kind = item.type
    if get_origin(kind) is tuple and dataclasses.is_dataclass(get_args(kind)[0]):
        kind = tuple[derived(get_args(kind)[0], version, changes), ...]  # type: ignore[misc]
    return item.name, kind, dataclasses.field(metadata=item.metadata, default=item.default)
