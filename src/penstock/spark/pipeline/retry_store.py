"""Retry store: held records, parked until an operator releases them or held until a retry is due.

With `keep_order`, later records with the key of a held record are held too, as queued records
(`follow`). They are released with it, in order. The held records of a query are the rows of a small
Delta table. Each batch replaces all rows in one commit with its number, so a replay replaces them
once. Held records pass through the driver; there are at most `errors.held_max` of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import TableNotFoundError

from penstock.base.errors import InvalidError
from penstock.base.files import write_durably
from penstock.spark.schema import HEADERS_ARROW, TIMESTAMP_ARROW

QUEUED: Final = "follow"
ALL_KEYS: Final = "all"

SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", TIMESTAMP_ARROW),
        pa.field("headers", HEADERS_ARROW),
        pa.field("rule", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("otherwise", pa.string()),
        pa.field("attempt", pa.int32()),
        pa.field("held_ms", pa.int64()),
        pa.field("due_ms", pa.int64()),
    ]
)
"""`otherwise` is `park`, `retry` or `follow`; `due_ms` is null if no retry is planned."""

_PLACE: Final = ("topic", "partition", "key")


class TooManyHeld(InvalidError):
    """More held records than `errors.held_max` allows."""

    code: ClassVar[str] = "invalid_record"

    def __init__(self, query: str, count: int, limit: int) -> None:
        super().__init__(
            f"query {query}: {count} records would be held, errors.held_max is {limit}: release "
            "or dead-letter some (`penstock pipeline replay --parked`), remove the cause of their "
            "rejection, or raise the limit"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Request to release parked records: those of some keys, or all if `keys` is None.

    Released records are retried. With `dead_letter` they become dead letters, and only the records
    queued behind them are retried.
    """

    keys: tuple[bytes, ...] | None
    dead_letter: bool = False

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Release:
        """Parse a request: `keys`, a list of hexadecimal keys or "all", and `dead_letter`."""
        keys = body["keys"]
        return cls(
            keys=None if keys == ALL_KEYS else tuple(bytes.fromhex(key) for key in keys),
            dead_letter=bool(body.get("dead_letter")),
        )

    def names(self, held: pa.Table) -> Any:
        """Return a boolean column: whether a held record is parked and selected by this request."""
        parked = pc.fill_null(pc.equal(held["otherwise"], "park"), False)
        if self.keys is None:
            return parked
        keys = pa.array(self.keys, pa.binary())
        return pc.and_(parked, pc.fill_null(pc.is_in(held["key"], value_set=keys), False))


class RetryStore:
    """Held records of one query."""

    def __init__(self, table: Path, *, application: str) -> None:
        self._table = str(table)
        self._application = application

    def version(self) -> int | None:
        """Return the newest version of the table; None if no record was ever held."""
        table = self._open(None)
        return None if table is None else table.version()

    def load(self, version: int | None) -> pa.Table:
        """Return the held records of a version, by topic, partition and offset; empty for None."""
        table = None if version is None else self._open(version)
        if table is None:
            return SCHEMA.empty_table()
        held = table.to_pyarrow_table().select(SCHEMA.names).cast(SCHEMA)
        return held.sort_by([(name, "ascending") for name in ("topic", "partition", "offset")])

    def save(self, held: pa.Table, batch_id: int) -> None:
        """Replace all held records, unless this batch has already done so."""
        table = self._open(None)
        if table is None and held.num_rows == 0:
            return
        if table is not None:
            last = table.transaction_version(self._application)
            if last is not None and last >= batch_id:
                return
        write_deltalake(
            self._table,
            held,
            mode="overwrite",
            commit_properties=CommitProperties(
                app_transactions=[Transaction(self._application, batch_id)]
            ),
        )

    def _open(self, version: int | None) -> DeltaTable | None:
        try:
            return DeltaTable(self._table, version=version)
        except TableNotFoundError:
            return None


def released(
    held: pa.Table, *, now_ms: int, releases: Sequence[Release], keep_order: bool
) -> tuple[pa.Table, pa.Table]:
    """Split held records into those that join this batch and those that stay, each in order.

    A record joins if its retry is due or a request releases it. With `keep_order`, all records of a
    key join if the first of them does, and otherwise stay.
    """
    if held.num_rows == 0:
        return held, held
    goes = pc.fill_null(pc.less_equal(held["due_ms"], now_ms), False)
    for release in releases:
        goes = pc.or_(goes, release.names(held))
    if keep_order:
        goes = _with_queued(held, goes)
    return held.filter(goes), held.filter(pc.invert(goes))


def dead_lettered(going: pa.Table, releases: Sequence[Release]) -> tuple[pa.Table, pa.Table]:
    """Split released records into dead letters and records to retry."""
    dead = pa.chunked_array([pa.repeat(False, going.num_rows)])
    for release in releases:
        if release.dead_letter and going.num_rows:
            dead = pc.or_(dead, release.names(going))
    return going.filter(dead), going.filter(pc.invert(dead))


def _with_queued(held: pa.Table, goes: Any) -> Any:
    marked = held.select([*_PLACE, "offset"]).append_column("goes", goes)
    marked = marked.append_column("row", pa.array(range(held.num_rows), pa.int64()))
    firsts = marked.group_by(list(_PLACE)).aggregate([("row", "min")])
    first_goes = pc.take(goes, firsts["row_min"])
    firsts = firsts.append_column("first_goes", first_goes)
    # A null key matches nothing in a join, so each record without a key is decided by itself.
    joined = marked.join(
        firsts.drop_columns(["row_min"]), keys=list(_PLACE), join_type="left outer"
    )
    joined = joined.sort_by("row")
    together = pc.if_else(pc.is_null(joined["key"]), joined["goes"], joined["first_goes"])
    return pc.fill_null(together, False)


def next_due_ms(held: pa.Table) -> int | None:
    """Return the time of the next retry in ms since 1970; None if no retry is planned."""
    due: int | None = pc.min(held["due_ms"]).as_py()
    return due


def next_batch_ms(held: pa.Table, requested: Sequence[str], *, now_ms: int) -> int | None:
    """Return when to run a batch even without new records, in ms since 1970.

    This is now if a release is requested, else the time of the next retry, or None.
    """
    return now_ms if requested else next_due_ms(held)


class ReleaseBox:
    """Requests to release records of a query, as files `<folder>/<id>.json`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def pending(self) -> tuple[str, ...]:
        if not self._folder.is_dir():
            return ()
        return tuple(sorted(path.stem for path in self._folder.glob("*.json")))

    def read(self, release_id: str) -> Release:
        path = self._folder / f"{release_id}.json"
        if not path.exists():
            path = self._folder / "done" / f"{release_id}.json"
        return Release.from_json(json.loads(path.read_bytes()))

    def ask(self, release_id: str, body: Mapping[str, Any]) -> None:
        """Add a request durably."""
        write_durably(self._folder / f"{release_id}.json", json.dumps(body).encode())

    def done(self, went: Mapping[str, int], *, batch_id: int) -> None:
        """Move completed requests to the folder `done`.

        Args:
            went: the number of released records, by request.
            batch_id: the batch that released them.
        """
        for release_id, records in went.items():
            path = self._folder / f"{release_id}.json"
            if path.exists():
                body = json.loads(path.read_bytes()) | {"records": records, "batch_id": batch_id}
                write_durably(self._folder / "done" / path.name, json.dumps(body).encode())
                path.unlink()
