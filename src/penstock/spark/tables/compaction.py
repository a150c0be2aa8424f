"""Compaction of a table's many small files into few.

Small files of one partition are grouped into bins of about the target size. Each bin is streamed
into one new file, with the codec of the bin's first file. One commit adds the new files, removes
the old ones and marks the data as unchanged. Compaction runs in this process, without Spark. Other
writers may run at the same time:

- Appends do not conflict with a compaction, because they remove no file.
- An upsert or overwrite conflicts with it: the second one to commit fails and starts again.
- Two compactions of the same files would duplicate every row, because `deltalake` accepts both
  commits. Each compaction therefore commits a number under one transaction identifier, and Delta
  accepts only one of two equal numbers. Other tools do not set this identifier, so compact a table
  with this tool only.

Replaced files stay for readers of older versions until `remove_orphans` deletes them by age.

Source: the Delta transaction protocol, "Add File and Remove File" (dataChange).
"""

from __future__ import annotations

import dataclasses
import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS, Clock, Randomness
from penstock.spark.errors import InvalidOption
from penstock.spark.tables.files import codec_of, written_files
from penstock.spark.tables.location import (
    absolute,
    check_readable,
    check_writable,
    filesystem,
    open_table,
)
from penstock.spark.tables.rules import directories, texts_of
from penstock.spark.tables.statistics import indexed_in

TARGET_BYTES_DEFAULT: Final = 128 << 20
TARGET_BYTES_MIN: Final = 64 << 10
SMALL_SHARE: Final = 0.75
COMMIT_FILES_MAX: Final = 1_000
COMMITS_MAX: Final = 1_000
ATTEMPTS_MAX: Final = 5
GROUP_ROWS_MIN: Final = 64 << 10
GROUP_ROWS_MAX: Final = 1 << 20
COMPACTION: Final = "penstock.compaction"

_LOG: Final = logging.getLogger(__name__)

Partition = tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """Result of a compaction; `version` is the table's version afterwards."""

    files_removed: int
    files_added: int
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFile:
    """Data file of a table's version; `path` is as written in the table's log."""

    path: str
    size_bytes: int
    partition: Partition


def compact(
    table: str,
    *,
    target_bytes: int = TARGET_BYTES_DEFAULT,
    storage_options: Mapping[str, str] | None = None,
    clock: Clock = SYSTEM_CLOCK,
    randomness: Randomness = SYSTEM_RANDOMNESS,
) -> Compacted | None:
    """Rewrite a table's small files as files of about `target_bytes`.

    One commit replaces at most `COMMIT_FILES_MAX` files. If a compaction fails half-way, its
    earlier commits stay, and no row is lost.

    Returns:
        Counts of files and the resulting version; None if the table does not exist.

    Raises:
        InvalidOption: the target is too small.
        UnreadableTable, UnwritableTable: the table uses a feature that a rewrite of its files would
            lose.
        deltalake.exceptions.CommitFailedError: other writers removed the same files in each of
            `ATTEMPTS_MAX` attempts.
    """
    if target_bytes < TARGET_BYTES_MIN:
        raise InvalidOption("target_bytes", target_bytes, f"must be at least {TARGET_BYTES_MIN}")
    removed = added = failures = 0
    opened = open_table(table, storage_options)
    if opened is None:
        return None
    for number in range(COMMITS_MAX):
        opened.update_incremental()
        check_readable(opened, table)
        check_writable(opened, table)
        bins = _one_commit(plan(_files(opened), target_bytes))
        if not bins:
            return Compacted(files_removed=removed, files_added=added, version=opened.version())
        rewriting = _Rewriting(absolute(table), opened, f"compactions/{randomness.uuid().hex}")
        try:
            added += rewriting.run(bins, clock.now_ms())
        except CommitFailedError as error:
            failures += 1
            if failures == ATTEMPTS_MAX:
                raise
            _LOG.info("table %s: retrying compaction %s: %s", table, number, error)
            continue
        removed += sum(len(files) for files in bins)
        failures = 0
    return Compacted(files_removed=removed, files_added=added, version=opened.version())


def plan(files: Sequence[TableFile], target_bytes: int) -> list[list[TableFile]]:
    """Return bins of two or more small files of one partition each, in the given order."""
    small: dict[Partition, list[TableFile]] = defaultdict(list)
    for file in files:
        if file.size_bytes < target_bytes * SMALL_SHARE:
            small[file.partition].append(file)
    bins: list[list[TableFile]] = []
    for found in small.values():
        bins.extend(_bins(found, target_bytes))
    return [files for files in bins if len(files) > 1]


def _bins(files: Sequence[TableFile], target_bytes: int) -> Iterator[list[TableFile]]:
    gathered: list[TableFile] = []
    size_bytes = 0
    for file in files:
        full = size_bytes + file.size_bytes > target_bytes or len(gathered) == COMMIT_FILES_MAX
        if gathered and full:
            yield gathered
            gathered, size_bytes = [], 0
        gathered.append(file)
        size_bytes += file.size_bytes
    yield gathered


def _one_commit(bins: Sequence[list[TableFile]]) -> list[list[TableFile]]:
    taken: list[list[TableFile]] = []
    for files in bins:
        if taken and sum(map(len, taken)) + len(files) > COMMIT_FILES_MAX:
            break
        taken.append(files)
    return taken


class _Rewriting:
    """Writer of one compaction commit: merges the small files of each bin into a new file.

    The files are those of the opened version of the table.
    """

    def __init__(self, root: str, opened: DeltaTable, directory: str) -> None:
        self._opened = opened
        self._directory = directory
        self._indexed = indexed_in(opened)
        self._filesystem, self._root = filesystem(root)
        partitioned = set(opened.metadata().partition_columns)
        whole: pa.Schema = pa.schema(opened.schema().to_arrow())
        self._schema = pa.schema([field for field in whole if field.name not in partitioned])

    def run(self, bins: Sequence[Sequence[TableFile]], now_ms: int) -> int:
        """Write one file for each bin and commit; return the number of files added.

        Raises:
            CommitFailedError: another writer changed the same files. The new files are deleted
                again.
        """
        actions: list[AddAction | RemoveAction] = []
        try:
            for number, files in enumerate(bins):
                directory = f"{self._directory}/{number:06d}"
                # Some readers take partition values from the names of directories.
                if files[0].partition:
                    directory += f"/{directories(files[0].partition)}"
                self._write(files, directory)
                actions += [
                    dataclasses.replace(file, partition=dict(files[0].partition)).action(
                        self._indexed, data_change=False
                    )
                    for file in written_files(self._filesystem, self._root, directory, ())
                ]
            added = len(actions)
            actions += [
                # `deltalake` encodes paths itself when it writes them into the log.
                RemoveAction(
                    unquote(file.path), False, now_ms, file.size_bytes, dict(file.partition)
                )
                for files in bins
                for file in files
            ]
            self._commit(actions)
        except BaseException:
            self._filesystem.delete_dir(f"{self._root}/{self._directory}")
            raise
        return added

    def _write(self, files: Sequence[TableFile], directory: str) -> None:
        target = f"{self._root}/{directory}"
        self._filesystem.create_dir(target, recursive=True)
        paths = [f"{self._root}/{unquote(file.path)}" for file in files]
        # Read as nanoseconds, the INT96 timestamps of older files would end in the year 2262.
        form = ds.ParquetFileFormat(coerce_int96_timestamp_unit="us")
        source = ds.FileSystemDataset.from_paths(
            paths, schema=self._schema, format=form, filesystem=self._filesystem
        )
        ds.write_dataset(
            source,
            target,
            format=form,
            filesystem=self._filesystem,
            file_options=form.make_write_options(
                compression=codec_of(self._filesystem, paths[0]),
                write_statistics=list(_written(self._schema)),
            ),
            use_threads=False,  # keeps the order of rows
            min_rows_per_group=GROUP_ROWS_MIN,
            max_rows_per_group=GROUP_ROWS_MAX,
        )

    def _commit(self, actions: list[AddAction | RemoveAction]) -> None:
        number = (self._opened.transaction_version(COMPACTION) or 0) + 1
        self._opened.create_write_transaction(
            actions,
            mode="append",
            schema=self._opened.schema(),
            partition_by=list(self._opened.metadata().partition_columns),
            commit_properties=CommitProperties(
                app_transactions=[Transaction(COMPACTION, number)],
                custom_metadata={"penstock.operation": "compaction"},
            ),
        )


def _written(fields: Iterable[pa.Field], above: str = "") -> Iterator[str]:
    """Yield the Parquet columns for which Arrow writes statistics (minimum and maximum).

    Floating-point columns get none, because Arrow's statistics ignore NaN.
    """
    for field in fields:
        path, kind = f"{above}{field.name}", field.type
        if pa.types.is_struct(kind):
            yield from _written(kind, f"{path}.")
        elif pa.types.is_map(kind):
            parts = [kind.key_field.with_name("key"), kind.item_field.with_name("value")]
            yield from _written(parts, f"{path}.key_value.")
        elif pa.types.is_list(kind):
            yield from _written([kind.value_field.with_name("element")], f"{path}.list.")
        elif not pa.types.is_floating(kind):
            yield path


def _files(opened: DeltaTable) -> list[TableFile]:
    actions = pa.table(opened.get_add_actions(flatten=True))
    columns = list(opened.metadata().partition_columns)
    texts = [texts_of(actions[f"partition.{name}"]) for name in columns]
    facts = actions.select(["path", "size_bytes", "modification_time"]).to_pylist()
    files = [
        (
            fact["modification_time"],
            TableFile(
                path=fact["path"],
                size_bytes=fact["size_bytes"],
                partition=tuple(
                    (name, text[row]) for name, text in zip(columns, texts, strict=True)
                ),
            ),
        )
        for row, fact in enumerate(facts)
        if "://" not in fact["path"]
    ]
    return [file for _, file in sorted(files, key=lambda item: (item[0], item[1].path))]
