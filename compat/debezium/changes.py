"""Changes of tables, drawn from a seed: transactions with savepoints, truncations, and DDL."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Final

_COLUMNS: Final = "id bigint, a int, b text, c numeric(12, 2), at timestamptz(3)"
_LONG: Final = "(SELECT string_agg(md5(i::text || {seed}), '') FROM generate_series(1, 300) AS i)"
"""Text that PostgreSQL stores out of line."""
TABLES: Final = (
    "CREATE SEQUENCE codes",
    f"CREATE TABLE plain ({_COLUMNS}, PRIMARY KEY (id))",
    f"CREATE TABLE whole ({_COLUMNS}, PRIMARY KEY (id))",
    "ALTER TABLE whole REPLICA IDENTITY FULL",
    f"CREATE TABLE bare ({_COLUMNS})",
    "ALTER TABLE bare REPLICA IDENTITY FULL",
    f"CREATE TABLE indexed ({_COLUMNS}, code int NOT NULL DEFAULT nextval('codes'),"
    " PRIMARY KEY (id))",
    "CREATE UNIQUE INDEX by_code ON indexed (code)",
    "ALTER TABLE indexed REPLICA IDENTITY USING INDEX by_code",
    f"CREATE TABLE inserted ({_COLUMNS}, PRIMARY KEY (id))",
    "ALTER TABLE inserted REPLICA IDENTITY NOTHING",
    f"CREATE TABLE double_key ({_COLUMNS}, k text DEFAULT 'ü\"', PRIMARY KEY (k, id))",
    f"CREATE TABLE big ({_COLUMNS}, body text, more text, PRIMARY KEY (id))",
    f"CREATE TABLE big_whole ({_COLUMNS}, body text, more text, PRIMARY KEY (id))",
    "ALTER TABLE big_whole REPLICA IDENTITY FULL",
    f"CREATE TABLE parted ({_COLUMNS}, PRIMARY KEY (id)) PARTITION BY RANGE (id)",
    "CREATE TABLE parted_low PARTITION OF parted FOR VALUES FROM (MINVALUE) TO (15)",
    "CREATE TABLE parted_high PARTITION OF parted FOR VALUES FROM (15) TO (MAXVALUE)",
)
NAMES: Final = (
    "plain", "whole", "bare", "indexed", "inserted", "double_key", "big", "big_whole", "parted",
)  # fmt: skip
_IDS: Final = 30
_STATEMENTS_MAX: Final = 8
_ADDED: Final = (
    "int",
    "text DEFAULT 'x'",
    "numeric(8, 3)",
    "timestamp(0)",
    "boolean DEFAULT true",
    "uuid",
)


class Changes:
    """Generator of statements; rows that do not exist are updated and deleted too."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._added: dict[str, list[str]] = {name: [] for name in NAMES}
        self._number = 0

    def transactions(self, execute: Callable[[str], object], count: int) -> None:
        """Execute transactions until `count` statements that change rows have been executed."""
        done = 0
        while done < count:
            if self._random.random() < 0.08:
                execute(self._definition())
                continue
            execute("BEGIN")
            for statement in self._rows():
                execute(statement)
                done += 1
            execute(self._random.choice(["COMMIT"] * 9 + ["ROLLBACK"]))

    def _rows(self) -> Iterator[str]:
        for _ in range(self._random.randint(1, _STATEMENTS_MAX)):
            undone = self._random.random() < 0.1
            saved = undone or self._random.random() < 0.1
            if saved:
                yield "SAVEPOINT here"
            yield self._change(self._random.choice(NAMES))
            if undone:
                yield "ROLLBACK TO SAVEPOINT here"

    def _change(self, table: str) -> str:
        draw = self._random.random()
        if table == "inserted" or draw < 0.45:
            return self._insert(table)
        row = self._random.randrange(_IDS)
        if draw < 0.75:
            return f"UPDATE {table} SET {self._assignment(table)} WHERE {self._some(row)}"
        if draw < 0.83:
            return self._moved(table, row)
        if draw < 0.98:
            return f"DELETE FROM {table} WHERE {self._some(row)}"
        if draw < 0.985:
            return f"TRUNCATE {', '.join(self._random.sample(NAMES[:-1], 2))}"
        return f"TRUNCATE {table}" if draw < 0.99 else self._insert(table)

    def _some(self, row: int) -> str:
        return f"id BETWEEN {row} AND {row + self._random.choice([0, 0, 3])}"

    def _insert(self, table: str) -> str:
        self._number += 1
        row = 4 * self._number + _IDS if table == "inserted" else self._random.randrange(_IDS)
        names, values = "id, a, b, c, at", self._values()
        if table.startswith("big"):
            names += ", body, more"
            values += f", {_LONG}, {self._random.choice(['NULL', _LONG])}".format(seed=self._number)
        conflict = "" if table == "bare" else " ON CONFLICT DO NOTHING"
        rows = f"generate_series({row}, {row + self._random.choice([0, 0, 3])}) AS id"
        return f"INSERT INTO {table} ({names}) SELECT id, {values} FROM {rows}{conflict}"

    def _values(self) -> str:
        pick = self._random.choice
        number = self._random.randrange(-(10**12) + 1, 10**12)
        return ", ".join((
            pick(["NULL::int", str(self._random.randrange(-(2**31), 2**31))]),
            pick(["NULL", "''", "E'a\\n\"ü\"'", f"'text {self._number}'"]),
            pick(["NULL::numeric", "'NaN'::numeric", "0", f"{number} / 100.0"]),
            pick(["NULL", "'infinity'", "now()", "'0044-03-15 BC'", "'2024-02-29 12:00:00.5+02'"])
            + "::timestamptz",
        ))  # fmt: skip

    def _assignment(self, table: str) -> str:
        names = ["a = a + 1 - 1", "a = NULL", "b = b || 'x'", "c = -c", "at = now()", "b = b"]
        if table.startswith("big"):
            names += ["body = md5(body)", "more = body", "a = 7", "a = 8"]
        names += [f"{name} = DEFAULT" for name in self._added[table]]
        return self._random.choice(names)

    def _moved(self, table: str, row: int) -> str:
        """Return an update of the key, which must not meet another row."""
        target = self._random.randrange(_IDS)
        return (
            f"UPDATE {table} SET id = {target} WHERE id = {row}"
            f" AND NOT EXISTS (SELECT 1 FROM {table} WHERE id = {target})"
        )

    def _definition(self) -> str:
        table = self._random.choice(NAMES)
        added = self._added[table]
        draw = self._random.random()
        if not added or (draw < 0.4 and len(added) < 6):
            self._number += 1
            name = f"x{self._number}"
            added.append(name)
            return f"ALTER TABLE {table} ADD COLUMN {name} {self._random.choice(_ADDED)}"
        name = self._random.choice(added)
        if draw < 0.6:
            added.remove(name)
            return f"ALTER TABLE {table} DROP COLUMN {name}"
        if draw < 0.8:
            self._number += 1
            added[added.index(name)] = f"x{self._number}"
            return f"ALTER TABLE {table} RENAME COLUMN {name} TO x{self._number}"
        return (
            f"ALTER TABLE {table} ALTER COLUMN {name} DROP DEFAULT,"
            f" ALTER COLUMN {name} TYPE varchar(40) USING {name}::text::varchar(40)"
        )
