"""Command group `penstock table`: runs, shows, compacts and cleans the Delta tables of topics."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.apps.client.session import (
    DEFAULT_BOOTSTRAP,
    State,
    client_options,
    default_option,
    show,
)
from penstock.apps.outbox.care import parse_duration, parse_size
from penstock.apps.pipeline.spark import master_option
from penstock.apps.process.daemon import handled
from penstock.base.errors import InvalidError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.tables.reconciler import TableState, WantedTable

HOUR_MS: Final = 3_600_000
SHOWN_MAX: Final = 100
"""Most paths that are printed for a table; the counts cover all."""

Command = Callable[..., Any]


@click.group("table", short_help="Maintain Delta tables of topics.")
def table() -> None:
    """Maintain Delta tables, which contain the records of topics with table.format=delta."""


def _root(command: Command) -> Command:
    return click.option(
        "--root", required=True, envvar="PENSTOCK_TABLE_ROOT", metavar="DIRECTORY",
        help="Directory or URL that contains the tables of topics without table.location"
        " (PENSTOCK_TABLE_ROOT).",
    )(command)  # fmt: skip


@table.command("run", short_help="Maintain the tables.")
@_root
@click.option(
    "--admin", envvar="PENSTOCK_ADMIN_URL", metavar="URL",
    help="Admin interface of a broker, with which Spark can read segment files directly"
    " (PENSTOCK_ADMIN_URL). Default: read through brokers.",
)  # fmt: skip
@master_option
@default_option(
    "--tables-max", 32, "Largest number of tables to maintain at once; further topics wait.",
    click.IntRange(1, 1_000),
)  # fmt: skip
@click.option(
    "--once",
    is_flag=True,
    help="Stop when all records that are available at the start are in the tables.",
)
@client_options
def run(
    state: State, root: str, admin: str | None, master: str | None, tables_max: int, once: bool
) -> None:
    """Write the records of all topics with table.format=delta to their tables, until SIGTERM.

    Topics may be created and deleted meanwhile. An error stops only the table that it concerns.
    With --once the command exits with status 1 if a table could not be updated.
    """
    from penstock.spark.tables.topic_table import Materialiser

    _log_to_stderr()
    bootstrap = state.setting("bootstrap", state.bootstrap, DEFAULT_BOOTSTRAP)
    spark = _session(master)
    try:
        job = Materialiser(
            spark, bootstrap=bootstrap, root=root, admin_url=admin, tables_max=tables_max
        )
        stop = _Stop()
        with handled(stop.note, (signal.SIGTERM, signal.SIGINT)):
            states = job.run(stop, once=once)
    finally:
        spark.stop()
    if once:
        _show_states(state, states)
        if any(item.phase != "done" for item in states):
            raise click.exceptions.Exit(1)


@table.command("status", short_help="Show the state of the tables.")
@_root
@client_options
def status(state: State, root: str) -> None:
    """Show each table's version, size, end offsets, and lag behind the log in records.

    Changes nothing and needs no Spark. Exits with status 1 if a table cannot be updated.
    """
    from penstock.spark.tables.topics import table_status, wanted_tables

    with state.client() as client:
        wanted = wanted_tables(client, root)
        found = [table_status(client, item) for _, item in sorted(wanted.items())]
    columns = (
        "topic", "location", "version", "rows", "files", "bytes=size_bytes", "lag=lag_records",
        "ends=shown_ends",
    )  # fmt: skip
    facts = [asdict(item) for item in found]
    ends = [" ".join(f"{at}:{end}" for at, end in item.ends.items()) for item in found]
    rows = [row | {"shown_ends": text} for row, text in zip(facts, ends, strict=True)]
    show(state, rows, columns, things="tables", all_as_json=facts)
    for item in found:
        if item.problem and not state.json:
            click.echo(f"penstock: {item.problem}", err=True)
    if any(item.problem for item in found):
        raise click.exceptions.Exit(1)


@table.command("compact", short_help="Rewrite small files as large ones.")
@click.argument("topics", nargs=-1, metavar="[TOPIC…]")
@_root
@default_option("--target", "128m", "Size of the new files in bytes; k, m and g are suffixes.")
@client_options
def compact(state: State, topics: tuple[str, ...], root: str, target: str) -> None:
    """Rewrite the small files of the tables of TOPICs as large files; without TOPIC, those of all
    tables.

    Tables may be read and written meanwhile. Replaced files remain for readers of older versions
    until `penstock table clean` removes them.
    """
    from penstock.spark.tables.compaction import compact as compact_table

    target_bytes = parse_size(target, "--target")
    rows = []
    for item in _chosen(state, topics, root):
        done = compact_table(item.location, target_bytes=target_bytes)
        if done is not None:
            rows.append((item.topic, done.files_removed, done.files_added, done.version))
    _show(state, ("topic", "files_removed", "files_added", "version"), rows)


@table.command("clean", short_help="Remove files that no table version needs.")
@click.argument("topics", nargs=-1, metavar="[TOPIC…]")
@_root
@default_option(
    "--age", "7d", "Age from which files are removed, in whole hours, as 12h or 7d; 1h or more."
)
@click.option(
    "--execute", is_flag=True, help="Remove the files; without this option they are only listed."
)
@client_options
def clean(state: State, topics: tuple[str, ...], root: str, age: str, execute: bool) -> None:
    """Remove files that no current table version needs, of the tables of TOPICs or of all tables.

    These are files of failed write attempts, and files that compaction replaced. Without --execute
    they are only listed. Choose an age that exceeds the duration of any write attempt, and of any
    read of an older version.
    """
    from penstock.spark.tables.collection import remove_orphans

    hours, rest = divmod(parse_duration(age, "--age"), HOUR_MS)
    if rest or not hours:
        raise click.UsageError(f"--age {age}: must be whole hours, 1h or more")
    rows = []
    for item in _chosen(state, topics, root):
        found = remove_orphans(item.location, older_than_hours=hours, execute=execute)
        rows.append((item.topic, len(found.files), len(found.directories)))
        for path in [*found.files, *found.directories][:SHOWN_MAX]:
            click.echo(f"{'removed' if execute else 'would remove'} {path}", err=True)
    _show(state, ("topic", "files", "directories"), rows)


def _chosen(state: State, topics: tuple[str, ...], root: str) -> list[WantedTable]:
    from penstock.spark.tables.topics import wanted_tables

    with state.client() as client:
        wanted = wanted_tables(client, root)
    if unknown := sorted(set(topics) - set(wanted)):
        raise InvalidError(f"topic {unknown[0]} has no table; set table.format=delta on the topic")
    for item in wanted.values():
        if item.problem is not None:
            click.echo(f"penstock: {item.problem}", err=True)
    names = sorted(topics or wanted)
    return [wanted[name] for name in names if wanted[name].problem is None]


def _show(state: State, columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    show(state, [dict(zip(columns, row, strict=True)) for row in rows], columns)


def _show_states(state: State, states: tuple[TableState, ...]) -> None:
    rows = [(item.wanted.topic, item.wanted.location, item.phase, item.problem) for item in states]
    _show(state, ("topic", "location", "phase", "problem"), rows)


def _session(master: str | None) -> SparkSession:
    from penstock.spark.sessions.java import require_java
    from penstock.spark.sessions.session import session

    require_java()
    if master is None:
        return session(application="penstock-tables")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("penstock-tables")
    return session(builder)


def _log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("penstock.spark.tables")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


class _Stop:
    """Stop flag of a run, which signals set; the next run repeats an interrupted batch."""

    def __init__(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for at most `timeout` seconds; return whether a signal has arrived."""
        if not self._set:
            signal.sigtimedwait((), timeout or 0.0)
        return self._set

    def note(self, *_: object) -> None:
        self._set = True
