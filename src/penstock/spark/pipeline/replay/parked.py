"""Held records of a pipeline, and requests to release parked ones.

A request is a file with the user and the time. A running pipeline reads it within seconds, a
stopped one when it starts. The batch that releases the records moves the file to the folder `done`,
with its batch number and the number of released records.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.base.errors import InvalidError
from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS, Clock, Randomness
from penstock.spark.pipeline.retry_store import ALL_KEYS, Release, ReleaseBox, RetryStore
from penstock.spark.pipeline.spec import PipelineSpec
from penstock.spark.pipeline.state import PipelinePaths

KEYS_MAX: Final = 1_000
WITH_KEY: Final = -1
_FACTS: Final = ("offset", "rule", "reason", "otherwise", "attempt", "held_ms", "due_ms")


class NothingParked(InvalidError):
    """Selection that matches no held or parked record."""

    code: ClassVar[str] = "invalid_request"


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Held records of one query. `total` and `parked` count records; `keys` has a row per key.

    A row has `topic`, `partition`, `key`, and of the key's first held record `offset`, `rule`,
    `reason`, `otherwise`, `attempt`, `held_ms` and `due_ms`. `behind` is the number of records that
    are queued behind it. Each record without a key has its own row. `requested` has the ids of
    pending requests.
    """

    query: str
    total: int
    parked: int
    keys: pa.Table
    requested: tuple[str, ...]


def waiting(
    spec: PipelineSpec, *, query: str | None = None, keys: Sequence[bytes] = ()
) -> tuple[Waiting, ...]:
    """Return the held records by query; only those with the given keys, if there are any.

    Raises:
        NothingParked: the pipeline has no such query, or the query never held a record.
    """
    names = _queries(spec)
    if query is not None:
        if query not in names:
            known = ", ".join(names) or "none"
            raise NothingParked(f"query {query} has no held records; queries with some: {known}")
        names = (query,)
    return tuple(_waiting(spec, name, keys) for name in names)


def ask(
    spec: PipelineSpec,
    *,
    by: str,
    keys: Sequence[bytes] | None,
    query: str | None = None,
    dead_letter: bool = False,
    clock: Clock = SYSTEM_CLOCK,
    randomness: Randomness = SYSTEM_RANDOMNESS,
) -> dict[str, str]:
    """Request the release of parked records.

    Args:
        by: the requesting user.
        keys: the keys whose records to release; None for all parked records.
        query: the query whose records to release; None for all queries.
        dead_letter: dead-letter the records instead of retrying them.

    Returns:
        The ids of the requests, by query; queries without matching records get no request.

    Raises:
        NothingParked: no parked record matches, there are too many keys, or `dead_letter` is set
            without a dead-letter topic.
    """
    if dead_letter and spec.errors.dead_letters is None:
        raise NothingParked("--dead-letter needs a topic: set errors.dead_letters in the file")
    if keys is not None and len(keys) > KEYS_MAX:
        raise NothingParked(f"{len(keys)} keys given, at most {KEYS_MAX} are allowed; use --all")
    wish = Release(keys=None if keys is None else tuple(keys), dead_letter=dead_letter)
    held_tables = {name: _held(spec, name) for name in _queries(spec) if query in {None, name}}
    meant = [
        name
        for name, held in held_tables.items()
        if held.num_rows and pc.any(wish.names(held)).as_py()
    ]
    if not meant:
        raise NothingParked(
            "no parked record matches. List held records by --parked without keys. Records that "
            "wait for a retry need no release"
        )
    now_ms = clock.now_ms()
    asked = {}
    for name in meant:
        asked[name] = f"{now_ms:015d}-{randomness.uuid().hex[:12]}"
        body: dict[str, Any] = {
            "keys": ALL_KEYS if keys is None else [key.hex() for key in keys],
            "dead_letter": dead_letter,
            "by": by,
            "at_ms": now_ms,
        }
        ReleaseBox(PipelinePaths(spec).releases(name)).ask(asked[name], body)
    return asked


def _queries(spec: PipelineSpec) -> tuple[str, ...]:
    folder = PipelinePaths(spec).held("x").parent
    if not folder.is_dir():
        return ()
    return tuple(sorted(entry.name for entry in os.scandir(folder) if entry.is_dir()))


def _held(spec: PipelineSpec, query: str) -> pa.Table:
    store = RetryStore(PipelinePaths(spec).held(query), application="")
    return store.load(store.version())


def _waiting(spec: PipelineSpec, query: str, keys: Sequence[bytes]) -> Waiting:
    held = _held(spec, query)
    if keys:
        held = held.filter(pc.is_in(held["key"], value_set=pa.array(keys, pa.binary())))
    alone = pc.if_else(pc.is_valid(held["key"]), WITH_KEY, held["offset"])
    place = ["topic", "partition", "key"]
    grouped = (
        held.select([*place, *_FACTS])
        .append_column("alone", alone)
        .group_by([*place, "alone"], use_threads=False)
        .aggregate([*((name, "first") for name in _FACTS), ("offset", "count")])
    )
    rows = grouped.rename_columns(
        [name.removesuffix("_first") for name in grouped.column_names]
    ).sort_by([(name, "ascending") for name in ("topic", "partition", "offset")])
    behind = pc.subtract(rows["offset_count"], 1)
    return Waiting(
        query=query,
        total=held.num_rows,
        parked=pc.sum(pc.equal(held["otherwise"], "park")).as_py() or 0,
        keys=rows.drop_columns(["alone", "offset_count"]).append_column("behind", behind),
        requested=ReleaseBox(PipelinePaths(spec).releases(query)).pending(),
    )
