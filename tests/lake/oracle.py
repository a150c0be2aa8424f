"""Comparison of an Iceberg table with the rows that were written, by DuckDB over Arrow."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table import Table

from penstock.lake.commits import LakeTable
from penstock.lake.target import Target


def target(folder: Path, table: str = "db.orders", **catalog: str) -> Target:
    """A table in a catalogue of SQLite below a folder."""
    given = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"{folder}/lake"}
    return Target.of(table, given | catalog, Path)


def stored(lake: LakeTable) -> Table:
    table = lake.open(fresh=True)
    assert table is not None
    return table


def assert_same(expected: pa.Table, found: pa.Table) -> None:
    """Both tables have the same rows, as often; DuckDB compares them, in both directions."""
    assert expected.num_rows == found.num_rows
    with duckdb.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        connection.register("expected", expected)
        connection.register("found", found)
        columns = ", ".join(f'"{name}"' for name in expected.column_names)
        for one, other in (("expected", "found"), ("found", "expected")):
            missing = connection.execute(
                f"select {columns} from {one} except all select {columns} from {other}"
            ).fetchall()
            assert not missing, (one, missing[:3])


def assert_stored(lake: LakeTable, expected: pa.Table) -> None:
    """A table of one schema has exactly these rows, read by pyiceberg, and its files by Arrow."""
    table = stored(lake)
    assert_same(expected, table.scan().to_arrow())
    paths = [task.file.file_path.removeprefix("file://") for task in table.scan().plan_files()]
    parts = [pq.read_table(path, partitioning=None) for path in paths]
    # Names in files have no special characters, so the columns are taken by their positions.
    assert_same(expected, pa.concat_tables(parts).rename_columns(expected.column_names))


def assert_files_once(lake: LakeTable) -> None:
    """No data file was added by two snapshots, and all files of the table exist."""
    table = stored(lake)
    added = Counter(
        entry.data_file.file_path
        for snapshot in table.snapshots()
        for manifest in snapshot.manifests(table.io)
        if manifest.added_snapshot_id == snapshot.snapshot_id
        for entry in manifest.fetch_manifest_entry(table.io)
        if entry.snapshot_id == snapshot.snapshot_id and entry.status.name == "ADDED"
    )
    assert all(count == 1 for count in added.values())
    assert all(table.io.new_input(path).exists() for path in added)
