"""Was every row processed exactly once? Checked by the place it came from, not by counts.

Each row in a table still has its place: topic, partition, offset, and for weather the line in the
file that the record points to. The places in the tables for flights, weather and dead letters
together must be the places in the log: each once, none missing, none that the log does not have.
That the log itself has each flight once, although its agent was killed, shows in the sums of miles.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from examples.flights import data
from examples.flights.rules import SOURCE
from penstock.client import Client
from penstock.outbox.pointer_table import decode_pointers

TABLES: Final = ("flights", "weather", "dead_letters")
TOPICS: Final = (data.FLIGHTS, data.WEATHER)
LINE_BITS: Final = 8
PARTITION_SHIFT: Final = 40
TOPIC_SHIFT: Final = 56


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A sentence, and whether it is true."""

    text: str
    holds: bool


def claims(folder: Path, client: Client, flights: pa.Table) -> list[Claim]:
    """Every claim of the demo, tested against the log and the tables as they are on disk."""
    kept = {name: rows(folder, name, list(SOURCE)) for name in TABLES}
    letters = rows(folder, "dead_letters", ["source", "reason"])
    logged = _log_places(client)
    stored = np.concatenate([_places(table) for table in kept.values()])
    distinct = np.unique(stored)
    counts = {name: table.num_rows for name, table in kept.items()}
    topic_keys = client.read_arrow(data.DEAD_LETTERS, columns=("key",))["key"].cast(pa.string())
    delays = rows(folder, "delays", ["flights"])
    windows = pc.sum(delays["flights"]).as_py() or 0
    return [
        Claim(
            text=f"{len(logged):,} rows in the log and its files = {counts['flights']:,} flights "
            f"+ {counts['weather']:,} weather + {counts['dead_letters']:,} dead letters",
            holds=len(logged) == sum(counts.values()),
        ),
        Claim(
            text=f"no row twice: {len(distinct):,} places for {len(stored):,} rows",
            holds=len(distinct) == len(stored),
        ),
        Claim(
            text="no row missing, none invented: the places are those of the log, every one",
            holds=bool(np.array_equal(distinct, np.sort(logged))),
        ),
        Claim(
            text=f"{len(topic_keys):,} dead letters in the topic, each once, as in the table",
            holds=len(topic_keys) == letters.num_rows
            and set(topic_keys.to_pylist()) == set(letters["source"].to_pylist()),
        ),
        Claim(
            text=f"{windows:,} flights in {delays.num_rows:,} windows = flights in the table",
            holds=windows == counts["flights"],
        ),
        _content(folder, flights),
    ]


def rows(folder: Path, table: str, columns: list[str]) -> pa.Table:
    """Columns of one of the demo's tables."""
    return DeltaTable(str(folder / "tables" / table)).to_pyarrow_table(columns=columns)


def _content(folder: Path, flights: pa.Table) -> Claim:
    # Miles survive every step unchanged, so their sum tells mixed-up rows from right ones.
    before = pc.sum(flights["distance"]).as_py()
    kept = pc.sum(rows(folder, "flights", ["distance"])["distance"]).as_py()
    letters = rows(folder, "dead_letters", ["topic", "value"])
    texts = letters.filter(pc.equal(letters["topic"], data.FLIGHTS))["value"]
    found = pc.extract_regex(texts, r'"distance":(?P<miles>\d+)')
    dead = pc.sum(pc.struct_field(found, "miles").cast(pa.int64())).as_py() or 0
    return Claim(
        text=f"{before:,} miles in the source = {kept:,} in the table + {dead:,} dead-lettered",
        holds=before == kept + dead,
    )


def _log_places(client: Client) -> np.ndarray:
    runs = []
    for partition, end in client.list_offsets(data.FLIGHTS, "latest").items():
        runs.append(_packed(TOPICS.index(data.FLIGHTS), partition, np.arange(end), 0))
    records = client.read_arrow(data.WEATHER, columns=("partition", "offset", "value"))
    lines = decode_pointers(records["value"])["event_count"].to_numpy()
    first = np.repeat(np.cumsum(lines) - lines, lines)
    runs.append(
        _packed(
            TOPICS.index(data.WEATHER),
            np.repeat(records["partition"].to_numpy(), lines),
            np.repeat(records["offset"].to_numpy(), lines),
            np.arange(lines.sum()) - first,
        )
    )
    return np.concatenate(runs)


def _places(table: pa.Table) -> np.ndarray:
    topic = pc.index_in(table["topic"], value_set=pa.array(TOPICS)).to_numpy()
    return _packed(topic, *(table[name].to_numpy() for name in SOURCE[1:]))


def _packed(
    topic: np.ndarray | int,
    partition: np.ndarray | int,
    offset: np.ndarray,
    line: np.ndarray | int,
) -> np.ndarray:
    # One number for one place.
    places = np.asarray(topic, np.int64) << TOPIC_SHIFT
    places = places | np.asarray(partition, np.int64) << PARTITION_SHIFT
    return np.asarray(places | offset.astype(np.int64) << LINE_BITS | np.asarray(line, np.int64))
