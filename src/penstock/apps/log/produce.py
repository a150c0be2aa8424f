"""Command `penstock produce`: writes lines as records, with the option letters of kcat.

Input is read in large blocks. Each block is sent before the next one is read, so lines from a pipe
are sent as soon as they arrive.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import click

from penstock.apps.client.session import (
    CODECS,
    Number,
    State,
    client_options,
    default_option,
    path_option,
    write_json,
)
from penstock.base.extras import check_installed
from penstock.base.system import SYSTEM_CLOCK
from penstock.planner.quantities import format_quantity

if TYPE_CHECKING:
    from penstock.apps.client.waiting import WatchedClient

BLOCK_BYTES: Final = 16 << 20
RECORD_BYTES_MAX: Final = 64 << 20
_ESCAPES: Final = {"\\n": "\n", "\\t": "\t", "\\r": "\r", "\\0": "\0"}


@click.command("produce", short_help="Write records to a topic.")
@click.argument("name", required=False, metavar="[TOPIC]")
@click.option(
    "-t", "topic", metavar="TOPIC", help="Topic to write to, instead of the argument TOPIC."
)
@click.option(
    "-p",
    "partition",
    type=click.IntRange(min=-1),
    default=-1,
    help="Partition to write to. Default: chosen by the key; records without a key take the"
    " partitions in turn.",
)
@click.option(
    "-K",
    "key_delimiter",
    metavar="TEXT",
    help="Separator of key and value in a line. Default: lines have no keys.",
)
@click.option("-k", "key", help="Key of all records.")
@click.option(
    "-H",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    help="Header of every record. May be repeated.",
)
@default_option("-D delimiter", "\\n", "Separator of records in the input.")
@default_option("-z codec", "none", "Codec with which batches are compressed.", CODECS)
@click.option("-Z", "empty_is_null", is_flag=True, help="Write empty keys and values as null.")
@click.option(
    "-l",
    "lines",
    is_flag=True,
    help="Has no effect: FILE is always read by lines. Accepted because kcat has it.",
)
@path_option("--file file", "File to read, before the arguments FILE.")
@default_option(
    "--acks",
    "all",
    "Acknowledgements to wait for: of all in-sync replicas, of the leader (1), or none (0).",
    click.Choice(("all", "1", "0")),
)
@click.option(
    "--rate",
    type=Number(0, min_open=True),
    help="Largest number of records per second. Default: no limit.",
)
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE…]")
@client_options
def produce(
    state: State,
    name: str | None,
    topic: str | None,
    partition: int,
    key_delimiter: str | None,
    key: str | None,
    headers: tuple[str, ...],
    delimiter: str,
    codec: str,
    empty_is_null: bool,
    lines: bool,
    file: Path | None,
    acks: str,
    rate: float | None,
    paths: tuple[Path, ...],
) -> None:
    """Write the lines of standard input, or of files, as records of a topic."""
    if topic is not None and name is not None:
        paths, name = (Path(name), *paths), None
    check_installed("client")
    chosen = topic or name
    if chosen is None:
        raise click.UsageError("name a topic: penstock produce TOPIC, or -t TOPIC")
    for text, replacement in _ESCAPES.items():
        delimiter = delimiter.replace(text, replacement)
    if not delimiter:
        raise click.UsageError("-D: must not be empty")
    cut = _cutter(key_delimiter, key, _headers(headers), empty_is_null)
    sources = [*([file] if file else []), *paths]
    options = {
        "codec": codec,
        "acks": acks,
        "records_per_second": rate,
        "partition": None if partition < 0 else partition,
    }
    if not sources and sys.stdin.isatty():
        click.echo("% reading records from standard input; press Ctrl-D to finish", err=True)
    with state.client(f"topic {chosen}") as client, _Progress() as progress:
        totals = _write(
            client, chosen, _blocks(sources, os.fsencode(delimiter)), cut, options, progress
        )
    progress.summarise(chosen, totals)
    if state.json:
        write_json({"topic": chosen, **totals})


def _write(
    client: WatchedClient,
    topic: str,
    blocks: Iterator[list[bytes]],
    cut: Callable[[list[bytes]], Any],
    options: dict[str, Any],
    progress: _Progress,
) -> dict[str, int]:
    client.describe_topic(topic)
    totals = {"records": 0, "bytes": 0, "retries": 0}

    def show(records: int, size_bytes: int) -> None:
        client.progress = totals["records"] + records
        progress.show(client.progress, totals["bytes"] + size_bytes)

    for block in _unwatched(client, blocks):
        report = client.write_arrow(topic, cut(block), progress=show, **options)
        totals["records"] += report.records
        totals["bytes"] += report.bytes
        totals["retries"] += report.retries
    return totals


def _unwatched(client: WatchedClient, blocks: Iterator[list[bytes]]) -> Iterator[list[bytes]]:
    """Yield the blocks; time spent in waiting for input is not reported as a wait for brokers."""
    client.busy = True
    for block in blocks:
        client.busy = False
        yield block
        client.busy = True


def _headers(texts: tuple[str, ...]) -> list[dict[str, object]]:
    pairs: list[dict[str, object]] = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not name:
            raise click.UsageError(f"-H {text}: must read name=value")
        pairs.append({"key": name, "value": os.fsencode(value) if equals else None})
    return pairs


def _blocks(paths: list[Path], delimiter: bytes) -> Iterator[list[bytes]]:
    """Yield the records of all files, or of stdin without files, in one list for each read."""
    if not paths:
        yield from _records(sys.stdin.buffer, delimiter)
    for path in paths:
        with path.open("rb") as file:
            yield from _records(file, delimiter)


def _records(file: IO[bytes], delimiter: bytes) -> Iterator[list[bytes]]:
    rest = b""
    read = getattr(file, "read1", file.read)
    while block := read(BLOCK_BYTES):
        pieces = (rest + block).split(delimiter)
        rest = pieces.pop()
        if len(rest) > RECORD_BYTES_MAX:
            raise click.UsageError(
                f"no delimiter {delimiter!r} within {RECORD_BYTES_MAX} bytes of input"
            )
        if pieces:
            yield pieces
    if rest:
        yield [rest]


def _cutter(
    key_delimiter: str | None,
    key: str | None,
    headers: list[dict[str, object]],
    empty_is_null: bool,
) -> Callable[[list[bytes]], Any]:
    """Return a function that makes a table of keys, values and headers from a list of records."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from penstock.records.columnar import HEADERS_TYPE

    def nulled(column: Any) -> Any:
        if not empty_is_null:
            return column
        return pc.if_else(pc.equal(pc.binary_length(column), 0), None, column)

    def cut(records: list[bytes]) -> Any:
        values = pa.array(records, pa.large_binary())
        columns: dict[str, Any] = {}
        if key_delimiter is not None:
            keys, values = _split(values, os.fsencode(key_delimiter))
            columns["key"] = nulled(keys)
        elif key is not None:
            columns["key"] = pa.repeat(pa.scalar(os.fsencode(key)), len(records))
        columns["value"] = nulled(values)
        if headers:
            columns["headers"] = pa.repeat(pa.scalar(headers, HEADERS_TYPE), len(records))
        return pa.table(columns)

    return cut


def _split(values: Any, delimiter: bytes) -> tuple[Any, Any]:
    """Split values at the first delimiter into key and value; a value without one has a null
    key.
    """
    import pyarrow.compute as pc

    at = pc.find_substring(values, delimiter)
    parts = pc.split_pattern(values, delimiter, max_splits=1)
    keyed = pc.greater_equal(at, 0)
    firsts = pc.list_element(parts, 0)
    lasts = parts.flatten().take(pc.subtract(parts.offsets.slice(1), 1))
    return pc.if_else(keyed, firsts, None), lasts


class _Progress:
    """Progress on stderr, if that is a terminal: a line during the run, and a summary at the
    end.
    """

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._live: Any = None
        self._task: Any = None
        self._began = SYSTEM_CLOCK.monotonic()

    def __enter__(self) -> _Progress:
        if self._shown and not sys.stdin.isatty():
            from rich.console import Console
            from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

            self._live = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._live.add_task(self._text(0, 0), total=None)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, records: int, size_bytes: int) -> None:
        if self._live is not None:
            self._live.update(self._task, description=self._text(records, size_bytes))

    def summarise(self, topic: str, totals: Mapping[str, int]) -> None:
        if self._shown:
            seconds = format_quantity(self._seconds(), "s")
            text = self._text(totals["records"], totals["bytes"])
            click.echo(f"% topic {topic}: {text}, in {seconds}", err=True)

    def _seconds(self) -> float:
        return max(1e-6, SYSTEM_CLOCK.monotonic() - self._began)

    def _text(self, records: int, size_bytes: int) -> str:
        size, seconds = format_quantity(size_bytes, "bytes"), self._seconds()
        rate = format_quantity(size_bytes / seconds, "bytes/s")
        return f"{records:,} records, {size}; {records / seconds:,.0f} records/s, {rate}"
