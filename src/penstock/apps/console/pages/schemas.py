"""Pages of schemas: subjects, versions, and the comparison of two versions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from msgspec import Struct

from penstock.apps.console.rendering import Pages
from penstock.apps.console.tables import Column, Filter, Table
from penstock.apps.schema.verdicts import pretty, unified
from penstock.base.errors import InvalidError
from penstock.base.http_routes import Routes
from penstock.base.settings import whole_number
from penstock.broker.admin.access import OPEN, Needs, caller_of
from penstock.registry.access import Caller, resource_of
from penstock.registry.compatibility import Finding
from penstock.registry.decisions import Compared
from penstock.registry.errors import InvalidVersion, RegistryError
from penstock.registry.service import SchemaRegistry
from penstock.registry.state import SchemaVersion
from penstock.registry.values import (
    GLOBAL,
    LATEST,
    VERSION_MAX,
    Config,
    Schema,
    Subject,
    parse_subject,
)

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

SHOWN_CHARS_MAX: Final = 100_000
"""Longest text of a schema that a page shows or compares."""
REFERRERS_MAX: Final = 100
"""Most referring versions that a page lists."""
LINES: Final = {"+": "added", "-": "removed", "@": "place"}
"""Classes of the lines of a comparison, by their first character."""


class RegistryOff(InvalidError):
    """Request for schemas to a broker without a schema registry."""

    code: ClassVar[str] = "resource_not_found"


class ListedSubject(Struct, frozen=True, kw_only=True):
    """Subject of the list; `deleted` means that all of its versions are deleted softly."""

    subject: Subject
    deleted: bool

    @property
    def name(self) -> str:
        return self.subject.qualified


class Summary(Struct, frozen=True, kw_only=True):
    """Newest version of a subject, and the number of its versions that are not deleted."""

    newest: SchemaVersion
    versions: int


class Referrers(Struct, frozen=True, kw_only=True):
    """Versions that refer to a version: those that the caller may see, and the number of others."""

    shown: Sequence[SchemaVersion]
    others: int


SUBJECTS: Final[Table[ListedSubject]] = Table(
    Column(name="name", title="Subject", key=lambda row: row.name),
    Column(name="type", title="Type"),
    Column(name="versions", title="Versions", number=True),
    Column(name="newest", title="Newest version", number=True),
    Column(name="id", title="Schema id", number=True),
    Column(name="level", title="Compatibility"),
    sort="name",
    text=lambda row: row.name,
    search="Search subjects",
    filters=(
        Filter(
            name="show",
            title="Show",
            choices={"live": "Subjects in use", "deleted": "Deleted subjects", "all": "All"},
            test=lambda row, value: value == "all" or row.deleted == (value == "deleted"),
            default="live",
        ),
    ),
)


def registry_caller(request: Request) -> Caller:
    """Return the caller of a request, with the rules of the registry for its rights."""
    caller = caller_of(request)
    return Caller(known=caller.known, rights=caller.rights, log=caller.log)


def version_number(text: str) -> int:
    """Parse a version's number; an empty text is `LATEST`. Raises InvalidVersion."""
    number = whole_number(text, VERSION_MAX) if text else LATEST
    if not number:
        raise InvalidVersion(text)
    return number


async def readable(registry: SchemaRegistry, request: Request) -> Subject:
    """Return the subject that the path names, if the caller may read it.

    A subject that this broker does not know may be new, so changes of other brokers are read first.

    Raises:
        SubjectNotFound: it does not exist.
        AuthorisationFailed: the caller may not describe its topic.
    """
    subject = parse_subject(request.path_params["subject"])
    registry_caller(request).check("describe", subject)
    try:
        registry.state.known(subject, deleted=True)
    except RegistryError:
        await registry.refresh()
        registry.state.known(subject, deleted=True)
    return subject


def referrers(registry: SchemaRegistry, caller: Caller, subject: Subject, number: int) -> Referrers:
    """Return the versions that refer to a version; deleted ones count, as for a deletion."""
    found = registry.state.referrers_of(subject, number, deleted=True)
    seen = [version for version in found if caller.sees(version.subject)]
    return Referrers(shown=seen[:REFERRERS_MAX], others=len(found) - len(seen[:REFERRERS_MAX]))


def properties(schema: Schema) -> list[tuple[str, str | None]]:
    """Return the metadata properties of a schema; the value of a sensitive one is None."""
    metadata = schema.metadata or {}
    found, sensitive = metadata.get("properties"), metadata.get("sensitive") or ()
    if not isinstance(found, dict):
        return []
    return [
        (name, None if name in sensitive else str(value)) for name, value in sorted(found.items())
    ]


def marked(changes: str) -> list[tuple[str, str]]:
    """Return the lines of a unified diff, without those of its names, with their classes."""
    return [(LINES.get(line[:1], ""), line) for line in changes.splitlines()[2:]]


class SchemasOff(Struct, frozen=True, kw_only=True):
    """Page of a broker without a schema registry."""

    pages: Pages

    routes: ClassVar[Routes[Any, Needs]] = Routes()

    @routes.add("GET /console/schemas", OPEN, SUBJECTS.parameters)
    async def off(self, request: Request) -> Response:
        """Explain how to enable the registry."""
        return self.pages.show(request, "schemas_off.html", title="Schemas")

    @routes.add("GET /console/schemas/{subject:path}", OPEN, ("version", "before", "after"))
    async def missing(self, request: Request) -> Response:
        raise RegistryOff("this broker has no schema registry. Set registry.enable = true")


class SchemaPages(Struct, frozen=True, kw_only=True):
    registry: SchemaRegistry
    pages: Pages

    routes: ClassVar[Routes[Any, Needs]] = Routes()

    @routes.add("GET /console/schemas", OPEN, SUBJECTS.parameters)
    async def subjects(self, request: Request) -> Response:
        """Show the subjects of all contexts that the caller may describe."""
        state, caller = self.registry.state, registry_caller(request)
        deleted = set(state.subjects(deleted_only=True))
        found = [
            ListedSubject(subject=subject, deleted=subject in deleted)
            for subject in state.subjects(deleted=True)
            if caller.sees(subject)
        ]
        view = SUBJECTS.view(request, found)
        return self.pages.show(
            request,
            "schemas.html",
            title="Schemas",
            table=view,
            summaries={row.subject: self._summary(row.subject) for row in view.rows},
            level_of=lambda subject: state.config(subject).compatibility_level,
            level=state.config(GLOBAL).compatibility_level,
        )

    def _summary(self, subject: Subject) -> Summary | None:
        state = self.registry.state
        newest = state.newest(subject) or state.newest(subject, deleted=True)
        if newest is None:
            return None
        return Summary(newest=newest, versions=len(state.versions_of(subject)))

    @routes.add("GET /console/schemas/{subject:path}", OPEN, ("version",))
    async def subject(self, request: Request) -> Response:
        """Show a subject with the text of one version, the newest without a parameter."""
        subject, caller = await readable(self.registry, request), registry_caller(request)
        state, rights = self.registry.state, caller_of(request).rights
        shown = self._version(subject, request.query_params.get("version", ""))
        text = shown.schema.schema
        allows = {
            operation: rights.allows(operation, *resource_of(subject))
            for operation in ("write", "delete", "alter_configs")
        }
        return self.pages.show(
            request,
            "schema.html",
            title=subject.qualified,
            subject=subject,
            shown=shown,
            versions=list(reversed(state.all_versions(subject, deleted=True))),
            text=await asyncio.to_thread(pretty, text) if len(text) <= SHOWN_CHARS_MAX else None,
            chars=len(text),
            references=[
                (reference, subject.sibling(reference.subject).qualified)
                for reference in shown.schema.references
            ],
            referrers=referrers(self.registry, caller, subject, shown.number),
            properties=properties(shown.schema),
            may=allows,
            **self._settings(caller, subject),
        )

    def _settings(self, caller: Caller, subject: Subject) -> dict[str, Any]:
        """Return level and mode of a subject, and whether they are its own; None if hidden."""
        state = self.registry.state
        if not caller.may_describe_configs(subject):
            return {"level": None, "mode": None, "own_level": False, "own_mode": False}
        own = state.configs.get(subject)
        return {
            "level": state.config(subject).compatibility_level,
            "mode": state.mode(subject),
            "own_level": own is not None and own.compatibility_level is not None,
            "own_mode": subject in state.modes,
        }

    def _version(self, subject: Subject, text: str) -> SchemaVersion:
        """Return a version; without a number the newest, a deleted one only if all are."""
        number, state = version_number(text), self.registry.state
        if number != LATEST:
            return state.version(subject, number, deleted=True)
        return state.newest(subject) or state.version(subject, LATEST, deleted=True)

    @routes.add("GET /console/schema-diff/{subject:path}", OPEN, ("before", "after"))
    async def compared(self, request: Request) -> Response:
        """Compare two versions: their texts, and whether each reads data of the other."""
        subject = await readable(self.registry, request)
        parameters = request.query_params
        after = self._version(subject, parameters.get("after", ""))
        numbers = list(self.registry.state.versions_of(subject, deleted=True))
        earlier = [number for number in numbers if number < after.number]
        before = self._version(
            subject, parameters.get("before", "") or str(max(earlier, default=after.number))
        )
        findings, problem = await self._findings(subject, before, after)
        return self.pages.show(
            request,
            "schema_diff.html",
            title=f"Compare versions of {subject.qualified}",
            subject=subject,
            numbers={str(number): f"Version {number}" for number in numbers},
            before=before,
            after=after,
            lines=await self._lines(before, after),
            findings=findings,
            problem=problem,
        )

    async def _findings(
        self, subject: Subject, before: SchemaVersion, after: SchemaVersion
    ) -> tuple[dict[str, Finding | None], str]:
        """Return the problems of both directions, and the reason if they cannot be compared."""
        config = Config(compatibility_level="FULL")
        try:
            made = await self.registry.prepared(subject, after.schema, normalize=False)
            verdict = await self.registry.verdict(made, Compared(earlier=[before], config=config))
        except RegistryError as error:
            return {}, str(error)
        found = {finding.reads: finding for finding in verdict.findings}
        return {"backward": found.get(True), "forward": found.get(False)}, ""

    async def _lines(
        self, before: SchemaVersion, after: SchemaVersion
    ) -> list[tuple[str, str]] | None:
        """Return the lines of the comparison with their classes; None if a text is too long."""
        texts = before.schema.schema, after.schema.schema
        if max(map(len, texts)) > SHOWN_CHARS_MAX:
            return None
        names = f"version {before.number}", f"version {after.number}"
        changes = await asyncio.to_thread(unified, *texts, names)
        return marked(changes)
