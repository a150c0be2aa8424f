"""Requests that are generated from the schemas, and the comparison of two servers' responses.

Every request exists in four variants. `known` names resources that exist, `unknown` names others,
`empty` has empty arrays and nulls, and `mixed` chooses one of these for each field. Equal requests
are sent to both servers; they differ only in the ids of topics.

A response is reduced to what both servers must agree on: values that belong to one server (ids,
addresses, times, sizes, texts of messages) are replaced by a word that says only whether they are
there. A difference is a line `field.field: APACHE -> PENSTOCK`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from tests.broker.wire_client import WireClient, batch

from penstock.wire.kafka.framing import MalformedRequest
from penstock.wire.kafka.schema import MISSING, Field, Struct, load_struct

VARIANTS: Final = ("known", "unknown", "empty", "mixed")
ANSWER_SECONDS: Final = 20.0

_TOPICS: Final = {"name", "topic", "topic_name", "topic_names", "resource_name"}
_GROUPS: Final = {"group_id", "groups", "groups_names", "group_ids", "key", "coordinator_keys"}
_TRANSACTIONS: Final = {
    "transactional_id", "transactional_ids", "v3_and_below_transactional_id",
}  # fmt: skip
_PARTITIONS: Final = {"partition_index", "partition", "index", "partition_indexes", "partitions"}
_TEXTS: Final = {
    "protocol_type": "consumer",
    "resource_name_filter": "r",
    "principal": "User:a",
    "principal_filter": "User:a",
    "host": "*",
    "host_filter": "*",
    "mechanism": "PLAIN",
    "configuration_keys": "retention.ms",
    "entity_type": "user",
    "state_filters": "Empty",
    "states_filter": "Empty",
    "types_filter": "classic",
    "path": "/nowhere",
    "feature": "share.version",
    "server_assignor": "uniform",
    "client_software_name": "compat",
    "client_software_version": "1",
    "value": "1000",
}
_NUMBERS: Final = {
    "acks": -1,
    "replica_id": -1,
    "current_leader_epoch": -1,
    "producer_id": -1,
    "producer_epoch": -1,
    "v3_and_below_producer_id": -1,
    "v3_and_below_producer_epoch": -1,
    "generation_id": -1,
    "generation_id_or_member_epoch": -1,
    "session_epoch": -1,
    "timestamp": -1,
    "max_bytes": 1 << 20,
    "partition_max_bytes": 1 << 20,
    "num_partitions": 1,
    "replication_factor": 1,
    "count": 3,
    "resource_type": 2,
    "resource_types": 2,
    "resource_pattern_type": 3,
    "resource_type_filter": 1,
    "pattern_type_filter": 1,
    "pattern_type": 3,
    "operation": 2,
    "permission_type": 3,
    "config_operation": 0,
    "max_version_level": 2,
    "broker_id": 99,
    "broker_ids": 1,
    "replicas": 1,
    "acknowledge_types": 1,
    "timeout": 5_000,
    "session_timeout": 10_000,
    "rebalance_timeout": 5_000,
    "transaction_timeout": 5_000,
    "response_partition_limit": 100,
    "iterations": 4096,
    "scram_mechanism": 1,
    "max_records": 1,
    "batch_size": 1,
    "renew_period": 1000,
    "max_lifetime": -1,
    "expiry_time_period": -1,
}
_IGNORED: Final = frozenset({"throttle_time", "error_message", "message", "log_append_time"})
_VOLATILE: Final = frozenset({
    "member_id", "leader", "producer_id", "port",
    "cluster_id", "topic_id", "session_id", "auth_bytes", "timestamp",
    "last_fetch_timestamp", "last_caught_up_timestamp", "finalized_features_epoch", "log_dir",
    "total_bytes", "usable_bytes", "partition_size", "replica_directory_id", "log_end_offset",
    "high_watermark", "client_instance_id", "subscription_id", "push_interval", "members",
    "issue_timestamp", "expiry_timestamp", "max_timestamp", "token_id", "hmac",
})  # fmt: skip
_KEYS: Final = (
    "api_key", "partition_index", "partition", "index", "partition_id", "group_id",
    "transactional_id", "name", "topic", "topic_name", "topic_id", "resource_name", "user",
    "feature", "key", "node_id", "broker_id",
)  # fmt: skip
_SHOWN_KEYS: Final = ("api_keys", "configs", "supported_features", "finalized_features")
"""Arrays whose elements have the same names on both servers, so that paths name them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Names that the requests of one pair use, and the ids of topics on one server."""

    topic: str
    topic_id: UUID
    group: str


class Generator:
    """Builder of one request; the same `seed` gives the same choices."""

    def __init__(self, scene: Scene, variant: str, seed: str) -> None:
        self._scene = scene
        self._variant = variant
        self._random = random.Random(seed)
        self._nulls: tuple[str, ...] = ()

    def request(self, schema: Struct) -> dict[str, Any]:
        """Return the fields of a request or nested struct."""
        if schema.name == "ProduceRequest":
            self._nulls = ("transactional_id",)  # the batch belongs to no transaction
        return {field.name: self._field(field) for field in schema.fields}

    def _field(self, field: Field) -> Any:
        variant = self._variant
        if variant == "mixed":
            variant = self._random.choice(VARIANTS[:3])
        if field.tag is not None and field.default is not MISSING:
            return field.default
        if field.nullable and (variant == "empty" or field.name in self._nulls):
            return None
        if not field.array:
            return self._value(field, variant)
        return (
            []
            if variant == "empty" and field.name != "transactions"
            else [self._value(field, variant)]
        )

    def _value(self, field: Field, variant: str) -> Any:
        name, known = field.name, variant == "known"
        if field.struct is not None:
            return self.request(field.struct)
        if field.kind == "string":
            return self._text(field, known)
        if field.kind == "uuid":
            return self._scene.topic_id if known else UUID(int=5)
        if field.kind == "records":
            return batch(b"a")
        if field.kind == "bytes":
            return b""
        if field.kind == "bool":
            return False
        if name in _PARTITIONS:
            return 0 if known else 99
        if name.endswith("max_wait") or name == "min_bytes":
            return 0
        if name in _NUMBERS:
            return _NUMBERS[name]
        return (
            0 if field.default is MISSING or not isinstance(field.default, int) else field.default
        )

    def _text(self, field: Field, known: bool) -> str:
        scene, name = self._scene, field.name
        if name in _TOPICS:
            return scene.topic if known else f"{scene.topic}-unknown"
        if name in _GROUPS:
            return scene.group if known else f"{scene.group}-unknown"
        if name in _TRANSACTIONS:
            return f"{scene.group}-transactions"
        return _TEXTS.get(name, "")


async def answered(
    client: WireClient, name: str, version: int, request: Mapping[str, Any], own: str
) -> Any:
    """Return the reduced response, or a word for a connection that the server closes."""
    try:
        client.writer.write(client.frame(name, version, request))
        async with asyncio.timeout(ANSWER_SECONDS):
            entity = await client.response(name, version)
    except (ConnectionError, asyncio.IncompleteReadError):
        return "closed"
    except TimeoutError:
        return "no response"
    except MalformedRequest as error:
        return f"undecodable: {error}"
    return reduced(entity, load_struct(name, version, "response"), own)


def reduced(entity: Any, schema: Struct, own: str) -> dict[str, Any]:
    """Return the comparable part of a response; `own` is the topic of the pair."""
    found: dict[str, Any] = {}
    for field in schema.fields:
        value = getattr(entity, field.name)
        if field.name in _IGNORED:
            continue
        if field.name in _VOLATILE:
            found[field.name] = "absent" if value in (None, "", (), 0, -1, b"") else "present"
        elif field.struct is None or value is None:
            found[field.name] = _plain(value, own)
        elif field.array:
            found[field.name] = _elements(field, value, own)
        else:
            found[field.name] = reduced(value, field.struct, own)
    return found


def _plain(value: Any, own: str) -> Any:
    if isinstance(value, str):
        return value.replace(own, "T")
    name = getattr(value, "name", None)
    if isinstance(name, str):
        return name
    return list(value) if isinstance(value, tuple) else value


def _elements(field: Field, values: Sequence[Any], own: str) -> Any:
    """Return the elements of an array, without those of internal topics and of other pairs."""
    assert field.struct is not None
    items = [
        (_key(value), reduced(value, field.struct, own))
        for value in values
        if _pair_of(_key(value)) == own or not _key(value).startswith(("__", "t-", "g-"))
    ]
    if field.name in _SHOWN_KEYS:
        return dict(items)
    return [item for _, item in sorted(items, key=lambda item: item[0])]


def _pair_of(name: str) -> str:
    """Return the topic of the pair whose request has a name."""
    return name.removeprefix("g-").removesuffix("-transactions").removesuffix("-unknown")


def _key(value: Any) -> str:
    return next((str(getattr(value, name)) for name in _KEYS if hasattr(value, name)), "")


def differences(apache: Any, penstock: Any, path: str = "") -> Iterator[str]:
    """Yield a line for each difference of two reduced responses."""
    if isinstance(apache, dict) and isinstance(penstock, dict):
        for name in sorted({*apache, *penstock}):
            inner = f"{path}.{name}" if path else str(name)
            if name not in apache or name not in penstock:
                there = "missing -> present" if name in penstock else "present -> missing"
                yield f"{inner}: {there}"
            else:
                yield from differences(apache[name], penstock[name], inner)
    elif isinstance(apache, list) and isinstance(penstock, list) and len(apache) == len(penstock):
        for expected, actual in zip(apache, penstock, strict=True):
            yield from differences(expected, actual, path)
    elif isinstance(apache, list) and isinstance(penstock, list):
        yield f"{path}: {len(apache)} elements -> {len(penstock)} elements"
    elif apache != penstock:
        yield f"{path or 'response'}: {_word(apache)} -> {_word(penstock)}"


def _word(value: Any) -> str:
    return "a struct" if isinstance(value, dict) else str(value)
