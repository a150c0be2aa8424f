"""Shapes: a tree that describes valid JSON values and the columns that they become.

JSON Schemas (`json_schema.py`) and Spark's DDL are converted to shapes. A shape has the Arrow type
of a value. A check is a further condition on the value, with an error text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

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
