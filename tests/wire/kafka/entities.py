"""Strategies that draw whole messages from a schema, for the codec tests."""

from __future__ import annotations

import io
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from penstock.wire.kafka.apis import APIS, Api
from penstock.wire.kafka.framing import Endpoint
from penstock.wire.kafka.schema import Field, MessageKind, Struct, load_struct

TABLE = list(APIS.values())
KINDS: tuple[MessageKind, ...] = ("request", "response")

_INTEGERS = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint16": (0, 2**16 - 1),
    "uint32": (0, 2**32 - 1),
}
_TIMES = st.integers(0, 4_000_000_000_000).map(
    lambda ms: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
)


LEADERS = st.none() | st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))
_PLACES = st.text(max_size=150)
ENDPOINTS = st.lists(
    st.tuples(st.integers(0, 2**31 - 1), _PLACES, st.integers(0, 65_535), st.none() | _PLACES),
    max_size=3,
)


def node_endpoints(module: Any, endpoints: Sequence[Endpoint]) -> tuple[Any, ...]:
    """Endpoints as kio has them."""
    names = ("node_id", "host", "port", "rack")
    return tuple(
        module.NodeEndpoint(**dict(zip(names, endpoint, strict=True))) for endpoint in endpoints
    )


def served_versions(api: Api) -> range:
    return range(api.served_from, api.maximum + 1)


def messages(api: Api, version: int, kind: MessageKind) -> st.SearchStrategy[Any]:
    """Instances of kio's dataclass of a message."""
    return entities(load_struct(api.name, version, kind))


def entities(schema: Struct) -> st.SearchStrategy[Any]:
    return st.builds(schema.entity, **{field.name: _values(field) for field in schema.fields})


def _values(field: Field) -> st.SearchStrategy[Any]:
    one = entities(field.struct) if field.struct is not None else _scalars(field.kind)
    strategy = st.lists(one, max_size=3).map(tuple) if field.array else one
    if field.kind == "uuid" and not field.array:
        return st.none() | strategy
    # A tagged field has no null on the wire: it is left out instead, when it is the default.
    if field.nullable and (field.tag is None or field.default is None):
        return st.none() | strategy
    return strategy


def _scalars(kind: str) -> st.SearchStrategy[Any]:
    from kio.schema.errors import ErrorCode

    if kind in _INTEGERS:
        return st.integers(*_INTEGERS[kind])
    return {
        "float64": st.floats(allow_nan=False),
        "bool": st.booleans(),
        "string": st.text(max_size=200),
        "bytes": st.binary(max_size=200),
        "records": st.binary(max_size=200),
        "uuid": st.uuids().filter(lambda value: value.int != 0),
        "error_code": st.sampled_from(ErrorCode),
        "timedelta_i32": st.integers(-(2**31), 2**31 - 1).map(lambda ms: timedelta(0, 0, 0, ms)),
        "timedelta_i64": st.integers(-(2**40), 2**40).map(lambda ms: timedelta(0, 0, 0, ms)),
        "datetime_i64": _TIMES,
    }[kind]


def written_by_kio(entity: Any) -> bytes:
    from kio.serial import entity_writer

    with io.BytesIO() as buffer:
        entity_writer(type(entity))(buffer, entity)
        return buffer.getvalue()


def as_mapping(entity: Any, schema: Struct) -> dict[str, Any]:
    """The same message in the form that handlers return."""
    return {field.name: _mapped(getattr(entity, field.name), field) for field in schema.fields}


def _mapped(value: Any, field: Field) -> Any:
    if field.struct is None or value is None:
        return value
    if field.array:
        return [as_mapping(item, field.struct) for item in value]
    # Equality with the default decides whether a tagged struct is written at all.
    return (
        value
        if field.tag is not None and value == field.default
        else as_mapping(value, field.struct)
    )
