"""Message schemas, read from kio's generated dataclasses when they are first needed.

kio generates one dataclass per message, version and nested struct from Kafka's own schema files.
The metadata of each field has its wire type. This module converts such a class into a `Struct` of
`Field`s, from which encoders and decoders are compiled. kio's base module imports Hypothesis if
it is installed, which takes two seconds and 200 MiB. This import is suppressed, unless Hypothesis
is already loaded.

Source: KIP-482 (tagged fields), KIP-893 (nullable structs); kio's `kio.schema` package.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import EllipsisType, ModuleType, NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin

import msgspec

from penstock.wire.kafka.framing import UnsupportedVersion

MessageKind = Literal["request", "response"]

MISSING: Final = dataclasses.MISSING
_WORDS = re.compile(r"(?<=[a-z])(?=[A-Z])")


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """Field of a struct. `kind` is the name of its wire type in kio, or `struct`."""

    name: str
    kind: str
    array: bool
    nullable: bool
    tag: int | None
    default: Any
    struct: Struct | None


class Struct(msgspec.Struct, frozen=True, kw_only=True):
    """Message or nested struct in one version of its schema; `entity` is kio's dataclass."""

    name: str
    flexible: bool
    fields: tuple[Field, ...]
    entity: type[Any]

    @property
    def plain_fields(self) -> tuple[Field, ...]:
        return tuple(field for field in self.fields if field.tag is None)

    @property
    def tagged_fields(self) -> tuple[Field, ...]:
        tagged = [field for field in self.fields if field.tag is not None]
        return tuple(sorted(tagged, key=lambda field: field.tag or 0))


@contextmanager
def _hypothesis_held_back() -> Iterator[None]:
    if "hypothesis" in sys.modules:
        yield
        return
    sys.modules["hypothesis"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["hypothesis"]


@cache
def _base_loaded() -> None:
    with _hypothesis_held_back():
        importlib.import_module("kio.schema.errors")
        importlib.import_module("kio.schema.types")


@cache
def error_codes() -> Any:
    """Return kio's `ErrorCode` enum, which is imported at the first call."""
    _base_loaded()
    return importlib.import_module("kio.schema.errors").ErrorCode


def module_name(api_name: str) -> str:
    """Return the name of kio's package for an API, such as `list_offsets` for `ListOffsets`."""
    return _WORDS.sub("_", api_name).lower()


@cache
def load_module(api_name: str, version: int, kind: MessageKind) -> ModuleType:
    """Import the generated module of a message.

    Raises:
        UnsupportedVersion: no schema has this version.
    """
    _base_loaded()
    try:
        return importlib.import_module(f"kio.schema.{module_name(api_name)}.v{version}.{kind}")
    except ModuleNotFoundError:
        raise UnsupportedVersion(f"{api_name} {kind} has no version {version}") from None


@cache
def load_entity(api_name: str, version: int, kind: MessageKind) -> type[Any]:
    """Return the dataclass of a whole message.

    Raises:
        UnsupportedVersion: no schema has this version.
    """
    try:
        module = load_module(api_name, version, kind)
    except UnsupportedVersion:
        from penstock.wire.kafka.newer import CHANGES, derived

        changes = CHANGES.get((api_name, version, kind))
        if changes is None:
            raise
        return derived(load_entity(api_name, version - 1, kind), version, changes)
    entity: type[Any] = getattr(module, f"{api_name}{kind.capitalize()}")
    return entity


@cache
def load_struct(api_name: str, version: int, kind: MessageKind) -> Struct:
    """Return the schema of a whole message.

    Raises:
        UnsupportedVersion: no schema has this version.
    """
    return struct_of(load_entity(api_name, version, kind))


def struct_of(entity: Any) -> Struct:
    """Return the schema of one of kio's dataclasses, with its nested structs."""
    return Struct(
        name=entity.__name__,
        flexible=entity.__flexible__,
        fields=tuple(_field(item) for item in dataclasses.fields(entity)),
        entity=entity,
    )


def _field(item: dataclasses.Field[Any]) -> Field:
    inner, nullable = _without_none(item.type)
    array = get_origin(inner) is tuple
    if array:
        inner, end = get_args(inner)
        if not isinstance(end, EllipsisType):
            raise TypeError(f"field {item.name}: {item.type} is not an array")
        inner, _ = _without_none(inner)
    nested = struct_of(inner) if dataclasses.is_dataclass(inner) else None
    tag = item.metadata.get("tag")
    return Field(
        name=item.name,
        kind="struct" if nested is not None else item.metadata["kafka_type"],
        array=array,
        nullable=nullable,
        tag=None if tag is None else int(tag),
        default=item.default,
        struct=nested,
    )


def _without_none(annotation: Any) -> tuple[Any, bool]:
    if get_origin(annotation) not in (UnionType, Union):
        return annotation, False
    others = [part for part in get_args(annotation) if part is not NoneType]
    if len(others) != 1:
        raise TypeError(f"{annotation} is not one type or None")
    return others[0], len(get_args(annotation)) > 1
