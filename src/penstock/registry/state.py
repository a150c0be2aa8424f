"""State of the schema registry in memory: its rows, and the indexes that requests read.

Every change of the registry is a set of rows (`RegistryRow`). `apply` takes rows in any order and
any number of times, so a broker reaches the same state as all others, whichever broker made a
change.

    kind         key                           value
    schema       GUID                          Schema
    version      [context, subject, version]   Version
    context      [context]                     highest id that was ever allocated
    config       [context, subject]            Config; an empty subject is the context
    mode         [context, subject]            mode
    association  [resource id, type]           Association
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal
from uuid import UUID

import msgspec
from msgspec import Struct

from penstock.control.values.registry import RegistryRow
from penstock.registry.errors import (
    RejectedSchema,
    SchemaNotFound,
    SubjectNotFound,
    VersionNotFound,
)
from penstock.registry.formats.schema import REFERENCES_MAX, Dependency, InvalidSchema
from penstock.registry.values import (
    DEFAULT_CONFIG,
    DEFAULT_CONTEXT,
    GLOBAL,
    LATEST,
    Association,
    Config,
    Mode,
    Reference,
    Schema,
    Subject,
    Version,
)

Kind = Literal["schema", "version", "context", "config", "mode", "association"]

VERSIONS_MAX: Final = 1_000_000
"""Most versions in a registry, over all subjects; a broker holds about 1 kB for each."""
BYTES_MAX: Final = 1 << 30
"""Most bytes of schema text in a registry, which every broker holds in memory."""

_TYPES: Final[Mapping[str, Any]] = {
    "schema": Schema,
    "version": Version,
    "context": int,
    "config": Config,
    "mode": Mode,
    "association": Association,
}
_encode = msgspec.json.encode
_decode = msgspec.json.decode


def row(kind: Kind, key: tuple[Any, ...], value: object | None) -> RegistryRow:
    """Return the row of a value; None deletes the row."""
    return RegistryRow(kind, _encode(key).decode(), None if value is None else _encode(value))


class SchemaVersion(Struct, frozen=True, kw_only=True):
    """A version with its subject and its schema."""

    subject: Subject
    number: int
    version: Version
    schema: Schema


class _Context:
    __slots__ = ("guids", "highest_id", "ids", "subjects")

    def __init__(self) -> None:
        self.highest_id = 0
        self.subjects: dict[str, dict[int, Version]] = {}
        self.guids: dict[int, UUID] = {}
        """GUID by id, of all ids that a version has."""
        self.ids: dict[UUID, dict[int, int]] = {}
        """By GUID: how many versions have each id. A GUID has several ids only after an import."""


class RegistryState:
    """Schemas, versions, configs, modes and associations of a registry, with their indexes."""

    def __init__(self) -> None:
        self.schemas: dict[UUID, Schema] = {}
        self.contexts: dict[str, _Context] = {}
        self.configs: dict[Subject, Config] = {}
        self.modes: dict[Subject, Mode] = {}
        self.associations: dict[tuple[str, str], Association] = {}
        self.versions = 0
        self.bytes = 0
        self._referrers: dict[tuple[Subject, int], dict[tuple[Subject, int], None]] = {}
        self._users: dict[UUID, dict[tuple[Subject, int], None]] = {}
        """Versions by the GUID of their schema."""

    # Changes

    def apply(self, rows: Iterable[RegistryRow]) -> None:
        """Apply changed rows. A schema exists before and after the versions that have it."""
        for kind, key, value in sorted(rows, key=_order):
            fields = _decode(key)
            found = None if value is None else _decode(value, type=_TYPES[kind])
            if kind == "schema":
                self._set_schema(UUID(fields[0]), found)
            elif kind == "version":
                self._set_version(Subject(fields[0], fields[1]), fields[2], found)
            elif kind == "context":
                self._context(fields[0]).highest_id = found or 0
            elif kind == "config":
                _set(self.configs, Subject(*fields), found)
            elif kind == "mode":
                _set(self.modes, Subject(*fields), found)
            else:
                _set(self.associations, (fields[0], fields[1]), found)

    def current(self, kind: str, key: str) -> RegistryRow:
        """Return the row that `apply` needs to restore the present value of a key."""
        fields = _decode(key)
        value: object | None
        if kind == "schema":
            value = self.schemas.get(UUID(fields[0]))
        elif kind == "version":
            value = self._versions(Subject(fields[0], fields[1])).get(fields[2])
        elif kind == "context":
            context = self.contexts.get(fields[0])
            value = None if context is None else context.highest_id
        elif kind == "config":
            value = self.configs.get(Subject(*fields))
        elif kind == "mode":
            value = self.modes.get(Subject(*fields))
        else:
            value = self.associations.get((fields[0], fields[1]))
        return RegistryRow(kind, key, None if value is None else _encode(value))

    def _context(self, name: str) -> _Context:
        return self.contexts.setdefault(name, _Context())

    def _set_schema(self, guid: UUID, schema: Schema | None) -> None:
        known = self.schemas.pop(guid, None)
        if known is not None:
            self.bytes -= len(known.schema)
        if schema is not None:
            self.schemas[guid] = schema
            self.bytes += len(schema.schema)

    def _set_version(self, subject: Subject, number: int, version: Version | None) -> None:
        context = self._context(subject.context)
        known = context.subjects.get(subject.name, {}).get(number)
        if known is not None:
            self._leave(context, subject, number, known)
        if version is not None:
            self._enter(context, subject, number, version)

    def _enter(self, context: _Context, subject: Subject, number: int, version: Version) -> None:
        self.versions += 1
        context.subjects.setdefault(subject.name, {})[number] = version
        context.guids[version.id] = version.guid
        context.highest_id = max(context.highest_id, version.id)
        counts = context.ids.setdefault(version.guid, {})
        counts[version.id] = counts.get(version.id, 0) + 1
        self._users.setdefault(version.guid, {})[subject, number] = None
        for reference in self._references(version.guid):
            target = subject.sibling(reference.subject), reference.version
            self._referrers.setdefault(target, {})[subject, number] = None

    def _leave(self, context: _Context, subject: Subject, number: int, version: Version) -> None:
        self.versions -= 1
        del context.subjects[subject.name][number]
        if not context.subjects[subject.name]:
            del context.subjects[subject.name]
        counts = context.ids[version.guid]
        counts[version.id] -= 1
        if not counts[version.id]:
            del counts[version.id]
            context.guids.pop(version.id, None)
        if not counts:
            del context.ids[version.guid]
        del self._users[version.guid][subject, number]
        if not self._users[version.guid]:
            del self._users[version.guid]
        for reference in self._references(version.guid):
            target = subject.sibling(reference.subject), reference.version
            referrers = self._referrers.get(target, {})
            referrers.pop((subject, number), None)
            if not referrers:
                self._referrers.pop(target, None)

    def _references(self, guid: UUID) -> tuple[Reference, ...]:
        schema = self.schemas.get(guid)
        return () if schema is None else schema.references

    # Reads

    def subjects(
        self, prefix: str = ":*:", *, deleted: bool = False, deleted_only: bool = False
    ) -> list[Subject]:
        """Return the subjects whose qualified names begin with `prefix`, sorted.

        The prefix `:*:` stands for all contexts; a prefix without context for the default one.
        """
        found: list[Subject] = []
        wildcard = prefix.startswith(":*:")
        for name, context in self.contexts.items():
            for subject, versions in context.subjects.items():
                found_subject = Subject(name, subject)
                named = (
                    subject.startswith(prefix[3:])
                    if wildcard
                    else found_subject.qualified.startswith(prefix)
                    and (prefix.startswith(":") or name == DEFAULT_CONTEXT)
                )
                alive = any(not version.deleted for version in versions.values())
                if named and (not alive if deleted_only else alive or deleted):
                    found.append(found_subject)
        return sorted(found, key=lambda subject: subject.qualified)

    def _versions(self, subject: Subject) -> Mapping[int, Version]:
        context = self.contexts.get(subject.context)
        return {} if context is None else context.subjects.get(subject.name, {})

    def versions_of(
        self, subject: Subject, *, deleted: bool = False, deleted_only: bool = False
    ) -> dict[int, Version]:
        """Return a subject's versions by number, in ascending order; empty if it has none."""
        return {
            number: version
            for number, version in sorted(self._versions(subject).items())
            if (version.deleted if deleted_only else deleted or not version.deleted)
        }

    def known(self, subject: Subject, *, deleted: bool = False) -> dict[int, Version]:
        """Return the versions of a subject; raises SubjectNotFound if it has none."""
        found = self.versions_of(subject, deleted=deleted)
        if not found:
            raise SubjectNotFound(subject.qualified)
        return found

    def version(self, subject: Subject, number: int, *, deleted: bool = False) -> SchemaVersion:
        """Return one version; `LATEST` is the newest.

        Raises:
            SubjectNotFound: the subject has no version.
            VersionNotFound: the subject does not have this version.
        """
        versions = self.known(subject, deleted=deleted)
        wanted = max(versions) if number == LATEST else number
        if wanted not in versions:
            raise VersionNotFound(number)
        return self._full(subject, wanted, versions[wanted])

    def _full(self, subject: Subject, number: int, version: Version) -> SchemaVersion:
        return SchemaVersion(
            subject=subject, number=number, version=version, schema=self.schemas[version.guid]
        )

    def all_versions(self, subject: Subject, *, deleted: bool = False) -> list[SchemaVersion]:
        found = self.versions_of(subject, deleted=deleted)
        return [self._full(subject, number, version) for number, version in found.items()]

    def place_of_id(self, schema_id: int, subject: Subject) -> tuple[str, UUID]:
        """Return the context and the GUID of an id.

        Looks in the context of `subject` first. For an unqualified subject with a name it looks in
        the other contexts too, for those in which the subject has the id.

        Raises:
            SchemaNotFound: no version has the id.
        """
        guid = self.guid(subject.context, schema_id)
        if guid is not None:
            return subject.context, guid
        if subject.context == DEFAULT_CONTEXT and subject.name:
            for place in self.contexts:
                for version in self._versions(Subject(place, subject.name)).values():
                    if version.id == schema_id:
                        return place, version.guid
        raise SchemaNotFound(schema_id)

    def guid(self, context: str, schema_id: int) -> UUID | None:
        """Return the GUID of an id in a context; None if no version has the id."""
        known = self.contexts.get(context)
        return None if known is None else known.guids.get(schema_id)

    def id_of(self, context: str, guid: UUID) -> int | None:
        """Return the id of a schema in a context; the smallest if it has several."""
        known = self.contexts.get(context)
        ids = None if known is None else known.ids.get(guid)
        return min(ids) if ids else None

    def highest_id(self, context: str) -> int:
        known = self.contexts.get(context)
        return 0 if known is None else known.highest_id

    def ids_of_guid(self, guid: UUID) -> list[tuple[str, int]]:
        """Return (context, id) of a schema, in each context that has it."""
        return sorted(
            (name, schema_id)
            for name, context in self.contexts.items()
            for schema_id in context.ids.get(guid, ())
        )

    def newest(
        self, subject: Subject, guid: UUID | None = None, *, deleted: bool = False
    ) -> SchemaVersion | None:
        """Return the newest version of a subject, of those that have a schema if it is given."""
        versions = self._versions(subject)
        numbers = (
            number
            for number, version in versions.items()
            if (deleted or not version.deleted) and guid in (None, version.guid)
        )
        number = max(numbers, default=None)
        return None if number is None else self._full(subject, number, versions[number])

    def users_of(
        self, context: str, schema_id: int, *, deleted: bool = False
    ) -> Iterator[SchemaVersion]:
        """Yield the versions in a context that have an id, in no particular order."""
        guid = self.guid(context, schema_id)
        for subject, number in () if guid is None else self._users.get(guid, ()):
            version = self._versions(subject)[number]
            if (
                subject.context == context
                and version.id == schema_id
                and (deleted or not version.deleted)
            ):
                yield self._full(subject, number, version)

    def uses(self, guid: UUID) -> int:
        """Return how many versions have a schema, deleted ones included."""
        return len(self._users.get(guid, ()))

    def referrers_of(
        self, subject: Subject, number: int, *, deleted: bool = False
    ) -> list[SchemaVersion]:
        """Return the versions whose schemas refer to a version."""
        found = sorted(self._referrers.get((subject, number), ()))
        return [
            self._full(referrer, place, version)
            for referrer, place in found
            if not (version := self._versions(referrer)[place]).deleted or deleted
        ]

    # Scopes

    def config(self, subject: Subject) -> Config:
        """Return the config of a subject, merged with its context's and the global one."""
        scopes = [self.configs.get(scope) for scope in scopes_of(subject)]
        result = DEFAULT_CONFIG
        for found in reversed(scopes):
            if found is not None:
                result = found.over(result)
        return result if scopes[0] is not None else msgspec.structs.replace(result, alias=None)

    def mode(self, subject: Subject) -> Mode:
        """Return the mode that applies to a subject. A global READONLY_OVERRIDE has precedence."""
        whole = self.modes.get(GLOBAL, "READWRITE")
        if whole == "READONLY_OVERRIDE":
            return whole
        for scope in scopes_of(subject):
            if scope in self.modes:
                return self.modes[scope]
        return whole

    def resolved(self, subject: Subject) -> Subject:
        """Return the subject that an alias stands for, or the subject itself."""
        config = self.configs.get(subject)
        if config is None or not config.alias:
            return subject
        return subject.sibling(config.alias)

    # References

    def dependencies(self, subject: Subject, references: Iterable[Reference]) -> list[Dependency]:
        """Return all schemas to which references lead, each before those that refer to it.

        Raises:
            RejectedSchema: a referenced version does not exist.
            InvalidSchema: there are more than `REFERENCES_MAX`.
        """
        found: dict[str, Dependency] = {}
        stack = [self._visit(subject, references)]
        open_names: list[str] = []
        while stack:
            step = next(stack[-1], None)
            if step is None:
                stack.pop()
                if open_names:
                    name = open_names.pop()
                    found[name] = found.pop(name)
                continue
            reference, place, schema = step
            if reference.name in found:
                continue
            if len(found) >= REFERENCES_MAX:
                raise InvalidSchema(
                    f"the schema refers to more than {REFERENCES_MAX} other schemas, directly or"
                    " through them; merge some of them"
                )
            found[reference.name] = Dependency(name=reference.name, text=schema.schema)
            open_names.append(reference.name)
            stack.append(self._visit(place, schema.references))
        return list(found.values())

    def _visit(
        self, subject: Subject, references: Iterable[Reference]
    ) -> Iterator[tuple[Reference, Subject, Schema]]:
        for reference in references:
            target = subject.sibling(reference.subject)
            versions = self.versions_of(target, deleted=True)
            alive = [number for number, version in versions.items() if not version.deleted]
            number = reference.version
            if number == LATEST and alive:
                number = max(alive)
            if number not in versions:
                raise RejectedSchema(
                    f"Invalid schema: the reference {reference.name!r} names subject"
                    f" '{reference.subject}' version {reference.version}, which does not exist."
                    " Register it first"
                )
            yield reference, target, self.schemas[versions[number].guid]


def _order(changed: RegistryRow) -> int:
    if changed.kind != "schema":
        return 1
    return 2 if changed.value is None else 0


def scopes_of(subject: Subject) -> list[Subject]:
    """Return a subject, its context and the whole registry, without repetitions."""
    return list(dict.fromkeys((subject, Subject(subject.context, ""), GLOBAL)))


def _set(table: dict[Any, Any], key: Any, value: Any) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value
