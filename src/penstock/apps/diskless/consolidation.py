"""Command `penstock diskless consolidate`: rewrites write-ahead extents into sealed segments.

It does the same work as the broker's background job, and both may run at the same time. With
`--spark` a running broker chooses the extents, and Spark's executors read and write the objects.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.apps.diskless.installation import installation_options, opened, wanted_partitions
from penstock.apps.session import current, show_facts

if TYPE_CHECKING:
    from penstock.apps.configuration import Configuration
    from penstock.diskless.consolidation import Made

PASSES_MAX: Final = 1_000
"""Limit of passes over all partitions. Passes end with one that makes no segment and loses no race
against a broker. The reported failures are those of this last pass, which retries all earlier ones.
"""


@click.command("consolidate", short_help="Rewrite write-ahead objects as segments.")
@click.option(
    "--topic", help="Only this topic's partitions. Default: those of all diskless topics."
)
@click.option(
    "--all-ages",
    is_flag=True,
    help="Ignore the minimum age and number of extents, and rewrite all.",
)
@click.option(
    "--spark",
    "by_spark",
    is_flag=True,
    help="Do the work in a Spark job; a running broker chooses the extents.",
)
@click.option(
    "--master",
    metavar="URL",
    help="With --spark: Spark master. Default: all cores of this machine.",
)
@click.option(
    "--admin",
    metavar="URL",
    help="With --spark: address of a broker's admin interface. Default: the setting"
    " admin.listener.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="With --spark: setting of Spark, as spark.key=value. May be repeated.",
)
@installation_options
def consolidate(
    configuration: Configuration,
    topic: str | None,
    all_ages: bool,
    by_spark: bool,
    master: str | None,
    admin: str | None,
    settings: tuple[str, ...],
) -> None:
    """Rewrite old extents of write-ahead objects into sealed segments, one partition in each
    segment.

    The settings diskless.consolidation.* (-X) define the minimum age and number of extents, the
    size of segments, and the rate in bytes per second. The command can be stopped at any time. If
    an object is damaged or missing, its extents stay unchanged and the command exits with status 1.

    With --spark a broker chooses the extents by its own settings, and Spark's executors do the
    work. They open the object store with diskless.storage.options as given here, and with their
    environment.
    """
    if not by_spark and (master or admin or settings):
        raise click.UsageError("--master, --admin and --set require --spark")
    if by_spark:
        facts = _by_spark(configuration, topic, all_ages, master, admin, settings)
    else:
        facts = asyncio.run(_consolidate(configuration, topic, all_ages))
    show_facts(current(), facts, ("", "count"), spaced=True)
    if facts["failures"]:
        raise click.exceptions.Exit(1)


def _by_spark(
    configuration: Configuration,
    topic: str | None,
    all_ages: bool,
    master: str | None,
    admin: str | None,
    settings: tuple[str, ...],
) -> dict[str, Any]:
    from penstock.apps.pipeline.spark import job_session, parse_settings
    from penstock.apps.wiring import store_options
    from penstock.spark.consolidation import consolidate as run_job
    from penstock.spark.workers import slots

    scheme = "https" if configuration.broker.admin_security_protocol == "SSL" else "http"
    address = admin or f"{scheme}://{configuration.broker.admin_listener}"
    chosen = parse_settings(settings)
    with job_session("penstock diskless consolidate", master=master, settings=chosen) as spark:
        outcome = run_job(
            spark,
            admin_url=address,
            slots=slots(spark),
            store_options=store_options(configuration.locations),
            topic=topic,
            all_ages=all_ages,
            report=lambda line: click.echo(line, err=True),
        )
    return asdict(outcome)


async def _consolidate(
    configuration: Configuration, topic: str | None, all_ages: bool
) -> dict[str, Any]:
    from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS
    from penstock.diskless.consolidation import Consolidator
    from penstock.diskless.gc import ObjectIdMarkers

    async with opened(configuration) as installation:
        names = await wanted_partitions(installation, topic)
        id_markers = ObjectIdMarkers(
            plane=installation.plane, store=installation.store, guard=installation.guard
        )
        await id_markers.claim()

        def tell(made: Made) -> None:
            click.echo(
                f"{names[made.key]}: offsets {made.base_offset} to {made.next_offset - 1} of"
                f" {made.extents} extents written to {made.object_key}, {made.size_bytes} bytes",
                err=True,
            )

        consolidator = Consolidator(
            configuration.diskless,
            plane=installation.plane,
            store=installation.store,
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
