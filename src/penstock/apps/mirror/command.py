"""Command group `penstock mirror`: copies topics and groups of one cluster into another.

Each problem of a file is reported on one line, `file:line: where: message; fix`, and the exit
status is then 1. A mirror that fails ends its command with status 1 and one line with the cause.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click
import msgspec

from penstock.apps.client.session import (
    STATUS_PROBLEMS,
    FilePlace,
    LazyGroup,
    State,
    on_file,
    say,
    show_problems,
)
from penstock.apps.connect.command import BROKER_TIMEOUT_MS, STATE_DOC, show_status
from penstock.base.document import DocumentInvalid, Problem
from penstock.base.errors import PenstockError
from penstock.base.extras import check_installed

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock.mirror.mirror_file import MirrorSpec

_COMMANDS: Final = {
    "run": ("mirror.command", "run", "Run a mirror."),
    "validate": ("mirror.command", "validate", "Check a mirror's file."),
    "plan": ("mirror.command", "plan", "Show what a mirror would change."),
    "status": ("mirror.command", "status", "Show the state of a mirror."),
}


@click.group(
    "mirror",
    cls=LazyGroup,
    entries=_COMMANDS,
    short_help="Mirror topics and groups into another cluster.",
)
def mirror() -> None:
    """Mirror topics and groups of one cluster into another; a file describes the mirror.

    The option -b of these commands overrides target.bootstrap.
    """
    check_installed("client")


def load(place: FilePlace) -> MirrorSpec:
    """Read and check a mirror's file.

    Raises:
        DocumentInvalid: the file has problems; the error has all of them.
    """
    from penstock.mirror.mirror_file import load

    return load(place.file, bootstrap=place.bootstrap, state=place.state)


@click.command("run", short_help="Run a mirror.")
@on_file(STATE_DOC)
@click.option(
    "--once", is_flag=True, help="Stop when all records that were there at the start are mirrored."
)
def run(state: State, where: FilePlace, once: bool) -> None:
    """Mirror until SIGINT or SIGTERM, or with --once to the end of the available records.

    Topics, settings and ACLs that are changed in the target are reported on stderr. A run continues
    where the previous run stopped.
    """
    from penstock.apps.connect.run import started
    from penstock.mirror import running
    from penstock.mirror.watching import Watch

    spec = load(where)
    with started(state, spec, "mirror") as (stop, status), Watch(spec, status) as watch:
        running.run(
            running.MirrorRun(
                spec=spec, watch=watch, stop=stop, once=once,
                report=lambda line: click.echo(f"{spec.name}: {line}", err=True),
            )
        )  # fmt: skip
    found = status.status
    text = f"{spec.name}: {found.records:,} records in {found.batches:,} transactions"
    say(state, text, mirror=spec.name, records=found.records, transactions=found.batches)


@click.command("validate", short_help="Check a mirror's file.")
@on_file(STATE_DOC)
@click.option("--static", is_flag=True, help="Check only the file, without connecting anywhere.")
def validate(state: State, where: FilePlace, static: bool) -> None:
    """Report every problem that would keep a mirror from running; nothing is changed.

    The check connects to both clusters. Exits with status 1 on any problem.
    """
    show_problems(state, where.file, _problems(where, static=static))


def _problems(where: FilePlace, *, static: bool) -> tuple[Problem, ...]:
    try:
        spec = load(where)
    except DocumentInvalid as invalid:
        return invalid.problems
    if static:
        return ()
    with _clients(spec) as (source, target):
        return tuple(_cluster_problems(spec, source, target))


def _cluster_problems(spec: MirrorSpec, source: Client, target: Client) -> list[Problem]:
    from penstock.connect import positions
    from penstock.mirror.topics import check_direction, clusters_of, source_topics

    found: list[Problem] = []
    file = spec.document.file

    def add(key: str, message: str, fix: str = "") -> None:
        found.append(Problem(file=file, line=None, where=key, message=message, fix=fix))

    for key, client in (("source.bootstrap", source), ("target.bootstrap", target)):
        try:
            client.metadata(())
        except PenstockError as error:
            add(key, str(error), "start the broker, or correct the address")
    if found:
        return found
    try:
        stored = positions.existing(target, spec.position_owner)
        check_direction(spec, clusters_of(source, target), stored)
    except PenstockError as error:
        add("source.bootstrap", str(error))
    if not source_topics(spec, source):
        add("source.topics", "matches no topic of the source", "correct the names or expressions")
    return found


@contextmanager
def _clients(spec: MirrorSpec) -> Iterator[tuple[Client, Client]]:
    """Open clients of source and target whose calls fail after `BROKER_TIMEOUT_MS`."""
    with (
        spec.source_client(api_timeout_ms=BROKER_TIMEOUT_MS) as source,
        spec.target_client(api_timeout_ms=BROKER_TIMEOUT_MS) as target,
    ):
        yield source, target


@click.command("plan", short_help="Show what a mirror would change.")
@on_file(STATE_DOC)
def plan(state: State, where: FilePlace) -> None:
    """Show the topics, settings and ACLs that a run would change in the target.

    Exits with status 1 if the mirror cannot run; the problems are then reported instead.
    """
    from penstock.connect import positions
    from penstock.mirror.topics import missing_users, source_topics, steps

    spec = load(where)
    with _clients(spec) as (source, target):
        problems = _cluster_problems(spec, source, target)
        if problems:
            raise DocumentInvalid(tuple(problems))
        topics = source_topics(spec, source)
        stored = positions.existing(target, spec.position_owner)
        lines = [step.text for step in steps(spec, source, target, topics, stored) if step.text]
        lines += [f"mirror topic {name} as {spec.renamed(name)}" for name in topics]
        lines += [
            f"user {name} has no password in the target: brokers do not return passwords, so set"
            f" one with `penstock user add {name}`"
            for name in missing_users(source, target)
        ]
    say(state, "\n".join(lines), mirror=spec.name, steps=lines)


@click.command("status", short_help="Show the state of a mirror.")
@on_file(STATE_DOC, required=False)
def status(state: State, where: FilePlace) -> None:
    """Show the state of a mirror's last run on this machine.

    Exits with status 1 if it failed, or if partitions have stopped.
    """
    from penstock.connect.status import read_status

    spec = load(where)
    found = read_status(spec.state)
    if found is None:
        text = f"mirror {spec.name} has not run with the state directory {spec.state}"
        say(state, text, mirror=spec.name, running=False)
        return
    entry = msgspec.to_builtins(found)
    entry["mirror"], entry["transactions"] = entry.pop("connector"), entry.pop("batches")
    show_status(state, entry, ("mirror", "state", "records", "transactions", "retries"))
    if found.state == "FAILED" or found.facts.get("stopped"):
        sys.exit(STATUS_PROBLEMS)
