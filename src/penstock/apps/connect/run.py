"""Command `penstock connect run`: runs a connector until it is stopped, or has caught up.

SIGINT and SIGTERM end the run between two batches, with status 0. A second signal ends the process
at once; the next run continues from the committed positions. A connector that fails ends the
command with status 1 and one line with the cause.
"""

from __future__ import annotations

import signal
from typing import Final

import click

from penstock.apps.client.session import State, say
from penstock.apps.connect.command import Located, client_of, located
from penstock.apps.process.daemon import handled, set_up

FORCED_STATUS: Final = 1


@click.command("run", short_help="Run a connector.")
@located
@click.option(
    "--once", is_flag=True, help="Stop when all data that was there at the start is transferred."
)
def run(state: State, where: Located, once: bool) -> None:
    """Run a connector until SIGINT or SIGTERM, or with --once to the end of the available data.

    Slots, publications, topics and tables that the connector needs are created, and reported on
    stderr. A run continues where the previous run stopped.
    """
    from penstock.connect import running
    from penstock.connect.status import StatusFile

    spec = where.load()
    set_up("text", "warning")
    stop = running.Stop()

    def on_signal(number: int, frame: object) -> None:
        if stop.requested:
            raise SystemExit(FORCED_STATUS)
        stop.set()

    status = StatusFile(spec.name, spec.direction, spec.state)
    with (
        handled(on_signal, (signal.SIGINT, signal.SIGTERM)),
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
