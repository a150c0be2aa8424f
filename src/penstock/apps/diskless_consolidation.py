"""`penstock diskless consolidate`: make sealed segments of write-ahead extents, now and to the end.

What the embedded job of a broker does in the background, as a command: for a backlog, or where the
job is switched off. It may run beside brokers that do the same.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.apps.diskless_places import installation_options, opened, wanted_partitions
from penstock.apps.session import State, write_json, write_table

if TYPE_CHECKING:
    from penstock.apps.configuration import Configuration
    from penstock.diskless.consolidation import Made

PASSES_MAX: Final = 1_000
"""Passes over all partitions; each but the last has made something, or lost a race. The failures
are those of the last one, which has tried all of them again."""


@click.command("consolidate", short_help="Make segments of write-ahead objects.")
@click.option("--topic", help="Only this topic's partitions.")
@click.option(
    "--all-ages", is_flag=True, help="Take what is young, too, and what is too little for itself."
)
@installation_options
def consolidate(configuration: Configuration, topic: str | None, all_ages: bool) -> None:
    """Rewrite old extents of write-ahead objects into sealed segments, one partition in each.

    Old is what diskless.consolidation.min.age.ms says; the other settings of that name say how
    much it must be, how large segments become and how fast it goes (-X). May be stopped at any
    time. Status 1 when an object is damaged or gone: its extents stay as they are.
    """
    facts = asyncio.run(_consolidate(configuration, topic, all_ages))
    state = click.get_current_context().obj
    if isinstance(state, State) and state.json:
        write_json(facts)
    else:
        write_table(("", "count"), [(name.replace("_", " "), facts[name]) for name in facts])
    if facts["failures"]:
        raise click.exceptions.Exit(1)


async def _consolidate(
    configuration: Configuration, topic: str | None, all_ages: bool
) -> dict[str, Any]:
    from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS
    from penstock.diskless.collection import ObjectMarks
    from penstock.diskless.consolidation import Consolidator

    async with opened(configuration) as places:
        names = await wanted_partitions(places, topic)
        marks = ObjectMarks(plane=places.plane, store=places.store, cluster_id=places.cluster_id)
        await marks.claim()

        def tell(made: Made) -> None:
            click.echo(
                f"{names[made.key]}: offsets {made.base_offset} to {made.next_offset - 1} of"
                f" {made.extents} extents in {made.size_bytes} bytes, {made.object_key}",
                err=True,
            )

        consolidator = Consolidator(
            configuration.diskless,
            plane=places.plane,
            store=places.store,
            clock=SYSTEM_CLOCK,
            randomness=SYSTEM_RANDOMNESS,
            all_ages=all_ages,
            on_made=tell,
        )
        counters = consolidator.counters
        for _ in range(PASSES_MAX):
            races, counters.failures = counters.races, 0
            if not await consolidator.consolidate(names) and counters.races == races:
                break
        return {
            "partitions": len(names),
            "segments": counters.segments,
            "segment_bytes": counters.segment_bytes,
            "extents": counters.extents,
            "races_lost": counters.races,
            "failures": counters.failures,
        }
