"""JSON schemas as documents: text, identity, normal form, drafts, references, and hostile texts."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import jsonschema_rs
import pytest

from penstock.registry.formats.json_document import METASCHEMAS
from penstock.registry.formats.json_schema import JsonSchema, parse_json_schema
from penstock.registry.formats.schema import Dependency, InvalidSchema
from tests.registry.formats.json_generator import (
    DocumentGenerator,
    SchemaGenerator,
    exact,
    validator_of,
)

SECONDS_MAX = 1.5
"""CPU time within which a hostile schema is parsed or refused; the machine may be busy."""


def parse(value: Any, dependencies: dict[str, Any] | None = None) -> JsonSchema:
    text = value if isinstance(value, str) else json.dumps(value)
    others = [
        Dependency(name=name, text=json.dumps(other))
        for name, other in (dependencies or {}).items()
    ]
    return parse_json_schema(text, others)


# Text and identity


@pytest.mark.parametrize(
    "text",
    [
        '{"maximum":1.0}',
        '{"maximum":1e400,"minimum":-1E+2}',
        '{"const":12345678901234567890}',
        '{"b":1,"a":{"d":[],"c":{}}}',
        '{"title":"Größe \\u0000 \\n \\" \\\\ 🙂"}',
        "true",
        "false",
        "{}",
    ],
)
def test_text_keeps_numbers_order_and_characters(text: str) -> None:
    assert parse_json_schema(text, ()).text == text


def test_spaces_do_not_change_the_identity_and_the_order_of_keys_does() -> None:
    plain = parse('{"type":"object","title":"a b"}')
    assert parse('\n{ "type" :\t"object",\r\n "title": "a b" }').identity == plain.identity
    assert parse('{"title":"a b","type":"object"}').identity != plain.identity


def test_normal_form_is_equal_for_other_orders_of_sets() -> None:
    first = parse(
        '{"type":["string","object"],"required":["b","a"],"enum":[2,"x",1.0],'
        '"properties":{"b":{},"a":{"required":["d","c"]}},"dependencies":{"a":["z","y"]}}'
    )
    second = parse(
        '{"dependencies":{"a":["y","z"]},"enum":["x",1.0,2],"required":["a","b"],'
        '"properties":{"a":{"required":["c","d"]},"b":{}},"type":["object","string"]}'
    )
    assert first.normalized().text == second.normalized().text
    assert '"enum":["x",1.0,2]' in first.normalized().text


def test_normal_form_keeps_lists_whose_order_counts() -> None:
    text = (
        '{"anyOf":[{"type":"string"},{"type":"null"}],"default":{"required":["b","a"]},'
        '"examples":["b","a"],"items":[{"type":"string"},{"type":"integer"}],"x":{"enum":[2,1]}}'
    )
    assert parse(text).normalized().text == text


@pytest.mark.parametrize("seed", range(40))
def test_normal_form_accepts_the_same_documents(seed: int) -> None:
    random = Random(seed)
    draft = random.choice((4, 6, 7, 2019, 2020))
    value = SchemaGenerator(random, draft).root()
    try:
        normal = parse(value).normalized()
    except InvalidSchema:
        return
    assert normal.normalized().text == normal.text
    before, after = validator_of(value), validator_of(json.loads(normal.text))
    documents = DocumentGenerator(random, value)
    for _ in range(40):
        document = exact(documents.document())
        assert before.is_valid(document) == after.is_valid(document)


# Drafts


@pytest.mark.parametrize("uri", list(METASCHEMAS.values()))
@pytest.mark.parametrize("end", ["", "#"])
def test_all_drafts_are_parsed(uri: str, end: str) -> None:
    assert parse({"$schema": uri + end, "type": "object"})
    assert parse({"$schema": uri.replace("http:", "https:") + end})


def test_the_metaschemas_are_schemas() -> None:
    specifications = importlib.import_module("jsonschema_specifications")
    names = [uri for uri in specifications.REGISTRY if uri.rstrip("#") in METASCHEMAS.values()]
    assert len(names) == 5
    for name in names:
        contents = specifications.REGISTRY[name].contents
        if "$recursiveAnchor" in contents or "$dynamicAnchor" in contents:
            continue  # they refer to vocabularies
        assert parse(contents).check_reads(parse(contents)) == []


def test_draft_7_is_the_default() -> None:
    assert parse({"if": {"type": "string"}, "then": {"maxLength": 1}})
    with pytest.raises(InvalidSchema, match="draft 7 at /exclusiveMinimum"):
        parse({"exclusiveMinimum": True})
    with pytest.raises(InvalidSchema, match="draft 4 at /exclusiveMinimum"):
        parse({"$schema": METASCHEMAS[4], "exclusiveMinimum": 5})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"type": "text"}, "/type"),
        ({"properties": {"a": {"minLength": -1}}}, "/properties/a/minLength"),
        ({"allOf": []}, "/allOf"),
        ({"$schema": "http://example.com/mine"}, "is not supported; use one of"),
        ({"properties": {"a": {"$schema": METASCHEMAS[2020]}}}, "differs from the document's"),
        ({"pattern": "("}, "is not a regular expression"),
        ({"patternProperties": {"[": {}}}, "is not a regular expression"),
        ("[]", "must be an object or a boolean"),
        ('"string"', "must be an object or a boolean"),
        ("", "is not JSON"),
        ('{"maximum":NaN}', "NaN is not a JSON number"),
        ("{'a':1}", "is not JSON"),
    ],
)
def test_malformed_schemas_are_refused(value: Any, message: str) -> None:
    with pytest.raises(InvalidSchema, match=message):
        parse(value)


def test_patterns_of_java_are_allowed() -> None:
    assert parse({"pattern": "(?i)abc"})
    assert parse({"pattern": "^(?!x)(?<year>\\d{4})"})


# References


def test_a_reference_without_target_is_named() -> None:
    with pytest.raises(InvalidSchema, match=r"#/definitions/missing' at /properties/a has no"):
        parse({"properties": {"a": {"$ref": "#/definitions/missing"}}})
    with pytest.raises(InvalidSchema, match=r"other\.json#/x' at the root has no target"):
        parse({"$ref": "other.json#/x"})
    with pytest.raises(InvalidSchema, match="refers to a value that is not a schema"):
        parse({"x": 5, "$ref": "#/x"})


@pytest.mark.parametrize(
    "reference",
    ["file:///etc/hostname", "http://127.0.0.1:1/a.json", "http://[::1", "#/a/%zz", "//", "#x"],
)
def test_nothing_is_read_from_elsewhere(reference: str) -> None:
    with pytest.raises(InvalidSchema, match="has no target"):
        parse({"$ref": reference})


def test_references_by_name_uri_anchor_and_pointer() -> None:
    address = {"type": "object", "definitions": {"zip": {"$id": "#zip", "type": "string"}}}
    value = {
        "$id": "http://example.com/root/person.json",
        "properties": {
            "by_name": {"$ref": "address.json"},
            "by_uri": {"$ref": "http://example.com/root/address.json#/definitions/zip"},
            "own": {"$ref": "#/properties/by_name"},
            "outside": {"$ref": "#/components/inner"},
        },
        "components": {"inner": {"properties": {"a": {"$ref": "#/definitions/b"}}}},
        "definitions": {"b": {"type": "integer"}},
    }
    schema = parse(
        value, {"address.json": address, "http://example.com/root/address.json": address}
    )
    found = {
        node.path: [target.where for target in schema.schemas.targets[identity]]
        for identity, node in schema.schemas.nodes.items()
        if identity in schema.schemas.targets
    }
    assert found == {
        ("properties", "by_name"): ["http://example.com/root/address.json#"],
        ("properties", "by_uri"): ["http://example.com/root/address.json#/definitions/zip"],
        ("properties", "own"): ["/properties/by_name"],
        ("properties", "outside"): ["/components/inner"],
        ("components", "inner", "properties", "a"): ["/definitions/b"],
    }


def test_a_relative_name_is_found_below_an_identifier() -> None:
    value = {"$id": "http://example.com/root.json", "$ref": "other.json", "definitions": {}}
    assert parse({"allOf": [value], "$id": "http://x/"}, {"other.json": {"type": "string"}})


def test_dependencies_refer_to_dependencies_before_them() -> None:
    schema = parse({"$ref": "b.json"}, {"a.json": {"type": "string"}, "b.json": {"$ref": "a.json"}})
    assert schema.check_reads(parse({"type": "integer"}))[0].path == "a.json#/type"


def test_a_recursive_schema_is_valid_and_an_endless_one_is_not() -> None:
    assert parse({"properties": {"next": {"$ref": "#"}}})
    for value in (
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
        {"definitions": {"a": {"anyOf": [{"type": "null"}, {"$ref": "#/definitions/b"}]},
                         "b": {"not": {"$ref": "#/definitions/a"}}}},
    ):  # fmt: skip
        with pytest.raises(InvalidSchema, match="refers to itself for the same value"):
            parse(value)


# Output formats


@pytest.mark.parametrize("draft", list(METASCHEMAS))
def test_a_resolved_schema_stands_alone_and_accepts_the_same(draft: int) -> None:
    uri = {"$schema": METASCHEMAS[draft]}  # type: ignore[index]
    dependencies: dict[str, Any] = {
        "types/id.json": {**uri, "type": "integer", "minimum": 1.0},
        "http://example.com/list~item.json": {
            **uri,
            "type": "object",
            "properties": {
                "id": {"$ref": "types/id.json"},
                "next": {"$ref": "#"},
                "name": {"$ref": "#/definitions/na me"},
            },
            "definitions": {"na me": {"type": "string"}},
            "additionalProperties": False,
        },
    }
    value = {
        **uri,
        "properties": {
            "list": {"$ref": "http://example.com/list~item.json"},
            "name": {"$ref": "http://example.com/list~item.json#/definitions/na%20me"},
            "own": {"$ref": "#/definitions/own"},
        },
        "definitions": {"own": {"type": "boolean"}},
    }
    schema = parse(value, dependencies)
    text = schema.formatted("resolved")
    alone = validator_of(json.loads(text))
    parse(text)
    assert '"minimum":1.0' in text
    good = {"list": {"id": 1, "name": "a", "next": {"id": 2}}, "name": "b", "own": True}
    assert alone.is_valid(good)
    for bad in (
        {"list": {"id": 0}},
        {"list": {"next": {"id": 0}}},
        {"list": {"name": 1}},
        {"list": {"other": 1}},
        {"name": 1},
        {"own": 1},
    ):
        assert not alone.is_valid(bad), bad


def test_output_formats() -> None:
    schema = parse('{"type": "string"}')
    assert schema.formatted("") == schema.formatted("resolved") == '{"type":"string"}'
    with pytest.raises(InvalidSchema, match="format 'serialized' does not exist"):
        schema.formatted("serialized")


def test_documents_of_two_drafts_cannot_be_resolved_into_one() -> None:
    schema = parse({"$ref": "a.json"}, {"a.json": {"$schema": METASCHEMAS[2020]}})
    with pytest.raises(InvalidSchema, match=r"reference 'a\.json' is of another draft"):
        schema.formatted("resolved")


# Hostile texts


def _chain(length: int) -> dict[str, Any]:
    definitions: dict[str, Any] = {
        f"d{index}": {"$ref": f"#/definitions/d{index + 1}"} for index in range(length)
    }
    definitions[f"d{length}"] = {"type": "string"}
    return {"allOf": [{"$ref": "#/definitions/d0"}], "definitions": definitions}


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "more than a megabyte": (lambda: {"title": "x" * 1_048_576}, "the limit is 1048576"),
    "100,000 nested arrays": (lambda: "[" * 100_000, "deeper than 192 levels"),
    "100,000 nested schemas": (
        lambda: '{"not":' * 100_000 + "{}" + "}" * 100_000,
        "deeper than 192 levels",
    ),
    "65 nested schemas": (lambda: '{"not":' * 65 + "{}" + "}" * 65, "deeper than 64 subschemas"),
    "30,000 references": (lambda: _chain(21_000), "more than 20000 subschemas"),
    "100,000 branches": (
        lambda: '{"oneOf":[' + ",".join(["{}"] * 100_000) + "]}",
        "more than 20000 subschemas",
    ),
    "100,000 values": (lambda: {"enum": list(range(100_000))}, "more than 20000 subschemas"),
    "key twice": (
        lambda: '{"type":"string","properties":{},"type":"integer"}',
        'key "type" occurs twice',
    ),
    "lone surrogate": (lambda: '{"title":"\\ud800"}', "lone surrogate"),
    "lone surrogate in a key": (lambda: '{"properties":{"\\udfff":{}}}', "lone surrogate"),
    "raw lone surrogate": (lambda: '{"title":"\ud800"}', "lone surrogate"),
    "raw NUL": (lambda: '{"title":"\x00"}', "Invalid control character"),
    "large exponent": (lambda: '{"maximum":1e99999999999999999999}', "not from -10000 to 10000"),
    "small exponent": (lambda: '{"multipleOf":1e-99999}', "not from -10000 to 10000"),
    "5,000 digits": (
        lambda: '{"maximum":' + "9" * 5000 + "}",
        "has 5000 characters, the limit is 1000",
    ),
    "unclosed groups": (lambda: {"pattern": "(" * 100_000}, "is not a regular expression"),
    "unterminated string": (lambda: '{"a":"' + '\\"' * 400_000, "Unterminated string"),
    "unterminated escape": (lambda: "[]" * 300 + '"' + '\\"' * 400_000 + "\\", "Extra data"),
    "long key": (
        lambda: {"properties": {"k" * 900_000: {"type": 1}}},
        "does not conform to draft 7",
    ),
    "long $schema": (lambda: {"$schema": "x" * 900_000}, "is not supported"),
}


@pytest.mark.parametrize(("make", "reason"), REFUSED.values(), ids=REFUSED)
def test_hostile_texts_are_refused_in_time(make: Callable[[], Any], reason: str) -> None:
    value = make()
    text = value if isinstance(value, str) else json.dumps(value)
    begun = time.process_time()
    with pytest.raises(InvalidSchema, match=reason) as caught:
        parse_json_schema(text, ())
    assert time.process_time() - begun < SECONDS_MAX
    assert len(str(caught.value)) < 1_000


ACCEPTED: dict[str, Callable[[], Any]] = {
    "10,000 nested references": lambda: _chain(10_000),
    "tree of references with 10^30 leaves": lambda: {
        "definitions": {
            **{
                f"l{level}": {"allOf": [{"$ref": f"#/definitions/l{level + 1}"}] * 10}
                for level in range(30)
            },
            "l30": {"type": "string"},
        },
        "allOf": [{"$ref": "#/definitions/l0"}],
    },
    "one large text": lambda: {"description": "x" * 1_040_000},
    "many empty arrays": lambda: '{"default":[' + ",".join(["[]"] * 300_000) + "]}",
    "backtracking pattern": lambda: {"pattern": "(x+x+)+y"},
    "huge pattern": lambda: {"pattern": "((a{100}){100}){100}"},
    "long pattern": lambda: {"pattern": "a" * 900_000},
    "escaped NUL": lambda: '{"properties":{"a\\u0000b":{}}}',
    "number beyond floats": lambda: '{"maximum":1e400,"multipleOf":1e-400}',
}


@pytest.mark.parametrize("make", ACCEPTED.values(), ids=ACCEPTED)
def test_large_schemas_are_parsed_and_compared_in_time(make: Callable[[], Any]) -> None:
    value = make()
    text = value if isinstance(value, str) else json.dumps(value)
    begun = time.process_time()
    schema = parse_json_schema(text, ())
    parsed = time.process_time()
    assert parsed - begun < SECONDS_MAX
    other = parse({"enum": ["a" * 5000 + "b", 3]})
    schema.check_reads(other)
    other.check_reads(schema)
    schema.normalized()
    assert time.process_time() - parsed < 2 * SECONDS_MAX


def _documents() -> Iterator[str]:
    random = Random(5)
    for _ in range(60):
        yield json.dumps(SchemaGenerator(random, random.choice((4, 6, 7, 2019, 2020))).root())


def test_damaged_texts_are_refused_or_parsed() -> None:
    random = Random(6)
    for text in _documents():
        for _ in range(30):
            at = random.randrange(len(text))
            damaged = random.choice(
                (
                    text[:at] + text[at + 1 :],
                    text[:at] + random.choice('{}[]",:0-e\\#$\x00\ud800é') + text[at:],
                    text[:at] + text[random.randrange(len(text)) :],
                )
            )
            try:
                parse_json_schema(damaged, ())
            except InvalidSchema:
                continue


def test_the_validator_agrees_that_schemas_are_valid() -> None:
    parsed = 0
    for text in _documents():
        try:
            parse_json_schema(text, ())
        except InvalidSchema:
            continue
        assert jsonschema_rs.meta.is_valid(json.loads(text))
        parsed += 1
    assert parsed > 50
