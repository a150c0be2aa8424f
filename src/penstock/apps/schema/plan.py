"""Plan of an import: what a registry lacks of a source, and what prevents the import.

Everything is compared before anything changes, so that all conflicts are reported at once. Two
schemas are equal if their texts are, or if they differ only in formatting. The same comparison
verifies the result.

A plan has waves: the schemas of a wave refer only to schemas of earlier waves, so those of one wave
can be registered at the same time.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import Any, ClassVar, Final, cast, get_args

from msgspec import Struct
from msgspec.structs import replace

from penstock.apps.schema.snapshot import (
    Key,
    RegisteredVersion,
    Settings,
    Snapshot,
    references_of,
    state_of,
)
from penstock.base.errors import InvalidError
from penstock.registry.errors import RegistryError
from penstock.registry.formats import parse
from penstock.registry.formats.schema import InvalidSchema, ParsedSchema, SchemaType
from penstock.registry.state import RegistryState
from penstock.registry.values import LATEST, compact, parse_subject

SHOWN_MAX: Final = 50
"""Most problems or differences that one message lists."""
TYPES: Final[Collection[str]] = get_args(SchemaType)
Waves = list[list[RegisteredVersion]]


class ImportConflict(InvalidError):
    """Import that would have to change existing schemas, or has invalid ones. Nothing changed."""

    code: ClassVar[str] = "invalid_request"


class ImportPlan(Struct, frozen=True, kw_only=True):
    """Changes that make a registry contain a source.

    Attributes:
        waves: versions to register, in order.
        deletions: versions to delete softly, in order.
        configs: configs to set, by qualified subject.
        modes: modes to set at the end, by qualified subject. The mode of the whole registry is not
            imported.
        present: number of versions that the registry has already.
        problems: sentences about conflicts and invalid schemas.
        skipped: versions that the problems exclude.
        known_modes: modes of the registry before the import.
    """

    waves: Waves
    deletions: Waves
    configs: Mapping[str, Settings]
    modes: Mapping[str, str]
    present: int
    problems: list[str]
    skipped: Collection[Key]
    known_modes: Mapping[str, str]

    @property
    def changes(self) -> dict[str, int]:
        """Numbers of changes, by the names that the output has for them."""
        return {
            "registered": sum(map(len, self.waves)),
            "deleted": sum(map(len, self.deletions)),
            "configs": len(self.configs),
            "modes": len(self.modes),
        }

    def pending(self) -> Iterator[RegisteredVersion]:
        """Yield the versions that the import registers or deletes."""
        for wave in (*self.waves, *self.deletions):
            yield from wave

    def check(self) -> None:
        """Raise ImportConflict if there are problems."""
        if self.problems:
            raise ImportConflict(
                f"nothing was imported: {listed(self.problems)}. Resolve this in the source or in"
                " the registry, or leave these versions out with --skip-invalid"
            )


def listed(sentences: list[str]) -> str:
    """Return sentences as one text, the first `SHOWN_MAX` of them."""
    more = len(sentences) - SHOWN_MAX
    shown = "; ".join(sentences[:SHOWN_MAX])
    return f"{shown}; and {more} more" if more > 0 else shown


# Comparison of schemas


class Parser:
    """Parser of the schemas of a snapshot, with their references."""

    def __init__(self, versions: Collection[RegisteredVersion]) -> None:
        self._versions = versions
        self._identities: dict[Key, str | None] = {}

    @cached_property
    def _state(self) -> RegistryState:
        return state_of(self._versions)

    def parsed(self, found: RegisteredVersion) -> ParsedSchema:
        """Parse the schema of a version.

        Raises:
            InvalidSchema, RegistryError: it is malformed, or a reference does not exist.
        """
        schema = found.schema
        if schema.schema_type not in TYPES:
            raise InvalidSchema(
                f"the type {schema.schema_type[:64]} is not one of {', '.join(TYPES)}"
            )
        dependencies = self._state.dependencies(parse_subject(found.subject), references_of(schema))
        return parse(cast("SchemaType", schema.schema_type), schema.schema, dependencies)

    def identity(self, found: RegisteredVersion) -> str | None:
        """Return a text that is equal for schemas that differ in formatting; None if invalid."""
        if found.key not in self._identities:
            try:
                self._identities[found.key] = self.parsed(found).identity
            except (InvalidSchema, RegistryError):
                self._identities[found.key] = None
        return self._identities[found.key]


class Comparison:
    """Comparison of versions of a source with each other and with those of a registry."""

    def __init__(self, source: Snapshot, target: Snapshot) -> None:
        self.source = Parser((target.versions | source.versions).values())
        self._target = Parser(target.versions.values())

    def same(self, found: RegisteredVersion, known: RegisteredVersion) -> bool:
        """Return whether a version of the source has the schema of one of the registry."""
        return self._same(found, known, self._target)

    def same_source(self, found: RegisteredVersion, other: RegisteredVersion) -> bool:
        """Return whether two versions of the source have the same schema."""
        return self._same(found, other, self.source)

    def _same(self, found: RegisteredVersion, other: RegisteredVersion, parser: Parser) -> bool:
        if found.schema == other.schema:
            return True
        if _fields(found) != _fields(other):
            return False
        if _canonical(found) == _canonical(other):
            return True
        identity = self.source.identity(found)
        return identity is not None and identity == parser.identity(other)

    def difference(self, found: RegisteredVersion, known: RegisteredVersion) -> str:
        """Return a sentence about the difference of a version from the registry's; or nothing."""
        if found.id != known.id:
            return (
                f"{found.shown} has id {found.id} in the source, and id {known.id} in the registry"
            )
        if not self.same(found, known):
            return f"{found.shown} has another schema in the registry, with the same id {found.id}"
        if known.deleted and not found.deleted:
            return f"{found.shown} is deleted in the registry, but not in the source"
        return ""


def _canonical(found: RegisteredVersion) -> str:
    """Return a text that is equal for JSON of the same values; comparing it is fast."""
    try:
        return json.dumps(json.loads(found.schema.schema), sort_keys=True)
    except (ValueError, RecursionError):
        return found.schema.schema


def _fields(found: RegisteredVersion) -> tuple[Any, ...]:
    schema = found.schema
    references = sorted(
        (reference.name, reference.subject, reference.version) for reference in schema.references
    )
    return schema.schema_type, references, _compact(schema.metadata), _compact(schema.rule_set)


def _compact(value: Any) -> Any:
    """Return metadata as Penstock stores them, so that those of other registries are equal."""
    try:
        return compact(value) or None
    except RegistryError:
        return value


# Plan


def plan_import(source: Snapshot, target: Snapshot, *, skip_invalid: bool = False) -> ImportPlan:
    """Compare a source with a registry; return what has to change.

    With `skip_invalid`, versions with problems and those that refer to them are left out.
    """
    return _Planner(source, target).plan(skip_invalid=skip_invalid)


class _Planner:
    def __init__(self, source: Snapshot, target: Snapshot) -> None:
        self._source = source
        self._target = target
        self._comparison = Comparison(source, target)
        self._pending: dict[Key, RegisteredVersion] = {}
        self._deletions: dict[Key, RegisteredVersion] = {}
        self._problems: dict[Key, str] = {}
        self._present = 0

    def plan(self, *, skip_invalid: bool) -> ImportPlan:
        self._compare()
        for key, found in self._pending.items():
            self._validate(key, found)
        self._drop(self._problems)
        waves = self._waves()
        if skip_invalid:
            self._drop_referrers()
            waves = self._waves()
        return ImportPlan(
            waves=waves,
            deletions=waves_of(self._deletions)[::-1],
            configs=self._configs(),
            modes={
                scope: mode
                for scope, mode in self._source.modes.items()
                if scope and self._target.modes.get(scope) != mode
            },
            present=self._present,
            problems=list(self._problems.values()),
            skipped=set(self._problems),
            known_modes=self._target.modes,
        )

    def _compare(self) -> None:
        holders: dict[tuple[str, int], RegisteredVersion] = {}
        for known in self._target.versions.values():
            holders.setdefault((known.context, known.id), known)
        own: dict[tuple[str, int], RegisteredVersion] = {}
        for key, found in sorted(self._source.versions.items()):
            known_version = self._target.versions.get(key)
            place = found.context, found.id
            first = own.setdefault(place, found)
            if known_version is not None:
                problem = self._comparison.difference(found, known_version)
                self._present += not problem
            else:
                problem = self._taken(found, holders.get(place), first)
                self._pending[key] = found
            if problem:
                self._problems[key] = problem
            elif found.deleted and not (known_version is not None and known_version.deleted):
                self._deletions[key] = found

    def _taken(
        self, found: RegisteredVersion, holder: RegisteredVersion | None, first: RegisteredVersion
    ) -> str:
        """Return a sentence if the id of a version belongs to another schema; or nothing."""
        if holder is not None and not self._comparison.same(found, holder):
            return (
                f"id {found.id} of {found.shown} belongs to another schema in the registry, that"
                f" of {holder.shown}"
            )
        if not self._comparison.same_source(found, first):
            return (
                f"id {found.id} has two schemas in the source, those of {first.shown} and of"
                f" {found.shown}"
            )
        return ""

    def _validate(self, key: Key, found: RegisteredVersion) -> None:
        if key in self._problems:
            return
        try:
            self._comparison.source.parsed(found)
        except (InvalidSchema, RegistryError) as error:
            self._problems[key] = f"{found.shown} with id {found.id}: {error}"

    def _waves(self) -> Waves:
        while True:
            try:
                return waves_of(self._pending)
            except CycleError as error:
                cycle: list[Key] = error.args[1]
                for key in cycle:
                    found = self._pending[key]
                    self._problems[key] = f"{found.shown} refers to itself through its references"
                self._drop(self._problems)

    def _drop(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._pending.pop(key, None)
            self._deletions.pop(key, None)

    def _drop_referrers(self) -> None:
        """Leave out the versions that refer to a version that is left out."""
        gone = set(self._problems) - set(self._target.versions)
        while gone:
            referrers = {
                key: next(target for target in found.targets() if target in gone)
                for key, found in self._pending.items()
                if not gone.isdisjoint(found.targets())
            }
            for key, (subject, version) in referrers.items():
                self._problems[key] = (
                    f"{self._pending[key].shown} refers to {subject} version {version}, which is"
                    " left out"
                )
            self._drop(referrers)
            gone = set(referrers)

    def _configs(self) -> dict[str, Settings]:
        return {
            scope: config
            for scope, config in self._source.configs.items()
            if not contains(self._target.configs.get(scope, {}), config)
        }


def contains(known: Settings, config: Settings) -> bool:
    """Return whether a config has all fields of another one."""
    return all(known.get(name) == value for name, value in config.items())


def waves_of(versions: Mapping[Key, RegisteredVersion]) -> Waves:
    """Return versions so that each wave refers to earlier waves only; raises CycleError."""
    sorter = TopologicalSorter(
        {
            key: [target for target in found.targets() if target in versions]
            for key, found in versions.items()
        }
    )
    sorter.prepare()
    waves: Waves = []
    while sorter.is_active():
        ready = sorter.get_ready()
        waves.append([versions[key] for key in ready])
        sorter.done(*ready)
    return waves


def with_numbers(snapshot: Snapshot) -> Snapshot:
    """Replace references to the latest version of a subject by its number."""
    alive = (key for key, found in snapshot.versions.items() if not found.deleted)
    latest = dict(sorted(alive))
    versions = dict(snapshot.versions)
    for key, found in snapshot.versions.items():
        references = found.schema.references
        if any(reference.version == LATEST for reference in references):
            numbers = [
                latest.get(subject, LATEST) if version == LATEST else version
                for subject, version in found.targets()
            ]
            pairs = zip(references, numbers, strict=True)
            numbered = tuple(replace(one, version=number) for one, number in pairs)
            versions[key] = replace(found, schema=replace(found.schema, references=numbered))
    return Snapshot(versions=versions, configs=snapshot.configs, modes=snapshot.modes)


# Verification


class Verified(Struct, frozen=True, kw_only=True):
    """Result of a comparison after an import.

    `reformatted` counts texts that the registry formats in another way.
    """

    differences: list[str]
    versions: int
    reformatted: int


def verify(source: Snapshot, after: Snapshot, skipped: Collection[Key] = ()) -> Verified:
    """Compare a source with the registry after the import; the versions in `skipped` may lack."""
    comparison = Comparison(source, after)
    differences: list[str] = []
    reformatted = 0
    chosen = {key: found for key, found in source.versions.items() if key not in skipped}
    for key, found in chosen.items():
        known = after.versions.get(key)
        if known is None:
            differences.append(f"{found.shown} with id {found.id} is missing")
            continue
        problem = comparison.difference(found, known)
        if not problem and found.deleted and not known.deleted:
            problem = f"{found.shown} is not deleted in the registry"
        differences += [problem] if problem else []
        reformatted += found.schema.schema != known.schema.schema
    for scope, config in source.configs.items():
        if not contains(after.configs.get(scope, {}), config):
            differences.append(f"the config of {scope_name(scope)} differs from {dict(config)}")
    for scope, mode in source.modes.items():
        if scope and after.modes.get(scope) != mode:
            differences.append(f"the mode of {scope_name(scope)} is not {mode}")
    return Verified(differences=differences, versions=len(chosen), reformatted=reformatted)


def scope_name(scope: str) -> str:
    """Return the name of a scope of configs and modes, for messages."""
    if not scope:
        return "the registry"
    subject = parse_subject(scope)
    return f"subject {scope}" if subject.name else f"context {subject.context}"
