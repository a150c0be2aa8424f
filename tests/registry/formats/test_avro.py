"""Avro schemas: texts, identity, normal form, references, and what is rejected."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

import fastavro
import pytest
from fastavro.schema import SchemaParseException, UnknownType

from penstock.registry.formats.avro import parse_avro
from penstock.registry.formats.schema import Dependency, InvalidSchema
from tests.formats.drawn import EXAMPLES, drawn
from tests.registry.formats.avro_reference import AvroReference
from tests.registry.formats.avro_schemas import broken, versions

SECONDS_MAX = 5
"""Generous on a busy machine; the slowest takes a fifth of a second alone."""


@pytest.fixture(scope="module")
def java() -> Iterator[AvroReference]:
    with AvroReference() as reference:
        yield reference


def record(*fields: Any, **attributes: Any) -> str:
    """Return a record `shop.R` with fields given as names and types, or as objects."""
    made = [
        field if isinstance(field, dict) else {"name": field[0], "type": field[1]}
        for field in fields
    ]
    return json.dumps(
        {"type": "record", "name": "R", "namespace": "shop", "fields": made, **attributes}
    )


def identity(text: str, *references: str) -> str:
    return parse_avro(text, dependencies(references)).identity


def dependencies(texts: Sequence[str]) -> list[Dependency]:
    return [Dependency(name=f"reference {number}", text=text) for number, text in enumerate(texts)]


def test_text_keeps_everything_but_spaces() -> None:
    text = """ { "fields" : [ {"default": 1.50, "name":"a", "type": "double", "x": {"b":[1, "é"]},
        "doc":"\\u0000"} ], "name":"R", "type" : "record", "doc":"d", "aliases":["Q"]}"""
    assert parse_avro(text, []).text == (
        '{"fields":[{"default":1.5,"name":"a","type":"double","x":{"b":[1,"é"]},'
        '"doc":"\\u0000"}],"name":"R","type":"record","doc":"d","aliases":["Q"]}'
    )


@pytest.mark.parametrize(
    "text",
    ['"string"', '{"type":"string"}', '["null","int"]', "[]", '{"type":"array","items":"int"}',
     '{"type":"fixed","name":"F","size":0}', '{"type":"error","name":"E","fields":[]}',
     '{"type":"bytes","logicalType":"decimal","precision":1,"scale":9}'],
)  # fmt: skip
def test_any_type_may_be_the_schema(text: str) -> None:
    assert parse_avro(text, []).text == text


INNER = {"type": "record", "name": "I", "fields": [{"name": "x", "type": "int", "default": 1},
         {"name": "y", "type": ["null", "I"], "default": None}]}  # fmt: skip
VALID_DEFAULTS: list[tuple[Any, Any]] = [
    (["null", "int"], None), (["null", "int"], 7), (["int", "null"], None), ("double", 1),
    ("float", "-Infinity"), ("float", " 1e3 "), ("long", -(1 << 63)), ("bytes", "\u00ff"),
    (INNER, {}), (INNER, {"x": 2, "z": 3}), (["null", INNER], {"y": {"y": None}}),
    ({"type": "array", "items": ["null", "int"]}, [1, None]),
    ({"type": "map", "values": {"type": "fixed", "name": "F", "size": 2}}, {"a": "b"}),
    ({"type": "enum", "name": "E", "symbols": ["A"]}, "A"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "default"), VALID_DEFAULTS)
def test_valid_defaults(kind: Any, default: Any) -> None:
    text = record({"name": "a", "type": kind, "default": default})
    assert json.loads(parse_avro(text, []).text) == json.loads(text)


@pytest.mark.interop
def test_java_accepts_these_defaults(java: AvroReference) -> None:
    for kind, default in VALID_DEFAULTS:
        assert java.text(record({"name": "a", "type": kind, "default": default})) is not None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('"string"', '{"type":"string"}'),
        ('"string"', '{"type":"string","doc":"a primitive type has no doc"}'),
        ('{"type":"string","b":{"x":1,"y":2},"a":3}', '{"a":3,"b":{"y":2,"x":1},"type":"string"}'),
        (record(("a", "int")), record(("a", "int"), name="shop.R", namespace="x")),
        (record(("a", ["null", "R"])), record(("a", ["null", {"type": "shop.R", "x": 1}]))),
        (record(("a", "int"), aliases=["A"]), record(("a", "int"), aliases=["shop.A", "A"])),
        (record({"name": "a", "type": "int", "order": "Ascending"}), record(("a", "int"))),
        (record({"name": "a", "type": "float", "default": "NaN"}),
         record({"name": "a", "type": "float", "default": " NaN "})),
        (record({"name": "a", "type": "float", "default": "1.50"}),
         record({"name": "a", "type": "float", "default": 1.5})),
    ],
)  # fmt: skip
def test_equal_identity(one: str, other: str) -> None:
    assert identity(one) == identity(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('"string"', '{"type":"string","a":1}'),
        ('["null","int"]', '["int","null"]'),
        (record(("a", "int")), record(("a", "int"), doc="d")),
        (record(("a", "int")), record(("a", "int"), aliases=["B"])),
        (record(("a", "int"), ("b", "int")), record(("b", "int"), ("a", "int"))),
        (record(("a", "int")), record({"name": "a", "type": "int", "default": 1})),
        (record(("a", "int")), record({"name": "a", "type": "int", "order": "ignore"})),
    ],
)
def test_different_identity(one: str, other: str) -> None:
    assert identity(one) != identity(other)
    assert parse_avro(one, []).normalized().text != parse_avro(other, []).normalized().text


def test_normal_form() -> None:
    inner = {"namespace": "", "type": "fixed", "size": 1, "name": "F", "aliases": ["z", "a.y"]}
    text = record(
        ("a", {"type": "string"}), ("f", inner), ("g", "F"), ("r", ["null", "R"]), z=1, doc="d"
    )
    normal = parse_avro(text, []).normalized()
    assert normal.text == (
        '{"type":"record","name":"shop.R","doc":"d","fields":[{"name":"a","type":"string"},'
        '{"name":"f","type":{"type":"fixed","name":"F","namespace":"","size":1,'
        '"aliases":["a.y","z"]}},{"name":"g","type":"F"},{"name":"r","type":["null","shop.R"]}],'
        '"z":1}'
    )
    assert normal.normalized().text == normal.text == normal.identity


MONEY = '{"type":"fixed","name":"shop.Money","size":8}'
LINE = '{"type":"record","name":"shop.Line","fields":[{"name":"price","type":"Money"}]}'


def test_references_are_resolved() -> None:
    text = record(("total", "Money"), ("lines", {"type": "array", "items": {"type": "Line"}}))
    schema = parse_avro(text, dependencies([MONEY, LINE, MONEY]))
    assert schema.formatted("") == schema.text
    assert schema.identity.count('"shop.Money"') == 1
    resolved = schema.formatted("resolved")
    assert json.loads(resolved)["fields"] == [
        {"name": "total", "type": {"type": "fixed", "name": "shop.Money", "size": 8}},
        {"name": "lines", "type": {"type": "array", "items": {
            "type": "record", "name": "shop.Line",
            "fields": [{"name": "price", "type": "shop.Money"}],
        }}},
    ]  # fmt: skip
    assert schema.check_reads(parse_avro(resolved, [])) == []
    fastavro.parse_schema(json.loads(resolved))
    with pytest.raises(InvalidSchema, match='format "nothing" does not exist'):
        schema.formatted("nothing")


@pytest.mark.parametrize(
    ("references", "reason"),
    [
        ([LINE], 'In reference "reference 0".*Money" is not defined'),
        ([MONEY, MONEY.replace("8", "9")], 'In reference "reference 1".*Money is defined twice'),
        ([MONEY, LINE, record()], "R is defined twice"),
        (["{"], 'In reference "reference 0": The schema is not JSON'),
        ([MONEY] * 501, "refers to 501 schemas, the limit is 500"),
        ([json.dumps("x" * 1_000_000)] * 9, "the limit is 8388608"),
    ],
)  # fmt: skip
def test_invalid_references(references: list[str], reason: str) -> None:
    with pytest.raises(InvalidSchema, match=reason):
        parse_avro(record(("total", "Money")), dependencies(references))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("string", "is not JSON"),
        ('/* c */ "int"', "is not JSON"),
        ('"int" "int"', "Extra data"),
        ("null", "null is not a type"),
        ('"Money"', 'type "Money" is not defined. Define it before its first use'),
        ('{"type":{"type":"int"}}', '"type" is {"type":"int"}, but it must be the name'),
        ('{"type":"array"}', "the array has no 'items'"),
        ('["int",["int"]]', "at /1: a union must not contain a union|a union must not contain"),
        ('["int",{"type":"int","logicalType":"date"}]', "the type int twice"),
        ('{"type":"record","fields":[]}', "the record has no name"),
        ('{"type":"record","name":"a..b","fields":[]}', '"" is not a name'),
        ('{"type":"record","name":"Ü","fields":[]}', '"Ü" is not a name'),
        ('{"type":"record","name":"int","fields":[]}', "is a primitive type"),
        ('{"type":"record","name":"A","namespace":1,"fields":[]}', "namespace 1 is not a string"),
        ('{"type":"enum","name":"E","symbols":["A","A"]}', "a symbol twice"),
        ('{"type":"enum","name":"E","symbols":["A"],"default":"B"}', '"B" is not a symbol'),
        ('{"type":"fixed","name":"F","size":-1}', "size of the fixed is -1, must be from 0"),
        (record(("a", "int"), ("a", "int")), "at /fields/1.*the field a twice"),
        (record(("a-b", "int")), "at /fields/0: .* is not a name"),
        (record({"name": "a", "type": "int", "order": "up"}), 'order "up" is not one of'),
        (record(("a", {"type": "fixed", "name": "R", "size": 1})), "shop.R is defined twice"),
        (record(("a", "R2"), ("b", {"type": "fixed", "name": "R2", "size": 1})), 'R2" is not def'),
        (record({"name": "a", "type": "int", "default": 1 << 31}), "does not match its type int"),
        (record({"name": "a", "type": "int", "default": True}), "does not match its type int"),
        (record({"name": "a", "type": "double", "default": "inf"}), '"inf" of the field a'),
        (record({"name": "a", "type": ["int", "string"], "default": None}), r"\[int, string\]"),
        (record({"name": "a", "type": "R", "default": {}}), "which contains the field itself"),
        ('{"type":"string","x":"\\ud800"}', "has the lone surrogate '\\\\ud800'"),
        ('{"type":"string","x":"\ud800"}', "has the lone surrogate '\\\\ud800'"),
        ('{"type":"string","x":"\0"}', "is not JSON"),
        ('{"type":"string","x":NaN}', "NaN is not a JSON number"),
        ('{"type":"string","x":1e999}', "The number 1e999 is too large"),
        ('{"type":"int","type":"long"}', 'The key "type" occurs twice'),
    ],
)  # fmt: skip
def test_invalid(text: str, reason: str) -> None:
    with pytest.raises(InvalidSchema, match=reason):
        parse_avro(text, [])


def nested(count: int, start: str, end: str, core: str) -> str:
    return start * count + core + end * count


HOSTILE = {
    "lists": "[" * 100_000 + "]" * 100_000,
    "arrays": nested(30_000, '{"type":"array","items":', "}", '"int"'),
    "65 arrays": nested(65, '{"type":"array","items":', "}", '"int"'),
    "equal branches": json.dumps(["int"] * 100_000),
    "branches": json.dumps([{"type": "fixed", "name": f"F{n}", "size": 1} for n in range(20_001)]),
    "symbols": record(type="enum", symbols=[f"S{number}" for number in range(90_000)]),
    "aliases": record(aliases=[f"A{number}" for number in range(90_000)]),
    "fields": record(*((f"f{number}", "int") for number in range(20_000))),
    "long name": record(name="N" * 1_000_000),
    "long reference": json.dumps("N" * 1_000_000),
    "long namespace": record(namespace="a." * 500_000 + "a"),
    "dots": record(name="." * 1_000_000),
    "size": json.dumps("x" * 1_100_000),
    "repeated keys": '{"type":"int",' + ",".join(f'"k{n % 90_000}":1' for n in range(90_001)) + "}",
    "integer": '{"type":"int","x":' + "9" * 1_000_000 + "}",
    "fraction": '{"type":"int","x":1.' + "9" * 1_000_000 + "}",
    "text of a number": record({"name": "a", "type": "double", "default": "1" * 900_000 + "x"}),
    "open string": '["' + '\\"' * 500_000,
    "open escape": "[]" * 300 + '"' + '\\"' * 500_000 + "\\",
    "default": record({"name": "a", "type": {"type": "array", "items": "int"},
                       "default": json.loads("[" * 90 + "]" * 90)}),
    "ambiguous default": record(
        ("t", {"type": "record", "name": "A", "fields": [{"name": "x", "type": ["null", "A", {
            "type": "record", "name": "B", "fields": [{"name": "x", "type": ["null", "A", "B"]}],
        }]}]}),
        {"name": "d", "type": ["A", "B"], "default": json.loads(nested(60, '{"x":', "}", "5"))},
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_texts_are_rejected_soon(text: str) -> None:
    begun = time.process_time()
    with pytest.raises(InvalidSchema) as caught:
        parse_avro(text, [])
    assert time.process_time() - begun < SECONDS_MAX
    assert len(str(caught.value)) < 600


def test_deep_chain_of_references() -> None:
    chain = (record(("a", f"R{number - 1}"), name=f"R{number}") for number in range(1, 80))
    texts = [record(name="R0"), *chain]
    parse_avro(record(("a", "R62"), name="M"), dependencies(texts[:63]))
    with pytest.raises(InvalidSchema, match="types nest deeper than 64 levels"):
        parse_avro(record(("a", "R79"), name="M"), dependencies(texts))


def test_limits_can_be_reached() -> None:
    parse_avro(nested(64, '{"type":"array","items":', "}", '"int"'), [])
    parse_avro(
        json.dumps([{"type": "fixed", "name": f"F{n}", "size": 1} for n in range(19_999)]), []
    )


@pytest.mark.interop
def test_java_writes_schemas_of_the_same_identity(java: AvroReference) -> None:
    for text in {text for pair in drawn(versions) for text in pair}:
        schema = parse_avro(text, [])
        written = java.text(text)
        assert written is not None
        assert identity(written) == schema.identity
        for equal in (schema.text, schema.normalized().text, schema.formatted("resolved")):
            again = java.text(equal)
            assert again is not None
            assert identity(again) == identity(equal)
            assert java.problems(equal, text) in ([], None)


REJECTED_HERE = (
    "is defined twice",
    "is not defined",
    "is not a string",
)
"""Reasons that the Java library does not have.

It accepts a repeated definition that is equal, a reference to a later definition, and a namespace
that is not a string. The specification, older versions of the library and fastavro do not.
"""


def rejection(text: str) -> str | None:
    try:
        parse_avro(text, [])
    except InvalidSchema as error:
        return str(error)
    return None


@pytest.mark.interop
def test_java_rejects_what_is_rejected_here(java: AvroReference) -> None:
    verdicts = set()
    for text in drawn(broken, EXAMPLES * 5):
        written = java.text(text)
        reason = rejection(text)
        if reason is not None:
            assert written is None or any(known in reason for known in REJECTED_HERE), text
        else:
            assert written is not None, text
            if '"aliases": [".' not in text:  # The library drops the dot when it writes.
                assert identity(written) == identity(text)
        verdicts.add(written is None)
    assert verdicts == {True, False}


@pytest.mark.interop
def test_java_resolves_references(java: AvroReference) -> None:
    text = record(("total", "Money"), ("lines", {"type": "array", "items": {"type": "Line"}}))
    schema = parse_avro(text, dependencies([MONEY, LINE]))
    assert java.text(MONEY, LINE, schema.text) is not None
    written = java.text(schema.formatted("resolved"))
    assert written is not None
    assert java.problems(schema.formatted("resolved"), written) == []


def test_fastavro_reads_normal_forms() -> None:
    """Another library reads them, except where it is stricter than the specification."""
    stricter = ("decimal precision must be", "Default value <3> must match")
    texts = [parse_avro(text, []).normalized().text for text, _ in drawn(versions)]
    reasons = [refusal_of_fastavro(text) for text in texts]
    assert all(reason is None or reason.startswith(stricter) for reason in reasons)
    assert reasons.count(None) > len(texts) // 2


def refusal_of_fastavro(text: str) -> str | None:
    try:
        fastavro.parse_schema(json.loads(text))
    except UnknownType as error:
        # It does not find types without a namespace from a namespace.
        return None if f'"name":"{error.name.rpartition(".")[2]}"' in text else error.name
    except SchemaParseException as error:
        return str(error)
    return None
