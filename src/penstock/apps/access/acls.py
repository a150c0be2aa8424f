"""Command group `penstock acl`: lists, adds and removes entries of access control lists."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import wraps
from typing import Any, Final

import click
from msgspec.structs import replace

from penstock.apps.session import State, client_options, say, show
from penstock.security.acls import (
    ANY,
    CLUSTER,
    OPERATIONS,
    PERMISSIONS,
    SUPPORTED,
    AclBinding,
    AclFilter,
)

COLUMNS: Final = (
    "permission", "principal", "operation", "resource=resource_type", "name",
    "pattern=pattern_type", "host",
)  # fmt: skip
Resource = tuple[str, str]


def resource_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that name resources, as one argument `resources`: pairs of type and name."""

    @click.option(
        "--topic",
        multiple=True,
        metavar="NAME",
        help="Name of a topic; * means all topics. May be repeated.",
    )
    @click.option(
        "--group",
        multiple=True,
        metavar="ID",
        help="Id of a consumer group or share group; * means all groups. May be repeated.",
    )
    @click.option(
        "--transactional-id",
        multiple=True,
        metavar="ID",
        help="A producer's transactional id; * means all ids. May be repeated.",
    )
    @click.option(
        "--user-resource",
        multiple=True,
        metavar="USER",
        help="Name of a user whose delegation tokens are the resource (operations create-tokens"
        " and describe-tokens). May be repeated.",
    )
    @click.option("--cluster", is_flag=True, help="The cluster as the resource.")
    @wraps(command)
    def wrapped(
        topic: tuple[str, ...],
        group: tuple[str, ...],
        transactional_id: tuple[str, ...],
        user_resource: tuple[str, ...],
        cluster: bool,
        **arguments: Any,
    ) -> None:
        named = {
            "topic": topic, "group": group, "transactional_id": transactional_id,
            "user": user_resource, "cluster": (CLUSTER,) if cluster else (),
        }  # fmt: skip
        resources = [(kind, name) for kind, names in named.items() for name in names]
        command(resources=resources, **arguments)

    return wrapped


def _words(words: tuple[str, ...], begin: int) -> click.Choice[str]:
    return click.Choice([word.replace("_", "-") for word in words[begin:]], case_sensitive=False)


@click.group("acl", short_help="Manage access rules: list, add, remove.")
def acl() -> None:
    """Manage access control entries (ACLs), which allow or deny principals operations on resources.

    Brokers enforce them if authorizer.class.name is set. An entry that denies overrides entries
    that allow. Read, write, delete and alter imply describe; alter-configs implies
    describe-configs. A change takes effect on every broker within a second.
    """


@acl.command("list")
@resource_options
@click.option(
    "--match",
    is_flag=True,
    help="For a named resource: also show entries that apply to it by a prefix or by *.",
)
@click.option(
    "--principal", metavar="TYPE:NAME", help="Only entries of this principal, such as User:alice."
)
@client_options
def list_acls(state: State, resources: list[Resource], match: bool, principal: str | None) -> None:
    """List access control entries: all, or those that match the options."""
    pattern = "match" if match else ANY
    filters = [
        AclFilter(resource_type=kind, name=name, pattern_type=pattern, principal=principal)
        for kind, name in resources
    ] or [AclFilter(principal=principal)]
    with state.client() as client:
        found = sorted({entry for wanted in filters for entry in client.list_acls(wanted)})
    show(state, [asdict(binding) for binding in found], COLUMNS, things="ACLs")


@acl.command("add")
@resource_options
@click.option(
    "--prefix",
    is_flag=True,
    help="Apply the entries to all resources whose names begin with the given names.",
)
@click.option(
    "--principal",
    multiple=True,
    required=True,
    metavar="TYPE:NAME",
    help="Principal to allow or deny, such as User:alice; User:* means everyone. May be repeated.",
)
@click.option(
    "--operation",
    multiple=True,
    type=_words(OPERATIONS, 2),
    help="Operation to allow or deny. May be repeated.",
)
@click.option(
    "--host",
    multiple=True,
    default=("*",),
    show_default=True,
    help="Address of the client, or a network such as 10.0.0.0/8; * means any address. May be"
    " repeated.",
)
@click.option(
    "--deny",
    is_flag=True,
    help="Deny the operations instead of allowing them. This overrides entries that allow.",
)
@client_options
def add_acls(
    state: State,
    resources: list[Resource],
    prefix: bool,
    principal: tuple[str, ...],
    operation: tuple[str, ...],
    host: tuple[str, ...],
    deny: bool,
) -> None:
    """Allow or deny principals operations on resources.

    Adds one entry for each combination of resource, principal, operation and host.
    """
    if not resources or not operation:
        raise click.UsageError("give a resource (--topic, --group, --cluster, …) and --operation")
    bindings = [
        AclBinding(
            resource_type=kind,
            name=name,
            pattern_type="prefixed" if prefix else "literal",
            principal=who,
            host=where,
            operation=what,
            permission="deny" if deny else "allow",
        )
        for kind, name in resources
        for who in principal
        for what in [word.replace("-", "_") for word in operation]
        for where in host
    ]
    _check(bindings)
    with state.client() as client:
        client.create_acls(bindings)
    say(
        state,
        f"{len(bindings)} entries are in force",
        added=[asdict(binding) for binding in bindings],
    )


def _check(bindings: list[AclBinding]) -> None:
    """Reject operations that a resource's type does not have: such entries would never apply."""
    for binding in bindings:
        known = SUPPORTED[binding.resource_type]
        if binding.operation != "all" and binding.operation not in known:
            words = ", ".join(word.replace("_", "-") for word in (*known, "all"))
            raise click.UsageError(
                f"{binding.operation.replace('_', '-')} is not valid on a"
                f" {binding.resource_type}; valid: {words}"
            )


@acl.command("remove")
@resource_options
@click.option(
    "--prefix",
    is_flag=True,
    help="Match entries that were added with --prefix, instead of entries of whole names.",
)
@click.option(
    "--principal", metavar="TYPE:NAME", help="Only entries of this principal, such as User:alice."
)
@click.option("--operation", type=_words(OPERATIONS, 2), help="Only entries with this operation.")
@click.option("--host", help="Only entries with this host, written as when they were added.")
@click.option(
    "--permission",
    type=_words(PERMISSIONS, 2),
    help="Only entries that deny, or only entries that allow. Default: both.",
)
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Remove all entries of the cluster. Required if no other option selects entries.",
)
@client_options
def remove_acls(
    state: State,
    resources: list[Resource],
    prefix: bool,
    principal: str | None,
    operation: str | None,
    host: str | None,
    permission: str | None,
    everything: bool,
) -> None:
    """Remove all access control entries that match the options."""
    pattern = "prefixed" if prefix else "literal" if resources else ANY
    wanted = AclFilter(
        pattern_type=pattern,
        principal=principal,
        host=host,
        operation=(operation or ANY).replace("-", "_"),
        permission=permission or ANY,
    )
    named = resources or principal or host or operation or permission
    if not named and not everything:
        raise click.UsageError("no filter given: name the entries to remove, or add --all")
    filters = [replace(wanted, resource_type=kind, name=name) for kind, name in resources]
    with state.client() as client:
        removed = [binding for each in filters or [wanted] for binding in client.delete_acls(each)]
    say(state, f"{len(removed)} entries removed", removed=[asdict(item) for item in removed])
