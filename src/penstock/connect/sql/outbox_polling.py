"""Source of a transactional outbox in PostgreSQL, by polling: each event once, in order.

The table has the columns of Debezium's outbox router and two more:

    id, aggregatetype, aggregateid, type, payload
    seq   bigserial UNIQUE
    xid   xid8 NOT NULL DEFAULT pg_current_xact_id()

**Order.** The events of an aggregate are published in the order of `seq`. `seq` is not the order of
commits, so an event is published only when its transaction, and those of all earlier events of its
aggregate, are below `pg_snapshot_xmin(pg_current_snapshot())`: all transactions with smaller ids
have ended. A transaction that stays open therefore delays events.

**Pollers.** Several connectors with different names may read one table. Aggregates are divided into
buckets by a hash. A session that holds the advisory lock of a bucket reads its aggregates. Each
poller holds its share of the buckets, and the locks of a lost session become free.

**Once.** Before a batch is published, its numbers are written to the table `penstock_outbox` with a
random token, and the token is the connector's position. After a crash, the position shows whether
the batch was published. Until the owner has restarted and decided this, no other poller reads the
buckets of the batch; after `takeover_seconds` another poller publishes it, perhaps again.

With `order = false` there are no buckets. A poller reads the oldest rows that no other poller has
written to `penstock_outbox`, so a transaction that stays open delays no other event. Pollers choose
rows in turn, under an advisory lock, and publish them at the same time.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa

from penstock.base.errors import InvalidSetting, PenstockError
from penstock.base.settings import setting
from penstock.base.system import SYSTEM_CLOCK
from penstock.connect.converting import whole
from penstock.connect.errors import ConnectorFailed, SourceUnavailable
from penstock.connect.plugins import (
    ConnectorSettings,
    Records,
    Source,
    SourceBatch,
    SourceContext,
)
from penstock.connect.sql.databases import Database, TableName, value, waited
from penstock.connect.sql.reading import Column, converted, copied, described
from penstock.records.columnar.schema import HEADERS_TYPE

POSITION: Final = "outbox"
CLAIMS: Final = 2**31 - 1
"""Number of the advisory lock for the creation of the table of claims, and for unordered claims.

Buckets have the numbers from 0. All pollers share the number of buckets, negated.
"""
SHARE_SECONDS: Final = 1.0
"""Time between two divisions of the buckets."""
_CLAIMS: Final = """
    CREATE TABLE IF NOT EXISTS penstock_outbox (
        outbox text, owner text, buckets_total int NOT NULL, batch text NOT NULL,
        buckets int[] NOT NULL, rows bigint[] NOT NULL, claimed timestamptz NOT NULL,
        PRIMARY KEY (outbox, owner))
"""
_CLAIM: Final = """
    INSERT INTO penstock_outbox VALUES (
        :outbox, :owner, :total, gen_random_uuid()::text, :buckets, :rows, clock_timestamp())
    ON CONFLICT (outbox, owner) DO UPDATE SET buckets_total = excluded.buckets_total,
        batch = excluded.batch, buckets = excluded.buckets, rows = excluded.rows,
        claimed = excluded.claimed
    RETURNING batch
"""
_OWN: Final = """
    SELECT batch, rows FROM penstock_outbox WHERE outbox = :outbox AND owner = :owner FOR UPDATE
"""
_RELEASE: Final = """
    UPDATE penstock_outbox SET rows = '{}', buckets = '{}'
    WHERE outbox = :outbox AND owner = :owner
"""
_CLAIMED: Final = """
    SELECT DISTINCT bucket FROM penstock_outbox, unnest(CASE WHEN buckets_total = :total
        THEN buckets ELSE ARRAY(SELECT generate_series(0, :total - 1)) END) AS bucket
    WHERE outbox = :outbox AND owner <> :owner AND rows <> '{}'
    AND claimed > clock_timestamp() - make_interval(secs => :takeover)
"""
_UNCLAIMED: Final = """
    NOT IN (SELECT unnest(rows) FROM penstock_outbox WHERE outbox = :outbox AND owner <> :owner
    AND claimed > clock_timestamp() - make_interval(secs => :takeover))
"""
_LOCKS: Final = """
    SELECT CASE WHEN objid::bigint > 2147483647 THEN objid::bigint - 4294967296
        ELSE objid::bigint END, pid FROM pg_locks
    WHERE locktype = 'advisory' AND granted AND objsubid = 2 AND classid::bigint = :lock
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND objid::bigint <> 2147483647
"""
_TAKE: Final = """
    SELECT bucket FROM unnest(CAST(:buckets AS int[])) AS bucket
    WHERE pg_try_advisory_lock(:lock, bucket)
"""
_GIVE_BACK: Final = """
    SELECT pg_advisory_unlock(:lock, bucket) FROM unnest(CAST(:buckets AS int[])) AS bucket
"""


class OutboxSettings(ConnectorSettings):
    """Keys of `[source]`."""

    url: str = setting(MISSING, "URL of the PostgreSQL database.", secret=True)
    table: str = setting("outbox", "Table as `table` or `schema.table`.")
    topic: str = setting(
        "{aggregatetype}", "Topic of the events. `{aggregatetype}` is replaced; characters that"
        " topic names cannot have become `_`.",
    )  # fmt: skip
    id_column: str = setting("id", "Column of the event's id, which becomes the header `id`.")
    aggregate_type_column: str = setting("aggregatetype", "Column of the aggregate's type.")
    aggregate_id_column: str = setting("aggregateid", "Column of the key.")
    type_column: str = setting(
        "type", "Column of the event's type, which becomes the header `type`; empty for none."
    )
    payload_column: str = setting("payload", "Column of the value: json, jsonb, text or bytea.")
    sequence_column: str = setting("seq", "Column of a sequence: the order of an aggregate.")
    transaction_column: str = setting("xid", "Column with the id of the inserting transaction.")
    after: str = setting(
        "delete", "Change of published rows: `delete` removes them, `mark` sets `mark_column`.",
        choices=("delete", "mark"),
    )  # fmt: skip
    mark_column: str = setting(
        "published_at", "Timestamp that is null until the row has been published."
    )
    order: bool = setting(True, "Whether the events of an aggregate keep their order.")
    buckets: int = setting(
        16, "Parts into which aggregates are divided, for all pollers of the table.", 1, 1024
    )
    takeover_seconds: float = setting(
        60.0, "Time after which other pollers publish the last batch of a lost poller.",
        minimum=1.0, maximum=86400.0,
    )  # fmt: skip
    batch_rows: int = setting(10_000, "Most rows of a batch.", 1, 1_000_000)
    poll_interval_seconds: float = setting(
        0.1, "Time between two readings of an empty outbox.", minimum=0.01, maximum=3600.0
    )

    def __post_init__(self) -> None:
        if not self.url.startswith("postgres"):
            raise InvalidSetting("url", "[hidden]", "must be a URL of PostgreSQL")


class OutboxSource(Source[OutboxSettings]):
    """Source of the events of an outbox."""

    settings_type = OutboxSettings

    def __init__(self, settings: OutboxSettings, context: SourceContext) -> None:
        super().__init__(settings, context)
        self._database = Database(settings.url, SourceUnavailable)
        table = TableName.parse(settings.table)
        self._table = table
        self._sql = self._database.quoted(table)
        self._lock = zlib.crc32(self._sql.encode()) & 0x7FFFFFFF
        self._claiming = sa.text(f"SELECT pg_advisory_xact_lock({self._lock}, {CLAIMS})")
        self._place = {"outbox": self._sql, "owner": context.connector}
        self._held: set[int] = set()
        self._rows: list[int] = []
        self._pollers = 0
        self._share_at = 0.0

    # Checks

    def problems(self) -> Sequence[str]:
        try:
            self._check()
            return ()
        except PenstockError as error:
            return (str(error),)
        finally:
            self.close()

    def plan(self) -> Sequence[str]:
        word = "delete" if self.settings.after == "delete" else "mark"
        return (
            "create table penstock_outbox, if it is missing",
            f"publish the rows of {self._table}, and {word} them",
        )

    def _check(self) -> None:
        """Check the table, its columns and the rights of the user.

        Raises:
            ConnectorFailed: the source cannot run; the message has the remedy.
        """
        with self._database.errors():
            if not self._database.inspector().has_table(self._table.name, self._table.schema):
                raise ConnectorFailed(f"table: {self._table} does not exist; create it")
        with self._database.transaction() as connection:
            empty = sa.select(sa.text("*")).select_from(self._table.clause()).limit(0)
            there = set(connection.execute(empty).keys())
        settings, quote = self.settings, self._database.identifier
        added = {
            settings.sequence_column: "bigserial UNIQUE",
            settings.transaction_column: "xid8 NOT NULL DEFAULT pg_current_xact_id()",
            settings.mark_column: "timestamptz",
        }
        if settings.after != "mark":
            del added[settings.mark_column]
        missing = [
            f"ADD COLUMN {quote(name)} {kind}" for name, kind in added.items() if name not in there
        ]
        if missing:
            raise ConnectorFailed(
                f"table: {self._table} lacks columns; run ALTER TABLE {self._sql}"
                f" {', '.join(missing)}"
            )
        for name in self._columns():
            if name not in there:
                raise ConnectorFailed(f"table: {self._table} has no column {name}")
        right = "DELETE" if settings.after == "delete" else "UPDATE"
        with self._database.transaction() as connection:
            for needed in ("SELECT", right):
                granted = sa.func.has_table_privilege(self._sql, needed)
                if not connection.execute(sa.select(granted)).scalar():
                    raise ConnectorFailed(
                        f"table: the user may not {needed} from {self._table}; run GRANT {needed}"
                        f" ON {self._sql} TO CURRENT_USER as its owner"
                    )

    def _columns(self) -> list[str]:
        settings = self.settings
        named = (
            settings.sequence_column, settings.id_column, settings.aggregate_type_column,
            settings.aggregate_id_column, settings.payload_column, settings.type_column,
        )  # fmt: skip
        return [name for name in named if name]

    def facts(self) -> Mapping[str, Any]:
        return {"buckets": sorted(self._held), "pollers": self._pollers}

    def close(self) -> None:
        self._held.clear()
        self._database.close()

    # Rows

    def read(self, positions: Mapping[str, Any]) -> Iterator[SourceBatch]:
        self._check()
        self._start((positions.get(POSITION) or {}).get("batch", ""))
        columns, statement = self._described(), self._statement()
        while True:
            if self.settings.order and SYSTEM_CLOCK.monotonic() >= self._share_at:
                self._share()
            held = {"held": sorted(self._held)} if self.settings.order else {}
            with self._database.transaction() as connection:
                if not self.settings.order:  # the next statement then sees all earlier claims
                    connection.execute(self._claiming)
                given = statement.bindparams(**held)
                rows = converted(copied(connection, given, columns), columns)
                batch = self._claim(connection, rows) if len(rows) else ""
            if batch:
                yield self._events(rows, {POSITION: {"batch": batch}})
                continue
            yield SourceBatch(caught_up=bool(self._held) or not self.settings.order)
            yield from waited(self.settings.poll_interval_seconds)

    def committed(self, positions: Mapping[str, Any]) -> None:
        if POSITION in positions:
            with self._database.transaction() as connection:
                self._finish(connection, self._rows)
                connection.execute(sa.text(_RELEASE), self._place)

    def _statement(self) -> sa.TextClause:
        """Return the statement of the next rows; with order, its parameter `held` is open."""
        if self.settings.order:
            return sa.text(self._head()).bindparams(sa.bindparam("held"))
        sequence = self._database.identifier(self.settings.sequence_column)
        return sa.text(self._select(sequence + _UNCLAIMED)).bindparams(
            **self._place, takeover=self.settings.takeover_seconds
        )

    def _described(self) -> tuple[Column, ...]:
        with self._database.transaction() as connection:
            empty = f"SELECT * FROM ({self._select('TRUE')}) AS rows LIMIT 0"  # noqa: S608
            return described(connection, sa.text(empty))

    def _select(self, condition: str, *more: str) -> str:
        """Return the statement of the oldest unpublished rows."""
        quote, settings = self._database.identifier, self.settings
        names = ", ".join([*(quote(name) for name in self._columns()), *more])
        if settings.after == "mark":
            condition = f"{quote(settings.mark_column)} IS NULL AND {condition}"
        return (
            f"SELECT {names} FROM {self._sql} WHERE {condition}"  # noqa: S608
            f" ORDER BY {quote(settings.sequence_column)} LIMIT {settings.batch_rows}"
        )

    def _head(self) -> str:
        """Return the statement of the rows whose earlier transactions have ended.

        Rows of an aggregate follow each other by their sequence, and none overtakes an earlier row.
        """
        quote, settings = self._database.identifier, self.settings
        kind, key = quote(settings.aggregate_type_column), quote(settings.aggregate_id_column)
        sequence, transaction = quote(settings.sequence_column), quote(settings.transaction_column)
        bucket = f"(hashtextextended(concat({kind}, '/', {key}), 0) & 2147483647)"
        oldest = self._select(
            f"{bucket} % {settings.buckets} = ANY(CAST(:held AS bigint[]))",
            f"{transaction} AS penstock_transaction",
        )
        names = ", ".join(quote(name) for name in self._columns())
        return (
            f"SELECT {names} FROM (SELECT *, bool_and(penstock_transaction <"  # noqa: S608
            f" pg_snapshot_xmin(pg_current_snapshot())) OVER (PARTITION BY {kind}, {key}"
            f" ORDER BY {sequence}) AS penstock_ended FROM ({oldest}) AS oldest) AS rows"
            f" WHERE penstock_ended ORDER BY {sequence}"
        )

    def _events(self, rows: Any, positions: Mapping[str, Any]) -> SourceBatch:
        """Return rows as records by topic."""
        columns = dict(zip(_ROLES, (whole(column) for column in rows.columns), strict=False))
        kinds = columns["aggregate_type"].cast(pa.string())
        before, found, after = self.settings.topic.partition("{aggregatetype}")
        topics = pc.binary_join_element_wise(before, kinds if found else "", after, "")
        if not found:
            topics = pa.repeat(before, len(rows))
        topics = pc.replace_substring_regex(topics, "[^a-zA-Z0-9._-]", "_")
        payload = columns["payload"]
        named: dict[str, Any] = {name: columns[name] for name in ("id", "type") if name in columns}
        table = pa.table({
            "key": columns["aggregate_id"].cast(pa.string()),
            "value": payload if payload.type == pa.binary() else payload.cast(pa.string()),
            "headers": _headers(named),
        })  # fmt: skip
        records = [
            Records(topic, table.filter(pc.equal(topics, topic)))
            for topic in pc.unique(topics).to_pylist()
        ]
        return SourceBatch(records=records, positions=positions)

    # Claims and buckets

    def _start(self, published: str) -> None:
        """Decide about the last batch of an earlier run, and register this poller.

        Args:
            published: token of the last batch that the log has committed.
        """
        with self._database.transaction() as connection:
            connection.execute(self._claiming)
            connection.execute(sa.text(_CLAIMS))
        with self._database.transaction() as connection:
            found = connection.execute(sa.text(_OWN), self._place).first()
            if found is not None and found[1]:
                if found[0] == published:
                    self._finish(connection, found[1])
                connection.execute(sa.text(_RELEASE), self._place)
        if not self.settings.order:
            return
        with self._database.transaction() as connection:
            place = {"lock": self._lock, "number": -self.settings.buckets}
            connection.execute(sa.text("SELECT pg_advisory_lock_shared(:lock, :number)"), place)
        self._share_at = 0.0

    def _share(self) -> None:
        """Release or take buckets, so that this poller holds its share of them."""
        total = self.settings.buckets
        with self._database.transaction() as connection:
            locks = connection.execute(sa.text(_LOCKS), {"lock": self._lock}).all()
            presences = [number for number, _ in locks if number < 0]
            if set(presences) != {-total}:
                raise ConnectorFailed(
                    f"buckets: pollers of {self._table} use {sorted(-n for n in set(presences))}"
                    " buckets; set the same number in each of them"
                )
            self._pollers = len(presences)
            share = -(-total // self._pollers)
            taken = {number for number, _ in locks if number >= 0}
            free = [bucket for bucket in range(total) if bucket not in taken]
            wanted = free[: max(0, share - len(self._held))]
            given = {"lock": self._lock, "buckets": wanted}
            self._held.update(connection.execute(sa.text(_TAKE), given).scalars())
            claimed = {
                **self._place, "total": total, "takeover": self.settings.takeover_seconds,
            }  # fmt: skip
            others = self._held & set(connection.execute(sa.text(_CLAIMED), claimed).scalars())
            kept = sorted(self._held - others)[:share]
            released = self._held - set(kept)
            given = {"lock": self._lock, "buckets": sorted(released)}
            connection.execute(sa.text(_GIVE_BACK), given).all()
            self._held = set(kept)
        self._share_at = SYSTEM_CLOCK.monotonic() + SHARE_SECONDS

    def _claim(self, connection: sa.Connection, rows: Any) -> str:
        """Store the numbers of a batch before it is published; return the batch's token."""
        self._rows = rows.column(0).to_pylist()
        given = {
            **self._place, "total": self.settings.buckets, "buckets": sorted(self._held),
            "rows": self._rows,
        }  # fmt: skip
        return str(connection.execute(sa.text(_CLAIM), given).scalar())

    def _finish(self, connection: sa.Connection, rows: Sequence[int]) -> None:
        """Delete or mark published rows."""
        settings = self.settings
        table = self._table.clause(settings.mark_column)
        change: Any = sa.delete(table)
        if settings.after == "mark":
            change = sa.update(table).values({settings.mark_column: sa.func.clock_timestamp()})
        numbers = sa.cast(value(list(rows)), sa.ARRAY(sa.BigInteger))
        sequence: sa.ColumnClause[Any] = sa.column(settings.sequence_column)
        connection.execute(change.where(sequence == sa.any_(numbers)))


_ROLES: Final = ("sequence", "id", "aggregate_type", "aggregate_id", "payload", "type")
"""Columns of the statement, in its order."""


def _headers(columns: Mapping[str, Any]) -> Any:
    """Return headers of the columns, by name."""
    count = len(next(iter(columns.values())))
    names = pa.array(list(columns), pa.string())
    keys = names.take(pa.array(np.tile(np.arange(len(columns)), count)))
    values = pa.concat_arrays([column.cast(pa.string()) for column in columns.values()])
    places = np.arange(len(columns) * count).reshape(len(columns), count).T.ravel()
    pairs = pa.StructArray.from_arrays(
        [keys, values.cast(pa.binary()).take(pa.array(places))], fields=list(_PAIR)
    )
    offsets = pa.array(np.arange(count + 1) * len(columns), pa.int32())
    return pa.ListArray.from_arrays(offsets, pairs).cast(HEADERS_TYPE)


_PAIR: Final = pa.struct([("key", pa.string()), ("value", pa.binary())])
