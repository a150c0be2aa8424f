"""Command `penstock connect run`: runs a connector until it is stopped, or has caught up.

SIGINT and SIGTERM end the run between two batches, with status 0. A second signal ends the process
at once; the next run continues from the committed positions. A connector that fails ends the
command with status 1 and one line with the cause.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from penstock.apps.client.session import FilePlace, State, on_file, say
from penstock.apps.connect.command import STATE_DOC, client_of, load, writing
from penstock.apps.process.daemon import handled, set_up

if TYPE_CHECKING:
    from penstock.connect.connector_file import ConnectorSpec
    from penstock.connect.running import Stop
    from penstock.connect.status import ConnectorStatus, StatusFile
    from penstock.mirror.mirror_file import MirrorSpec

FORCED_STATUS: Final = 1


class Progress:
    """Line of a terminal with the state and the counts of a connector, written once a second."""

    def __init__(self) -> None:
        self._records = 0

    def __call__(self, status: ConnectorStatus) -> None:
        rate, self._records = status.records - self._records, status.records
        line = f"{status.connector}: {status.state}, {status.records:,} records, {rate:,} new"
        cause = f": {status.cause}" if status.cause else ""
        click.echo(f"\r\033[K{line}{cause}", nl=status.state in ("FAILED", "STOPPED"), err=True)


@contextmanager
def started(
    state: State, spec: ConnectorSpec | MirrorSpec, direction: str
) -> Iterator[tuple[Stop, StatusFile]]:
    """Yield the flag that SIGINT and SIGTERM set, and the status of a run with its progress."""
    from penstock.connect.running import Stop
    from penstock.connect.status import StatusFile

    set_up("text", "warning")
    stop = Stop()

    def on_signal(number: int, frame: object) -> None:
        if stop.requested:
            raise SystemExit(FORCED_STATUS)
        stop.set()

    progress = Progress() if sys.stderr.isatty() and not state.json else None
    with writing(spec.state):
        status = StatusFile(spec.name, direction, spec.state, watch=progress)
    with handled(on_signal, (signal.SIGINT, signal.SIGTERM)):
        yield stop, status


@click.command("run", short_help="Run a connector.")
@on_file(STATE_DOC)
@click.option(
    "--once", is_flag=True, help="Stop when all data that was there at the start is transferred."
)
def run(state: State, where: FilePlace, once: bool) -> None:
    """Run a connector until SIGINT or SIGTERM, or with --once to the end of the available data.

    Slots, publications, topics and tables that the connector needs are created, and reported on
    stderr. A run continues where the previous run stopped.
    """
    from penstock.connect import running

    spec = load(where)
    with (
        started(state, spec, spec.direction) as (stop, status),
        client_of(state, spec) as client,
    ):
        running.run(
            running.Run(
                spec=spec,
                client=client,
                status=status,
                stop=stop,
                once=once,
                report=lambda line: click.echo(f"{spec.name}: {line}", err=True),
            )
        )
    found = status.status
    text = f"{spec.name}: {found.records:,} records in {found.batches:,} batches"
    if found.dead_letters or found.skipped:
        text += f", {found.dead_letters:,} dead letters, {found.skipped:,} skipped"
    say(
        state, text, connector=spec.name, records=found.records, batches=found.batches,
        dead_letters=found.dead_letters, skipped=found.skipped,
    )  # fmt: skip
