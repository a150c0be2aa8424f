"""Error responses of all APIs, built from the response schemas.

A response struct with an `error_code` gets the error and empty arrays. In a struct without one, the
arrays whose elements have error codes are filled. Such an array gets an element with the error for
each element of the corresponding request array. Fields with the same name are copied from there.

Source: the `getErrorResponse` methods of Kafka's `org.apache.kafka.common.requests`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from penstock.base.errors import BugError
from penstock.wire.kafka.apis import Api
from penstock.wire.kafka.schema import MISSING, Field, Struct, load_struct

_NUMBERS: Final = frozenset({"int32", "int64"})
_EVERYWHERE: Final = ("ElectLeaders",)
"""APIs whose response elements get the error in addition to the top level, because Kafka's clients
ignore the top-level error."""
_USERS: Final = {"deletions", "upsertions"}
_CODES: Final = ("error_code", "partition_error_code")
_TEXT_NAMES: Final = ("name", "key", "topic", "group_id", "transactional_id")
"""Response fields that receive a request element if the element is a string."""
_PARTITION_NAMES: Final = ("partition_index", "partition", "index", "partition_id")
_NAMES_OF: Final = {**dict.fromkeys(_PARTITION_NAMES, _PARTITION_NAMES), "user": ("name",)}
"""Names of the corresponding request fields, by response field, if the names differ."""
_ZERO: Final[dict[str, Any]] = {"string": "", "bytes": b"", "records": b"", "uuid": None}


def error_answer(api: Api, version: int, request: Any, number: int, message: str) -> dict[str, Any]:
    """Return the response to a failed request. `request` is None if it could not be decoded."""
    schema = load_struct(api.name, version, "response")
    return _fill(schema, request, number, message, everywhere=api.name in _EVERYWHERE)


def element_answers(
    api: Api, version: int, elements: Sequence[Any], number: int, message: str
) -> tuple[str, list[dict[str, Any]]]:
    """Return the name of the response array with error codes, and its elements for `elements`."""
    schema = load_struct(api.name, version, "response")
    for field in schema.fields:
        if field.array and field.struct is not None and _carries_error(field.struct):
            return field.name, [
                _fill(field.struct, element, number, message) for element in elements
            ]
    raise BugError(f"the response of {api.name} version {version} has no array with error codes")


def _fill(
    schema: Struct, source: Any, number: int, message: str, *, everywhere: bool = False
) -> dict[str, Any]:
    has_code = not everywhere and any(field.name in _CODES for field in schema.fields)
    answer: dict[str, Any] = {}
    for field in schema.fields:
        if field.name in _CODES:
            answer[field.name] = number
        elif field.name == "error_message":
            answer[field.name] = message
        elif field.array:
            answer[field.name] = (
                () if has_code else _elements(field, source, number=number, message=message)
            )
        else:
            answer[field.name] = _value(field, source)
    return answer


def _elements(field: Field, source: Any, *, number: int, message: str) -> list[dict[str, Any]]:
    if field.struct is None or not _carries_error(field.struct) or source is None:
        return []
    return [_fill(field.struct, item, number, message) for item in _counterpart(field, source)]


def _counterpart(field: Field, source: Any) -> Any:
    slots = getattr(type(source), "__slots__", ())
    if {*slots} >= _USERS:
        return tuple([user for name in slots if name in _USERS for user in getattr(source, name)])
    if field.name in slots and isinstance(getattr(source, field.name), tuple):
        return getattr(source, field.name)
    for name in slots:
        value = getattr(source, name)
        if isinstance(value, tuple) and value:
            return value
    return ()


@cache
def _carries_error(schema: Struct) -> bool:
    return any(
        field.name in _CODES
        or (field.array and field.struct is not None and _carries_error(field.struct))
        for field in schema.fields
    )


def _value(field: Field, source: Any) -> Any:
    if source is None:
        return _default(field)
    if isinstance(source, str):
        return source if field.name in _TEXT_NAMES else _default(field)
    if isinstance(source, int):
        return source if field.name in _PARTITION_NAMES else _default(field)
    for name in _NAMES_OF.get(field.name, (field.name,)):
        if hasattr(source, name):
            value = getattr(source, name)
            return _default(field) if value is None and not field.nullable else value
    return _default(field)


def _default(field: Field) -> Any:
    if field.default is not MISSING:
        return field.default
    if field.nullable:
        return None
    if field.struct is not None:
        return {item.name: _default(item) for item in field.struct.fields}
    return -1 if field.kind in _NUMBERS else _ZERO.get(field.kind, 0)
