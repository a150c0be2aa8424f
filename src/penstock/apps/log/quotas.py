"""Command group `penstock quota`: lists, sets and removes quotas of clients."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ClassVar

import click

from penstock.apps.client.session import BadInput, State, client_options, parse_pairs, say, show
from penstock.base.errors import InvalidError
from penstock.client.access import entity_text

_KINDS = ("user", "client-id", "ip")


class NoSuchQuota(InvalidError):
    """The quota to remove is not set."""

    code: ClassVar[str] = "resource_not_found"


def entity_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that select users, client ids and addresses, as one argument `entity`."""

    @click.option("--user", metavar="NAME", help="Select the quotas of this user.")
    @click.option(
        "--client-id",
        metavar="ID",
        help="Select the quotas of this client id; with --user, of this client id of that user.",
    )
    @click.option("--ip", metavar="ADDRESS", help="Select the quotas of this client address.")
    @click.option(
        "--default",
        "defaults",
        type=click.Choice(_KINDS),
        multiple=True,
        help="Select the default quotas: of all users, client ids or addresses that have none of"
        " their own.",
    )
    @wraps(command)
    def wrapped(defaults: tuple[str, ...], **arguments: Any) -> None:
        named = {kind: arguments.pop(kind.replace("-", "_")) for kind in _KINDS}
        entity: dict[str, str | None] = {
            kind: name for kind, name in named.items() if name is not None
        }
        for kind in defaults:
            if kind in entity:
                raise click.UsageError(f"give one of --{kind} and --default {kind}")
            entity[kind] = None
        command(entity=entity, **arguments)

    return wrapped


@click.group("quota", short_help="Manage quotas of users, client ids and addresses.")
def quota() -> None:
    """Manage quotas of users, client ids and addresses, which apply on each broker.

    producer_byte_rate and consumer_byte_rate are bytes per second. request_percentage is a share of
    the time of the broker's event loop. controller_mutation_rate is partitions created and deleted
    per second. connection_creation_rate, only for addresses, is connections per second.
    """


@quota.command("list")
@entity_options
@client_options
def list_quotas(state: State, entity: dict[str, str | None]) -> None:
    """List quotas, all or those that match the options."""
    with state.client() as client:
        found = client.list_quotas(entity)
    if state.json:
        rows: list[dict[str, object]] = [
            {"entity": dict(entry.entity), "quotas": dict(entry.values)} for entry in found
        ]
    else:
        rows = [
            {"entity": item.shown, "quota": key, "value": f"{value:.15g}"}
            for item in found
            for key, value in sorted(item.values.items())
        ]
    show(state, rows, things="quotas")


@quota.command("set")
@click.argument("pairs", nargs=-1, required=True, metavar="QUOTA=VALUE…")
@entity_options
@client_options
def set_quota(state: State, entity: dict[str, str | None], pairs: tuple[str, ...]) -> None:
    """Set quotas of a user, of a client id, of both together, or of an address."""
    _check(entity)
    changes: dict[str, float] = {}
    for key, text in parse_pairs(pairs, "argument").items():
        try:
            changes[key] = float(text)
        except ValueError:
            raise BadInput(f"{key}={text}: {text!r} is not a number") from None
    with state.client() as client:
        client.alter_quotas(entity, changes)
    say(state, "quotas changed", entity=entity, set=changes)


@quota.command("remove")
@click.argument("keys", nargs=-1, metavar="[QUOTA]…")
@entity_options
@client_options
def remove_quota(state: State, entity: dict[str, str | None], keys: tuple[str, ...]) -> None:
    """Remove quotas of a user, of a client id, of both together, or of an address.

    Without QUOTA all of them are removed.
    """
    _check(entity)
    with state.client() as client:
        known = [key for quota in client.list_quotas(entity, strict=True) for key in quota.values]
        missing = [key for key in keys if key not in known]
        if missing or not known:
            raise NoSuchQuota(
                f"{entity_text(entity)} has no quota {missing[0] if missing else 'of its own'};"
                " list quotas with `penstock quota list`"
            )
        client.alter_quotas(entity, remove=keys or known)
    say(state, "quotas removed", entity=entity, removed=list(keys or known))


def _check(entity: dict[str, str | None]) -> None:
    if not entity:
        raise click.UsageError("no entity given: add --user, --client-id, --ip or --default")
