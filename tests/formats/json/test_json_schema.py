"""A JSON Schema becomes shapes and checks; what is not supported is refused."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from penstock.formats import InvalidFormat
from penstock.formats.json.json_schema import (
    Check,
    Field,
    Items,
    Leaf,
    Named,
    Record,
    record_of_json_schema,
)


def test_shapes_are_values() -> None:
    found = record_of_json_schema(
        {
            "type": "object",
            "required": ["a"],
            "additionalProperties": False,
            "properties": {
                "a": {"type": "integer", "minimum": 0},
                "b": {"type": ["array", "null"], "items": {"enum": ["x", "y"]}},
                "c": {"type": "object", "additionalProperties": {}},
            },
        }
    )
    least = Check(keyword="minimum", bound=0, words="below minimum 0")
    choice = Check(keyword="enum", bound=("x", "y"), words="is not one of enum")
    a = Leaf(data_type=pa.int64(), checks=(least,), nullable=False, text_too=False)
    item = Leaf(data_type=pa.string(), checks=(choice,), nullable=False, text_too=False)
    assert found == Record(
        fields=(
            Field(name="a", shape=a, required=True),
            Field(name="b", shape=Items(item=item)),
            Field(name="c", shape=Named(value=Leaf(), nullable=False)),
        ),
        closed=True,
        nullable=False,
    )


@pytest.mark.parametrize(
    ("inner", "pointer", "reason"),
    [
        ({"type": "string", "not": {}}, "#/properties/a/not", "is not supported"),
        ({"type": "string", "format": "email"}, "#/properties/a/format", "'email'"),
        ({"type": ["string", "integer"]}, "#/properties/a/type", "one type"),
        ({"type": "text"}, "#/properties/a/type", "not a type"),
        ({"allOf": []}, "#/properties/a/allOf", "without a type"),
        ({"minimum": 1}, "#/properties/a/minimum", "without a type"),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, "#/properties/a/oneOf", "null"),
        ({"$ref": "other.json"}, "#/properties/a/$ref", "within this file"),
        ({"$ref": "#/$defs/gone"}, "#/properties/a/$ref", "does not exist"),
        ({"$ref": "#/$defs/loop"}, "#/$defs/loop/properties/a/$ref", "within itself"),
        ({"type": "array"}, "#/properties/a", "without items"),
        ({"type": "array", "items": {"type": "array"}}, "#/properties/a/items", "without items"),
        ({"type": "object"}, "#/properties/a", "additionalProperties"),
        ({"type": "string", "minLength": -1}, "#/properties/a/minLength", "-1"),
        ({"type": "string", "pattern": "("}, "#/properties/a/pattern", "not a pattern"),
        ({"type": "integer", "enum": ["x"]}, "#/properties/a/enum", "not of type integer"),
        ({"type": "array", "items": {"type": "string"}, "uniqueItems": True},
         "#/properties/a/uniqueItems", "is not supported"),
        (False, "#/properties/a", "must be a schema"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused_by_its_pointer(
    inner: Any, pointer: str, reason: str
) -> None:
    document = {
        "type": "object",
        "properties": {"a": inner},
        "$defs": {"loop": {"type": "object", "properties": {"a": {"$ref": "#/$defs/loop"}}}},
    }
    with pytest.raises(InvalidFormat, match="schema_file") as raised:
        record_of_json_schema(document)
    assert raised.value.value == pointer
    assert reason in raised.value.reason
