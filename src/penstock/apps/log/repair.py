"""`penstock log repair`: repairs the files of a stopped broker."""

from __future__ import annotations

import click

from penstock.apps.log.progress import progress
from penstock.apps.log.sources import Chosen, FileSource, place_options, size_of
from penstock.apps.session import show


@click.command("repair", short_help="Rebuild indexes, and quarantine unreadable batches.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option("--yes", is_flag=True, help="Do it; without, it is only said.")
@place_options
def repair(chosen: Chosen, dry_run: bool, yes: bool) -> None:
    """Rebuild files from batches, and set aside batches that cannot be read.

    For the directory of a broker that was stopped in good order (--data-dir). Indexes, indexes of
    aborted transactions and snapshots that `verify` finds wrong are rebuilt. A segment with batches
    that cannot be read is written again without them; consumers skip these offsets. The former file
    is kept beside it with the suffix .quarantined: nothing is deleted. If another broker or a
    backup has the file, restore it from there instead.

    Without --yes nothing is changed. The command may be stopped at any time, and run again.
    """
    from penstock.storage.inspection.repair import Step, repair_store

    if chosen.data_dir is None or chosen.objects:
        raise click.UsageError("repair is for the files of a stopped broker: --data-dir")
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
        click.echo("there is nothing to repair")
    elif perform:
        click.echo(f"{len(rows)} steps are done; penstock log verify looks again")
    else:
        click.echo(f"{len(rows)} steps would be done; nothing was changed: --yes does them")
