"""Decisions of the schema registry: what a request changes, computed from the registry's state.

Each function returns the rows to store and the result for the caller, or raises a RegistryError. It
changes nothing itself. The service stores the rows if no other broker has changed the registry, and
otherwise decides again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from penstock.control.values.registry import RegistryRow
from penstock.registry.compatibility import is_transitive
from penstock.registry.errors import (
    AssociationConflict,
    AssociationNotFound,
    InvalidMode,
    InvalidSubject,
    NoSubjectMode,
    OperationNotPermitted,
    ReferenceExists,
    RejectedSchema,
    SubjectNotFound,
    SubjectNotSoftDeleted,
    SubjectSoftDeleted,
    VersionNotFound,
    VersionNotSoftDeleted,
    VersionSoftDeleted,
)
from penstock.registry.state import (
    BYTES_MAX,
    VERSIONS_MAX,
    RegistryState,
    SchemaVersion,
    row,
    scopes_of,
)
from penstock.registry.values import (
    GLOBAL,
    ID_MAX,
    LATEST,
    VERSION_MAX,
    Association,
    Config,
    Mode,
    Schema,
    Subject,
    Version,
    compact,
    joined_rules,
    joined_values,
    merged,
)

R = TypeVar("R")
READ_ONLY = ("READONLY", "READONLY_OVERRIDE")


class Change(Struct, Generic[R], frozen=True):
    """Rows to store, and the result to return once they are stored."""

    rows: Sequence[RegistryRow]
    result: R


class Candidate(Struct, frozen=True, kw_only=True):
    """Schema to register: its parsed content, and the id and version that an import gives."""

    subject: Subject
    schema: Schema
    guid: UUID
    schema_id: int | None = None
    version: int | None = None


class Compared(Struct, frozen=True, kw_only=True):
    """Versions with which a candidate must be compatible, and the config that decides how."""

    earlier: Sequence[SchemaVersion]
    config: Config

    @property
    def key(self) -> tuple[object, ...]:
        """Value that is equal for checks with equal results."""
        config = self.config
        guids = [(version.number, version.version.guid) for version in self.earlier]
        return config.compatibility_level, config.compatibility_policy, tuple(guids)


def compared(state: RegistryState, subject: Subject, schema: Schema) -> Compared:
    """Return the versions with which a new schema of a subject is compared.

    With a compatibility group, these are the versions with the same value of that property.
    """
    config = state.config(subject)
    level = config.compatibility_level or "NONE"
    group = config.compatibility_group
    if level == "NONE":
        return Compared(earlier=[], config=config)
    if not group and not is_transitive(level):
        newest = state.newest(subject)
        return Compared(earlier=[] if newest is None else [newest], config=config)
    earlier = state.all_versions(subject)
    if group:
        value = _property(schema, group)
        earlier = [version for version in earlier if _property(version.schema, group) == value]
    return Compared(earlier=earlier if is_transitive(level) else earlier[-1:], config=config)


def _property(schema: Schema, name: str) -> object:
    properties = (schema.metadata or {}).get("properties")
    return properties.get(name) if isinstance(properties, dict) else None


def register(state: RegistryState, candidate: Candidate) -> Change[SchemaVersion]:
    """Register a compatible schema, or return the version that already has it.

    Raises:
        OperationNotPermitted: the mode does not permit the registration, or the id is taken.
        RejectedSchema: the version does not follow the newest one, or the registry is full.
    """
    subject, guid = candidate.subject, candidate.guid
    importing = state.mode(subject) == "IMPORT"
    check_writable(state, subject)
    if not subject.name:
        raise InvalidSubject("The subject must have a name")
    given_id, given_version = candidate.schema_id, candidate.version
    known = state.newest(subject, guid)
    if known is not None and _is_same(known, given_id, given_version):
        return Change([], known)
    if given_id is not None and not importing:
        raise OperationNotPermitted(
            f"Subject '{subject.qualified}' is not in import mode, so the schema's id"
            f" {given_id} cannot be given. Omit the id, or set the mode to IMPORT"
        )
    if given_id is None and importing:
        raise OperationNotPermitted(
            f"Subject '{subject.qualified}' is in import mode, so the schema needs an id. Give the"
            " id, or set the mode to READWRITE"
        )
    number = _number(state, subject, given_version, importing=importing)
    schema_id = _schema_id(state, subject, guid, given_id)
    _check_room(state, candidate.schema)
    version = Version(id=schema_id, guid=guid)
    rows = [row("version", (*subject, number), version)]
    if guid not in state.schemas:
        rows.append(row("schema", (str(guid),), candidate.schema))
    if schema_id > state.highest_id(subject.context):
        rows.append(row("context", (subject.context,), schema_id))
    stored = state.schemas.get(guid, candidate.schema)
    return Change(
        rows, SchemaVersion(subject=subject, number=number, version=version, schema=stored)
    )


def _is_same(known: SchemaVersion, given_id: int | None, given_version: int | None) -> bool:
    return given_id in (None, known.version.id) and given_version in (None, known.number)


def _number(state: RegistryState, subject: Subject, given: int | None, *, importing: bool) -> int:
    newest = state.newest(subject, deleted=True)
    following = 1 if newest is None else newest.number + 1
    if following > VERSION_MAX:
        raise RejectedSchema(f"Subject '{subject.qualified}' has no version numbers left")
    if given is None or given == following:
        return following
    if not importing:
        raise RejectedSchema(
            f"Version {given} is not one more than the previous version {following - 1} of subject"
            f" '{subject.qualified}'. Omit the version, or give {following}"
        )
    if not 1 <= given <= VERSION_MAX:
        raise RejectedSchema(f"The version {given} must be between 1 and {VERSION_MAX}")
    if given in state.versions_of(subject, deleted=True):
        raise OperationNotPermitted(
            f"Subject '{subject.qualified}' already has a version {given} with another schema or"
            " id. Delete it permanently before the import"
        )
    return given


def _schema_id(state: RegistryState, subject: Subject, guid: UUID, given: int | None) -> int:
    if given is None:
        known = state.id_of(subject.context, guid)
        given = state.highest_id(subject.context) + 1 if known is None else known
    if not 0 <= given <= ID_MAX:
        raise RejectedSchema(
            f"The schema's id {given} must be between 0 and {ID_MAX}, since records have four"
            " bytes for it. Use another context if its ids are used up"
        )
    holder = state.guid(subject.context, given)
    if holder not in (None, guid):
        raise OperationNotPermitted(
            f"Overwriting the schema with id {given} is not permitted. Import into an empty"
            " context, or under another id"
        )
    return given


def _check_room(state: RegistryState, schema: Schema) -> None:
    if state.versions >= VERSIONS_MAX:
        raise RejectedSchema(
            f"The registry has {state.versions} versions; the limit is {VERSIONS_MAX}. Delete"
            " unused subjects permanently"
        )
    if state.bytes + len(schema.schema) > BYTES_MAX:
        raise RejectedSchema(
            f"The registry holds {state.bytes} bytes of schemas; the limit is {BYTES_MAX}. Delete"
            " unused subjects permanently"
        )


def check_writable(state: RegistryState, subject: Subject) -> None:
    """Raise OperationNotPermitted if the mode of a subject is read-only."""
    if state.mode(subject) in READ_ONLY:
        raise OperationNotPermitted(
            f"Subject '{subject.qualified or '(all)'}' is in read-only mode. Set its mode to"
            " READWRITE"
        )


# Deletion


def delete_subject(state: RegistryState, subject: Subject, *, permanent: bool) -> Change[list[int]]:
    """Delete all versions of a subject, and its config and mode; return the version numbers.

    The first deletion marks the versions. A permanent one removes those that are marked.
    """
    check_writable(state, subject)
    every = state.versions_of(subject, deleted=True)
    alive = state.versions_of(subject)
    if not every:
        raise SubjectNotFound(subject.qualified)
    if permanent and alive:
        raise SubjectNotSoftDeleted(subject.qualified)
    if not permanent and not alive:
        raise SubjectSoftDeleted(subject.qualified)
    rows: list[RegistryRow] = []
    for number, version in (every if permanent else alive).items():
        _check_unused(state, subject, number, permanent=permanent, whole=True)
        rows.append(_deleted(subject, number, version, permanent=permanent))
    if subject in state.configs:
        rows.append(row("config", tuple(subject), None))
    if subject in state.modes:
        rows.append(row("mode", tuple(subject), None))
    if permanent:
        rows += _unused_schemas(state, list(every.values()))
    return Change(rows, list(every if permanent else alive))


def delete_version(
    state: RegistryState, subject: Subject, number: int, *, permanent: bool
) -> Change[int]:
    """Delete one version; return its number. `LATEST` is the newest one."""
    check_writable(state, subject)
    every = state.known(subject, deleted=True)
    alive = state.versions_of(subject)
    if number == LATEST:
        if not alive:
            raise SubjectSoftDeleted(subject.qualified)
        number = max(alive)
    if number not in every:
        raise VersionNotFound(number)
    if permanent and number in alive:
        raise VersionNotSoftDeleted(subject.qualified, number)
    if not permanent and number not in alive:
        raise VersionSoftDeleted(subject.qualified, number)
    _check_unused(state, subject, number, permanent=permanent, whole=False)
    rows = [_deleted(subject, number, every[number], permanent=permanent)]
    if permanent:
        rows += _unused_schemas(state, [every[number]])
    return Change(rows, number)


def _check_unused(
    state: RegistryState, subject: Subject, number: int, *, permanent: bool, whole: bool
) -> None:
    """Raise ReferenceExists if another schema refers to a version.

    Deleted referrers prevent a permanent deletion, since their schemas can still be read by id.
    `whole` ignores referrers of the same subject, all of whose versions are deleted.
    """
    for referrer in state.referrers_of(subject, number, deleted=permanent):
        if not (whole and referrer.subject == subject):
            name = f"subject '{referrer.subject.qualified}' version {referrer.number}"
            raise ReferenceExists(subject.qualified, number, name)


def _deleted(subject: Subject, number: int, version: Version, *, permanent: bool) -> RegistryRow:
    marked = None if permanent else replace(version, deleted=True)
    return row("version", (*subject, number), marked)


def _unused_schemas(state: RegistryState, gone: Sequence[Version]) -> list[RegistryRow]:
    """Return the deletion of the schemas that no version has without `gone`."""
    counts = Counter(version.guid for version in gone)
    unused = [guid for guid, count in counts.items() if state.uses(guid) == count]
    return [row("schema", (str(guid),), None) for guid in unused]


# Configs and modes


def set_config(state: RegistryState, subject: Subject, config: Config) -> Change[Config]:
    """Replace fields of a config; fields that are None keep their value."""
    check_writable(state, subject)
    known = state.configs.get(subject)
    merged = (
        config if known is None else replace(config.over(known), alias=config.alias or known.alias)
    )
    return Change([row("config", tuple(subject), merged)], merged)


def delete_config(state: RegistryState, subject: Subject) -> Change[Config]:
    """Delete a config, so that the wider scope's applies; return the deleted one."""
    check_writable(state, subject)
    known = state.configs.get(subject)
    if known is None:
        if subject.name:
            raise SubjectNotFound(subject.qualified)
        known = state.config(subject)
    return Change([row("config", tuple(subject), None)], known)


def set_mode(state: RegistryState, subject: Subject, mode: Mode, *, force: bool) -> Change[Mode]:
    """Set a mode. IMPORT needs `force` if schemas exist, since their ids could be taken."""
    if mode == "READONLY_OVERRIDE" and subject != GLOBAL:
        raise InvalidMode("The mode READONLY_OVERRIDE can only be set for the whole registry")
    if (
        mode == "IMPORT"
        and state.mode(subject) != "IMPORT"
        and not force
        and _has_versions(state, subject)
    ):
        raise OperationNotPermitted(
            f"Cannot import into '{subject.qualified or '(all)'}', since it has schemas. Delete"
            " them permanently, or set the mode with force=true"
        )
    return Change([row("mode", tuple(subject), mode)], mode)


def delete_context(state: RegistryState, scope: Subject) -> Change[None]:
    """Delete the config and the mode of a context. Its next schema gets a new id nevertheless."""
    if scope == GLOBAL:
        raise OperationNotPermitted("The default context cannot be deleted. Name another one")
    if _has_versions(state, scope):
        raise OperationNotPermitted(
            f"Context '{scope.context}' has subjects. Delete them permanently first"
        )
    rows = [row("config", tuple(scope), None)] if scope in state.configs else []
    if scope in state.modes:
        rows.append(row("mode", tuple(scope), None))
    return Change(rows, None)


def _has_versions(state: RegistryState, subject: Subject) -> bool:
    if subject.name:
        return bool(state.versions_of(subject, deleted=True))
    prefix = f":{subject.context}:" if subject != GLOBAL else ""
    return bool(state.subjects(prefix, deleted=True))


def delete_mode(state: RegistryState, subject: Subject, *, recursive: bool) -> Change[Mode]:
    """Delete a mode, so that the wider scope's applies; return the deleted one.

    `recursive` also deletes the modes of all subjects of a context.
    """
    known = state.modes.get(subject)
    if known is None and subject.name:
        raise NoSubjectMode(subject.qualified)
    gone = [subject]
    if recursive and not subject.name:
        gone += [scope for scope in state.modes if subject in scopes_of(scope) and scope != subject]
    rows = [row("mode", tuple(scope), None) for scope in gone if scope in state.modes]
    return Change(rows, known or state.mode(subject))


# Associations


def associate(
    state: RegistryState, associations: Sequence[Association], *, replace_existing: bool
) -> Change[None]:
    """Store associations of a resource.

    Raises:
        AssociationConflict: the resource has another one of the same type, and it is frozen or
            `replace_existing` is false; or another resource has a STRONG one with the subject.
    """
    for wanted in associations:
        known = state.associations.get((wanted.resource_id, wanted.association_type))
        if known is not None and known != wanted and (known.frozen or not replace_existing):
            raise AssociationConflict(
                f"Resource {wanted.resource_name!r} already has an association of type"
                f" {wanted.association_type!r} with subject '{known.subject}'"
                + (", which is frozen" if known.frozen else ". Use PUT to replace it")
            )
        for other in state.associations.values():
            same = other.resource_id == wanted.resource_id
            strong = "STRONG" in (other.lifecycle, wanted.lifecycle)
            if other.subject == wanted.subject and not same and strong:
                raise AssociationConflict(
                    f"Subject '{wanted.subject}' is associated with resource"
                    f" {other.resource_name!r}, and a STRONG association is exclusive. Use the"
                    " lifecycle WEAK for both, or another subject"
                )
    return Change([row("association", item.key, item) for item in associations], None)


def dissociate(
    state: RegistryState,
    resource_id: str,
    resource_type: str | None,
    types: Sequence[str],
    *,
    cascade: bool,
) -> Change[None]:
    """Delete the associations of a resource; with `cascade` also the subjects of STRONG ones."""
    found = [
        item
        for (identifier, kind), item in state.associations.items()
        if identifier == resource_id
        and (not types or kind in types)
        and resource_type in (None, item.resource_type)
    ]
    if not found:
        raise AssociationNotFound(f"Resource {resource_id!r} has no such association")
    rows = [row("association", item.key, None) for item in found]
    for item in found:
        if cascade and item.lifecycle == "STRONG":
            subject = GLOBAL.sibling(item.subject)
            if state.versions_of(subject):
                rows += delete_subject(state, subject, permanent=False).rows
    return Change(rows, None)


def with_defaults(schema: Schema, config: Config) -> Mapping[str, Any]:
    """Return the metadata and rule set of a schema, merged with those of a config."""
    metadata = merged(
        schema.metadata, config.default_metadata, config.override_metadata, joined_values
    )
    rules = merged(schema.rule_set, config.default_rule_set, config.override_rule_set, joined_rules)
    return {"metadata": compact(metadata) or None, "rule_set": compact(rules) or None}
