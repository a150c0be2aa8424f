"""`penstock log verify`: name every stored batch that no consumer can read.

It asks a running broker for all batches of a topic, or reads the segment files of one that is
stopped. A consumer that is stuck in front of such a batch goes on behind its last offset.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import click

from penstock.apps.session import State, client_options, show
from penstock.base.errors import InvalidError
from penstock.base.ids import TopicPartition

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock.storage.verification import BatchVerifier


class NoLog(InvalidError):
    """A directory in which no broker has kept a log."""

    code: ClassVar[str] = "invalid_config"


@click.group("log", short_help="Stored batches: whether they can be read.")
def log() -> None:
    """What is stored, batch by batch."""


@log.command("verify", short_help="Name batches that cannot be read.")
@click.argument("topic", required=False)
@click.option("-p", "partitions", multiple=True, type=int, help="Default: all.")
@click.option(
    "--data-dir", type=click.Path(path_type=Path),
    help="Read the files of a stopped broker (its log.dirs) instead of asking a running one.",
)  # fmt: skip
@client_options
def verify(
    state: State, topic: str | None, partitions: tuple[int, ...], data_dir: Path | None
) -> None:
    """Check every stored batch of TOPIC: its checksum, and its records one by one.

    With --data-dir TOPIC may be left out: all topics. After a crash let the broker start once
    before, which puts in order what was not finished. Status 1 when something is wrong.
    """
    from penstock.storage.verification import BatchVerifier

    verifier = BatchVerifier()
    if data_dir is not None:
        _verify_files(data_dir, topic, partitions, verifier)
    elif topic is None:
        raise click.UsageError("name a topic, or the directory of a stopped broker by --data-dir")
    else:
        with state.client() as client:
            _verify_topic(client, topic, partitions, verifier)
    _show(state, verifier)


def _verify_files(
    data_dir: Path, topic: str | None, partitions: tuple[int, ...], verifier: BatchVerifier
) -> None:
    from penstock.apps.wiring import logs_below
    from penstock.base.files import MACHINE_FILES
    from penstock.storage.store import lock_directory
    from penstock.storage.verification import verify_segments

    roots = logs_below(data_dir)
    if not roots:
        raise NoLog(f"--data-dir {data_dir}: there is no directory {data_dir / 'log'}")

    def wanted(where: TopicPartition) -> bool:
        return topic in (None, where.topic) and (not partitions or where.partition in partitions)

    for root in map(str, roots):
        lock = lock_directory(root, MACHINE_FILES)
        try:
            verify_segments(root, wanted, verifier)
        finally:
            MACHINE_FILES.close(lock)
    if topic is not None and not verifier.partitions:
        raise NoLog(f"--data-dir {data_dir}: there is no such partition of topic {topic!r}")


def _verify_topic(
    client: Client, topic: str, partitions: tuple[int, ...], verifier: BatchVerifier
) -> None:
    wanted = list(partitions) or None
    starts = client.list_offsets(topic, "earliest", partitions=wanted)
    ends = client.list_offsets(topic, "latest", partitions=wanted)
    for partition, start in sorted(starts.items()):
        verifier.partitions += 1
        _verify_partition(client, topic, partition, start, ends[partition], verifier)


def _verify_partition(
    client: Client, topic: str, partition: int, offset: int, end: int, verifier: BatchVerifier
) -> None:
    while offset < end:
        following = verify_fetched(client, topic, partition, offset, verifier)
        if following is None:
            return
        offset = following


def verify_fetched(
    client: Client, topic: str, partition: int, offset: int, verifier: BatchVerifier
) -> int | None:
    """Check the batches that one fetch from `offset` brings; where the next begins, if it does."""
    from penstock.records import CorruptBatch, split_batches
    from penstock.storage.verification import Finding

    where = TopicPartition(topic, partition)
    fetched = client.fetch_raw(topic, partition, offset)
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


def _show(state: State, verifier: BatchVerifier) -> None:
    rows = [
        {
            "partition": str(item.partition),
            "base_offset": item.base_offset,
            "last_offset": item.last_offset,
            "place": item.place,
            "reason": item.reason,
        }
        for item in verifier.findings
    ]
    facts = {
        "wrong": verifier.wrong,
        "partitions": verifier.partitions,
        "batches": verifier.batches,
        "records": verifier.records,
        "bytes": verifier.size_bytes,
    }
    columns = (
        "partition", "first offset=base_offset", "last_offset", "where=place",
        "what is wrong=reason",
    )  # fmt: skip
    if rows or state.json:
        show(state, rows, columns, all_as_json={**facts, "findings": rows})
    if not state.json:
        click.echo(
            f"{verifier.wrong} of {verifier.batches} batches cannot be read"
            f" ({verifier.partitions} partitions, {verifier.records} records,"
            f" {verifier.size_bytes} bytes)"
        )
        if rows:
            click.echo(
                "A consumer goes on behind a last offset:"
                " penstock group seek GROUP -t TOPIC -p PARTITION --to LAST+1 --execute"
            )
    if verifier.wrong:
        raise click.exceptions.Exit(1)
