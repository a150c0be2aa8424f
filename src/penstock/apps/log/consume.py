"""Command `penstock consume`: prints the records of a topic, with the option letters of kcat.

Without `-e` and `-c` it follows the log until it is interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from penstock.apps.client.session import State, client_options, counted
from penstock.apps.log.formats import (
    DEFAULT_FORMAT,
    JSON_COLUMNS,
    At,
    Format,
    parse_format,
    parse_position,
    render,
    render_json,
    resolve,
)
from penstock.base.extras import check_installed
from penstock.records.extents import READ_COMMITTED, READ_UNCOMMITTED

if TYPE_CHECKING:
    from penstock.apps.client.waiting import WatchedClient
    from penstock.apps.log.decoding import Decoder
    from penstock.client import Client


@click.command("consume", short_help="Read records of a topic.")
@click.argument("name", required=False, metavar="[TOPIC]")
@click.option("-t", "topic", metavar="TOPIC", help="Topic to read, instead of the argument TOPIC.")
@click.option(
    "-p",
    "partitions",
    multiple=True,
    type=int,
    help="Partition to read. May be repeated. Default: all partitions.",
)
@click.option(
    "-o", "offsets", multiple=True, metavar="WHERE",
    help="Start: beginning, end, an offset, -N (N before the end), or s@MS (timestamp in ms since"
    " 1970). A second -o e@MS stops at that timestamp. Default: beginning.",
)  # fmt: skip
@click.option(
    "-e",
    "exit_at_end",
    is_flag=True,
    help="Stop at the present end of the log, instead of waiting for new records.",
)
@click.option("-c", "count", type=click.IntRange(min=1), help="Stop after this number of records.")
@click.option(
    "-f",
    "layout",
    metavar="FORMAT",
    help="Format of a record: %t topic, %p partition, %o offset, %k key, %s value, %h"
    " headers, %T timestamp in ms, %K and %S bytes of key and value. Default: %s\\n",
)
@click.option(
    "-K", "delimiter", metavar="TEXT", help="Print the key and this separator before each value."
)
@click.option(
    "-J",
    "as_json",
    is_flag=True,
    help="Print each record as a JSON object on one line, in kcat's form.",
)
@click.option(
    "--decode",
    is_flag=True,
    help="Print values as JSON, decoded by the schemas of a schema registry whose ids they have.",
)
@click.option("--decode-key", is_flag=True, help="Decode keys too. Implies --decode.")
@click.option(
    "--registry",
    metavar="URL",
    help="Schema registry for --decode: a URL, or HOST:PORT. Default: that of `penstock schema`.",
)
@click.option("-q", "quiet", is_flag=True, help="Print no notices on stderr, only errors.")
@click.option(
    "--isolation", type=click.Choice(("read_uncommitted", "read_committed")),
    default="read_committed", show_default=True,
    help="Whether records of open and aborted transactions are printed (read_uncommitted) or not.",
)  # fmt: skip
@client_options
def consume(
    state: State,
    name: str | None,
    topic: str | None,
    partitions: tuple[int, ...],
    offsets: tuple[str, ...],
    exit_at_end: bool,
    count: int | None,
    layout: str | None,
    delimiter: str | None,
    as_json: bool,
    decode: bool,
    decode_key: bool,
    registry: str | None,
    quiet: bool,
    isolation: str,
) -> None:
    """Print the records of a topic.

    Without -e and -c the command waits for new records until it is interrupted. A value that cannot
    be decoded is printed with the reason and its bytes in base64.
    """
    check_installed("client")
    chosen = topic or name
    if chosen is None:
        raise click.UsageError("name a topic: penstock consume TOPIC, or -t TOPIC")
    as_json = as_json or (state.json and layout is None)
    compiled = parse_format(layout or _default_layout(delimiter))
    positions = [parse_position(text) for text in offsets]
    if quiet:
        state = replace(state, notice=_say_nothing)
    with ExitStack() as held:
        client = held.enter_context(state.client(f"topic {chosen}"))
        decoder = None
        if decode or decode_key:
            decoder = _decoder(held, state, registry, key=decode_key, as_json=as_json)
        level = READ_COMMITTED if isolation == "read_committed" else READ_UNCOMMITTED
        start, end = _range(client, chosen, positions, partitions, exit_at_end, level)
        batches = client.iter_arrow(
            chosen,
            partitions=sorted(start),
            start=start,
            end=end,
            columns=JSON_COLUMNS if as_json else _columns(compiled, decoder),
            max_records=count,
            isolation="read_committed" if level == READ_COMMITTED else "read_uncommitted",
        )
        leaders = {p.index: p.leader for p in client.describe_topic(chosen).partitions}
        found = _taken(client, batches, follows=end is None)
        printed = _print(found, chosen, None if as_json else compiled, leaders, decoder)
    if exit_at_end and not quiet:
        click.echo(f"% Reached end of topic {chosen} after {counted(printed, 'record')}", err=True)


def _decoder(
    held: ExitStack, state: State, registry: str | None, *, key: bool, as_json: bool
) -> Decoder:
    from penstock.apps.log.decoding import Decoder
    from penstock.apps.schema.connection import registry_address

    client = held.enter_context(registry_address(state, registry, anonymous=False).client())
    return Decoder(client, key=key, as_json=as_json)


def _columns(layout: Format, decoder: Decoder | None) -> tuple[str, ...]:
    if decoder is None or "headers" in layout.columns:
        return layout.columns
    return (*layout.columns, "headers")


def _say_nothing(line: str) -> None:
    """Discard a notice."""


def _taken(client: WatchedClient, batches: Iterator[Any], *, follows: bool) -> Iterator[Any]:
    """Yield the batches, and count their records as the client's progress.

    The client is marked as busy while a batch is printed, so only fetches are reported as waits for
    brokers. With `follows`, a lack of new records is reported too.
    """
    client.silence.idle = "no new records" if follows else ""
    for batch in batches:
        client.progress += batch.num_rows
        client.busy = True
        yield batch
        client.busy = False


def _default_layout(delimiter: str | None) -> str:
    if delimiter is None:
        return DEFAULT_FORMAT
    return "%k" + delimiter.replace("%", "%%") + DEFAULT_FORMAT


def _range(
    client: Client,
    topic: str,
    positions: list[At],
    partitions: tuple[int, ...],
    exit_at_end: bool,
    isolation: int,
) -> tuple[dict[int, int], dict[int, int] | None]:
    """Return start and end offsets by partition; the end is exclusive, or None to follow the
    log.
    """
    starts = [at for at in positions if at.kind != "end_time"]
    stops = [at for at in positions if at.kind == "end_time"]
    if len(starts) > 1 or len(stops) > 1:
        raise click.UsageError("-o may be given once as a start, and once as an end (e@MS)")
    wanted = list(partitions) or None
    at = starts[0] if starts else At("beginning")
    start = resolve(client, topic, at, wanted, isolation)
    if stops:
        return start, resolve(client, topic, stops[0], wanted, isolation)
    if not exit_at_end:
        return start, None
    return start, resolve(client, topic, At("end"), wanted, isolation)


def _print(
    batches: Iterator[Any],
    topic: str,
    layout: Format | None,
    leaders: dict[int, int],
    decoder: Decoder | None,
) -> int:
    out = sys.stdout.buffer
    printed = 0
    for each in batches:
        batch = each if decoder is None else decoder.decoded(each)
        if layout is None:
            written = () if decoder is None else decoder.columns
            out.write(render_json(batch, topic, leaders, written))
        else:
            out.write(render(batch, layout, topic))
        out.flush()
        printed += batch.num_rows
    return printed
