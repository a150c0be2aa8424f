"""Command groups for users and access control lists."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import click
from msgspec.structs import replace

from penstock.apps.client.session import (
    BadInput,
    State,
    client_options,
    counted,
    default_option,
    path_option,
    say,
    show,
)
from penstock.base.errors import UnavailableError
from penstock.security.acls import (
    ANY,
    CLUSTER,
    OPERATIONS,
    PERMISSIONS,
    SUPPORTED,
    AclBinding,
    AclFilter,
)
from penstock.security.credentials import (
    HASHES,
    ITERATIONS,
    PASSWORD_BYTES_MAX,
    SCRAM_SHA_512,
    ScramCredential,
    derive,
    new_salt,
)

if TYPE_CHECKING:
    from penstock.apps.process.configuration import Configuration
    from penstock.control import ControlPlane


COLUMNS: Final = (
    "permission", "principal", "operation", "resource=resource_type", "name",
    "pattern=pattern_type", "host",
)  # fmt: skip
Resource = tuple[str, str]


def resource_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that select the resources of ACLs, such as `--topic` and `--group`.

    The command gets them as one argument `resources`: pairs of resource type and name.
    """

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
        f"{counted(len(bindings), 'entry')} in force",
        added=[asdict(binding) for binding in bindings],
    )


def wrong_operation(binding: AclBinding) -> str:
    """Return the problem of an ACL whose resource type does not have the operation, or nothing.

    Such an ACL never applies.
    """
    known = SUPPORTED[binding.resource_type]
    if binding.operation in ("all", *known):
        return ""
    words = ", ".join(word.replace("_", "-") for word in (*known, "all"))
    return (
        f"{binding.operation.replace('_', '-')} is not valid on a {binding.resource_type};"
        f" valid: {words}"
    )


def _check(bindings: list[AclBinding]) -> None:
    for binding in bindings:
        if problem := wrong_operation(binding):
            raise click.UsageError(problem)


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


# Command group `penstock user`: lists, creates and removes users, and changes their passwords.
#
# A password is read from a prompt, a file or standard input. It is never an argument, since every
# process of the host can read arguments. `--offline` writes to the database of a stopped cluster,
# to create the first user.


STDIN: Final = "-"


class Users(Protocol):
    """Store of users and their passwords: a client of the cluster, or `OfflineUsers`."""

    def list_users(self) -> dict[str, dict[str, int]]: ...
    def set_password(
        self, user: str, password: str, *, mechanism: str, iterations: int
    ) -> None: ...
    def delete_user(self, user: str, mechanisms: list[str]) -> None: ...


def place_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--offline` and its options, which select where users are stored.

    The command gets `offline`: the users in a stopped cluster's database, or None to use a broker.
    """

    @click.option(
        "--offline",
        is_flag=True,
        help="Write to the cluster's database, not through a broker. All brokers must be stopped.",
    )
    @path_option("--config file", "With --offline: the broker's TOML file of settings.")
    @click.option(
        "--data-dir",
        help="With --offline: the broker's data directory. Default: the setting log.dirs.",
    )
    @wraps(command)
    def wrapped(offline: bool, file: Path | None, data_dir: str | None, **arguments: Any) -> None:
        if not offline and (file is not None or data_dir is not None):
            raise click.UsageError("--config and --data-dir require --offline")
        place = OfflineUsers(_configuration(file, data_dir)) if offline else None
        command(offline=place, **arguments)

    return wrapped


def password_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the password options, as arguments `password` (a function that reads it), `mechanisms`
    and `iterations`.
    """

    @click.option(
        "--password-file",
        metavar="FILE|-",
        help="File whose first line is the password; - reads standard input. Default: ask for it.",
    )
    @click.option(
        "--mechanism",
        "mechanisms",
        multiple=True,
        type=click.Choice(list(HASHES)),
        default=(SCRAM_SHA_512,),
        show_default=True,
        help="SASL mechanism that the stored password is for; PLAIN works with both. May be"
        " repeated.",
    )
    @default_option(
        "--iterations",
        ITERATIONS,
        "Iterations of the password hash. More of them slow down guessing, and also each login.",
        int,
    )
    @wraps(command)
    def wrapped(password_file: str | None, **arguments: Any) -> None:
        command(password=lambda: _password(password_file), **arguments)

    return wrapped


@click.group("user", short_help="Manage users and passwords.")
def user() -> None:
    """Manage users that authenticate with SCRAM or PLAIN.

    The cluster stores a salted hash of each password.
    """


@user.command("list")
@place_options
@client_options
def list_users(state: State, offline: OfflineUsers | None) -> None:
    """List users and the mechanisms of their passwords."""
    found = _with(state, offline, lambda users: users.list_users())
    rows = [
        {"user": name, "mechanism": mechanism, "iterations": count}
        for name, kept in found.items()
        for mechanism, count in sorted(kept.items())
    ]
    show(state, rows, things="users")


@user.command("add")
@click.argument("name")
@click.option(
    "--if-not-exists", is_flag=True, help="Succeed, and change nothing, if the user exists."
)
@password_options
@place_options
@client_options
def add_user(
    state: State,
    name: str,
    offline: OfflineUsers | None,
    *,
    if_not_exists: bool,
    **password: Any,
) -> None:
    """Create a user with a password."""
    if if_not_exists and name in _with(state, offline, lambda users: users.list_users()):
        say(state, f"user {name} exists already", user=name)
        return
    _set(state, name, offline, exists=False, **password)
    say(state, f"user {name} created", user=name)


@user.command("passwd")
@click.argument("name")
@password_options
@place_options
@client_options
def change_password(state: State, name: str, offline: OfflineUsers | None, **password: Any) -> None:
    """Change a user's password for the mechanisms that --mechanism names.

    Passwords of the user's other mechanisms stay unchanged.
    """
    _set(state, name, offline, exists=True, **password)
    say(state, f"password of {name} changed", user=name)


@user.command("remove")
@click.argument("name")
@place_options
@client_options
def remove_user(state: State, name: str, offline: OfflineUsers | None) -> None:
    """Remove a user with all of its passwords.

    Open connections of the user stay until they authenticate again.
    """

    def remove(users: Users) -> None:
        known = users.list_users().get(name)
        if not known:
            raise BadInput(f"user {name} does not exist; list users with `penstock user list`")
        users.delete_user(name, list(known))

    _with(state, offline, remove)
    say(state, f"user {name} removed", user=name)


def _set(
    state: State,
    name: str,
    offline: OfflineUsers | None,
    *,
    exists: bool,
    password: Callable[[], str],
    mechanisms: tuple[str, ...],
    iterations: int,
) -> None:
    def change(users: Users) -> None:
        known = name in users.list_users()
        if known != exists:
            if known:
                fix = f"change its password with `penstock user passwd {name}`"
                raise BadInput(f"user {name} exists already; {fix}")
            raise BadInput(f"user {name} does not exist; create it with `penstock user add {name}`")
        text = password()
        for mechanism in mechanisms:
            users.set_password(name, text, mechanism=mechanism, iterations=iterations)

    _with(state, offline, change)


def _with(state: State, offline: OfflineUsers | None, ask: Callable[[Any], Any]) -> Any:
    if offline is not None:
        return ask(offline)
    with state.client() as client:
        return ask(client)


def _password(file: str | None) -> str:
    if file is None:
        return str(click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    if file == STDIN:
        text = sys.stdin.readline(PASSWORD_BYTES_MAX + 2)
    else:
        try:
            with Path(file).open(encoding="utf-8") as opened:
                text = opened.readline(PASSWORD_BYTES_MAX + 2)
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8"
            raise BadInput(f"password file {file}: {reason}") from None
    password = text.rstrip("\r\n")
    if not password:
        raise BadInput("the password is empty")
    return password


def _configuration(file: Path | None, data_dir: str | None) -> Configuration:
    import os

    from penstock.apps.process.configuration import Given, configure

    flags = {} if data_dir is None else {"log.dirs": Given(data_dir, "flag --data-dir")}
    return configure(file=file, environment=os.environ, flags=flags)


class OfflineUsers:
    """Users in the database of a stopped cluster, opened without a broker."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration

    def list_users(self) -> dict[str, dict[str, int]]:
        from penstock.control.access import credentials_of

        async def read(control: ControlPlane) -> dict[str, dict[str, ScramCredential]]:
            return credentials_of(await control.image())

        return {
            name: {mechanism: one.iterations for mechanism, one in kept.items()}
            for name, kept in sorted(self._run(read).items())
        }

    def set_password(self, user: str, password: str, *, mechanism: str, iterations: int) -> None:
        from penstock.base.system import SYSTEM_RANDOMNESS
        from penstock.control.access import check_user

        check_user(user)
        salt = new_salt(SYSTEM_RANDOMNESS)
        kept = derive(mechanism, password, salt=salt, iterations=iterations)
        self._change(user, lambda known: {**known, mechanism: kept})

    def delete_user(self, user: str, mechanisms: list[str]) -> None:
        self._change(user, lambda known: {})

    def _change(
        self,
        user: str,
        change: Callable[[Mapping[str, ScramCredential]], Mapping[str, ScramCredential]],
    ) -> None:
        from penstock.control.access import change_credentials

        async def write(control: ControlPlane) -> None:
            await change_credentials(control, lambda known: {user: change(known.get(user, {}))})

        self._run(write)

    def _run(self, use: Callable[[ControlPlane], Any]) -> Any:
        from penstock.apps.process.private_files import protect
        from penstock.apps.process.wiring import control_of, prepare

        configuration = self._configuration

        async def run() -> Any:
            control = control_of(configuration.locations.control_url, configuration.directory)
            try:
                await control.start()
                return await use(control)
            except UnavailableError as error:
                error.add_note("if a broker runs, omit --offline")
                raise
            finally:
                await control.close()

        if not configuration.locations.control_url:
            protect(configuration.directory, configuration.directory_access)
            prepare(configuration.directory / configuration.log)
        return asyncio.run(run())
