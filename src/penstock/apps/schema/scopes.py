"""Commands `penstock schema config` and `penstock schema mode`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import msgspec

from penstock.apps.client.session import State, say, show
from penstock.apps.schema.connection import RegistryAddress, registry_options
from penstock.apps.schema.plan import scope_name
from penstock.apps.schema.snapshot import read_effective, read_scope, scope_path
from penstock.registry.values import LEVELS, MODES


@click.command("config", short_help="Show or change compatibility settings.")
@click.argument("subject", default="")
@click.option(
    "--set",
    "level",
    type=click.Choice(LEVELS, case_sensitive=False),
    help="Compatibility level to set.",
)
@click.option(
    "--field",
    "fields",
    multiple=True,
    metavar="NAME=JSON",
    help="Other field to set, under its name in Confluent's interface, such as normalize=true. May"
    " be repeated.",
)
@click.option("--delete", is_flag=True, help="Delete the config, so that the wider one applies.")
@registry_options
def config(
    state: State,
    address: RegistryAddress,
    subject: str,
    level: str | None,
    fields: tuple[str, ...],
    delete: bool,
) -> None:
    """Show or change the config of SUBJECT, of a context (:.name:), or of the whole registry.

    A subject without its own value has that of its context, or else of the registry.
    """
    changes = _changes(level, fields)
    if changes and delete:
        raise click.UsageError("--delete cannot be combined with --set and --field")
    path = scope_path("config", subject)
    with address.client() as client:
        if delete:
            client.request("DELETE", path)
            say(state, f"the config of {scope_name(subject)} is deleted", subject=subject)
            return
        if changes:
            client.request("PUT", path, changes)
        own = read_scope(client, "config", subject) or {}
        whole = read_effective(client, "config", subject) if subject else own
    rows = [
        {"field": name, "value": _shown(value), "source": _source(subject, name in own)}
        for name, value in sorted(whole.items())
    ]
    show(
        state,
        rows,
        title=f"config of {scope_name(subject)}",
        all_as_json={"subject": subject, "config": whole, "own": own},
    )


def _changes(level: str | None, fields: Sequence[str]) -> dict[str, Any]:
    changes: dict[str, Any] = {} if level is None else {"compatibility": level}
    for text in fields:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise click.UsageError(f"--field {text}: must read NAME=JSON")
        try:
            changes[name] = msgspec.json.decode(value.encode())
        except msgspec.DecodeError:
            changes[name] = value  # a text without quotes
    return changes


def _source(subject: str, own: bool) -> str:
    return scope_name(subject) if own else "wider scope"


def _shown(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


@click.command("mode", short_help="Show or change modes, such as READONLY.")
@click.argument("subject", default="")
@click.option("--set", "mode", type=click.Choice(MODES, case_sensitive=False), help="Mode to set.")
@click.option(
    "--force", is_flag=True, help="Set IMPORT although schemas exist, whose ids could be taken."
)
@click.option("--delete", is_flag=True, help="Delete the mode, so that the wider one applies.")
@click.option(
    "--recursive", is_flag=True, help="With --delete: also delete the modes of all subjects."
)
@registry_options
def mode(
    state: State,
    address: RegistryAddress,
    subject: str,
    mode: str | None,
    force: bool,
    delete: bool,
    recursive: bool,
) -> None:
    """Show or change the mode of SUBJECT, of a context (:.name:), or of the whole registry.

    READWRITE allows everything, READONLY no changes. READONLY_OVERRIDE of the whole registry
    has precedence over the modes of subjects. In IMPORT, schemas are registered with given ids.
    """
    if mode and delete:
        raise click.UsageError("--delete cannot be combined with --set")
    path = scope_path("mode", subject)
    with address.client() as client:
        if delete:
            client.request("DELETE", path, recursive=recursive)
            say(state, f"the mode of {scope_name(subject)} is deleted", subject=subject)
            return
        if mode:
            client.request("PUT", path, {"mode": mode}, force=force)
        own = read_scope(client, "mode", subject) or {}
        whole = read_effective(client, "mode", subject) if subject else own
    found = whole.get("mode", "READWRITE")  # of registries that have no modes
    say(
        state,
        f"{scope_name(subject)} has mode {found}" + ("" if own else " (of the wider scope)"),
        subject=subject,
        mode=found,
        source=_source(subject, bool(own)),
    )
