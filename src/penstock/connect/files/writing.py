"""Writers of rows to files, by format.

A file of a columnar format has one schema; callers convert rows to it (`converting.fitted`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv as arrow_csv

from penstock.base.errors import InvalidError
from penstock.base.system import SYSTEM_RANDOMNESS
from penstock.connect.converting import whole
from penstock.connect.files.avro import AvroWriter
from penstock.connect.plugins import VALUE
from penstock.formats.avro_schemas import schema_of
from penstock.formats.json.writing import base64_texts, json_rows, json_values

FORMATS: Final = ("parquet", "jsonl", "csv", "avro", "text")
ENDINGS: Final = {
    "parquet": ".parquet", "jsonl": ".jsonl", "csv": ".csv", "avro": ".avro", "text": ".txt",
}  # fmt: skip
CODEC_ENDINGS: Final = {"none": "", "gzip": ".gz", "zstd": ".zst"}
"""Endings of compressed text files; Parquet and Avro compress their parts instead."""
COLUMNAR: Final = frozenset({"parquet", "csv", "avro"})
"""Formats whose files have one schema."""
BLOCKS: Final = frozenset({"parquet", "avro"})
"""Formats that compress their parts."""
ROW_GROUP_ROWS: Final = 1 << 20


class Writer(Protocol):
    """Writer of one file. Its rows are tables with the file's schema."""

    def write(self, rows: pa.Table) -> None: ...

    def close(self) -> None: ...


def writer(path: Path, schema: pa.Schema, kind: str, codec: str) -> Writer:
    """Return the writer of a new file.

    Args:
        codec: `none`, `gzip`, `snappy` or `zstd`.

    Raises:
        InvalidError: the format has no such schema.
    """
    file: pa.NativeFile = pa.OSFile(str(path), "wb")
    if kind == "parquet":
        return _Parquet(file, schema, codec)
    if kind == "avro":
        return _Avro(file, schema, codec)
    stream = file if codec == "none" else pa.CompressedOutputStream(file, codec)
    return _Csv(stream, file, schema) if kind == "csv" else _Lines(stream, file, kind)


def check_schema(schema: pa.Schema, kind: str) -> None:
    """Reject a schema that a format does not have.

    Raises:
        InvalidError: the error names the field or its type.
    """
    if kind == "avro":
        schema_of(pa.struct(list(schema)), "Value")
    if kind == "parquet":
        if not schema.names:
            raise InvalidError("the rows have no columns; use file_format jsonl")
        for field in schema:
            if _has_empty(field.type):
                raise InvalidError(f"column {field.name}: Parquet has no struct without fields")


def _has_empty(kind: Any) -> bool:
    if pa.types.is_struct(kind):
        return not kind.num_fields or any(_has_empty(field.type) for field in kind)
    return pa.types.is_list(kind) and _has_empty(kind.value_type)


def columns_of(value: Any) -> pa.Table:
    """Return the fields of a struct as columns, or the column `value` of other values."""
    if pa.types.is_struct(value.type):
        return pa.Table.from_batches([pa.RecordBatch.from_struct_array(value)])
    return pa.table({VALUE: value})


class _Parquet:
    def __init__(self, file: pa.NativeFile, schema: pa.Schema, codec: str) -> None:
        self._file = file
        self._writer = pq.ParquetWriter(file, schema, compression=codec.upper())

    def write(self, rows: pa.Table) -> None:
        for batch in rows.combine_chunks().to_batches():
            self._writer.write_batch(batch, ROW_GROUP_ROWS)

    def close(self) -> None:
        self._writer.close()
        self._file.close()


class _Avro:
    def __init__(self, file: pa.NativeFile, schema: pa.Schema, codec: str) -> None:
        self._file = file
        sync = SYSTEM_RANDOMNESS.uuid().bytes
        self._writer = AvroWriter(file, pa.struct(list(schema)), codec=codec, sync=sync)

    def write(self, rows: pa.Table) -> None:
        self._writer.write(_structs(rows))

    def close(self) -> None:
        self._file.close()


class _Csv:
    """Writer of CSV with a header line: texts in quotes, null without, nested values as JSON."""

    def __init__(self, stream: pa.NativeFile, file: pa.NativeFile, schema: pa.Schema) -> None:
        self._stream, self._file = stream, file
        shown = pa.schema([(field.name, _csv_type(field.type)) for field in schema])
        self._writer = arrow_csv.CSVWriter(stream, shown)

    def write(self, rows: pa.Table) -> None:
        columns = [_csv_column(whole(column)) for column in rows.columns]
        self._writer.write_table(pa.table(columns, names=rows.column_names))

    def close(self) -> None:
        self._writer.close()
        self._stream.close()
        self._file.close()


def _csv_type(kind: Any) -> Any:
    if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.string()
    return kind


def _csv_column(column: Any) -> Any:
    if pa.types.is_nested(column.type):
        return json_values(column)
    return base64_texts(column) if _csv_type(column.type) != column.type else column


class _Lines:
    """Writer of JSON objects, or of the bytes of the column `value`, with a line feed each."""

    def __init__(self, stream: pa.NativeFile, file: pa.NativeFile, kind: str) -> None:
        self._stream, self._file = stream, file
        self._json = kind == "jsonl"

    def write(self, rows: pa.Table) -> None:
        if self._json:
            lines = json_rows(_structs(rows), nulls=True).cast(pa.binary())
        else:
            lines = whole(rows.column(VALUE)).cast(pa.binary()).fill_null(b"")
        bounds = pa.array([0, len(lines)], pa.int32())
        [joined] = pc.binary_join(pa.ListArray.from_arrays(bounds, whole(lines)), b"\n")
        self._stream.write(joined.as_buffer())
        self._stream.write(b"\n")

    def close(self) -> None:
        self._stream.close()
        self._file.close()


def _structs(rows: pa.Table) -> Any:
    if not rows.column_names:
        return pa.array([{}] * rows.num_rows, pa.struct([]))
    return whole(rows.combine_chunks().to_struct_array())
