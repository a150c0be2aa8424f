"""Command group `penstock user`: lists, creates and removes users, and changes their passwords.

A password is read from a prompt, a file or standard input. It is never an argument, since every
process of the host can read arguments. `--offline` writes to the database of a stopped cluster, to
create the first user.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import click

from penstock.apps.session import (
    BadInput,
    State,
    client_options,
    default_option,
    path_option,
    say,
    show,
)
from penstock.base.errors import UnavailableError
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
    from penstock.apps.configuration import Configuration
    from penstock.control import ControlPlane

STDIN: Final = "-"


class Users(Protocol):
    """Store of users and their passwords: a client of the cluster, or `OfflineUsers`."""

    def list_users(self) -> dict[str, dict[str, int]]: ...
    def set_password(
        self, user: str, password: str, *, mechanism: str, iterations: int
    ) -> None: ...
    def delete_user(self, user: str, mechanisms: list[str]) -> None: ...


def place_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that select the store of users, as one argument `offline`; None means a
    broker.
    """

    @click.option(
        "--offline",
        is_flag=True,
        help="Open the cluster's database instead of connecting to a broker, which must be"
        " stopped.",
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
@password_options
@place_options
@client_options
def add_user(state: State, name: str, offline: OfflineUsers | None, **password: Any) -> None:
    """Create a user with a password."""
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

    from penstock.apps.configuration import Given, configure

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
        from penstock.apps.private_files import protect
        from penstock.apps.wiring import control_of, prepare

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
