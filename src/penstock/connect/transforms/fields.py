"""Transforms of fields in keys and values."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.base.errors import InvalidSetting
from penstock.base.settings import Kind, parse_list, setting
from penstock.connect.converting import whole
from penstock.connect.paths import (
    FieldPath,
    changed_at,
    fields_of,
    inserted,
    parse_path,
    struct_of,
    with_column,
)
from penstock.connect.plugins import KEY, OFFSET, PARTITION, TIMESTAMP, VALUE, Records
from penstock.connect.transforms.casting import TARGETS, cast
from penstock.connect.transforms.dates import parse_format
from penstock.connect.transforms.transform import (
    FIELD,
    FIELDS,
    ColumnTransform,
    FieldOptions,
    constant,
    need_struct,
    reject,
)

Pairs = tuple[tuple[FieldPath | None, str], ...]
NO_FIELD: Final = FieldPath("", ())
_MS: Final = pa.timestamp("ms", "UTC")
_UNITS: Final = {
    "seconds": 1_000,
    "milliseconds": 1,
    "microseconds": 1_000,
    "nanoseconds": 1_000_000,
}
"""For a precision: milliseconds in a second, or units in a millisecond."""


def _casts(value: object) -> Pairs:
    found: list[tuple[FieldPath | None, str]] = []
    for word in parse_list(value):
        name, _, target = word.rpartition(":")
        target = target.strip().lower()
        if target not in TARGETS:
            raise ValueError(f"type {target!r} of {word!r} is not one of {', '.join(TARGETS)}")
        found.append((parse_path(name.strip()) if ":" in word else None, target))
    if not found or (len(found) > 1 and any(path is None for path, _ in found)):
        raise ValueError("must be fields with types such as amount:float64, or one type")
    return tuple(found)


def _renames(value: object) -> Pairs:
    found: list[tuple[FieldPath | None, str]] = []
    for word in parse_list(value):
        name, _, new = word.rpartition(":")
        if not name or not new:
            raise ValueError(f"{word!r} is not a pair of names such as old:new")
        found.append((parse_path(name), new))
    return tuple(found)


def _optional_paths(value: object) -> tuple[FieldPath, ...]:
    return tuple(parse_path(word) for word in parse_list(value))


def _insertion(value: object) -> FieldPath:
    if not isinstance(value, str) or not value.rstrip("?!"):
        raise ValueError("must be the name of a field")
    return parse_path(value.removesuffix("?") if value.endswith("?") else value.removesuffix("!"))


OPTIONAL_FIELDS: Final = Kind("fields", _optional_paths)
INSERTION: Final = Kind("field", _insertion)


class Cast(ColumnTransform):
    """Convert fields, or the whole key or value, to another type."""

    spec: Pairs = setting(
        MISSING, "Required: fields and types such as `amount:float64`, or one type for the whole"
        f" key or value. Types are {', '.join(f'`{name}`' for name in TARGETS)}. Text that is no"
        " number, or out of range, rejects the row.", kind=Kind("fields with types", _casts),
    )  # fmt: skip

    def change(self, column: Any, records: Records) -> Any:
        for path, target in self.spec:
            if path is None:
                return cast(column, target)
            if not need_struct(column):
                return column
            column = self.each([path], column, partial(_cast, target=target))
        return column


def _cast(column: Any, path: FieldPath, target: str) -> Any:
    return cast(column, target)


class ExtractField(ColumnTransform):
    """Replace the key or value by one of its fields; a field that does not exist is null."""

    field: FieldPath = setting(MISSING, "Required: field that remains.", kind=FIELD)

    def change(self, column: Any, records: Records) -> Any:
        return self.value_of(self.field, column) if need_struct(column) else column


class HoistField(ColumnTransform):
    """Put the key or value into a struct with one field, also if it is null."""

    field: str = setting(MISSING, "Required: name of the field.")

    def change(self, column: Any, records: Records) -> Any:
        return pa.StructArray.from_arrays([column], [self.field])


class Flatten(ColumnTransform):
    """Replace nested structs by their fields, whose names begin with those of the structs.

    Lists and maps are kept.
    """

    delimiter: str = setting(".", "Text between the names of nested fields.")

    def change(self, column: Any, records: Records) -> Any:
        if not need_struct(column):
            return column
        return struct_of(dict(self._flat(column, "")), column)

    def _flat(self, column: Any, prefix: str) -> Iterable[tuple[str, Any]]:
        for name, field in fields_of(column).items():
            if pa.types.is_struct(field.type):
                yield from self._flat(field, f"{prefix}{name}{self.delimiter}")
            else:
                yield prefix + name, field


class InsertField(ColumnTransform):
    """Add fields with facts about the record, or with a fixed text.

    Names may end in `?` or `!`, which have no effect: all fields can be null.
    """

    topic_field: FieldPath = setting(NO_FIELD, "Field for the topic.", kind=INSERTION, shown="–")
    partition_field: FieldPath = setting(
        NO_FIELD, "Field for the partition (int32).", kind=INSERTION, shown="–"
    )
    offset_field: FieldPath = setting(
        NO_FIELD, "Field for the offset (int64). Rows of sources have no offset.", kind=INSERTION,
        shown="–",
    )  # fmt: skip
    timestamp_field: FieldPath = setting(
        NO_FIELD, "Field for the record's timestamp.", kind=INSERTION, shown="–"
    )
    static_field: FieldPath = setting(
        NO_FIELD, "Field for `static_value`.", kind=INSERTION, shown="–"
    )
    static_value: str = setting("", "Text of `static_field`.", shown="–")

    def __post_init__(self) -> None:
        fields = (
            self.topic_field, self.partition_field, self.offset_field, self.timestamp_field,
            self.static_field,
        )  # fmt: skip
        if not any(path.steps for path in fields):
            raise InvalidSetting("topic_field", "", "no field to insert is given")
        if bool(self.static_field.steps) != bool(self.static_value):
            raise InvalidSetting("static_field", "", "needs static_value, and the other way round")

    def change(self, column: Any, records: Records) -> Any:
        if not need_struct(column):
            return column
        texts = ((self.topic_field, records.topic), (self.static_field, self.static_value))
        added = [(path, pa.repeat(text, len(column))) for path, text in texts[:1]]
        for path, name, kind in (
            (self.partition_field, PARTITION, pa.int32()),
            (self.offset_field, OFFSET, pa.int64()),
            (self.timestamp_field, TIMESTAMP, _MS),
        ):
            if name in records.rows.column_names:
                added.append((path, whole(records.rows.column(name))))
            elif path.steps and name == OFFSET:
                reject(column.is_valid(), "rows of sources have no offset")
            else:
                added.append((path, pa.nulls(len(column), kind)))
        added += [(path, pa.repeat(text, len(column))) for path, text in texts[1:]]
        for path, found in added:
            if path.steps:
                column = inserted(column, path.names(self.field_syntax_version), found)
        return column


class MaskField(ColumnTransform):
    """Replace fields by the empty value of their type (0, false, "", [], {}), or by a text."""

    fields: tuple[FieldPath, ...] = setting(MISSING, "Required: fields to mask.", kind=FIELDS)
    replacement: str = setting("", "Number or text that replaces numbers and texts.", shown="–")

    def change(self, column: Any, records: Records) -> Any:
        return self.each(self.fields, column, self._masked) if need_struct(column) else column

    def _masked(self, column: Any, path: FieldPath) -> Any:
        if self.replacement:
            return self._replaced(column)
        return constant(_empty(column.type), column)

    def _replaced(self, column: Any) -> Any:
        kind, text = column.type, self.replacement
        try:
            if pa.types.is_string(kind) or pa.types.is_large_string(kind):
                return constant(pa.scalar(text, kind), column)
            if pa.types.is_integer(kind):
                low = pa.scalar(_wrapped(int(Decimal(text))), pa.int64())
                return constant(low.cast(kind, safe=False), column)
            if pa.types.is_floating(kind):
                return constant(pa.scalar(float(Decimal(text)), kind), column)
            if pa.types.is_decimal(kind):
                return constant(pa.scalar(Decimal(text), kind), column)
        except (InvalidOperation, OverflowError, ValueError, pa.ArrowInvalid):
            pass
        reject(column.is_valid(), f"a value of type {kind} cannot become {text!r}")
        return column


def _wrapped(number: int) -> int:
    """Return the low 64 bits of a number, with their sign."""
    return (number + 2**63) % 2**64 - 2**63


def _empty(kind: Any) -> Any:
    """Return the scalar that masks values of a type."""
    if pa.types.is_struct(kind):
        return pa.array([{}], kind)[0]
    if pa.types.is_map(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.array([[]], kind)[0]
    for check, value in _EMPTY:
        if check(kind):
            return pa.scalar(value, kind)
    return pa.scalar(None, kind)


_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_EMPTY: Final = (
    (pa.types.is_boolean, False),
    (pa.types.is_integer, 0),
    (pa.types.is_floating, 0.0),
    (pa.types.is_decimal, Decimal(0)),
    (pa.types.is_date, _EPOCH.date()),
    (pa.types.is_timestamp, _EPOCH),
    (pa.types.is_time, _EPOCH.time()),
    (pa.types.is_string, ""),
    (pa.types.is_large_string, ""),
    (pa.types.is_binary, b""),
    (pa.types.is_large_binary, b""),
)


class ReplaceField(ColumnTransform):
    """Drop or rename fields."""

    exclude: tuple[FieldPath, ...] = setting(
        (), "Fields to drop. They are dropped even if `include` names them.", kind=OPTIONAL_FIELDS,
        shown="–",
    )  # fmt: skip
    include: tuple[FieldPath, ...] = setting(
        (), "Fields to keep; empty means all. A field inside of a struct keeps the struct.",
        kind=OPTIONAL_FIELDS, shown="–",
    )  # fmt: skip
    renames: Pairs = setting(
        (), "New names such as `old:new`. A field inside of a struct stays there.",
        kind=Kind("pairs of names", _renames), shown="–",
    )  # fmt: skip

    def change(self, column: Any, records: Records) -> Any:
        if not need_struct(column):
            return column
        column = self.each(self.exclude, column, lambda found, path: None)
        if self.include:
            kept = [self.steps(path, column.type) for path in self.include]
            column = _only(column, [steps for steps in kept if steps])
        by_struct: dict[tuple[str, ...], dict[str, str]] = {}
        for path, new in self.renames:
            steps = self.steps(path, column.type) if path else None
            if steps:
                by_struct.setdefault(steps[:-1], {})[steps[-1]] = new
        for outer in sorted(by_struct, key=len, reverse=True):
            names = by_struct[outer]
            column = changed_at(column, outer, partial(_renamed, names=names))
        return column


def _only(column: Any, kept: list[tuple[str, ...]]) -> Any:
    """Return a struct column with only the fields at some paths."""
    fields = {}
    for name, field in fields_of(column).items():
        inside = [steps[1:] for steps in kept if steps[0] == name]
        if inside:
            fields[name] = field if () in inside else _only(field, inside)
    return struct_of(fields, column)


def _renamed(column: Any, names: Mapping[str, str]) -> Any:
    fields = fields_of(column)
    renamed = {names.get(name, name): field for name, field in fields.items()}
    if len(renamed) < len(fields):
        reject(column.is_valid(), f"after the renames, two fields of {list(fields)} have one name")
        return column
    return struct_of(renamed, column)


class SetSchemaMetadata(ColumnTransform):
    """Name the schema of keys or values.

    The name and version become the metadata `connect.name` and `connect.version` of the column. In
    JSON, rows have no schema, and the transform has no effect.
    """

    schema_name: str = setting("", "Name of the schema.", shown="–")
    schema_version: int = setting(-1, "Version of the schema.", shown="–")

    def __post_init__(self) -> None:
        if not self.schema_name and self.schema_version < 0:
            raise InvalidSetting("schema_name", "", "neither schema_name nor schema_version is set")

    def apply(self, records: Records) -> Iterable[Records]:
        rows, name = records.rows, self.of.steps[0]
        index = rows.schema.get_field_index(name)
        if index < 0:
            return [records]
        found = rows.schema.field(index)
        metadata = dict(found.metadata or {})
        if self.schema_name:
            metadata[b"connect.name"] = self.schema_name.encode()
        if self.schema_version >= 0:
            metadata[b"connect.version"] = str(self.schema_version).encode()
        rows = rows.set_column(index, found.with_metadata(metadata), rows.column(index))
        return [records.with_rows(rows)]


class TimestampConverter(ColumnTransform):
    """Convert times between text, numbers since 1970, and columns of times, all in UTC."""

    field: FieldPath = setting(
        NO_FIELD, "Field with the time; empty for the whole key or value.",
        kind=Kind("field", lambda value: parse_path(value) if value else NO_FIELD), shown="–",
    )  # fmt: skip
    target_type: str = setting(
        MISSING,
        "Required: result, which is `string`, `unix` (a number), `Date`, `Time` or `Timestamp`.",
        choices=("string", "unix", "Date", "Time", "Timestamp"),
    )  # fmt: skip
    format: Any = setting(
        None, "Pattern of Java's `SimpleDateFormat` for texts, such as"
        " `yyyy-MM-dd'T'HH:mm:ss.SSS'Z'`.",
        kind=Kind("date format", lambda value: parse_format(value) if value else None), shown="–",
    )  # fmt: skip
    unix_precision: str = setting(
        "milliseconds",
        f"Unit of numbers: {', '.join(f'`{unit}`' for unit in _UNITS)}.",
        choices=tuple(_UNITS),
    )

    def __post_init__(self) -> None:
        if self.target_type == "string" and self.format is None:
            raise InvalidSetting("format", "", "is required if target_type is string")

    def change(self, column: Any, records: Records) -> Any:
        if not self.field.steps:
            return self._converted(column)
        if not need_struct(column):
            return column
        return self.each([self.field], column, self._converted_field)

    def _converted_field(self, column: Any, path: FieldPath) -> Any:
        return self._converted(column)

    def _converted(self, column: Any) -> Any:
        kind = column.type
        if self.target_type == "Timestamp" and pa.types.is_timestamp(kind):
            return column
        moments = self._moments(column)
        if self.target_type == "string":
            return self.format.format(moments)
        if self.target_type == "Timestamp":
            return moments.cast(_MS)
        if self.target_type == "Date":
            return pc.floor_temporal(moments, unit="day").cast(pa.date32())
        if self.target_type == "Time":
            counts = moments.cast(pa.int64())
            day = pa.scalar(86_400_000, pa.int64())
            days = pc.floor(pc.divide(counts.cast(pa.float64(), safe=False), float(day.as_py())))
            rest = pc.subtract(counts, pc.multiply(days.cast(pa.int64()), day))
            return rest.cast(pa.int32()).cast(pa.time32("ms"))
        return self._numbers(column, moments)

    def _moments(self, column: Any) -> Any:
        """Return times as timestamp[ms] without a zone."""
        kind, plain = column.type, pa.timestamp("ms")
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            if self.format is None:
                reject(column.is_valid(), "text needs the option format")
            return (
                self.format.parse(column.cast(pa.string()))
                if self.format
                else pa.nulls(len(column), plain)
            )
        if pa.types.is_signed_integer(kind):
            return self._of_numbers(column.cast(pa.int64())).cast(plain)
        if pa.types.is_timestamp(kind):
            return (
                pc.floor_temporal(column.cast(pa.timestamp(kind.unit)), unit="millisecond").cast(
                    plain, safe=False
                )
                if kind.unit in ("us", "ns")
                else column.cast(plain)
            )
        if pa.types.is_date(kind):
            return column.cast(plain)
        if pa.types.is_time(kind):
            return (
                column.cast(pa.time32("ms"), safe=False)
                .cast(pa.int32())
                .cast(pa.int64())
                .cast(plain)
            )
        reject(column.is_valid(), f"a value of type {kind} is not a time")
        return pa.nulls(len(column), plain)

    def _of_numbers(self, column: Any) -> Any:
        """Return milliseconds of numbers, limited to 64 bits; fractions are dropped."""
        unit = _UNITS[self.unix_precision]
        if self.unix_precision == "seconds":
            return _limited_product(column, unit)
        return pc.divide(column, unit) if unit > 1 else column

    def _numbers(self, column: Any, moments: Any) -> Any:
        kind, unit = column.type, _UNITS[self.unix_precision]
        short = {"microseconds": "us", "nanoseconds": "ns"}.get(self.unix_precision)
        if short and pa.types.is_timestamp(kind) and kind.unit == short:
            return column.cast(pa.int64())
        counts = moments.cast(pa.int64())
        if self.unix_precision == "seconds":
            return pc.divide(counts, unit)
        return _limited_product(counts, unit) if unit > 1 else counts


def _limited_product(column: Any, factor: int) -> Any:
    """Return numbers multiplied by a factor, limited to 64 bits."""
    limits = np.iinfo(np.int64)
    low, high = math.ceil(limits.min / factor), limits.max // factor
    inside = pc.max_element_wise(pc.min_element_wise(column, high, skip_nulls=False), low,
                                 skip_nulls=False)  # fmt: skip
    product = pc.multiply(inside, factor)
    above, below = pc.greater(column, high), pc.less(column, low)
    return pc.if_else(above, int(limits.max), pc.if_else(below, int(limits.min), product))


class ValueToKey(FieldOptions):
    """Make the key of fields of the value, with their names.

    A field that does not exist is null. A null value has no fields, and is rejected.
    """

    fields: tuple[FieldPath, ...] = setting(MISSING, "Required: fields of the value.", kind=FIELDS)

    def apply(self, records: Records) -> Iterable[Records]:
        value = whole(records.rows.column(VALUE))
        if not need_struct(value, nulls=False):
            return [records]
        key = struct_of({path.text: self.value_of(path, value) for path in self.fields}, value)
        return [records.with_rows(with_column(records.rows, KEY, key))]
