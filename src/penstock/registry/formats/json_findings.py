"""Findings of a comparison of JSON schemas, their messages, and the goals that lead to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, Literal

from penstock.registry.formats.json_document import PLACE_MAX, Json, Node, pointer
from penstock.registry.formats.json_domain import Domain
from penstock.registry.formats.json_text import write_json
from penstock.registry.formats.json_view import Kind, View, type_names
from penstock.registry.formats.schema import Incompatibility

SHOWN_MAX: Final = 80
"""Most characters of a value that a message shows."""
UNITS: Final = {"Length": "characters", "Properties": "properties", "Items": "items"}

Aspect = Literal["all", "own", "anyOf", "oneOf", "not", "if"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Finding:
    """Violated rule with the schemas on both sides.

    Attributes:
        steps: place of the violated constraint below the reader's subschema.
        subject: property, item or values that the rule is about, or the writer's limit.
        value: domain of the property or item that the rule is about.
        causes: findings in the branch that is closest to the writer's schema.
    """

    rule: str
    reader: View
    steps: tuple[str | int, ...]
    writer: Domain
    message: str
    subject: Json = None
    value: Domain | None = None
    causes: tuple[Finding, ...] = ()

    @property
    def path(self) -> str:
        """JSON pointer of the constraint in the reader's schema."""
        return self.reader.node.where + pointer(self.steps)

    def public(self) -> Incompatibility:
        """Return the finding as the interface reports it."""
        return Incompatibility(rule=self.rule, path=self.path, message=self.message)


@dataclass(frozen=True, slots=True)
class Goal:
    """Claim that all values of a domain conform to an aspect of a subschema."""

    reader: Node
    writer: Domain
    aspect: Aspect = "all"


Steps = Iterator[Goal | Finding]


def problem(
    rule: str,
    reader: View,
    steps: tuple[str | int, ...],
    writer: Domain,
    *,
    demands: str,
    offers: str,
    remedy: str,
    subject: Json = None,
    value: Domain | None = None,
    causes: tuple[Finding, ...] = (),
) -> Finding:
    """Return a finding whose message has both sides and a remedy."""
    where = (reader.node.where + pointer(steps))[:PLACE_MAX] or "the root"
    message = (
        f"The reader's schema {demands} at {where}; the writer's schema {offers} at"
        f" {writer.where}. {remedy}"
    )
    return Finding(
        rule=rule,
        reader=reader,
        steps=steps,
        writer=writer,
        message=message,
        subject=subject,
        value=value,
        causes=causes,
    )


def shown(value: Json) -> str:
    """Return a value's JSON text, shortened for messages."""
    if isinstance(value, list | tuple):
        value = list(value[:SHOWN_MAX])
    return _shortened(write_json(value))


def named(kinds: Iterable[Kind]) -> str:
    """Return the JSON types of some kinds, for messages."""
    return " or ".join(type_names(kinds))


def shown_number(value: Decimal) -> str:
    """Return a number's text, shortened for messages."""
    return _shortened(str(value))


def _shortened(text: str) -> str:
    return text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 3] + "..."


def above(limit: int | None, other: int) -> bool:
    """Whether a limit, which None says does not exist, is above another one."""
    return limit is None or limit > other


def size_problem(view: View, writer: Domain, keyword: str, new: int, old: int | None) -> Finding:
    """Return the finding of a smaller maximum, or a larger minimum, of a count."""
    unit = keyword[3:]
    side, verb = ("at least", "INCREASED") if keyword[:3] == "min" else ("at most", "DECREASED")
    return problem(
        f"{keyword[:3]}_{unit}_{'ADDED' if old is None else verb}".upper(),
        view,
        (keyword,),
        writer,
        demands=f"allows {side} {shown_number(Decimal(new))} {UNITS[unit]}",
        offers=f"has no {keyword}" if old is None else f"allows {shown_number(Decimal(old))}",
        remedy=f"Remove {keyword}, or set it to the writer's limit.",
        subject=old,
    )
