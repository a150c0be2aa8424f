"""Codecs of a table's Parquet files, as Spark, `deltalake` and Arrow name them.

Spark writes appended batches, `deltalake` merged ones, Arrow compacted ones. `lz4` is Parquet's
LZ4_RAW. Zstandard runs at its lowest level: higher ones cost a quarter more time for some percent.

Source: the Parquet format, "Compression".
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
from deltalake import ColumnProperties, WriterProperties

from penstock.spark.errors import InvalidOption

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
ZSTD_LEVEL: Final = 1
DEFAULT: Final = "snappy"
_SPARK: Final = {"none": "uncompressed", "lz4": "lz4_raw"}
_DELTA: Final = {"none": "UNCOMPRESSED", "lz4": "LZ4_RAW"}


def checked(codec: str | None) -> str | None:
    """Return the given codec; None leaves it to the writer.

    Raises:
        InvalidOption: the codec does not exist.
    """
    if codec is not None and codec not in CODECS:
        raise InvalidOption("codec", codec, f"must be one of {', '.join(CODECS)}")
    return codec


def spark_options(codec: str | None) -> dict[str, str]:
    """Return options of a Spark writer; none leave it to the session."""
    if codec is None:
        return {}
    options = {"compression": _SPARK.get(codec, codec)}
    if codec == "zstd":
        options["parquet.compression.codec.zstd.level"] = str(ZSTD_LEVEL)
    return options


def delta_properties(codec: str | None, columns: Collection[str] = ()) -> WriterProperties:
    """Return the writer properties of `deltalake`.

    Args:
        columns: those that get statistics; all others, and fields within columns, get none.
    """
    level = ZSTD_LEVEL if codec == "zstd" else None
    return WriterProperties(
        compression=None if codec is None else _DELTA.get(codec, codec.upper()),  # type: ignore[arg-type]
        compression_level=level,
        default_column_properties=ColumnProperties(statistics_enabled="NONE"),
        column_properties={name: ColumnProperties(statistics_enabled="PAGE") for name in columns},
    )


def codec_of(filesystem: pa_fs.FileSystem, path: str) -> str:
    """Return the codec of an existing file, as Arrow's writer names it."""
    with filesystem.open_input_file(path) as handle:
        footer = pq.read_metadata(handle)
    if not footer.num_row_groups or not footer.num_columns:
        return DEFAULT
    name = str(footer.row_group(0).column(0).compression).lower()
    return "none" if name == "uncompressed" else name
