"""Compiler of encoders from schemas, as fast as hand-written ones.

kio's writer makes one call and one `write` per field, which takes 473 µs for a Metadata response of
100 partitions. Here one function is generated per message and version, at its first use. It packs
adjacent fields of fixed size by one `struct.pack`, writes nested arrays in nested loops, and joins
the pieces once. The result equals that of kio's writer. An encoder accepts values in two forms:

- `entity`: kio's own dataclasses, or anything with the same attributes;
- `mapping`: plain mappings by kio's field names. Fields that the version lacks are ignored, missing
  fields have the schema's default. `error_code` and `throttle_time` default to 0, booleans to
  false, nullable fields to null.

In both forms, durations and times may be integers in milliseconds, and UUIDs may be 16 bytes.

Source: Kafka's protocol guide; KIP-482. Tests compare every response with that of kio's writer.
"""

from __future__ import annotations

import struct as struct_module
from collections.abc import Callable
from functools import cache
from typing import Any, Final, Literal

from penstock.wire.kafka.framing import (
    SHORT_UVARINTS,
    UnencodableResponse,
    milliseconds,
    timestamp_ms,
    uuid_bytes,
    uvarint,
)
from penstock.wire.kafka.schema import MISSING, Field, MessageKind, Struct, load_struct

Form = Literal["entity", "mapping"]
Encoder = Callable[[Any], bytes]

_FIXED: Final[dict[str, tuple[str, str]]] = {
    # wire type: struct format, expression around the value
    "int8": ("b", "{}"),
    "int16": ("h", "{}"),
    "int32": ("i", "{}"),
    "int64": ("q", "{}"),
    "uint8": ("B", "{}"),
    "uint16": ("H", "{}"),
    "uint32": ("I", "{}"),
    "uint64": ("Q", "{}"),
    "float64": ("d", "{}"),
    "bool": ("?", "{}"),
    "error_code": ("h", "{}"),
    "uuid": ("16s", "uuid_bytes({})"),
    "timedelta_i32": ("i", "milliseconds({})"),
    "timedelta_i64": ("q", "milliseconds({})"),
    "datetime_i64": ("q", "timestamp_ms({})"),
}
_IMPLICIT: Final = {"error_code": 0, "throttle_time": 0}


@cache
def encoder(api_name: str, version: int, kind: MessageKind, form: Form = "mapping") -> Encoder:
    """Return the compiled encoder of a message body (no header).

    Raises:
        UnsupportedVersion: no schema has this version.
    """
    return compile_encoder(load_struct(api_name, version, kind), form)


def compile_encoder(schema: Struct, form: Form) -> Encoder:
    source = _Source(form)
    source.line(f"def encode_{schema.name}(value):")
    source.indent += 1
    source.line("pieces = []")
    source.line("append = pieces.append")
    source.struct(schema, "value")
    source.flush()
    source.line("return b''.join(pieces)")
    return source.compile(f"encode_{schema.name}")


def _not_null(name: str) -> None:
    raise UnencodableResponse(f"field {name} must not be null")


class _Source:
    """Source text of an encoder under construction.

    Adjacent fields of fixed size are collected until `flush` adds one line that packs them all.
    """

    def __init__(self, form: Form) -> None:
        self.indent = 0
        self._form = form
        self._lines: list[str] = []
        self._formats: list[str] = []
        self._arguments: list[str] = []
        self._names = 0
        self._out = "append"
        self.scope: dict[str, Any] = {
            "uvarint": uvarint,
            "short": SHORT_UVARINTS,
            "uuid_bytes": uuid_bytes,
            "milliseconds": milliseconds,
            "timestamp_ms": timestamp_ms,
            "not_null": _not_null,
            "pack": struct_module.pack,
        }

    def line(self, text: str) -> None:
        self._lines.append("    " * self.indent + text)

    def name(self, stem: str) -> str:
        self._names += 1
        return f"{stem}{self._names}"

    def constant(self, value: Any) -> str:
        name = self.name("constant")
        self.scope[name] = value
        return name

    def pack(self, form: str, argument: str | None = None) -> None:
        """Collect a field of fixed size with format `form`; without argument, it is padding."""
        self._formats.append(form)
        if argument is not None:
            self._arguments.append(argument)

    def flush(self) -> None:
        if not self._formats:
            return
        packer = struct_module.Struct(">" + "".join(self._formats))
        if self._arguments:
            call = self.constant(packer.pack)
            self.line(f"{self._out}({call}({', '.join(self._arguments)}))")
        else:
            self.line(f"{self._out}({bytes(packer.size)!r})")
        self._formats.clear()
        self._arguments.clear()

    def compile(self, function: str) -> Encoder:
        text = "\n".join(self._lines)
        exec(compile(text, f"<{function}>", "exec"), self.scope)  # noqa: S102
        encode: Encoder = self.scope[function]
        return encode

    def struct(self, schema: Struct, value: str) -> None:
        for field in schema.plain_fields:
            self._field(field, self._access(field, value), flexible=schema.flexible)
        if not schema.flexible:
            return
        if schema.tagged_fields:
            self._tags(schema.tagged_fields, value)
        else:
            self.pack("x")

    def _access(self, field: Field, value: str) -> str:
        if self._form == "entity":
            return f"{value}.{field.name}"
        if field.default is not MISSING:
            return f"{value}.get({field.name!r}, {self.constant(field.default)})"
        if field.name in _IMPLICIT:
            return f"{value}.get({field.name!r}, {_IMPLICIT[field.name]})"
        if field.nullable or field.kind in ("uuid", "bool"):
            return f"{value}.get({field.name!r})"
        return f"{value}[{field.name!r}]"

    def _field(self, field: Field, access: str, *, flexible: bool) -> None:
        if field.array:
            self._array(field, access, flexible=flexible)
        elif field.struct is not None:
            self._nested(field, field.struct, access)
        elif field.kind in _FIXED:
            form, expression = _FIXED[field.kind]
            self.pack(form, expression.format(access))
        else:
            nullable = field.nullable and field.tag is None
            self._text(field, access, flexible=flexible, nullable=nullable)

    def _nested(self, field: Field, schema: Struct, access: str) -> None:
        nested = self.name("nested")
        self.flush()
        self.line(f"{nested} = {access}")
        if not field.nullable or field.tag is not None:
            self.struct(schema, nested)
            return
        self.line(f"if {nested} is None:")
        self.line(f"    {self._out}(b'\\xff')")
        self.line("else:")
        self.indent += 1
        self.line(f"{self._out}(b'\\x01')")
        self.struct(schema, nested)
        self.flush()
        self.indent -= 1

    def _text(self, field: Field, access: str, *, flexible: bool, nullable: bool) -> None:
        text = self.name("text")
        short = field.kind == "string"
        null = "b'\\x00'" if flexible else ("b'\\xff\\xff'" if short else "b'\\xff\\xff\\xff\\xff'")
        encode = f"{text} = {text}.encode()" if short else "pass"
        # Pending fixed fields are packed together with the length, so the value is read first. Only
        # before a nullable value they are packed without it.
        if nullable:
            self.flush()
        self.line(f"{text} = {access}")
        self.line(f"if {text} is None:")
        if not nullable:
            self.line(f"    not_null({field.name!r})")
            self._text_body(text, encode, flexible=flexible, short=short)
            return
        self.line(f"    {self._out}({null})")
        self.line("else:")
        self.indent += 1
        self._text_body(text, encode, flexible=flexible, short=short)
        self.indent -= 1

    def _text_body(self, text: str, encode: str, *, flexible: bool, short: bool) -> None:
        if encode != "pass":
            self.line(encode)
        if flexible:
            self.flush()
            self._count(text)
        else:
            self.pack("h" if short else "i", f"len({text})")
            self.flush()
        self.line(f"{self._out}({text})")

    def _array(self, field: Field, access: str, *, flexible: bool) -> None:
        items = self.name("items")
        self.flush()
        self.line(f"{items} = {access}")
        self.line(f"if {items} is None:")
        self.line(f"    {self._out}({(bytes(1) if flexible else bytes([255] * 4))!r})")
        self.line("else:")
        self.indent += 1
        if flexible:
            self._count(items)
        else:
            self.pack("i", f"len({items})")
            self.flush()
        self._items(field, items, flexible=flexible)
        self.indent -= 1

    def _count(self, value: str) -> None:
        short = f"short[len({value}) + 1] if len({value}) < {len(SHORT_UVARINTS) - 1}"
        self.line(f"{self._out}({short} else uvarint(len({value}) + 1))")

    def _items(self, field: Field, items: str, *, flexible: bool) -> None:
        if field.struct is None and field.kind in _FIXED and _FIXED[field.kind][1] == "{}":
            form = _FIXED[field.kind][0]
            self.line(f"{self._out}(pack('>%d{form}' % len({items}), *{items}))")
            return
        item = self.name("item")
        self.line(f"for {item} in {items}:")
        self.indent += 1
        if field.struct is not None:
            self.struct(field.struct, item)
        elif field.kind in _FIXED:
            form, expression = _FIXED[field.kind]
            self.pack(form, expression.format(item))
        else:
            self._text(field, item, flexible=flexible, nullable=False)
        self.flush()
        self.indent -= 1

    def _tags(self, fields: tuple[Field, ...], value: str) -> None:
        """Add code that writes the tagged fields that differ from their default, by tag."""
        self.flush()
        outer, count, tags = self._out, self.name("count"), self.name("tags")
        self.line(f"{count} = 0")
        self.line(f"{tags} = []")
        for field in fields:
            tagged, inner = self.name("tagged"), self.name("inner")
            self.line(f"{tagged} = {self._access(field, value)}")
            default = _default_of(field)
            differs = tagged if default == () else f"{tagged} != {self.constant(default)}"
            self.line(f"if {differs}:")
            self.indent += 1
            self.line(f"{count} += 1")
            self.line(f"{inner} = []")
            self._out = f"{inner}.append"
            self._field(field, tagged, flexible=True)
            self.flush()
            self.line(f"{inner} = b''.join({inner})")
            self.line(f"{tags} += (uvarint({field.tag}), uvarint(len({inner})), {inner})")
            self.indent -= 1
        self._out = outer
        self.line(f"{outer}(uvarint({count}))")
        self.line(f"if {count}:")
        self.line(f"    {outer}(b''.join({tags}))")


def _default_of(field: Field) -> Any:
    if field.default is not MISSING:
        return field.default
    if field.array:
        return ()
    if field.struct is not None:
        return None if field.nullable else _default_entity(field.struct)
    if field.kind == "uuid" or field.nullable:
        return None
    return "" if field.kind == "string" else (b"" if field.kind == "bytes" else 0)


def _default_entity(schema: Struct) -> Any:
    return schema.entity(**{field.name: _default_of(field) for field in schema.fields})
