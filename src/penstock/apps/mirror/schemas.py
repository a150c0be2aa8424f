"""Schemas of a mirror: those of the source's registry are imported into the target's.

An import changes only what the target lacks: versions with their ids, soft deletions, compatibility
and modes. It is repeated every `mirror.topics_seconds`, in its own thread, because it reads both
registries. Its error is a fact of the status and is logged; records are mirrored nevertheless.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from penstock.apps.schema.connection import Connections, RegistryAddress
from penstock.apps.schema.importing import Journal, import_snapshot
from penstock.apps.schema.plan import plan_import, with_numbers
from penstock.apps.schema.snapshot import read_registry
from penstock.base.errors import PenstockError
from penstock.client.security import admin_security
from penstock.connect.running import Stop
from penstock.mirror.mirror_file import MirrorSpec
from penstock.mirror.watching import Watch

CONNECTIONS: Final = 4
JOURNAL: Final = "schemas.json"
"""File of the state directory with the modes that an interrupted import has to restore."""

logger = logging.getLogger(__name__)


def copy_schemas(spec: MirrorSpec) -> str:
    """Import what the target's registry lacks; return a line about it, empty if it lacks nothing.

    Raises:
        ImportConflict: an id or version has another schema in the target; nothing is changed.
        PenstockError: a registry does not respond, or rejects a request.
    """
    sides = ((spec.source, spec.source_security), (spec.target, spec.target_security))
    places = [
        RegistryAddress(url=side.registry, security=admin_security(options))
        for side, options in sides
    ]
    with Connections(places[0], CONNECTIONS) as source, Connections(places[1], CONNECTIONS) as to:
        found = with_numbers(read_registry(source))
        plan = plan_import(found, read_registry(to))
        plan.check()
        if not any(plan.changes.values()):
            return ""
        import_snapshot(to, found, plan, Journal(spec.state / JOURNAL))
    changes = ", ".join(f"{count} {name}" for name, count in plan.changes.items() if count)
    return f"import schemas: {changes}"


@contextmanager
def following(
    spec: MirrorSpec, watch: Watch, stop: Stop, report: Callable[[str], None]
) -> Iterator[None]:
    """Import schemas during the block, and at the end of a run with `--once`.

    Nothing is imported if the mirror's file names no registries.
    """
    if not spec.source.registry:
        yield
        return
    ended = threading.Event()

    def copy() -> None:
        try:
            if line := copy_schemas(spec):
                report(line)
            watch.note("schemas", None)
        except PenstockError as error:
            logger.warning("mirror %s: schemas: %s", spec.name, error)
            watch.note("schemas", f"not imported: {error}")

    def repeat() -> None:
        while not ended.is_set():
            copy()
            ended.wait(spec.options.topics_seconds)

    thread = threading.Thread(target=repeat, name="mirror schemas", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if not stop.requested:
        copy()
