"""Shared parts of client commands: options, profiles, clients, and output of results.

A setting comes from the first of these sources that has it: an option after the command, an option
before the command, `-X`, the environment, the profile, the default. The profile file is TOML:

    [default]
    bootstrap = "127.0.0.1:9092"

    [staging]
    bootstrap = "broker-1:9092,broker-2:9092"
    output = "json"
    client_config = "/etc/penstock/client.properties"

A profile may contain Kafka's security options under quoted names (`"security.protocol" = "SSL"`).
It may also name a properties file of Kafka's tools that has them, as `client_config`.
PENSTOCK_CLIENT_CONFIG names such a file for all profiles without a `client_config`.

JSON output is one object for a single result, an array for a list, and one object per line for a
stream. Its keys are part of the public interface.

A `LazyGroup` imports the module of a command when the command is first used.
"""

from __future__ import annotations

import functools
import json
import math
import os
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeVar

import click

from penstock.base.errors import InvalidError
from penstock.base.settings import INT_MAX, whole_number

if TYPE_CHECKING:
    from rich.console import RenderableType

    from penstock.apps.client.waiting import WatchedClient
    from penstock.base.document import Problem


DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"
DEFAULT_PROFILES: Final = "~/.config/penstock/profiles.toml"
API_TIMEOUT_MS: Final = 4_000
STATUS_PROBLEMS: Final = 1
"""Exit status of commands whose file has problems."""
FIRST_NOTICE_SECONDS: Final = 1.5
"""Seconds until a command first reports a wait. The line appears within 2 s, since the check and
the output take up to 0.5 s.
"""
NOTICE_SECONDS: Final = 30.0
PROFILE_FILE_BYTES_MAX: Final = 1 << 20
CODECS: Final = click.Choice(("none", "gzip", "snappy", "lz4", "zstd"))
COLUMN_GAP: Final = 3
"""Characters between two columns of a table."""
PIPED_COLUMNS_MAX: Final = 10_000
"""Width of tables, in characters, if stdout is a pipe or a terminal that is too narrow."""


Decorated = TypeVar("Decorated", bound=Callable[..., Any] | click.Command)


class InvalidProfile(InvalidError):
    """The named profile does not exist, or the profile file cannot be read."""

    code: ClassVar[str] = "invalid_config"


class Number(click.FloatRange):
    """Parameter type of finite numbers within bounds; `click.FloatRange` itself accepts `nan`."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


class BadInput(click.ClickException):
    """Error in a command's options or in an input file; shown as one line, with exit status 2."""

    exit_code = 2

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"penstock: {self.message}", file=file, err=True)


def to_stderr(line: str) -> None:
    """Write a line to stderr."""
    click.echo(line, err=True)


@dataclass(slots=True)
class State:
    """Global options of a command: those given before it, overridden by those given after it."""

    bootstrap: str | None = None
    profile: str | None = None
    output: str | None = None
    debug: bool = False
    overrides: dict[str, str] = field(default_factory=dict)
    notice_seconds: tuple[float, float] = (FIRST_NOTICE_SECONDS, NOTICE_SECONDS)
    """Seconds until the first line on stderr about a wait, and seconds between later lines."""
    notice: Callable[[str], None] = to_stderr

    def merged(
        self,
        bootstrap: str | None,
        profile: str | None,
        output: str | None,
        overrides: Sequence[str],
    ) -> State:
        """Return a copy in which options given after the command override those given before it.

        Raises:
            click.UsageError: a `-X` option has no `=`, or names no client setting.
        """
        named = dict(self.overrides)
        for text in overrides:
            name, equals, value = text.partition("=")
            if not equals:
                raise click.UsageError(f"-X {text}: must read key=value")
            if name.strip() not in _CLIENT_SETTINGS and not _is_security(name.strip()):
                raise click.UsageError(
                    f"-X {text}: unknown client setting; known: "
                    + ", ".join(_CLIENT_SETTINGS)
                    + ", and Kafka's security.*, sasl.* and ssl.* options"
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
        """Return the flag, else the variable PENSTOCK_<NAME>, else the profile's value, else the
        default.
        """
        variable = os.environ.get(f"PENSTOCK_{name.upper()}")
        return flag or variable or self._profile().get(name) or default

    def of_named_profile(self, name: str) -> str | None:
        """Return a setting of the profile that `--profile` names; None without that option."""
        return self._profile().get(name) if self.profile is not None else None

    @property
    def json(self) -> bool:
        return self.setting("output", self.output, "table") == "json"

    def client(self, subject: str = "", **options: Any) -> WatchedClient:
        """Create a client of the chosen brokers.

        A call without an answer fails after `API_TIMEOUT_MS`, unless `-X` sets another timeout.
        While the `with` block of the client runs, each longer wait is reported on stderr; `subject`
        names the command's object in these lines, as `topic orders`. `options` are those of
        `Client`.

        Raises:
            InvalidError: an address or a timeout is invalid.
        """
        from penstock.apps.client.waiting import Silence, WatchedClient

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

    def api_timeout_ms(self, default: int) -> int:
        """Return the timeout of a call with its retries, as `-X` sets it."""
        text = self.overrides.get(_API_TIMEOUT)
        return default if text is None else _milliseconds(_API_TIMEOUT, text)

    def working(self, task: str) -> AbstractContextManager[None]:
        """Return a context that reports `task` on stderr while its block runs, if that takes
        long.
        """
        from penstock.apps.client.waiting import working

        first, every = self.notice_seconds
        return working(task, first_seconds=first, every_seconds=every, say=self.notice)

    def security(self) -> Mapping[str, str] | None:
        """Return the client's security options by Kafka's names; None if there are none.

        `-X` overrides the profile. The profile overrides the file that its `client_config` names,
        or without `client_config` the file that PENSTOCK_CLIENT_CONFIG names.

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


_API_TIMEOUT: Final = "default.api.timeout.ms"
_TIMEOUTS: Final = {
    "request.timeout.ms": "request_timeout_ms",
    "socket.connection.setup.timeout.ms": "connect_timeout_ms",
    _API_TIMEOUT: "api_timeout_ms",
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
    """Return the options given before the command, or the defaults outside of a command."""
    context = click.get_current_context(silent=True)
    return context.obj if context and isinstance(context.obj, State) else State()


def default_option(
    names: str, default: object, doc: str, kind: click.ParamType[Any] | type | None = None
) -> Callable[[Decorated], Decorated]:
    """Return an option with the help `doc` and its default; `names` are separated by spaces."""
    return click.option(*names.split(), type=kind, default=default, show_default=True, help=doc)


def path_option(names: str, doc: str) -> Callable[[Decorated], Decorated]:
    return click.option(*names.split(), type=click.Path(path_type=Path), help=doc)


def log_options(command: Decorated) -> Decorated:
    """Add `--log-format` and `--log-level` to a command that serves until a signal."""
    from penstock.apps.process.daemon import FORMATS, LEVELS

    form = default_option(
        "--log-format",
        "text",
        "Format of the log lines on stderr: text, or one JSON object per line.",
        click.Choice(FORMATS),
    )
    level = default_option(
        "--log-level",
        "warning",
        "Lowest level of the log lines that are written.",
        click.Choice(LEVELS),
    )
    return form(level(command))


def output_option(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--output` to a command without a broker, and pass a `State` as first argument."""

    @click.option(
        "--output",
        type=click.Choice(("table", "json")),
        help="Format of results: table for people, json for programs. Default: table.",
    )
    @functools.wraps(command)
    def wrapped(output: str | None, **arguments: Any) -> None:
        command(current().merged(None, None, output, ()), **arguments)

    return wrapped


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePlace:
    """TOML file of a command, and the locations that override those in the file."""

    file: Path
    bootstrap: str | None
    state: Path | None


def on_file(
    state_doc: str, *, required: bool = True
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds FILE and the options of locations to a command.

    The command gets a `State` and a `FilePlace` first. If it raises DocumentInvalid, the problems
    are written to stderr, and the exit status is `STATUS_PROBLEMS`. FILE is `.` if it is missing
    and not required.
    """

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        @click.argument("file", type=click.Path(path_type=Path), required=required)
        @click.option(
            "-b",
            "--bootstrap",
            metavar="HOST:PORT,…",
            help="Brokers to connect to, as HOST:PORT,…; overrides the file.",
        )
        @path_option("--state directory", state_doc)
        @click.option(
            "--profile", help="Section of profiles.toml with defaults of -b, --output and -X."
        )
        @click.option(
            "--output",
            type=click.Choice(("table", "json")),
            help="Format of results: table for people, json for programs. Default: table.",
        )
        @functools.wraps(command)
        def wrapped(
            file: Path | None,
            bootstrap: str | None,
            directory: Path | None,
            profile: str | None,
            output: str | None,
            **arguments: Any,
        ) -> None:
            from penstock.base.document import DocumentInvalid

            state = current().merged(bootstrap, profile, output, ())
            servers = state.bootstrap or state.of_named_profile("bootstrap")
            place = FilePlace(file=file or Path(), bootstrap=servers, state=directory)
            try:
                command(state, place, **arguments)
            except DocumentInvalid as invalid:
                if state.debug:
                    raise
                for problem in invalid.problems:
                    click.echo(str(problem), err=True)
                sys.exit(STATUS_PROBLEMS)

        return wrapped

    return decorated


def show_problems(state: State, file: Path, problems: Sequence[Problem]) -> None:
    """Write the problems of a file; exit with `STATUS_PROBLEMS` if there are any."""
    if state.json:
        write_json([asdict(problem) for problem in problems])
    else:
        for problem in problems:
            click.echo(str(problem))
        if not problems:
            click.echo(f"{file}: no problems")
    if problems:
        sys.exit(STATUS_PROBLEMS)


def client_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add `-b`, `--profile`, `--output` and `-X` to a command, and pass a `State` as first
    argument.
    """

    @click.option(
        "-b",
        "--bootstrap",
        metavar="HOST:PORT,…",
        help="Brokers to connect to first: HOST:PORT, several separated by commas. Default:"
        " PENSTOCK_BOOTSTRAP, else the profile's, else 127.0.0.1:9092.",
    )
    @click.option(
        "--profile",
        help="Section of profiles.toml with defaults of -b, --output and -X. Default:"
        " PENSTOCK_PROFILE, else the section default.",
    )
    @click.option(
        "--output",
        type=click.Choice(("table", "json")),
        help="Format of results: table for people, json for programs. Default: table.",
    )
    @click.option(
        "-X",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE",
        help="Client setting, such as default.api.timeout.ms=10000, or one of Kafka's security.*,"
        " sasl.* and ssl.* options. May be repeated.",
    )
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
    """Write a table to stdout below its title; columns of numbers are aligned to the right."""
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
    """Write a Rich renderable to stdout.

    A terminal with at least `columns_min` columns gets it folded to its width. A narrower terminal
    or a pipe gets it in full width, without padding.
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
    columns: Sequence[str] = (),
    *,
    title: str | None = None,
    things: str = "",
    all_as_json: object = None,
) -> None:
    """Write rows to stdout: as a table of `columns`, or as JSON with all of their keys.

    A column is a key of the rows, whose heading has spaces for underscores, or `heading=key`. By
    default all keys are columns. `all_as_json`, if given, replaces the rows in JSON. `things` names
    the items in the line that is written if there are no rows. Timestamps are ISO 8601 in tables,
    and milliseconds in JSON.
    """
    if state.json:
        write_json(rows if all_as_json is None else all_as_json)
        return
    if not rows and (things or title is None):
        click.echo("\n".join(filter(None, (title, f"no {things or 'rows'}"))))
        return
    words = [column.rpartition("=") for column in columns or (rows[0] if rows else ())]
    headings = [heading or name.replace("_", " ") for heading, _, name in words]
    cells = [[_cell(name, row[name]) for _, _, name in words] for row in rows]
    write_table(headings, cells, title=title)


def moment(at_ms: int | None) -> str:
    """Return a time in ISO 8601 and UTC; empty for None and for a negative time."""
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
    """Write named facts as a table of two columns, or as JSON; `spaced` shows underscores as
    spaces.
    """
    if state.json:
        write_json(facts)
    else:
        names = {name: name.replace("_", " ") if spaced else name for name in facts}
        write_table(columns, [(names[name], value) for name, value in facts.items()])


def counted(count: int, thing: str) -> str:
    """Return a count with its noun: `1 partition`, `3 partitions`, `3 batches` or `3 entries`."""
    if count == 1:
        return f"{count} {thing}"
    if thing.endswith("ry"):
        return f"{count} {thing[:-1]}ies"
    return f"{count} {thing}{'es' if thing.endswith('ch') else 's'}"


def say(state: State, text: str, **facts: object) -> None:
    """Write a sentence to stdout, or with `--output json` the facts instead."""
    if state.json:
        write_json(facts)
    else:
        click.echo(text)


def parse_pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    """Parse `key=value` arguments; `option` names them in the error.

    Raises:
        click.UsageError: an argument has no `=`, or an empty key.
    """
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.UsageError(f"{option} {text}: must read key=value")
        pairs[name] = value
    return pairs


class LazyGroup(click.Group):
    """Group of commands whose modules are imported when they are first used.

    `entries` maps a command's name to its module in `penstock.apps`, the name of its function
    there, and its line of help.
    """

    def __init__(
        self, *arguments: Any, entries: Mapping[str, tuple[str, str, str]], **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self._entries = entries

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self._entries.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = getattr(import_module(f"penstock.apps.{entry[0]}"), entry[1])
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry[2]) for name, entry in self._entries.items()])
