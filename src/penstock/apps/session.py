"""Shared parts of client commands: addresses of brokers, and output of results.

Sources of a setting, first wins: a flag of the command, a flag before the command, `-X`, the
environment, the profile, the default. The profile file is TOML:

    [default]
    bootstrap = "127.0.0.1:9092"

    [staging]
    bootstrap = "broker-1:9092,broker-2:9092"
    output = "json"
    client_config = "/etc/penstock/client.properties"

A profile may have Kafka's options of security itself, quoted (`"security.protocol" = "SSL"`), or
name a file of them, as Kafka's tools take one; PENSTOCK_CLIENT_CONFIG names one for all clients.

JSON output is one object for a single result, an array for a list, and one object per line for
a stream; its keys are part of the interface.
"""

from __future__ import annotations

import functools
import json
import math
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar, Final, Literal

import click

from penstock.base.errors import InvalidError
from penstock.base.settings import INT_MAX, whole_number

if TYPE_CHECKING:
    from rich.console import RenderableType

    from penstock.apps.waiting import WatchedClient

DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"
DEFAULT_PROFILES: Final = "~/.config/penstock/profiles.toml"
API_TIMEOUT_MS: Final = 4_000
FIRST_NOTICE_SECONDS: Final = 1.5
"""Commands say what they wait for within 2 s; looking and writing takes some of it."""
NOTICE_SECONDS: Final = 30.0
PROFILE_FILE_BYTES_MAX: Final = 1 << 20
CODECS: Final = click.Choice(("none", "gzip", "snappy", "lz4", "zstd"))
COLUMN_GAP: Final = 3
"""Characters between two columns of a table."""
PIPED_COLUMNS_MAX: Final = 10_000
"""Tables that no terminal shows are folded here at the latest."""


class InvalidProfile(InvalidError):
    """The profile does not exist, or a file cannot be read."""

    code: ClassVar[str] = "invalid_config"


class Number(click.FloatRange):
    """Finite number within bounds: `click.FloatRange` accepts `nan`."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


class BadInput(click.ClickException):
    """Invalid input of a command, on its line or in a file: one line, status 2."""

    exit_code = 2

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"penstock: {self.message}", file=file, err=True)


def to_stderr(line: str) -> None:
    """Write a line to stderr."""
    click.echo(line, err=True)


@dataclass(slots=True)
class State:
    """Options of the command line, by position."""

    bootstrap: str | None = None
    profile: str | None = None
    output: str | None = None
    debug: bool = False
    overrides: dict[str, str] = field(default_factory=dict)
    notice_seconds: tuple[float, float] = (FIRST_NOTICE_SECONDS, NOTICE_SECONDS)
    """After how long a command says what it waits for, and how often then."""
    notice: Callable[[str], None] = to_stderr

    def merged(
        self,
        bootstrap: str | None,
        profile: str | None,
        output: str | None,
        overrides: Sequence[str],
    ) -> State:
        """Return the state with the command's own options."""
        named = dict(self.overrides)
        for text in overrides:
            name, equals, value = text.partition("=")
            if not equals:
                raise click.UsageError(f"-X {text}: must read key=value")
            if name.strip() not in _CLIENT_SETTINGS and not _is_security(name.strip()):
                raise click.UsageError(
                    f"-X {text}: unknown client setting; known: "
                    + ", ".join(_CLIENT_SETTINGS)
                    + ", and Kafka's of security.*, sasl.* and ssl.*"
                )
            named[name.strip()] = value.strip()
        return replace(
            self,
            bootstrap=bootstrap or self.bootstrap,
            profile=profile or self.profile,
            output=output or self.output,
            overrides=named,
        )

    def setting(self, name: str, flag: str | None, default: str) -> str:
        """Return a setting by precedence."""
        variable = os.environ.get(f"PENSTOCK_{name.upper()}")
        return flag or variable or self._profile().get(name) or default

    def of_named_profile(self, name: str) -> str | None:
        """Return a setting of the profile named on the command line; None without one."""
        return self._profile().get(name) if self.profile is not None else None

    @property
    def json(self) -> bool:
        return self.setting("output", self.output, "table") == "json"

    def client(self, subject: str = "", **options: Any) -> WatchedClient:
        """Create a client of the chosen brokers; calls without an answer fail after a few seconds.

        In its `with` block it reports on stderr what it waits for, if that takes long; `subject` is
        what the lines are about.

        Raises:
            InvalidError: an invalid address or timeout.
        """
        from penstock.apps.waiting import Silence, WatchedClient

        servers = self.overrides.get("bootstrap.servers")
        bootstrap = self.setting("bootstrap", self.bootstrap or servers, DEFAULT_BOOTSTRAP)
        options.setdefault("api_timeout_ms", API_TIMEOUT_MS)
        for name, option in _TIMEOUTS.items():
            if name in self.overrides:
                options[option] = _milliseconds(name, self.overrides[name])
        if "client.id" in self.overrides:
            options["client_id"] = self.overrides["client.id"]
        security = self.security()
        if security is not None:
            options.setdefault("security", security)
        first, every = self.notice_seconds
        silence = Silence(first_seconds=first, every_seconds=every, subject=subject)
        return WatchedClient(bootstrap, silence=silence, say=self.notice, **options)

    def working(self, task: str) -> AbstractContextManager[None]:
        """Return a block that reports its task on stderr, if it takes long."""
        from penstock.apps.waiting import working

        first, every = self.notice_seconds
        return working(task, first_seconds=first, every_seconds=every, say=self.notice)

    def security(self) -> Mapping[str, str] | None:
        """Return the security options: of `-X`, the profile, or the file of `client_config` or
        PENSTOCK_CLIENT_CONFIG.

        Raises:
            InvalidError: the file cannot be read.
        """
        from penstock.client.security import environment_options, is_option, read_properties

        profile = self._profile()
        path = profile.get("client_config")
        found = read_properties(path) if path else environment_options()
        found |= {name: value for name, value in profile.items() if is_option(name)}
        found |= {name: value for name, value in self.overrides.items() if is_option(name)}
        return found or None

    def _profile(self) -> Mapping[str, str]:
        path = Path(os.environ.get("PENSTOCK_PROFILES") or DEFAULT_PROFILES).expanduser()
        name = self.profile or os.environ.get("PENSTOCK_PROFILE")
        if not path.exists():
            if name is not None:
                raise InvalidProfile(f"profile {name!r}: file {path} does not exist")
            return {}
        try:
            with path.open("rb") as file:
                profiles = tomllib.loads(file.read(PROFILE_FILE_BYTES_MAX).decode())
        except (OSError, ValueError, RecursionError) as error:
            raise InvalidProfile(f"profile file {path}: {error}") from None
        chosen = profiles.get(name or "default", {} if name is None else None)
        if not isinstance(chosen, dict):
            known = ", ".join(sorted(profiles)) or "none"
            raise InvalidProfile(f"profile {name!r} is not in {path}; its profiles: {known}")
        return {key: str(value) for key, value in chosen.items()}


_TIMEOUTS: Final = {
    "request.timeout.ms": "request_timeout_ms",
    "socket.connection.setup.timeout.ms": "connect_timeout_ms",
    "default.api.timeout.ms": "api_timeout_ms",
    "delivery.timeout.ms": "delivery_timeout_ms",
}
_CLIENT_SETTINGS: Final = ("bootstrap.servers", "client.id", *_TIMEOUTS)


def _is_security(name: str) -> bool:
    from penstock.client.security import is_option

    return is_option(name)


def _milliseconds(name: str, text: str) -> int:
    found = whole_number(text, INT_MAX)
    if not found:
        raise click.UsageError(f"-X {name}={text}: must be milliseconds, from 1 to {INT_MAX}")
    return found


def current() -> State:
    """Return the options before the command; the defaults outside of a command."""
    context = click.get_current_context(silent=True)
    return context.obj if context and isinstance(context.obj, State) else State()


def output_option(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command that asks no broker `--output`, and a `State` as first argument."""

    @click.option("--output", type=click.Choice(("table", "json")), help="How to write results.")
    @functools.wraps(command)
    def wrapped(output: str | None, **arguments: Any) -> None:
        command(current().merged(None, None, output, ()), **arguments)

    return wrapped


def client_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command `-b`, `--profile`, `--output`, `-X`, and a `State` as first argument."""

    @click.option("-b", "--bootstrap", metavar="HOST:PORT,…", help="Bootstrap servers.")
    @click.option("--profile", help="Section of the profile file.")
    @click.option("--output", type=click.Choice(("table", "json")), help="How to write results.")
    @click.option("-X", "overrides", multiple=True, metavar="KEY=VALUE", help="Client setting.")
    @functools.wraps(command)
    def wrapped(
        bootstrap: str | None,
        profile: str | None,
        output: str | None,
        overrides: tuple[str, ...],
        **arguments: Any,
    ) -> None:
        command(current().merged(bootstrap, profile, output, overrides), **arguments)

    return wrapped


def write_json(value: object) -> None:
    """Write one JSON document to stdout."""
    click.echo(json.dumps(value, indent=2, default=str))


def write_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str | None = None
) -> None:
    """Write a table to stdout, below its title; numbers are aligned to the right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    if title is not None:
        click.echo(title)
    if not rows:
        if title is None:
            click.echo("none")
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    needed = COLUMN_GAP * len(columns)
    for index, name in enumerate(columns):
        numbers = all(isinstance(row[index], (int, float)) for row in rows)
        justify: Literal["left", "right"] = "right" if numbers else "left"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=numbers)
        needed += max(len(name), *(len(str(row[index])) for row in rows if numbers), 0)
    for row in rows:
        table.add_row(*(Text("" if cell is None else str(cell)) for cell in row))
    write_rich(table, columns_min=needed)


def write_rich(shown: RenderableType, *, columns_min: int = 0) -> None:
    """Write something of Rich's to stdout, folded to a terminal that has `columns_min` columns.

    A narrower terminal, and a pipe, get it as wide as it is, without padding.
    """
    from rich.console import Console

    console = Console()
    if console.is_terminal and console.width >= columns_min:
        console.print(shown)
        return
    console = Console(width=PIPED_COLUMNS_MAX)
    with console.capture() as captured:
        console.print(shown)
    click.echo("\n".join([line.rstrip() for line in captured.get().splitlines()]).strip("\n"))


def show(
    state: State,
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    *,
    title: str | None = None,
    things: str = "",
    all_as_json: object = None,
) -> None:
    """Write rows as a table of `columns`, or completely as JSON.

    A column is a name, which is its heading without underscores, or `heading=name`. JSON uses
    `all_as_json` if it is given. `things` names the items if there are no rows. Timestamps are
    times of day in tables, and milliseconds in JSON.
    """
    if state.json:
        write_json(rows if all_as_json is None else all_as_json)
        return
    if not rows and (things or title is None):
        click.echo("\n".join(filter(None, (title, f"no {things or 'rows'}"))))
        return
    words = [column.rpartition("=") for column in columns]
    headings = [heading or name.replace("_", " ") for heading, _, name in words]
    cells = [[_cell(name, row[name]) for _, _, name in words] for row in rows]
    write_table(headings, cells, title=title)


def moment(at_ms: int | None) -> str:
    """Return a time as ISO 8601 in UTC; empty for none."""
    if at_ms is None or at_ms < 0:
        return ""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")


def _cell(name: str, value: object) -> object:
    if name.endswith("timestamp") and isinstance(value, int):
        return moment(value)
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else value


def show_facts(
    state: State, facts: Mapping[str, Any], columns: Sequence[str], *, spaced: bool = False
) -> None:
    """Write facts by name as a table of two columns, or as JSON; `spaced` replaces underscores."""
    if state.json:
        write_json(facts)
    else:
        names = {name: name.replace("_", " ") if spaced else name for name in facts}
        write_table(columns, [(names[name], value) for name, value in facts.items()])


def counted(count: int, thing: str) -> str:
    """Return `1 partition`, `3 partitions` or `3 batches`."""
    ending = "" if count == 1 else "es" if thing.endswith("ch") else "s"
    return f"{count} {thing}{ending}"


def say(state: State, text: str, **facts: object) -> None:
    """Write a sentence to stdout, or the facts as JSON."""
    if state.json:
        write_json(facts)
    else:
        click.echo(text)


def parse_pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    """Parse `key=value` arguments.

    Raises:
        click.UsageError: one has no `=`.
    """
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.UsageError(f"{option} {text}: must read key=value")
        pairs[name] = value
    return pairs
