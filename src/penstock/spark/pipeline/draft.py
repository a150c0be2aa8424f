"""Draft: the tables of a pipeline's file with their values converted, as input of the checks.

A key whose value does not fit is reported here and has no value, but counts as given, so that one
mistake does not become two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.base.errors import InvalidError
from penstock.base.ids import validate_topic_name
from penstock.base.settings import Kind
from penstock.spark.pipeline.document import Document
from penstock.spark.pipeline.keys import NAMED, PROTECT, RULE, SINGLE, TOP, Table
from penstock.spark.pipeline.kinds import SETTINGS, TEXT, Unfit, nearest, type_name
from penstock.spark.pipeline.locations import Key
from penstock.spark.pipeline.problems import Problem

NAME_CHARS_MAX: Final = 100
"""Longest name of a pipeline, a view or a sink; two names and a slash make a query's name."""


@dataclass(frozen=True, slots=True)
class Section:
    """Table of the file."""

    key: Key
    raw: Mapping[str, Any]
    values: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.key[-1])

    def given(self, name: str) -> bool:
        return name in self.raw

    def get(self, name: str) -> Any:
        """Return the converted value; None if there is none, or if it does not fit."""
        return self.values.get(name)

    def which(self, *names: str) -> tuple[str, ...]:
        return tuple(name for name in names if name in self.raw)


@dataclass(frozen=True, slots=True)
class RuleDraft:
    """Rule; `otherwise` is None where the pipeline's default applies."""

    key: Key
    condition: str
    otherwise: str | None

    @property
    def name(self) -> str:
        return str(self.key[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """The whole file, converted except for contradictory or incomplete parts."""

    document: Document
    name: str
    run: Section
    spark: Section
    errors: Section
    sources: Mapping[str, Section]
    steps: Mapping[str, Section]
    sinks: Mapping[str, Section]
    rules: Mapping[Key, tuple[RuleDraft, ...]]
    protections: Mapping[Key, tuple[Section, ...]]
    problems: list[Problem] = field(default_factory=list)

    def refuse(self, key: Key, message: str, fix: str = "", *, under: Key = ()) -> None:
        self.problems.append(self.document.problem(key, message, fix, under=under))

    def views(self) -> Iterator[Section]:
        yield from self.sources.values()
        yield from self.steps.values()


def draft(document: Document) -> Draft:
    """Convert a document; its problems so far are in the draft."""
    return _Drafting(document).run()


class _Drafting:
    def __init__(self, document: Document) -> None:
        self.document = document
        self.problems: list[Problem] = []

    def run(self) -> Draft:
        values = self.document.values
        self._unknown((), values, (*TOP.names(), *SINGLE, *NAMED))
        named = {kind: self._named(kind) for kind in NAMED}
        rules = {
            section.key: tuple(self._rules(section))
            for kind in ("source", "step")
            for section in named[kind].values()
        }
        protections = {
            section.key: tuple(self._protections(section))
            for kind in ("source", "step")
            for section in named[kind].values()
        }
        return Draft(
            document=self.document,
            name=self._pipeline_name(),
            run=self._single("run"),
            spark=self._spark(),
            errors=self._single("errors"),
            sources=named["source"],
            steps=named["step"],
            sinks=named["sink"],
            rules=rules,
            protections=protections,
            problems=self.problems,
        )

    def _refuse(self, key: Key, message: str, fix: str = "") -> None:
        self.problems.append(self.document.problem(key, message, fix))

    def _unknown(self, key: Key, raw: Mapping[str, Any], names: tuple[str, ...]) -> None:
        for name in raw:
            if name not in names:
                close = nearest(name, names)
                fix = f"write {close}" if close else f"known are {', '.join(names)}"
                self._refuse((*key, name), "is not known here", fix)

    def _table(self, key: Key, raw: object) -> dict[str, Any]:
        if isinstance(raw, dict):
            return raw
        self._refuse(
            key, f"must be a table, but is {type_name(raw)}", f"write [{'.'.join(map(str, key))}]"
        )
        return {}

    def _section(self, key: Key, raw: dict[str, Any], table: Table) -> Section:
        self._unknown(key, raw, table.names())
        values = {}
        for known in table.keys:
            if known.name in raw and known.kind is not None:
                converted = self._convert((*key, known.name), known.kind, raw[known.name])
                if converted is not None:
                    values[known.name] = converted
        return Section(key, raw, values)

    def _convert(self, key: Key, kind: Kind, value: object) -> Any:
        try:
            return kind.convert(value)
        except Unfit as unfit:
            self._refuse(key, unfit.message, unfit.fix)
            return None

    def _single(self, name: str) -> Section:
        raw = self._table((name,), self.document.values.get(name, {}))
        return self._section((name,), raw, SINGLE[name])

    def _spark(self) -> Section:
        raw = self.document.values.get("spark", {})
        converted = self._convert(("spark",), SETTINGS, raw)
        return Section(("spark",), raw if converted is not None else {}, converted or {})

    def _named(self, kind: str) -> dict[str, Section]:
        tables = self._table((kind,), self.document.values.get(kind, {}))
        known = NAMED[kind].names()
        scalars = [name for name, raw in tables.items() if not isinstance(raw, dict)]
        if scalars and all(name in known for name in scalars):
            self._refuse((kind,), "has no name", f"write [{kind}.NAME]")
            return {}
        return {
            name: self._section((kind, name), self._table((kind, name), raw), NAMED[kind])
            for name, raw in tables.items()
        }

    def _pipeline_name(self) -> str:
        given = self.document.values.get("name")
        default = self.document.default_name
        name = default if given is None else self._convert(("name",), TEXT, given)
        if name is None:
            return default
        try:
            validate_topic_name(name)
        except InvalidError as error:
            reason = getattr(error, "reason", error)
            said = f"{name!r} cannot name a pipeline: {reason}".replace("topic name", "name")
            self._refuse(("name",), said, 'write name = "orders", with letters, digits, ., _ and -')
        if len(name) > NAME_CHARS_MAX:
            self._refuse(
                ("name",),
                f"has {len(name)} characters, the limit is {NAME_CHARS_MAX}",
                "choose a shorter name",
            )
        return str(name)

    def _rules(self, section: Section) -> Iterator[RuleDraft]:
        if not section.given("expect"):
            return
        key = (*section.key, "expect")
        given = section.raw["expect"]
        if not isinstance(given, dict):
            self._refuse(
                key,
                f"must be a table of rules, but is {type_name(given)}",
                'write expect = {"amount is positive" = "amount > 0"}',
            )
            return
        for name, raw in given.items():
            rule = self._rule((*key, name), raw)
            if rule is not None:
                yield rule

    def _protections(self, section: Section) -> Iterator[Section]:
        if not section.given("protect"):
            return
        key = (*section.key, "protect")
        given = section.raw["protect"]
        if not isinstance(given, dict):
            self._refuse(
                key,
                f"must be a table of columns, but is {type_name(given)}",
                'write protect = {phone = "mask"}',
            )
            return
        for column, raw in given.items():
            part = (*key, column)
            if isinstance(raw, dict):
                found = self._section(part, raw, PROTECT)
                if not found.given("by"):
                    self._refuse(part, "has no protection", 'add by = "mask"')
                yield found
                continue
            by = self._convert(part, PROTECT.keys[0].kind or TEXT, raw)
            if by is not None:
                yield Section(part, {"by": by}, {"by": by})

    def _rule(self, key: Key, raw: object) -> RuleDraft | None:
        if not isinstance(raw, dict):
            condition = self._convert(key, TEXT, raw)
            return None if condition is None else RuleDraft(key, condition, None)
        found = len(self.problems)
        fields = self._section(key, raw, RULE)
        if not fields.given("that"):
            self._refuse(key, "has no condition", 'write {that = "amount > 0", otherwise = "drop"}')
        if len(self.problems) > found:
            return None
        return RuleDraft(key, fields.get("that"), fields.get("otherwise"))


def default_otherwise(errors: Section) -> str:
    """Return the default action for rows that break a rule."""
    return str(errors.get("on_invalid") or "dead-letter")
