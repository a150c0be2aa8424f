"""Held records of a pipeline, and requests to release them.

A request is a file with user and time that the pipeline reads while it runs or when it starts; the
batch that carries it out moves it to the folder `done`, with its number and the released records.
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
from penstock.spark.pipeline.paths import PipelinePaths
from penstock.spark.pipeline.retry_store import ALL_KEYS, Release, ReleaseBox, RetryStore
from penstock.spark.pipeline.spec import PipelineSpec

KEYS_MAX: Final = 1_000
WITH_KEY: Final = -1
_FACTS: Final = ("offset", "rule", "reason", "otherwise", "attempt", "held_ms", "due_ms")


class NothingParked(InvalidError):
    """Selection without a parked record."""

    code: ClassVar[str] = "invalid_request"


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Held records of one query. `total` counts records; `keys` has a row for each key.

    A row has `topic`, `partition` and `key`, of the key's first record `offset`, `rule`, `reason`,
    `otherwise`, `attempt`, `held_ms` and `due_ms`, and `behind`, the number of records queued
    behind it. A record without a key has a row for itself.
    """

    query: str
    total: int
    parked: int
    keys: pa.Table
    requested: tuple[str, ...]


def waiting(
    spec: PipelineSpec, *, query: str | None = None, keys: Sequence[bytes] = ()
) -> tuple[Waiting, ...]:
    """Return the held records by query; of all keys, or of some.

    Raises:
        NothingParked: the pipeline has no such query, or it never held a record.
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
    """Request the release of parked records: those of some keys, or with None all.

    Args:
        by: the requesting user.
        dead_letter: dead-letter them instead of trying them again.

    Returns:
        The ids of the requests, by query, for queries with such records.

    Raises:
        NothingParked: no such record exists.
        InvalidError: too many keys, or dead letters without a topic for them.
    """
    if dead_letter and spec.errors.dead_letters is None:
        raise NothingParked("--dead-letter needs errors.dead_letters in the file: no topic is set")
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
            "no parked record matches. List held records by --parked without keys; records that "
            "are held for a retry need no release"
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
