"""Parquet files that Spark or Arrow wrote, as add actions of a Delta commit.

Source: the Delta transaction protocol, "Add File and Remove File".
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from penstock.spark.tables.partitions import partition_values
from penstock.spark.tables.statistics import statistics

MILLISECONDS: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A Parquet file below the table."""

    path: str
    size_bytes: int
    modified_ms: int
    partition: Mapping[str, str | None]
    footer: pq.FileMetaData

    @property
    def rows(self) -> int:
        return int(self.footer.num_rows)

    def action(self, indexed: Collection[str], *, data_change: bool = True) -> AddAction:
        """Return the action that adds it to a table with these columns in its statistics."""
        return AddAction(
            path=self.path,
            size=self.size_bytes,
            partition_values=dict(self.partition),
            modification_time=self.modified_ms,
            data_change=data_change,
            stats=json.dumps(statistics(self.footer, indexed)),
        )


def written_files(
    filesystem: pa_fs.FileSystem, root: str, directory: str, partition_by: Sequence[str]
) -> list[WrittenFile]:
    """Return every Parquet file with rows in `directory`, a path relative to the table's `root`."""
    found: list[WrittenFile] = []
    selector = pa_fs.FileSelector(f"{root}/{directory}", recursive=True)
    for info in filesystem.get_file_info(selector):
        name = info.base_name
        if info.type != pa_fs.FileType.File or not name.endswith(".parquet") or name[0] in "._":
            continue
        with filesystem.open_input_file(info.path) as handle:
            footer = pq.read_metadata(handle)
        if footer.num_rows:
            relative = info.path[info.path.index(f"/{directory}/") + 1 :]
            found.append(
                WrittenFile(
                    path=relative,
                    size_bytes=info.size,
                    modified_ms=int(info.mtime.timestamp() * MILLISECONDS),
                    partition=partition_values(relative, partition_by),
                    footer=footer,
                )
            )
    return sorted(found, key=lambda file: file.path)
