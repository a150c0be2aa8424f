"""Command group `penstock outbox`: writes, reads, sweeps, audits and measures an outbox."""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import click

from penstock.apps.client.session import CODECS, State, client_options, default_option
from penstock.apps.outbox.bench import bench
from penstock.apps.outbox.care import audit, outbox_options, parse_size, sweep
from penstock.apps.process.daemon import handled
from penstock.base.errors import InvalidError
from penstock.base.files import MACHINE_FILES, write_file
from penstock.base.settings import load

if TYPE_CHECKING:
    from penstock.outbox.reader.consumer import OutboxConsumer, OutboxMessage
    from penstock.outbox.writer.jobs import SendResult, WriteResult

TEMPORARY_SUFFIX: Final = ".penstock-tmp"


@click.group("outbox", short_help="Write payloads as files, and pointers to them on a topic.")
def outbox() -> None:
    """Use an outbox: payloads are files on a shared file system, and pointers to them are on a
    topic.
    """


outbox.add_command(sweep)
outbox.add_command(audit)
outbox.add_command(bench)


@outbox.command("write", short_help="Send files as batches.")
@click.argument(
    "files", nargs=-1, type=click.Path(path_type=Path, dir_okay=False), metavar="[FILE…]"
)
@outbox_options(topic_required=False)
@click.option(
    "--partition-id",
    required=True,
    help="Name that groups payloads: the key of the record, and the directory below the root that"
    " holds the payload.",
)
@click.option(
    "--batch-id",
    help="Id of the batch. To retry a write, repeat it with --at. The payload becomes a file,"
    " whatever its size, so that the id cannot be used for another payload. Default: random.",
)
@click.option(
    "--at",
    "at_ms",
    type=int,
    metavar="MS",
    help="Time of the batch in ms since 1970, which selects its directory. Default: now.",
)
@default_option(
    "--event-count",
    1,
    "Number of events in the batch, which readers receive.",
    click.IntRange(min=0),
)
@default_option(
    "--codec", "none",
    "Codec with which FILE is compressed already. Readers receive it; nothing is compressed by"
    " it.", CODECS,
)  # fmt: skip
@click.option(
    "--threshold",
    metavar="SIZE",
    help="Largest payload to store in the record instead of a file, such as 16k; -1 writes"
    " all to files. Default: 64k.",
)
@click.option(
    "--no-sync", is_flag=True, help="Do not sync the file: a crash of the machine may lose it."
)
@click.option(
    "--no-publish",
    is_flag=True,
    help="Only write the file and print its pointer, without a record on the topic.",
)
@client_options
def write(
    state: State,
    files: tuple[Path, ...],
    root: str,
    topic: str | None,
    partition_id: str,
    batch_id: str | None,
    at_ms: int | None,
    event_count: int,
    codec: str,
    threshold: str | None,
    no_sync: bool,
    no_publish: bool,
) -> None:
    """Send each FILE, or standard input, as one batch, and print one line of JSON for each.

    The line has the keys of the pointer, and `inline`, which is true if the payload is in the
    record. It is printed once the batch is written, synced and published.
    """
    from penstock.outbox.settings import OutboxSettings
    from penstock.outbox.writer.blocking import Outbox
    from penstock.outbox.writer.publisher import TopicPublisher

    if topic is None and not no_publish:
        raise click.UsageError("name a topic with -t, or add --no-publish")
    if batch_id is not None and len(files) > 1:
        raise click.UsageError("--batch-id names one batch, but several files are given")
    if batch_id is not None and threshold not in (None, "-1"):
        raise click.UsageError("--batch-id always writes a file: omit --threshold")
    changes: dict[str, object] = {
        "outbox.root": root,
        "outbox.topic": topic or "",
        "outbox.durable": not no_sync,
    }
    threshold = threshold if batch_id is None else "-1"
    if threshold is not None:
        none = threshold == "-1"
        changes["outbox.inline.threshold.bytes"] = (
            -1 if none else parse_size(threshold, "--threshold")
        )
    settings = load(OutboxSettings, changes)
    publisher = None if topic is None or no_publish else TopicPublisher(state.client, topic)
    with Outbox(settings, publisher=publisher) as opened:
        for payload in _payloads(files, settings.payload_bytes_max):
            call = opened.send if publisher else opened.write
            result = call(
                payload, partition_id=partition_id, batch_id=batch_id, at_ms=at_ms,
                event_count=event_count, codec=codec,
            )  # fmt: skip
            click.echo(json.dumps(_shown(result, event_count, codec)))


def _payloads(files: tuple[Path, ...], bytes_max: int) -> Iterator[bytes]:
    """Yield the payloads to write: the content of each file, or of stdin without files.

    One byte more than allowed is read, so that the writer rejects a payload that is too large.
    """
    if not files:
        yield sys.stdin.buffer.read(bytes_max + 1)
    for path in files:
        with path.open("rb") as file:
            yield file.read(bytes_max + 1)


def _shown(result: SendResult | WriteResult, event_count: int, codec: str) -> dict[str, Any]:
    pointer = result.pointer
    if pointer is None:  # only a published payload can be in the record
        size_bytes, crc = cast("SendResult", result).size_bytes, cast("SendResult", result).crc32c
    else:
        size_bytes, crc = pointer.size_bytes, pointer.crc32c
    return {
        "file_path": None if pointer is None else pointer.file_path,
        "batch_id": result.identity.batch_id,
        "partition_id": result.identity.partition_id,
        "size_bytes": size_bytes,
        "crc32c": f"{crc:08x}",
        "codec": codec,
        "event_count": event_count,
        "inline": pointer is None,
        "existing": result.idempotent_existing_write,
    }


@outbox.command("read", short_help="Print or store the payloads of a topic.")
@outbox_options()
@click.option(
    "--group",
    required=True,
    help="Group that reads: its committed offsets are the start, and are updated.",
)
@click.option(
    "--dead-letter-topic",
    metavar="TOPIC",
    help="Topic for records that cannot be read. Default: stop at the first of them.",
)
@click.option(
    "-p",
    "partitions",
    multiple=True,
    type=int,
    help="Partition to read. May be repeated. Default: all partitions.",
)
@default_option(
    "-o start", "earliest", "Start in partitions without a committed offset.",
    click.Choice(("earliest", "latest")),
)  # fmt: skip
@click.option(
    "-e",
    "exit_at_end",
    is_flag=True,
    help="Stop at the present end of the log, instead of waiting for new records.",
)
@click.option("-c", "count", type=click.IntRange(min=1), help="Stop after this number of batches.")
@click.option(
    "--to", "folder", type=click.Path(path_type=Path, file_okay=False),
    help="Store payloads as FOLDER/<partition id>/<batch id>. Default: write them to standard"
    " output.",
)  # fmt: skip
@client_options
def read(
    state: State,
    root: str,
    topic: str,
    group: str,
    dead_letter_topic: str | None,
    partitions: tuple[int, ...],
    start: str,
    exit_at_end: bool,
    count: int | None,
    folder: Path | None,
) -> None:
    """Write the payloads of an outbox to standard output, or to a folder, each batch once.

    Offsets are committed after the payloads were written. With --output json each batch is an
    object on one line. It has the payload in base64, unless --to stores the payload as a file.
    """
    from penstock.outbox.reader.consumer import OutboxConsumer
    from penstock.outbox.reader.reader import OutboxReader

    with (
        state.client() as client,
        OutboxReader(root) as reader,
        OutboxConsumer(
            client, topic, reader, group=group, dead_letter_topic=dead_letter_topic,
            partitions=partitions or None, start="latest" if start == "latest" else "earliest",
            until_end=exit_at_end, report=lambda text: click.echo(f"penstock: {text}", err=True),
        ) as consumer,
        handled(lambda *_: consumer.stop(), (signal.SIGTERM,)),
    ):  # fmt: skip
        _follow(consumer, state, folder, count)
    counters = consumer.counters
    conflicts = f", {counters.conflicts} conflicts" if counters.conflicts else ""
    click.echo(
        f"% {counters.messages} batches, {counters.duplicates} duplicates,"
        f" {counters.dead_letters} dead letters{conflicts}",
        err=True,
    )


def _follow(consumer: OutboxConsumer, state: State, folder: Path | None, count: int | None) -> None:
    out = sys.stdout.buffer
    for number, message in enumerate(consumer, 1):
        stored = None if folder is None else _store(folder, message)
        if state.json:
            out.write(json.dumps(_message(message, stored)).encode() + b"\n")
        elif stored is None:
            out.write(message.payload)
        else:
            out.write(os.fsencode(stored) + b"\n")
        out.flush()
        if number == count:
            consumer.commit()
            return


def _store(folder: Path, message: OutboxMessage) -> Path:
    """Write a message's payload to a file below `folder`, through a temporary file.

    Partition id and batch id name directory and file; both are valid file names.
    """
    directory = folder / message.partition_id
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / message.batch_id
    temporary = directory / f"{message.batch_id}{TEMPORARY_SUFFIX}"
    try:
        write_file(MACHINE_FILES, temporary, message.payload, sync=True)
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise InvalidError(f"{path}: cannot be written: {error.strerror}") from None
    return path


def _message(message: OutboxMessage, stored: Path | None) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": message.timestamp_ms,
        "partition_id": message.partition_id,
        "batch_id": message.batch_id,
        "codec": message.codec,
        "event_count": message.event_count,
        "size_bytes": len(message.payload),
        "file_path": None if message.pointer is None else message.pointer.file_path,
    }
    if stored is None:
        shown["payload_base64"] = base64.b64encode(message.payload).decode()
    else:
        shown["stored"] = str(stored)
    return shown
