"""From shapes to columns: parse once into Spark's variant, then check and convert each field.

`from_json` is lenient where a pipeline must not be: it makes strings of numbers and objects, takes
the first of two documents, lets the last of two equal names win and drops what is wrong with the
rest of the row. A variant keeps what the text said, so each field's kind is looked at before it
is converted, and the first thing wrong is named.

`try_parse_json` refuses malformed text and names that come twice, but stops reading at the end
of the first value. So the text is parsed as the first item of an array whose second item is the
text's own hash: whatever follows the value then breaks the array, or moves the hash away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from penstock.formats.errors import InvalidFormat
from penstock.formats.json.shapes import Check, Field, Items, Keyword, Leaf, Named, Record, Shape
from penstock.spark.formats.types import spark_type

SHOWN_CHARACTERS: Final = 60
"""How much of a wrong value an error shows."""
ROOT: Final = "$[0]"
_JSON: Final = "__penstock_json"
_INTEGRAL: Final = (ByteType, ShortType, IntegerType, LongType)
_TIME_OF: Final[dict[type[DataType], str]] = {
    TimestampType: r"^\d{4}-\d{2}-\d{2}([Tt ]|$)",
    TimestampNTZType: r"^\d{4}-\d{2}-\d{2}([Tt ]|$)",
    DateType: r"^\d{4}-\d{2}-\d{2}$",
}


def _is_multiple(value: Column, step: int | float) -> Column:
    """By decimals, as 0.3 is a multiple of 0.1 to everybody but a floating-point unit."""
    return value.cast("string").try_cast("decimal(38,15)") % F.lit(Decimal(str(step))) == 0


_HOLDS: Final[Mapping[Keyword, Callable[[Column, Any], Column]]] = {
    "minimum": lambda value, bound: value >= bound,
    "maximum": lambda value, bound: value <= bound,
    "exclusiveMinimum": lambda value, bound: value > bound,
    "exclusiveMaximum": lambda value, bound: value < bound,
    "multipleOf": _is_multiple,
    "minLength": lambda value, bound: F.char_length(value) >= bound,
    "maxLength": lambda value, bound: F.char_length(value) <= bound,
    "minItems": lambda value, bound: F.size(value) >= bound,
    "maxItems": lambda value, bound: F.size(value) <= bound,
    "pattern": lambda value, bound: value.rlike(bound),
    "enum": lambda value, bound: value.isin(*bound),
}


def parse(text: Column) -> Column:
    """A variant: an array with the value of the text and the text's hash; null when malformed."""
    whole = F.concat(F.lit("["), text, F.lit(","), F.xxhash64(text).cast("string"), F.lit("]"))
    return F.try_parse_json(whole)


def decode_json(
    frame: DataFrame, record: Record, *, text: Column, present: Column, before: Column
) -> DataFrame:
    """The frame with `_value` and `_error`.

    Args:
        text: the JSON, where `before` is null.
        present: false where there is no value at all.
        before: what is wrong already, or null.
    """
    held = frame.select("*", F.when(present & before.isNull(), parse(text)).alias(_JSON))
    variant = F.col(_JSON)
    complete = F.try_variant_get(variant, "$[1]", "bigint").eqNullSafe(F.xxhash64(text))
    kind = F.schema_of_variant(F.try_variant_get(variant, ROOT, "variant"))
    error = (
        F.when(~present, F.lit(None).cast("string"))
        .when(before.isNotNull(), before)
        .when(~complete, F.lit("not JSON"))
        .when(~kind.startswith("OBJECT<"), F.lit("not a JSON object"))
        .otherwise(_first(_record_errors(record, variant, ROOT, "")))
    )
    # The struct is made in a step of its own, so that it need not test each error again.
    found = held.select(*frame.columns, _JSON, error.alias("_error"))
    value = F.when(present & F.col("_error").isNull(), _record_value(record, variant, ROOT))
    return found.select(
        *frame.columns, value.cast(column_type(record)).alias("_value"), F.col("_error")
    )


def step_into(path: str, name: str) -> str:
    """The path of a member.

    Raises:
        InvalidFormat: a name with both kinds of quotation mark, which a path cannot say.
    """
    for quote in ('"', "'"):
        if quote not in name:
            return f"{path}[{quote}{name}{quote}]"
    raise InvalidFormat("schema", name, "a field's name cannot have both kinds of quotation mark")


def _get(variant: Column, path: str, kind: str) -> Column:
    return F.try_variant_get(variant, path, kind)


def _first(errors: Sequence[Column]) -> Column:
    """The first of several errors, or null."""
    return F.coalesce(*errors, F.lit(None).cast("string"))


def _record_value(record: Record, variant: Column, path: str) -> Column:
    return F.struct(
        *(
            _value(field.shape, variant, step_into(path, field.name)).alias(field.name)
            for field in record.fields
        )
    )


def _value(shape: Shape, variant: Column, path: str) -> Column:
    """What a shape becomes; right only where its errors are null."""
    match shape:
        case Leaf():
            return _leaf_value(column_type(shape), variant, path)
        case Record():
            there = F.schema_of_variant(_get(variant, path, "variant")).startswith("OBJECT<")
            return F.when(there, _record_value(shape, variant, path))
        case Items():
            items = _get(variant, path, "array<variant>")
            return F.transform(items, lambda item: _value(shape.item, item, "$"))
        case Named():
            members = _get(variant, path, "map<string,variant>")
            return F.transform_values(members, lambda _, item: _value(shape.value, item, "$"))


def _leaf_value(data_type: DataType, variant: Column, path: str) -> Column:
    text = _get(variant, path, "string")
    match data_type:
        case VariantType():
            return _get(variant, path, "variant")
        case StringType():
            return text
        case BooleanType():
            return _get(variant, path, "boolean")
        case BinaryType():
            return F.try_to_binary(text, F.lit("base64"))
    if isinstance(data_type, _INTEGRAL):
        return _get(variant, path, data_type.simpleString())
    return text.try_cast(data_type)


def _errors(shape: Shape, variant: Column, path: str, where: str, required: bool) -> list[Column]:
    """What is wrong with a value, in the order in which it should be told."""
    raw = _get(variant, path, "variant")
    kind = F.schema_of_variant(raw)
    label = f"field {where}: "
    found: list[Column] = []
    if required:
        found.append(F.when(raw.isNull(), F.lit(f"{label}missing")))
    if not shape.nullable:
        found.append(F.when(kind == "VOID", F.lit(f"{label}null")))
    inside = _first(_inside(shape, variant, path, where, kind))
    return [*found, F.when(raw.isNotNull() & (kind != "VOID"), inside)]


def _inside(shape: Shape, variant: Column, path: str, where: str, kind: Column) -> list[Column]:
    match shape:
        case Leaf():
            return _leaf_errors(shape, variant, path, where, kind)
        case Record():
            wrong = _wrong_kind(kind, "OBJECT<", where, "an object")
            return [wrong, *_record_errors(shape, variant, path, f"{where}.")]
        case Items():
            items = _get(variant, path, "array<variant>")
            each = F.transform(
                items, lambda item: _first(_errors(shape.item, item, "$", f"{where}[]", False))
            )
            return [
                _wrong_kind(kind, "ARRAY<", where, "an array"),
                *_check_errors(shape.checks, items, where),
                _first_of(each),
            ]
        case Named():
            members = F.map_values(_get(variant, path, "map<string,variant>"))
            each = F.transform(
                members, lambda item: _first(_errors(shape.value, item, "$", f"{where}{{}}", False))
            )
            return [_wrong_kind(kind, "OBJECT<", where, "an object"), _first_of(each)]


def _first_of(errors: Column) -> Column:
    return F.get(F.filter(errors, lambda error: error.isNotNull()), 0)


def _wrong_kind(kind: Column, start: str, where: str, words: str) -> Column:
    return F.when(~kind.startswith(start), F.lit(f"field {where}: is not {words}"))


def _record_errors(record: Record, variant: Column, path: str, prefix: str) -> list[Column]:
    found = [error for field in record.fields for error in _field(field, variant, path, prefix)]
    if not record.closed:
        return found
    members = F.map_keys(_get(variant, path, "map<string,variant>"))
    known = F.array(*(F.lit(field.name) for field in record.fields)).cast("array<string>")
    unknown = F.get(F.array_except(members, known), 0)
    words = F.concat(F.lit(f"field {prefix}"), F.substring(unknown, 1, SHOWN_CHARACTERS),
                     F.lit(": is not in the schema"))  # fmt: skip
    return [*found, F.when(unknown.isNotNull(), words)]


def _field(field: Field, variant: Column, path: str, prefix: str) -> list[Column]:
    return _errors(
        field.shape, variant, step_into(path, field.name), f"{prefix}{field.name}", field.required
    )


def _leaf_errors(leaf: Leaf, variant: Column, path: str, where: str, kind: Column) -> list[Column]:
    if leaf.data_type is None:
        return []
    data_type = column_type(leaf)
    value = _leaf_value(data_type, variant, path)
    fits = _kind_fits(leaf, data_type, variant, path, kind) & value.isNotNull()
    if isinstance(data_type, DoubleType | FloatType):
        fits = fits & ~value.isin(float("inf"), float("-inf"))
    text = _get(variant, path, "string")
    shown = F.substring(text, 1, SHOWN_CHARACTERS)
    shown = F.when(kind == "STRING", F.concat(F.lit("'"), shown, F.lit("'"))).otherwise(shown)
    wrong = F.concat(F.lit(f"field {where}: "), shown, F.lit(f" is not {data_type.simpleString()}"))
    return [F.when(~fits, wrong), *_check_errors(leaf.checks, value, where)]


def _kind_fits(leaf: Leaf, data_type: DataType, variant: Column, path: str, kind: Column) -> Column:
    """Whether the text had the right kind of value, before any conversion."""
    if isinstance(data_type, BooleanType):
        return kind == "BOOLEAN"
    number = (kind == "BIGINT") | (kind == "DOUBLE") | kind.startswith("DECIMAL(")
    if isinstance(data_type, _INTEGRAL):
        double = _get(variant, path, "double")
        whole = (kind == "DOUBLE") & (double == F.rint(double))
        return (kind == "BIGINT") | (kind.startswith("DECIMAL(") & kind.endswith(",0)")) | whole
    if isinstance(data_type, DoubleType | FloatType):
        return number
    if isinstance(data_type, DecimalType):
        return number | (kind == "STRING") if leaf.text_too else number
    text = kind == "STRING"
    pattern = leaf.pattern or _TIME_OF.get(type(data_type))
    return text if pattern is None else text & _get(variant, path, "string").rlike(pattern)


def _check_errors(checks: Sequence[Check], value: Column, where: str) -> list[Column]:
    found = []
    for check in checks:
        holds = F.coalesce(_HOLDS[check.keyword](value, check.bound), F.lit(False))
        found.append(F.when(~holds, F.lit(f"field {where}: {check.words}")))
    return found


def column_type(shape: Shape) -> DataType:
    """The type that a shape becomes; everything in it may be null."""
    match shape:
        case Leaf(data_type=None):
            return VariantType()
        case Leaf(collation=str(collation)):
            return StringType(collation)
        case Leaf():
            return spark_type(shape.data_type)
        case Record():
            return record_type(shape)
        case Items():
            return ArrayType(column_type(shape.item))
        case Named():
            return MapType(StringType(), column_type(shape.value))


def record_type(record: Record) -> StructType:
    """The schema of `_value`."""
    return StructType(
        [StructField(field.name, column_type(field.shape)) for field in record.fields]
    )
