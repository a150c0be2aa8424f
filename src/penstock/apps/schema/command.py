"""Command group `penstock schema`: schemas of a registry, and moves between registries."""

from __future__ import annotations

from typing import Final

import click

from penstock.apps.client.session import LazyGroup

_COMMANDS: Final = {
    "list": ("schema.reading", "list_schemas", "List subjects, or the versions of a subject."),
    "get": ("schema.reading", "get", "Print a schema by subject, id or GUID."),
    "diff": ("schema.reading", "diff", "Compare two versions of a subject."),
    "register": ("schema.changing", "register", "Register a schema."),
    "check": ("schema.changing", "check", "Check a schema's compatibility without registering it."),
    "delete": ("schema.changing", "delete", "Delete a subject or a version."),
    "config": ("schema.scopes", "config", "Show or change compatibility settings."),
    "mode": ("schema.scopes", "mode", "Show or change modes, such as READONLY."),
    "import": ("schema.transfer", "import_schemas", "Import from a registry, a topic or a file."),
    "export": ("schema.transfer", "export_schemas", "Export everything to a file."),
}


@click.group("schema", cls=LazyGroup, entries=_COMMANDS, short_help="Manage schemas of a registry.")
def schema() -> None:
    """Manage schemas of a registry: Penstock's, or any other with Confluent's HTTP interface.

    Subjects of other contexts than the default one are written :.context:subject.
    """
