"""Compiler of decoders from schemas, for untrusted bytes.

kio's native readers allocate memory for the number of elements that an array declares. A message of
20 bytes can thus exhaust the memory of the process. Requests are therefore read by functions that
are generated here, from the same schemas. They return kio's dataclasses. Before they allocate
memory, they reject

- an array with more elements than the remaining bytes can contain,
- a message with more than `NUMBERS_MAX` numbers in arrays, or with more than `ELEMENTS_MAX` other
  array elements in total; Kafka 4.4 accepts up to 1,000,000 elements in each array,
- a message with more than 10,000 tagged fields,
- a negative length, a null that the schema does not allow, and any read beyond the end.

Source: Kafka's protocol guide; KIP-482. Tests compare the results with those of kio's readers.
"""

from __future__ import annotations

import struct as struct_module
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from penstock.wire.kafka.framing import (
    MalformedRequest,
    check_tags,
    read_duration,
    read_optional_time,
    read_time,
    read_uuid,
    read_uvarint,
    skip_tags,
)
from penstock.wire.kafka.schema import (
    MISSING,
    Field,
    MessageKind,
    Struct,
    error_codes,
    load_struct,
)

Decoder = Callable[[memoryview | bytes, int], tuple[Any, int]]

ELEMENTS_MAX: Final = 100_000
"""Largest number of structs, texts and ids in the arrays of a message. Each takes 200 to 400 bytes
of memory."""
NUMBERS_MAX: Final = 1_000_000
"""Largest number of plain numbers in the arrays of a message. Each takes 40 bytes of memory."""

_FIXED: Final[dict[str, tuple[str, int, str]]] = {
    # wire type: struct format, size in bytes, expression around the raw value
    "int8": ("b", 1, "{}"),
    "int16": ("h", 2, "{}"),
    "int32": ("i", 4, "{}"),
    "int64": ("q", 8, "{}"),
    "uint8": ("B", 1, "{}"),
    "uint16": ("H", 2, "{}"),
    "uint32": ("I", 4, "{}"),
    "uint64": ("Q", 8, "{}"),
    "float64": ("d", 8, "{}"),
    "bool": ("?", 1, "{}"),
    "error_code": ("h", 2, "error_code({})"),
    "uuid": ("16s", 16, "read_uuid({})"),
    "timedelta_i32": ("i", 4, "read_duration({})"),
    "timedelta_i64": ("q", 8, "read_duration({})"),
    "datetime_i64": ("q", 8, "read_time({})"),
}


@cache
def decoder(api_name: str, version: int, kind: MessageKind) -> Decoder:
    """Return the compiled decoder of a message body: `(buffer, offset) -> (entity, end offset)`.

    The decoder raises `MalformedRequest` for bytes that do not follow the schema. The entity has
    copies of all values and no reference to the buffer.

    Raises:
        UnsupportedVersion: no schema has this version.
    """
    return compile_decoder(load_struct(api_name, version, kind))


def compile_decoder(schema: Struct) -> Decoder:
    source = _Source()
    source.line("def decode(buffer, offset):")
    source.indent += 1
    source.line("size = len(buffer)")
    source.line(f"budget, numbers, tags = {ELEMENTS_MAX}, {NUMBERS_MAX}, 0")
    result = source.struct(schema)
    source.line(f"return {result}, offset")
    parse = source.compile(schema.name)
    name = schema.name

    def decode(buffer: memoryview | bytes, offset: int = 0) -> tuple[Any, int]:
        try:
            return parse(buffer, offset)
        except (struct_module.error, IndexError):
            raise MalformedRequest(
                f"{name}: the message ends after {len(buffer) - offset} bytes, within a field"
            ) from None
        except UnicodeDecodeError as error:
            raise MalformedRequest(f"{name}: text is not UTF-8: {error.reason}") from None
        except (ValueError, OverflowError) as error:
            raise MalformedRequest(f"{name}: {error}") from None
        except MalformedRequest as error:
            raise MalformedRequest(f"{name}: {error}") from None

    return decode


def _minimum_bytes(schema: Struct) -> int:
    total = sum(_minimum_field_bytes(field, schema.flexible) for field in schema.plain_fields)
    return max(1, total + schema.flexible)


def _minimum_field_bytes(field: Field, flexible: bool) -> int:
    if field.array:
        return 1 if flexible else 4
    if field.struct is not None:
        return 1 if field.nullable else _minimum_bytes(field.struct)
    return _minimum_value_bytes(field, flexible)


def _minimum_value_bytes(field: Field, flexible: bool) -> int:
    if field.kind in _FIXED:
        return _FIXED[field.kind][1]
    if flexible:
        return 1
    return 2 if field.kind == "string" else 4


def _is_plain(field: Field) -> bool:
    """Return whether elements of the array are numbers that need no conversion."""
    return field.struct is None and field.kind in _FIXED and _FIXED[field.kind][2] == "{}"


def _refuse_null(name: str) -> None:
    raise MalformedRequest(f"field {name} is null, which its schema does not allow")


def _refuse_length(name: str, length: int, left: int) -> None:
    raise MalformedRequest(f"field {name} has length {length}, but {left} bytes are left")


def _refuse_count(name: str, count: int, left: int, budget: int) -> None:
    raise MalformedRequest(
        f"array {name} has {count} elements, but {left} bytes are left, and at most {budget} more"
        " elements are allowed in this message"
    )


def _refuse_tag(name: str) -> None:
    raise MalformedRequest(f"the content of tagged field {name} does not match its length")


class _Source:
    def __init__(self) -> None:
        self.indent = 0
        self._lines: list[str] = []
        self._names = 0
        self._waiting: list[tuple[str, str]] = []  # (format, target)
        self._converted: list[str] = []
        self.scope: dict[str, Any] = {
            "read_uuid": read_uuid,
            "read_duration": read_duration,
            "read_time": read_time,
            "read_optional_time": read_optional_time,
            "read_uvarint": read_uvarint,
            "check_tags": check_tags,
            "skip_tags": skip_tags,
            "error_code": error_codes(),
            "unpack_from": struct_module.unpack_from,
            "refuse_null": _refuse_null,
            "refuse_length": _refuse_length,
            "refuse_count": _refuse_count,
            "refuse_tag": _refuse_tag,
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

    def compile(self, name: str) -> Decoder:
        exec(compile("\n".join(self._lines), f"<decode_{name}>", "exec"), self.scope)  # noqa: S102
        decode: Decoder = self.scope["decode"]
        return decode

    def flush(self) -> None:
        if not self._waiting:
            return
        unpacker = struct_module.Struct(">" + "".join(form for form, _ in self._waiting))
        call = self.constant(unpacker.unpack_from)
        targets = ", ".join(target for _, target in self._waiting)
        self.line(f"{targets}, = {call}(buffer, offset)")
        self.line(f"offset += {unpacker.size}")
        for text in self._converted:
            self.line(text)
        self._waiting.clear()
        self._converted.clear()

    def struct(self, schema: Struct) -> str:
        targets = {field.name: self.name("value") for field in schema.fields}
        for field in schema.plain_fields:
            self._field(field, targets[field.name], flexible=schema.flexible)
        self.flush()
        if schema.flexible:
            self._tags(schema, targets)
        result = self.name("entity")
        make = self.constant(schema.entity)
        arguments = ", ".join(f"{name}={target}" for name, target in targets.items())
        self.line(f"{result} = {make}({arguments})")
        return result

    def _field(self, field: Field, target: str, *, flexible: bool) -> None:
        if field.array:
            self._array(field, target, flexible=flexible)
        elif field.struct is not None:
            self._nested(field, field.struct, target)
        else:
            self._value(field, target, flexible=flexible, nullable=field.nullable)

    def _value(self, field: Field, target: str, *, flexible: bool, nullable: bool) -> None:
        if field.kind in _FIXED:
            form, _, expression = _FIXED[field.kind]
            if field.kind == "datetime_i64" and nullable:
                expression = "read_optional_time({})"
            self._waiting.append((form, target))
            if expression != "{}":
                self._converted.append(f"{target} = {expression.format(target)}")
            return
        self._text(field, target, flexible=flexible, nullable=nullable)

    def _nested(self, field: Field, schema: Struct, target: str) -> None:
        self.flush()
        if not field.nullable or field.tag is not None:
            self.line(f"{target} = {self.struct(schema)}")
            return
        self.line("marker = buffer[offset]")
        self.line("offset += 1")
        self.line(f"{target} = None")
        self.line("if marker < 128:")
        self.indent += 1
        self.line(f"{target} = {self.struct(schema)}")
        self.indent -= 1

    def _length(self, target: str, form: str, *, flexible: bool) -> None:
        """Add code that reads a length into `target`, as -1 for null in both encodings."""
        self.flush()
        if flexible:
            self.line(f"{target} = buffer[offset]")
            self.line(f"if {target} < 128:")
            self.line("    offset += 1")
            self.line("else:")
            self.line(f"    {target}, offset = read_uvarint(buffer, offset)")
            self.line(f"{target} -= 1")
            return
        call = self.constant(struct_module.Struct(">" + form).unpack_from)
        self.line(f"{target}, = {call}(buffer, offset)")
        self.line(f"offset += {struct_module.calcsize('>' + form)}")

    def _null(self, field: Field, length: str, target: str, *, nullable: bool) -> None:
        self.line(f"if {length} < 0:")
        if nullable:
            self.line(f"    if {length} < -1:")
            self.line(f"        refuse_length({field.name!r}, {length}, size - offset)")
            self.line(f"    {target} = None")
        else:
            self.line(f"    refuse_null({field.name!r})")

    def _text(self, field: Field, target: str, *, flexible: bool, nullable: bool) -> None:
        length = self.name("length")
        short = field.kind == "string"
        self._length(length, "h" if short else "i", flexible=flexible)
        self._null(field, length, target, nullable=nullable)
        self.line("else:")
        self.line(f"    end = offset + {length}")
        self.line("    if end > size:")
        self.line(f"        refuse_length({field.name!r}, {length}, size - offset)")
        copy = "str(buffer[offset:end], 'utf-8')" if short else "bytes(buffer[offset:end])"
        self.line(f"    {target} = {copy}")
        self.line("    offset = end")

    def _array(self, field: Field, target: str, *, flexible: bool) -> None:
        count = self.name("count")
        least = (
            _minimum_bytes(field.struct)
            if field.struct is not None
            else _minimum_value_bytes(field, flexible)
        )
        self._length(count, "i", flexible=flexible)
        self._null(field, count, target, nullable=field.nullable)
        self.line("else:")
        self.indent += 1
        budget = "numbers" if _is_plain(field) else "budget"
        self.line(f"if {count} > {budget} or {count} * {least} > size - offset:")
        self.line(f"    refuse_count({field.name!r}, {count}, size - offset, {budget})")
        self.line(f"{budget} -= {count}")
        self._items(field, target, count, flexible=flexible)
        self.indent -= 1

    def _items(self, field: Field, target: str, count: str, *, flexible: bool) -> None:
        if _is_plain(field):
            form, width, _ = _FIXED[field.kind]
            self.line(f"{target} = unpack_from('>%d{form}' % {count}, buffer, offset)")
            self.line(f"offset += {width} * {count}")
            return
        items = self.name("items")
        self.line(f"{items} = []")
        self.line(f"for _ in range({count}):")
        self.indent += 1
        if field.struct is not None:
            item = self.struct(field.struct)
        else:
            item = self.name("item")
            self._value(field, item, flexible=flexible, nullable=False)
        self.flush()
        self.line(f"{items}.append({item})")
        self.indent -= 1
        self.line(f"{target} = tuple({items})")

    def _tags(self, schema: Struct, targets: dict[str, str]) -> None:
        if not schema.tagged_fields:
            self.line("if buffer[offset]:")
            self.line("    section, _ = read_uvarint(buffer, offset)")
            self.line("    offset = skip_tags(buffer, offset, tags)")
            self.line("    tags += section")
            self.line("else:")
            self.line("    offset += 1")
            return
        for field in schema.tagged_fields:
            self.line(f"{targets[field.name]} = {self.constant(_default_of(field))}")
        count, tag, length, end = (self.name(stem) for stem in ("count", "tag", "length", "stop"))
        self.line(f"{count}, offset = read_uvarint(buffer, offset)")
        self.line(f"tags += {count}")
        self.line("check_tags(tags)")
        self.line(f"for _ in range({count}):")
        self.indent += 1
        self.line(f"{tag}, offset = read_uvarint(buffer, offset)")
        self.line(f"{length}, offset = read_uvarint(buffer, offset)")
        self.line(f"{end} = offset + {length}")
        self.line(f"if {end} > size:")
        self.line(f"    refuse_length('tagged field', {length}, size - offset)")
        for position, field in enumerate(schema.tagged_fields):
            self.line(f"{'if' if position == 0 else 'elif'} {tag} == {field.tag}:")
            self.indent += 1
            self._field(field, targets[field.name], flexible=True)
            self.flush()
            self.line(f"if offset != {end}:")
            self.line(f"    refuse_tag({field.name!r})")
            self.indent -= 1
        self.line("else:")
        self.line(f"    offset = {end}")
        self.indent -= 1


def _default_of(field: Field) -> Any:
    if field.default is not MISSING:
        return field.default
    if field.array:
        return ()
    if field.struct is not None:
        nested = {item.name: _default_of(item) for item in field.struct.fields}
        return field.struct.entity(**nested)
    if field.nullable or field.kind == "uuid":
        return None
    return "" if field.kind == "string" else (b"" if field.kind == "bytes" else 0)
