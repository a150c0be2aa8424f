"""Command group `penstock connect`: runs, checks and shows connectors, each defined by a file.

Each problem of a file is reported on one line, `file:line: where: message; fix`, and the exit
status is then 1. A connector that fails ends its command with status 1 and one line with the cause.
The status is 3 if no broker or worker responds, and 2 if the command line is invalid.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import click
import msgspec

from penstock.apps.client.session import (
    STATUS_PROBLEMS,
    BadInput,
    FilePlace,
    LazyGroup,
    State,
    on_file,
    output_option,
    say,
    show,
    show_problems,
    write_json,
)
from penstock.base.document import DocumentInvalid, Problem
from penstock.base.errors import PenstockError, UnavailableError
from penstock.base.extras import check_installed

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock.connect.connector_file import ConnectorSpec

ANSWER_SECONDS: Final = 10.0
BROKER_TIMEOUT_MS: Final = 5_000
"""Longest wait of `validate` for a broker."""
SAMPLES: Final = {
    "postgresql": """\
# Changes of PostgreSQL tables, from a snapshot on, exactly once.
name = "{name}"

[source]
connector = "postgresql"
url = "postgresql://penstock@127.0.0.1:5432/shop"   # a password: ${{env:SHOP_PASSWORD}}
tables = ["public.*"]
topic = "{name}.{{schema}}.{{table}}"
decimals = "string"                                 # exact, and legible in every language

[errors]
dead_letters = "{name}.dead"
""",
}
"""Files of `penstock connect init`, by connector."""

_COMMANDS: Final = {
    "run": ("connect.run", "run", "Run a connector."),
    "validate": ("connect.command", "validate", "Check a connector file."),
    "plan": ("connect.command", "plan", "Show what a connector would do."),
    "init": ("connect.command", "init", "Create a sample connector file."),
    "status": ("connect.command", "status", "Show the state of a connector."),
    "worker": ("connect.worker", "worker", "Run the connectors of a directory."),
    "reset": ("connect.worker", "reset", "Remove the stored positions of a connector."),
    "replay": ("connect.worker", "replay", "Process the dead letters of a connector again."),
}


@click.group(
    "connect",
    cls=LazyGroup,
    entries=_COMMANDS,
    short_help="Run connectors, each defined by a file.",
)
def connect() -> None:
    """Run connectors, each defined by a file: a source into topics, or topics into a sink."""
    check_installed("client")


STATE_DOC: Final = "Directory of the status file; overrides the file."


def load(place: FilePlace) -> ConnectorSpec:
    """Read and check a connector's file.

    Raises:
        DocumentInvalid: the file has problems; has all of them.
    """
    from penstock.connect.connector_file import load

    return load(place.file, bootstrap=place.bootstrap, state=place.state)


def client_of(state: State, spec: ConnectorSpec, **options: Any) -> Client:
    """Return a client of the connector's brokers, with the security of the profile."""
    from penstock.client import Client

    return Client(
        spec.bootstrap, client_id=f"connect-{spec.name}", security=state.security(), **options
    )


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Convert an `OSError` into an error that names the path and the remedy."""
    try:
        yield
    except OSError as error:
        raise BadInput(
            f"cannot write {error.filename or path}: {error.strerror or error}; choose a path that"
            " this user may write to, on a disk that is not full"
        ) from None


# validate, plan


@click.command("validate", short_help="Check a connector file.")
@on_file(STATE_DOC)
@click.option("--static", is_flag=True, help="Check only the file, without connecting anywhere.")
def validate(state: State, where: FilePlace, static: bool) -> None:
    """Report every problem that would keep a connector from running.

    The check connects to the source or sink and to the brokers, and changes nothing. Exits with
    status 1 on any problem.
    """
    show_problems(state, where.file, _problems(state, where, static=static))


def _problems(state: State, where: FilePlace, *, static: bool) -> tuple[Problem, ...]:
    try:
        spec = load(where)
    except DocumentInvalid as invalid:
        return invalid.problems
    if static:
        return ()
    found = _system_problems(spec)
    try:
        with client_of(state, spec, api_timeout_ms=BROKER_TIMEOUT_MS) as client:
            client.metadata([])
    except PenstockError as error:
        fix = "start the broker, or correct run.bootstrap or -b"
        problem = Problem(
            file=spec.file, line=None, where="run.bootstrap", message=str(error), fix=fix
        )
        found.append(problem)
    return tuple(found)


def _system_problems(spec: ConnectorSpec) -> list[Problem]:
    """Return the problems of the source or sink."""
    return [
        Problem(file=spec.file, line=None, where=spec.direction, message=text)
        for text in _plugin(spec).problems()
    ]


def _plugin(spec: ConnectorSpec) -> Any:
    from penstock.connect.plugins import SourceContext

    if spec.direction == "sink":
        return spec.sink_plugin()(spec.settings, spec.name)
    return spec.source_plugin()(spec.settings, SourceContext(connector=spec.name))


@click.command("plan", short_help="Show what a connector would do.")
@on_file(STATE_DOC)
def plan(state: State, where: FilePlace) -> None:
    """Show the steps that a run would take in other systems, without taking them.

    Exits with status 1 if the source or sink has problems, which are then reported instead.
    """
    spec = load(where)
    problems = _system_problems(spec)
    if problems:
        raise DocumentInvalid(tuple(problems))
    steps = list(_plugin(spec).plan())
    say(state, "\n".join(steps), connector=spec.name, steps=steps)


# init


@click.command("init", short_help="Create a sample connector file.")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--connector", type=click.Choice(tuple(SAMPLES)), default="postgresql", show_default=True,
    help="Connector of the file.",
)  # fmt: skip
@output_option
def init(state: State, file: Path, connector: str) -> None:
    """Create a connector file, and show how to check and run it. A file is never overwritten."""
    if file.exists():
        raise click.ClickException(f"{file} exists; choose another name")
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(SAMPLES[connector].format(name=file.stem))
    quoted = shlex.quote(str(file))
    commands = [f"penstock connect {verb} {quoted}" for verb in ("validate", "plan", "run")]
    text = "\n".join([f"wrote {file}", "", *commands])
    say(state, text, file=str(file), connector=connector, commands=commands)


# status


@click.command("status", short_help="Show the state of a connector.")
@on_file(STATE_DOC, required=False)
@click.option("--worker", "url", metavar="URL", help="Show the connectors of the worker at a URL.")
def status(state: State, where: FilePlace, url: str | None) -> None:
    """Show the state of a connector's last run on this machine; exit with status 1 if it failed.

    With --worker, FILE is omitted, and all connectors of the worker are shown.
    """
    from penstock.connect.status import read_status

    if url is not None:
        _worker_status(state, url)
        return
    spec = load(where)
    found = read_status(spec.state)
    if found is None:
        text = f"connector {spec.name} has not run with the state directory {spec.state}"
        say(state, text, connector=spec.name, running=False)
        return
    columns = ("connector", "state", "records", "batches", "dead_letters", "skipped", "retries")
    show_status(state, msgspec.to_builtins(found), columns)
    if found.state == "FAILED":
        sys.exit(STATUS_PROBLEMS)


class WorkerUnavailable(UnavailableError):
    """The server at an address does not respond, or is not a worker."""

    code: ClassVar[str] = "broker_not_available"
    fix: ClassVar[str] = (
        "start the worker with `penstock connect worker DIRECTORY`, or correct --worker"
    )


def show_status(state: State, entry: Mapping[str, Any], columns: Sequence[str]) -> None:
    """Write a status as JSON, or as a table of these columns with its cause and facts below."""
    if state.json:
        write_json(entry)
        return
    show(state, [entry], columns)
    if entry["cause"]:
        click.echo(f"cause: {entry['cause']}")
    for name, value in entry["facts"].items():
        click.echo(f"{name}: {value}")


def _worker_status(state: State, url: str) -> None:
    """Show the states of a worker's connectors; exit with status 1 if any has failed."""
    from penstock.client.admin_http import AdminHttp
    from penstock.client.errors import AdminUnavailable

    with AdminHttp(url, name="worker", example="http://host:8083") as http:
        try:
            found = http.ask("GET", "/connectors?expand=status", timeout_seconds=ANSWER_SECONDS)
        except AdminUnavailable as error:
            raise WorkerUnavailable(str(error)) from error
    if found.status != HTTPStatus.OK:
        raise WorkerUnavailable(f"the server at {http.url} is no worker: {found.message}")
    rows = [
        {
            "connector": name,
            "type": item["status"]["type"],
            "state": item["status"]["connector"]["state"],
            "worker": item["status"]["connector"]["worker_id"],
            "cause": item["status"]["connector"].get("trace", ""),
        }
        for name, item in found.body.items()
    ]
    if state.json:
        write_json(rows)
    else:
        show(state, rows, ("connector", "type", "state", "worker", "cause"))
    if any(row["state"] == "FAILED" for row in rows):
        sys.exit(STATUS_PROBLEMS)
