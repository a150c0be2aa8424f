"""Compatibility of JSON schemas: documented changes, counterexamples, edits, and bounds.

The documented changes are those of Confluent's guide to the evolution of JSON schemas, in our own
words. The independent oracle is `jsonschema-rs`: it evaluates generated documents, and it decides
by its canonical form whether one schema covers another one.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, NamedTuple

import jsonschema_rs
import pytest

from penstock.registry.formats import json_rules
from penstock.registry.formats.json_compatibility import Comparison
from penstock.registry.formats.json_containers import ArrayRules, ObjectRules
from penstock.registry.formats.json_rules import KeywordRules
from penstock.registry.formats.json_schema import JsonSchema, parse_json_schema
from penstock.registry.formats.schema import (
    PROBLEMS_MAX,
    Dependency,
    Incompatibility,
    InvalidSchema,
    Policy,
)
from tests.registry.formats.json_generator import (
    SCHEMA_URIS,
    Changes,
    DocumentGenerator,
    SchemaGenerator,
    exact,
    validator_of,
)

PAIRS = 600
DOCUMENTS = 60
EDITS_MAX = 20
D4, D2019, D2020 = (SCHEMA_URIS[draft] for draft in (4, 2019, 2020))


def parse(value: Any) -> JsonSchema:
    return parse_json_schema(json.dumps(value), ())


def check(writer: Any, reader: Any, policy: Policy = "STRICT") -> Sequence[Incompatibility]:
    return parse(reader).check_reads(parse(writer), policy)


def rules(writer: Any, reader: Any, policy: Policy = "STRICT") -> list[str]:
    return sorted({problem.rule for problem in check(writer, reader, policy)})


def record(properties: Any = None, **more: Any) -> dict[str, Any]:
    """Return an object schema with an open content model."""
    return {"type": "object", "properties": properties or {}, **more}


def closed(properties: Any = None, **more: Any) -> dict[str, Any]:
    return record(properties, additionalProperties=False, **more)


def partial(properties: Any = None, **more: Any) -> dict[str, Any]:
    """Return an object schema whose other properties are integers."""
    return record(properties, additionalProperties={"type": "integer"}, **more)


TEXT, INTEGER, NUMBER, NULL = ({"type": name} for name in ("string", "integer", "number", "null"))
A, AB = {"a": TEXT}, {"a": TEXT, "b": INTEGER}

# Change from the first schema to the second, with the rules that it violates if the second one
# reads, and those that it violates if the first one reads.
CHANGES: dict[str, tuple[Any, Any, list[str], list[str]]] = {
    "nothing": (record(A), record(A), [], []),
    "annotations": (
        {"title": "x", "description": "y", "$id": "http://a/", "default": 1, "format": "email"},
        {"examples": [1]}, [], [],
    ),
    "anything to something": ({}, TEXT, ["TYPE_NARROWED"], []),
    "nothing to something": (False, TEXT, [], ["TYPE_CHANGED"]),
    "integer to number": (INTEGER, NUMBER, [], ["TYPE_NARROWED"]),
    "type added": (TEXT, {"type": ["string", "null"]}, [], ["TYPE_NARROWED"]),
    "type changed": (TEXT, INTEGER, ["TYPE_CHANGED"], ["TYPE_CHANGED"]),
    "multiples of 1 to integer": ({"type": "number", "multipleOf": 1}, INTEGER, [], []),
    "multiples of 1 in draft 4, where 2.0 is not an integer": (
        {"$schema": D4, "type": "number", "multipleOf": 1}, {"$schema": D4, **INTEGER},
        ["TYPE_NARROWED"], [],
    ),
    "maxLength added": (TEXT, {**TEXT, "maxLength": 5}, ["MAX_LENGTH_ADDED"], []),
    "maxLength decreased": (
        {**TEXT, "maxLength": 5}, {**TEXT, "maxLength": 4}, ["MAX_LENGTH_DECREASED"], [],
    ),
    "minLength added": (TEXT, {**TEXT, "minLength": 1}, ["MIN_LENGTH_ADDED"], []),
    "minLength increased": (
        {**TEXT, "minLength": 1}, {**TEXT, "minLength": 2}, ["MIN_LENGTH_INCREASED"], [],
    ),
    "pattern added": (TEXT, {**TEXT, "pattern": "a+"}, ["PATTERN_ADDED"], []),
    "pattern that is everywhere": (TEXT, {**TEXT, "pattern": ".*"}, [], []),
    "pattern changed": (
        {**TEXT, "pattern": "a"}, {**TEXT, "pattern": "b"},
        ["PATTERN_CHANGED"], ["PATTERN_CHANGED"],
    ),
    "pattern of constants": ({"enum": ["ab", "b"]}, {**TEXT, "pattern": "b$"}, [],
                             ["ENUM_ARRAY_NARROWED"]),
    "maximum added": (NUMBER, {**NUMBER, "maximum": 5}, ["MAXIMUM_ADDED"], []),
    "maximum decreased": (
        {**NUMBER, "maximum": 5}, {**NUMBER, "maximum": 4.5}, ["MAXIMUM_DECREASED"], [],
    ),
    "minimum increased": (
        {**NUMBER, "minimum": 5}, {**NUMBER, "minimum": 6}, ["MINIMUM_INCREASED"], [],
    ),
    "bound opened": (
        {**NUMBER, "maximum": 5}, {**NUMBER, "exclusiveMaximum": 5},
        ["EXCLUSIVE_MAXIMUM_DECREASED"], [],
    ),
    "equal bounds of integers": (
        {**INTEGER, "maximum": 5}, {**INTEGER, "exclusiveMaximum": 6}, [], [],
    ),
    "exclusive bound added": (
        NUMBER, {**NUMBER, "exclusiveMinimum": 5}, ["EXCLUSIVE_MINIMUM_ADDED"], [],
    ),
    "exclusive bound of draft 4": (
        {"$schema": D4, **NUMBER, "minimum": 5, "exclusiveMinimum": True},
        {**NUMBER, "exclusiveMinimum": 5}, [], [],
    ),
    "bounds beyond floats": (
        {**NUMBER, "maximum": 10**400}, {**NUMBER, "maximum": 10**400 - 1},
        ["MAXIMUM_DECREASED"], [],
    ),
    "multipleOf added": (NUMBER, {**NUMBER, "multipleOf": 2}, ["MULTIPLE_OF_ADDED"], []),
    "multipleOf expanded": (
        {**NUMBER, "multipleOf": 2}, {**NUMBER, "multipleOf": 4}, ["MULTIPLE_OF_EXPANDED"], [],
    ),
    "multipleOf changed": (
        {**NUMBER, "multipleOf": 2}, {**NUMBER, "multipleOf": 3},
        ["MULTIPLE_OF_CHANGED"], ["MULTIPLE_OF_CHANGED"],
    ),
    "value added": ({"enum": [1, "a"]}, {"enum": ["a", 1.0, None]}, [], ["ENUM_ARRAY_NARROWED"]),
    "values changed": (
        {"enum": [1, 2]}, {"enum": [2, 3]}, ["ENUM_ARRAY_CHANGED"], ["ENUM_ARRAY_CHANGED"],
    ),
    "true is not 1": (
        {"const": True}, {"const": 1}, ["ENUM_ARRAY_CHANGED"], ["ENUM_ARRAY_CHANGED"],
    ),
    "boolean to both values": ({"type": "boolean"}, {"enum": [True, False]}, [], []),
    "constant to its schema": (
        {"const": {"a": [1, "x"]}},
        record({"a": {"items": [INTEGER, TEXT], "maxItems": 2}}), [], ["ENUM_ARRAY_NARROWED"],
    ),
    # Objects
    "property added to an open content model": (
        record(A), record(AB), ["PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL"], [],
    ),
    "property of any value added": (record(A), record({**A, "b": {"title": "x"}}), [], []),
    "property added to a closed content model": (
        closed(A), closed(AB), [], ["PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL"],
    ),
    "property without values added": (closed(A), closed({**A, "b": False}), [], []),
    "property covered by a partially open content model": (partial(A), partial(AB), [], []),
    "property not covered by a partially open content model": (
        partial(), partial(A), ["PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"],
        ["PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"],
    ),
    "required property added to a closed content model": (
        closed(A), closed(AB, required=["b"]),
        ["REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL"],
        ["PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL"],
    ),
    "required property with a default added": (
        closed(A), closed({**A, "b": {**INTEGER, "default": 1}}, required=["b"]), [],
        ["PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL"],
    ),
    "required property added to an open content model": (
        record(A), record(AB, required=["b"]),
        ["PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL", "REQUIRED_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL"],
        [],
    ),
    "property required": (
        record(AB), record(AB, required=["b"]), ["REQUIRED_ATTRIBUTE_ADDED"], [],
    ),
    "content model closed": (record(A), closed(A), ["ADDITIONAL_PROPERTIES_REMOVED"], []),
    "content model restricted": (record(A), partial(A), ["ADDITIONAL_PROPERTIES_NARROWED"], []),
    "type of other properties changed": (
        partial(), record(additionalProperties=TEXT), ["TYPE_CHANGED"], ["TYPE_CHANGED"],
    ),
    "pattern of properties added": (
        record(), record(patternProperties={"^x": TEXT}), ["PATTERN_PROPERTY_ADDED"], [],
    ),
    "pattern of properties in closed content models": (
        closed(), closed(patternProperties={"^x": TEXT}), [], ["ADDITIONAL_PROPERTIES_REMOVED"],
    ),
    "property that a pattern covers": (
        closed(patternProperties={"^x": TEXT}),
        closed({"x1": TEXT}, patternProperties={"^x": TEXT}), [], [],
    ),
    "names restricted": (
        record(), record(propertyNames={"maxLength": 3}), ["PROPERTY_NAMES_ADDED"], [],
    ),
    "names that are all declared": (closed(AB), closed(AB, propertyNames={"maxLength": 1}), [], []),
    "minProperties added": (record(), record(minProperties=1), ["MIN_PROPERTIES_ADDED"], []),
    "minProperties by required": (
        record(A, required=["a"]), record(A, minProperties=1), [], ["REQUIRED_ATTRIBUTE_ADDED"],
    ),
    "maxProperties decreased": (
        record(maxProperties=3), record(maxProperties=2), ["MAX_PROPERTIES_DECREASED"], [],
    ),
    "dependency added": (
        record(AB), record(AB, dependencies={"a": ["b"]}), ["DEPENDENCY_ARRAY_ADDED"], [],
    ),
    "dependency extended": (
        record(AB, dependencies={"a": ["b"]}), record(AB, dependencies={"a": ["b", "c"]}),
        ["DEPENDENCY_ARRAY_EXTENDED"], [],
    ),
    "dependency on a schema added": (
        record(AB), record(AB, dependencies={"a": {"required": ["b"]}}),
        ["DEPENDENCY_SCHEMA_ADDED"], [],
    ),
    "dependency of a later draft": (
        record(AB, dependencies={"a": ["b"]}),
        {"$schema": D2020, **record(AB, dependentRequired={"a": ["b"]})}, [], [],
    ),
    "unevaluatedProperties closes across allOf": (
        {"$schema": D2020, "allOf": [record(A)], "unevaluatedProperties": False},
        {"$schema": D2020, "allOf": [record(AB)], "unevaluatedProperties": False}, [],
        ["PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL"],
    ),
    # Arrays
    "items restricted": ({"type": "array"}, {"type": "array", "items": TEXT}, ["SCHEMA_ADDED"], []),
    "items changed": ({"items": TEXT}, {"items": INTEGER}, ["TYPE_CHANGED"], ["TYPE_CHANGED"]),
    "item added to an open content model": (
        {"items": [TEXT]}, {"items": [TEXT, TEXT]}, ["ITEM_ADDED_TO_OPEN_CONTENT_MODEL"], [],
    ),
    "item added to a closed content model": (
        {"items": [TEXT], "additionalItems": False},
        {"items": [TEXT, TEXT], "additionalItems": False}, [],
        ["ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL"],
    ),
    "item added to a partially open content model": (
        {"items": [TEXT], "additionalItems": INTEGER},
        {"items": [TEXT, TEXT], "additionalItems": INTEGER},
        ["ITEM_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"],
        ["ITEM_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"],
    ),
    "further items forbidden": (
        {"items": [TEXT]}, {"items": [TEXT], "additionalItems": False},
        ["ADDITIONAL_ITEMS_REMOVED"], [],
    ),
    "tuple of a later draft": (
        {"items": [TEXT], "additionalItems": False},
        {"$schema": D2020, "prefixItems": [TEXT], "items": False}, [], [],
    ),
    "maxItems added": ({}, {"maxItems": 3}, ["MAX_ITEMS_ADDED"], []),
    "maxItems by a closed tuple": (
        {"items": [TEXT], "additionalItems": False}, {"maxItems": 1}, [],
        ["ITEM_ADDED_TO_OPEN_CONTENT_MODEL"],
    ),
    "minItems increased": ({"minItems": 1}, {"minItems": 2}, ["MIN_ITEMS_INCREASED"], []),
    "uniqueItems added": ({}, {"uniqueItems": True}, ["UNIQUE_ITEMS_ADDED"], []),
    "contains added": ({}, {"contains": TEXT}, ["CONTAINS_CHANGED"], []),
    "contains ensured by items": (
        {"items": TEXT, "minItems": 1}, {"contains": TEXT}, [],
        ["MIN_ITEMS_ADDED", "SCHEMA_ADDED"],
    ),
    "minContains increased": (
        {"$schema": D2019, "contains": TEXT},
        {"$schema": D2019, "contains": TEXT, "minContains": 2}, ["MIN_CONTAINS_INCREASED"], [],
    ),
    # Combined schemas
    "branch added": (
        {"oneOf": [TEXT, NULL]}, {"oneOf": [TEXT, NULL, INTEGER]}, [], ["SUM_TYPE_NARROWED"],
    ),
    "branches in another order": ({"anyOf": [TEXT, NULL]}, {"anyOf": [NULL, TEXT]}, [], []),
    "schema becomes a branch": (TEXT, {"oneOf": [NULL, TEXT]}, [], ["TYPE_NARROWED"]),
    "list of types becomes branches": (
        {"type": ["string", "null"]}, {"anyOf": [TEXT, NULL]}, [], [],
    ),
    "anyOf becomes oneOf": (
        {"anyOf": [INTEGER, {**NUMBER, "minimum": 0}]},
        {"oneOf": [INTEGER, {**NUMBER, "minimum": 0}]}, ["SUM_TYPE_OVERLAPS"], [],
    ),
    "branch that overlaps": (
        {"oneOf": [record(A)]}, {"oneOf": [record(A), record({"b": INTEGER})]},
        ["SUM_TYPE_OVERLAPS"], ["SUM_TYPE_NARROWED"],
    ),
    "branch with another tag": (
        {"oneOf": [record({"t": {"const": 1}}, required=["t"])]},
        {"oneOf": [record({"t": {"const": tag}}, required=["t"]) for tag in (1, 2)]}, [],
        ["SUM_TYPE_NARROWED"],
    ),
    "allOf extended": (
        {"allOf": [record(A)]}, {"allOf": [record(A), {"required": ["a"]}]},
        ["REQUIRED_ATTRIBUTE_ADDED"], [],
    ),
    "properties from several schemas": (
        {"allOf": [record(A), record({"b": INTEGER}, required=["a"])]}, record(AB, required=["a"]),
        [], [],
    ),
    "not extended": (
        {"not": INTEGER}, {"not": NUMBER}, ["NOT_TYPE_EXTENDED"], [],
    ),
    "not of another type": (TEXT, {"not": INTEGER}, [], ["TYPE_NARROWED"]),
    "condition added": (
        record(AB), record(AB, **{"if": {"required": ["a"]}, "then": {"required": ["b"]}}),
        ["CONDITION_CHANGED"], [],
    ),
    "condition kept, consequence widened": (
        {"if": TEXT, "then": {"maxLength": 3}}, {"if": TEXT, "then": {"maxLength": 4}}, [],
        ["CONDITION_CHANGED"],
    ),
    "reference in place of a schema": (
        record({"a": TEXT}),
        record({"a": {"$ref": "#/definitions/t"}}, definitions={"t": TEXT}), [], [],
    ),
    "neighbours of a reference are hidden in draft 7": (
        TEXT, {"definitions": {"t": TEXT}, "$ref": "#/definitions/t", "maxLength": 1}, [], [],
    ),
    "neighbours of a reference count in draft 2019-09": (
        TEXT, {"$schema": D2019, "$defs": {"t": TEXT}, "$ref": "#/$defs/t", "maxLength": 1},
        ["MAX_LENGTH_ADDED"], [],
    ),
    "keyword of a later draft": ({"$schema": D4, "const": 1}, {"$schema": D4, "const": 2}, [], []),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_documented_changes(name: str) -> None:
    first, second, forward, backward = CHANGES[name]
    assert rules(first, second) == forward
    assert rules(second, first) == backward


# Content model and policy: adding and removing a property that is optional, required with a
# default, or required.

OPTIONAL, DEFAULTED, REQUIRED = "optional", "defaulted", "required"


def _with_property(model: Callable[..., dict[str, Any]], kind: str) -> dict[str, Any]:
    schema = {**INTEGER, "default": 0} if kind == DEFAULTED else INTEGER
    required = {} if kind == OPTIONAL else {"required": ["b"]}
    return model({**A, "b": schema}, **required)


@pytest.mark.parametrize(
    ("model", "kind", "added", "removed"),
    [
        # accepted by STRICT and by LENIENT, if the property is added, and if it is removed
        (record, OPTIONAL, (False, True), (True, True)),
        (record, DEFAULTED, (False, True), (True, True)),
        (record, REQUIRED, (False, False), (True, True)),
        (closed, OPTIONAL, (True, True), (False, True)),
        (closed, DEFAULTED, (True, True), (False, False)),
        (closed, REQUIRED, (False, False), (False, False)),
    ],
)
def test_policies(
    model: Callable[..., dict[str, Any]],
    kind: str,
    added: tuple[bool, bool],
    removed: tuple[bool, bool],
) -> None:
    small, large = model(A), _with_property(model, kind)
    policies: tuple[Policy, Policy] = ("STRICT", "LENIENT")
    assert tuple(not check(small, large, policy) for policy in policies) == added
    assert tuple(not check(large, small, policy) for policy in policies) == removed


def test_lenient_still_compares_declared_properties_and_maps() -> None:
    assert rules(record(A), record({"a": INTEGER}), "LENIENT") == ["TYPE_CHANGED"]
    assert rules(partial(), record(additionalProperties=TEXT), "LENIENT") == ["TYPE_CHANGED"]
    assert rules(record(A), closed(A), "LENIENT") == []
    nested = {"allOf": [{"$ref": "#/definitions/x"}], "definitions": {"x": record(A)}}
    larger = {"allOf": [{"$ref": "#/definitions/x"}], "definitions": {"x": record(AB)}}
    assert rules(nested, larger, "LENIENT") == []
    assert rules({"anyOf": [NULL, record(A)]}, {"anyOf": [NULL, record(AB)]}, "LENIENT") == []


# Messages and places


def test_messages_have_both_sides_and_a_remedy() -> None:
    (problem,) = check(record(A), record(AB))
    assert problem.rule == "PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL"
    assert problem.path == "/properties/b"
    assert "reader's schema declares the property 'b' at /properties/b" in problem.message
    assert "writer's schema does not declare it" in problem.message
    assert '"additionalProperties": false' in problem.message
    assert "LENIENT" in problem.message


def test_paths_are_json_pointers() -> None:
    inner = {"a/b~c": {"items": [{"allOf": [TEXT]}]}}
    other = {"a/b~c": {"items": [{"allOf": [INTEGER]}]}}
    (problem,) = check(record(inner), record(other))
    assert problem.path == "/properties/a~1b~0c/items/0/allOf/0/type"
    definitions = {"definitions": {"t": TEXT}, "properties": {"a": {"$ref": "#/definitions/t"}}}
    changed = {**definitions, "definitions": {"t": INTEGER}}
    (problem,) = check(definitions, changed)
    assert problem.path == "/definitions/t/type"
    assert "at /definitions/t/type" in problem.message


def test_a_union_names_the_closest_branch() -> None:
    writer = {"oneOf": [NULL, record({"t": {"const": 1}, "v": TEXT}, required=["t"])]}
    reader = {"oneOf": [NULL, record({"t": {"const": 1}, "v": INTEGER}, required=["t"])]}
    (problem,) = check(writer, reader)
    assert problem.rule == "COMBINED_TYPE_SUBSCHEMAS_CHANGED"
    assert problem.path == "/oneOf"
    assert "In the closest branch" in problem.message
    assert "/oneOf/1/properties/v/type" in problem.message


def test_the_number_of_problems_is_bounded() -> None:
    names = [f"p{number}" for number in range(500)]
    problems = check(record(dict.fromkeys(names, TEXT)), record(dict.fromkeys(names, INTEGER)))
    assert len(problems) == PROBLEMS_MAX


def test_messages_are_bounded() -> None:
    key = "k" * 900_000
    (problem,) = check(record({key: record(A)}), record({key: record({"a": INTEGER})}))
    assert problem.path == f"/properties/{key}/properties/a/type"
    assert len(problem.message) < 1_000


# Recursive schemas


def _linked(value: Any) -> dict[str, Any]:
    return {
        "$ref": "#/definitions/node",
        "definitions": {"node": record({"value": value, "next": {"oneOf": [NULL, {"$ref": "#"}]}})},
    }


def test_recursive_schemas() -> None:
    assert rules(_linked(INTEGER), _linked(NUMBER)) == []
    assert rules(_linked(NUMBER), _linked(INTEGER)) == ["TYPE_NARROWED"]
    unrolled = record({"value": INTEGER, "next": {"oneOf": [NULL, {"$ref": "#/definitions/n"}]}})
    unrolled["definitions"] = {
        "n": record({"value": INTEGER, "next": {"oneOf": [NULL, {"$ref": "#"}]}})
    }
    assert rules(_linked(INTEGER), unrolled) == []
    assert rules(unrolled, _linked(TEXT)) != []


def test_an_attempt_that_fails_leaves_no_assumption() -> None:
    """The branch `first` refers back to itself by `third`, and differs only beside that cycle."""

    def schema(one: Any, two: Any) -> dict[str, Any]:
        def link(name: str) -> dict[str, str]:
            return {"$ref": f"#/definitions/{name}"}

        return {
            "oneOf": [link("first"), link("second")],
            "definitions": {
                "first": record({"down": link("third"), "x": one}, required=["x"]),
                "second": record({"down": link("third"), "x": two}, required=["x"]),
                "third": record({"up": {"oneOf": [link("first"), link("second"), NULL]}}),
            },
        }

    assert check(schema(INTEGER, TEXT), schema(INTEGER, TEXT)) == []
    assert check(schema(INTEGER, TEXT), schema(NULL, {"type": "boolean"})) != []
    assert check(schema(INTEGER, {"type": "boolean"}), schema({"type": "boolean"}, TEXT)) != []


def test_references_to_other_schemas_are_compared() -> None:
    def parse_with(value: Any, other: Any) -> JsonSchema:
        return parse_json_schema(
            json.dumps(value), [Dependency(name="t.json", text=json.dumps(other))]
        )

    value = record({"a": {"$ref": "t.json"}})
    assert parse_with(value, NUMBER).check_reads(parse_with(value, INTEGER)) == []
    (problem,) = parse_with(value, INTEGER).check_reads(parse_with(value, NUMBER))
    assert (problem.rule, problem.path) == ("TYPE_NARROWED", "t.json#/type")
    assert parse_with(value, TEXT).check_reads(parse(record({"a": TEXT}))) == []


# Generated pairs against the independent oracle


class Pair(NamedTuple):
    seed: int
    random: Random
    writer: Any
    reader: Any


def pairs(first: int, count: int) -> Iterator[Pair]:
    """Yield generated schemas: most readers are changed writers, some are unrelated."""
    for seed in range(first, first + count):
        random = Random(seed)
        draft = random.choice((4, 6, 7, 7, 2019, 2020))
        writer = SchemaGenerator(random, draft).root()
        reader = (
            Changes(random, draft).changed(writer)
            if random.random() < 0.85
            else SchemaGenerator(random, draft).root()
        )
        yield Pair(seed, random, writer, reader)


def counterexample(pair: Pair, documents: int = DOCUMENTS) -> Any:
    """Return a document that the writer's schema accepts and the reader's rejects; else None."""
    writes, reads = validator_of(pair.writer), validator_of(pair.reader)
    near = DocumentGenerator(pair.random, pair.writer), DocumentGenerator(pair.random, pair.reader)
    for number in range(documents):
        document = exact(near[number % 4 == 0].document())
        if writes.is_valid(document) and not reads.is_valid(document):
            return document
    return None


def covers(pair: Pair) -> str:
    """Return whether the oracle proves that the reader's schema accepts all documents."""
    options: dict[str, Any] = {"offline": True, "validate_formats": False}
    try:
        reader = jsonschema_rs.canonicalize(exact(pair.reader), **options)
        return str(reader.covers(jsonschema_rs.canonicalize(exact(pair.writer), **options)).value)
    except jsonschema_rs.canonical.CanonicalizationError:
        return "unknown"


def test_accepted_pairs_have_no_counterexample() -> None:
    verdicts: Counter[str] = Counter()
    for pair in pairs(0, PAIRS):
        try:
            writer, reader = parse(pair.writer), parse(pair.reader)
        except InvalidSchema:
            continue
        problems = reader.check_reads(writer)
        found = counterexample(pair)
        if problems:
            verdicts["refused"] += 1
            verdicts["refused, shown"] += found is not None
            verdicts["refused, but covered"] += covers(pair) == "yes"
            continue
        verdicts["accepted"] += 1
        assert found is None, (pair.seed, pair.writer, pair.reader, found)
        assert covers(pair) != "no", pair
        assert reader.check_reads(writer, "LENIENT") == [], pair
    assert verdicts["accepted"] > PAIRS / 3
    assert verdicts["refused"] > PAIRS / 3
    assert verdicts["refused, shown"] > verdicts["refused"] * 0.75
    assert verdicts["refused, but covered"] < verdicts["refused"] * 0.08


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (ObjectRules, "_required"),
        (ObjectRules, "_removed"),
        (ObjectRules, "_additional"),
        (ArrayRules, "_items"),
        (KeywordRules, "_values"),
        (KeywordRules, "_strings"),
    ],
)
def test_the_oracle_finds_planted_bugs(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    monkeypatch.setattr(owner, name, lambda *_: iter(()))
    assert _finds_a_bug()


@pytest.mark.parametrize("name", ["covers_low", "covers_high"])
def test_the_oracle_finds_planted_bugs_of_bounds(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(json_rules, name, lambda *_: True)
    assert _finds_a_bug()


def test_the_oracle_finds_branches_that_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Comparison, "_is_excluded", lambda *_: True)
    assert _finds_a_bug()


def _finds_a_bug() -> bool:
    for pair in pairs(0, 1500):
        try:
            accepted = not parse(pair.reader).check_reads(parse(pair.writer))
        except InvalidSchema:
            continue
        if accepted and counterexample(pair) is not None:
            return True
    return False


# Edits


def edit_until_accepted(
    schema: JsonSchema, other: JsonSchema, *, reads: bool, policy: Policy
) -> JsonSchema | None:
    """Return the schema after edits that make it compatible; None if they do not."""
    for _ in range(EDITS_MAX):
        problems = schema.check_reads(other, policy) if reads else other.check_reads(schema, policy)
        if not problems:
            return schema
        edited = schema.edited(other, problems, reads=reads, policy=policy)
        if edited is None:
            return None
        schema = edited
    return None


READER_EDITS: dict[str, tuple[Any, Any, Any]] = {
    # writer, reader, edited reader
    "type widened": (NUMBER, INTEGER, NUMBER),
    "type added": (TEXT, NULL, {"type": ["null", "string"]}),
    "bound restored": (
        {**NUMBER, "maximum": 9}, {**NUMBER, "maximum": 5}, {**NUMBER, "maximum": 9},
    ),
    "bound dropped": (NUMBER, {**NUMBER, "exclusiveMinimum": 5}, NUMBER),
    "value restored": ({"enum": ["a", "b"]}, {"enum": ["b"]}, {"enum": ["b", "a"]}),
    "constant": ({"enum": ["a", "b"]}, {"const": "b"}, {"enum": ["b", "a"]}),
    "property restored": (closed(AB), closed(A), closed(AB)),
    "requirement dropped": (
        closed(AB), closed(AB, required=["a", "b"]), closed(AB),
    ),
    "one requirement dropped": (
        closed(AB, required=["a"]), closed(AB, required=["a", "b"]), closed(AB, required=["a"]),
    ),
    "content model opened": (record(A), closed(A), record(A)),
    "added property allows anything": (
        record(A), record({**A, "b": {**INTEGER, "title": "B"}}),
        record({**A, "b": {"title": "B"}}),
    ),
    "branch restored": (
        {"oneOf": [TEXT, NULL]}, {"oneOf": [TEXT]}, {"oneOf": [TEXT, NULL]},
    ),
    "overlapping branches": (
        {"oneOf": [record(A)]}, {"oneOf": [record(A), record({"b": TEXT})]},
        {"anyOf": [record(A), record({"b": TEXT})]},
    ),
    "inside a branch": (
        {"anyOf": [NULL, {**TEXT, "maxLength": 5}]}, {"anyOf": [NULL, {**TEXT, "maxLength": 4}]},
        {"anyOf": [NULL, {**TEXT, "maxLength": 5}]},
    ),
    "restored with its definition": (
        closed({"a": {"$ref": "#/definitions/t"}}, definitions={"t": TEXT}), closed({}),
        {**closed({"a": {"$ref": "#/definitions/t"}}), "definitions": {"t": TEXT}},
    ),
    "item restored": (
        {"items": [TEXT, NULL], "additionalItems": False},
        {"items": [TEXT], "additionalItems": False},
        {"items": [TEXT, NULL], "additionalItems": False},
    ),
}  # fmt: skip
WRITER_EDITS: dict[str, tuple[Any, Any, Any]] = {
    # writer, reader, edited writer
    "type narrowed": ({"type": ["string", "null"]}, TEXT, TEXT),
    "bound taken over": (NUMBER, {**NUMBER, "maximum": 5}, {**NUMBER, "maximum": 5}),
    "value dropped": ({"enum": ["a", "b"]}, {"enum": ["b"]}, {"enum": ["b"]}),
    "property dropped": (closed(AB, required=["b"]), closed(A), closed(A)),
    "requirement restored": (closed(A), closed(A, required=["a"]), closed(A, required=["a"])),
    "content model closed": (record(A), closed(A), closed(A)),
    "property declared": (record(A), record(AB), record(AB)),
    "branch dropped": ({"oneOf": [TEXT, NULL]}, {"oneOf": [NULL]}, {"oneOf": [NULL]}),
}


@pytest.mark.parametrize("name", READER_EDITS)
def test_edits_of_the_reader_are_small(name: str) -> None:
    writer, reader, expected = READER_EDITS[name]
    edited = edit_until_accepted(parse(reader), parse(writer), reads=True, policy="STRICT")
    assert edited is not None
    assert json.loads(edited.text) == expected


@pytest.mark.parametrize("name", WRITER_EDITS)
def test_edits_of_the_writer_are_small(name: str) -> None:
    writer, reader, expected = WRITER_EDITS[name]
    edited = edit_until_accepted(parse(writer), parse(reader), reads=False, policy="STRICT")
    assert edited is not None
    assert json.loads(edited.text) == expected


def test_an_edit_keeps_everything_else() -> None:
    text = '{"title":"é","maximum":1.50,"type":"integer","x":{"b":1e2,"a":0}}'
    reader = parse_json_schema(text, ())
    writer = parse({**NUMBER, "maximum": 1.5})
    edited = reader.edited(writer, reader.check_reads(writer), reads=True)
    assert edited is not None
    assert edited.text == text.replace("integer", "number")


def test_edits_name_only_the_places_of_the_problems() -> None:
    writer = parse(record({"a": NUMBER, "b": NUMBER}))
    reader = parse(record({"a": INTEGER, "b": INTEGER}))
    problems = [found for found in reader.check_reads(writer) if "/a/" in found.path]
    edited = reader.edited(writer, problems, reads=True)
    assert edited is not None
    assert json.loads(edited.text) == record({"a": NUMBER, "b": INTEGER})


def test_edits_of_generated_pairs_end_accepted() -> None:
    outcomes: Counter[bool] = Counter()
    for pair in pairs(3000, 120):
        try:
            writer, reader = parse(pair.writer), parse(pair.reader)
        except InvalidSchema:
            continue
        for policy in ("STRICT", "LENIENT"):
            if not reader.check_reads(writer, policy):
                continue
            for schema, other, reads in ((reader, writer, True), (writer, reader, False)):
                edited = edit_until_accepted(schema, other, reads=reads, policy=policy)
                outcomes[edited is not None] += 1
    assert outcomes[True] > 150
    assert outcomes[False] < 0.05 * outcomes.total()


# Bounds


def _discriminated(count: int, value: Any) -> dict[str, Any]:
    return {
        "oneOf": [
            record({"kind": {"const": f"kind {number}"}, "value": value}, required=["kind"])
            for number in range(count)
        ]
    }


def test_large_unions_with_tags_are_compared() -> None:
    small, large = _discriminated(200, INTEGER), _discriminated(200, NUMBER)
    begun = time.process_time()
    assert check(small, large) == []
    assert rules(large, small) == ["COMBINED_TYPE_SUBSCHEMAS_CHANGED"]
    assert time.process_time() - begun < 4


def _tower(levels: int, end: Any) -> dict[str, Any]:
    """Return a union of two branches that both lead to the next level, of 2^levels leaves."""
    definitions: dict[str, Any] = {
        f"l{level}": {
            "anyOf": [
                record({name: {"$ref": f"#/definitions/l{level + 1}"}}) for name in ("a", "b")
            ]
        }
        for level in range(levels)
    }
    definitions[f"l{levels}"] = end
    return {"allOf": [{"$ref": "#/definitions/l0"}], "definitions": definitions}


TOO_COMPLEX: dict[str, tuple[Any, Any]] = {
    "two large unions": (
        {"anyOf": [record({f"a{number}": TEXT}) for number in range(3000)]},
        {"anyOf": [record({f"a{number}": INTEGER}) for number in range(3000)]},
    ),
    "exponential unions": (_tower(40, TEXT), _tower(40, INTEGER)),
    "many patterns": (
        closed({f"p{number}": TEXT for number in range(3000)}),
        record(patternProperties={f"^a{number}\\p{{L}}{{1,9}}": TEXT for number in range(3000)}),
    ),
}


@pytest.mark.parametrize("name", TOO_COMPLEX)
def test_comparisons_are_bounded(name: str) -> None:
    writer, reader = (parse(value) for value in TOO_COMPLEX[name])
    begun = time.process_time()
    with pytest.raises(InvalidSchema, match="too complex to compare"):
        reader.check_reads(writer)
    assert time.process_time() - begun < 3
