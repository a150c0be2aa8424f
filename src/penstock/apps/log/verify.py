"""`penstock log verify`: lists unreadable batches and inconsistent files.

It asks a running broker for all batches of a topic, or reads the files of a directory, or objects
and their index. A consumer that is stuck at a batch can continue after its last offset.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from penstock.apps.log.progress import progress
from penstock.apps.log.sources import (
    Chosen,
    FileSource,
    Range,
    fetched_from,
    no_such_partition,
    place_options,
    size_of,
    source_of,
)
from penstock.apps.session import counted, show
from penstock.base.ids import TopicPartition

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock.storage.inspection.findings import BatchVerifier, Finding


@click.command("verify", short_help="Check stored batches and the files beside them.")
@click.option("--quick", is_flag=True, help="Check only checksums, not records.")
@click.option(
    "--notes", is_flag=True, help="Show notes too: gaps and torn ends, which are not errors."
)
@place_options
def verify(chosen: Chosen, quick: bool, notes: bool) -> None:
    """Check every stored batch of TOPIC: its checksum, and its records one by one.

    With --data-dir, also of Apache Kafka's, all files are compared: offsets, indexes, indexes of
    aborted transactions, snapshots, leader epochs, checkpoint and journal must match the batches.
    Without TOPIC all topics are checked. While a broker runs there, or after a crash,
    inconsistencies that its next checkpoint or start repairs are notes. With --objects the index of
    diskless topics is compared with their objects. Exits with status 1 on any problem.
    """
    from penstock.storage.inspection.findings import BatchVerifier

    verifier = BatchVerifier(deep=not quick)
    if chosen.data_dir is not None and not chosen.objects:
        _verify_files(chosen, verifier)
    elif chosen.objects:
        _verify_objects(chosen, verifier)
    else:
        _verify_topic(chosen, verifier)
    _show(chosen, verifier, notes)


def _verify_files(chosen: Chosen, verifier: BatchVerifier) -> None:
    from penstock.storage.errors import StoreLocked
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
                        f"{root}: a broker is running; the ends of logs are not compared", err=True
                    )
                verify_store(root, chosen.wanted, verifier, live=live, advance=advance)
    if chosen.topic is not None and not verifier.partitions:
        raise no_such_partition(chosen)


def _verify_objects(chosen: Chosen, verifier: BatchVerifier) -> None:
    """Check batches as fetched by a consumer, then the index against the objects."""
    import asyncio

    from penstock.apps.diskless.installation import opened, wanted_partitions
    from penstock.base.errors import PenstockError
    from penstock.diskless.verification import Verifier
    from penstock.storage.inspection.findings import Finding

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
        raise click.UsageError("name a TOPIC, or a source: --data-dir or --objects")
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
    """Check the batches of one fetch from `offset`; return the next offset, if any."""
    from penstock.client.errors import BrokerFoundCorruption
    from penstock.records import CorruptBatch, split_batches
    from penstock.storage.inspection.findings import Finding

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
        verifier.found(Finding(where, offset, -1, "as fetched", "the broker sends no batch"))
        return None
    return fetched.next_offset


def _after_damage(client: Client, topic: str, partition: int, damaged: int) -> int:
    """Return the first offset after a damaged one that the broker reads, else the end."""
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
            "A consumer can seek behind a last offset:"
            " penstock group seek GROUP -t TOPIC -p PARTITION --to LAST+1 --execute"
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
