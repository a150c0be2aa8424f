"""Sources of stored batches: files of a data directory, a running broker, an object store.

Each source yields the batches of a partition in order, with their location. Files are read as they
are, also while a broker runs: removed files are skipped, and an incomplete batch at the end of the
newest segment ends the partition. If stderr is a terminal, a progress bar shows how much was read.
"""

from __future__ import annotations

import asyncio
import functools
import os
import re
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Protocol

import click

from penstock.apps.client.session import State, client_options, path_option
from penstock.base.errors import InvalidError, UnavailableError
from penstock.base.ids import TopicPartition
from penstock.base.settings import LONG_MAX

if TYPE_CHECKING:
    from penstock.apps.diskless.installation import Installation
    from penstock.apps.process.configuration import Configuration
    from penstock.client import Client, RawFetch
    from penstock.control.values.diskless import PartitionKey
    from penstock.records import BatchHeader
    from penstock.storage.inspection.directories import PartitionFiles

EXTENTS_PER_CALL: Final = 256
FETCH_WAIT_MS: Final = 2_000
"""Longest wait of one fetch; shorter than the timeout of a call (`session.API_TIMEOUT_MS`)."""
FETCHES_MAX: Final = 5

LONG_MIN: Final = -(2**63)
_NATURAL: Final = re.compile(r"[0-9]{1,19}")
_WHOLE: Final = re.compile(r"-?[0-9]{1,19}")
Advance = Callable[["BatchHeader"], object]


class NoLog(InvalidError):
    """The directory contains no log of a broker, or not the selected partition."""

    code: ClassVar[str] = "invalid_config"


class NothingSent(UnavailableError):
    """The broker returned no batch where one is expected."""

    code: ClassVar[str] = "kafka_storage_error"


class Range(NamedTuple):
    start: int = 0
    end: int = LONG_MAX
    earliest: int = LONG_MIN
    latest: int = LONG_MAX

    def has(self, header: BatchHeader) -> bool:
        return (
            header.next_offset > self.start
            and header.base_offset < self.end
            and header.max_timestamp >= self.earliest
            and (header.base_timestamp <= self.latest or header.timestamp_type == 1)
        )


class Batch(NamedTuple):
    """Stored batch: its header, its location in words and in bytes, and a function that reads
    it.
    """

    header: BatchHeader
    place: str
    position: int
    read: Callable[[], bytes]


class Source(Protocol):
    """Source of stored batches: lists partitions by name, and yields the batches of each."""

    def partitions(self) -> list[TopicPartition]: ...

    def batches(self, where: TopicPartition, wanted: Range) -> Iterator[Batch]: ...

    def progress(self, label: str, wanted: Range) -> AbstractContextManager[Advance]:
        """Show a progress bar; yield the function to call with the header of each batch that was
        read.
        """
        ...


@dataclass(frozen=True, slots=True)
class Chosen:
    """Selection of batches by the options of a command."""

    state: State
    topic: str | None
    numbers: tuple[int, ...]
    data_dir: Path | None
    objects: bool
    config: Path | None
    broker_settings: tuple[str, ...]

    def wanted(self, where: TopicPartition) -> bool:
        return self.topic in (None, where.topic) and (
            not self.numbers or where.partition in self.numbers
        )

    def roots(self) -> list[str]:
        """Return the directories below --data-dir that contain directories of partitions.

        Raises:
            NoLog: there is none.
        """
        from penstock.storage.inspection.directories import find_roots, is_partition

        if self.data_dir is None:
            raise click.UsageError("give a directory with --data-dir")
        if not self.data_dir.is_dir():
            raise NoLog(f"--data-dir {self.data_dir}: the directory does not exist")
        if is_partition(self.data_dir):
            raise NoLog(
                f"--data-dir {self.data_dir}: is the directory of a partition; give its parent"
                " directory, and the partition with -p"
            )
        roots = find_roots(self.data_dir)
        if not roots:
            raise NoLog(f"--data-dir {self.data_dir}: contains no partition directories")
        return roots

    def configuration(self) -> Configuration:
        """Return the brokers' configuration, which has the location of their object store."""
        from penstock.apps.process.configuration import Given, configure, parse_override

        flags = dict(parse_override(text) for text in self.broker_settings)
        if self.data_dir is not None:
            flags["log.dirs"] = Given(str(self.data_dir), "flag --data-dir")
        return configure(file=self.config, environment=os.environ, flags=flags)


def place_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add TOPIC, `-p` and the options of the source; the command gets a `Chosen` first."""

    @click.argument("topic", required=False)
    @click.option(
        "-p",
        "partitions",
        multiple=True,
        type=int,
        help="Partition to read. May be repeated. Default: all partitions.",
    )
    @path_option(
        "--data-dir",
        "Read the files in this data directory (log.dirs) of Penstock or Apache Kafka, instead of"
        " querying a broker.",
    )
    @click.option(
        "--objects",
        is_flag=True,
        help="Read diskless topics from their object store, instead of querying a broker.",
    )
    @path_option("--config", "With --objects: TOML file with the brokers' settings.")
    @click.option(
        "--set", "settings", multiple=True, metavar="KEY=VALUE",
        help="With --objects: setting of the brokers; overrides the file. May be repeated.",
    )  # fmt: skip
    @client_options
    @functools.wraps(command)
    def wrapped(
        state: State,
        topic: str | None,
        partitions: tuple[int, ...],
        data_dir: Path | None,
        objects: bool,
        config: Path | None,
        settings: tuple[str, ...],
        **arguments: Any,
    ) -> None:
        if not objects and (config is not None or settings):
            raise click.UsageError("--config and --set require --objects")
        chosen = Chosen(state, topic, partitions, data_dir, objects, config, settings)
        command(chosen, **arguments)

    return wrapped


def range_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--offsets` and `--times`; the command gets a `Range` as argument `wanted`."""

    @click.option(
        "--offsets",
        metavar="FROM:TO",
        help="Only batches with offsets from FROM to TO - 1; either may be omitted.",
    )
    @click.option(
        "--times",
        metavar="FROM:TO",
        help="Only batches with timestamps from FROM to TO, in ms since 1970; either may be"
        " omitted.",
    )
    @functools.wraps(command)
    def wrapped(*positional: Any, offsets: str | None, times: str | None, **arguments: Any) -> None:
        start, end = _bounds("--offsets", offsets, 0)
        earliest, latest = _bounds("--times", times, LONG_MIN)
        command(*positional, wanted=Range(start, end, earliest, latest), **arguments)

    return wrapped


def _bounds(option: str, text: str | None, least: int) -> tuple[int, int]:
    if text is None:
        return least, LONG_MAX
    first, colon, last = text.partition(":")
    number = _WHOLE if least < 0 else _NATURAL
    if not colon or not all(not part or number.fullmatch(part) for part in (first, last)):
        raise click.UsageError(f"{option} {text}: must read FROM:TO, with whole numbers")
    bounds = int(first) if first else least, int(last) if last else LONG_MAX
    if bounds[0] > bounds[1]:
        raise click.UsageError(f"{option} {text}: FROM is above TO")
    return bounds


@contextmanager
def source_of(chosen: Chosen) -> Iterator[Source]:
    """Open the source that the options select.

    Raises:
        PenstockError: the source cannot be opened, or does not have the selected partition.
    """
    with ExitStack() as stack:
        if chosen.objects:
            yield stack.enter_context(_objects(chosen))
        elif chosen.data_dir is not None:
            yield FileSource(chosen)
        elif chosen.topic is not None:
            client = stack.enter_context(chosen.state.client(f"topic {chosen.topic}"))
            yield BrokerSource(client, chosen)
        else:
            raise click.UsageError("give a TOPIC, --data-dir or --objects")


class FileSource:
    """Source that reads segment files below a data directory."""

    def __init__(self, chosen: Chosen) -> None:
        from penstock.storage.inspection.directories import partitions_of

        self._found: dict[TopicPartition, list[PartitionFiles]] = {}
        for root in chosen.roots():
            for files in partitions_of(root, chosen.wanted):
                self._found.setdefault(files.where, []).append(files)
        if not self._found and chosen.topic is not None:
            raise no_such_partition(chosen)

    def partitions(self) -> list[TopicPartition]:
        return list(self._found)

    def files(self, where: TopicPartition) -> list[PartitionFiles]:
        """Return a partition's files: one entry for each log directory that has the partition."""
        return self._found[where]

    @contextmanager
    def progress(self, label: str, wanted: Range) -> Iterator[Advance]:
        with progress(label, size_of(self)) as advance:
            yield lambda header: advance(header.size_bytes)

    def batches(self, where: TopicPartition, wanted: Range) -> Iterator[Batch]:
        from penstock.storage.files.values import LOG

        for files in self._found[where]:
            first = max(0, bisect_right(files.segments, wanted.start) - 1)
            for place in range(first, len(files.segments)):
                base = files.segments[place]
                if base >= wanted.end:
                    break
                newest = place + 1 == len(files.segments)
                yield from _batches_of(files.file(base, LOG), wanted, newest=newest)


def _batches_of(path: str, wanted: Range, *, newest: bool) -> Iterator[Batch]:
    from penstock.base.files import MACHINE_FILES
    from penstock.storage.files.errors import CorruptLog
    from penstock.storage.files.walk import walk_file

    try:
        for found in walk_file(MACHINE_FILES, path):
            if found.header.base_offset >= wanted.end:
                return
            if wanted.has(found.header):
                place = f"{path}, byte {found.position}"
                yield Batch(found.header, place, found.position, found.read)
    except FileNotFoundError:
        return
    except CorruptLog as error:
        if not newest:
            raise
        click.echo(f"penstock: {error}; `penstock log verify` checks for other problems", err=True)


class BrokerSource:
    """Source that fetches batches from a running broker."""

    def __init__(self, client: Client, chosen: Chosen) -> None:
        self._client = client
        self._topic = chosen.topic or ""
        numbers = list(chosen.numbers) or None
        self._starts = client.list_offsets(self._topic, "earliest", partitions=numbers)
        self._ends = client.list_offsets(self._topic, "latest", partitions=numbers)

    def progress(self, label: str, wanted: Range) -> AbstractContextManager[Advance]:
        spans = [(start, self._ends[number]) for number, start in self._starts.items()]
        return _offsets_progress(label, spans, wanted)

    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self._topic, number) for number in sorted(self._starts)]

    def batches(self, where: TopicPartition, wanted: Range) -> Iterator[Batch]:
        from penstock.records import split_batches

        offset = max(self._starts[where.partition], wanted.start)
        end = min(self._ends[where.partition], wanted.end)
        while offset < end:
            fetched = fetched_from(self._client, self._topic, where.partition, offset)
            at = 0
            for header in split_batches(fetched.data):
                data = fetched.data[at : at + header.size_bytes]
                at += header.size_bytes
                if wanted.has(header):
                    yield Batch(header, f"{where}, as fetched", -1, functools.partial(bytes, data))
            if fetched.next_offset <= offset:
                raise NothingSent(f"{where}: the broker returned no records from offset {offset}")
            offset = fetched.next_offset


def fetched_from(client: Client, topic: str, partition: int, offset: int) -> RawFetch:
    """Fetch batches from an offset on; the result is empty if none arrive in `FETCHES_MAX` fetches.

    The answer to a first fetch may be empty while the broker reads batches from an object store.
    """
    for _ in range(FETCHES_MAX):
        fetched = client.fetch_raw(topic, partition, offset, max_wait_ms=FETCH_WAIT_MS)
        if fetched.next_offset > offset:
            break
    return fetched


class ObjectSource:
    """Source that reads the extents of diskless partitions from their objects."""

    def __init__(
        self,
        runner: asyncio.Runner,
        installation: Installation,
        keys: dict[TopicPartition, PartitionKey],
    ) -> None:
        self._runner = runner
        self._installation = installation
        self._keys = keys

    def partitions(self) -> list[TopicPartition]:
        return list(self._keys)

    def progress(self, label: str, wanted: Range) -> AbstractContextManager[Advance]:
        watermarks = self._runner.run(
            self._installation.plane.watermarks(list(self._keys.values()))
        )
        spans = [(partition.log_start_offset, partition.high_watermark) for partition in watermarks]
        return _offsets_progress(label, spans, wanted)

    def batches(self, where: TopicPartition, wanted: Range) -> Iterator[Batch]:
        plane, key = self._installation.plane, self._keys[where]
        (watermarks,) = self._runner.run(plane.watermarks([key]))
        offset = max(watermarks.log_start_offset, wanted.start)
        end = min(watermarks.high_watermark, wanted.end)
        while offset < end:
            extents = self._runner.run(
                plane.extents(*key, start=offset, end=end, limit=EXTENTS_PER_CALL)
            )
            for extent in extents:
                found = self._runner.run(self._extent(extent))
                yield from (entry for entry in found if wanted.has(entry.header))
                offset = max(offset, extent.next_offset)
            if not extents:
                return

    async def _extent(self, extent: Any) -> list[Batch]:
        from penstock.archive.assembly import assemble
        from penstock.archive.planning import trim
        from penstock.records import decode_header

        data = await self._installation.store.get(extent.key, extent.byte_offset, extent.size_bytes)
        pieces = trim([extent], extent.base_offset, max_bytes=extent.size_bytes, at_least_one=True)
        run, failure = assemble(pieces, [memoryview(data)])
        if failure is not None:
            raise failure
        found: list[Batch] = []
        start = 0
        for end in run.ends if run is not None else ():
            batch = bytes(run.data[start:end]) if run is not None else b""
            position = extent.byte_offset + start
            place = f"object {extent.key}, byte {position}"
            found.append(
                Batch(decode_header(batch), place, position, functools.partial(bytes, batch))
            )
            start = end
        return found


@contextmanager
def _offsets_progress(
    label: str, spans: Iterable[tuple[int, int]], wanted: Range
) -> Iterator[Advance]:
    """Show a progress bar of offsets, since the bytes to read are not known in advance."""
    total = sum(max(0, min(end, wanted.end) - max(start, wanted.start)) for start, end in spans)
    with progress(label, total, offsets=True) as advance:
        yield lambda header: advance(header.next_offset - header.base_offset)


@contextmanager
def _objects(chosen: Chosen) -> Iterator[Source]:
    from penstock.apps.diskless.installation import opened, wanted_partitions
    from penstock.storage.files.values import parse_directory_name

    with asyncio.Runner() as runner:
        context = opened(chosen.configuration())
        installation = runner.run(context.__aenter__())
        try:
            names = runner.run(wanted_partitions(installation, chosen.topic))
            keys = {
                where: key
                for key, name in names.items()
                if (where := parse_directory_name(name)) is not None and chosen.wanted(where)
            }
            yield ObjectSource(runner, installation, keys)
        finally:
            runner.run(context.__aexit__(None, None, None))


def no_such_partition(chosen: Chosen) -> NoLog:
    return NoLog(
        f"--data-dir {chosen.data_dir}: contains none of the selected partitions of topic"
        f" {chosen.topic!r}"
    )


def size_of(source: FileSource) -> int:
    from penstock.storage.files.values import LOG

    total = 0
    for where in source.partitions():
        for files in source.files(where):
            for base in files.segments:
                path = files.file(base, LOG)
                total += os.path.getsize(path) if os.path.exists(path) else 0
    return total


Count = Callable[[int], object]


@contextmanager
def progress(label: str, total: int, *, offsets: bool = False) -> Iterator[Count]:
    """Show a progress bar of `total` bytes or offsets; yield the function that advances it."""
    if not sys.stderr.isatty():
        yield lambda size: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    counted: tuple[ProgressColumn, ...] = (DownloadColumn(), TransferSpeedColumn())
    if offsets:
        counted = (MofNCompleteColumn(), TextColumn("offsets"))
    columns = (TextColumn("{task.description}"), BarColumn(), *counted, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda size: bar.advance(task, size)
