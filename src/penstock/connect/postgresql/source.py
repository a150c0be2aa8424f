"""Source `postgresql`: a snapshot of tables, then their changes, each change once.

Positions:

    stream         {"commit_lsn": …, "rows": …, "flush_lsn": …, "system": …, "timeline": …}
    table/s.t      state of the table's snapshot (`snapshot.py`)

`commit_lsn` is the commit position of the last transaction in the log, `rows` the number of its
rows there, `flush_lsn` the end of the last transaction that is whole there. The slot's confirmed
position moves to `flush_lsn` only after the log has committed it. The server then repeats at most
what follows, and rows up to `commit_lsn` and `rows` are left out. `system` and `timeline` identify
the server, so that a failover that has lost changes is recognised.
"""

from __future__ import annotations

import select
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec
import numpy as np
import pyarrow as pa

from penstock.base.errors import InvalidSetting
from penstock.base.system import SYSTEM_CLOCK
from penstock.connect import MISSING, ConnectorSettings, Source, setting
from penstock.connect.errors import ConnectorFailed, SourceUnavailable
from penstock.connect.plugins import Records, SourceBatch, SourceContext
from penstock.connect.postgresql import slot as slots
from penstock.connect.postgresql.catalog import Catalog, Table
from penstock.connect.postgresql.connection import Session, connect, quoted, translated
from penstock.connect.postgresql.envelope import (
    Origin,
    Shape,
    changed,
    shape_of,
    snapshotted,
    truncated,
)
from penstock.connect.postgresql.pgoutput import (
    Chunk,
    Decoder,
    Moments,
    Relation,
    Rows,
    Truncation,
    lsn_text,
)
from penstock.connect.postgresql.snapshot import (
    Segment,
    SnapshotFilter,
    SnapshotReader,
    TableState,
)
from penstock.connect.postgresql.values import Decimals, ValueRules

STREAM: Final = "stream"
TABLE: Final = "table/"
MESSAGES_MAX: Final = 20_000
BATCH_BYTES: Final = 8 << 20
"""Bytes of messages after which a batch ends; one message may be larger."""
WAIT_SECONDS: Final = 0.05
FEEDBACK_SECONDS: Final = 5.0
LOOK_SECONDS: Final = 2.0
"""Time between two looks at the slot, at the rights and at the list of tables."""
WARN_SHARE: Final = 0.8
OTHER_INDEX: Final = (
    "SELECT 1 FROM pg_index WHERE indrelid = %s AND indisreplident AND NOT indisprimary"
)
_FOREIGN: Final = """
SELECT oid::regclass::text FROM pg_class
WHERE oid = ANY(%s::oid[]) AND NOT pg_has_role(relowner, 'USAGE')
"""
_HIDDEN: Final = """
SELECT oid::regclass::text, quote_ident(current_user) FROM pg_class
WHERE oid = ANY(%s::oid[]) AND NOT has_any_column_privilege(oid, 'SELECT')
"""


class Settings(ConnectorSettings):
    """Keys of `[source]` with `connector = "postgresql"`."""

    url: str = setting(
        MISSING, "Required: the database, as `postgresql://user@host:port/database`.", secret=True
    )
    tables: tuple[str, ...] = setting(
        MISSING, "Required: the tables as `schema.table`; `*` stands for any characters."
    )
    topic: str = setting(
        "{connector}.{schema}.{table}", "Topic of a table's changes; `{connector}`, `{database}`,"
        " `{schema}` and `{table}` are replaced.",
    )  # fmt: skip
    slot: str = setting("", "Replication slot.", shown="`penstock_<name>`")
    publication: str = setting("", "Publication.", shown="`penstock_<name>`")
    snapshot: str = setting(
        "initial", "Tables that have no position are read first (`initial`), or only their later"
        " changes are (`never`).", choices=("initial", "never"),
    )  # fmt: skip
    decimals: str = setting(
        "precise", "Form of `numeric` and `money`: bytes of the unscaled number as Debezium writes"
        " them (`precise`), text (`string`) or a floating-point number (`double`).",
        choices=("precise", "string", "double"),
    )  # fmt: skip
    tombstones: bool = setting(True, "Whether a record without value follows each delete.")
    truncates: bool = setting(True, "Whether truncations are written, with `op` = t.")
    failover: bool = setting(
        False, "Whether the slot is copied to standby servers (PostgreSQL 17 and newer)."
    )
    heartbeat_interval_seconds: float = setting(
        10.0, "Time between two messages in the log by which the slot advances while the tables do"
        " not change; 0 writes none.", minimum=0.0, maximum=3600.0,
    )  # fmt: skip
    max_slot_bytes: int = setting(
        0, "Size of the log that the server keeps for the slot above which the status warns; 0"
        " means no limit.", minimum=0,
    )  # fmt: skip

    def __post_init__(self) -> None:
        try:
            self.topic.format(connector="c", database="d", schema="s", table="t")
        except (KeyError, IndexError, ValueError) as error:
            raise InvalidSetting("topic", self.topic, f"has an unknown part {error}") from error


class Stream(msgspec.Struct, frozen=True, kw_only=True):
    """Stored position of the stream; see the module."""

    system: str
    timeline: int
    commit_lsn: int = 0
    rows: int = 0
    flush_lsn: int = 0


class PostgresSource(Source[Settings]):
    """Source of PostgreSQL's changes."""

    settings_type: ClassVar[type[Any]] = Settings

    def __init__(self, settings: Settings, context: SourceContext) -> None:
        super().__init__(settings, context)
        name = context.connector.lower().replace("-", "_").replace(".", "_")
        self._slot = settings.slot or f"penstock_{name}"[:63]
        self._publication = settings.publication or f"penstock_{name}"[:63]
        decimals: Decimals = settings.decimals  # type: ignore[assignment]
        self._rules = ValueRules(decimals=decimals)
        self._session: Session | None = None
        self._replication: Any = None
        self._cursor: Any = None
        self._shapes: dict[Relation, Shape] = {}
        self._captured: list[int] = []
        self._confirmed = 0
        self._facts: dict[str, Any] = {}

    # Checks

    def problems(self) -> Sequence[str]:
        try:
            session = Session(self.settings.url)
        except SourceUnavailable as error:
            return [f"url: {error}; start the server, or correct url"]
        except ConnectorFailed as error:
            return [f"url: {error}"]
        try:
            return list(self._problems(session))
        finally:
            session.close()

    def _problems(self, session: Session) -> Iterator[str]:
        slot = slots.slot_state(session, self._slot)
        if slot is None:
            yield from self._server_problems(session)
        else:
            try:
                slots.check_slot(slot, self._slot, self._database(session), None)
            except ConnectorFailed as error:
                yield f"slot: {error}"
        user, replicates = session.row(
            "SELECT quote_ident(rolname), rolreplication OR rolsuper FROM pg_roles"
            " WHERE rolname = current_user"
        )
        if not replicates:
            yield f"url: the user {user} may not replicate; run ALTER ROLE {user} REPLICATION"
        tables = Catalog(session).tables(self.settings.tables)
        for pattern in self.settings.tables:
            if not Catalog(session).tables([pattern]):
                yield f"tables: no table matches {pattern!r}; create it, or write schema.table"
        yield from self._publication_problems(session, tables, user)
        for table in tables:
            yield from _table_problems(table, session)

    def _publication_problems(
        self, session: Session, tables: Sequence[Table], user: str
    ) -> Iterator[str]:
        """Yield the missing rights of a user who has to publish tables."""
        there = slots.published(session, self._publication)
        missing = [table.id for table in tables if table.full_name not in (there or ())]
        database, creates = session.row(
            "SELECT quote_ident(current_database()),"
            " has_database_privilege(current_database(), 'CREATE')"
        )
        if there is None and not creates:
            yield (
                f"publication: the user {user} may not create {self._publication}; run GRANT CREATE"
                f" ON DATABASE {database} TO {user}"
            )
        names = ", ".join(name for (name,) in session.rows(_FOREIGN, [missing]))
        if names:
            yield (
                f"publication: the user {user} does not own {names}, and may not publish them; run"
                f" ALTER TABLE … OWNER TO {user}, or let the owner create publication"
                f" {self._publication} of all tables"
            )

    def _server_problems(self, session: Session) -> Iterator[str]:
        """Yield the problems of a server on which the slot has to be created."""
        level, senders, most, used = session.row(
            "SELECT current_setting('wal_level'), current_setting('max_wal_senders')::int,"
            " current_setting('max_replication_slots')::int,"
            " (SELECT count(*) FROM pg_replication_slots)"
        )
        if level != "logical":
            yield f"wal_level is {level}; set wal_level = logical, and restart PostgreSQL"
        if not senders:
            yield "max_wal_senders is 0; set it to at least 1, and restart PostgreSQL"
        if self.settings.failover and session.connection.server_version < slots.FAILOVER_VERSION:
            yield (
                "failover: this PostgreSQL has no failover slots; use version 17 or newer, or"
                " remove the setting"
            )
        if used >= most:
            yield (
                f"all {most} replication slots are in use; drop a slot that is not needed, or raise"
                " max_replication_slots and restart PostgreSQL"
            )

    def plan(self) -> Sequence[str]:
        session = Session(self.settings.url)
        try:
            tables = Catalog(session).tables(self.settings.tables)
            there = slots.published(session, self._publication)
            steps = []
            if there is None:
                steps.append(f"create publication {self._publication} of {len(tables)} tables")
            if slots.slot_state(session, self._slot) is None:
                steps.append(f"create replication slot {self._slot}")
            for table in tables:
                key = ", ".join(table.key) or "none"
                topic = self._topic(table.schema, table.name, self._database(session))
                steps.append(f"{table.full_name} -> {topic}: about {table.rows:,} rows, key {key}")
            return steps
        finally:
            session.close()

    # Reading

    def read(self, positions: Mapping[str, Any]) -> Iterator[SourceBatch]:
        session = self._session = Session(self.settings.url)
        self._catalog = Catalog(session)
        self._origin = Origin(connector=self.context.connector, database=self._database(session))
        stream = _decoded(positions.get(STREAM), Stream)
        states = {
            name.removeprefix(TABLE): found
            for name, value in positions.items()
            if name.startswith(TABLE) and (found := _decoded(value, TableState)) is not None
        }
        if slots.slot_state(session, self._slot) is None:
            problems = ". ".join(self._server_problems(session))
            if problems:
                raise ConnectorFailed(problems)
        tables, _ = self._publish(session)
        exported: str | None = None
        stream, exported = self._open(session, stream)
        target = self._target(session) if self.context.once else 0
        while True:
            for batch, state in self._snapshots(tables, states, stream, exported):
                states |= state
                yield batch
            exported = None
            yield from self._stream(stream, states, target)
            stream = self._stream_position
            tables, _ = self._publish(session)

    def _database(self, session: Session) -> str:
        return str(session.row("SELECT current_database()")[0])

    def _publish(self, session: Session) -> tuple[list[Table], bool]:
        """Publish all matching tables; wait for transactions that began before.

        A transaction that wrote to a table before it was published may commit later. Its rows are
        not in the stream, so they must be visible in the table's snapshot.
        """
        tables = self._catalog.tables(self.settings.tables)
        if not tables:
            patterns = ", ".join(self.settings.tables)
            raise ConnectorFailed(f"no table matches {patterns}; create a table, or correct tables")
        self._captured = [table.id for table in tables]
        self._check_rights(session)
        there = slots.published(session, self._publication)
        done = slots.publish(session, self._publication, tables, there)
        for statement in done:
            self.context.report(statement)
        if done and there is not None:
            [limit] = session.row("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
            while session.row(
                "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint < %s", [limit]
            )[0]:
                select.select([], [], [], WAIT_SECONDS)
        return tables, bool(done)

    def _open(self, session: Session, stream: Stream | None) -> tuple[Stream, str | None]:
        """Open the replication connection, and create the slot if no run has read from it."""
        state = slots.slot_state(session, self._slot)
        self._replication = connect(self.settings.url, replication=True)
        server = slots.identify(self._replication, self.settings.url)
        if stream is not None:
            before = slots.Server(system=stream.system, timeline=stream.timeline)
            position = max(stream.commit_lsn, stream.flush_lsn)
            slots.check_history(self._replication, self.settings.url, before, server, position)
            stream = msgspec.structs.replace(stream, timeline=server.timeline)
        if state is None and stream is not None:
            raise ConnectorFailed(
                slots.lost_message(self._slot, stream.flush_lsn, "it does not exist any more")
            )
        if state is None:
            position, snapshot = slots.create_slot(
                self._replication, self.settings.url, self._slot, failover=self.settings.failover
            )
            self.context.report(f"created replication slot {self._slot} at {lsn_text(position)}")
            return _begun(server, position), snapshot
        slots.check_slot(
            state, self._slot, self._origin.database, stream.flush_lsn if stream else None
        )
        if stream is None:
            return _begun(server, state.confirmed_lsn), None
        if state.confirmed_lsn > stream.flush_lsn and stream.commit_lsn > state.confirmed_lsn:
            raise ConnectorFailed(
                slots.lost_message(self._slot, stream.flush_lsn, "another reader has advanced it")
            )
        return stream, None

    def _target(self, session: Session) -> int:
        """Return the position at which a run with `once` ends."""
        return slots.heartbeat(session, self.context.connector)

    # Snapshot

    def _snapshots(
        self,
        tables: Sequence[Table],
        states: Mapping[str, TableState],
        stream: Stream,
        exported: str | None,
    ) -> Iterator[tuple[SourceBatch, dict[str, TableState]]]:
        """Yield the batches of tables that were not read whole, and their new states."""
        missing = [table for table in tables if not _is_read(table, states.get(table.full_name))]
        first = {STREAM: msgspec.to_builtins(stream)}
        if not missing or self.settings.snapshot == "never":
            yield SourceBatch(positions=first), {}
            return
        reader = SnapshotReader(self.settings.url, exported)
        try:
            for table in missing:
                self.context.report(f"snapshot of {table.full_name}: about {table.rows:,} rows")
                for batch, state in self._snapshot(reader, table, states.get(table.full_name)):
                    positions = {**first, **_position(table.full_name, state)}
                    yield (
                        SourceBatch(records=batch, positions=positions),
                        {table.full_name: state},
                    )
                    first = {}
        finally:
            reader.close()

    def _snapshot(
        self, reader: SnapshotReader, table: Table, state: TableState | None
    ) -> Iterator[tuple[tuple[Records, ...], TableState]]:
        relation = self._catalog.relation(table)
        shape = self._shape(relation)
        topic = self._topic(table.schema, table.name, self._origin.database)
        segments = state.segments if state and state.id == table.id and table.key else ()
        after = segments[-1].upto if segments else None
        for columns, upto in reader.chunks(table, relation, after):
            segment = Segment(snapshot=reader.snapshot, lsn=reader.lsn, upto=upto)
            done = upto is None
            if segments and segments[-1].snapshot == segment.snapshot:
                segments = (*segments[:-1], segment)
            else:
                segments = (*segments, segment)
            count = len(columns[0])
            moments = _snapshot_moments(count, reader)
            records = self._snapshot_records(columns, shape, topic, moments) if count else ()
            yield records, TableState(id=table.id, done=done, segments=segments)

    def _snapshot_records(
        self, columns: list[Any], shape: Shape, topic: str, moments: Moments
    ) -> tuple[Records, ...]:
        now_us = SYSTEM_CLOCK.now_ms() * 1_000
        return (Records(topic, snapshotted(columns, shape, self._origin, moments, now_us)),)

    # Stream

    def _stream(
        self, stream: Stream, states: Mapping[str, TableState], target: int
    ) -> Iterator[SourceBatch]:
        """Yield the batches of the stream until a table has to be read first."""
        self._stream_position = stream
        session = self._session
        if session is None:
            return
        self._start(stream)
        decoder = Decoder()
        kept = SnapshotFilter(dict(states), session)
        clock = SYSTEM_CLOCK
        look_at = beat_at = feedback_at = 0.0
        while True:
            messages, lsns, received = self._receive()
            if messages:
                yield self._batch(decoder.decode(messages, lsns), kept, target)
            now = clock.monotonic()
            idle = not messages and not decoder.open
            if idle:
                self._advance(received)
                yield SourceBatch(caught_up=0 < target <= received)
            if now >= feedback_at:
                feedback_at = now + FEEDBACK_SECONDS
                self._feedback(force=True)
            if now >= look_at:
                look_at = now + LOOK_SECONDS
                self._look(session)
                if idle and self._has_new_tables(session):
                    self._stop_stream()
                    return
            interval = self.settings.heartbeat_interval_seconds
            if interval and now >= beat_at:
                beat_at = now + interval
                slots.heartbeat(session, self.context.connector)

    def _start(self, stream: Stream) -> None:
        if self._replication is None:
            self._replication = connect(self.settings.url, replication=True)
        with translated(self.settings.url):
            self._cursor = self._replication.cursor()
            self._cursor.start_replication(
                slot_name=self._slot,
                decode=False,
                start_lsn=stream.flush_lsn,
                status_interval=FEEDBACK_SECONDS,
                options={
                    "proto_version": "2",
                    "publication_names": f'"{self._publication}"',
                    "messages": "true",
                },
            )
        self._confirmed = stream.flush_lsn

    def _stop_stream(self) -> None:
        """Close the replication connection; the next `_start` opens another one."""
        self._replication.close()
        self._replication = self._cursor = None

    def _receive(self) -> tuple[list[bytes], list[int], int]:
        """Return messages, their positions, and the end of the log that the server has sent."""
        messages: list[bytes] = []
        lsns: list[int] = []
        size, read = 0, self._cursor.read_message
        with translated(self.settings.url):
            message = read()
            if message is None:
                select.select([self._cursor], [], [], WAIT_SECONDS)
                message = read()
            while message is not None:
                messages.append(message.payload)
                lsns.append(message.data_start)
                size += message.data_size
                if len(messages) >= MESSAGES_MAX or size >= BATCH_BYTES:
                    break
                message = read()
            return messages, lsns, int(self._cursor.wal_end)

    def _batch(self, chunk: Chunk, kept: SnapshotFilter, target: int) -> SourceBatch:
        now_us = SYSTEM_CLOCK.now_ms() * 1_000
        records: list[Records] = []
        for change in chunk.changes:
            records += self._records(change, kept, now_us)
        before = self._stream_position
        position = msgspec.structs.replace(
            before,
            commit_lsn=max(before.commit_lsn, chunk.open_commit_lsn or chunk.commit_lsn),
            rows=chunk.open_rows if chunk.open_commit_lsn else WHOLE,
            flush_lsn=max(before.flush_lsn, chunk.end_lsn),
        )
        if position.commit_lsn == before.commit_lsn and before.rows > position.rows:
            position = msgspec.structs.replace(position, rows=before.rows)
        self._stream_position = position
        caught_up = 0 < target <= position.flush_lsn
        if not records and not chunk.end_lsn:
            return SourceBatch(caught_up=caught_up)
        return SourceBatch(
            records=tuple(records),
            positions={STREAM: msgspec.to_builtins(position)} if records else {},
            caught_up=caught_up,
        )

    def _records(
        self, change: Rows | Truncation, kept: SnapshotFilter, now_us: int
    ) -> list[Records]:
        relation = change.relation
        shape = self._shape(relation)
        topic = self._topic(relation.schema, relation.name, self._origin.database)
        if isinstance(change, Truncation):
            if not self._fresh(change.moments).all() or not self.settings.truncates:
                return []
            return [Records(topic, truncated(change, shape, self._origin, now_us))]
        mask = self._unread(change, shape, kept)
        if not mask.any():
            return []
        rows = change if mask.all() else change.where(mask)
        tables = changed(rows, shape, self._origin, now_us)
        if not self.settings.tombstones:
            tables = [table for table in tables if table.schema.field("value").type.num_fields]
        return [Records(topic, table) for table in tables]

    def _fresh(self, moments: Moments) -> Any:
        """Return a mask of the changes that are not in the log yet."""
        before = self._stream_position
        same = (moments.commit_lsn == before.commit_lsn) & (moments.number >= before.rows)
        return (moments.commit_lsn > before.commit_lsn) | same

    def _unread(self, rows: Rows, shape: Shape, kept: SnapshotFilter) -> Any:
        """Return a mask of the changes that are not in the log, and that no snapshot shows."""
        return self._fresh(rows.moments) & self._not_in_snapshot(rows, shape, kept)

    def _not_in_snapshot(self, rows: Rows, shape: Shape, kept: SnapshotFilter) -> Any:
        moments = rows.moments
        if not len(moments.index) or int(moments.commit_lsn.min()) > kept.until_lsn:
            return np.ones(len(moments.index), bool)
        relation = rows.relation
        name = f"{relation.schema}.{relation.name}"
        tables = self._catalog.tables([name])
        if not tables:
            return np.ones(len(moments.index), bool)
        places = {column.name: index for index, column in enumerate(relation.columns)}
        has_old = pa.array(rows.olds != 0)
        keys = [
            pa.compute.if_else(has_old, rows.old[places[key]], rows.new[places[key]])
            for key in shape.key
        ]
        return kept.kept(tables[0], keys, moments.xid, moments.commit_lsn)

    def _shape(self, relation: Relation) -> Shape:
        if relation not in self._shapes:
            self._shapes[relation] = shape_of(relation, self._catalog, self._rules)
        return self._shapes[relation]

    def _topic(self, schema: str, table: str, database: str) -> str:
        return self.settings.topic.format(
            connector=self.context.connector, database=database, schema=schema, table=table
        )

    # Slot

    def committed(self, positions: Mapping[str, Any]) -> None:
        """Confirm the position to the server."""
        stream = _decoded(positions.get(STREAM), Stream)
        if stream is not None and self._cursor is not None:
            self._confirmed = max(self._confirmed, stream.flush_lsn)
            self._feedback(force=False)

    def _advance(self, received: int) -> None:
        """Confirm the end of the log, since nothing before it is unread."""
        self._confirmed = max(self._confirmed, received)

    def _feedback(self, *, force: bool) -> None:
        with translated(self.settings.url):
            self._cursor.send_feedback(
                write_lsn=self._confirmed, flush_lsn=self._confirmed, force=force
            )

    def _look(self, session: Session) -> None:
        """Read the slot's state for the status.

        Raises:
            ConnectorFailed: the slot is lost, or the user may not read a table any more.
        """
        self._check_rights(session)
        state = slots.slot_state(session, self._slot)
        if state is None or state.status == "lost":
            raise ConnectorFailed(
                slots.lost_message(self._slot, self._confirmed, "the server has removed its log")
            )
        facts: dict[str, Any] = {
            "slot": self._slot,
            "slot_status": state.status,
            "slot_retained_bytes": state.retained_bytes,
            "slot_safe_bytes": state.safe_bytes,
            "confirmed_lsn": lsn_text(self._confirmed),
        }
        limit = self.settings.max_slot_bytes
        if limit and state.retained_bytes > WARN_SHARE * limit:
            facts["warning"] = (
                f"the server keeps {state.retained_bytes:,} bytes of its log for the slot; the"
                f" limit max_slot_bytes is {limit:,}"
            )
        self._facts = facts

    def _check_rights(self, session: Session) -> None:
        """Check the right to read, which PostgreSQL checks for snapshots but not for the stream."""
        hidden = session.rows(_HIDDEN, [self._captured])
        if hidden and self.settings.snapshot != "never":
            names, user = ", ".join(name for name, _ in hidden), hidden[0][1]
            raise ConnectorFailed(
                f"the user {user} may not read {names}; run GRANT SELECT ON {names} TO {user}"
            )

    def _has_new_tables(self, session: Session) -> bool:
        there = slots.published(session, self._publication) or set()
        tables = self._catalog.tables(self.settings.tables)
        return any(table.full_name not in there for table in tables)

    def facts(self) -> Mapping[str, Any]:
        return self._facts

    def close(self) -> None:
        for connection in (self._replication, self._session):
            if connection is not None:
                connection.close()


WHOLE: Final = 2**62
"""Number of rows of a transaction that is whole in the log."""


def _begun(server: slots.Server, position: int) -> Stream:
    return Stream(system=server.system, timeline=server.timeline, flush_lsn=position)


def _table_problems(table: Table, session: Session) -> Iterator[str]:
    if not table.readable:
        yield (
            f"tables: the user may not read {table.full_name}; run GRANT SELECT ON"
            f" {quoted(table.schema, table.name)} as its owner"
        )
    if table.key and table.identity == "i" and session.rows(OTHER_INDEX, [table.id]):
        yield (
            f"tables: the replica identity of {table.full_name} is an index without its"
            " primary key, so deletes have no key; ALTER TABLE … REPLICA IDENTITY DEFAULT"
        )
    if not table.key and table.identity in "dn":
        yield (
            f"tables: {table.full_name} has no primary key, so PostgreSQL rejects its"
            " updates and deletes once it is published; ALTER TABLE … REPLICA IDENTITY FULL"
        )


def _is_read(table: Table, state: TableState | None) -> bool:
    return state is not None and state.done and state.id == table.id


def _decoded(value: Any, kind: Any) -> Any:
    if value is None:
        return None
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ConnectorFailed(f"a stored position cannot be read: {error}") from error


def _position(table: str, state: TableState) -> dict[str, Any]:
    return {f"{TABLE}{table}": msgspec.to_builtins(state)}


def _snapshot_moments(count: int, reader: SnapshotReader) -> Moments:
    def same(value: int) -> Any:
        return np.full(count, value, np.int64)

    return Moments(
        index=np.arange(count), lsn=same(reader.lsn), commit_lsn=same(reader.lsn), before=same(0),
        commit_us=same(reader.time_us), xid=same(reader.xid), number=np.arange(count),
    )  # fmt: skip
