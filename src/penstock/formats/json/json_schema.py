"""Conversion of a JSON Schema to a shape: Arrow types, and the schema's conditions on values.

Drafts 7 and 2020-12 are supported as far as they describe columns: `type` (one, or one and null),
`properties`, `required`, `additionalProperties`, `enum`, `const`, `items`, `minItems`, `maxItems`,
`minimum`, `maximum`, `exclusiveMinimum`, `exclusiveMaximum`, `multipleOf`, `minLength`,
`maxLength`, `pattern`, `format` (date-time, date, uuid), `$ref` within the file, and `oneOf` or
`anyOf` of one schema and null. Other keywords that restrict values are rejected; the error has
their JSON pointer.

An object without `properties` is a map, whose values have the schema `additionalProperties`. Values
are checked against `format`. Spark checks patterns, as Java's regular expressions; they may match
anywhere in a text.

Source: JSON Schema 2020-12, "Validation"; draft 7 where the two agree.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import pyarrow as pa

from penstock.formats.value_format import DEPTH_MAX, InvalidFormat

# Shapes: a tree that describes valid JSON values and the columns that they become.
#
# JSON Schemas and Spark's DDL are converted to shapes. A shape has the Arrow
# type of a value. A check is a further condition on the value, with an error text.


Keyword = Literal[
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
    "minLength", "maxLength", "minItems", "maxItems", "pattern", "enum",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Condition on a value that is not null; `words` is the error text if it is false.

    `bound` is the value of JSON Schema's keyword: a number, a pattern, or the allowed values.
    """

    keyword: Keyword
    bound: Any
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """Value without fields or items. Without `data_type` it is any JSON, which is read as text."""

    data_type: pa.DataType | None = None
    checks: tuple[Check, ...] = ()
    nullable: bool = True
    text_too: bool = True
    """Whether a decimal may be written as a string."""
    pattern: str | None = None
    """Pattern that the text of a time must match; None allows all forms that Spark accepts."""
    collation: str | None = None
    """Spark collation of a string column; None if the schema sets none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """Named member of an object. A `required` one must be present; `shape.nullable` allows null."""

    name: str
    shape: Shape
    required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Object with fields; a `closed` one must not have others."""

    fields: tuple[Field, ...]
    closed: bool = False
    nullable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """Array; its checks apply to the whole array."""

    item: Shape
    checks: tuple[Check, ...] = ()
    nullable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """Object that is a map from names to values of one shape."""

    value: Shape
    nullable: bool = True


Shape = Leaf | Record | Items | Named


NOTES: Final = frozenset(
    ("$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default",
     "examples", "deprecated", "readOnly", "writeOnly")
)  # fmt: skip
"""Keywords that do not restrict values."""
_NUMERIC: Final = frozenset(
    ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "enum", "const",
     "format")
)  # fmt: skip
KEYWORDS: Final[Mapping[str, frozenset[str]]] = {
    "object": frozenset(("properties", "required", "additionalProperties")),
    "array": frozenset(("items", "minItems", "maxItems")),
    "string": frozenset(("minLength", "maxLength", "pattern", "format", "enum", "const")),
    "integer": _NUMERIC,
    "number": _NUMERIC,
    "boolean": frozenset(("enum", "const")),
}  # fmt: skip
_TIMESTAMP: Final = pa.timestamp("us", "UTC")
_FORMATS: Final = {"date-time": _TIMESTAMP, "date": pa.date32(), "uuid": pa.string()}
_NUMBER_FORMATS: Final = frozenset(("int32", "int64", "float", "double"))
_UUID: Final = "(?i)^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
ZONED: Final = r"(?i)^\d{4}-\d{2}-\d{2}[t ]\d{2}:\d{2}:\d{2}(\.\d+)?(z|[+-]\d{2}:\d{2})$"
_BOUNDS: Final[Mapping[Keyword, str]] = {
    "minimum": "below minimum",
    "maximum": "above maximum",
    "exclusiveMinimum": "not above exclusiveMinimum",
    "exclusiveMaximum": "not below exclusiveMaximum",
}
_SIZES: Final[Mapping[Keyword, str]] = {
    "minLength": "shorter than minLength",
    "maxLength": "longer than maxLength",
    "minItems": "fewer items than minItems",
    "maxItems": "more items than maxItems",
}


def record_of_json_schema(document: Any, *, closed: bool = False) -> Record:
    """Return the shape of the values of a schema.

    Args:
        document: the parsed schema.
        closed: reject members that are not among the properties, even if the schema allows them.

    Raises:
        InvalidFormat: the schema is malformed, does not describe an object with properties, or has
            an unsupported keyword. The error names its JSON pointer.
    """
    shape = _Reader(document, closed).shape(document, "#", ())
    if not isinstance(shape, Record):
        raise InvalidFormat("schema_file", "#", "must describe an object with properties")
    return replace(shape, nullable=False)


def _refused(pointer: str, reason: str) -> InvalidFormat:
    return InvalidFormat("schema_file", pointer, reason)


class _Reader:
    def __init__(self, document: Any, closed: bool) -> None:
        self._document = document
        self._closed = closed

    def shape(self, schema: Any, pointer: str, above: tuple[str, ...]) -> Shape:
        if schema is True:
            return Leaf()
        if not isinstance(schema, dict):
            raise _refused(pointer, "must be a schema: an object or true")
        if len(pointer.split("/")) > 4 * DEPTH_MAX or len(above) > DEPTH_MAX:
            raise _refused(pointer, f"nests deeper than {DEPTH_MAX} levels")
        if "$ref" in schema:
            return self._referred(schema, pointer, above)
        for keyword in ("oneOf", "anyOf"):
            if keyword in schema:
                return self._or_null(schema, keyword, pointer, above)
        kind, nullable = _type(schema, pointer)
        _check_keywords(schema, kind, pointer)
        match kind:
            case None:
                return Leaf()
            case "object":
                return self._object(schema, pointer, above, nullable)
            case "array":
                return self._array(schema, pointer, above, nullable)
        return _leaf(schema, kind, pointer, nullable)

    def _referred(self, schema: dict[str, Any], pointer: str, above: tuple[str, ...]) -> Shape:
        target = schema["$ref"]
        _only(schema, "$ref", pointer)
        if not isinstance(target, str) or not target.startswith("#"):
            raise _refused(f"{pointer}/$ref", f"{target!r} is not within this file")
        if target in above:
            raise _refused(
                f"{pointer}/$ref", f"{target} is within itself, but columns cannot be recursive"
            )
        found = self._document
        for part in target[1:].split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or name not in found:
                raise _refused(f"{pointer}/$ref", f"{target} does not exist")
            found = found[name]
        return self.shape(found, target, (*above, target))

    def _or_null(
        self, schema: dict[str, Any], keyword: str, pointer: str, above: tuple[str, ...]
    ) -> Shape:
        _only(schema, keyword, pointer)
        choices = schema[keyword]
        at = f"{pointer}/{keyword}"
        valued = [
            number for number, choice in enumerate(choices or ()) if choice != {"type": "null"}
        ]
        if not isinstance(choices, list) or len(choices) != 2 or len(valued) != 1:
            raise _refused(at, 'must be of one schema and {"type": "null"}: a column has one type')
        inner = self.shape(choices[valued[0]], f"{at}/{valued[0]}", above)
        if keyword == "oneOf" and inner.nullable:
            raise _refused(at, "allows null in both schemas, so oneOf would reject null")
        return replace(inner, nullable=True)

    def _object(
        self, schema: dict[str, Any], pointer: str, above: tuple[str, ...], nullable: bool
    ) -> Shape:
        properties = schema.get("properties", {})
        if not isinstance(properties, dict):
            raise _refused(f"{pointer}/properties", "must be an object")
        others = schema.get("additionalProperties", True)
        if not properties:
            return self._map(schema, pointer, above, nullable)
        if not isinstance(others, bool):
            raise _refused(
                f"{pointer}/additionalProperties", "must be true or false beside properties"
            )
        required = schema.get("required", [])
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise _refused(f"{pointer}/required", "must be a list of names")
        unknown = [name for name in required if name not in properties]
        if unknown:
            raise _refused(f"{pointer}/required", f"{unknown[0]!r} is not among the properties")
        fields = tuple(
            Field(
                name=name,
                shape=self.shape(inner, f"{pointer}/properties/{_escaped(name)}", above),
                required=name in required,
            )
            for name, inner in properties.items()
        )
        return Record(fields=fields, closed=self._closed or not others, nullable=nullable)

    def _map(
        self, schema: dict[str, Any], pointer: str, above: tuple[str, ...], nullable: bool
    ) -> Shape:
        others = schema.get("additionalProperties")
        if not isinstance(others, dict):
            raise _refused(pointer, "is an object without properties: add additionalProperties")
        if schema.get("required"):
            raise _refused(f"{pointer}/required", "needs properties")
        return Named(
            value=self.shape(others, f"{pointer}/additionalProperties", above), nullable=nullable
        )

    def _array(
        self, schema: dict[str, Any], pointer: str, above: tuple[str, ...], nullable: bool
    ) -> Shape:
        if "items" not in schema:
            raise _refused(pointer, "is an array without items")
        item = self.shape(schema["items"], f"{pointer}/items", above)
        return Items(item=item, checks=tuple(_sizes(schema, pointer)), nullable=nullable)


def _only(schema: dict[str, Any], keyword: str, pointer: str) -> None:
    others = sorted(set(schema) - NOTES - {keyword})
    if others:
        raise _refused(f"{pointer}/{_escaped(others[0])}", f"is not supported beside {keyword}")


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _type(schema: dict[str, Any], pointer: str) -> tuple[str | None, bool]:
    """Return the type other than null (None: any type), and whether null is allowed."""
    given = schema.get("type")
    at = f"{pointer}/type"
    if given is None:
        values = schema["enum"] if isinstance(schema.get("enum"), list) else [schema.get("const")]
        if values and all(isinstance(value, str) for value in values):
            return "string", False
        return None, True
    kinds = given if isinstance(given, list) else [given]
    valued = [kind for kind in kinds if kind != "null"]
    if len(valued) != 1:
        raise _refused(at, f"is {given!r}, must be one type, with or without null")
    if valued[0] not in KEYWORDS:
        raise _refused(at, f"is {valued[0]!r}, which is not a type of JSON Schema")
    return valued[0], "null" in kinds


def _check_keywords(schema: dict[str, Any], kind: str | None, pointer: str) -> None:
    known = NOTES | {"type"} | (KEYWORDS[kind] if kind is not None else frozenset())
    for keyword in schema:
        if keyword in known:
            continue
        # A keyword of another type does not apply to values of this one.
        if kind is not None and any(keyword in others for others in KEYWORDS.values()):
            if keyword in ("enum", "const"):
                raise _refused(f"{pointer}/{keyword}", f"is not supported for type {kind}")
            continue
        reason = "is not supported" if kind is not None else "is not supported without a type"
        raise _refused(f"{pointer}/{_escaped(keyword)}", reason)


def _leaf(schema: dict[str, Any], kind: str, pointer: str, nullable: bool) -> Leaf:
    made, checks = _leaf_type(schema, kind, pointer)
    if kind in ("integer", "number"):
        checks += _numbers(schema, pointer)
    if kind == "string":
        checks += _sizes(schema, pointer) + _pattern(schema, pointer)
    checks += _choices(schema, kind, pointer)
    # If the schema lists values, null must be one of them.
    listed = [schema[word] for word in ("enum",) if word in schema]
    nullable = nullable and all(None in values for values in listed) and "const" not in schema
    return Leaf(
        data_type=made,
        checks=tuple(checks),
        nullable=nullable,
        text_too=False,
        pattern=ZONED if made == _TIMESTAMP else None,
    )


def _leaf_type(schema: dict[str, Any], kind: str, pointer: str) -> tuple[pa.DataType, list[Check]]:
    form = schema.get("format")
    at = f"{pointer}/format"
    if kind != "string":
        if form is not None and form not in _NUMBER_FORMATS:
            raise _refused(at, f"{form!r} is not supported for numbers")
        return {"integer": pa.int64(), "number": pa.float64()}.get(kind, pa.bool_()), []
    if form is None:
        return pa.string(), []
    if form not in _FORMATS:
        raise _refused(at, f"{form!r} is not supported; these are: {', '.join(_FORMATS)}")
    sized = sorted({"minLength", "maxLength", "pattern", "enum", "const"} & set(schema))
    if form != "uuid" and sized:
        raise _refused(f"{pointer}/{sized[0]}", f"is not supported beside format {form}")
    if form == "uuid":
        return pa.string(), [Check(keyword="pattern", bound=_UUID, words="is not a uuid")]
    return _FORMATS[form], []


def _number(schema: dict[str, Any], keyword: str, pointer: str) -> int | float:
    value = schema[keyword]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _refused(f"{pointer}/{keyword}", f"is {value!r}, must be a number")
    return value


def _numbers(schema: dict[str, Any], pointer: str) -> list[Check]:
    checks = []
    for keyword, words in _BOUNDS.items():
        if keyword in schema:
            bound = _number(schema, keyword, pointer)
            checks.append(Check(keyword=keyword, bound=bound, words=f"{words} {bound}"))
    if "multipleOf" in schema:
        step = _number(schema, "multipleOf", pointer)
        if step <= 0:
            raise _refused(f"{pointer}/multipleOf", f"is {step}, must be above 0")
        checks.append(Check(keyword="multipleOf", bound=step, words=f"not a multipleOf {step}"))
    return checks


def _sizes(schema: dict[str, Any], pointer: str) -> list[Check]:
    checks = []
    for keyword, words in _SIZES.items():
        if keyword in schema:
            bound = schema[keyword]
            if type(bound) is not int or bound < 0:
                raise _refused(f"{pointer}/{keyword}", f"is {bound!r}, must be whole, 0 or more")
            checks.append(Check(keyword=keyword, bound=bound, words=f"{words} {bound}"))
    return checks


def _pattern(schema: dict[str, Any], pointer: str) -> list[Check]:
    if "pattern" not in schema:
        return []
    pattern = schema["pattern"]
    try:
        re.compile(pattern)
    except (re.error, TypeError) as error:
        raise _refused(f"{pointer}/pattern", f"{pattern!r} is not a pattern: {error}") from error
    return [Check(keyword="pattern", bound=pattern, words=f"does not match pattern {pattern}")]


def _choices(schema: dict[str, Any], kind: str, pointer: str) -> list[Check]:
    checks = []
    python: dict[str, tuple[type, ...]] = {
        "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,),
    }  # fmt: skip
    for keyword in ("enum", "const"):
        if keyword not in schema:
            continue
        given = schema[keyword] if keyword == "enum" else [schema[keyword]]
        at = f"{pointer}/{keyword}"
        if not isinstance(given, list) or not given:
            raise _refused(at, "must be a list of values")
        values = [value for value in given if value is not None]
        wrong = [
            value
            for value in values
            if not isinstance(value, python[kind])
            or (isinstance(value, bool) and kind != "boolean")
        ]
        if wrong or not values:
            raise _refused(at, f"{(wrong or given)[0]!r} is not of type {kind}")
        words = "is not one of enum" if keyword == "enum" else f"is not const {values[0]!r}"
        checks.append(Check(keyword="enum", bound=tuple(values), words=words))
    return checks
