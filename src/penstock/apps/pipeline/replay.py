"""Command `penstock pipeline replay`: sends records through a pipeline again.

    --dead-letters    return dead letters to the topics that they came from
    --parked          release parked records, which the pipeline tries again
    --sink NAME       write older records to a sink that was added to the pipeline later

Without --execute the command only shows the records. Each record is replayed once: after an
interruption the same command continues, and when it is complete it finds nothing left to do.
"""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.apps.client.session import State, counted, moment, show, write_json, write_table
from penstock.apps.pipeline.command import Located, located
from penstock.apps.pipeline.spark import master_option, running_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.pipeline.replay.backfill import Progress
    from penstock.spark.pipeline.replay.dead_letters import Filters, Found, OffsetRange, Replayed
    from penstock.spark.pipeline.spec import PipelineSpec

ROWS_SHOWN: Final = 50
VALUE_CHARS: Final = 60
ENOUGH: Final = "add --execute to do it"
_OFFSETS: Final = re.compile(r"(\d+):(\d+)(?:-(\d+))?")
_ONLY: Final = {
    "dead_letters": ("rule", "topic", "since", "offsets", "limit", "again"),
    "parked": ("key", "key_hex", "everything", "query", "dead_letter"),
    "sink": ("start", "history", "chunk_records"),
}
_WORDS: Final = {"dead_letters": "--dead-letters", "everything": "--all", "start": "--from"}


@click.command("replay", short_help="Send records through a pipeline again.")
@located
@click.option(
    "--dead-letters", is_flag=True, help="Return dead letters to the topics that they came from."
)
@click.option(
    "--rule",
    metavar="NAME",
    help="With --dead-letters: only those of this rule, or of `undecodable` records.",
)
@click.option(
    "--topic", metavar="NAME", help="With --dead-letters: only those that came from this topic."
)
@click.option(
    "--since",
    metavar="ISO",
    help="With --dead-letters: only those from this time on, in ISO 8601; UTC if it has no time"
    " zone.",
)
@click.option(
    "--offsets",
    multiple=True,
    metavar="P:FROM-TO",
    help="With --dead-letters: only those at these offsets of a partition of the dead-letter"
    " topic, both included. May be repeated.",
)
@click.option(
    "--limit",
    type=click.IntRange(1),
    help="With --dead-letters: largest number to return. Default: all.",
)
@click.option(
    "--again", is_flag=True, help="With --dead-letters: also those that were returned before."
)
@click.option(
    "--parked", is_flag=True, help="Release parked records, which the pipeline then tries again."
)
@click.option(
    "--key",
    multiple=True,
    metavar="TEXT",
    help="With --parked: only records with this key. May be repeated.",
)
@click.option(
    "--key-hex",
    multiple=True,
    metavar="HEX",
    help="With --parked: only records with this key, in hexadecimal. May be repeated.",
)
@click.option("--all", "everything", is_flag=True, help="With --parked: all parked records.")
@click.option("--query", metavar="NAME", help="With --parked: only records of this query.")
@click.option(
    "--dead-letter",
    is_flag=True,
    help="With --parked: send the records to the dead-letter topic instead of trying them again.",
)
@click.option(
    "--sink",
    metavar="NAME",
    help="Write older records to this sink, which was added to the pipeline later.",
)
@click.option(
    "--from",
    "start",
    metavar="earliest|ISO|JSON",
    help="With --sink: start of the older records: earliest, a time in ISO 8601, or offsets as"
    " JSON. Default: earliest.",
)
@click.option(
    "--history",
    metavar="TABLE",
    help="With --sink: table with records that the topic may no longer have.",
)
@click.option(
    "--chunk-records",
    type=click.IntRange(1),
    help="With --sink: number of records that are read and written at once. Default: 1000000.",
)
@click.option(
    "--execute", is_flag=True, help="Replay the records; without this option they are only shown."
)
@master_option
def replay(
    state: State,
    where: Located,
    dead_letters: bool,
    parked: bool,
    sink: str | None,
    execute: bool,
    master: str | None,
    **options: Any,
) -> None:
    """Return dead letters, release parked records, or fill a sink that was added later.

    Give one of --dead-letters, --parked and --sink. Without --execute the records are only shown.
    The pipeline may be running meanwhile.
    """
    chosen = {"dead_letters": dead_letters, "parked": parked, "sink": sink is not None}
    if sum(chosen.values()) != 1:
        raise click.UsageError("give one of --dead-letters, --parked and --sink")
    mode = next(name for name, given in chosen.items() if given)
    for other, names in _ONLY.items():
        for name in names:
            if other != mode and options[name] not in {None, False, ()}:
                raise click.UsageError(f"{_word(name)} requires {_word(other)}")
    if mode == "parked":
        _parked(state, where, execute=execute, **{name: options[name] for name in _ONLY[mode]})
    elif mode == "sink":
        _sink(state, where, str(sink), options, execute=execute, master=master)
    else:
        _dead_letters(state, where, options, execute=execute, master=master)


def _word(name: str) -> str:
    return _WORDS.get(name, "--" + name.replace("_", "-"))


def whoami() -> str:
    """Return user and host, as USER@HOST, which are stored with a replay."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        name = "unknown"
    return f"{name}@{socket.gethostname()}"


@contextmanager
def _session(state: State, spec: PipelineSpec, master: str | None) -> Iterator[SparkSession]:
    from penstock.spark.pipeline.broker_check import check_topics
    from penstock.spark.pipeline.draft import check_keys

    check_keys(spec)
    with state.working(f"waiting for brokers at {spec.run.bootstrap}"):
        check_topics(spec)
    with (
        running_session(spec, master=master, remote=None, settings={}, loud=state.debug) as spark,
        state.working(f"Spark reads records of pipeline {spec.name}"),
    ):
        yield spark


def _parsed(option: str, text: str, read: Callable[[str], Any]) -> Any:
    try:
        return read(text)
    except (ValueError, TypeError, AttributeError) as error:
        raise click.UsageError(f"{option} {text}: {error}") from error


# Dead letters


def _dead_letters(
    state: State, where: Located, options: dict[str, Any], *, execute: bool, master: str | None
) -> None:
    from penstock.spark.pipeline.replay.dead_letters import DeadLetters
    from penstock.spark.pipeline.replay.refusals import check_filters

    wanted = _filters(options)
    spec = where.load()
    with _session(state, spec, master) as spark:
        dead_letters = DeadLetters(spec, spark)
        if execute:
            done = dead_letters.replay(wanted, by=whoami())
            if not done:
                check_filters(spec, wanted)
            _show_replayed(state, done)
            return
        found = dead_letters.look(wanted)
        if not found.groups:
            check_filters(spec, wanted)
        _show_dead_letters(state, found)


def _filters(options: dict[str, Any]) -> Filters:
    from penstock.spark.pipeline.replay.dead_letters import Filters
    from penstock.spark.pipeline.replay.refusals import moment_ms

    since = options["since"]
    return Filters(
        rule=options["rule"],
        topic=options["topic"],
        since_ms=None if since is None else _parsed("--since", since, moment_ms),
        offsets=tuple(_offset_range(text) for text in options["offsets"]),
        limit=options["limit"],
        again=options["again"],
    )


def _offset_range(text: str) -> OffsetRange:
    from penstock.spark.pipeline.replay.dead_letters import OffsetRange

    match = _OFFSETS.fullmatch(text)
    if match is None:
        raise click.UsageError(f"--offsets {text}: must read PARTITION:FROM-TO, both included")
    partition, first, last = (int(group) for group in match.groups(default=match[2]))
    if last < first:
        raise click.UsageError(f"--offsets {text}: {last} comes before {first}")
    return OffsetRange(partition=partition, first=first, last=last)


def _show_replayed(state: State, done: tuple[Replayed, ...]) -> None:
    if state.json:
        write_json([asdict(entry) for entry in done])
        return
    for result in done:
        how = "resumed an interrupted replay: returned" if result.resumed else "returned"
        click.echo(f"{how} {counted(result.records, 'record')} to their topics, replay {result.id}")
    if not done:
        click.echo("no dead letters to return")


def _show_dead_letters(state: State, found: Found) -> None:
    facts = {"going": found.going, "groups": found.groups, "examples": found.examples}
    if not found.groups and not state.json:
        click.echo("no dead letters")
        return
    columns = ("rule", "topic", "dead letters=letters", "replayed", "stuck", "would return=going")
    show(state, found.groups, columns, all_as_json=facts)
    if state.json:
        return
    rows = [
        (
            f"{example['letter_partition']}:{example['letter_offset']}",
            f"{example['topic']}-{example['partition']}@{example['offset']}",
            example["rule"],
            example["reason"],
            example["key"],
            _short(example["value"]),
        )
        for example in found.examples
    ]
    if rows:
        write_table(("dead letter", "record", "rule", "reason", "key", "value"), rows)
        click.echo(f"would return {counted(found.going, 'record')}; {ENOUGH}")


def _short(text: str | None) -> str | None:
    return text if text is None or len(text) <= VALUE_CHARS else text[:VALUE_CHARS] + "…"


# Parked records


def _parked(
    state: State,
    where: Located,
    *,
    execute: bool,
    key: tuple[str, ...],
    key_hex: tuple[str, ...],
    everything: bool,
    query: str | None,
    dead_letter: bool,
) -> None:
    from penstock.spark.pipeline.replay.parked import ask, waiting

    keys = [text.encode() for text in key]
    keys += [_parsed("--key-hex", entry, bytes.fromhex) for entry in key_hex]
    if everything and keys:
        raise click.UsageError("give --all, or keys with --key and --key-hex, not both")
    if execute and not (everything or keys):
        raise click.UsageError("--execute needs --key, --key-hex or --all")
    spec = where.load()
    found = waiting(spec, query=query, keys=keys)
    if not execute:
        _show_waiting(state, found, of_keys=bool(keys))
        return
    asked = ask(
        spec, by=whoami(), keys=None if everything else keys, query=query, dead_letter=dead_letter
    )
    parked = sum(item.parked for item in found)
    if state.json:
        write_json({"parked_records": parked, "requests": asked})
        return
    for name, request in asked.items():
        click.echo(f"requested the release of records of query {name}: request {request}")
    click.echo("a running pipeline releases them within seconds, a stopped one at its next start")


def _show_waiting(state: State, found: tuple[Any, ...], *, of_keys: bool) -> None:
    if state.json:
        write_json([_waiting_json(element) for element in found])
        return
    if not any(candidate.total for candidate in found):
        click.echo("no held records of these keys" if of_keys else "no held records")
    for entry in found:
        if not entry.total:
            continue
        rows = entry.keys.slice(0, ROWS_SHOWN).to_pylist()
        click.echo(
            f"query {entry.query}: {counted(entry.total, 'held record')},"
            f" {entry.parked} of them parked"
        )
        write_table(
            (
                "key",
                "first record",
                "rule",
                "reason",
                "held to",
                "tries",
                "since",
                "next try",
                "queued",
            ),
            [
                (
                    _key(row["key"]),
                    f"{row['topic']}-{row['partition']}@{row['offset']}",
                    row["rule"],
                    row["reason"],
                    row["otherwise"],
                    row["attempt"],
                    moment(row["held_ms"]),
                    moment(row["due_ms"]),
                    row["behind"],
                )
                for row in rows
            ],
        )
        if entry.keys.num_rows > len(rows):
            click.echo(f"and {entry.keys.num_rows - len(rows)} more keys; --output json has all")
        if entry.requested:
            click.echo(f"pending release requests: {', '.join(entry.requested)}")
    if any(item.parked for item in found):
        click.echo(f"select keys with --key, --key-hex or --all, and {ENOUGH}")


def _waiting_json(one: Any) -> dict[str, Any]:
    rows = [
        {
            **row,
            "key": _key(row["key"]),
            "key_hex": None if row["key"] is None else row["key"].hex(),
        }
        for row in one.keys.to_pylist()
    ]
    return {
        "query": one.query,
        "records": one.total,
        "parked": one.parked,
        "keys": rows,
        "requested": one.requested,
    }


def _key(key: bytes | None) -> str | None:
    return None if key is None else key.decode("utf-8", "backslashreplace")


# A sink


def _sink(
    state: State,
    where: Located,
    name: str,
    options: dict[str, Any],
    *,
    execute: bool,
    master: str | None,
) -> None:
    from penstock.spark.pipeline.replay.backfill import CHUNK_RECORDS, Backfill
    from penstock.spark.pipeline.replay.refusals import check_sink, parse

    text = options["start"]
    start = _parsed("--from", text, parse) if text is not None else parse(None)
    spec = where.load()
    check_sink(spec, name)
    chosen: dict[str, Any] = {
        "history": options["history"],
        "chunk_records": options["chunk_records"] or CHUNK_RECORDS,
    }
    with _session(state, spec, master) as spark:
        backfill = Backfill(spec, spark, name)
        if not execute:
            _show_progress(state, backfill.look(start, **chosen), ENOUGH)
            return

        def told(progress: Progress) -> None:
            if not state.json:
                click.echo(
                    f"{progress.done} of {progress.chunks} chunks, {progress.rows} rows", err=True
                )

        _show_progress(state, backfill.run(start, by=whoami(), report=told, **chosen), "")


def _show_progress(state: State, found: Progress, more: str) -> None:
    if state.json:
        write_json({**asdict(found), "records": found.records})
        return
    if not found.chunks:
        click.echo(
            f"sink {found.sink} has no older records to write: it was in the pipeline from the"
            " beginning"
        )
        return
    write_table(
        ("topic", "partition", "from", "added at", "records"),
        [
            (topic, int(partition), first, end, end - first)
            for topic, partitions in found.ranges.items()
            for partition, (first, end) in partitions.items()
        ],
    )
    click.echo(
        f"sink {found.sink} of query {found.query} was added {moment(found.joined_ms)}: "
        f"{found.records} older records, {found.done} of {found.chunks} chunks written"
        + (f", {found.rows} rows" if found.done else "")
    )
    if found.done < found.chunks and more:
        click.echo(more)
