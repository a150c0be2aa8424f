"""Readers of files by format: values in pieces of bounded size, each with the offset behind it.

| format    | offset                          | value                                              |
|-----------|---------------------------------|----------------------------------------------------|
| `parquet` | rows                            | struct of the columns                              |
| `avro`    | bytes, where a block begins     | the file's type, usually a struct                  |
| `csv`     | bytes, where a record begins    | struct of the columns                              |
| `jsonl`   | bytes, where a line begins      | the line unchanged, or with `parse` the JSON value |
| `text`    | bytes, where a line begins      | the line without its end                           |

The offsets of a compressed file count its decompressed bytes.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv as arrow_csv

from penstock.base.errors import InvalidError
from penstock.connect.decoding import json_column
from penstock.connect.errors import ConnectorFailed, RowsRejected
from penstock.connect.files.avro import read_blocks, read_header

CHUNK_BYTES: Final = 4 << 20
RECORD_BYTES_MAX: Final = 64 << 20
"""Largest size of a line, or of a record of a CSV file."""
FORMATS: Final = ("parquet", "jsonl", "csv", "avro", "text")
_ENDINGS: Final = {
    ".parquet": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
    ".csv": "csv", ".tsv": "csv", ".avro": "avro",
}  # fmt: skip
_CODECS: Final = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4"}

Part = tuple[Any, int]
"""Column of values, and the offset behind them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Options of readers.

    Attributes:
        rows: most rows of a part of a Parquet file.
        parse: whether lines of JSON become columns.
        delimiter: delimiter of CSV files; empty means a tab for `.tsv`, else a comma.
        columns: names of the columns of CSV files without a header line.
        types: Arrow types of columns of CSV files, by name; other columns are texts.
        tail: whether a last line without its end is left for later.
        chunk_bytes: bytes of a text file that are parsed at once.
    """

    rows: int
    parse: bool = False
    delimiter: str = ""
    columns: Sequence[str] = ()
    types: Mapping[str, Any]
    tail: bool = False
    chunk_bytes: int = CHUNK_BYTES


def format_of(path: str) -> tuple[str, str | None]:
    """Return the format by the ending of a name, and the codec of a compressed file."""
    name = PurePosixPath(path)
    codec = _CODECS.get(name.suffix.lower())
    inner = name.with_suffix("") if codec else name
    return _ENDINGS.get(inner.suffix.lower(), "text"), codec


def read_parts(
    file: pa.NativeFile, path: str, kind: str, offset: int, options: ReadOptions
) -> Iterator[Part]:
    """Yield the values of a file from an offset on.

    Raises:
        ConnectorFailed: the content cannot be read; the message has the path and the offset.
        pa.ArrowException, AvroFileInvalid: the file is damaged or not complete.
    """
    if kind == "parquet":
        yield from _parquet(file, offset, options.rows)
        return
    if kind == "avro":
        yield from read_blocks(file, read_header(file), offset, options.rows)
        return
    codec = format_of(path)[1]
    stream = pa.CompressedInputStream(file, codec) if codec else file
    made: Callable[[bytes], Any]
    cut: Callable[[bytes], int] = _line_end
    if kind == "csv":
        made, cut, offset = _csv(stream, path, offset, options)
    else:
        _skip(stream, offset, codec)
        made = _json(options.parse) if kind == "jsonl" else _lines
    for data, start, end in _chunks(stream, path, offset, cut, options):
        try:
            values = made(data)
        except (pa.ArrowInvalid, RowsRejected) as error:
            raise ConnectorFailed(
                f"{path}, bytes {start} to {end}: {error}. Correct the file, or read it with"
                ' file_format = "text"'
            ) from error
        yield values, end


def plain(values: Any) -> Any:
    """Return a column with types that can be written as JSON."""
    target = _plain_type(values.type)
    return values if target == values.type else values.cast(target)


def _plain_type(kind: Any) -> Any:
    types = pa.types
    if types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if types.is_struct(kind):
        return pa.struct([field.with_type(_plain_type(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(pa.string(), _plain_type(kind.item_type))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(_plain_type(kind.value_type))
    if types.is_time(kind) or kind == pa.string_view():
        return pa.string()
    if types.is_fixed_size_binary(kind) or kind == pa.binary_view():
        return pa.binary()
    if types.is_duration(kind):
        return pa.int64()
    return pa.date32() if types.is_date64(kind) else kind


def _parquet(file: pa.NativeFile, offset: int, rows: int) -> Iterator[Part]:
    parquet = pq.ParquetFile(file, pre_buffer=False)
    end = 0
    for group in range(parquet.num_row_groups):
        count = parquet.metadata.row_group(group).num_rows
        if end + count <= offset:
            end += count
            continue
        for batch in parquet.iter_batches(rows, row_groups=[group], use_threads=False):
            start, end = end, end + batch.num_rows
            if end > offset:
                yield batch.slice(max(0, offset - start)).to_struct_array(), end


# Text files


def _skip(stream: pa.NativeFile, offset: int, codec: str | None) -> None:
    if codec is None:
        stream.seek(offset)
        return
    left = offset
    while left and (found := len(stream.read(min(left, CHUNK_BYTES)))):
        left -= found


def _chunks(
    stream: pa.NativeFile, path: str, offset: int, cut: Callable[[bytes], int], options: ReadOptions
) -> Iterator[tuple[bytes, int, int]]:
    """Yield whole records, and the offsets of their begin and end.

    Args:
        cut: returns the position behind the last complete record; 0 if there is none.
    """
    left = b""
    while True:
        block = stream.read(options.chunk_bytes)
        data = left + block if left else block
        size = cut(data)
        if not block and not options.tail:
            size = len(data)
        if size:
            yield data[:size] if size < len(data) else data, offset, offset + size
            offset += size
        left = data[size:]
        if not block:
            return
        if len(left) > RECORD_BYTES_MAX:
            raise ConnectorFailed(
                f"{path}, byte {offset}: a line has more than {RECORD_BYTES_MAX} bytes. Remove it,"
                " or correct file_format"
            )


def _line_end(data: bytes) -> int:
    return data.rfind(b"\n") + 1


def _lines(data: bytes) -> Any:
    """Return lines as bytes, without their ends."""
    if b"\r\n" in data:
        data = data.replace(b"\r\n", b"\n")
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))
    if not ends.size or ends[-1] != len(data) - 1:
        ends = np.append(ends, len(data))
    bounds = np.concatenate(([0], ends + 1)).astype(np.int32)
    with_ends = pa.Array.from_buffers(
        pa.binary(), ends.size, [None, pa.py_buffer(bounds), pa.py_buffer(data + b"\n")]
    )
    return pc.binary_slice(with_ends, 0, -1)


def _json(parse: bool) -> Callable[[bytes], Any]:
    def made(data: bytes) -> Any:
        lines = _lines(data)
        lines = lines.filter(pc.greater(pc.binary_length(lines), 0))
        return json_column(lines) if parse else lines

    return made


def _csv(
    stream: pa.NativeFile, path: str, offset: int, options: ReadOptions
) -> tuple[Callable[[bytes], Any], Callable[[bytes], int], int]:
    """Return the parser, the function that finds the last record's end, and the offset."""
    delimiter = options.delimiter or ("\t" if ".tsv" in path.lower() else ",")
    names, begin = list(options.columns), 0
    codec = format_of(path)[1]
    if not names:
        names, begin = _header(stream, path, delimiter)
        if codec is None:
            stream.seek(max(offset, begin))
        else:
            _skip(stream, max(0, offset - begin), codec)
    else:
        _skip(stream, offset, codec)
    if len(set(names)) < len(names):
        raise ConnectorFailed(f"{path}: two columns have the same name. Set `columns`")
    read = arrow_csv.ReadOptions(column_names=names, use_threads=False, block_size=1 << 30)
    parse = arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    convert = arrow_csv.ConvertOptions(
        column_types={name: options.types.get(name, pa.string()) for name in names},
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )

    def made(data: bytes) -> Any:
        table = arrow_csv.read_csv(pa.BufferReader(data), read, parse, convert)
        return table.combine_chunks().to_struct_array().combine_chunks()

    return made, _record_end, max(offset, begin)


def _header(stream: pa.NativeFile, path: str, delimiter: str) -> tuple[list[str], int]:
    """Return the names of the first record, and the offset behind it."""
    line = b""
    while True:
        block = stream.read(1)
        line += block
        if not block or (block == b"\n" and line.count(b'"') % 2 == 0):
            break
        if len(line) > RECORD_BYTES_MAX >> 10:
            raise ConnectorFailed(f"{path}: the header line is longer than 64 KiB. Set `columns`")
    try:
        text = line.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConnectorFailed(f"{path}: the header line is not UTF-8: {error}") from error
    names = next(csv.reader([text], delimiter=delimiter), [])
    return names, len(line)


def _record_end(data: bytes) -> int:
    """Return the position behind the last line feed that is not in quotes."""
    if b'"' not in data:
        return data.rfind(b"\n") + 1
    octets = np.frombuffer(data, np.uint8)
    quotes = np.flatnonzero(octets == ord('"'))
    ends = np.flatnonzero(octets == ord("\n"))
    outside = ends[np.searchsorted(quotes, ends) % 2 == 0]
    return int(outside[-1]) + 1 if outside.size else 0


def column_types(words: Sequence[str]) -> dict[str, Any]:
    """Return Arrow types of `name:type` words, such as `id:int64` and `price:decimal(10 2)`.

    Raises:
        InvalidError: a word has another form, or there is no such type.
    """
    found = {}
    for word in words:
        name, _, kind = word.rpartition(":")
        try:
            if kind.startswith("decimal(") and kind.endswith(")"):
                precision, scale = kind[len("decimal(") : -1].replace(",", " ").split()
                found[name] = pa.decimal128(int(precision), int(scale))
            elif kind == "timestamp":
                found[name] = pa.timestamp("us", "UTC")
            else:
                found[name] = pa.type_for_alias(kind)
        except (ValueError, pa.ArrowException) as error:
            raise InvalidError(f"{word!r}: {error}; write name:type, such as id:int64") from error
    return found
