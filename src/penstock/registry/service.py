"""Service of the schema registry: holds its state, and performs changes by compare-and-set.

Each broker holds all rows in memory, and answers reads from there. It looks for changes of other
brokers every `POLL_SECONDS`, when a request does not find something, and before it repeats a
change. There is no leader: a change names the version of the registry that it was decided by, and
the database rejects it if another broker was faster. Concurrent changes of one broker are stored
together.

A schema is parsed, and compared with earlier versions, before its registration is decided. The
decision is repeated if the versions to compare have changed meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeVar

from msgspec.structs import replace

from penstock.base.errors import PenstockError, RetriableError
from penstock.base.metrics import Metrics, Sample, counter, gauge
from penstock.base.pause import pause
from penstock.control.values.registry import RegistryRow, StaleRegistry
from penstock.registry import decisions
from penstock.registry.compatibility import Verdict
from penstock.registry.decisions import Candidate, Change, Compared
from penstock.registry.errors import IncompatibleSchema, MalformedSchema, RejectedSchema
from penstock.registry.formats.schema import InvalidSchema
from penstock.registry.schemas import Prepared, Schemas, Source, Terms
from penstock.registry.staging import Decide, StagedRegistry
from penstock.registry.state import RegistryState, SchemaVersion
from penstock.registry.values import LATEST, Reference, Schema, Subject

if TYPE_CHECKING:
    from penstock.control import ControlPlane

logger = logging.getLogger(__name__)

POLL_SECONDS: Final = 0.25
"""Interval at which a broker looks for changes of others."""
ATTEMPTS_MAX: Final = 50
"""Attempts of a change. A concurrent change of another broker fails an attempt."""
WAITING_CHANGES_MAX: Final = 5_000
"""Changes that may wait to be stored."""

R = TypeVar("R")


class RegistryMetrics(Metrics, prefix="penstock_schema_registry_"):
    subjects = gauge("subjects", "Subjects, soft-deleted ones included.")
    versions = gauge("versions", "Versions of all subjects, soft-deleted ones included.")
    schema_bytes = gauge("schema_bytes", "Size of all schemas' texts.")
    changes = counter("changes_total", "Changes that were stored by this process.")
    conflicts = counter(
        "conflicts_total", "Changes that were decided again, because another process was faster."
    )
    incompatible = counter(
        "incompatible_total", "Registrations that were rejected as incompatible."
    )


class TooManyChanges(RetriableError):
    """Rejection of a change because too many others wait to be stored."""

    code: ClassVar[str] = "throttling_quota_exceeded"


class _Pending(NamedTuple):
    """A change that waits: its decision, and the future for its result."""

    decide: Decide
    future: asyncio.Future[Any]


class _Changed(Exception):
    """Raised by a decision whose checks were made against versions that changed since."""


class SchemaRegistry:
    """The registry of one broker."""

    def __init__(self, control: ControlPlane) -> None:
        self._control = control
        self._staging = StagedRegistry()
        self.state = self._staging.state
        """Committed state, which requests read."""
        self._waiting: list[_Pending] = []
        self._writer: asyncio.Task[None] | None = None
        self._poller: asyncio.Task[None] | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()
        """Held while rows are read or stored, so that `state` takes them in order."""
        self._schemas = Schemas()
        self._metrics = RegistryMetrics()

    @property
    def generation(self) -> int:
        """Number of changes of `state`; responses that depend on it can be cached."""
        return self._staging.generation

    def samples(self) -> Iterator[Sample]:
        """Return the metrics' samples for the registry of metrics."""
        state, metrics = self.state, self._metrics
        metrics.subjects = sum(len(context.subjects) for context in state.contexts.values())
        metrics.versions, metrics.schema_bytes = state.versions, state.bytes
        return metrics.samples()

    async def start(self) -> None:
        """Read all rows; raises PenstockError if the control plane does not answer."""
        await self.refresh()
        self._poller = asyncio.get_running_loop().create_task(self._poll())

    async def stop(self) -> None:
        """Finish the changes that wait, and stop looking for others."""
        if self._poller is not None:
            self._poller.cancel()
            await asyncio.wait({self._poller})
        if self._writer is not None:
            await asyncio.wait({self._writer})
        self._schemas.close()

    # Reading changes of other brokers

    async def refresh(self) -> None:
        """Read the rows that changed before this call. Concurrent calls share one read."""
        if self._refreshing is not None:  # its read may have begun before the change
            await asyncio.wait({self._refreshing})
        if self._refreshing is None:
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh())
            self._refreshing.add_done_callback(self._refreshed)
        await asyncio.shield(self._refreshing)

    def _refreshed(self, task: asyncio.Task[None]) -> None:
        self._refreshing = None
        if not task.cancelled():
            task.exception()  # each caller gets it

    async def _refresh(self) -> None:
        async with self._turn:
            if await self._control.registry_version() > self._staging.version:
                await self._read()

    async def _read(self) -> None:
        version, after = self._staging.version, None
        while True:
            page = await self._control.registry_rows(version, after)
            self._staging.receive([changed for _, changed in page.rows])
            if not page.more:
                self._staging.version = max(self._staging.version, page.version)
                return
            version, last = page.rows[-1]
            after = (last.kind, last.key)

    async def _poll(self) -> None:
        silent = False
        while True:
            await pause(POLL_SECONDS)
            try:
                await self.refresh()
                silent = False
            except PenstockError as error:
                if not silent:
                    logger.warning("cannot read changes of the schema registry: %s", error)
                silent = True

    # Changing

    async def change(self, decide: Callable[[RegistryState], Change[R]]) -> R:
        """Decide a change by the newest state, and store it; return its result.

        `decide` may be called several times.

        Raises:
            RegistryError: the decision rejects the change.
            TooManyChanges: too many changes wait.
            PenstockError: the control plane does not answer, or others are always faster.
        """
        if len(self._waiting) >= WAITING_CHANGES_MAX:
            raise TooManyChanges(
                f"{WAITING_CHANGES_MAX} changes of the schema registry are waiting. Try again"
            )
        pending = _Pending(decide, asyncio.get_running_loop().create_future())
        self._waiting.append(pending)
        if self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(self._write())
        result: R = await pending.future
        return result

    async def _write(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                try:
                    async with self._turn:
                        await self._store(batch)
                except Exception as error:
                    for pending in batch:
                        if not pending.future.done():
                            pending.future.set_exception(error)
        finally:
            self._writer = None

    async def _store(self, batch: list[_Pending]) -> None:
        """Decide changes in order, store all rows at once, and set the results.

        Rejected changes end with their first attempt only if no other broker was faster.
        """
        staging = self._staging
        for _ in range(ATTEMPTS_MAX):
            decided = staging.decide(pending.decide for pending in batch)
            try:
                version = await self._stored(decided.rows)
            except BaseException as error:
                staging.set_back(decided.rows)
                if not isinstance(error, StaleRegistry):
                    raise
                self._metrics.conflicts += 1
                await self._read()
                continue
            staging.commit(decided.rows, version)
            for pending, result in zip(batch, decided.results, strict=False):
                _finish(pending.future, result)
            self._waiting[:0] = batch[len(decided.results) :]
            return
        raise StaleRegistry(staging.version, -1)

    async def _stored(self, rows: Sequence[RegistryRow]) -> int:
        """Store rows at the known version; return the new one. Without rows, only compare it."""
        expected = self._staging.version
        if rows:
            version = await self._control.write_registry_rows(rows, expected=expected)
            self._metrics.changes += 1
            return version
        found = await self._control.registry_version()
        if found != expected:
            raise StaleRegistry(expected, found)
        return found

    # Schemas

    def _source(self, subject: Subject, schema: Schema) -> Source:
        """Return a schema with its references; raises RejectedSchema if one does not exist."""
        try:
            dependencies = self.state.dependencies(subject, schema.references)
        except InvalidSchema as error:
            raise RejectedSchema(f"Invalid schema: {error}") from None
        return Source(schema=schema, dependencies=dependencies)

    async def formatted(self, version: SchemaVersion, name: str) -> str:
        """Return the text of a version in an output format.

        Raises:
            InvalidSchema: its type does not have the format, or it was imported and is malformed.
        """
        return await self._schemas.format(self._source(version.subject, version.schema), name)

    async def prepared(self, subject: Subject, given: Schema, *, normalize: bool) -> Prepared:
        """Parse a schema for a subject, with the defaults of its config and in its stored form.

        An import keeps the text of a malformed schema, because records with its id may exist.

        Raises:
            MalformedSchema: its format does not permit it, and this is not an import.
            RejectedSchema: a reference does not exist.
        """
        config = self.state.config(subject)
        given = replace(given, references=self._with_versions(subject, given.references))
        given = replace(given, **decisions.with_defaults(given, config))
        source = self._source(subject, given)
        normalize = normalize or bool(config.normalize)
        try:
            made = await self._schemas.prepare(source, normalize=normalize)
        except InvalidSchema as error:
            raise MalformedSchema(f"The schema cannot be normalized: {error}") from None
        if made.error:
            known = self.state.newest(subject, made.guid, deleted=True)
            if known is None and self.state.mode(subject) != "IMPORT":
                raise _malformed(made)
        return made

    def _with_versions(
        self, subject: Subject, references: Sequence[Reference]
    ) -> tuple[Reference, ...]:
        """Replace LATEST in references by the newest version of their subjects."""
        return tuple(
            replace(reference, version=max(found))
            if reference.version == LATEST
            and (found := self.state.versions_of(subject.sibling(reference.subject)))
            else reference
            for reference in references
        )

    async def verdict(self, made: Prepared, compared: Compared) -> Verdict:
        """Compare a schema with earlier versions.

        Raises:
            MalformedSchema: it is malformed.
            RejectedSchema: one of them is malformed, or the comparison exceeds a limit.
        """
        if made.error:
            raise _malformed(made)
        config = compared.config
        terms = Terms(
            numbers=[version.number for version in compared.earlier],
            level=config.compatibility_level or "NONE",
            policy=config.compatibility_policy or "STRICT",
        )
        earlier = [self._source(version.subject, version.schema) for version in compared.earlier]
        try:
            return await self._schemas.compare(made.source, earlier, terms)
        except InvalidSchema as error:
            raise RejectedSchema(f"The schema cannot be compared: {error}") from None

    async def register(
        self,
        subject: Subject,
        given: Schema,
        *,
        normalize: bool = False,
        schema_id: int | None = None,
        version: int | None = None,
    ) -> SchemaVersion:
        """Register a schema under a subject; return its version, or the one that has it already.

        Raises:
            IncompatibleSchema: it is incompatible with an earlier version.
            RegistryError: it is invalid, or the mode does not permit it.
        """
        for _ in range(ATTEMPTS_MAX):
            made = await self.prepared(subject, given, normalize=normalize)
            candidate = Candidate(
                subject=subject,
                schema=made.source.schema,
                guid=made.guid,
                schema_id=schema_id,
                version=version,
            )
            checked = await self._check(candidate, made)

            def decide(
                state: RegistryState,
                candidate: Candidate = candidate,
                checked: tuple[object, ...] = checked,
            ) -> Change[SchemaVersion]:
                if _key(state, candidate) != checked:
                    raise _Changed
                return decisions.register(state, candidate)

            try:
                return await self.change(decide)
            except _Changed:
                continue
        raise TooManyChanges(
            f"Subject '{subject.qualified}' changed during each of {ATTEMPTS_MAX} attempts to"
            " register a schema. Try again"
        )

    async def _check(self, candidate: Candidate, made: Prepared) -> tuple[object, ...]:
        """Check a candidate's compatibility; return the key of what it was compared with."""
        state = self.state
        decisions.check_writable(state, candidate.subject)
        key = _key(state, candidate)
        if key:
            compared = decisions.compared(state, candidate.subject, candidate.schema)
            verdict = await self.verdict(made, compared)
            if not verdict.compatible:
                level = compared.config.compatibility_level or "NONE"
                details = ", ".join(verdict.messages(level))
                self._metrics.incompatible += 1
                raise IncompatibleSchema(
                    "Schema being registered is incompatible with an earlier schema for subject"
                    f' "{candidate.subject.qualified}", details: [{details}]'
                )
        return key


def _malformed(made: Prepared) -> MalformedSchema:
    schema = made.source.schema
    return MalformedSchema(f"Invalid schema of type {schema.schema_type}: {made.error}")


def _key(state: RegistryState, candidate: Candidate) -> tuple[object, ...]:
    """Return what a candidate must be compared with; empty if nothing has to be compared."""
    subject = candidate.subject
    if state.mode(subject) == "IMPORT":
        return ()
    if state.newest(subject, candidate.guid) is not None:
        return ()
    compared = decisions.compared(state, subject, candidate.schema)
    return compared.key if compared.earlier else ()


def _finish(future: asyncio.Future[Any], result: Any) -> None:
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
