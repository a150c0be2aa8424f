"""`penstock log repair`: repairs the files of a stopped broker."""

from __future__ import annotations

import click

from penstock.apps.log.progress import progress
from penstock.apps.log.sources import Chosen, FileSource, place_options, size_of
from penstock.apps.session import counted, show


@click.command("repair", short_help="Rebuild indexes, and quarantine unreadable batches.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.option("--yes", is_flag=True, help="Do it; otherwise only show what would be done.")
@place_options
def repair(chosen: Chosen, dry_run: bool, yes: bool) -> None:
    """Rebuild files from batches, and set aside batches that cannot be read.

    For the directory of a broker that was stopped cleanly (--data-dir). Indexes, indexes of
    aborted transactions and snapshots that `verify` finds wrong are rebuilt. A segment with batches
    that cannot be read is written again without them; consumers skip these offsets. The former file
    is kept beside it with the suffix .quarantined: nothing is deleted. If another broker or a
    backup has the file, restore it from there instead.

    Without --yes nothing is changed. The command may be stopped at any time, and run again.
    """
    from penstock.storage.inspection.repair import Step, repair_store

    if chosen.data_dir is None or chosen.objects:
        raise click.UsageError("repair needs the directory of a stopped broker: add --data-dir")
    perform = yes and not dry_run
    steps: list[Step] = []
    with progress("looking", size_of(FileSource(chosen))) as advance:
        for root in chosen.roots():
            repair_store(root, chosen.wanted, perform=perform, report=steps.append, advance=advance)
    rows = [step._asdict() for step in steps]
    facts = {"performed": perform, "steps": rows}
    if rows or chosen.state.json:
        show(chosen.state, rows, ("file=path", "what"), all_as_json=facts)
    if chosen.state.json:
        return
    if not rows:
        click.echo("no problems to repair")
    elif perform:
        click.echo(f"{counted(len(rows), 'step')} done; check the result with penstock log verify")
    else:
        click.echo(f"{counted(len(rows), 'step')} to do, nothing changed; add --yes to do them")
