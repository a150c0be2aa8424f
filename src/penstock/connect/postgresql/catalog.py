"""Catalogue of a database: tables, their columns, keys and types.

Source: PostgreSQL documentation, "System Catalogs".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Final

from penstock.connect.postgresql.connection import Session
from penstock.connect.postgresql.pgoutput import Column, Relation
from penstock.connect.postgresql.values import PgType

_TABLES: Final = """
SELECT n.nspname, c.relname, c.oid::bigint, c.relreplident, c.relispartition,
       has_table_privilege(c.oid, 'SELECT'), greatest(c.reltuples, 0)::bigint,
       pg_table_size(c.oid),
       coalesce((SELECT array_agg(a.attname::text ORDER BY k.place)
                 FROM pg_index i
                 CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(number, place)
                 JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.number
                 WHERE i.indrelid = c.oid AND i.indisprimary), '{}')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
  AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname !~ '^pg_(toast|temp)'
ORDER BY 1, 2
"""
_COLUMNS: Final = """
SELECT attname, atttypid::bigint, atttypmod FROM pg_attribute
WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
ORDER BY attnum
"""
_TYPE: Final = """
SELECT t.typname, t.typtype, t.typbasetype::bigint, t.typtypmod, t.typelem::bigint, t.typdelim,
       coalesce(e.typarray = t.oid, false)
FROM pg_type t LEFT JOIN pg_type e ON e.oid = t.typelem WHERE t.oid = %s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Table of the database.

    Attributes:
        identity: replica identity: d, n, f or i.
        readable: whether the user may select from it.
        key: columns of the primary key, in its order.
        rows: estimated number of rows; `size_bytes` its size.
    """

    schema: str
    name: str
    id: int
    identity: str
    partition: bool
    readable: bool
    rows: int
    size_bytes: int
    key: tuple[str, ...]

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}"


class Catalog:
    """Catalogue that a session reads; types are cached."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._types: dict[int, PgType | None] = {}

    def tables(self, patterns: Sequence[str]) -> list[Table]:
        """Return the tables whose `schema.table` matches a pattern with `*`, sorted by name.

        Partitions are left out: their rows are those of the partitioned table.
        """
        found = [
            Table(
                schema=row[0], name=row[1], id=row[2], identity=row[3], partition=row[4],
                readable=row[5], rows=row[6], size_bytes=row[7] or 0, key=tuple(row[8]),
            )
            for row in self._session.rows(_TABLES)
        ]  # fmt: skip
        return [
            table
            for table in found
            if not table.partition
            and any(fnmatchcase(table.full_name, pattern) for pattern in patterns)
        ]

    def key(self, schema: str, name: str) -> tuple[str, ...]:
        """Return the columns of a table's primary key, in its order."""
        tables = self.tables([f"{schema}.{name}"])
        return next((t.key for t in tables if (t.schema, t.name) == (schema, name)), ())

    def relation(self, table: Table) -> Relation:
        """Return a table as the replication stream describes it."""
        rows = self._session.rows(_COLUMNS, [table.id])
        return Relation(
            id=table.id,
            schema=table.schema,
            name=table.name,
            identity=table.identity,
            columns=tuple(
                Column(name=name, type_id=type_id, modifier=modifier, identity=name in table.key)
                for name, type_id, modifier in rows
            ),
        )

    def type_of(self, column: Column) -> PgType | None:
        """Return a column's type, of domains the base type; None if values of it are left out.

        Composite types are left out, as by Debezium.
        """
        found = self._type(column.type_id)
        if found is None:
            return None
        modifier = found.modifier if found.modifier >= 0 else column.modifier
        element = found.element
        if element is not None:
            element = _with_modifier(element, modifier)
        return _with_modifier(found, modifier, element)

    def _type(self, identity: int) -> PgType | None:
        if identity not in self._types:
            rows = self._session.rows(_TYPE, [identity])
            self._types[identity] = self._read(identity, rows[0]) if rows else None
        return self._types[identity]

    def _read(self, identity: int, row: tuple[object, ...]) -> PgType | None:
        name, kind, base, modifier, element, delimiter, is_array = row
        if kind == "d":
            found = self._type(int(str(base)))
            if found is None:
                return None
            own = int(str(modifier))
            return _with_modifier(found, own if own >= 0 else found.modifier, found.element)
        if kind == "c":
            return None
        items = None
        if is_array:  # int2vector and oidvector have elements too, but are written without braces
            items = self._type(int(str(element)))
            if items is None:
                return None
        return PgType(
            id=identity, name=str(name), kind=str(kind), element=items, delimiter=str(delimiter)
        )


def _with_modifier(kind: PgType, modifier: int, element: PgType | None = None) -> PgType:
    return replace(kind, modifier=modifier, element=element)
