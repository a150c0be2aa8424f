"""`penstock log`: inspects stored records in a directory, an object store, or a running broker."""

from __future__ import annotations

from typing import Final

import click

from penstock.apps.lazy_group import LazyGroup

_COMMANDS: Final = {
    "dump": ("log.dump", "dump", "Show batches, records, indexes, snapshots, journal."),
    "verify": ("log.verify", "verify", "Check stored batches and the files beside them."),
    "repair": ("log.repair", "repair", "Rebuild indexes, and quarantine unreadable batches."),
    "stats": ("log.stats", "stats", "Count bytes, records, codecs, keys, producers."),
    "tiers": ("log.tiers", "tiers", "Show which parts of tiered topics are archived."),
}


@click.group(
    "log", cls=LazyGroup, entries=_COMMANDS, short_help="Show, check and repair stored batches."
)
def log() -> None:
    """Show stored batches.

    They come from a running broker (TOPIC), a directory of Penstock or Apache Kafka (--data-dir),
    or the object store of diskless topics (--objects).
    """
