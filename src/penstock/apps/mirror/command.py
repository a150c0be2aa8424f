"""Command group `penstock mirror`: copies topics and groups of one cluster into another.

Each problem of a file is reported on one line, `file:line: where: message; fix`, and the exit
status is then 1. A mirror that fails ends its command with status 1 and one line with the cause.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import msgspec

from penstock.apps.client.session import (
    STATUS_PROBLEMS,
    FilePlace,
    LazyGroup,
    State,
    default_option,
    on_file,
    say,
    show,
    show_problems,
)
from penstock.apps.connect.command import BROKER_TIMEOUT_MS, STATE_DOC, show_status
from penstock.apps.pipeline.spark import job_session, master_option, parse_settings
from penstock.base.document import DocumentInvalid, Problem
from penstock.base.errors import PenstockError
from penstock.base.extras import check_installed

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock.mirror.mirror_file import MirrorSpec
    from penstock.mirror.watching import Watch

_COMMANDS: Final = {
    "run": ("mirror.command", "run", "Run a mirror."),
    "history": ("mirror.command", "history", "Copy history with Spark, before a mirror runs."),
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
@click.option(
    "--listen", metavar="HOST:PORT",
    help="Address of /metrics, /status and /livez, without authentication. Default: none.",
)  # fmt: skip
def run(state: State, where: FilePlace, once: bool, listen: str | None) -> None:
    """Mirror until SIGINT or SIGTERM, or with --once to the end of the available records.

    Topics, settings and ACLs that are changed in the target are reported on stderr. A run continues
    where the previous run stopped.
    """
    from penstock.apps.connect.run import started
    from penstock.apps.mirror.schemas import following
    from penstock.mirror import running
    from penstock.mirror.watching import Watch

    spec = load(where)

    def report(line: str) -> None:
        click.echo(f"{spec.name}: {line}", err=True)

    with (
        started(state, spec, "mirror") as (stop, status),
        Watch(spec, status) as watch,
        _page(watch, listen),
        following(spec, watch, stop, report),
    ):
        running.run(running.MirrorRun(spec=spec, watch=watch, stop=stop, once=once, report=report))
    found = status.status
    text = f"{spec.name}: {found.records:,} records in {found.batches:,} transactions"
    say(state, text, mirror=spec.name, records=found.records, transactions=found.batches)


@contextmanager
def _page(watch: Watch, listen: str | None) -> Iterator[None]:
    """Serve the page of a mirror, if it has an address."""
    if listen is None:
        yield
        return
    from penstock.base.http_listener import parse_address
    from penstock.base.http_page import HttpPage
    from penstock.mirror.page import build_app

    page = HttpPage(build_app(watch), parse_address(listen, setting="--listen"))
    page.start()
    try:
        yield
    finally:
        page.stop()


@click.command("history", short_help="Copy history with Spark, before a mirror runs.")
@on_file(STATE_DOC)
@click.option(
    "--log-dir", "directories", multiple=True, metavar="DIRECTORY",
    type=click.Path(path_type=Path),
    help="Log directory (log.dirs) of a broker of the source, or a copy. May be repeated.",
)  # fmt: skip
@click.option(
    "--source-admin", metavar="URL,…",
    help="Instead of --log-dir: admin addresses of the source, if it is Penstock.",
)  # fmt: skip
@click.option(
    "--admin", required=True, envvar="PENSTOCK_ADMIN_URL", metavar="URL,…",
    help="Admin addresses of the target, which must be Penstock (PENSTOCK_ADMIN_URL).",
)  # fmt: skip
@master_option
@click.option(
    "--set", "settings", multiple=True, metavar="spark.KEY=VALUE",
    help="Setting of the Spark session. May be repeated.",
)  # fmt: skip
@default_option(
    "--round-bytes", "1g", "Bytes of the source that one commit copies; k, m and g are suffixes."
)
def history(
    state: State, where: FilePlace, directories: tuple[Path, ...], source_admin: str | None,
    admin: str, master: str | None, settings: tuple[str, ...], round_bytes: str,
) -> None:  # fmt: skip
    """Copy closed segments of the source's log directories, or files and objects of a Penstock
    source, with a Spark job.

    The target gets the records that `penstock mirror run` would write, each once. The mirror then
    continues at the offsets that the job reached. If the job ends early, run it again. SIGINT and
    SIGTERM end it after its current round.
    """
    from penstock.apps.outbox.care import parse_size
    from penstock.apps.process.daemon import handled, set_up
    from penstock.connect.running import Stop
    from penstock.mirror.history import HistoryRun
    from penstock.mirror.history import run as copy_history
    from penstock.mirror.log_directories import LogDirectories
    from penstock.spark.sessions.workers import slots

    if bool(directories) == bool(source_admin):
        raise click.UsageError("give either --log-dir or --source-admin")
    spec = load(where)
    set_up("text", "warning")
    files = LogDirectories(directories, lambda at: spec.mirrors(at.topic)) if directories else None
    stop = Stop()
    name = f"penstock mirror history {spec.name}"
    with (
        job_session(name, master=master, settings=parse_settings(settings)) as spark,
        handled(lambda *_: stop.set(), (signal.SIGINT, signal.SIGTERM)),
    ):
        copied = copy_history(
            HistoryRun(
                spec=spec, spark=spark, slots=slots(spark), stop=stop, admin_url=admin,
                directories=files, source_admin=source_admin or "",
                round_bytes=parse_size(round_bytes, "--round-bytes"),
                report=lambda line: click.echo(f"{spec.name}: {line}", err=True),
            )
        )  # fmt: skip
    rows = [
        {"topic": at.topic, "partition": at.partition, "next_offset": offset}
        for at, offset in sorted(copied.ends.items())
    ]
    facts = {"mirror": spec.name, "records": copied.records, "next_offsets": rows}
    show(state, rows, things="partitions with history", all_as_json=facts)
    if not state.json:
        click.echo(f"{copied.records:,} records copied. Continue: penstock mirror run {where.file}")


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
    from penstock.mirror.rights import missing_rights
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
    topics = source_topics(spec, source)
    if rights := missing_rights(spec, source, target, topics):
        for message, fix in rights.items():
            add("rights", message, fix)
    elif not topics:
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
