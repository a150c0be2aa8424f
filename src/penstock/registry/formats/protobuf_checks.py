"""Checks of a Protobuf file that protoc performs and the library's descriptor pool omits.

The checks concern numbers and names: every compiler rejects a schema that breaks them, because
it uses a number for two purposes. Style rules and placements of options are not checked.

Source: the language specification, "Assigning Field Numbers", "Reserved Fields" and "Enum Aliases".
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FileDescriptorProto,
)

from penstock.registry.formats.protobuf_symbols import types_of
from penstock.registry.formats.schema import InvalidSchema

LIBRARY_NUMBERS: Final = range(19_000, 20_000)
"""Field numbers that Protobuf keeps for its implementation."""

Range = tuple[int, int, str]
"""First number, number after the last, and the owner."""


def check_file(file: FileDescriptorProto) -> None:
    """Raise InvalidSchema if numbers or names of a file conflict."""
    for full, declared in types_of(file):
        if isinstance(declared, DescriptorProto):
            _check_message(declared, full, file.syntax)
        else:
            _check_enum(declared, full)


def _check_message(message: DescriptorProto, full: str, syntax: str) -> None:
    ranges: list[Range] = [
        (part.start, part.end, "a reserved range") for part in message.reserved_range
    ]
    ranges += [(part.start, part.end, "an extension range") for part in message.extension_range]
    for field in message.field:
        ranges.append((field.number, field.number + 1, f"the field {field.name}"))
    for field in (*message.field, *message.extension):
        if field.number in LIBRARY_NUMBERS:
            raise InvalidSchema(
                f"{full}.{field.name} has the number {field.number}. Protobuf keeps the numbers"
                f" from {LIBRARY_NUMBERS[0]} to {LIBRARY_NUMBERS[-1]} for itself."
            )
    _check_ranges(ranges, full)
    _check_reserved_names(message.reserved_name, [field.name for field in message.field], full)
    if syntax == "proto3":
        _check_json_names(message, full)


def _check_json_names(message: DescriptorProto, full: str) -> None:
    seen: dict[str, str] = {}
    for field in message.field:
        other = seen.setdefault(field.json_name, field.name)
        if other != field.name:
            raise InvalidSchema(
                f"The fields {other} and {field.name} of {full} have the same JSON name"
                f" {field.json_name}. Rename one, or set json_name."
            )


def _check_enum(enum: EnumDescriptorProto, full: str) -> None:
    _check_reserved_names(enum.reserved_name, [value.name for value in enum.value], full)
    ranges: list[Range] = [
        (part.start, part.end + 1, "a reserved range") for part in enum.reserved_range
    ]
    names: dict[int, str] = {}
    for value in enum.value:
        other = names.setdefault(value.number, value.name)
        if other != value.name and not enum.options.allow_alias:
            raise InvalidSchema(
                f"{full} uses the number {value.number} for {other} and {value.name}. Change one,"
                " or set the option allow_alias."
            )
    ranges += [(number, number + 1, f"the constant {name}") for number, name in names.items()]
    _check_ranges(ranges, full)


def _check_ranges(ranges: list[Range], full: str) -> None:
    """Raise InvalidSchema if two ranges share a number."""
    ranges.sort()
    for (_, end, owner), (start, _, next_owner) in pairwise(ranges):
        if start < end:
            raise InvalidSchema(f"{full} uses the number {start} for {owner} and {next_owner}.")


def _check_reserved_names(reserved: Sequence[str], used: Sequence[str], full: str) -> None:
    names = set(reserved)
    if len(names) < len(reserved):
        raise InvalidSchema(f"{full} reserves a name a second time.")
    for name in used:
        if name in names:
            raise InvalidSchema(f"{full}.{name} has a reserved name.")
