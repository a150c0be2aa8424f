"""Acts on schemas: check, register, set compatibility and mode, delete.

They are requests to the schema registry, which authorises a subject like its topic
(`registry/access.py`). The audit log has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.apps.console.formats import counted, path, query
from penstock.apps.console.forms import Form, InvalidField, form_of
from penstock.apps.console.pages.schemas import (
    Referrers,
    marked,
    readable,
    referrers,
    registry_caller,
    version_number,
)
from penstock.apps.console.rendering import Pages
from penstock.apps.schema.verdicts import unified
from penstock.base.errors import PenstockError
from penstock.base.http_routes import Routes
from penstock.base.settings import INT_MAX
from penstock.broker.admin.access import OPEN, Needs
from penstock.broker.admin_app import status_of
from penstock.registry import decisions
from penstock.registry.access import topic_of
from penstock.registry.compatibility import Verdict
from penstock.registry.errors import IncompatibleSchema
from penstock.registry.routes import TYPES, SchemaBody
from penstock.registry.service import SchemaRegistry
from penstock.registry.state import RegistryState, row
from penstock.registry.values import (
    GLOBAL,
    LEVELS,
    MODES,
    Config,
    Level,
    Mode,
    Reference,
    Schema,
    Subject,
    parse_subject,
)

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

AUDITED: Final = Needs(audited=True)
REFERENCES: Final = "References"
ALL_SUBJECTS: Final = "all subjects"
"""Text that confirms a change of the whole registry."""
INHERITED: Final = ""


class CheckedSchema(Struct, frozen=True, kw_only=True):
    """Result of a check: the versions that were compared, the level, and the verdict.

    `edit` has the lines of the difference from the given text to a compatible one, with their
    classes. It is empty if no such text is known.
    """

    level: Level
    versions: Sequence[int]
    verdict: Verdict
    edit: Sequence[tuple[str, str]]


class SchemaChanges(Struct, frozen=True, kw_only=True):
    registry: SchemaRegistry
    pages: Pages

    routes: ClassVar[Routes[Any, Needs]] = Routes()

    # -- check and register -----------------------------------------------------------------------

    @routes.add("GET /console/schema-new", OPEN, ("subject",))
    async def form(self, request: Request) -> Response:
        """Show the form for a schema, with the newest text of the subject if it has one."""
        name = request.query_params.get("subject", "")
        fields: dict[str, Sequence[str]] = {"subject": [name]}
        if name:
            subject = parse_subject(name)
            registry_caller(request).check("describe", subject)
            newest = self.registry.state.newest(subject)
            if newest is not None:
                fields |= _fields(newest.schema)
        return self._form(request, Form(fields))

    @routes.add("POST /console/schema-check", OPEN)
    async def check(self, request: Request) -> Response:
        """Compare a schema with the versions of its subject, without registering it."""
        form = form_of(request)
        try:
            checked = await self._checked(request, form)
        except PenstockError as error:
            return self._form(request, form, error)
        return self._form(request, form, checked=checked)

    async def _checked(self, request: Request, form: Form) -> CheckedSchema:
        subject, given = _given(form)
        state = self.registry.state
        subject = state.resolved(subject)
        registry_caller(request).check("describe", subject)
        made = await self.registry.prepared(subject, given, normalize=False)
        compared = decisions.compared(state, subject, made.source.schema)
        verdict = await self.registry.verdict(made, compared)
        names = "your schema", "proposed edit"
        edit = unified(given.schema, verdict.proposal, names) if verdict.proposal else ""
        return CheckedSchema(
            level=compared.config.compatibility_level or "NONE",
            versions=[version.number for version in compared.earlier],
            verdict=verdict,
            edit=marked(edit),
        )

    @routes.add("POST /console/schema-register", AUDITED)
    async def register(self, request: Request) -> Response:
        """Register a schema as a new version, unless the subject has it already."""
        form, caller = form_of(request), registry_caller(request)
        try:
            subject, given = _given(form)
            caller.check("write", subject)
            subject = self.registry.state.resolved(subject)
            caller.check("write", subject)
            found = await self.registry.register(subject, given)
        except IncompatibleSchema as error:
            checked = await self._checked(request, form)
            return self._form(request, form, status=error.status, checked=checked)
        except PenstockError as error:
            return self._form(request, form, error)
        return self.pages.done(
            path("schemas", subject.qualified) + query({"version": found.number}),
            f"Subject {subject.qualified} has the schema as version {found.number}, with id"
            f" {found.version.id}.",
        )

    def _form(
        self,
        request: Request,
        form: Form,
        error: PenstockError | None = None,
        *,
        status: int = 200,
        checked: CheckedSchema | None = None,
    ) -> Response:
        return self.pages.show(
            request,
            "schema_new.html",
            title="Register a schema",
            status=status if error is None else status_of(error),
            form=form,
            types={name: name for name in reversed(TYPES)},
            error=error,
            checked=checked,
        )

    # -- compatibility and mode -------------------------------------------------------------------

    @routes.add("GET /console/schema-config", OPEN)
    @routes.add("GET /console/schema-config/{subject:path}", OPEN)
    async def settings(self, request: Request) -> Response:
        """Show compatibility and mode of a subject, or of the whole registry without a subject."""
        return self._settings(request)

    @routes.add("POST /console/schema-config", AUDITED)
    @routes.add("POST /console/schema-config/{subject:path}", AUDITED)
    async def set_settings(self, request: Request) -> Response:
        form, scope = form_of(request), _scope(request)
        registry_caller(request).check("alter_configs", scope)
        try:
            if not scope.name:
                form.check_confirmed(ALL_SUBJECTS)
            if self.registry.state.mode(scope) in decisions.READ_ONLY:
                await self._set_mode(scope, form.text("mode"))
            await self._set_level(scope, form.text("level"))
            await self._set_mode(scope, form.text("mode"))
        except PenstockError as error:
            return self._settings(request, error)
        if not scope.name:
            return self.pages.done(path("schemas"), "The settings of all subjects were changed.")
        return self.pages.done(
            path("schemas", scope.qualified), f"The settings of {scope.qualified} were changed."
        )

    async def _set_level(self, scope: Subject, text: str) -> None:
        known = self.registry.state.configs.get(scope)
        before = INHERITED if known is None else known.compatibility_level or INHERITED
        if text == before:
            return
        if text == INHERITED and known is not None:
            await self.registry.change(partial(_without_level, scope=scope))
            return
        config = Config(compatibility_level=_word(text, LEVELS, "Compatibility"))
        await self.registry.change(partial(decisions.set_config, subject=scope, config=config))

    async def _set_mode(self, scope: Subject, text: str) -> None:
        if text == self.registry.state.modes.get(scope, INHERITED):
            return
        if text == INHERITED:
            decide = partial(decisions.delete_mode, subject=scope, recursive=False)
        else:
            mode: Mode = _word(text, MODES, "Mode")
            decide = partial(decisions.set_mode, subject=scope, mode=mode, force=False)
        await self.registry.change(decide)

    def _settings(self, request: Request, error: PenstockError | None = None) -> Response:
        scope, state = _scope(request), self.registry.state
        registry_caller(request).check("describe_configs", scope)
        own, wider = state.configs.get(scope), GLOBAL if scope.name else None
        inherited_level = "BACKWARD" if wider is None else state.config(wider).compatibility_level
        inherited_mode = "READWRITE" if wider is None else state.mode(wider)
        modes = [mode for mode in MODES if mode != "READONLY_OVERRIDE" or scope == GLOBAL]
        return self.pages.show(
            request,
            "schema_config.html",
            title=f"Settings of {scope.qualified or ALL_SUBJECTS}",
            status=200 if error is None else status_of(error),
            scope=scope,
            level=INHERITED if own is None else own.compatibility_level or INHERITED,
            mode=state.modes.get(scope, INHERITED),
            levels={INHERITED: f"Default ({inherited_level})", **{name: name for name in LEVELS}},
            modes={INHERITED: f"Default ({inherited_mode})", **{name: name for name in modes}},
            all_subjects=ALL_SUBJECTS,
            error=error,
        )

    # -- delete -----------------------------------------------------------------------------------

    @routes.add("GET /console/schema-delete/{subject:path}", OPEN, ("version", "permanent"))
    async def preview_delete(self, request: Request) -> Response:
        """Show the effect of a deletion of a subject or of one version."""
        return await self._delete_page(request, request.query_params)

    @routes.add("POST /console/schema-delete/{subject:path}", AUDITED)
    async def delete(self, request: Request) -> Response:
        """Delete a subject or one version; `permanent` removes what was deleted softly before."""
        form, caller = form_of(request), registry_caller(request)
        subject = parse_subject(request.path_params["subject"])
        caller.check("delete", subject)
        version, permanent = form.text("version"), form.text("permanent") == "true"
        name = subject.qualified
        try:
            form.check_confirmed(name)
            if version:
                number = await self.registry.change(
                    partial(
                        decisions.delete_version,
                        subject=subject,
                        number=version_number(version),
                        permanent=permanent,
                    )
                )
                deleted = f"version {number} of {name}"
            else:
                numbers = await self.registry.change(
                    partial(decisions.delete_subject, subject=subject, permanent=permanent)
                )
                deleted = f"{counted(len(numbers), 'version')} of {name}"
        except PenstockError as error:
            values = {"version": version, "permanent": "true" if permanent else ""}
            return await self._delete_page(request, values, error)
        gone = not self.registry.state.versions_of(subject, deleted=True)
        target = path("schemas") if gone else path("schemas", name)
        how = "Deleted permanently" if permanent else "Deleted softly, still to be read by id"
        return self.pages.done(target, f"{how}: {deleted}.")

    async def _delete_page(
        self, request: Request, values: Mapping[str, str], error: PenstockError | None = None
    ) -> Response:
        subject, caller = await readable(self.registry, request), registry_caller(request)
        caller.check("delete", subject)
        version, permanent = values.get("version", ""), values.get("permanent") == "true"
        state = self.registry.state
        affected = state.all_versions(subject, deleted=permanent)
        if version:
            number = version_number(version)
            affected = [state.version(subject, number, deleted=True)]
        users = {found.number: referrers(self.registry, caller, subject, found.number)
                 for found in affected}  # fmt: skip
        return self.pages.show(
            request,
            "schema_delete.html",
            title=f"Delete {subject.qualified}",
            status=200 if error is None else status_of(error),
            subject=subject,
            topic=topic_of(subject),
            version=version,
            permanent=permanent,
            affected=affected,
            users={number: found for number, found in users.items() if _blocks(found, subject)},
            own_settings=not version and (subject in state.configs or subject in state.modes),
            error=error,
        )


def _blocks(found: Referrers, subject: Subject) -> bool:
    """Return whether versions of other subjects refer to a version."""
    return bool(found.others or [user for user in found.shown if user.subject != subject])


def _without_level(state: RegistryState, scope: Subject) -> decisions.Change[Config]:
    """Remove the level of a config, and the whole config if nothing else is set."""
    decisions.check_writable(state, scope)
    rest = replace(state.configs.get(scope) or Config(), compatibility_level=None)
    changed = row("config", tuple(scope), None if rest == Config() else rest)
    return decisions.Change([changed], rest)


def _scope(request: Request) -> Subject:
    name = request.path_params.get("subject", "")
    return parse_subject(name) if name else GLOBAL


def _word(text: str, words: Sequence[Any], title: str) -> Any:
    if text not in words:
        raise InvalidField(f"{title} {text[:64]!r} must be one of {', '.join(words)}")
    return text


def _given(form: Form) -> tuple[Subject, Schema]:
    """Return the subject and the schema of a form.

    Raises:
        InvalidField: a reference is not of the form NAME=SUBJECT:VERSION, or the subject is empty.
        RegistryError: the subject's name, the type or the text is invalid.
    """
    name = form.text("subject")
    if not name:
        raise InvalidField("the schema needs a subject, such as orders-value")
    body = SchemaBody(
        schema=form.text("schema"),
        schema_type=form.text("type"),
        references=[_reference(line) for line in form.text("references").splitlines() if line],
    )
    return parse_subject(name), body.content()


def _reference(line: str) -> Reference:
    name, equals, target = line.strip().partition("=")
    subject, colon, version = target.rpartition(":")
    number = version_number(version) if version.isdecimal() else 0
    if not (equals and colon and name and subject and 0 < number <= INT_MAX):
        raise InvalidField(f"{REFERENCES}: {line[:200]!r} must read NAME=SUBJECT:VERSION")
    return Reference(name=name, subject=subject, version=number)


def _fields(schema: Schema) -> dict[str, Sequence[str]]:
    """Return the fields of a form with a schema."""
    lines = [f"{item.name}={item.subject}:{item.version}" for item in schema.references]
    return {
        "schema": [schema.schema],
        "type": [schema.schema_type],
        "references": ["\n".join(lines)],
    }
