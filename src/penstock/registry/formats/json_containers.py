"""Rules of the keywords that constrain objects and arrays.

Rules are named after the differences in Confluent's documentation wherever one exists. An object's
content model is open if undeclared properties may have any value, closed if there are none, and
partially open if they must conform to a schema. Arrays have content models as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from penstock.registry.formats.json_document import Node
from penstock.registry.formats.json_domain import Domain, Domains, least
from penstock.registry.formats.json_findings import (
    Finding,
    Goal,
    Steps,
    above,
    problem,
    shown,
    size_problem,
)
from penstock.registry.formats.json_view import Arrays, Objects, View

CONTAINS_ITEMS_MAX: Final = 64
"""Most items that are compared one by one with a reader's `contains`."""


class ObjectRules:
    """Rules of the keywords of objects."""

    def __init__(
        self,
        domains: Domains,
        holds: Callable[[Node, Domain], bool],
        lenient: Callable[[], bool],
    ) -> None:
        self._domains = domains
        self._holds = holds
        self._lenient = lenient

    def steps(self, view: View, rules: Objects, writer: Domain, keyword: str) -> Steps:
        yield from self._required(view, rules, writer)
        for name, node in rules.properties.items():
            yield from self._property(view, name, node, writer, required=name in rules.required)
        for pattern, node in rules.patterns.items():
            yield from self._pattern(view, pattern, node, writer)
        if rules.additional is not None and rules.additional.schema is not True:
            yield from self._additional(view, rules, rules.additional, writer, keyword)
        if rules.names is not None:
            yield from self._names(view, rules.names, writer)
        yield from self._property_counts(view, rules, writer)
        yield from self._dependencies(view, rules, writer)

    def _required(self, view: View, rules: Objects, writer: Domain) -> Steps:
        for index, name in enumerate(rules.required):
            if name in writer.required or self._has_default(rules, name):
                continue
            known = self._domains.property(writer, name)
            offers = "does not declare it"
            if known.declared:
                rule, offers = "REQUIRED_ATTRIBUTE_ADDED", "declares it as optional"
            elif known.domain.anything:
                rule = "REQUIRED_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL"
            else:
                rule = "REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL"
            yield problem(
                rule,
                view,
                ("required", index),
                writer,
                demands=f"requires the property {name!r}",
                offers=offers,
                remedy="Give the property a default, or do not require it.",
                subject=name,
            )

    def _has_default(self, rules: Objects, name: str) -> bool:
        node = rules.properties.get(name)
        return node is not None and isinstance(node.schema, dict) and "default" in node.schema

    def _property(
        self, view: View, name: str, node: Node, writer: Domain, *, required: bool
    ) -> Steps:
        known = self._domains.property(writer, name)
        if known.declared:
            yield Goal(node, known.domain)
            return
        open_model = known.domain.anything
        if (self._lenient() and open_model) or self._holds(node, known.domain):
            return
        if open_model:
            yield problem(
                "PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL",
                view,
                ("properties", name),
                writer,
                demands=f"declares the property {name!r}",
                offers="does not declare it, but allows it with any value",
                value=known.domain,
                remedy=(
                    'Close the writer\'s schema with "additionalProperties": false, set the'
                    " compatibility policy to LENIENT, or allow any value for the property."
                ),
                subject=name,
            )
            return
        yield problem(
            "PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
            view,
            ("properties", name),
            writer,
            demands=f"declares the property {name!r} with a schema of its own",
            offers="allows it with other values by additionalProperties",
            remedy="Make the property's schema accept all values that additionalProperties allows.",
            subject=name,
            value=known.domain,
        )

    def _pattern(self, view: View, pattern: str, node: Node, writer: Domain) -> Steps:
        """Compare the properties that match a pattern of the reader's schema."""
        for name in _declared(writer):
            if self._domains.patterns.matches(pattern, name) is not False:
                yield Goal(node, self._domains.property(writer, name).domain)
        if any(
            self._all_hold(node, self._undeclared(rules, only=pattern)) for rules in writer.objects
        ):
            return
        if self._lenient() and _is_open(writer):
            return
        if not writer.objects and self._holds(node, self._domains.of(())):
            return
        known = any(pattern in rules.patterns for rules in writer.objects)
        yield problem(
            "PATTERN_PROPERTY_CHANGED" if known else "PATTERN_PROPERTY_ADDED",
            view,
            ("patternProperties", pattern),
            writer,
            demands=f"restricts properties that match {shown(pattern)}",
            offers="restricts them differently" if known else "does not restrict them",
            remedy="Keep the writer's schema of the pattern, or set the policy to LENIENT.",
            subject=pattern,
        )

    def _undeclared(
        self, rules: Objects, *, only: str | None = None, without: Iterable[str] = ()
    ) -> list[Domain]:
        """Return the domains that an undeclared property's value can be in.

        Args:
            only: pattern that the property matches.
            without: patterns that the property does not match.
        """
        if only is not None and only in rules.patterns:
            return [self._domains.of([rules.patterns[only]])]
        excluded = set(without)
        nodes: list[tuple[Node, ...]] = [
            (node,) for name, node in rules.patterns.items() if name not in excluded
        ]
        nodes.append(() if rules.additional is None else (rules.additional,))
        return [self._domains.of(found) for found in nodes]

    def _all_hold(self, node: Node, domains: list[Domain]) -> bool:
        return all(self._holds(node, domain) for domain in domains)

    def _additional(
        self, view: View, rules: Objects, node: Node, writer: Domain, keyword: str
    ) -> Steps:
        for name in _declared(writer):
            if name in rules.properties or self._matches_any(rules, name):
                continue
            yield from self._removed(view, node, name, writer)
        if self._lenient() and _is_open(writer):
            return
        simple = [found for found in writer.objects if found.additional is not None]
        if len(simple) == 1 and node.schema is not False and not simple[0].patterns:
            additional = simple[0].additional
            if additional is not None and additional.schema not in (True, {}):
                yield Goal(node, self._domains.of([additional]))
                return
        domains = [self._undeclared(found, without=rules.patterns) for found in writer.objects]
        domains = domains or [[self._domains.of(())]]
        if any(self._all_hold(node, found) for found in domains):
            return
        closed = node.schema is False
        yield problem(
            "ADDITIONAL_PROPERTIES_REMOVED" if closed else "ADDITIONAL_PROPERTIES_NARROWED",
            view,
            (keyword,),
            writer,
            demands="allows no undeclared properties" if closed else "restricts other properties",
            offers="allows undeclared properties" if closed else "allows more values for them",
            remedy=(
                f"Keep the writer's {keyword}, close the writer's schema as well, or set the"
                " compatibility policy to LENIENT."
            ),
        )

    def _matches_any(self, rules: Objects, name: str) -> bool:
        return any(self._domains.patterns.matches(pattern, name) for pattern in rules.patterns)

    def _removed(self, view: View, node: Node, name: str, writer: Domain) -> Steps:
        domain = self._domains.property(writer, name).domain
        if self._domains.is_empty(domain):
            return
        if self._lenient() and name not in writer.required and node.schema is False:
            return
        closed = node.schema is False
        if not closed and self._holds(node, domain):
            return
        yield problem(
            "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL"
            if closed
            else "PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
            view,
            ("properties", name),
            writer,
            demands=f"does not declare the property {name!r}"
            + (" and allows no others" if closed else ", and other properties are restricted"),
            offers="declares it",
            remedy=(
                "Restore the property, allow additional properties in the reader's schema, or set"
                " the compatibility policy to LENIENT."
            ),
            subject=name,
            value=domain,
        )

    def _names(self, view: View, node: Node, writer: Domain) -> Steps:
        written = [rules.names for rules in writer.objects if rules.names is not None]
        text = self._domains.kind("string")
        if self._holds(node, self._domains.of([*written, text])):
            return
        if _is_closed(writer) and all(
            self._holds(node, self._domains.of([self._domains.constant(name)]))
            for name in _declared(writer)
            if not self._domains.is_empty(self._domains.property(writer, name).domain)
        ):
            return
        yield problem(
            "PROPERTY_NAMES_NARROWED" if written else "PROPERTY_NAMES_ADDED",
            view,
            ("propertyNames",),
            writer,
            demands="restricts the names of properties",
            offers="allows other names",
            remedy="Keep the writer's propertyNames, or remove the keyword.",
        )

    def _property_counts(self, view: View, rules: Objects, writer: Domain) -> Steps:
        fewest = max((found.fewest for found in writer.objects), default=0)
        if rules.fewest > max(fewest, len(writer.required)):
            yield size_problem(view, writer, "minProperties", rules.fewest, fewest or None)
        if rules.most is None:
            return
        most = least(found.most for found in writer.objects)
        if _is_closed(writer):
            most = least((most, len(_declared(writer))))
        if above(most, rules.most):
            yield size_problem(view, writer, "maxProperties", rules.most, most)

    def _dependencies(self, view: View, rules: Objects, writer: Domain) -> Steps:
        ensured = [found for found in writer.objects if found.certain]
        for name, needs in rules.needs.items():
            written = {need for found in ensured for need in found.needs.get(name, ())}
            missing = set(needs) - written - writer.required
            if missing and not self._is_absent(writer, name):
                yield problem(
                    "DEPENDENCY_ARRAY_EXTENDED" if written else "DEPENDENCY_ARRAY_ADDED",
                    view,
                    (_dependency_keyword(view, name, "dependentRequired"), name),
                    writer,
                    demands=f"requires {sorted(missing)} if {name!r} is present",
                    offers="does not require them",
                    remedy="Remove these names from the dependency.",
                    subject=name,
                )
        for name, node in rules.implied:
            if self._is_absent(writer, name):
                continue
            more = [below for found in ensured for key, below in found.implied if key == name]
            narrowed = self._domains.narrowed(writer, *more)
            if more:
                yield Goal(node, narrowed)
                continue
            if self._holds(node, narrowed):
                continue
            yield problem(
                "DEPENDENCY_SCHEMA_ADDED",
                view,
                (_dependency_keyword(view, name, "dependentSchemas"), name),
                writer,
                demands=f"has a schema that applies if {name!r} is present",
                offers="does not ensure it",
                remedy="Keep the writer's dependency, or remove it.",
                subject=name,
            )

    def _is_absent(self, writer: Domain, name: str) -> bool:
        return self._domains.is_empty(self._domains.property(writer, name).domain)


class ArrayRules:
    """Rules of the keywords of arrays."""

    def __init__(
        self,
        domains: Domains,
        holds: Callable[[Node, Domain], bool],
        same: Callable[[Node, Node], bool],
    ) -> None:
        self._domains = domains
        self._holds = holds
        self._same = same

    def steps(self, view: View, rules: Arrays, writer: Domain) -> Steps:
        yield from self._items(view, rules, writer)
        fewest = writer.items_fewest
        if rules.fewest > fewest:
            yield size_problem(view, writer, "minItems", rules.fewest, fewest or None)
        if rules.most is not None and above(writer.items_most, rules.most):
            yield size_problem(view, writer, "maxItems", rules.most, writer.items_most)
        unique = any(found.unique for found in writer.arrays) or not above(writer.items_most, 1)
        if rules.unique and not unique:
            yield problem(
                "UNIQUE_ITEMS_ADDED",
                view,
                ("uniqueItems",),
                writer,
                demands="allows only distinct items",
                offers="allows equal items",
                remedy="Remove uniqueItems.",
            )
        if rules.contains is not None:
            yield from self._contains(view, rules, rules.contains, writer)

    def _items(self, view: View, rules: Arrays, writer: Domain) -> Steps:
        most = writer.items_most
        tuple_keyword = "prefixItems" if "prefixItems" in view.node.schema else "items"
        for index, node in enumerate(rules.prefix):
            if not above(most, index):
                return
            known = self._domains.item(writer, index)
            if known.declared:
                yield Goal(node, known.domain)
            elif not self._holds(node, known.domain):
                yield self._item_added(view, tuple_keyword, index, known.domain, writer)
        if rules.rest is None or rules.rest.schema is True:
            return
        longest = max((len(found.prefix) for found in writer.arrays), default=0)
        for index in range(len(rules.prefix), longest):
            if above(most, index):
                yield from self._item_removed(view, rules.rest, index, writer)
        if above(most, max(longest, len(rules.prefix))):
            yield from self._other_items(view, rules, rules.rest, writer, longest)

    def _other_items(
        self, view: View, rules: Arrays, node: Node, writer: Domain, longest: int
    ) -> Steps:
        domain = self._domains.item(writer, max(longest, len(rules.prefix))).domain
        if not rules.prefix and not longest and node.schema is not False and domain.nodes:
            yield Goal(node, domain)
            return
        if self._holds(node, domain):
            return
        if not domain.nodes and node.schema is not False:
            yield problem(
                "SCHEMA_ADDED",
                view,
                (_rest_keyword(view),),
                writer,
                demands="restricts items",
                offers="does not restrict them",
                remedy="Remove the schema of items.",
            )
            return
        closed = node.schema is False
        yield problem(
            "ADDITIONAL_ITEMS_REMOVED" if closed else "ADDITIONAL_ITEMS_NARROWED",
            view,
            (_rest_keyword(view),),
            writer,
            demands="allows no further items" if closed else "restricts further items",
            offers="allows further items" if closed else "allows more values for them",
            remedy="Keep the writer's schema of further items.",
        )

    def _item_added(
        self, view: View, keyword: str, index: int, known: Domain, writer: Domain
    ) -> Finding:
        return problem(
            "ITEM_ADDED_TO_OPEN_CONTENT_MODEL"
            if known.anything
            else "ITEM_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
            view,
            (keyword, index),
            writer,
            demands=f"declares the item {index}",
            offers="does not declare it, but allows it with other values",
            remedy="Close the writer's schema against further items, or allow any value here.",
            subject=index,
            value=known,
        )

    def _item_removed(self, view: View, node: Node, index: int, writer: Domain) -> Steps:
        domain = self._domains.item(writer, index).domain
        if self._domains.is_empty(domain) or self._holds(node, domain):
            return
        closed = node.schema is False
        yield problem(
            "ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL"
            if closed
            else "ITEM_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
            view,
            (_rest_keyword(view),),
            writer,
            demands=f"does not declare the item {index}, and restricts further items",
            offers="declares it",
            remedy="Restore the item, or allow further items.",
            subject=index,
            value=domain,
        )

    def _contains(self, view: View, rules: Arrays, node: Node, writer: Domain) -> Steps:
        enough = self._contains_enough(rules, node, writer)
        if enough and self._contains_few(rules, node, writer):
            return
        if not any(found.contains and self._same(node, found.contains) for found in writer.arrays):
            rule, keyword = "CONTAINS_CHANGED", "contains"
        elif not enough:
            rule, keyword = "MIN_CONTAINS_INCREASED", "minContains"
        else:
            rule, keyword = "MAX_CONTAINS_DECREASED", "maxContains"
        yield problem(
            rule,
            view,
            (keyword,),
            writer,
            demands="restricts the number of items that conform to contains",
            offers="does not ensure this number",
            remedy="Keep the writer's contains, minContains and maxContains, or remove them.",
        )

    def _contains_enough(self, rules: Arrays, node: Node, writer: Domain) -> bool:
        """Whether the writer's arrays have at least `minContains` items that conform to `node`."""
        fewest = rules.contains_fewest
        if fewest == 0 or any(
            found.contains is not None
            and found.contains_fewest >= fewest
            and self._holds(node, self._domains.of([found.contains]))
            for found in writer.arrays
        ):
            return True
        return fewest <= min(writer.items_fewest, CONTAINS_ITEMS_MAX) and all(
            self._holds(node, self._domains.item(writer, index).domain) for index in range(fewest)
        )

    def _contains_few(self, rules: Arrays, node: Node, writer: Domain) -> bool:
        """Whether the writer's arrays have at most `maxContains` items that conform to `node`."""
        most = rules.contains_most
        return (
            most is None
            or not above(writer.items_most, most)
            or any(
                found.contains is not None
                and found.contains_most is not None
                and found.contains_most <= most
                and self._same(node, found.contains)
                for found in writer.arrays
            )
        )


def _declared(writer: Domain) -> list[str]:
    """Return the names of properties that the writer's schema declares."""
    names: dict[str, None] = {}
    for rules in writer.objects:
        names.update(dict.fromkeys(rules.properties))
    return list(names)


def _is_open(writer: Domain) -> bool:
    """Whether undeclared properties may have any value."""
    return all(
        rules.additional is None or rules.additional.schema in (True, {})
        for rules in writer.objects
    )


def _is_closed(writer: Domain) -> bool:
    """Whether all properties are declared."""
    return any(
        not rules.patterns and rules.additional is not None and rules.additional.schema is False
        for rules in writer.objects
    )


def _dependency_keyword(view: View, name: str, modern: str) -> str:
    schema = view.node.schema
    return "dependencies" if name in schema.get("dependencies", ()) else modern


def _rest_keyword(view: View) -> str:
    schema = view.node.schema
    return "additionalItems" if isinstance(schema.get("items"), list) else "items"
