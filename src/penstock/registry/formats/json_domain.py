"""Sets of JSON values that conform to several subschemas at once.

A `Domain` describes what a writer can produce in one place of its documents. It holds the views of
all subschemas that apply there, with references and `allOf` followed, and facts derived from them.
A fact is always true for every value of the domain. A domain may be described as larger than it is:
`anyOf`, `oneOf` and `if` only count after `cases` has chosen one of their branches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any, Final, NamedTuple

from penstock.registry.formats.json_document import (
    Document,
    Json,
    Node,
    Schemas,
    compile_pattern,
)
from penstock.registry.formats.json_text import Number
from penstock.registry.formats.json_view import (
    KINDS,
    NUMERIC,
    Bound,
    Kind,
    Objects,
    View,
    Views,
    covers_high,
    covers_low,
    highest,
    kind_of,
    lowest,
    value_key,
)

PATTERNS_MAX: Final = 256
"""Most regular expressions that one comparison compiles."""
COMPILE_COST: Final = 50
"""Comparisons that take as long as compiling a regular expression."""
TAGS_MAX: Final = 16
"""Most required properties that are searched for constants."""
UNION_DEPTH: Final = 4
"""Deepest nesting of subschemas in place that is searched for the kinds of a branch."""
EMPTY_DEPTH: Final = 4
"""Deepest nesting of required properties that is searched for a contradiction."""
CONSTANT_DEPTH: Final = 16
"""Deepest nesting of constants whose parts are compared."""
CASES_MAX: Final = 3
"""Most unions of which a domain has chosen a branch."""
VALUES_MAX: Final = 1_000
"""Most values that become cases of their own."""
CONSTANTS: Final = Document("", 2020, True)
"""Document of the subschemas that are made for values and kinds."""
NO_SCHEMAS: Final = Schemas(Node(CONSTANTS, (), True), (), {}, {}, {}, frozenset())
FINITE: Final[Mapping[Kind, tuple[Json, ...]]] = {"null": (None,), "boolean": (False, True)}


class Union(NamedTuple):
    """Choice among groups of subschemas. `exclusive` choices are those of `oneOf`."""

    identity: tuple[int, str]
    branches: Sequence[tuple[Node, ...]]
    exclusive: bool


class Known(NamedTuple):
    """Domain of a property or an item, and whether the writer's schema declares it by name."""

    domain: Domain
    declared: bool


class Domain:
    """Values that conform to all of `parts`, with facts that are true for each of them.

    Attributes:
        nodes: subschemas that the domain was made of. The last one is a case's own.
        opened: unions of which a branch is among the parts already.
        chosen: opened `oneOf` with the chosen branch: no value conforms to another branch.
        values: all values, if they are known to be few.
        objects: constraints of objects, of all parts.
        unions: unions of which no branch has been chosen.
        known: domains of properties that have been looked up.
        tags: values of the domain and of its required properties, where they are few.
    """

    def __init__(
        self,
        *,
        nodes: tuple[Node, ...],
        parts: Sequence[View],
        opened: frozenset[tuple[int, str]],
        chosen: tuple[tuple[Union, Node], ...],
        kinds: frozenset[Kind],
        unions: Sequence[Union],
    ) -> None:
        self.nodes = nodes
        self.parts = tuple(parts)
        self.opened = opened
        self.chosen = chosen
        self.unions = unions
        self.known: dict[str, Known] = {}
        self.tags: Mapping[str | None, frozenset[object]] | None = None
        numbers = [part.numbers for part in parts if part.numbers is not None]
        strings = [part.strings for part in parts if part.strings is not None]
        self.low = highest(rule.low for rule in numbers if rule.low)
        self.high = lowest(rule.high for rule in numbers if rule.high)
        self.multiples = tuple(rule.multiple for rule in numbers if rule.multiple)
        self.shortest = max((rule.shortest for rule in strings), default=0)
        self.longest = least(rule.longest for rule in strings)
        self.patterns = frozenset(rule.pattern for rule in strings if rule.pattern is not None)
        own = [part.objects for part in parts if part.objects is not None]
        closing = [part.closing for part in parts if part.closing is not None]
        self.objects = (*own, *closing)
        self.arrays = tuple(part.arrays for part in parts if part.arrays is not None)
        self.required = frozenset(name for rule in self.objects for name in rule.required)
        if any(_is_whole(part) for part in parts):
            kinds -= {"fraction"}
        self.kinds = kinds
        if kinds & NUMERIC == {"integer"}:
            self.low, self.high = _whole(self.low, ROUND_CEILING), _whole(self.high, ROUND_FLOOR)
        self.items_fewest = max((rule.fewest for rule in self.arrays), default=0)
        self.items_most = self._items_most()
        self._drop_impossible_kinds()
        self.values = self._common_values()
        if self.values is not None:
            self._apply_values(self.values)

    @property
    def anything(self) -> bool:
        """Whether nothing is known about the values."""
        return self.kinds == KINDS and all(part.anything for part in self.parts)

    @property
    def where(self) -> str:
        """Pointer of the first subschema, for a message."""
        return self.parts[0].node.place if self.parts else "an undeclared place"

    def _items_most(self) -> int | None:
        if not self.arrays:
            return None
        closed = (
            len(rule.prefix)
            for rule in self.arrays
            if rule.rest is not None and rule.rest.schema is False
        )
        return least([*(rule.most for rule in self.arrays), *closed])

    def _drop_impossible_kinds(self) -> None:
        low, high = self.low, self.high
        if (
            low
            and high
            and (low.value > high.value or (low.value == high.value and (low.open or high.open)))
        ):
            self.kinds -= NUMERIC
        if self.longest is not None and self.shortest > self.longest:
            self.kinds -= {"string"}
        if self.items_most is not None and self.items_fewest > self.items_most:
            self.kinds -= {"array"}
        most = least(rule.most for rule in self.objects)
        fewest = max((rule.fewest for rule in self.objects), default=0)
        if most is not None and max(fewest, len(self.required)) > most:
            self.kinds -= {"object"}

    def _common_values(self) -> tuple[Json, ...] | None:
        values: tuple[Json, ...] | None = None
        for part in self.parts:
            if part.values is None:
                continue
            if values is None:
                values = part.values
            else:
                allowed = {value_key(value) for value in part.values}
                values = tuple(value for value in values if value_key(value) in allowed)
        if values is None:
            if not self.kinds or not self.kinds <= FINITE.keys():
                return None
            return tuple(value for kind in sorted(self.kinds) for value in FINITE[kind])
        return tuple(value for value in values if self._admits(value))

    def _admits(self, value: Json) -> bool:
        if kind_of(value) not in self.kinds:
            return False
        if isinstance(value, Number):
            number = Bound(value.value, False)
            return covers_low(self.low, number) and covers_high(self.high, number)
        if isinstance(value, str):
            return self.shortest <= len(value) and (
                self.longest is None or len(value) <= self.longest
            )
        if isinstance(value, dict):
            return value.keys() >= self.required
        return True

    def _apply_values(self, values: Sequence[Json]) -> None:
        self.kinds &= frozenset(kind_of(value) for value in values)
        numbers = [value.value for value in values if isinstance(value, Number)]
        if numbers:
            self.low, self.high = Bound(min(numbers), False), Bound(max(numbers), False)
        lengths = [len(value) for value in values if isinstance(value, str)]
        if lengths:
            self.shortest, self.longest = min(lengths), max(lengths)


class Patterns:
    """Regular expressions that have been compiled for one comparison."""

    def __init__(self, spend: Callable[[float], None]) -> None:
        self._spend = spend
        self._compiled: dict[str, Any] = {}

    def matches(self, pattern: str, text: str) -> bool | None:
        """Return whether a pattern occurs in a text; None if the linear engine cannot decide."""
        self._spend(1 + len(text) // 1024)
        if pattern not in self._compiled:
            self._spend(COMPILE_COST)
            full = len(self._compiled) >= PATTERNS_MAX
            self._compiled[pattern] = None if full else compile_pattern(pattern)
        compiled = self._compiled[pattern]
        return None if compiled is None else bool(compiled.is_valid(text))


class Domains:
    """Factory of domains. Equal domains are one object."""

    def __init__(self, documents: Iterable[Schemas], spend: Callable[[float], None]) -> None:
        self.patterns = Patterns(spend)
        self._spend = spend
        self._views = {
            id(document): views
            for schemas in documents
            for views in (Views(schemas),)
            for document in schemas.documents
        }
        self._constant_views = Views(NO_SCHEMAS)
        self._made: dict[Any, Domain] = {}
        self._constants: dict[object, Node] = {}
        self._kinds: dict[Kind, Node] = {}
        self._empty: dict[int, bool] = {}
        self._unions: dict[object, tuple[Union, ...]] = {}
        self._part_kinds: dict[object, frozenset[Kind]] = {}
        self._single: dict[object, Domain] = {}
        self._depth = 0

    def view(self, node: Node) -> View:
        """Return the view of a node of any of the documents, or of a constant."""
        return self._views.get(id(node.document), self._constant_views).of(node)

    def of(
        self,
        nodes: Iterable[Node],
        opened: frozenset[tuple[int, str]] = frozenset(),
        chosen: tuple[tuple[Union, Node], ...] = (),
    ) -> Domain:
        """Return the domain of values that conform to all of `nodes`."""
        nodes = tuple(nodes)
        parts, never = self._flatten(nodes)
        key = (
            never,
            frozenset(part.node.key for part in parts),
            opened,
            frozenset((union.identity, node.key) for union, node in chosen),
        )
        domain = self._made.get(key)
        if domain is None:
            domain = self._made[key] = self._make(nodes, parts, never, opened, chosen)
        return domain

    def single(self, node: Node) -> Domain:
        """Return the domain of values that conform to a subschema."""
        domain = self._single.get(node.key)
        if domain is None:
            domain = self._single[node.key] = self.of((node,))
        return domain

    def narrowed(self, domain: Domain, *nodes: Node) -> Domain:
        """Return the values of a domain that conform to more subschemas."""
        all_nodes = (*(part.node for part in domain.parts), *nodes)
        if not domain.kinds:
            return domain
        return self.of(all_nodes, domain.opened, domain.chosen)

    def constant(self, value: Json) -> Node:
        """Return a subschema that only a value conforms to."""
        key = value_key(value)
        node = self._constants.get(key)
        if node is None:
            node = self._constants[key] = Node(CONSTANTS, (), _constant(value))
        return node

    def cases(self, domain: Domain, *, split_kinds: bool) -> list[Domain]:
        """Return smaller domains that together have all values of a domain; empty if none are.

        The domain is split by its first union, else by its values, else by the kinds of values.
        """
        unions = domain.unions
        if unions and len(domain.opened) < CASES_MAX:
            self._spend(len(unions[0].branches) / 8)
            return [self._branch(domain, unions[0], branch) for branch in unions[0].branches]
        values = domain.values
        if values and len(values) <= VALUES_MAX and not _is_constant(domain):
            return [self.narrowed(domain, self.constant(value)) for value in values]
        kinds = domain.kinds - NUMERIC
        if domain.kinds & NUMERIC:
            kinds |= {"number" if domain.kinds >= NUMERIC else min(domain.kinds & NUMERIC)}
        if split_kinds and values is None and len(kinds) > 1:
            return [self.narrowed(domain, self.kind(kind)) for kind in sorted(kinds)]
        return []

    def _branch(self, domain: Domain, union: Union, branch: tuple[Node, ...]) -> Domain:
        nodes = (*(part.node for part in domain.parts), *branch)
        chosen = ((union, branch[0]),) if union.exclusive else ()
        return self.of(nodes, domain.opened | {union.identity}, (*domain.chosen, *chosen))

    def kind(self, kind: Kind) -> Node:
        node = self._kinds.get(kind)
        if node is None:
            name = "number" if kind == "fraction" else kind
            node = self._kinds[kind] = Node(CONSTANTS, (), {"type": name})
        return node

    def is_empty(self, domain: Domain) -> bool:
        """Whether no value is in a domain, as far as this can be derived."""
        known = self._empty.get(id(domain))
        if known is not None:
            return known
        if not domain.kinds:
            return True
        if not domain.unions and domain.kinds != {"object"}:
            return False
        if self._depth >= EMPTY_DEPTH:
            return False
        self._depth += 1
        try:
            found = self._contradicts(domain)
        finally:
            self._depth -= 1
        if self._depth == 0 or found:
            self._empty[id(domain)] = found
        return found

    def _contradicts(self, domain: Domain) -> bool:
        self._spend(0.5)
        if domain.kinds == {"object"} and any(
            self.is_empty(self.property(domain, name).domain) for name in domain.required
        ):
            return True
        unions = domain.unions
        return (
            bool(unions)
            and len(domain.opened) < CASES_MAX
            and all(
                self.is_empty(self._branch(domain, unions[0], branch))
                for branch in unions[0].branches
            )
        )

    def are_disjoint(self, first: Domain, second: Domain) -> bool:
        """Whether two domains differ in kind, in values, or in those of a required property."""
        if first.kinds.isdisjoint(second.kinds):
            return True
        tags, others = self._tags(first), self._tags(second)
        return any(tags[name].isdisjoint(others[name]) for name in tags.keys() & others.keys())

    def _tags(self, domain: Domain) -> Mapping[str | None, frozenset[object]]:
        """Return the values of a domain, under None, and of its required properties."""
        if domain.tags is not None:
            return domain.tags
        tags: dict[str | None, frozenset[object]] = {}
        if domain.values is not None and len(domain.values) <= VALUES_MAX:
            tags[None] = frozenset(value_key(value) for value in domain.values)
        names = sorted(domain.required) if domain.kinds == {"object"} else []
        for name in names[:TAGS_MAX]:
            values = self.property(domain, name).domain.values
            if values is not None and len(values) <= VALUES_MAX:
                tags[name] = frozenset(value_key(value) for value in values)
        domain.tags = tags
        return tags

    def property(self, domain: Domain, name: str) -> Known:
        """Return the domain of a property's values."""
        known = domain.known.get(name)
        if known is None:
            self._spend(len(domain.objects) / 8)
            nodes: list[Node] = []
            declared = False
            for objects in domain.objects:
                declared = self._property(objects, name, nodes) or declared
            known = domain.known[name] = Known(self.of(nodes), declared)
        return known

    def _property(self, objects: Objects, name: str, nodes: list[Node]) -> bool:
        """Add the subschemas of a property, and return whether it is declared."""
        found, unclear = [], False
        if name in objects.properties:
            found.append(objects.properties[name])
        for pattern, node in objects.patterns.items():
            matches = self.patterns.matches(pattern, name)
            unclear = unclear or matches is None
            if matches:
                found.append(node)
        nodes.extend(found)
        if not found and not unclear and objects.additional is not None:
            nodes.append(objects.additional)
        return bool(found)

    def item(self, domain: Domain, index: int) -> Known:
        """Return the domain of an array's item."""
        nodes: list[Node] = []
        declared = False
        for arrays in domain.arrays:
            if index < len(arrays.prefix):
                nodes.append(arrays.prefix[index])
                declared = True
            elif arrays.rest is not None:
                nodes.append(arrays.rest)
        return Known(self.of(nodes), declared)

    def _flatten(self, nodes: tuple[Node, ...]) -> tuple[list[View], bool]:
        parts: list[View] = []
        seen: set[object] = set()
        never = False
        waiting = list(nodes[::-1])
        while waiting:
            node = waiting.pop()
            if node.key in seen:
                continue
            seen.add(node.key)
            view = self.view(node)
            parts.append(view)
            never = never or view.never
            waiting.extend(view.all_of[::-1])
            waiting.extend(view.targets[::-1])
        self._spend(0.5 + len(parts) / 8)
        return parts, never

    def _make(
        self,
        nodes: tuple[Node, ...],
        parts: list[View],
        never: bool,
        opened: frozenset[tuple[int, str]],
        chosen: tuple[tuple[Union, Node], ...],
    ) -> Domain:
        self._spend(1.5)
        kinds = frozenset[Kind]() if never else KINDS
        for part in parts:
            own = self._part_kinds.get(part.node.key)
            if own is None:
                own = self._part_kinds[part.node.key] = self._kinds_of(part, UNION_DEPTH)
            kinds &= own
        return Domain(
            nodes=nodes,
            parts=parts,
            opened=opened,
            chosen=chosen,
            kinds=kinds,
            unions=tuple(
                union
                for part in parts
                if part.any_of or part.one_of or part.condition
                for union in self._unions_of(part)
                if union.identity not in opened
            ),
        )

    def _unions_of(self, view: View) -> tuple[Union, ...]:
        unions = self._unions.get(view.node.key)
        if unions is None:
            unions = self._unions[view.node.key] = _unions(view)
        return unions

    def _kinds_of(self, view: View, depth: int) -> frozenset[Kind]:
        if view.never or (view.negated is not None and self.view(view.negated).anything):
            return frozenset()
        kinds = view.kinds
        if view.values is not None:
            kinds &= frozenset(kind_of(value) for value in view.values)
        if depth == 0:
            return kinds
        for branches in (view.any_of, view.one_of):
            if branches:
                self._spend(len(branches) / 8)
                kinds &= frozenset[Kind]().union(
                    *(self._kinds_below(node, depth - 1) for node in branches)
                )
        return kinds

    def _kinds_below(self, node: Node, depth: int) -> frozenset[Kind]:
        view = self.view(node)
        kinds = self._kinds_of(view, depth)
        if depth:
            for below in (*view.targets, *view.all_of):
                kinds &= self._kinds_below(below, depth - 1)
        return kinds


def _unions(view: View) -> tuple[Union, ...]:
    found = []
    identity = id(view.node.schema)
    for keyword, nodes in (("anyOf", view.any_of), ("oneOf", view.one_of)):
        if nodes:
            branches = [(node,) for node in nodes]
            found.append(Union((identity, keyword), branches, keyword == "oneOf"))
    condition = view.condition
    if condition is not None:
        yes = (condition.test,) if condition.then is None else (condition.test, condition.then)
        no = () if condition.otherwise is None else (condition.otherwise,)
        found.append(Union((identity, "if"), [yes, no], False))
    return tuple(found)


def _is_whole(part: View) -> bool:
    """Whether a subschema allows only integers by `multipleOf`; 2.0 is none in draft 4."""
    if part.numbers is None or part.numbers.multiple is None or part.node.document.draft == 4:
        return False
    return part.numbers.multiple == part.numbers.multiple.to_integral_value()


def least(limits: Iterable[int | None]) -> int | None:
    """Return the smallest limit; None is no limit."""
    return min((limit for limit in limits if limit is not None), default=None)


def _whole(bound: Bound | None, rounding: str) -> Bound | None:
    """Return the limit of integers that a limit of numbers implies."""
    if bound is None:
        return None
    whole = bound.value.to_integral_value(rounding)
    if whole == bound.value and bound.open:
        whole = Decimal(int(whole) + (1 if rounding == ROUND_CEILING else -1))
    return Bound(whole, False)


def _is_constant(domain: Domain) -> bool:
    return domain.kinds == {"null"} or any(
        part.node.document is CONSTANTS and part.values is not None for part in domain.parts
    )


def _constant(value: Json, depth: int = CONSTANT_DEPTH) -> dict[str, Json]:
    """Return a schema of draft 2020-12 that only a value conforms to.

    It says the same in several ways, so that no other place needs to look into constants.
    """
    schema: dict[str, Json] = {"const": value}
    if depth == 0:
        return schema
    if isinstance(value, dict):
        schema["properties"] = {name: _constant(item, depth - 1) for name, item in value.items()}
        schema["required"] = list(value)
        schema["additionalProperties"] = False
    elif isinstance(value, list):
        schema["prefixItems"] = [_constant(item, depth - 1) for item in value]
        schema["items"] = False
        schema["minItems"] = Number(str(len(value)), Decimal(len(value)))
    return schema
