"""Parquet files of a table: names of the codecs, and the add actions of a commit.

Three libraries write files of a table: Spark writes appended batches, `deltalake` writes upserts,
and Arrow writes compacted files. Each has its own names for codecs. `lz4` means Parquet's LZ4_RAW.
Zstandard uses its lowest level, because higher levels take a quarter more time and save only some
percent.

Source: the Delta transaction protocol, "Add File and Remove File"; the Parquet format,
"Compression".
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
from deltalake import ColumnProperties, WriterProperties
from deltalake.transaction import AddAction

from penstock.spark.errors import InvalidOption
from penstock.spark.tables.rules import partition_values
from penstock.spark.tables.statistics import statistics

MILLISECONDS: Final = 1_000
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
ZSTD_LEVEL: Final = 1
DEFAULT: Final = "snappy"
_SPARK: Final = {"none": "uncompressed", "lz4": "lz4_raw"}
_DELTA: Final = {"none": "UNCOMPRESSED", "lz4": "LZ4_RAW"}


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """Parquet file of a table; `path` is relative to the table."""

    path: str
    size_bytes: int
    modified_ms: int
    partition: Mapping[str, str | None]
    footer: pq.FileMetaData

    @property
    def rows(self) -> int:
        return int(self.footer.num_rows)

    def action(self, indexed: Collection[str], *, data_change: bool = True) -> AddAction:
        """Return the action that adds the file to a table, with statistics of the `indexed`
        columns.
        """
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
    """Return all Parquet files with rows in `directory`, relative to the table's `root`."""
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


def checked(codec: str | None) -> str | None:
    """Return the codec unchanged; None means that the writer chooses.

    Raises:
        InvalidOption: the codec is unknown.
    """
    if codec is not None and codec not in CODECS:
        raise InvalidOption("codec", codec, f"must be one of {', '.join(CODECS)}")
    return codec


def spark_options(codec: str | None) -> dict[str, str]:
    """Return the options that make Spark's Parquet writer use a codec; none for codec None."""
    if codec is None:
        return {}
    options = {"compression": _SPARK.get(codec, codec)}
    if codec == "zstd":
        options["parquet.compression.codec.zstd.level"] = str(ZSTD_LEVEL)
    return options


def delta_properties(codec: str | None, columns: Collection[str] = ()) -> WriterProperties:
    """Return the writer properties of `deltalake` for a codec.

    Args:
        codec: a name of `CODECS`, or None for the library's default.
        columns: top-level columns that get statistics; other columns and nested fields get none.
    """
    level = ZSTD_LEVEL if codec == "zstd" else None
    return WriterProperties(
        compression=None if codec is None else _DELTA.get(codec, codec.upper()),  # type: ignore[arg-type]
        compression_level=level,
        default_column_properties=ColumnProperties(statistics_enabled="NONE"),
        column_properties={name: ColumnProperties(statistics_enabled="PAGE") for name in columns},
    )


def codec_of(filesystem: pa_fs.FileSystem, path: str) -> str:
    """Return the codec of an existing Parquet file, in the spelling of Arrow's writer."""
    with filesystem.open_input_file(path) as handle:
        footer = pq.read_metadata(handle)
    if not footer.num_row_groups or not footer.num_columns:
        return DEFAULT
    name = str(footer.row_group(0).column(0).compression).lower()
    return "none" if name == "uncompressed" else name
