"""Requests with null in any field that may be null are answered, and nothing fails on them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from copy import deepcopy
from typing import Any
from uuid import UUID

import pytest

from penstock.broker.server import BrokerServer
from penstock.wire.kafka.apis import APIS, Api
from penstock.wire.kafka.schema import Struct, load_struct
from tests.broker.test_authorisation import sample
from tests.broker.wire_client import WireClient

INVALID_REQUEST, UNKNOWN_TOPIC_ID = 42, 100
UNKNOWN = UUID(int=77)
Path = tuple[str, ...]


def nullable(schema: Struct, path: Path = ()) -> Iterator[Path]:
    """The paths of the fields of a request that may be null."""
    for field in schema.fields:
        own = (*path, field.name)
        if field.nullable:
            yield own
        if field.struct is not None:
            yield from nullable(field.struct, own)


def without(request: dict[str, Any], paths: tuple[Path, ...]) -> dict[str, Any]:
    """A request with null in these fields."""
    changed = deepcopy(request)
    for path in paths:
        found: Any = changed
        for name in path[:-1]:
            found = found.get(name) if found is not None else None
            found = found[0] if isinstance(found, list) and found else found
        if isinstance(found, dict):
            found[path[-1]] = None
    return changed


def with_ids(value: Any, topic_id: UUID | None) -> Any:
    """A request whose topics have this id, beside their names."""
    if isinstance(value, list):
        return [with_ids(item, topic_id) for item in value]
    if not isinstance(value, dict):
        return value
    ids = {"topic_id": topic_id} if "topic_id" in value else {}
    return {name: with_ids(item, topic_id) for name, item in value.items()} | ids


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: str(api.name))
async def test_null_is_answered_wherever_it_may_be(
    api: Api, broker: BrokerServer, client: WireClient, caplog: pytest.LogCaptureFixture
) -> None:
    await client.create("t")
    topic_id = broker.cluster.image.topics["t"].topic_id
    for version in range(api.served_from, api.maximum + 1):
        schema = load_struct(api.name, version, "request")
        paths = list(nullable(schema))
        for known in (topic_id, UNKNOWN, None):
            request = with_ids(sample(schema, topic_id), known)
            for chosen in [*[(path,) for path in paths], tuple(paths)]:
                try:
                    await client.call(api.name, version, without(request, chosen))
                finally:
                    failed = [line for line in caplog.records if line.levelno >= logging.ERROR]
                    assert not failed, (version, chosen)


@pytest.mark.parametrize("version", [10, 11, 12, 13])
@pytest.mark.parametrize("name", [None, "t"])
@pytest.mark.parametrize("known", [True, False, None])
async def test_metadata_by_id_is_answered_as_apache_kafka_does(
    broker: BrokerServer, client: WireClient, version: int, name: str | None, known: bool | None
) -> None:
    await client.create("t")
    topic_id = broker.cluster.image.topics["t"].topic_id if known else UNKNOWN
    asked = {"name": name, "topic_id": None if known is None else topic_id}
    wanted = {"topics": [asked], "allow_auto_topic_creation": False}
    answer = await client.call("Metadata", version, wanted)
    (topic,) = answer.topics
    if version < 12:
        refused = name is None or known is not None
        assert int(topic.error_code) == (INVALID_REQUEST if refused else 0)
        assert topic.name == (name or "")
    elif known is not None:
        assert (topic.topic_id, topic.name) == (topic_id, "t" if known else None)
        assert int(topic.error_code) == (0 if known else UNKNOWN_TOPIC_ID)
