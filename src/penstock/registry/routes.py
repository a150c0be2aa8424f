"""Handlers of the schema registry's requests.

Source: Confluent's Schema Registry API reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, Final, TypeVar, cast
from uuid import UUID

import msgspec
from msgspec import Struct

from penstock.base.http_routes import Routes
from penstock.base.settings import whole_number
from penstock.registry import decisions
from penstock.registry.access import CHANGES, READS, Effect
from penstock.registry.errors import (
    BadRequest,
    InvalidCompatibility,
    InvalidMode,
    InvalidRequest,
    InvalidVersion,
    NoSubjectConfig,
    NoSubjectMode,
    RejectedSchema,
    SchemaNotFound,
    SubjectNotFound,
    VersionNotFound,
)
from penstock.registry.formats.schema import InvalidSchema, SchemaType
from penstock.registry.http import Answer, Call
from penstock.registry.service import SchemaRegistry
from penstock.registry.state import RegistryState, SchemaVersion
from penstock.registry.values import (
    ID_MAX,
    LATEST,
    LEVELS,
    MODES,
    VERSION_MAX,
    Config,
    Reference,
    Schema,
    Subject,
    parse_subject,
)

TYPES: Final[tuple[SchemaType, ...]] = ("JSON", "PROTOBUF", "AVRO")
PAGE_MAX: Final = 10_000
"""Most items of a list if the client sets no limit for one page of `GET /schemas`."""

T = TypeVar("T")
B = TypeVar("B", bound=Struct)


class SchemaBody(Struct, rename="camel"):
    """Body of requests that carry a schema."""

    schema: str | None = None
    schema_type: str | None = None
    references: list[Reference] | None = None
    metadata: dict[str, Any] | None = None
    rule_set: dict[str, Any] | None = None
    id: int | None = None
    version: int | None = None

    def content(self) -> Schema:
        """Return the schema; raises RejectedSchema if it is empty or of an unknown type."""
        kind = (self.schema_type or "AVRO").upper()
        if kind not in TYPES:
            raise RejectedSchema(
                f"Invalid schema type {kind[:64]}: must be one of {', '.join(TYPES)}"
            )
        if not self.schema or not self.schema.strip():
            raise RejectedSchema("Empty schema: give the schema's text in the field schema")
        return Schema(
            schema=self.schema,
            schema_type=kind,
            references=tuple(self.references or ()),
            metadata=self.metadata or None,
            rule_set=self.rule_set or None,
        )


class ConfigBody(Config, frozen=True, kw_only=True, rename="camel"):
    """Body of a config. Clients name the level `compatibility`."""

    compatibility: str | None = None


class ModeBody(Struct):
    mode: str = ""


def decoded(call: Call, kind: type[B]) -> B:
    """Decode a JSON body; raises BadRequest with the field that is wrong."""
    try:
        return msgspec.json.decode(call.body or b"{}", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"The request body is not valid: {error}") from None


def subject_of(call: Call, name: str = "subject") -> Subject:
    return parse_subject(call.names[name], call.context)


def version_number(text: str) -> int:
    """Parse a version; `latest` and -1 are `LATEST`. Raises InvalidVersion."""
    if text in ("latest", "-1"):
        return LATEST
    number = whole_number(text, VERSION_MAX)
    if number is None or number == 0:
        raise InvalidVersion(text)
    return number


def schema_id_of(call: Call) -> int:
    found = whole_number(call.names["id"], ID_MAX)
    if found is None:
        raise SchemaNotFound(call.names["id"][:64])
    return found


def page(call: Call, items: Sequence[T], limit_default: int = -1) -> Sequence[T]:
    """Return the part of a list that the parameters offset and limit select."""
    try:
        offset = int(call.text("offset", "0")[:20])
        limit = int(call.text("limit", str(limit_default))[:20])
    except ValueError:
        raise InvalidRequest("offset and limit must be whole numbers") from None
    start = max(0, offset)
    return items[start : start + limit] if limit > 0 else items[start:]


def content(schema: Schema, text: str | None = None) -> dict[str, Any]:
    """Return a schema's fields, with another text if it is given. Avro is the type without one."""
    found: dict[str, Any] = msgspec.to_builtins(schema)
    if schema.schema_type == "AVRO":
        found.pop("schemaType", None)
    return found if text is None else {**found, "schema": text}


def full(found: SchemaVersion, text: str | None = None) -> dict[str, Any]:
    return {
        "subject": found.subject.qualified,
        "id": found.version.id,
        "version": found.number,
        "guid": str(found.version.guid),
        **content(found.schema, text),
        **({"deleted": True} if found.version.deleted else {}),
    }


class SchemaViews:
    """Schemas, subjects and versions."""

    routes: ClassVar[Routes[Any, Effect]] = Routes()

    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry

    @property
    def _state(self) -> RegistryState:
        return self._registry.state

    async def _formatted(self, call: Call, found: SchemaVersion) -> str | None:
        """Return the text in the format that the client requests; None for the stored one."""
        name = call.text("format")
        if not name:
            return None
        try:
            return await self._registry.formatted(found, name)
        except InvalidSchema as error:
            raise InvalidRequest(str(error)) from None

    @routes.add("GET /", READS)
    async def root(self, call: Call) -> Any:
        """Return an empty object."""
        return {}

    @routes.add("GET /schemas/types", READS)
    async def types(self, call: Call) -> Any:
        """Return the supported types of schemas."""
        return TYPES

    @routes.add("GET /schemas", READS)
    async def schemas(self, call: Call) -> Any:
        """Return schemas of all subjects, with their versions."""
        prefix, deleted = call.text("subjectPrefix", ":*:"), call.flag("deleted")
        found: list[SchemaVersion] = []
        for subject in self._subjects(call, prefix, deleted=deleted):
            versions = self._state.all_versions(subject, deleted=deleted)
            found += versions[-1:] if call.flag("latestOnly") else versions
        return [full(version) for version in page(call, found, PAGE_MAX)]

    @routes.add("GET /schemas/ids/{id}", READS)
    async def schema_by_id(self, call: Call) -> Any:
        """Return a schema by its id."""
        found = self._by_id(call)
        body = {
            **content(found.schema, await self._formatted(call, found)),
            "guid": str(found.version.guid),
        }
        if call.flag("fetchMaxId"):
            body["maxId"] = self._state.highest_id(found.subject.context)
        if call.text("subject"):
            body |= {
                "id": found.version.id,
                "subject": found.subject.qualified,
                "version": found.number,
            }
        return body

    def _by_id(self, call: Call) -> SchemaVersion:
        """Return a version with the id, of the requested subject if it has one."""
        schema_id = schema_id_of(call)
        subject = parse_subject(call.text("subject"), call.context)
        place, guid = self._state.place_of_id(schema_id, subject)
        named = self._state.newest(Subject(place, subject.name), guid, deleted=True)
        if named is not None and named.version.id == schema_id and call.caller.sees(named.subject):
            return named
        users = self._state.users_of(place, schema_id, deleted=True)
        return call.caller.first_visible(users, schema_id)

    @routes.add("GET /schemas/ids/{id}/schema", READS)
    async def text_by_id(self, call: Call) -> Any:
        """Return only the text of a schema."""
        found = self._by_id(call)
        text = await self._formatted(call, found)
        return Answer((found.schema.schema if text is None else text).encode())

    @routes.add("GET /schemas/ids/{id}/subjects", READS)
    async def subjects_by_id(self, call: Call) -> Any:
        """Return the subjects that have a schema's id."""
        users = self._users(call)
        return page(call, list(dict.fromkeys(user.subject.qualified for user in users)))

    @routes.add("GET /schemas/ids/{id}/versions", READS)
    async def versions_by_id(self, call: Call) -> Any:
        """Return the subjects and versions that have a schema's id."""
        users = [
            {"subject": user.subject.qualified, "version": user.number}
            for user in self._users(call)
        ]
        return page(call, users)

    def _users(self, call: Call) -> list[SchemaVersion]:
        schema_id = schema_id_of(call)
        subject = parse_subject(call.text("subject"), call.context)
        place, _ = self._state.place_of_id(schema_id, subject)
        users = [
            user
            for user in self._state.users_of(place, schema_id, deleted=call.flag("deleted"))
            if call.caller.sees(user.subject)
            and (not subject.name or user.subject.name == subject.name)
        ]
        return sorted(users, key=lambda user: (user.subject, user.number))

    @routes.add("GET /schemas/guids/{guid}", READS)
    async def schema_by_guid(self, call: Call) -> Any:
        """Return a schema by its GUID, which is the same in all contexts and clusters."""
        found = self._by_guid(call)
        return {
            **content(found.schema, await self._formatted(call, found)),
            "guid": str(found.version.guid),
        }

    def _by_guid(self, call: Call) -> SchemaVersion:
        try:
            guid = UUID(call.names["guid"])
        except ValueError:
            raise SchemaNotFound(call.names["guid"][:64]) from None
        ids = self._state.ids_of_guid(guid)
        if not ids:
            raise SchemaNotFound(guid)
        users = (
            user
            for context, schema_id in ids
            for user in self._state.users_of(context, schema_id, deleted=True)
        )
        return call.caller.first_visible(users, guid)

    @routes.add("GET /schemas/guids/{guid}/ids", READS)
    async def ids_by_guid(self, call: Call) -> Any:
        """Return a schema's id in each context."""
        guid = self._by_guid(call).version.guid
        return [
            {"context": context, "id": schema_id}
            for context, schema_id in self._state.ids_of_guid(guid)
        ]

    @routes.add("GET /contexts", READS)
    async def contexts(self, call: Call) -> Any:
        """Return the names of the contexts."""
        subjects = self._state.subjects(deleted=True)
        found = {subject.context for subject in subjects if call.caller.sees(subject)}
        return page(call, sorted({".", *found}))

    @routes.add("DELETE /", CHANGES)
    async def delete_context(self, call: Call) -> Any:
        """Delete the config and the mode of a context that has no subjects.

        The path is `/contexts/.name`, of which only the prefix is left here.
        """
        scope = Subject(call.context, "")
        call.caller.check("alter_configs", scope)
        await self._registry.change(partial(decisions.delete_context, scope=scope))
        return {}

    def _subjects(self, call: Call, prefix: str, **which: bool) -> list[Subject]:
        if call.context != "." and not prefix.startswith(f":{call.context}:"):
            prefix = f":{call.context}:{'' if prefix == ':*:' else prefix}"
        found = self._state.subjects(prefix, **which)
        return [subject for subject in found if call.caller.sees(subject)]

    @routes.add("GET /subjects", READS)
    async def subjects(self, call: Call) -> Any:
        """Return the names of the subjects."""
        found = self._subjects(
            call,
            call.text("subjectPrefix", ":*:"),
            deleted=call.flag("deleted"),
            deleted_only=call.flag("deletedOnly", "deleted_only"),
        )
        return page(call, [subject.qualified for subject in found])

    @routes.add("GET /subjects/{subject}/versions", READS)
    async def versions(self, call: Call) -> Any:
        """Return the version numbers of a subject."""
        subject = self._readable(call)
        as_negative = call.flag("deletedAsNegative")
        only = call.flag("deletedOnly", "deleted_only")
        found = self._state.versions_of(
            subject, deleted=as_negative or call.flag("deleted"), deleted_only=only
        )
        if not found and not (only and self._state.versions_of(subject)):
            raise SubjectNotFound(subject.qualified)
        numbers = [
            -number if as_negative and version.deleted else number
            for number, version in found.items()
        ]
        return page(call, numbers)

    def _readable(self, call: Call) -> Subject:
        subject = self._state.resolved(subject_of(call))
        call.caller.check("describe", subject)
        return subject

    def _version(self, call: Call) -> SchemaVersion:
        subject = self._readable(call)
        number = version_number(call.names["version"])
        return self._state.version(subject, number, deleted=call.flag("deleted"))

    @routes.add("GET /subjects/{subject}/versions/{version}", READS)
    async def version(self, call: Call) -> Any:
        """Return a version of a subject."""
        found = self._version(call)
        return full(found, await self._formatted(call, found))

    @routes.add("GET /subjects/{subject}/versions/{version}/schema", READS)
    async def version_text(self, call: Call) -> Any:
        """Return only the text of a version's schema."""
        found = self._version(call)
        text = await self._formatted(call, found)
        return Answer((found.schema.schema if text is None else text).encode())

    @routes.add("GET /subjects/{subject}/versions/{version}/referencedby", READS)
    async def referenced_by(self, call: Call) -> Any:
        """Return the ids of the schemas that refer to a version."""
        found = self._version(call)
        users = self._state.referrers_of(found.subject, found.number)
        return page(call, sorted({user.version.id for user in users}))

    @routes.add("GET /subjects/{subject}/metadata", READS)
    async def by_metadata(self, call: Call) -> Any:
        """Return the newest version with the given metadata properties."""
        subject = self._readable(call)
        parameters = call.request.query_params
        wanted = dict(zip(parameters.getlist("key"), parameters.getlist("value"), strict=False))
        self._state.known(subject, deleted=True)
        for found in reversed(self._state.all_versions(subject, deleted=call.flag("deleted"))):
            properties = (found.schema.metadata or {}).get("properties") or {}
            if all(properties.get(key) == value for key, value in wanted.items()):
                return full(found, await self._formatted(call, found))
        raise VersionNotFound(f"of subject '{subject.qualified}' with metadata {wanted}")

    @routes.add("POST /subjects/{subject}", READS)
    async def look_up(self, call: Call) -> Any:
        """Return the version of a subject that has the given schema."""
        subject = self._readable(call)
        body = decoded(call, SchemaBody)
        deleted = call.flag("deleted")
        self._state.known(subject, deleted=deleted)
        normalize = call.flag("normalize")
        made = await self._registry.prepared(subject, body.content(), normalize=normalize)
        found = self._state.newest(subject, made.guid, deleted=deleted)
        if found is None:
            raise SchemaNotFound
        return full(found, await self._formatted(call, found))

    @routes.add("POST /subjects/{subject}/versions", CHANGES)
    async def register(self, call: Call) -> Any:
        """Register a schema as a new version, unless the subject has it already."""
        subject = subject_of(call)
        call.caller.check("write", subject)
        body = decoded(call, SchemaBody)
        subject = self._state.resolved(subject)
        call.caller.check("write", subject)
        found = await self._registry.register(
            subject,
            body.content(),
            normalize=call.flag("normalize"),
            schema_id=None if body.id in (None, -1) else body.id,
            version=None if body.version in (None, -1, 0) else body.version,
        )
        return {
            "id": found.version.id,
            "version": found.number,
            "guid": str(found.version.guid),
            **content(found.schema, await self._formatted(call, found)),
        }

    @routes.add("DELETE /subjects/{subject}", CHANGES)
    async def delete_subject(self, call: Call) -> Any:
        """Delete all versions of a subject; return their numbers."""
        subject = subject_of(call)
        call.caller.check("delete", subject)
        decide = partial(
            decisions.delete_subject, subject=subject, permanent=call.flag("permanent")
        )
        return await self._registry.change(decide)

    @routes.add("DELETE /subjects/{subject}/versions/{version}", CHANGES)
    async def delete_version(self, call: Call) -> Any:
        """Delete a version of a subject; return its number."""
        subject = subject_of(call)
        call.caller.check("delete", subject)
        decide = partial(
            decisions.delete_version,
            subject=subject,
            number=version_number(call.names["version"]),
            permanent=call.flag("permanent"),
        )
        return await self._registry.change(decide)


class CompatibilityViews:
    """Checks of schemas, without registering them."""

    routes: ClassVar[Routes[Any, Effect]] = Routes()

    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry

    @routes.add("POST /compatibility/subjects/{subject}/versions", READS)
    async def with_all(self, call: Call) -> Any:
        """Return whether a schema is compatible with the versions that its config names."""
        return await self._checked(call, None)

    @routes.add("POST /compatibility/subjects/{subject}/versions/{version}", READS)
    async def with_version(self, call: Call) -> Any:
        """Return whether a schema is compatible with one version."""
        return await self._checked(call, version_number(call.names["version"]))

    async def _checked(self, call: Call, number: int | None) -> Any:
        state = self._registry.state
        subject = state.resolved(subject_of(call))
        call.caller.check("describe", subject)
        body, verbose = decoded(call, SchemaBody), call.flag("verbose")
        found = state.versions_of(subject)
        if number not in (None, LATEST, *found):
            raise VersionNotFound(number)
        try:
            made = await self._registry.prepared(
                subject, body.content(), normalize=call.flag("normalize")
            )
        except RejectedSchema as error:
            if verbose:
                return {"is_compatible": False, "messages": [str(error)]}
            raise
        compared = decisions.compared(state, subject, made.source.schema)
        if number is not None:
            earlier = [state.version(subject, number)] if found else []
            compared = msgspec.structs.replace(compared, earlier=earlier)
        verdict = await self._registry.verdict(made, compared)
        answer: dict[str, Any] = {"is_compatible": verdict.compatible}
        if verbose:
            level = compared.config.compatibility_level or "NONE"
            answer["messages"] = verdict.messages(level)
            if verdict.proposal:
                answer["proposal"] = verdict.proposal
        return answer


def shown_config(config: Config, name: str) -> dict[str, Any]:
    """Return a config's fields, with the level as `name`."""
    fields = cast("dict[str, Any]", msgspec.to_builtins(config))
    level = fields.pop("compatibilityLevel", None)
    return {name: level, **fields} if level is not None else fields


class ConfigViews:
    """Configs and modes of the registry, its contexts and subjects."""

    routes: ClassVar[Routes[Any, Effect]] = Routes()

    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry

    def _scope(self, call: Call) -> Subject:
        if "subject" in call.names:
            return subject_of(call)
        return Subject(call.context, "")

    @routes.add("GET /v1/scopes", READS)
    async def scopes(self, call: Call) -> Any:
        """Return all configs and modes that are set, by qualified subject; only Penstock has this.

        An empty subject is the whole registry, and `:.name:` a context.
        """
        state, allows = self._registry.state, call.caller.may_describe_configs
        return {
            "configs": {
                scope.qualified: shown_config(config, "compatibilityLevel")
                for scope, config in state.configs.items()
                if allows(scope)
            },
            "modes": {
                scope.qualified: mode for scope, mode in state.modes.items() if allows(scope)
            },
        }

    @routes.add("GET /config", READS)
    @routes.add("GET /config/{subject}", READS)
    async def config(self, call: Call) -> Any:
        """Return a config; with `defaultToGlobal` the one that applies if a subject has none."""
        scope = self._scope(call)
        call.caller.check("describe_configs", scope)
        state = self._registry.state
        found = state.configs.get(scope)
        if found is None and scope.name and not call.flag("defaultToGlobal"):
            raise NoSubjectConfig(scope.qualified)
        if found is None or not scope.name or call.flag("defaultToGlobal"):
            found = state.config(scope)
        return shown_config(found, "compatibilityLevel")

    @routes.add("PUT /config", CHANGES)
    @routes.add("PUT /config/{subject}", CHANGES)
    async def set_config(self, call: Call) -> Any:
        """Set fields of a config."""
        scope = self._scope(call)
        call.caller.check("alter_configs", scope)
        body = decoded(call, ConfigBody)
        config = _config(body)
        await self._registry.change(partial(decisions.set_config, subject=scope, config=config))
        return shown_config(config, "compatibility")

    @routes.add("DELETE /config", CHANGES)
    @routes.add("DELETE /config/{subject}", CHANGES)
    async def delete_config(self, call: Call) -> Any:
        """Delete a config; return it."""
        scope = self._scope(call)
        call.caller.check("alter_configs", scope)
        found = await self._registry.change(partial(decisions.delete_config, subject=scope))
        # Confluent's clients read compatibilityLevel, and those of Karapace compatibility.
        return shown_config(found, "compatibility") | shown_config(found, "compatibilityLevel")

    @routes.add("GET /mode", READS)
    @routes.add("GET /mode/{subject}", READS)
    async def mode(self, call: Call) -> Any:
        """Return a mode; with `defaultToGlobal` the one that applies if a subject has none."""
        scope = self._scope(call)
        call.caller.check("describe_configs", scope)
        state = self._registry.state
        if scope in state.modes:
            return {"mode": state.modes[scope]}
        if scope.name and not call.flag("defaultToGlobal"):
            raise NoSubjectMode(scope.qualified)
        return {"mode": state.mode(scope)}

    @routes.add("PUT /mode", CHANGES)
    @routes.add("PUT /mode/{subject}", CHANGES)
    async def set_mode(self, call: Call) -> Any:
        """Set a mode."""
        scope = self._scope(call)
        call.caller.check("alter_configs", scope)
        text = decoded(call, ModeBody).mode.upper()
        if text not in MODES:
            raise InvalidMode(f"Invalid mode {text[:64]!r}. Valid values are {', '.join(MODES)}")
        decide = partial(decisions.set_mode, subject=scope, mode=text, force=call.flag("force"))
        return {"mode": await self._registry.change(decide)}

    @routes.add("DELETE /mode", CHANGES)
    @routes.add("DELETE /mode/{subject}", CHANGES)
    async def delete_mode(self, call: Call) -> Any:
        """Delete a mode; return it."""
        scope = self._scope(call)
        call.caller.check("alter_configs", scope)
        decide = partial(decisions.delete_mode, subject=scope, recursive=call.flag("recursive"))
        return {"mode": await self._registry.change(decide)}


def _config(body: ConfigBody) -> Config:
    given = body.compatibility or body.compatibility_level
    level = given.upper() if given else None
    if level is not None and level not in LEVELS:
        raise InvalidCompatibility(
            "Invalid compatibility level. Valid values are"
            f" {', '.join(known.lower() for known in LEVELS)}"
        )
    fields = {name: getattr(body, name) for name in Config.__struct_fields__}
    return Config(**{**fields, "compatibility_level": level})


class ServerViews:
    """The registry itself."""

    routes: ClassVar[Routes[Any, Effect]] = Routes()

    def __init__(self, cluster_id: str, version: str) -> None:
        self._cluster_id = cluster_id
        self._version = version

    @routes.add("GET /v1/metadata/id", READS)
    async def identity(self, call: Call) -> Any:
        """Return the identity of the cluster whose registry this is."""
        scope = {
            "path": [],
            "clusters": {"kafka-cluster": self._cluster_id, "schema-registry-cluster": "penstock"},
        }
        return {"id": self._cluster_id, "scope": scope}

    @routes.add("GET /v1/metadata/version", READS)
    async def version(self, call: Call) -> Any:
        """Return the version of Penstock."""
        return {"version": self._version, "commitId": ""}
