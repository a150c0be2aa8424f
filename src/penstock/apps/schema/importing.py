"""Import of a snapshot into a registry: performs a plan, and verifies the result.

While schemas are registered with their ids, the contexts that change are in mode IMPORT. Their
earlier modes are written to a journal file first, and are restored at the end, also after an
error. If the process is killed, the next import reads the journal and restores them then.

Every step can be repeated: a version that exists already with the same id and schema is not
registered again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec
from msgspec import Struct

from penstock.apps.schema.connection import MISSING, Connections
from penstock.apps.schema.plan import (
    ImportPlan,
    Verified,
    listed,
    verify,
)
from penstock.apps.schema.snapshot import (
    RegisteredVersion,
    Settings,
    Snapshot,
    read_registry,
    scope_path,
)
from penstock.base.errors import InvalidError, PenstockError
from penstock.base.files import write_durably
from penstock.client.schemas import RegistryRefused, SchemaClient
from penstock.registry.errors import VersionSoftDeleted
from penstock.registry.values import Subject, parse_subject

IMPORT: Final = "IMPORT"


class ImportFailed(InvalidError):
    """Import whose result differs from the source, or that the registry rejected."""

    code: ClassVar[str] = "invalid_request"


class Journal:
    """File with the modes that an import has to restore; it exists only during an import."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, str | None]:
        """Return the modes by qualified subject; None for a subject without its own mode."""
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=dict[str, str | None])
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise self._unusable("read", error) from None
        except msgspec.DecodeError as error:
            raise ImportFailed(
                f"the journal {self.path} of an earlier import is damaged: {error}. Remove it, and"
                " set the registry's modes with penstock schema mode"
            ) from None

    def write(self, modes: Mapping[str, str | None]) -> None:
        """Store modes durably, before they are changed."""
        try:
            write_durably(self.path, msgspec.json.encode(modes))
        except OSError as error:
            raise self._unusable("written", error) from None

    def _unusable(self, what: str, error: OSError) -> ImportFailed:
        return ImportFailed(
            f"the journal {self.path} cannot be {what}: {error.strerror}. Choose another file with"
            " --journal"
        )

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


def journal_path(url: str) -> Path:
    """Return the default path of the journal of imports into a registry."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    name = hashlib.sha256(url.encode()).hexdigest()[:16]
    return Path(home) / "penstock" / f"schema-import-{name}.json"


class ImportReport(Struct, frozen=True, kw_only=True):
    """Result of an import: what it changed, and what was verified.

    `left_out` has sentences about versions that were skipped. `importing` names the contexts that
    were in mode IMPORT already, and stay so.
    """

    registered: int
    deleted: int
    configs: int
    modes: int
    present: int
    verified: Verified
    ids: int
    left_out: list[str]
    importing: list[str]


def import_snapshot(
    connections: Connections, source: Snapshot, plan: ImportPlan, journal: Journal
) -> ImportReport:
    """Make a registry contain a source; nothing else in the registry changes.

    Args:
        source: content to import, with the numbers of all versions (`plan.with_numbers`).
        plan: what the registry lacks of the source.

    Raises:
        ImportFailed: the registry rejected a change, or differs from the source afterwards.
        PenstockError: the registry does not answer. Repeat the import to complete it.
    """
    unfinished = journal.read()
    stays: list[str] = []
    if any(plan.changes.values()) or unfinished:
        modes = _Modes(connections, journal, {**_modes_to_change(plan), **unfinished})
        stays = modes.importing
        with modes:
            _perform(connections, plan)
        connections.map(_set_mode, plan.modes.items())
    after = read_registry(connections)
    verified = verify(source, after, plan.skipped)
    ids = _verify_ids(connections, source, after, verified.differences)
    if verified.differences:
        raise ImportFailed(
            f"the registry differs from the source after the import: {listed(verified.differences)}"
        )
    return ImportReport(
        **plan.changes,
        present=plan.present,
        verified=verified,
        ids=ids,
        left_out=plan.problems,
        importing=stays,
    )


def _perform(connections: Connections, plan: ImportPlan) -> None:
    for wave in plan.waves:
        connections.map(_register, wave)
    for wave in plan.deletions:
        connections.map(_delete, wave)
    connections.map(_set_config, plan.configs.items())


def _register(client: SchemaClient, found: RegisteredVersion) -> None:
    try:
        made = client.register(
            found.subject, found.schema, schema_id=found.id, version=found.version
        )
    except RegistryRefused as error:
        error.add_note(f"while registering {found.shown} with id {found.id}")
        raise
    if made != found.id:
        raise ImportFailed(
            f"the registry gave {found.shown} the id {made} instead of {found.id}. Its version may"
            " not support imports"
        )


def _delete(client: SchemaClient, found: RegisteredVersion) -> None:
    try:
        client.request("DELETE", ("subjects", found.subject, "versions", str(found.version)))
    except RegistryRefused as error:
        if error.error_code != VersionSoftDeleted.error_code:
            error.add_note(f"while deleting {found.shown}")
            raise


def _set_config(client: SchemaClient, item: tuple[str, Settings]) -> None:
    scope, config = item
    fields = {_CONFIG_FIELDS.get(name, name): value for name, value in config.items()}
    client.request("PUT", scope_path("config", scope), fields)


_CONFIG_FIELDS: Final = {"compatibilityLevel": "compatibility"}
"""Names of fields in requests, by their names in responses."""


def _set_mode(client: SchemaClient, item: tuple[str, str]) -> None:
    scope, mode = item
    client.request("PUT", scope_path("mode", scope), {"mode": mode}, force=True)


def _modes_to_change(plan: ImportPlan) -> dict[str, str | None]:
    """Return the present modes of the scopes that must be in mode IMPORT.

    These are the contexts of all changes, and subjects that have their own modes.
    """
    known = plan.known_modes
    subjects = {found.subject for found in plan.pending()} | set(plan.configs)
    contexts = {Subject(parse_subject(name).context, "").qualified for name in subjects}
    if known.get("") == "READONLY_OVERRIDE":
        contexts.add("")
    scopes = [*sorted(contexts), *sorted(subjects & set(known) - contexts)]
    return {scope: known.get(scope) for scope in scopes}


class _Modes:
    """Mode IMPORT of some scopes, for a context; the earlier modes are restored at its end."""

    def __init__(
        self,
        connections: Connections,
        journal: Journal,
        earlier: Mapping[str, str | None],
    ) -> None:
        """`earlier` has the modes to restore; None for a scope without its own mode."""
        self._connections = connections
        self._journal = journal
        self._earlier = earlier
        self.importing = [scope for scope, mode in self._earlier.items() if mode == IMPORT]

    def __enter__(self) -> None:
        self._journal.write(self._earlier)
        try:
            self._connections.map(_set_mode, [(scope, IMPORT) for scope in self._earlier])
        except BaseException as error:
            self._restore(error)
            raise

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._restore(error)

    def _restore(self, cause: BaseException | None) -> None:
        try:
            self._connections.map(_restore_mode, self._earlier.items())
        except PenstockError as error:
            error.add_note(
                f"the modes could not be restored. Repeat the import, which restores them from"
                f" {self._journal.path}"
            )
            if cause is None:
                raise
            cause.add_note(f"then {error}; {error.__notes__[-1]}")
            return
        self._journal.remove()


def _restore_mode(client: SchemaClient, item: tuple[str, str | None]) -> None:
    scope, mode = item
    if mode is not None:
        _set_mode(client, (scope, mode))
        return
    try:
        client.request("DELETE", scope_path("mode", scope))
    except RegistryRefused as error:
        if error.status not in MISSING:
            raise


def _verify_ids(
    connections: Connections, source: Snapshot, after: Snapshot, differences: list[str]
) -> int:
    """Read each id of the source back from the registry; return the number of ids.

    Adds a sentence to `differences` for each id that has another text than its versions.
    """
    texts = {
        (found.context, found.id): found.schema.schema
        for key, found in after.versions.items()
        if key in source.versions
    }

    def check(client: SchemaClient, item: tuple[tuple[str, int], str]) -> str:
        (context, schema_id), text = item
        scope = Subject(context, "").qualified
        try:
            answer = client.request("GET", ("schemas", "ids", str(schema_id)), subject=scope)
        except RegistryRefused as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return f"id {schema_id} of context {context} does not exist"
        if answer["schema"] == text:
            return ""
        return f"id {schema_id} of context {context} has another text than its versions"

    differences += filter(None, connections.map(check, texts.items()))
    return len(texts)
