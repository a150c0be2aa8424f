"""Content of a registry as commands move it: versions with their ids, configs and modes.

A snapshot is read from a registry with Confluent's HTTP interface, from a file (`files.py`), or
from a topic of another registry (`schemas_topic.py`). Subjects have qualified names, so that all
contexts are in one snapshot. The empty name stands for the whole registry, `:.name:` for a context.

Penstock's registry returns all configs and modes at once. Other registries are asked for each
subject. Some of them have no modes of subjects, and return READWRITE for each; such modes are
omitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from http import HTTPStatus
from typing import Any, ClassVar, Final
from uuid import UUID

import msgspec
from msgspec import Struct

from penstock.apps.schema.connection import MISSING, Connections
from penstock.base.errors import InvalidError
from penstock.client.errors import MalformedResponse
from penstock.client.schemas import RegistryRefused, SchemaClient, StoredSchema, stored_schema
from penstock.registry.state import RegistryState, row
from penstock.registry.values import Reference, Schema, Subject, Version, parse_subject

PAGE: Final = 1_000
"""Schemas of one request; Confluent's registry allows no more."""
ALL_CONTEXTS: Final = ":*:"

Key = tuple[str, int]
"""Qualified subject and version."""
Settings = Mapping[str, Any]
"""Config, with the field names of Confluent's interface."""


class RegisteredVersion(Struct, frozen=True, kw_only=True):
    """Version of a subject, with the id of its schema. `schema` has only the content."""

    subject: str
    version: int
    id: int
    schema: StoredSchema
    deleted: bool = False

    @property
    def key(self) -> Key:
        return self.subject, self.version

    @property
    def context(self) -> str:
        return parse_subject(self.subject).context

    @property
    def shown(self) -> str:
        return f"{self.subject} version {self.version}"

    def targets(self) -> Iterator[Key]:
        """Yield the versions to which the schema refers."""
        own = parse_subject(self.subject)
        for reference in self.schema.references:
            yield own.sibling(reference.subject).qualified, reference.version


class SeveralContexts(InvalidError):
    """Source with several contexts that was to be imported into one."""

    code: ClassVar[str] = "invalid_request"


class Snapshot(Struct, kw_only=True):
    """Content of a registry. Configs and modes are by qualified subject."""

    versions: dict[Key, RegisteredVersion] = {}
    configs: dict[str, Settings] = {}
    modes: dict[str, str] = {}

    def of_context(self, name: str) -> Snapshot:
        """Return the part that belongs to one context."""

        def belongs(subject: str) -> bool:
            return parse_subject(subject).context == name

        return Snapshot(
            versions={key: found for key, found in self.versions.items() if belongs(key[0])},
            configs={scope: found for scope, found in self.configs.items() if belongs(scope)},
            modes={scope: found for scope, found in self.modes.items() if belongs(scope)},
        )

    def moved(self, name: str) -> Snapshot:
        """Return the snapshot with everything in another context.

        Raises:
            SeveralContexts: it has versions, configs or modes of several contexts.
        """
        scopes = {*(key[0] for key in self.versions), *self.configs, *self.modes}
        contexts = sorted({parse_subject(scope).context for scope in scopes})
        if len(contexts) > 1:
            raise SeveralContexts(
                f"the source has the contexts {', '.join(contexts)}, and only one can be moved to"
                f" {name}. Choose one with --context"
            )

        def move(scope: str) -> str:
            return Subject(name, parse_subject(scope).name).qualified

        versions = [_moved(found, move(found.subject)) for found in self.versions.values()]
        return Snapshot(
            versions={found.key: found for found in versions},
            configs={move(scope): found for scope, found in self.configs.items()},
            modes={move(scope): found for scope, found in self.modes.items()},
        )

    @property
    def contexts(self) -> list[str]:
        return sorted({found.context for found in self.versions.values()})

    @property
    def ids(self) -> set[tuple[str, int]]:
        """Contexts and ids of all schemas."""
        return {(found.context, found.id) for found in self.versions.values()}


def _moved(found: RegisteredVersion, subject: str) -> RegisteredVersion:
    """Return a version under another subject; references within its context move with it."""
    references = tuple(
        msgspec.structs.replace(reference, subject=target.name)
        if (target := parse_subject(key[0])).context == found.context
        else reference
        for reference, key in zip(found.schema.references, found.targets(), strict=True)
    )
    schema = msgspec.structs.replace(found.schema, references=references)
    return msgspec.structs.replace(found, subject=subject, schema=schema)


def context_name(text: str) -> str:
    """Return the name of a context, which begins with a dot."""
    return text if text.startswith(".") else f".{text}"


def state_of(versions: Iterable[RegisteredVersion]) -> RegistryState:
    """Return a registry's state with versions, in which references can be resolved.

    GUIDs are only counted, so equal schemas have different ones.
    """
    state = RegistryState()
    for number, found in enumerate(versions, 1):
        subject, guid = parse_subject(found.subject), UUID(int=number)
        version = Version(id=found.id, guid=guid, deleted=found.deleted)
        schema = Schema(schema=found.schema.schema, references=references_of(found.schema))
        state.apply(
            [
                row("schema", (str(guid),), schema),
                row("version", (*subject, found.version), version),
            ]
        )
    return state


def references_of(schema: StoredSchema) -> tuple[Reference, ...]:
    return tuple(
        Reference(name=found.name, subject=found.subject, version=found.version)
        for found in schema.references
    )


# Reading a registry


def read_registry(connections: Connections) -> Snapshot:
    """Read all versions, configs and modes of a registry.

    Raises:
        PenstockError: the registry rejects a request, or does not answer.
    """
    versions = read_versions(connections)
    configs, modes = _scopes(connections, versions)
    return Snapshot(versions={found.key: found for found in versions}, configs=configs, modes=modes)


def read_versions(connections: Connections, prefix: str = ALL_CONTEXTS) -> list[RegisteredVersion]:
    """Return the versions of the subjects that begin with `prefix`, by subject and number.

    Versions that are deleted softly are included. Karapace's list of schemas lacks just these, so
    an inconsistent list is not used.
    """

    def pages(deleted: bool) -> list[StoredSchema]:
        return connections.call(lambda client: list(_pages(client, prefix, deleted=deleted)))

    try:
        alive = {(found.subject, found.version) for found in pages(deleted=False)}
        every = {(found.subject, found.version): found for found in pages(deleted=True)}
    except RegistryRefused as error:
        if error.status not in MISSING:
            raise
        return _by_subject(connections, prefix)
    except MalformedResponse:  # longer than the limit
        return _by_subject(connections, prefix)
    if not alive <= every.keys():
        return _by_subject(connections, prefix)
    versions = [
        _registered(found, deleted=key not in alive)
        for key, found in every.items()
        if _begins(found.subject or "", prefix)
    ]
    return sorted(versions, key=lambda found: found.key)


def _begins(subject: str, prefix: str) -> bool:
    """Return whether a subject begins with a prefix; registries without prefixes list all."""
    if prefix.startswith(ALL_CONTEXTS):
        return parse_subject(subject).name.startswith(prefix.removeprefix(ALL_CONTEXTS))
    return parse_subject(subject).qualified.startswith(prefix)


def _pages(client: SchemaClient, prefix: str, *, deleted: bool) -> Iterator[StoredSchema]:
    """Yield the schemas of all pages. A registry without pages returns everything at once."""
    seen: set[tuple[str | None, int | None]] = set()
    while True:
        listed = client.request(
            "GET", ("schemas",), subjectPrefix=prefix, deleted=deleted, offset=len(seen), limit=PAGE
        )
        page = [stored_schema(item) for item in listed]
        new = [found for found in page if (found.subject, found.version) not in seen]
        if not new:
            return
        seen.update((found.subject, found.version) for found in new)
        yield from new


def _registered(found: StoredSchema, *, deleted: bool) -> RegisteredVersion:
    return RegisteredVersion(
        subject=parse_subject(found.subject or "").qualified,
        version=found.version or 0,
        id=found.id or 0,
        schema=msgspec.structs.replace(found, id=None, guid=None, subject=None, version=None),
        deleted=deleted,
    )


def _by_subject(connections: Connections, prefix: str) -> list[RegisteredVersion]:
    """Read versions one by one, from a registry that has no consistent list of schemas."""
    subjects = connections.call(lambda client: client.subjects(deleted=True))
    chosen = [subject for subject in subjects if _begins(subject, prefix)]

    def numbers(client: SchemaClient, subject: str) -> list[tuple[str, int, bool]]:
        alive = set(numbers_of(client, subject))
        every = sorted(alive.union(numbers_of(client, subject, deleted=True)))
        return [(subject, number, number not in alive) for number in every]

    def version(client: SchemaClient, key: tuple[str, int, bool]) -> RegisteredVersion:
        subject, number, gone = key
        found = client.version(subject, number, deleted=gone)
        return _registered(
            msgspec.structs.replace(found, subject=subject, version=number), deleted=gone
        )

    keys = [key for found in connections.map(numbers, chosen) for key in found]
    return sorted(connections.map(version, keys), key=lambda found: found.key)


def numbers_of(client: SchemaClient, subject: str, *, deleted: bool = False) -> list[int]:
    """Return the versions of a subject; empty if it does not exist."""
    try:
        return client.versions(subject, deleted=deleted)
    except RegistryRefused as error:
        if error.status == HTTPStatus.NOT_FOUND:
            return []
        raise


# Configs and modes


class _Scopes(Struct):
    configs: dict[str, dict[str, Any]]
    modes: dict[str, str]


def _scopes(
    connections: Connections, versions: Iterable[RegisteredVersion]
) -> tuple[dict[str, Settings], dict[str, str]]:
    """Return the configs and modes that are set, by qualified subject."""
    try:
        found = connections.call(lambda client: client.request("GET", ("v1", "scopes")))
    except RegistryRefused as error:
        if error.status not in MISSING:
            raise
        return _scopes_one_by_one(connections, versions)
    scopes = msgspec.convert(found, _Scopes)
    return dict(scopes.configs), scopes.modes


def _scopes_one_by_one(
    connections: Connections, versions: Iterable[RegisteredVersion]
) -> tuple[dict[str, Settings], dict[str, str]]:
    subjects = sorted({found.subject for found in versions})
    contexts = sorted({Subject(parse_subject(name).context, "").qualified for name in subjects})
    scopes = list(dict.fromkeys(["", *contexts, *subjects]))

    def config(client: SchemaClient, scope: str) -> Settings | None:
        return read_scope(client, "config", scope)

    def mode(client: SchemaClient, scope: str) -> str | None:
        found = read_scope(client, "mode", scope)
        return None if found is None else str(found["mode"])

    configs = _own(zip(scopes, connections.map(config, scopes), strict=True))
    modes = connections.map(mode, scopes)
    if all(found == "READWRITE" for found in modes):
        return configs, {"": "READWRITE"}
    return configs, _own(zip(scopes, modes, strict=True))


def scope_path(kind: str, scope: str) -> tuple[str, ...]:
    """Return the path of a config or mode; the empty scope is the whole registry."""
    return (kind, scope) if scope else (kind,)


def read_scope(client: SchemaClient, kind: str, scope: str) -> dict[str, Any] | None:
    """Return the config or mode that is set for a subject; None if there is none."""
    try:
        found: dict[str, Any] = client.request("GET", scope_path(kind, scope))
    except RegistryRefused as error:
        if error.status in MISSING:
            return None
        raise
    return found


def read_effective(client: SchemaClient, kind: str, scope: str) -> dict[str, Any]:
    """Return the config or mode that applies to a scope, with the fields of wider scopes."""
    try:
        return dict(client.request("GET", scope_path(kind, scope), defaultToGlobal=True))
    except RegistryRefused:  # registries that do not know the parameter
        own = read_scope(client, kind, scope) or {}
        return {**(read_scope(client, kind, "") or {}), **own}


def _own(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Drop scopes without a value, and contexts that have the value of the whole registry."""
    found = {scope: value for scope, value in pairs if value is not None}
    return {
        scope: value
        for scope, value in found.items()
        if not scope or parse_subject(scope).name or value != found.get("")
    }
