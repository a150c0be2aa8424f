"""Commands `penstock log verify` and `penstock log repair`: find and repair damaged files and
batches.

`verify` reads all batches of a topic from a running broker, the files of a data directory, or
objects and their index. `repair` changes the files of a stopped broker.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from penstock.apps.client.session import counted, show
from penstock.apps.log.sources import (
    Chosen,
    FileSource,
    Range,
    fetched_from,
    no_such_partition,
    place_options,
    progress,
    size_of,
    source_of,
)
from penstock.base.ids import TopicPartition

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock.storage.inspection.directories import BatchVerifier, Finding


@click.command("verify", short_help="Check stored batches and the files beside them.")
@click.option(
    "--quick", is_flag=True, help="Check only the checksums of batches, without decoding records."
)
@click.option(
    "--notes",
    is_flag=True,
    help="Show also notes: gaps and incomplete last batches, which are not errors.",
)
@place_options
def verify(chosen: Chosen, quick: bool, notes: bool) -> None:
    """Check every stored batch of TOPIC: its checksum, and its records one by one.

    With --data-dir, of Penstock or Apache Kafka, all files of the logs are checked. Indexes,
    snapshots, leader epochs, checkpoint and journal must match the batches. Without TOPIC all
    topics are checked. While a broker runs, and after a crash, differences that its next checkpoint
    or start repairs are only notes.

    With --objects the index of diskless topics is compared with their objects. Exits with status 1
    on any problem.
    """
    from penstock.storage.inspection.directories import BatchVerifier

    verifier = BatchVerifier(deep=not quick)
    if chosen.data_dir is not None and not chosen.objects:
        _verify_files(chosen, verifier)
    elif chosen.objects:
        _verify_objects(chosen, verifier)
    else:
        _verify_topic(chosen, verifier)
    _show(chosen, verifier, notes)


def _verify_files(chosen: Chosen, verifier: BatchVerifier) -> None:
    from penstock.storage.files.errors import StoreLocked
    from penstock.storage.inspection.directories import locked
    from penstock.storage.inspection.stores import verify_store

    roots = chosen.roots()
    with progress("verifying", size_of(FileSource(chosen))) as advance:
        for root in roots:
            with ExitStack() as stack:
                live = False
                try:
                    stack.enter_context(locked(root))
                except StoreLocked:
                    live = True
                    click.echo(
                        f"{root}: a broker is running, so the ends of logs are not compared",
                        err=True,
                    )
                verify_store(root, chosen.wanted, verifier, live=live, advance=advance)
    if chosen.topic is not None and not verifier.partitions:
        raise no_such_partition(chosen)


def _verify_objects(chosen: Chosen, verifier: BatchVerifier) -> None:
    """Verify diskless topics: batches as a consumer gets them, then the index of the objects."""
    import asyncio

    from penstock.apps.diskless.installation import opened, wanted_partitions
    from penstock.base.errors import PenstockError
    from penstock.diskless.topics.verification import Verifier
    from penstock.storage.inspection.directories import Finding

    async def compare() -> Verifier:
        async with opened(chosen.configuration()) as installation:
            wanted = await wanted_partitions(installation, chosen.topic)
            found = Verifier(plane=installation.plane, store=installation.store)
            await found.verify([(name, key) for key, name in wanted.items()])
            return found

    with source_of(chosen) as source, source.progress("verifying", Range()) as advance:
        for where in source.partitions():
            verifier.partitions += 1
            try:
                for batch in source.batches(where, Range()):
                    verifier.verify(where, batch.read(), batch.header, batch.place)
                    advance(batch.header)
            except PenstockError as error:
                verifier.found(Finding(where, -1, -1, "object store", str(error), "object"))
    compared = asyncio.run(compare())
    for finding in compared.findings:
        tell = verifier.note if finding.kind == "orphan" else verifier.found
        tell(Finding(None, -1, -1, finding.where, f"{finding.kind}: {finding.detail}", "object"))


def _verify_topic(chosen: Chosen, verifier: BatchVerifier) -> None:
    topic = chosen.topic
    if topic is None:
        raise click.UsageError("give a TOPIC, --data-dir or --objects")
    wanted = list(chosen.numbers) or None
    with chosen.state.client() as client:
        starts = client.list_offsets(topic, "earliest", partitions=wanted)
        ends = client.list_offsets(topic, "latest", partitions=wanted)
        total = sum(ends[partition] - start for partition, start in starts.items())
        with progress("verifying", total, offsets=True) as advance:
            for partition, start in sorted(starts.items()):
                verifier.partitions += 1
                offset: int | None = start
                while offset is not None and offset < ends[partition]:
                    before = offset
                    offset = verify_fetched(client, topic, partition, offset, verifier)
                    advance((offset or before) - before)


def verify_fetched(
    client: Client, topic: str, partition: int, offset: int, verifier: BatchVerifier
) -> int | None:
    """Check the batches of one fetch from `offset`; return the next offset, None after the last
    one.
    """
    from penstock.client.errors import BrokerFoundCorruption
    from penstock.records import CorruptBatch, split_batches
    from penstock.storage.inspection.directories import Finding

    where = TopicPartition(topic, partition)
    try:
        fetched = fetched_from(client, topic, partition, offset)
    except BrokerFoundCorruption as error:
        readable = _after_damage(client, topic, partition, offset)
        verifier.found(Finding(where, offset, readable - 1, "as fetched", str(error)))
        return readable
    data = memoryview(fetched.data)
    at = 0
    try:
        headers = split_batches(data)
    except CorruptBatch as error:
        verifier.found(Finding(where, offset, -1, "as fetched", str(error)))
        return None
    for header in headers:
        batch = data[at : at + header.size_bytes]
        verifier.verify(where, batch, header, "as fetched")
        at += header.size_bytes
    if fetched.next_offset <= offset:
        verifier.found(Finding(where, offset, -1, "as fetched", "the broker returned no batch"))
        return None
    return fetched.next_offset


def _after_damage(client: Client, topic: str, partition: int, damaged: int) -> int:
    """Return the first offset after a damaged one that the broker can read, else the end of the
    log.
    """
    from penstock.client.errors import BrokerFoundCorruption

    def is_readable(offset: int) -> bool:
        try:
            client.fetch_raw(topic, partition, offset)
        except BrokerFoundCorruption:
            return False
        return True

    end = client.list_offsets(topic, "latest", partitions=[partition])[partition]
    step, readable = 1, end
    while damaged + step < end:
        if is_readable(damaged + step):
            readable = damaged + step
            break
        damaged += step
        step *= 2
    while readable - damaged > 1:
        middle = (damaged + readable) // 2
        if is_readable(middle):
            readable = middle
        else:
            damaged = middle
    return readable


def _show(chosen: Chosen, verifier: BatchVerifier, notes: bool) -> None:
    rows = [_row(item) for item in verifier.findings]
    others = [_row(item) for item in verifier.notes]
    facts = {
        "wrong": verifier.wrong,
        "noted": verifier.noted,
        "partitions": verifier.partitions,
        "batches": verifier.batches,
        "records": verifier.records,
        "bytes": verifier.size_bytes,
        "index_entries": verifier.entries,
    }
    columns = (
        "kind", "partition", "first offset=base_offset", "last_offset", "where=place",
        "problem=reason",
    )  # fmt: skip
    state = chosen.state
    if rows or state.json:
        show(state, rows, columns, all_as_json={**facts, "findings": rows, "notes": others})
    if not state.json:
        _show_words(chosen, verifier, others if notes else [])
    if verifier.wrong:
        raise click.exceptions.Exit(1)


def _show_words(chosen: Chosen, verifier: BatchVerifier, notes: list[dict[str, object]]) -> None:
    if notes:
        columns = (
            "kind", "partition", "first offset=base_offset", "last_offset", "where=place",
            "note=reason",
        )  # fmt: skip
        show(chosen.state, notes, columns)
    click.echo(
        f"{counted(verifier.wrong, 'fault')}, {counted(verifier.noted, 'note')}, in"
        f" {counted(verifier.batches, 'batch')} ({counted(verifier.partitions, 'partition')},"
        f" {counted(verifier.records, 'record')}, {verifier.size_bytes} bytes) and"
        f" {verifier.entries} entries of indexes"
    )
    if any(item.kind == "batch" for item in verifier.findings):
        click.echo(
            "To skip an unreadable batch, move the group behind its last offset: penstock group"
            " seek GROUP -t TOPIC -p PARTITION --to LAST+1 --execute"
        )


def _row(item: Finding) -> dict[str, object]:
    return {
        "kind": item.kind,
        "partition": str(item.partition or "-"),
        "base_offset": item.base_offset,
        "last_offset": item.last_offset,
        "place": item.place,
        "reason": item.reason,
    }


@click.command("repair", short_help="Rebuild indexes, and quarantine unreadable batches.")
@click.option("--dry-run", is_flag=True, help="Only show the steps. This is the default.")
@click.option(
    "--yes", is_flag=True, help="Perform the steps; without this option they are only shown."
)
@place_options
def repair(chosen: Chosen, dry_run: bool, yes: bool) -> None:
    """Rebuild files from batches, and quarantine batches that cannot be read.

    --data-dir must be the directory of a broker that was stopped cleanly. Indexes and snapshots
    that `verify` finds wrong are rebuilt. A segment with unreadable batches is written again
    without them, and consumers skip their offsets. The former file is kept beside it with the
    suffix .quarantined: nothing is deleted. If another broker or a backup has an intact file,
    restore that instead.

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
