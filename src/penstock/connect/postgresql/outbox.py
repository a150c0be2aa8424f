"""Source `outbox`: events that services insert into a table, read from PostgreSQL's log.

A service inserts a row in the transaction that changes its own tables. The source routes each
inserted row to the topic of its aggregate type. The aggregate's id becomes the key, the payload the
value, and the event's id the header `id`. Updates and deletes of the table are ignored, so a
service may delete rows at once: the log of the database still has them.

Source: Debezium's documentation of the outbox event router.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.base.errors import InvalidError, InvalidSetting
from penstock.base.ids import validate_topic_name
from penstock.connect import setting
from penstock.connect.errors import ConnectorFailed
from penstock.connect.plugins import Records, SourceContext
from penstock.connect.postgresql.envelope import RANKS, Shape
from penstock.connect.postgresql.pgoutput import Rows, Truncation
from penstock.connect.postgresql.snapshot import SnapshotFilter
from penstock.connect.postgresql.source import PostgresSource, Settings
from penstock.records.columnar.schema import HEADERS_TYPE

ROUTED: Final = "{aggregatetype}"


class OutboxSettings(Settings):
    """Keys of `[source]` with `connector = "outbox"`, besides those of `postgresql`."""

    tables: tuple[str, ...] = setting(
        ("public.outbox",), "The outbox tables as `schema.table`; `*` stands for any characters."
    )
    topic: str = setting(
        "outbox.event.{aggregatetype}", "Topic of an event; `{aggregatetype}` is replaced by the"
        " value of `route_column`.",
    )  # fmt: skip
    snapshot: str = setting(
        "initial", "Rows that are there at the first run are read first (`initial`), or left out"
        " (`never`).", choices=("initial", "never"),
    )  # fmt: skip
    id_column: str = setting("id", "Column of the event's id, which becomes the header `id`.")
    route_column: str = setting("aggregatetype", "Column whose value selects the topic.")
    key_column: str = setting("aggregateid", "Column of the record's key.")
    payload_column: str = setting("payload", "Column of the record's value.")
    type_column: str = setting(
        "type", "Column of the event's type, which becomes the header `type`; empty for none."
    )
    header_columns: tuple[str, ...] = setting((), "Further columns that become headers.")

    def __post_init__(self) -> None:
        if ROUTED not in self.topic:
            raise InvalidSetting("topic", self.topic, f"must contain {ROUTED}")


class OutboxSource(PostgresSource):
    """Source of an outbox table's inserts."""

    settings_type = OutboxSettings
    settings: OutboxSettings

    def __init__(self, settings: OutboxSettings, context: SourceContext) -> None:
        super().__init__(settings, context)

    def _topic(self, schema: str, table: str, database: str) -> str:
        return self.settings.topic

    def _snapshot_records(
        self, columns: list[Any], shape: Shape, topic: str, *facts: Any
    ) -> tuple[Records, ...]:
        return tuple(self._routed(columns, shape, np.arange(len(columns[0])) * RANKS))

    def _records(
        self, change: Rows | Truncation, kept: SnapshotFilter, now_us: int
    ) -> list[Records]:
        if isinstance(change, Truncation):
            return []
        shape = self._shape(change.relation)
        mask = (change.letters == ord("I")) & self._unread(change, shape, kept)
        if not mask.any():
            return []
        rows = change if mask.all() else change.where(mask)
        return self._routed(list(rows.new), shape, rows.moments.index * RANKS)

    def _routed(self, texts: list[Any], shape: Shape, order: Any) -> list[Records]:
        """Return the events of each topic.

        Raises:
            ConnectorFailed: a column is missing, or a topic's name is invalid.
        """
        rows, settings = shape.rows(texts), self.settings
        headers = [("id", settings.id_column)]
        headers += [("type", settings.type_column)] if settings.type_column else []
        headers += [(name, name) for name in settings.header_columns]
        there = {field.name for field in rows.type}
        needed = [settings.route_column, settings.key_column, settings.payload_column]
        missing = [name for name in (*needed, *(name for _, name in headers)) if name not in there]
        if missing:
            raise ConnectorFailed(
                f"outbox table {shape.relation.schema}.{shape.relation.name} has no column"
                f" {missing[0]!r}; add it, or name another column in [source]"
            )
        table = pa.table({
            "key": rows.field(settings.key_column).cast(pa.string()),
            "value": rows.field(settings.payload_column),
            "headers": _headers([(name, rows.field(column)) for name, column in headers]),
            "order": pa.array(np.asarray(order, np.int64)),
        })  # fmt: skip
        routes = rows.field(settings.route_column).cast(pa.string())
        return [
            Records(self._routed_topic(route), table.filter(pc.equal(routes, route)))
            for route in pc.unique(routes).to_pylist()
        ]

    def _routed_topic(self, route: str | None) -> str:
        if route is None:
            raise ConnectorFailed(
                f"an event of the outbox has no {self.settings.route_column}; delete the row, or"
                " declare the column NOT NULL"
            )
        try:
            return validate_topic_name(self.settings.topic.replace(ROUTED, route))
        except InvalidError as error:
            raise ConnectorFailed(
                f"an event of the outbox has an invalid topic: {error}"
            ) from error


def _headers(columns: list[tuple[str, Any]]) -> Any:
    """Return a list of headers for each row, one for each column; null values are empty."""
    count, width = len(columns[0][1]), len(columns)
    values = pa.concat_arrays([
        column.cast(pa.string()).cast(pa.binary()).fill_null(b"") for _, column in columns
    ])  # fmt: skip
    # Columns follow each other; a row takes one value of each.
    at = np.arange(count)[:, None] + np.arange(width)[None, :] * count
    names = pa.array([name for name, _ in columns]).take(pa.array(np.tile(np.arange(width), count)))
    items = pa.StructArray.from_arrays(
        [names, values.take(pa.array(at.ravel()))], fields=list(HEADERS_TYPE.value_type)
    )
    offsets = pa.array((np.arange(count + 1) * width).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, items)
