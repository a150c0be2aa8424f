"""Outbox in Spark: payloads of its pointer records, and the whole tree of files as a table.

    records = spark.readStream.format("penstock").option("includeHeaders", "true")….load()
    payloads = read_outbox(records, "/mnt/outbox")            # batch or stream
    events = json_lines(payloads, "carrier string, delay int")
    tree = outbox_tree(spark, "/mnt/outbox", year=2026, month=5)

`read_outbox` opens the files on executors, which must have the outbox's root mounted. Only pointers
travel through the broker. If a payload is missing or does not match its pointer, its row has an
`error` instead of a payload; `fail_on_error` fails the query instead. If the file system keeps
failing, the task fails, and Spark retries it.

`outbox_tree` reads the complete payload files of the tree with Spark's own file sources. The
arguments year, month, day, hour and partition ids limit which directories are listed.

Delivery is at least once: a batch that was published twice gives two rows. To remove duplicates,
compare partition id and batch id (in a stream with `dropDuplicatesWithinWatermark`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)
from pyspark.sql.types import StructType

from penstock.base.errors import CorruptError, InvalidError, PenstockError
from penstock.base.system import SYSTEM_CLOCK
from penstock.outbox.pointer import Pointer
from penstock.outbox.reader.decoding import INLINE, POINTER, decode_records
from penstock.outbox.reader.policy import DeadLetter, ReadPolicy, TryAgain, classify
from penstock.outbox.reader.reader import OutboxReader
from penstock.records.compression import decompress as decompress_bytes
from penstock.records.header import Codec
from penstock.spark.errors import InvalidOption

PAYLOAD_BYTES_MAX: Final = 256 << 20
"""Default limit of a payload in bytes: the Java process holds a whole row in memory."""
OUTPUT_BYTES: Final = 32 << 20
"""Payload bytes at which an Arrow batch is passed to Spark."""
PASSED_ON: Final = ("topic", "partition", "offset", "timestamp")
NEEDED: Final = ("key", "value", "headers")
PAYLOAD_SCHEMA: Final = (
    "partition_id string, batch_id string, codec string, event_count bigint, size_bytes bigint,"
    " payload binary, error string"
)
_FIELDS: Final = ("partition_id", "batch_id", "codec", "event_count", "size_bytes")
_CODECS: Final = {"gzip": Codec.GZIP, "zstd": Codec.ZSTD}
_PARTITION_COLUMNS: Final = ("year", "month", "day", "hour")


def read_outbox(
    records: DataFrame,
    root: str | Path,
    *,
    decompress: bool = False,
    fail_on_error: bool = False,
    bytes_max: int = PAYLOAD_BYTES_MAX,
    policy: ReadPolicy | None = None,
) -> DataFrame:
    """Return the payloads that an outbox topic's records name, for a batch or a stream.

    The result has the columns of `PAYLOAD_SCHEMA`, and before them `topic`, `partition`, `offset`
    and `timestamp`, if `records` has them. A row has either a payload or an error.

    Args:
        records: records with columns key, value and headers, from the `penstock` source with
            `includeHeaders` or from Spark's Kafka source.
        root: the outbox's root directory as executors see it.
        decompress: decompress payloads in gzip and zstd; other codecs become errors. Decompressed
            rows have the codec none.
        fail_on_error: fail the task at the first error.
        bytes_max: most bytes of a payload, both compressed and decompressed.
        policy: how often and how long a missing or unreadable payload is retried.

    Raises:
        InvalidOption: a column is missing, or `bytes_max` is invalid.
    """
    missing = [name for name in NEEDED if name not in records.columns]
    if missing:
        raise InvalidOption(
            "records", ", ".join(records.columns),
            f"the column {missing[0]} is missing. Read the topic with option includeHeaders=true",
        )  # fmt: skip
    if isinstance(bytes_max, bool) or not isinstance(bytes_max, int) or bytes_max < 1:
        raise InvalidOption("bytes_max", bytes_max, "must be a whole number above 0")
    kept = [name for name in PASSED_ON if name in records.columns]
    fields = [records.schema[name] for name in kept]
    made = cast("StructType", StructType.fromDDL(PAYLOAD_SCHEMA))
    resolver = _Resolver(
        root=str(root),
        kept=tuple(kept),
        decompress=decompress,
        fail_on_error=fail_on_error,
        bytes_max=bytes_max,
        policy=policy or ReadPolicy(),
    )
    return records.select(*kept, *NEEDED).mapInArrow(resolver, StructType([*fields, *made.fields]))


def json_lines(
    payloads: DataFrame, schema: str | StructType, *, keep: Sequence[str] = ()
) -> DataFrame:
    """Parse payloads with one JSON object per line; return one row per line, with its fields.

    Columns of `payloads` that `keep` names come first. A line that does not match the schema gives
    nulls, as in Spark's JSON reader. If a row has an error or a compressed payload, the query
    fails.
    """
    why = F.coalesce("error", F.concat(F.lit("codec "), F.col("codec")))
    name = F.coalesce("batch_id", F.lit("without batch id"))
    unread = F.raise_error(F.concat(F.lit("outbox payload "), name, F.lit(": "), why))
    whole = F.col("error").isNull() & (F.col("codec") == "none")
    text = F.when(whole, F.decode("payload", "UTF-8")).otherwise(unread.cast("string"))
    lines = payloads.select(*keep, F.explode(F.split(text, "\n")).alias("_line"))
    parsed = lines.where(F.trim("_line") != "").select(
        *keep, F.from_json("_line", schema).alias("_json")
    )
    return parsed.select(*keep, "_json.*")


def outbox_tree(
    spark: SparkSession,
    root: str | Path,
    *,
    format: str = "binaryFile",  # noqa: A002  (Spark's own name for it)
    partition_ids: Sequence[str] = (),
    year: int | None = None,
    month: int | None = None,
    day: int | None = None,
    hour: int | None = None,
    schema: str | StructType | None = None,
    **options: str,
) -> DataFrame:
    """Return the payload files of the whole tree, read by one of Spark's file formats.

    The first columns are `partition_id`, `year`, `month`, `day`, `hour` and `batch_id`. The
    format's columns follow: `path`, `modificationTime`, `length` and `content` for `binaryFile`,
    `value` (one row per line) for `text`, the fields for `json`.

    Raises:
        AnalysisException: there is no matching file (PATH_NOT_FOUND).
    """
    chosen = dict(zip(_PARTITION_COLUMNS, (year, month, day, hour), strict=True))
    parts = [
        f"{name}=*" if value is None else f"{name}={value:0{4 if name == 'year' else 2}d}"
        for name, value in chosen.items()
    ]
    base = f"file://{Path(root).absolute()}"
    globs = [
        "/".join((base, partition, *parts, "batch-*", "data.bin"))
        for partition in (partition_ids or ("*",))
    ]
    # Without the lookup option Spark would look for partition columns itself, and stop at the
    # partition ids, which have no name of their own.
    reader = spark.read.format(format).options(recursiveFileLookup="true", **options)
    if len(globs) == 1:
        # Spark checks whether a single path was written by a stream. It looks for a file with this
        # name, including the asterisks, and prints a stack trace if there is none. With the path
        # given twice it does not, and still lists each file once.
        globs *= 2
    frame = (reader if schema is None else reader.schema(schema)).load(globs)
    path = F.col("_metadata.file_path")
    return frame.select(*_path_columns(path), "*")


def _path_columns(path: Column) -> list[Column]:
    tail = r"/([^/]+)/year=(\d+)/month=(\d+)/day=(\d+)/hour=(\d+)/batch-([^/]+)/data\.bin$"
    names = ("partition_id", *_PARTITION_COLUMNS, "batch_id")
    columns = []
    for number, name in enumerate(names, 1):
        part = F.regexp_extract(path, tail, number)
        columns.append((part.cast("int") if name in _PARTITION_COLUMNS else part).alias(name))
    return columns


@dataclass(frozen=True, slots=True, kw_only=True)
class _Resolver:
    root: str
    kept: tuple[str, ...]
    decompress: bool
    fail_on_error: bool
    bytes_max: int
    policy: ReadPolicy

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with OutboxReader(self.root, bytes_max=self.bytes_max) as reader:
            for batch in batches:
                yield from self._resolve(batch, reader)

    def _resolve(self, batch: pa.RecordBatch, reader: OutboxReader) -> Iterator[pa.RecordBatch]:
        decoded = decode_records(*(batch.column(name) for name in NEEDED))
        table = decoded.append_column("value", batch.column("value"))
        for name in self.kept:
            table = table.append_column(f"kept_{name}", batch.column(name))
        kinds = decoded.column("kind")
        bad = table.filter(pc.is_null(kinds))
        if bad.num_rows:
            self._refuse(f"invalid-pointer: {bad.column('problem')[0].as_py()}")
            errors = pc.binary_join_element_wise("invalid-pointer", bad.column("problem"), ": ")
            yield from self._rows(bad, pa.nulls(bad.num_rows, pa.binary()), errors)
        inlines = table.filter(pc.equal(kinds, INLINE))
        if inlines.num_rows:
            yield from self._inline(inlines)
        pointers = table.filter(pc.equal(kinds, POINTER))
        if pointers.num_rows:
            yield from self._files(pointers, reader)

    def _inline(self, table: pa.Table) -> Iterator[pa.RecordBatch]:
        packed = pc.not_equal(table.column("codec"), "none") if self.decompress else None
        if packed is None or not pc.any(packed).as_py():
            yield from self._rows(table, table.column("value"), pa.nulls(len(table), pa.string()))
            return
        plain = table.filter(pc.invert(packed))
        yield from self._rows(plain, plain.column("value"), pa.nulls(len(plain), pa.string()))
        some = table.filter(packed)
        payloads, errors = [], []
        codecs = some.column("codec").to_pylist()
        for codec, value in zip(codecs, some.column("value"), strict=True):
            payload, error = self._unpacked(codec, value.as_py())
            payloads.append(payload)
            errors.append(error)
        yield from self._rows(some, pa.array(payloads, pa.binary()), pa.array(errors, pa.string()))

    def _files(self, table: pa.Table, reader: OutboxReader) -> Iterator[pa.RecordBatch]:
        names = Pointer.__struct_fields__
        fields = table.select(list(names)).to_pylist()
        times = self._times(table)
        payloads: list[bytes | None] = []
        errors: list[str | None] = []
        start = size_bytes = 0
        for row, (values, written_ms) in enumerate(zip(fields, times, strict=True)):
            payload, error = self._read(reader, Pointer(**values), written_ms)
            payloads.append(payload)
            errors.append(error)
            size_bytes += len(payload or b"")
            if size_bytes >= OUTPUT_BYTES or row + 1 == len(fields):
                yield from self._rows(
                    table.slice(start, len(payloads)),
                    pa.array(payloads, pa.binary()),
                    pa.array(errors, pa.string()),
                )
                start, size_bytes, payloads, errors = row + 1, 0, [], []

    def _times(self, table: pa.Table) -> list[int]:
        """Return the time of each record in milliseconds since 1970; 0 if unknown."""
        if "timestamp" not in self.kept:
            return [0] * table.num_rows
        column = table.column("kept_timestamp").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        times: list[int] = pc.divide(column.fill_null(0), 1_000).to_pylist()
        return times

    def _read(
        self, reader: OutboxReader, pointer: Pointer, written_ms: int
    ) -> tuple[bytes | None, str | None]:
        attempts = 0
        while True:
            attempts += 1
            try:
                payload = reader.read(pointer)
            except PenstockError as error:
                trouble, reason = classify(error)
                age_ms = SYSTEM_CLOCK.now_ms() - written_ms
                judged = self.policy.judge(trouble, attempts=attempts, record_age_ms=age_ms)
                if isinstance(judged, TryAgain):
                    threading.Event().wait(judged.pause_ms / 1000)
                    continue
                if not isinstance(judged, DeadLetter) or self.fail_on_error:
                    raise
                return None, f"{reason}: {error}"
            return self._unpacked(pointer.codec, payload)

    def _unpacked(self, codec: str, payload: bytes) -> tuple[bytes | None, str | None]:
        if not self.decompress or codec == "none":
            return payload, None
        number = _CODECS.get(codec)
        if number is None:
            known = ", ".join(_CODECS)
            return None, self._refuse(f"unknown-codec: {codec}, but decompress supports {known}")
        try:
            return bytes(decompress_bytes(number, payload, max_bytes=self.bytes_max)), None
        except (CorruptError, InvalidError) as error:
            return None, self._refuse(f"corrupt-codec: {codec}: {error}")

    def _refuse(self, error: str) -> str:
        if self.fail_on_error:
            raise CorruptError(f"outbox record: {error}")
        return error

    def _rows(self, table: pa.Table, payloads: Any, errors: Any) -> Iterator[pa.RecordBatch]:
        columns = [table.column(f"kept_{name}") for name in self.kept]
        columns += [table.column(name) for name in _FIELDS]
        if self.decompress:
            at = len(self.kept) + _FIELDS.index("codec")
            columns[at] = pc.if_else(pc.is_valid(payloads), "none", columns[at])
        # Spark may pass values in another Arrow type than the declared plain binary.
        columns += [payloads.cast(pa.binary()), errors]
        made = pa.table(columns, names=[*self.kept, *_FIELDS, "payload", "error"])
        yield from made.combine_chunks().to_batches()
