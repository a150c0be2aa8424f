"""Constraints of one JSON subschema, the same for all drafts.

A `View` holds what a subschema demands by its own keywords. Differences between drafts end here:
`exclusiveMinimum` as a boolean, tuples as `items` or `prefixItems`, `dependencies`, `const`,
keywords that a draft does not have, and keywords that a neighbouring `$ref` hides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final

from penstock.registry.formats.json_document import (
    IN_PLACE,
    Json,
    Node,
    Schemas,
    has_keyword,
)
from penstock.registry.formats.json_text import Number

Kind = str
"""Kind of JSON value: null, boolean, integer, fraction, string, array or object.

A number is an integer or a fraction, so that kinds do not overlap.
"""
KINDS: Final[frozenset[Kind]] = frozenset(
    ("null", "boolean", "integer", "fraction", "string", "array", "object")
)
KINDS_OF_TYPE: Final[Mapping[str, frozenset[Kind]]] = {
    **{kind: frozenset((kind,)) for kind in KINDS - {"fraction"}},
    "number": frozenset(("integer", "fraction")),
}
NUMERIC: Final = KINDS_OF_TYPE["number"]
PLAIN_KEYWORDS: Final = frozenset(("type", "title", "description", "default", "format"))
"""Keywords of which only `type` restricts values."""
NUMBER_KEYWORDS: Final = frozenset(
    ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf")
)
OBJECT_KEYWORDS: Final = frozenset(
    (
        "required", "properties", "patternProperties", "additionalProperties", "propertyNames",
        "dependencies", "dependentRequired", "dependentSchemas", "minProperties", "maxProperties",
    )
)  # fmt: skip
ARRAY_KEYWORDS: Final = frozenset(
    (
        "items", "additionalItems", "prefixItems", "unevaluatedItems", "minItems", "maxItems",
        "uniqueItems", "contains",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Bound:
    """Limit of a number. An open bound does not include its value."""

    value: Decimal
    open: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    low: Bound | None
    high: Bound | None
    multiple: Decimal | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Strings:
    shortest: int
    longest: int | None
    pattern: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Objects:
    """Constraints of objects.

    Attributes:
        patterns: schemas of properties by the pattern of their names.
        additional: schema of all other properties; None allows any.
        names: schema of the properties' names.
        needs: names that must be present if another name is.
        implied: schemas that apply if a name is present.
        certain: whether all validators enforce `needs` and `implied`.
        fewest: least number of properties.
        most: largest number of properties.
    """

    required: tuple[str, ...] = ()
    properties: Mapping[str, Node] = field(default_factory=dict)
    patterns: Mapping[str, Node] = field(default_factory=dict)
    additional: Node | None = None
    names: Node | None = None
    needs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    implied: tuple[tuple[str, Node], ...] = ()
    certain: bool = True
    fewest: int = 0
    most: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrays:
    """Constraints of arrays: `prefix` has the first items' schemas, `rest` that of all others."""

    prefix: tuple[Node, ...] = ()
    rest: Node | None = None
    fewest: int = 0
    most: int | None = None
    unique: bool = False
    contains: Node | None = None
    contains_fewest: int = 1
    contains_most: int | None = None


@dataclass(frozen=True, slots=True)
class Condition:
    """`if`, `then` and `else`. An absent branch allows any value."""

    test: Node
    then: Node | None
    otherwise: Node | None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class View:
    """Constraints of a subschema.

    Attributes:
        kinds: allowed kinds of values.
        values: allowed values by `enum` and `const`; None allows any.
        targets: subschemas that the subschema refers to; they apply as well.
        closing: constraints of `unevaluatedProperties`, as if written with `additionalProperties`.
        opaque: keywords whose effect is only compared for equality, with their subschemas.
        dynamic: whether a reference's target depends on the evaluation.
    """

    node: Node
    never: bool = False
    kinds: frozenset[Kind] = KINDS
    values: tuple[Json, ...] | None = None
    numbers: Numbers | None = None
    strings: Strings | None = None
    objects: Objects | None = None
    arrays: Arrays | None = None
    targets: tuple[Node, ...] = ()
    all_of: tuple[Node, ...] = ()
    any_of: tuple[Node, ...] = ()
    one_of: tuple[Node, ...] = ()
    negated: Node | None = None
    condition: Condition | None = None
    closing: Objects | None = None
    opaque: tuple[tuple[str, Node | None], ...] = ()
    dynamic: bool = False

    @property
    def anything(self) -> bool:
        """Whether every value is allowed, as far as the subschema's own keywords say."""
        return (
            not self.never
            and self.kinds == KINDS
            and self.values is None
            and self.condition is None
            and self.negated is None
            and not (self.numbers or self.strings or self.objects or self.arrays or self.closing)
            and not (self.targets or self.all_of or self.any_of or self.one_of or self.opaque)
        )


def highest(bounds: Iterable[Bound]) -> Bound | None:
    """Return the strictest of some lower bounds."""
    return max(bounds, key=lambda bound: (bound.value, bound.open), default=None)


def lowest(bounds: Iterable[Bound]) -> Bound | None:
    """Return the strictest of some upper bounds."""
    return min(bounds, key=lambda bound: (bound.value, not bound.open), default=None)


def covers_low(limit: Bound | None, other: Bound | None) -> bool:
    """Whether each number above a lower bound is above a limit; None is no bound."""
    return limit is None or (other is not None and highest((limit, other)) == other)


def covers_high(limit: Bound | None, other: Bound | None) -> bool:
    """Whether each number below an upper bound is below a limit; None is no bound."""
    return limit is None or (other is not None and lowest((limit, other)) == other)


def kind_of(value: Json) -> Kind:
    """Return the kind of a JSON value."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case str():
            return "string"
        case list():
            return "array"
        case dict():
            return "object"
    number = value.value
    return "integer" if number == number.to_integral_value() else "fraction"


def type_names(kinds: Iterable[Kind]) -> list[str]:
    """Return the names of the JSON types of some kinds, in order."""
    found = set(kinds)
    if "fraction" in found:
        found = (found - NUMERIC) | {"number"}
    return sorted(found)


def kinds_of_schema(schema: Mapping[str, Json]) -> frozenset[Kind]:
    """Return the kinds that the keyword `type` of a schema allows."""
    types = schema.get("type", KINDS_OF_TYPE)
    names = [types] if isinstance(types, str) else types
    return frozenset[Kind]().union(*(KINDS_OF_TYPE[name] for name in names))


def value_key(value: Json) -> object:
    """Return a hashable key that is equal for equal JSON values."""
    match value:
        case bool() | None:
            return ("", value)
        case list():
            return ("[", tuple(value_key(item) for item in value))
        case dict():
            return ("{", frozenset((name, value_key(item)) for name, item in value.items()))
    return value


class Views:
    """Views of the subschemas of a document, each made at its first use."""

    def __init__(self, schemas: Schemas) -> None:
        self._schemas = schemas
        self._made: dict[int, View] = {}

    def of(self, node: Node) -> View:
        """Return the view of a node."""
        schema = node.schema
        if isinstance(schema, bool):
            return View(node=node, never=not schema)
        view = self._made.get(id(schema))
        if view is None:
            view = self._made[id(schema)] = self._make(node)
        return view

    def _make(self, node: Node) -> View:
        schema = node.schema
        targets = self._schemas.targets.get(id(schema), ())
        external = self._schemas.external.get(id(schema))
        outside = () if external is None else ((external, None),)
        dynamic = id(schema) in self._schemas.dynamic
        if "$ref" in schema and node.document.draft <= 7:
            return View(node=node, targets=targets, opaque=outside, dynamic=dynamic)
        reader = _Reader(self._schemas, node)
        if schema.keys() <= PLAIN_KEYWORDS:
            return View(node=node, kinds=kinds_of_schema(schema))
        closing, unclear = self._closing(node, reader)
        return View(
            node=node,
            kinds=kinds_of_schema(schema),
            values=reader.values(),
            numbers=reader.numbers(),
            strings=reader.strings(),
            objects=reader.objects(),
            arrays=reader.arrays(),
            targets=targets,
            all_of=reader.several("allOf"),
            any_of=reader.several("anyOf"),
            one_of=reader.several("oneOf"),
            negated=reader.one("not"),
            condition=reader.condition(),
            closing=closing,
            opaque=(*outside, *unclear),
            dynamic=dynamic,
        )

    def _closing(
        self, node: Node, reader: _Reader
    ) -> tuple[Objects | None, tuple[tuple[str, Node], ...]]:
        """Return the effect of `unevaluatedProperties`, and the keywords whose effect is unclear.

        The effect is exact if all subschemas for the same value are unconditional: those of
        `$ref` and `allOf`. It is unclear beside `anyOf`, `if` and the like.
        """
        if node.schema.keys().isdisjoint(("unevaluatedItems", "unevaluatedProperties")):
            return None, ()
        arrays = reader.arrays()
        unclear = [
            (keyword, below)
            for keyword in ("unevaluatedItems", "unevaluatedProperties")
            if (below := reader.one(keyword)) is not None
            and below.schema not in (True, {})
            and not (arrays is not None and arrays.rest is not None and keyword[-5:] == "Items")
        ]
        if not unclear or unclear[-1][0] != "unevaluatedProperties":
            return None, tuple(unclear)
        evaluated = self._evaluated(node)
        if evaluated is None:
            return None, tuple(unclear)
        names, patterns, all_others = evaluated
        anything = Node(node.document, node.path, True)
        closing = Objects(
            properties=dict.fromkeys(names, anything),
            patterns=dict.fromkeys(patterns, anything),
            additional=unclear[-1][1],
        )
        return None if all_others else closing, tuple(unclear[:-1])

    def _evaluated(self, start: Node) -> tuple[list[str], list[str], bool] | None:
        """Return the names and patterns of evaluated properties, and whether these are all."""
        names: list[str] = []
        patterns: list[str] = []
        all_others = False
        waiting, seen = [start], set[int]()
        while waiting:
            node = waiting.pop()
            schema = node.schema
            if not isinstance(schema, dict) or id(schema) in seen:
                continue
            seen.add(id(schema))
            conditional = (IN_PLACE - {"allOf"}) & schema.keys()
            if conditional or id(schema) in self._schemas.dynamic:
                return None
            if node is not start and "unevaluatedProperties" in schema:
                return None
            names.extend(schema.get("properties", ()))
            patterns.extend(schema.get("patternProperties", ()))
            all_others = all_others or "additionalProperties" in schema
            waiting.extend(self._schemas.targets.get(id(schema), ()))
            waiting.extend(_Reader(self._schemas, node).several("allOf"))
        return names, patterns, all_others


class Shapes:
    """Structural equality of subschemas, across documents and drafts.

    A shape is a number that is equal for subschemas with equal constraints, except that targets of
    references are left out. These are compared pair by pair, so that recursive schemas end.
    """

    def __init__(self, view: Callable[[Node], View], spend: Callable[[float], None]) -> None:
        self._view = view
        self._spend = spend
        self._numbers: dict[object, int] = {}
        self._shapes: dict[int, tuple[int, tuple[Node, ...]]] = {}
        self._different: set[tuple[int, int]] = set()

    def same(self, first: Node, second: Node) -> bool:
        """Whether two subschemas allow the same values because they have the same constraints."""
        waiting = [(first, second)]
        seen: set[tuple[int, int]] = set()
        while waiting:
            pair = waiting.pop()
            key = (id(pair[0].schema), id(pair[1].schema))
            if key in seen or pair[0].schema is pair[1].schema:
                continue
            seen.add(key)
            (one, targets), (other, others) = self._shape(pair[0]), self._shape(pair[1])
            if key in self._different or one != other:
                self._different.add((id(first.schema), id(second.schema)))
                return False
            self._spend(1)
            waiting.extend(zip(targets, others, strict=True))
        return True

    def number(self, node: Node) -> int:
        """Return the shape of a subschema. Different shapes mean different constraints."""
        return self._shape(node)[0]

    def _shape(self, node: Node) -> tuple[int, tuple[Node, ...]]:
        known = self._shapes.get(id(node.schema))
        if known is not None:
            return known
        view = self._view(node)
        if isinstance(node.schema, dict) and node.schema.keys() <= PLAIN_KEYWORDS:
            plain = (self._numbers.setdefault(view.kinds, len(self._numbers)), ())
            self._shapes[id(node.schema)] = plain
            return plain
        targets: list[Node] = []
        parts = self._parts(view, targets)
        number = self._numbers.setdefault(parts, len(self._numbers))
        shape = (number, tuple(targets))
        if isinstance(node.schema, dict):
            self._shapes[id(node.schema)] = shape
        return shape

    def _parts(self, view: View, targets: list[Node]) -> object:
        if view.dynamic:
            return ("dynamic", id(view.node.schema))
        values = view.values
        condition = view.condition
        return (
            view.never,
            view.kinds,
            None if values is None else frozenset(value_key(value) for value in values),
            view.numbers,
            view.strings,
            self._objects(view.objects, targets),
            self._objects(view.closing, targets),
            self._arrays(view.arrays, targets),
            self._many(view.all_of, targets),
            self._many(view.any_of, targets),
            self._many(view.one_of, targets),
            self._one(view.negated, targets),
            condition and self._many((condition.test,), targets),
            condition and self._one(condition.then, targets),
            condition and self._one(condition.otherwise, targets),
            tuple((keyword, self._one(node, targets)) for keyword, node in view.opaque),
            self._mark(view.targets, targets),
        )

    @staticmethod
    def _mark(found: tuple[Node, ...], targets: list[Node]) -> int:
        targets.extend(found)
        return len(found)

    def _one(self, node: Node | None, targets: list[Node]) -> int | None:
        if node is None:
            return None
        shape, below = self._shape(node)
        targets.extend(below)
        return shape

    def _many(self, nodes: Iterable[Node], targets: list[Node]) -> tuple[int | None, ...]:
        return tuple(self._one(node, targets) for node in nodes)

    def _named(self, nodes: Mapping[str, Node], targets: list[Node]) -> object:
        return tuple((name, self._one(nodes[name], targets)) for name in sorted(nodes))

    def _objects(self, objects: Objects | None, targets: list[Node]) -> object:
        if objects is None:
            return None
        return (
            frozenset(objects.required),
            self._named(objects.properties, targets),
            self._named(objects.patterns, targets),
            self._one(objects.additional, targets),
            self._one(objects.names, targets),
            frozenset((name, frozenset(needs)) for name, needs in objects.needs.items()),
            tuple((name, self._one(node, targets)) for name, node in objects.implied),
            objects.certain,
            objects.fewest,
            objects.most,
        )

    def _arrays(self, arrays: Arrays | None, targets: list[Node]) -> object:
        if arrays is None:
            return None
        return (
            self._many(arrays.prefix, targets),
            self._one(arrays.rest, targets),
            (arrays.fewest, arrays.most, arrays.unique),
            self._one(arrays.contains, targets),
            (arrays.contains_fewest, arrays.contains_most),
        )


class _Reader:
    """Reader of a subschema's keywords."""

    def __init__(self, schemas: Schemas, node: Node) -> None:
        self._schemas = schemas
        self._node = node
        self._schema = node.schema
        self._draft = node.document.draft

    def one(self, keyword: str) -> Node | None:
        if keyword not in self._schema or not has_keyword(self._draft, keyword):
            return None
        return self._schemas.node(self._node, keyword)

    def several(self, keyword: str) -> tuple[Node, ...]:
        if not has_keyword(self._draft, keyword):
            return ()
        items = self._schema.get(keyword)
        if not isinstance(items, list):
            return ()
        return tuple(self._schemas.node(self._node, keyword, index) for index in range(len(items)))

    def named(self, keyword: str) -> dict[str, Node]:
        if not has_keyword(self._draft, keyword):
            return {}
        return {
            name: self._schemas.node(self._node, keyword, name)
            for name, value in self._schema.get(keyword, {}).items()
            if not isinstance(value, list)
        }

    def values(self) -> tuple[Json, ...] | None:
        values = self._schema.get("enum")
        if "const" not in self._schema or self._draft < 6:
            return None if values is None else tuple(values)
        const = self._schema["const"]
        if values is None or value_key(const) in map(value_key, values):
            return (const,)
        return ()

    def condition(self) -> Condition | None:
        test, then, otherwise = self.one("if"), self.one("then"), self.one("else")
        if test is None or (then is None and otherwise is None):
            return None
        return Condition(test, then, otherwise)

    def numbers(self) -> Numbers | None:
        if self._schema.keys().isdisjoint(NUMBER_KEYWORDS):
            return None
        low, high = (
            self._bounds("minimum", "exclusiveMinimum"),
            self._bounds("maximum", "exclusiveMaximum"),
        )
        multiple = self._schema.get("multipleOf")
        if not low and not high and multiple is None:
            return None
        return Numbers(
            low=highest(low),
            high=lowest(high),
            multiple=multiple.value if multiple else None,
        )

    def _bounds(self, keyword: str, exclusive: str) -> list[Bound]:
        value, opening = self._schema.get(keyword), self._schema.get(exclusive)
        bounds = []
        if isinstance(value, Number):
            bounds.append(Bound(value.value, opening is True))
        if isinstance(opening, Number):
            bounds.append(Bound(opening.value, True))
        return bounds

    def strings(self) -> Strings | None:
        shortest, longest = self._size("minLength"), self._size("maxLength")
        pattern = self._schema.get("pattern")
        if not shortest and longest is None and pattern is None:
            return None
        return Strings(shortest=shortest or 0, longest=longest, pattern=pattern)

    def objects(self) -> Objects | None:
        if self._schema.keys().isdisjoint(OBJECT_KEYWORDS):
            return None
        dependencies = self._schema.get("dependencies", {})
        needs = {
            name: tuple(names) for name, names in dependencies.items() if isinstance(names, list)
        }
        if self._draft >= 2019:
            for name, names in self._schema.get("dependentRequired", {}).items():
                needs[name] = (*needs.get(name, ()), *names)
        objects = Objects(
            required=tuple(self._schema.get("required", ())),
            properties=self.named("properties"),
            patterns=self.named("patternProperties"),
            additional=self.one("additionalProperties"),
            names=self.one("propertyNames"),
            needs=needs,
            implied=(*self.named("dependencies").items(), *self.named("dependentSchemas").items()),
            certain=self._draft <= 7 or not dependencies,
            fewest=self._size("minProperties") or 0,
            most=self._size("maxProperties"),
        )
        return None if objects == Objects() else objects

    def arrays(self) -> Arrays | None:
        if self._schema.keys().isdisjoint(ARRAY_KEYWORDS):
            return None
        prefix, rest = self.several("prefixItems"), self.one("items")
        if self._draft < 2020 and isinstance(self._schema.get("items"), list):
            prefix, rest = self.several("items"), self.one("additionalItems")
        later = self._draft >= 2019
        fewest = self._size("minContains") if later else None
        contains = self.one("contains")
        if rest is None and contains is None and not self._shared():
            rest = self.one("unevaluatedItems")
        arrays = Arrays(
            prefix=prefix,
            rest=rest,
            fewest=self._size("minItems") or 0,
            most=self._size("maxItems"),
            unique=self._schema.get("uniqueItems") is True,
            contains=contains,
            contains_fewest=1 if fewest is None else fewest,
            contains_most=self._size("maxContains") if later and contains else None,
        )
        return None if arrays == Arrays() else arrays

    def _shared(self) -> bool:
        """Whether other subschemas may apply to the same value."""
        return bool(self._schemas.targets.get(id(self._schema)) or IN_PLACE & self._schema.keys())

    def _size(self, keyword: str) -> int | None:
        number = self._schema.get(keyword)
        return int(number.value) if isinstance(number, Number) else None
