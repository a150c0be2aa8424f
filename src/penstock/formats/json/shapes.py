"""Shapes of JSON values and the columns that they become: a small tree of values.

JSON Schema (`json_schema.py`) and Spark's DDL are both read into this tree. A shape has the Arrow
type of a value; a check is a further condition, with the words of its error.
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
    """Condition on a value that is not null; `words` are the error if it is false.

    `bound` is the value of JSON Schema's keyword: a number, a pattern, or the allowed values.
    """

    keyword: Keyword
    bound: Any
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """Value without fields or items; one without a type is any JSON, read as its text."""

    data_type: pa.DataType | None = None
    checks: tuple[Check, ...] = ()
    nullable: bool = True
    text_too: bool = True
    """Whether a decimal may be written as a string."""
    pattern: str | None = None
    """What the text of a date or time must look like, where it is not the usual."""
    collation: str | None = None
    """How the strings of a column are compared, where its schema says that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """Named member of an object; `required` means present, and not null unless it may be."""

    name: str
    shape: Shape
    required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Object with fields; a `closed` one has no others."""

    fields: tuple[Field, ...]
    closed: bool = False
    nullable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """Array; checks are on the array as a whole."""

    item: Shape
    checks: tuple[Check, ...] = ()
    nullable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """Object as a map from its names to values of one shape."""

    value: Shape
    nullable: bool = True


Shape = Leaf | Record | Items | Named
