"""Rules of the keywords that constrain types, values, numbers and strings.

Rules are named after the differences in Confluent's documentation wherever one exists.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Final

from penstock.registry.formats.json_containers import ArrayRules, ObjectRules
from penstock.registry.formats.json_document import Node
from penstock.registry.formats.json_domain import Domain, Domains
from penstock.registry.formats.json_findings import (
    Finding,
    Steps,
    above,
    named,
    problem,
    shown,
    shown_number,
    size_problem,
)
from penstock.registry.formats.json_text import Number
from penstock.registry.formats.json_view import (
    NUMERIC,
    Bound,
    Numbers,
    Strings,
    View,
    covers_high,
    covers_low,
    value_key,
)

ANY_PATTERNS: Final = frozenset(("", ".*", "^", "$", "^.*", ".*$"))
"""Patterns that occur in every string."""


class KeywordRules:
    """Rules that compare a subschema's own keywords with the domain of the writer's values."""

    def __init__(
        self,
        domains: Domains,
        holds: Callable[[Node, Domain], bool],
        same: Callable[[Node, Node], bool],
        lenient: Callable[[], bool],
    ) -> None:
        self._domains = domains
        self._objects = ObjectRules(domains, holds, lenient)
        self._arrays = ArrayRules(domains, holds, same)

    def steps(self, view: View, writer: Domain) -> Steps:
        """Yield goals that are left to show, and the violated rules."""
        missing = writer.kinds - view.kinds
        if missing or view.never:
            yield self._types(view, writer)
            if writer.kinds.isdisjoint(view.kinds):
                return
        yield from self._values(view, writer)
        if view.numbers is not None and writer.kinds & NUMERIC:
            yield from self._numbers(view, view.numbers, writer)
        if view.strings is not None and "string" in writer.kinds:
            yield from self._strings(view, view.strings, writer)
        if "object" in writer.kinds:
            if view.objects is not None:
                yield from self._objects.steps(view, view.objects, writer, "additionalProperties")
            if view.closing is not None:
                yield from self._objects.steps(view, view.closing, writer, "unevaluatedProperties")
        if view.arrays is not None and "array" in writer.kinds:
            yield from self._arrays.steps(view, view.arrays, writer)
        yield from self._opaque(view, writer)

    def _types(self, view: View, writer: Domain) -> Finding:
        disjoint = view.never or (writer.kinds.isdisjoint(view.kinds) and not writer.opened)
        demands = "allows no value" if view.never else f"allows only {named(view.kinds)}"
        return problem(
            "TYPE_CHANGED" if disjoint else "TYPE_NARROWED",
            view,
            ("type",) if not view.never else (),
            writer,
            demands=demands,
            offers=f"allows {named(writer.kinds)}",
            remedy=f"Allow {named(writer.kinds - view.kinds)} in the reader's schema as well.",
        )

    def _values(self, view: View, writer: Domain) -> Steps:
        if view.values is None:
            return
        keyword = "const" if "const" in view.node.schema and len(view.values) < 2 else "enum"
        allowed = {value_key(value) for value in view.values}
        demands = f"allows only {shown(list(view.values))}"
        if writer.values is None:
            yield problem(
                "ENUM_ARRAY_NARROWED",
                view,
                (keyword,),
                writer,
                demands=demands,
                offers=f"allows any {named(writer.kinds)}",
                remedy=f"Remove {keyword}, or restrict the writer's schema to these values.",
            )
            return
        missing = [value for value in writer.values if value_key(value) not in allowed]
        if missing:
            common = len(writer.values) - len(missing)
            yield problem(
                "ENUM_ARRAY_NARROWED" if common == len(allowed) else "ENUM_ARRAY_CHANGED",
                view,
                (keyword,),
                writer,
                demands=demands,
                offers=f"allows {shown(missing)} as well",
                remedy=f"Add {shown(missing)} to {keyword}.",
                subject=missing,
            )

    def _numbers(self, view: View, rules: Numbers, writer: Domain) -> Steps:
        low, high = rules.low, rules.high
        if low and not covers_low(low, writer.low):
            yield self._bound(view, writer, low, writer.low, "minimum", "INCREASED")
        if high and not covers_high(high, writer.high):
            yield self._bound(view, writer, high, writer.high, "maximum", "DECREASED")
        multiple = rules.multiple
        if multiple is None or _is_multiple(writer, multiple):
            return
        old = writer.multiples[0] if writer.multiples else None
        change = "CHANGED"
        if old is None:
            change = "ADDED"
        elif Fraction(multiple) % Fraction(old) == 0:
            change = "EXPANDED"
        yield problem(
            f"MULTIPLE_OF_{change}",
            view,
            ("multipleOf",),
            writer,
            demands=f"allows only multiples of {shown(view.node.schema['multipleOf'])}",
            offers="allows any number" if old is None else f"allows multiples of {old:.40}",
            remedy="Remove multipleOf, or use a divisor of the writer's.",
        )

    def _bound(
        self, view: View, writer: Domain, new: Bound, old: Bound | None, keyword: str, verb: str
    ) -> Finding:
        exclusive = f"exclusive{keyword.capitalize()}"
        found = (
            exclusive
            if new.open and isinstance(view.node.schema.get(exclusive), Number)
            else keyword
        )
        name = f"EXCLUSIVE_{keyword.upper()}" if new.open else keyword.upper()
        side = "at least" if keyword == "minimum" else "at most"
        if new.open:
            side = "more than" if keyword == "minimum" else "less than"
        return problem(
            f"{name}_{verb if old else 'ADDED'}",
            view,
            (found,),
            writer,
            demands=f"allows only numbers of {side} {shown_number(new.value)}",
            offers=f"has the {keyword} {shown_number(old.value)}" if old else f"has no {keyword}",
            remedy=f"Remove {found}, or set it to the writer's limit.",
        )

    def _strings(self, view: View, rules: Strings, writer: Domain) -> Steps:
        if rules.shortest > writer.shortest:
            yield size_problem(view, writer, "minLength", rules.shortest, writer.shortest or None)
        if rules.longest is not None and above(writer.longest, rules.longest):
            yield size_problem(view, writer, "maxLength", rules.longest, writer.longest)
        pattern = rules.pattern
        if pattern is None or pattern in ANY_PATTERNS or pattern in writer.patterns:
            return
        if writer.values is not None and all(
            self._domains.patterns.matches(pattern, value)
            for value in writer.values
            if isinstance(value, str)
        ):
            return
        old = sorted(writer.patterns)
        yield problem(
            "PATTERN_CHANGED" if old else "PATTERN_ADDED",
            view,
            ("pattern",),
            writer,
            demands=f"allows only strings with the pattern {shown(pattern)}",
            offers=f"has the pattern {shown(old[0])}" if old else "has no pattern",
            remedy="Keep the writer's pattern, or remove it. Patterns are compared as texts.",
        )

    def _opaque(self, view: View, writer: Domain) -> Steps:
        for keyword, _ in view.opaque:
            yield problem(
                "UNEVALUATED_CHANGED" if keyword.startswith("unevaluated") else "REFERENCE_CHANGED",
                view,
                (keyword,) if keyword.startswith("unevaluated") else ("$ref",),
                writer,
                demands=f"has {keyword}, which is only compared for equality",
                offers="has other keywords beside it",
                remedy=f"Keep the whole subschema unchanged, or remove {keyword}.",
                subject=keyword,
            )
        if view.dynamic:
            yield problem(
                "REFERENCE_CHANGED",
                view,
                ("$dynamicRef",),
                writer,
                demands="has a dynamic reference with several targets",
                offers="may have other targets",
                remedy="Use $ref in place of the dynamic reference.",
            )


def _is_multiple(writer: Domain, multiple: Decimal) -> bool:
    unit = Fraction(multiple)
    if writer.values is not None:
        numbers = [value.value for value in writer.values if isinstance(value, Number)]
        return all(Fraction(number) % unit == 0 for number in numbers)
    if any(Fraction(old) % unit == 0 for old in writer.multiples):
        return True
    return "fraction" not in writer.kinds and 1 % unit == 0
