"""Command group `penstock diskless`: shows, checks and rewrites the objects of diskless topics.

The commands open the control plane and the object store themselves, with the brokers' settings.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from penstock.apps.client.session import (
    State,
    counted,
    current,
    default_option,
    show,
    show_facts,
    write_json,
    write_table,
)
from penstock.apps.diskless.installation import (
    Installation,
    installation_options,
    opened,
    partition_names,
    wanted_partitions,
)
from penstock.base.errors import PenstockError

if TYPE_CHECKING:
    from uuid import UUID

    from penstock.apps.process.configuration import Configuration
    from penstock.control import Backlog, ObjectTotals
    from penstock.control.values.diskless import PartitionKey
    from penstock.diskless.consolidation import Made
    from penstock.diskless.topics.verification import Verifier


# Command `penstock diskless consolidate`: rewrites write-ahead extents into sealed segments.
#
# It does the same work as the broker's background job, and both may run at the same time. With
# `--spark` a running broker chooses the extents, and Spark's executors read and write the objects.


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
    from penstock.apps.process.wiring import store_options
    from penstock.spark.reads.consolidation import consolidate as run_job
    from penstock.spark.sessions.workers import slots

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


BACKLOGS_SHOWN: Final = 20
ROWS_PER_CALL: Final = 1_000
PARTITIONS_SHOWN: Final = 8


@click.group("diskless", short_help="Inspect and rewrite objects of diskless topics.")
def diskless() -> None:
    """Show, check and rewrite the objects of diskless topics.

    The commands read the brokers' own settings (--config, --data-dir, -X, environment), and open
    their database and object store. With PostgreSQL (control.url) brokers may run meanwhile; with
    SQLite the broker must be stopped. Only `consolidate` changes anything.
    """


diskless.add_command(consolidate)


class Status(NamedTuple):
    """Result of `penstock diskless status`."""

    totals: list[ObjectTotals]
    backlogs: list[Backlog]
    highest_id: int
    marked_id: int | None
    """Highest object id by the object-id marker; None if the database was restored from an old
    backup.
    """
    warning: str


@diskless.command("status", short_help="Count objects by state and kind.")
@installation_options
def status(configuration: Configuration) -> None:
    """Count objects by state and kind, and list the partitions with the most write-ahead extents.

    Exits with status 1 if the store has objects newer than the database, which was then restored
    from an old backup.
    """
    _show_status(current(), *asyncio.run(_status(configuration)))


async def _status(configuration: Configuration) -> tuple[Status, dict[PartitionKey, str]]:
    from penstock.diskless.errors import DatabaseRestored
    from penstock.diskless.gc import ObjectIdMarkers

    async with opened(configuration) as installation:
        plane = installation.plane
        totals = await plane.object_totals()
        backlogs = await plane.backlogs(min_extents=1, limit=BACKLOGS_SHOWN)
        id_markers = ObjectIdMarkers(
            plane=plane, store=installation.store, guard=installation.guard
        )
        try:
            standing = await id_markers.check()
            found = Status(totals, backlogs, standing.highest_id, standing.marked_id, "")
        except DatabaseRestored as error:
            found = Status(totals, backlogs, error.highest_id, None, str(error))
        return found, await partition_names(installation)


def _show_status(state: State, found: Status, names: dict[PartitionKey, str]) -> None:
    totals = [item._asdict() for item in found.totals]
    backlogs = [
        {
            "partition": _name(names, item.topic_id, item.partition),
            "extents": item.extents,
            "size_bytes": item.size_bytes,
            "oldest_timestamp": item.oldest_timestamp,
        }
        for item in found.backlogs
    ]
    facts = {
        "objects": totals,
        "backlogs": backlogs,
        "highest_object_id": found.highest_id,
        "marked_object_id": found.marked_id,
        "warning": found.warning,
    }
    columns = ("state", "kind", "objects", "bytes=size_bytes")
    show(state, totals, columns, title="Objects", all_as_json=facts)
    if not state.json:
        most = ("partition", "extents", "bytes=size_bytes")
        show(state, backlogs, most, title="Partitions with the most extents in write-ahead objects")
        marked = "unknown" if found.marked_id is None else found.marked_id
        click.echo(
            f"highest object id: {found.highest_id} in the database, {marked} in the store's marker"
        )
    if found.warning:
        click.echo(f"penstock: {found.warning}", err=True)
        raise click.exceptions.Exit(1)


@diskless.command("objects", short_help="List objects.")
@click.option(
    "--state", "wanted", type=click.Choice(("pending", "committed", "deleting")),
    help="Only objects in this state: pending (the key is reserved), committed, or deleting.",
)  # fmt: skip
@click.option(
    "--after",
    default="",
    metavar="KEY",
    help="Begin after this key: for more objects, the last key of the previous list.",
)
@default_option("--limit", 100, "Largest number of objects to list.", click.IntRange(1, 100_000))
@installation_options
def objects(configuration: Configuration, wanted: str | None, after: str, limit: int) -> None:
    """List objects by key, with their state, their size, and the partitions in their footers.

    An object without a size is not in the store: its key is only reserved, or it is being deleted.
    A sealed segment has no footer; its first offset is shown instead of partitions.
    """
    rows = asyncio.run(_objects(configuration, wanted, after, limit))
    shown = []
    for row in rows:
        partitions = row["partitions"]
        text = ", ".join(partitions[:PARTITIONS_SHOWN])
        if len(partitions) > PARTITIONS_SHOWN:
            text += f" and {len(partitions) - PARTITIONS_SHOWN} more"
        shown.append(row | {"partitions": row["note"] or text})
    show(current(), shown, ("key", "state", "bytes=size_bytes", "partitions"), all_as_json=rows)


async def _objects(
    configuration: Configuration, wanted: str | None, after: str, limit: int
) -> list[dict[str, Any]]:
    async with opened(configuration) as installation:
        names = await partition_names(installation)
        rows: list[dict[str, Any]] = []
        async for state, key in _keys(installation, after):
            if wanted is None or state == wanted:
                rows.append(await _object(installation, names, state, key))
            if len(rows) == limit:
                break
        return rows


async def _keys(installation: Installation, after: str) -> AsyncIterator[tuple[str, str]]:
    while True:
        rows = await installation.plane.referenced_keys(after=after, limit=ROWS_PER_CALL)
        for state, lease in rows:
            yield state, lease.key
        if len(rows) < ROWS_PER_CALL:
            return
        after = rows[-1][1].key


async def _object(
    installation: Installation, names: dict[PartitionKey, str], state: str, key: str
) -> dict[str, Any]:
    from penstock.archive.wal import read_footer
    from penstock.control.values.tiers import LOG, SUFFIXES
    from penstock.objects import ObjectNotFound, StoreRefused, StoreUnavailable

    row: dict[str, Any] = {
        "key": key, "state": state, "size_bytes": None, "partitions": [], "note": ""
    }  # fmt: skip
    try:
        row["size_bytes"] = size_bytes = (await installation.store.head(key)).size_bytes
        footer = await read_footer(installation.store, key, size_bytes)
    except ObjectNotFound:
        row["note"] = "not in the store" if state == "committed" else ""
    except (StoreRefused, StoreUnavailable):
        raise  # the store would not answer for the next objects either
    except PenstockError as error:
        if key.endswith(SUFFIXES) and not key.endswith(LOG):
            row["note"] = "an index of a tiered segment"
        else:
            row["note"] = (
                await _sealed(installation, key, row["size_bytes"]) or f"no footer: {error}"
            )
    else:
        row["partitions"] = [_name(names, item.topic_id, item.partition) for item in footer.ranges]
    return row


async def _sealed(installation: Installation, key: str, size_bytes: int | None) -> str:
    """Return a description of a sealed segment; empty for any other object."""
    from penstock.records import HEADER_BYTES, decode_header

    if size_bytes is None or size_bytes < HEADER_BYTES:
        return ""
    try:
        first = decode_header(await installation.store.get(key, 0, HEADER_BYTES))
    except PenstockError:
        return ""
    return f"a sealed segment from offset {first.base_offset} on"


@diskless.command("verify", short_help="Check the objects against the index.")
@click.option(
    "--topic", help="Check only this topic's partitions; orphans are reported for all topics."
)
@click.option(
    "--checksums", is_flag=True, help="Also read all batches and compare their checksums."
)
@installation_options
def verify(configuration: Configuration, topic: str | None, checksums: bool) -> None:
    """Check that the object of every extent exists, is intact, and matches the index.

    Exits with status 1 on any problem. Orphans (objects that the database does not reference) count
    as problems too, although brokers delete them once they are old enough.
    """
    _show_verification(current(), asyncio.run(_verify(configuration, topic, checksums)))


async def _verify(configuration: Configuration, topic: str | None, checksums: bool) -> Verifier:
    from penstock.diskless.topics.verification import Verifier

    async with opened(configuration) as installation:
        wanted = await wanted_partitions(installation, topic)
        verifier = Verifier(plane=installation.plane, store=installation.store, checksums=checksums)
        await verifier.verify([(name, key) for key, name in wanted.items()])
        return verifier


def _show_verification(state: State, found: Verifier) -> None:
    facts = {
        "wrong": found.wrong,
        "partitions": found.partitions,
        "extents": found.extents,
        "objects": found.objects,
        "verified_bytes": found.verified_bytes,
        "counts": dict(sorted(found.counts.items())),
    }
    if state.json:
        write_json({**facts, "findings": [item._asdict() for item in found.findings]})
    else:
        if found.findings:
            write_table(("what", "where", "detail"), found.findings)
        rows = [
            ("partitions", found.partitions),
            ("extents", found.extents),
            ("objects in the store", found.objects),
            ("bytes of batches verified", found.verified_bytes),
            *sorted(found.counts.items()),
        ]
        verdict = "nothing is wrong" if not found.wrong else counted(found.wrong, "fault")
        write_table(("", "count"), rows, title=verdict)
    if found.wrong:
        raise click.exceptions.Exit(1)


def _name(names: dict[PartitionKey, str], topic_id: UUID, partition: int) -> str:
    return names.get((topic_id, partition)) or f"{topic_id}-{partition}"
