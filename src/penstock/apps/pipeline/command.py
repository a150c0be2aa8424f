"""Command group `penstock pipeline`: runs, checks and replays Spark pipelines.

Every command takes a pipeline's file, or a directory with a `pipeline.toml`. Each problem of the
file is reported on one line, `file:line: where: message; fix`, and the exit status is then 1.
"""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.apps.client.session import (
    FilePlace,
    LazyGroup,
    State,
    on_file,
    output_option,
    say,
    show,
    show_problems,
    write_json,
    write_rich,
)
from penstock.base.extras import check_installed

if TYPE_CHECKING:
    from penstock.base.document import Problem
    from penstock.spark.pipeline.parsing import Survey
    from penstock.spark.pipeline.spec import PipelineSpec


_COMMANDS: Final = {
    "run": ("pipeline.run", "run", "Run a pipeline."),
    "plan": ("pipeline.plan", "plan", "Show a pipeline's queries without running it."),
    "replay": ("pipeline.replay", "replay", "Send records through a pipeline again."),
    "init": ("pipeline.command", "init", "Create a sample pipeline."),
    "status": ("pipeline.command", "status", "Show the state of a pipeline."),
    "prepare": ("pipeline.prepare", "prepare", "Make Spark start faster on this host."),
    "validate": ("pipeline.command", "validate", "Check a pipeline file."),
}


@click.group(
    "pipeline",
    cls=LazyGroup,
    entries=_COMMANDS,
    short_help="Run Spark pipelines, each defined by a file.",
)
def pipeline() -> None:
    """Run Spark pipelines, each defined by a file: sources, steps in SQL and Python, and sinks."""
    check_installed("spark")


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """Pipeline file, with the locations on the command line that override those in the file."""

    file: Path
    bootstrap: str | None
    admin: str | None
    state: Path | None

    def load(self) -> PipelineSpec:
        """Read and check the file.

        Raises:
            DocumentInvalid: the file has problems; has all of them.
        """
        from penstock.base.document import DocumentInvalid

        found = self.survey()
        if found.problems:
            raise DocumentInvalid(found.problems)
        return found.spec

    def survey(self) -> Survey:
        """Read as much of the file as possible, and collect its problems.

        Raises:
            DocumentInvalid: the file does not exist, or is not TOML.
        """
        from penstock.spark.pipeline.parsing import survey

        return survey(self.file, bootstrap=self.bootstrap, admin=self.admin, state=self.state)


def located(command: Callable[..., None]) -> Callable[..., None]:
    """Add FILE and the options of locations; the command gets a `State` and a `Located` first."""

    @on_file("Directory of the pipeline's state, such as checkpoints; overrides the file.")
    @click.option("--admin", metavar="URL", help="Admin interface of a broker; overrides the file.")
    @functools.wraps(command)
    def wrapped(state: State, place: FilePlace, admin: str | None, **arguments: Any) -> None:
        where = Located(file=place.file, bootstrap=place.bootstrap, admin=admin, state=place.state)
        command(state, where, **arguments)

    return wrapped


# validate


@click.command("validate", short_help="Check a pipeline file.")
@located
@click.option(
    "--static", is_flag=True, help="Skip the checks that need Java: types, and names in SQL."
)
def validate(state: State, where: Located, static: bool) -> None:
    """Report every problem of a pipeline's file, without a broker and without running the pipeline.

    Exits with status 1 on any problem. Files of Python steps are executed, since they define
    functions, unless --static is given.
    """
    show_problems(state, where.file, _problems(where, static=static))


def _problems(where: Located, *, static: bool) -> tuple[Problem, ...]:
    from penstock.base.document import DocumentInvalid, in_order

    try:
        found = where.survey()
    except DocumentInvalid as invalid:
        return invalid.problems
    if static:
        return found.problems
    from penstock.apps.pipeline.spark import looking_session
    from penstock.spark.pipeline import analysis
    from penstock.spark.sessions.java import JavaMissing

    try:
        with looking_session(found.spec) as spark:
            more = analysis.problems(
                found.spec, spark, reported=found.problems, unsure=found.unsure
            )
    except JavaMissing as error:
        error.add_note("or skip Spark's checks with --static")
        if not found.problems:
            raise
        click.echo(f"skipped Spark's checks: {error}", err=True)
        return found.problems
    return in_order((*found.problems, *more), found.spec.file)


# status


@click.command("status", short_help="Show the state of a pipeline.")
@located
def status(state: State, where: Located) -> None:
    """Show the state of a pipeline's queries.

    While the pipeline is running, its status page is queried. Otherwise its stored state is shown,
    with the committed offsets and the lag from the broker.
    """
    from penstock.spark.pipeline.status import live, stored

    spec = where.load()
    found = live(spec)
    if found is None:
        with State(bootstrap=spec.run.bootstrap).client() as client:
            found = stored(spec, client)
    if state.json:
        write_json(found)
    elif found["running"]:
        _show_live(found)
    else:
        _show_stored(state, found)


def _show_live(found: dict[str, Any]) -> None:
    from penstock.spark.pipeline.progress import table

    click.echo(f"pipeline {found['pipeline']} is running: process {found['pid']}, {found['admin']}")
    write_rich(table(found["queries"]))
    for query in found["queries"]:
        for name in ("rejected", "warned", "written"):
            for key, number in query[name].items():
                click.echo(f"{query['query']}: {name} {key}: {number}")


def _show_stored(state: State, found: dict[str, Any]) -> None:
    queries = found["queries"]
    click.echo(
        f"pipeline {found['pipeline']} is not running; its state is in {found['state_directory']}"
    )
    if not queries:
        click.echo("the pipeline has never run with this state directory")
        return
    rows = [query | {"unfinished": "yes" if query["unfinished"] else "no"} for query in queries]
    columns = ("query", "group", "batch=batch_id", "unfinished", "held=held_records")
    show(state, rows, (*columns, "lag=lag_records"))
    partitions = [
        {"query": entry["query"], **partition}
        for entry in queries
        for partition in entry["partitions"]
    ]
    if partitions:
        at = ("query", "topic", "partition", "committed=committed_offset", "end=log_end_offset")
        show(state, partitions, (*at, "lag"))
    if found["broker_error"]:
        click.echo(f"lag is unknown: {found['broker_error']}", err=True)


# init

FENCE: Final = "```"


@click.command("init", short_help="Create a sample pipeline.")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--template", metavar="NAME", default="quickstart", show_default=True,
    help="Kind of pipeline: quickstart, aggregate, cdc or relay.",
)  # fmt: skip
@output_option
def init(state: State, directory: Path, template: str) -> None:
    """Create a small pipeline with sample data in DIRECTORY, and show how to run it.

    quickstart writes a topic to a table. aggregate counts records by minute. cdc applies changes of
    a database to a table. relay copies a topic to another topic, exactly once. Existing files are
    never overwritten.
    """
    from penstock.spark.pipeline.scaffold import init as begin

    written = begin(directory, template)
    commands = [f"cd {shlex.quote(str(directory))}", *_commands(written)]
    files = [str(path) for path in written]
    text = "\n".join(["wrote " + ", ".join(files), "", *commands])
    say(state, text, template=template, files=files, commands=commands)


def _commands(written: tuple[Path, ...]) -> list[str]:
    """Return the shell commands in the template's README, in order."""
    commands: list[str] = []
    for path in written:
        if path.name == "README.md":
            for block in path.read_text(encoding="utf-8").split(f"{FENCE}sh\n")[1:]:
                commands += block.partition(f"\n{FENCE}")[0].splitlines()
    return commands
