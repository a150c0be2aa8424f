"""Files of an Iceberg table: data files of rows, and deletion of files that no snapshot names.

A writer can be pickled, so that Spark's tasks write files. Its files are invisible until a commit
adds them. A process that dies before the commit leaves orphans, as an upsert leaves the files that
it replaced once their snapshot expires. `remove_orphans` deletes both when they are old enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.fs as pa_fs
from pyiceberg.exceptions import NotInstalledError
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import (
    ArrowProjectionVisitor,
    PyArrowFileIO,
    bin_pack_arrow_table,
    write_file,
)
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionFieldValue, PartitionKey
from pyiceberg.table import Table, TableProperties, WriteTask
from pyiceberg.table.metadata import TableMetadata

from penstock.base.extras import MissingExtra
from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS, Clock, Randomness
from penstock.lake.schemas import fitted
from penstock.lake.target import LakeMismatch

FILE_BYTES: Final = 128 << 20
"""Arrow bytes of a file's rows, unless the table has `write.target-file-size-bytes`."""
ORPHAN_AGE_HOURS: Final = 24
"""Age of files that are deleted. Attempts and readers of expired snapshots must end before it."""
DELETIONS_MAX: Final = 20_000
"""Files that one pass deletes."""
DELETING_THREADS: Final = 16
_MS_PER_HOUR: Final = 3_600_000
_ROW: Final = "row"


def _with_nulls(project: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of pyiceberg's projection that keeps null lists and maps.

    pyiceberg 0.12 reads and writes them as empty ones if their values are structs.
    """

    def projected(visitor: Any, kind: Any, given: Any, *inner: Any) -> Any:
        found = project(visitor, kind, given, *inner)
        if found is None or found.null_count == given.null_count:
            return found
        # Copies, because slices share buffers that begin before them.
        parts = (pa.concat_arrays([part]) for part in (given.is_valid(), found.offsets))
        buffers = [part.buffers()[1] for part in parts]
        return pa.Array.from_buffers(found.type, len(found), buffers, children=[found.values])

    return projected


ArrowProjectionVisitor.list = _with_nulls(ArrowProjectionVisitor.list)  # type: ignore[method-assign]
ArrowProjectionVisitor.map = _with_nulls(ArrowProjectionVisitor.map)  # type: ignore[method-assign]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileWriter:
    """Writer of data files for a table's current schema and partitions."""

    name: str
    metadata: TableMetadata
    io: FileIO
    randomness: Randomness = SYSTEM_RANDOMNESS

    def write(self, rows: pa.Table) -> list[DataFile]:
        """Write rows into new files, at least one for each partition; return their entries.

        Raises:
            LakeMismatch: the rows cannot be converted to the table's types.
        """
        if not rows.num_rows:
            return []
        rows = fitted(self.name, rows, self.metadata.schema())
        try:
            return self._write(rows, self.metadata)
        except (OverflowError, ValueError):
            # pyiceberg cannot compute bounds outside of the years 1 to 9999.
            counts = {TableProperties.DEFAULT_WRITE_METRICS_MODE: "counts"}
            properties = {**self.metadata.properties, **counts}
            return self._write(rows, self.metadata.model_copy(update={"properties": properties}))

    def _write(self, rows: pa.Table, metadata: TableMetadata) -> list[DataFile]:
        size = int(self.metadata.properties.get(
            TableProperties.WRITE_TARGET_FILE_SIZE_BYTES, FILE_BYTES))  # fmt: skip
        numbers, write_uuid = count(), self.randomness.uuid()
        tasks = (
            WriteTask(
                write_uuid=write_uuid,
                task_id=next(numbers),
                schema=self.metadata.schema(),
                record_batches=list(batches),
                partition_key=key,
            )
            for key, part in self._divided(rows)
            for batches in bin_pack_arrow_table(part, size)
        )
        files = list(write_file(self.io, metadata, tasks))
        for file in files:
            file.spec_id = metadata.default_spec_id
        return files

    def _divided(self, rows: pa.Table) -> Iterator[tuple[PartitionKey | None, pa.Table]]:
        """Yield the rows of each partition, in their order."""
        spec, schema = self.metadata.spec(), self.metadata.schema()
        if spec.is_unpartitioned():
            yield None, rows
            return
        keys: dict[str, Any] = {}
        for field in spec.fields:
            source = schema.find_field(field.source_id)
            values = _column(rows, schema.find_column_name(field.source_id) or "")
            if pa.types.is_floating(values.type):
                raise LakeMismatch(
                    f"table {self.name}: partition column {source.name} is floating-point, which is"
                    " not supported. Partition the table by another column"
                )
            try:
                transform = field.transform.pyarrow_transform(source.field_type)
            except NotInstalledError as error:
                raise MissingExtra("pyiceberg-core", "iceberg") from error
            keys[field.name] = transform(values)
        names = [f"{number}" for number in range(len(keys))]
        table = pa.table([*keys.values(), np.arange(rows.num_rows)], names=[*names, _ROW])
        groups = table.group_by(names, use_threads=False).aggregate([(_ROW, "list")])
        indexes = groups[f"{_ROW}_list"].combine_chunks()
        for number, values in enumerate(groups.select(names).to_pylist()):
            key = PartitionKey(
                field_values=[
                    PartitionFieldValue(field=field, value=values[name])
                    for field, name in zip(spec.fields, names, strict=True)
                ],
                partition_spec=spec,
                schema=schema,
            )
            yield key, rows.take(indexes[number].values)


def _column(rows: pa.Table, path: str) -> Any:
    if path in rows.column_names:
        return rows[path]
    first, *inner = path.split(".")
    return pa.compute.struct_field(rows[first], inner)


def referenced(table: Table) -> set[str]:
    """Return the locations of all files that a table's snapshots and metadata name."""
    metadata, io = table.metadata, table.io
    found = {table.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)}
    found |= {item.statistics_path for item in metadata.statistics}
    found |= {item.statistics_path for item in metadata.partition_statistics}
    read: set[str] = set()
    for snapshot in metadata.snapshots:
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(io):
            if manifest.manifest_path not in read:
                read.add(manifest.manifest_path)
                entries = manifest.fetch_manifest_entry(io, discard_deleted=True)
                found |= {entry.data_file.file_path for entry in entries}
    return found | read


def remove_orphans(
    table: Table, *, older_than_hours: float = ORPHAN_AGE_HOURS, clock: Clock = SYSTEM_CLOCK
) -> list[str]:
    """Delete files of a table that its metadata does not name; return their locations.

    One pass deletes at most `DELETIONS_MAX` files.

    Args:
        table: table with its latest metadata. Its files must be in its own location.
        older_than_hours: age from which files are deleted.

    Raises:
        LakeMismatch: the table's store cannot list files.
    """
    if not isinstance(table.io, PyArrowFileIO):
        raise LakeMismatch(f"the store of table {table.location()} cannot list its files")
    location = table.location().rstrip("/")
    scheme, netloc, path = PyArrowFileIO.parse_location(location, table.io.properties)
    system = table.io.fs_by_scheme(scheme, netloc)
    selector = pa_fs.FileSelector(path, recursive=True, allow_not_found=True)
    before_ns = (clock.now_ms() - older_than_hours * _MS_PER_HOUR) * 1_000_000
    old = [
        info.path
        for info in system.get_file_info(selector)
        if info.type == pa_fs.FileType.File and info.mtime_ns <= before_ns
    ]
    if not old:
        return []
    used = {
        PyArrowFileIO.parse_location(name, table.io.properties)[2] for name in referenced(table)
    }
    orphans = list(
        islice((name for name in old if name not in used and _owned(name)), DELETIONS_MAX)
    )
    with ThreadPoolExecutor(DELETING_THREADS) as pool:
        list(pool.map(partial(_delete, system), orphans))
    return orphans


def _owned(path: str) -> bool:
    """Whether a file is of a kind that commits write; other tools keep files of other names."""
    return path.endswith((".parquet", ".avro", ".metadata.json"))


def _delete(system: Any, path: str) -> None:
    with suppress(FileNotFoundError):
        system.delete_file(path)


def check_visible(table: Table, files: Sequence[DataFile]) -> None:
    """Check that local files that other processes wrote are on storage of this process.

    Raises:
        LakeMismatch: a file does not exist here.
    """
    for file in files:
        if file.file_path.startswith("file:") and not table.io.new_input(file.file_path).exists():
            raise LakeMismatch(
                f"table {table.location()}: a task wrote {file.file_path}, but the driver does not"
                " find this file. Workers on other machines probably wrote to local disks. Put the"
                " warehouse on storage that the driver and all workers share"
            )
