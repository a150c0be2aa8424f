"""Generator of JSON schemas, of changed schemas, and of documents.

Names and constants come from small pools, so that two schemas often meet in a document.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from decimal import Decimal
from random import Random
from typing import Any

import jsonschema_rs

NAMES = ("a", "b", "c", "x1", "x2")
PATTERNS = ("^x", "a", "^[a-z]+$", "[0-9]", "^b*$")
STRINGS = ("", "a", "b", "bb", "x1", "x2", "abc", "12", "abcabc", "B")
NUMBERS = (-3, -1, 0, 1, 2, 3, 4, 5, 6, 10, 0.5, 1.5, 2.0, 7.25)
SCHEMA_URIS = {
    4: "http://json-schema.org/draft-04/schema#",
    6: "http://json-schema.org/draft-06/schema#",
    7: "http://json-schema.org/draft-07/schema#",
    2019: "https://json-schema.org/draft/2019-09/schema",
    2020: "https://json-schema.org/draft/2020-12/schema",
}
DEPTH = 3


class SchemaGenerator:
    """Random schemas of one draft."""

    def __init__(self, random: Random, draft: int) -> None:
        self.random = random
        self.draft = draft

    def root(self) -> dict[str, Any]:
        """Return a schema with definitions, some of which are recursive."""
        holder = "$defs" if self.draft >= 2019 else "definitions"
        schema = self.schema(DEPTH)
        if not isinstance(schema, dict):
            schema = {}
        if self.draft <= 7 and "$ref" in schema:
            schema = {"allOf": [schema]}
        return {
            "$schema": SCHEMA_URIS[self.draft],
            **schema,
            holder: {
                "first": self.schema(1, references=False),
                "list": self._recursive(),
            },
        }

    def _recursive(self) -> dict[str, Any]:
        holder = "$defs" if self.draft >= 2019 else "definitions"
        return {
            "type": "object",
            "properties": {
                "a": self.schema(1, references=False),
                "b": {"$ref": f"#/{holder}/list"},
            },
            **self._maybe("additionalProperties", lambda: False),
        }

    def schema(self, depth: int, *, references: bool = True) -> Any:
        """Return a random schema with at most `depth` levels below."""
        choice = self.random.random()
        if choice < 0.04 and self.draft >= 6:
            return self.random.choice((True, False, {}))
        if depth > 0 and choice < 0.25:
            return self._combined(depth, references=references)
        if references and choice < 0.35:
            holder = "$defs" if self.draft >= 2019 else "definitions"
            return {"$ref": f"#/{holder}/{self.random.choice(('first', 'list'))}"}
        kinds: list[Callable[[int], dict[str, Any]]] = [
            self.strings,
            self.numbers,
            self.plain,
            self.values,
        ]
        if depth > 0:
            kinds += [self.objects, self.objects, self.objects, self.arrays]
        made: Any = self.random.choice(kinds)(depth)
        if self.random.random() < 0.06:
            made = {**self.random.choice(kinds)(depth), **made}
        return made

    def _combined(self, depth: int, *, references: bool) -> dict[str, Any]:
        def below() -> Any:
            return self.schema(depth - 1, references=references)

        def branches() -> list[Any]:
            return [below() for _ in range(self.random.randint(1, 3))]

        choices: list[Callable[[], dict[str, Any]]] = [
            lambda: {"anyOf": branches()},
            lambda: {"anyOf": branches()},
            lambda: {"oneOf": branches()},
            lambda: {"oneOf": branches()},
            lambda: {"allOf": branches()},
            lambda: {"not": below()},
            lambda: {"anyOf": [{"type": "null"}, below()]},
        ]
        if self.draft >= 7:
            choices.append(
                lambda: {
                    "if": below(),
                    **self._maybe("then", below),
                    **self._maybe("else", below),
                }
            )
        schema = self.random.choice(choices)()
        if self.random.random() < 0.3:
            schema = {**schema, **self.objects(depth - 1)}
        return schema

    def _maybe(self, keyword: str, value: Callable[[], Any], share: float = 0.4) -> dict[str, Any]:
        return {keyword: value()} if self.random.random() < share else {}

    def plain(self, _depth: int) -> dict[str, Any]:
        """Return a schema that names types only."""
        types = ["null", "boolean", "integer", "number", "string", "array", "object"]
        if self.random.random() < 0.6:
            return {"type": self.random.choice(types)}
        return {"type": self.random.sample(types, self.random.randint(1, 3))}

    def values(self, _depth: int) -> dict[str, Any]:
        """Return a schema of constants."""
        pool: list[Any] = [None, True, False, 1, 2, 1.5, "a", "b", "x1", [], [1], {}, {"a": 1}]
        if self.draft >= 6 and self.random.random() < 0.3:
            return {"const": self.random.choice(pool)}
        return {"enum": self.random.sample(pool, self.random.randint(1, 5))}

    def strings(self, _depth: int) -> dict[str, Any]:
        """Return a schema of strings."""
        return {
            **self._maybe("type", lambda: "string", 0.85),
            **self._maybe("minLength", lambda: self.random.randint(0, 3)),
            **self._maybe("maxLength", lambda: self.random.randint(0, 5)),
            **self._maybe("pattern", lambda: self.random.choice(PATTERNS), 0.2),
        }

    def numbers(self, _depth: int) -> dict[str, Any]:
        """Return a schema of numbers."""

        def number() -> Any:
            return self.random.choice(NUMBERS)

        schema = {
            **self._maybe("type", lambda: self.random.choice(("integer", "number")), 0.85),
            **self._maybe("minimum", number),
            **self._maybe("maximum", number),
            **self._maybe("multipleOf", lambda: self.random.choice((0.5, 1, 2, 3, 4)), 0.2),
        }
        for side in ("minimum", "maximum"):
            exclusive = f"exclusive{side.capitalize()}"
            if self.draft == 4 and side in schema:
                schema.update(self._maybe(exclusive, lambda: True, 0.3))
            elif self.draft > 4:
                schema.update(self._maybe(exclusive, number, 0.15))
        return schema

    def objects(self, depth: int) -> dict[str, Any]:
        """Return a schema of objects."""

        def below() -> Any:
            return self.schema(max(depth - 1, 0))

        names = self.random.sample(NAMES, self.random.randint(0, 3))
        schema: dict[str, Any] = {
            **self._maybe("type", lambda: "object", 0.85),
            "properties": {name: below() for name in names},
            **self._maybe("additionalProperties", lambda: self._openness(depth), 0.6),
            **self._maybe("required", lambda: self._names(1), 0.4),
            **self._maybe(
                "patternProperties", lambda: {self.random.choice(PATTERNS): below()}, 0.15
            ),
            **self._maybe("minProperties", lambda: self.random.randint(0, 2), 0.1),
            **self._maybe("maxProperties", lambda: self.random.randint(0, 4), 0.1),
        }
        if self.draft >= 6:
            schema.update(self._maybe("propertyNames", lambda: self.strings(0), 0.1))
        if self.random.random() < 0.15:
            schema.update(self._dependencies(below))
        if self.draft >= 2019:
            schema.update(self._maybe("unevaluatedProperties", lambda: False, 0.08))
        return schema

    def _dependencies(self, below: Callable[[], Any]) -> dict[str, Any]:
        name = self.random.choice(NAMES)
        if self.draft >= 2019:
            if self.random.random() < 0.5:
                return {"dependentRequired": {name: self._names(1)}}
            return {"dependentSchemas": {name: below()}}
        needs = self._names(1) if self.random.random() < 0.5 else below()
        return {"dependencies": {name: needs}}

    def _openness(self, depth: int) -> Any:
        return self.random.choice((False, False, True, self.schema(0))) if depth else False

    def _names(self, least: int) -> list[str]:
        return self.random.sample(NAMES, self.random.randint(least, 2))

    def arrays(self, depth: int) -> dict[str, Any]:
        """Return a schema of arrays."""

        def below() -> Any:
            return self.schema(depth - 1)

        schema: dict[str, Any] = {
            **self._maybe("type", lambda: "array", 0.85),
            **self._maybe("minItems", lambda: self.random.randint(0, 2), 0.2),
            **self._maybe("maxItems", lambda: self.random.randint(0, 4), 0.2),
            **self._maybe("uniqueItems", lambda: True, 0.15),
        }
        if self.draft >= 6:
            schema.update(self._maybe("contains", below, 0.1))
        if self.draft >= 2019 and "contains" in schema:
            schema.update(self._maybe("minContains", lambda: self.random.randint(0, 2), 0.3))
            schema.update(self._maybe("maxContains", lambda: self.random.randint(1, 3), 0.3))
        first, rest = (
            ("prefixItems", "items") if self.draft >= 2020 else ("items", "additionalItems")
        )
        if self.random.random() < 0.4:
            schema[first] = [below() for _ in range(self.random.randint(1, 3))]
            schema.update(self._maybe(rest, lambda: self.random.choice((False, below())), 0.6))
        else:
            schema.update(self._maybe("items", below, 0.8))
        return schema


class Changes:
    """Random changes of a schema: usual ones, and some that are rare in practice."""

    def __init__(self, random: Random, draft: int) -> None:
        self._random = random
        self._generator = SchemaGenerator(random, draft)

    def changed(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return a copy with one to three changes."""
        made = copy.deepcopy(schema)
        remaining = self._random.randint(1, 3)
        while remaining:
            before = copy.deepcopy(made)
            places = [place for place in _objects_in(made) if place is not made] or [made]
            self._change(self._random.choice([made, *places]))
            remaining -= _without_definitions(made) != _without_definitions(before)
        return made

    def _change(self, place: dict[str, Any]) -> None:
        tweaks, properties = [self._tweak] * 2, [self._properties] * 2
        actions = [*tweaks, *properties, self._drop, self._replace, self._branches]
        action = self._random.choice(actions)
        action(place)

    def _tweak(self, place: dict[str, Any]) -> None:
        """Change a bound, a type or an enum."""
        numbers = [
            key
            for key, value in place.items()
            if type(value) in (int, float) and key not in ("const", "multipleOf", "minContains")
        ]
        if numbers and self._random.random() < 0.6:
            key = self._random.choice(numbers)
            small = 0 if key[3:] in ("Length", "Items", "Properties", "Contains") else -9
            place[key] = max(small, place[key] + self._random.choice((-1, 1)))
        elif isinstance(place.get("enum"), list):
            values = place["enum"]
            if len(values) > 1 and self._random.random() < 0.5:
                values.pop()
            elif "b" not in values:
                values.append("b")
        elif isinstance(place.get("type"), str):
            wider = {"integer": "number", "number": "integer"}.get(place["type"])
            place["type"] = wider or [
                place["type"],
                "null" if place["type"] != "null" else "string",
            ]
        elif isinstance(place.get("type"), list) and len(place["type"]) > 1:
            place["type"].pop()

    def _properties(self, place: dict[str, Any]) -> None:
        """Add or remove a property, its requirement, or the openness."""
        properties = place.get("properties")
        if not isinstance(properties, dict):
            return
        choice = self._random.randint(0, 4)
        if choice == 0:
            properties[self._random.choice(NAMES)] = self._generator.schema(1)
        elif choice == 1 and properties:
            properties.pop(self._random.choice(list(properties)))
        elif choice == 2:
            place["required"] = self._random.sample(NAMES, self._random.randint(1, 2))
        elif choice == 3:
            place.pop("required", None)
        else:
            place["additionalProperties"] = self._random.choice((True, False))

    def _drop(self, place: dict[str, Any]) -> None:
        keys = [key for key in place if key not in ("$schema", "$defs", "definitions", "type")]
        if keys:
            place.pop(self._random.choice(keys))
        if "minimum" not in place and self._generator.draft == 4:
            place.pop("exclusiveMinimum", None)
        if "maximum" not in place and self._generator.draft == 4:
            place.pop("exclusiveMaximum", None)

    def _replace(self, place: dict[str, Any]) -> None:
        kept: dict[str, Any] = {
            key: place[key] for key in ("$schema", "$defs", "definitions") if key in place
        }
        made = self._generator.schema(1)
        if isinstance(made, dict) and "$ref" not in made:
            place.clear()
            place.update(kept)
            place.update(made)

    def _branches(self, place: dict[str, Any]) -> None:
        for keyword in ("anyOf", "oneOf", "allOf"):
            if keyword in place:
                branches = place[keyword]
                if self._random.random() < 0.5:
                    branches.append(self._generator.schema(1))
                elif len(branches) > 1:
                    branches.pop(self._random.randrange(len(branches)))
                return


def _without_definitions(schema: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key not in ("$defs", "definitions")}


def _objects_in(schema: Any) -> list[dict[str, Any]]:
    """Return the subschemas that are objects."""
    found: list[dict[str, Any]] = []
    if not isinstance(schema, dict):
        return found
    found.append(schema)
    for keyword, value in schema.items():
        if keyword in ("properties", "patternProperties", "$defs", "definitions"):
            below = list(value.values())
        elif keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
            below = value
        elif keyword == "items":
            below = value if isinstance(value, list) else [value]
        elif keyword in ("not", "additionalProperties", "additionalItems", "if", "then", "else"):
            below = [value]
        else:
            continue
        for item in below:
            found += _objects_in(item)
    return found


class DocumentGenerator:
    """Random documents that are near to a schema: most conform to it, some do not."""

    def __init__(self, random: Random, root: dict[str, Any]) -> None:
        self._random = random
        self._root = root

    def document(self) -> Any:
        """Return a document."""
        return self._value(self._root, 6)

    def _value(self, schema: Any, depth: int) -> Any:
        if not isinstance(schema, dict) or depth == 0 or self._random.random() < 0.04:
            return self._any(2)
        if "$ref" in schema:
            target = self._root
            for step in schema["$ref"].split("/")[1:]:
                target = target[step]
            return self._value(target, depth - 1)
        for keyword in ("anyOf", "oneOf", "allOf"):
            if keyword in schema and self._random.random() < 0.8:
                branch = self._random.choice(schema[keyword])
                others = {key: value for key, value in schema.items() if key != keyword}
                merged = {**others, **branch} if isinstance(branch, dict) else others
                return self._value(merged, depth - 1)
        for keyword in ("then", "else", "if"):
            if isinstance(schema.get(keyword), dict) and self._random.random() < 0.4:
                return self._value(schema[keyword], depth - 1)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self._random.choice(schema["enum"])
        return self._typed(schema, depth)

    def _typed(self, schema: dict[str, Any], depth: int) -> Any:
        types = schema.get("type")
        if types is None:
            types = self._likely_types(schema)
        kind = types if isinstance(types, str) else self._random.choice(types)
        match kind:
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, depth)
            case "string":
                return self._random.choice(STRINGS)
            case "integer" | "number":
                return self._number(schema, kind)
            case "boolean":
                return self._random.random() < 0.5
        return None

    def _likely_types(self, schema: dict[str, Any]) -> list[str]:
        types = []
        if {"properties", "required", "additionalProperties", "patternProperties"} & schema.keys():
            types.append("object")
        if {"items", "prefixItems", "contains", "minItems", "uniqueItems"} & schema.keys():
            types.append("array")
        if {"minLength", "maxLength", "pattern"} & schema.keys():
            types.append("string")
        if {"minimum", "maximum", "multipleOf"} & schema.keys():
            types.append("number")
        if not types or self._random.random() < 0.2:
            types += ["null", "boolean", "number", "string", "array", "object"]
        return types

    def _number(self, schema: dict[str, Any], kind: str) -> Any:
        pool: list[Any] = list(NUMBERS)
        for keyword in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
            limit: Any = schema.get(keyword)
            if type(limit) in (int, float):
                pool += [limit, limit + 1, limit - 1, limit + 0.5]
        if kind == "integer":
            pool = [number for number in pool if type(number) is int]
        return self._random.choice(pool)

    def _object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        properties = schema.get("properties", {})
        made = {
            name: self._value(below, depth - 1)
            for name, below in properties.items()
            if self._random.random() < 0.6
        }
        for name in schema.get("required", ()):
            made.setdefault(name, self._value(properties.get(name, {}), depth - 1))
        if schema.get("additionalProperties") is not False and self._random.random() < 0.4:
            extra = schema.get("additionalProperties", {})
            made.setdefault(self._random.choice(NAMES), self._value(extra, depth - 1))
        return made

    def _array(self, schema: dict[str, Any], depth: int) -> list[Any]:
        first = schema.get("prefixItems", [])
        rest = schema.get("items", {})
        if isinstance(rest, list):
            first, rest = rest, schema.get("additionalItems", {})
        count = self._random.choice((0, 1, 1, 2, 2, 3, 4))
        if rest is False:
            count = min(count, len(first))
        return [
            self._value(first[index] if index < len(first) else rest, depth - 1)
            for index in range(count)
        ]

    def _any(self, depth: int) -> Any:
        pool: list[Callable[[], Any]] = [
            lambda: None,
            lambda: True,
            lambda: self._random.choice(NUMBERS),
            lambda: self._random.choice(STRINGS),
        ]
        if depth:
            pool += [
                lambda: [self._any(depth - 1) for _ in range(self._random.randint(0, 3))],
                lambda: {
                    name: self._any(depth - 1)
                    for name in self._random.sample(NAMES, self._random.randint(0, 3))
                },
            ]
        return self._random.choice(pool)()


VALIDATORS = {
    SCHEMA_URIS[4]: jsonschema_rs.Draft4Validator,
    SCHEMA_URIS[6]: jsonschema_rs.Draft6Validator,
    SCHEMA_URIS[7]: jsonschema_rs.Draft7Validator,
    SCHEMA_URIS[2019]: jsonschema_rs.Draft201909Validator,
    SCHEMA_URIS[2020]: jsonschema_rs.Draft202012Validator,
}


def validator_of(schema: Any) -> Any:
    """Return a validator that we did not write. It reads nothing from elsewhere."""
    uri = schema.get("$schema", SCHEMA_URIS[7]) if isinstance(schema, dict) else SCHEMA_URIS[7]
    uri = uri if uri in VALIDATORS else uri + "#"
    return VALIDATORS[uri](exact(schema), validate_formats=False, offline=True)


def exact(value: Any) -> Any:
    """Return a value with floats as decimals, for the validator."""
    if isinstance(value, dict):
        return {key: exact(item) for key, item in value.items()}
    if isinstance(value, list):
        return [exact(item) for item in value]
    return Decimal(str(value)) if isinstance(value, float) else value
