"""Sink `files`: rows of topics as files in a directory or an object store, each row once.

    PREFIX/<topic>/partition=<N>/<topic>+<N>+<start>+<next>.parquet
    PREFIX/<topic>/<folder>/<topic>+<N>+<start>+<next>+<files>.parquet        with `folders`

`start` is the offset of the first row, `next` the offset at which the next file continues. The
files are the sink's only state: a run continues at the highest `next`. The rows of one range
of offsets may belong into several files: of several folders, of topics that transforms have named
(the folder has the new name, the file that of the topic that was read), or of types that do not fit
into one schema. Then `files` is the number of files of the range. A range with fewer files was cut
off by a crash. Its files are removed and written again.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.base.errors import InvalidError, InvalidSetting
from penstock.base.settings import setting
from penstock.base.system import SYSTEM_CLOCK
from penstock.connect.converting import fitted, whole
from penstock.connect.errors import RowsRejected, SinkUnavailable, rows_from
from penstock.connect.files import writing
from penstock.connect.files.locations import location
from penstock.connect.plugins import (
    HEADERS,
    KEY,
    OFFSET,
    PARTITION,
    TIMESTAMP,
    VALUE,
    ConnectorSettings,
    Records,
    Sink,
    SinkBatch,
)

_NAME: Final = re.compile(
    r"(?:.*/)?(?P<topic>[A-Za-z0-9._-]+)\+(?P<partition>\d+)\+(?P<start>\d+)\+(?P<next>\d+)"
    r"(?:\+(?P<files>\d+)(?:\+\d+)?)?\.[^+/]+"
)
_METADATA: Final = (KEY, TIMESTAMP, PARTITION, OFFSET, HEADERS)
SCHEMAS_MAX: Final = 8
"""Most schemas of a topic, if its rows do not fit into one."""
_NO_SCHEMA: Final = pa.schema([])
"""Schema of files whose rows may have different columns."""
_MAIN: Final = ""
"""Folder of rows if `folders` is not set."""


class FileSinkSettings(ConnectorSettings):
    """Keys of `[sink]` for `connector = "files"`."""

    url: str = setting(
        MISSING, "Required: a directory, or a URL `file://`, `s3://`, `gs://`, `az://`."
    )
    file_format: str = setting(
        "parquet", "Format of the files; `text` writes the bytes of each value on a line.",
        choices=writing.FORMATS,
    )  # fmt: skip
    compression: str = setting(
        "", "Compression: of blocks in Parquet and Avro files, else of whole files.",
        choices=("", "none", "gzip", "snappy", "zstd"), shown="zstd for Parquet, else none",
    )  # fmt: skip
    rotate_rows: int = setting(1_000_000, "Rows after which a file is completed.", 1, 1 << 40)
    rotate_bytes: int = setting(
        128 << 20, "Size in memory of the rows after which a file is completed.", 1 << 10, 1 << 40,
        unit="bytes",
    )  # fmt: skip
    rotate_seconds: float = setting(
        60.0, "Time after which a file is completed.", minimum=0.1, maximum=86_400.0
    )
    folders: str = setting(
        "", "Folders by time in UTC, such as `year=%Y/month=%m/day=%d/hour=%H`.",
        shown="`partition=<N>`",
    )  # fmt: skip
    folder_field: str = setting(
        "", "Field with the time of `folders`: a timestamp, a text of ISO 8601, or milliseconds"
        " since 1970.", shown="the record's timestamp",
    )  # fmt: skip
    metadata: tuple[str, ...] = setting(
        (), f"Columns to add, with the prefix `_`: {', '.join(_METADATA)}."
    )
    null_values: str = setting(
        "skip", "Action for records without a value: `skip` leaves them out, `fail` rejects them,"
        " `write` writes a row of nulls.", choices=("skip", "fail", "write"),
    )  # fmt: skip
    options: tuple[str, ...] = setting(
        (), "Options of the object store as `name=value`, such as `aws_region`.", secret=True
    )

    def __post_init__(self) -> None:
        unknown = set(self.metadata) - set(_METADATA)
        if unknown:
            known = ", ".join(_METADATA)
            raise InvalidSetting("metadata", self.metadata, f"must be some of {known}")
        if self.compression == "snappy" and self.file_format not in writing.BLOCKS:
            raise InvalidSetting("compression", "snappy", "use gzip or zstd for text files")
        if self.file_format == "text" and (self.metadata or self.folder_field):
            reason = "files of the format text have no other columns; use jsonl"
            raise InvalidSetting("file_format", "text", reason)
        if self.folder_field and not self.folders:
            raise InvalidSetting("folder_field", self.folder_field, "needs `folders`")

    @property
    def codec(self) -> str:
        return self.compression or ("zstd" if self.file_format == "parquet" else "none")

    @property
    def ending(self) -> str:
        codec = "" if self.file_format in writing.BLOCKS else writing.CODEC_ENDINGS[self.codec]
        return writing.ENDINGS[self.file_format] + codec


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Rows of a batch that fit into one schema.

    Attributes:
        topic: name that transforms gave.
        table: columns of the file.
        folders: folder of each row; None without folders.
        partitions: partition of each row.
        offsets: offset of each row.
    """

    topic: str
    schema: pa.Schema
    table: pa.Table
    folders: Any
    partitions: Any
    offsets: Any

    def of(self, partition: int) -> _Part:
        """Return the rows of a partition."""
        mask = pc.equal(self.partitions, partition)
        if pc.all(mask).as_py():
            return self
        folders = None if self.folders is None else self.folders.filter(mask)
        return replace(
            self, table=self.table.filter(mask), folders=folders,
            partitions=self.partitions.filter(mask), offsets=self.offsets.filter(mask),
        )  # fmt: skip


@dataclass(slots=True, kw_only=True)
class _OpenFile:
    topic: str
    folder: str
    schema: pa.Schema
    written: Path
    writer: writing.Writer


@dataclass(slots=True, kw_only=True)
class _Range:
    """Offsets of a partition whose files are not complete yet."""

    start: int
    next: int
    opened: float
    rows: int = 0
    size_bytes: int = 0
    files: list[_OpenFile] = field(default_factory=list)


Place = tuple[str, int]


class FileSink(Sink[FileSinkSettings]):
    """Sink that writes rows to files."""

    settings_type: ClassVar[type[Any]] = FileSinkSettings

    def __init__(self, settings: FileSinkSettings, connector: str) -> None:
        super().__init__(settings, connector)
        self.raw = settings.file_format == "text"  # type: ignore[misc]
        self._location = location(settings.url, settings.options)
        self._open: dict[Place, _Range] = {}
        self._schemas: defaultdict[str, list[pa.Schema]] = defaultdict(list)
        self._stored: dict[Place, int] = {}
        self._files = self._temporary = 0
        self._failed = False

    def problems(self) -> Sequence[str]:
        return self._location.problems(writing=True)

    def plan(self) -> Sequence[str]:
        settings = self.settings
        folder = settings.folders or "partition=<partition>"
        files = "+<files>" if settings.folders else ""
        return [
            f"write {self._location.shown}/<topic>/{folder}/<topic>+<partition>+<start>+<next>"
            f"{files}{settings.ending}",
            f"complete a file after {settings.rotate_rows} rows, {settings.rotate_bytes} bytes or"
            f" {settings.rotate_seconds:g} s",
        ]

    def facts(self) -> Mapping[str, Any]:
        open_rows = sum(found.rows for found in self._open.values())
        stored = {f"{topic}-{partition}": at for (topic, partition), at in self._stored.items()}
        return {"files": self._files, "stored": stored, "open_rows": open_rows}

    def offsets(self) -> Mapping[Place, int]:
        """Return the next offset of each partition that has files; remove files of cut ranges."""
        self._location.prepare(f"{self.connector}+")
        counts: Counter[tuple[Place, int]] = Counter()
        expected: dict[tuple[Place, int], int] = {}
        parts: defaultdict[tuple[Place, int], list[str]] = defaultdict(list)
        found: dict[Place, int] = {}
        for entry in self._location.entries():
            name = _NAME.fullmatch(entry.path)
            if name is None:
                continue
            place = name["topic"], int(name["partition"])
            key = place, int(name["next"])
            counts[key] += 1
            expected[key] = int(name["files"] or 1)
            if counts[key] >= expected[key]:
                found[place] = max(found.get(place, 0), key[1])
                parts.pop(key, None)
            elif key[1] > found.get(place, 0):
                parts[key].append(entry.path)
        for (place, following), paths in parts.items():
            if following > found.get(place, 0):
                for path in paths:
                    self._location.remove(path)
        self._stored = dict(found)
        return found

    def write(self, batch: SinkBatch) -> None:
        # Files are completed here and in `flush`, where the rows before are known to be processed.
        self._complete_due()
        parts: list[_Part] = []
        first = 0
        for records in batch.parts:
            with rows_from(first):
                parts.append(self._part(records))
            first += records.count
        self._failed = True  # until all rows are written
        for partition, following in sorted(batch.next_offsets.items()):
            place = batch.topic, partition
            own = [found for part in parts if (found := part.of(partition)).table.num_rows]
            if own:
                self._add(place, own)
            if place in self._open:
                self._open[place].next = following
        self._failed = False

    def flush(self) -> None:
        """Complete the files that are due; the others are written again after a crash."""
        self._complete_due()

    def unstored(self) -> Mapping[Place, int]:
        return {place: self._stored.get(place, part.start) for place, part in self._open.items()}

    def close(self) -> None:
        """Complete all files, except after an error; the files of a cut range are not kept."""
        if not self._failed:
            for place in list(self._open):
                self._complete(place)
        for found in self._open.values():
            for file in found.files:
                with suppress(OSError):  # such as a full disk, which the caller knows
                    file.writer.close()
                file.written.unlink(missing_ok=True)
        self._open.clear()

    # Rows

    def _kept(self, rows: pa.Table) -> Any:
        """Return the indexes of the rows to write; None means all."""
        valid = whole(rows.column(VALUE)).is_valid()
        action = self.settings.null_values
        if action == "write" or pc.all(valid, min_count=0).as_py():
            return None
        if action == "fail":
            bad = pc.indices_nonzero(pc.invert(valid)).to_pylist()
            raise _rejected(bad, "has no value; set null_values to skip or write such records")
        return pc.indices_nonzero(valid)

    def _part(self, records: Records) -> _Part:
        """Return rows in the schema of a file.

        Raises:
            RowsRejected: rows that the files cannot have.
        """
        rows = records.rows
        kept = self._kept(rows)
        rows = rows if kept is None else rows.take(kept)
        try:
            table, folders = self._table(rows), self._folders(rows)
            schema, table = self._fitted(records.topic, table)
        except RowsRejected as error:
            if kept is None:
                raise
            raise RowsRejected(kept.take(list(error.rows)).to_pylist(), error.reasons) from error
        return _Part(
            topic=records.topic, schema=schema, table=table, folders=folders,
            partitions=rows.column(PARTITION), offsets=rows.column(OFFSET),
        )  # fmt: skip

    def _fitted(self, topic: str, table: pa.Table) -> tuple[pa.Schema, pa.Table]:
        """Return the schema of a file of the topic, and rows in it.

        The topic's first schema that can have the rows is extended; else the topic gets another.
        """
        if self.settings.file_format not in writing.COLUMNAR or not table.num_rows:
            return _NO_SCHEMA, table
        known = self._schemas[topic]
        for number, before in enumerate(known):
            with suppress(pa.ArrowException, InvalidError):
                _, made = fitted([before.empty_table(), table])
                writing.check_schema(made.schema, self.settings.file_format)
                known[number] = made.schema
                return made.schema, made
        try:
            writing.check_schema(table.schema, self.settings.file_format)
        except InvalidError as error:
            raise _rejected(range(table.num_rows), str(error)) from error
        known.append(table.schema)
        del known[:-SCHEMAS_MAX]
        return table.schema, table

    def _table(self, rows: pa.Table) -> pa.Table:
        value = whole(rows.column(VALUE))
        content = value.buffers()[-1]
        if self.settings.file_format == "text" and content and b"\n" in content.to_pybytes():
            bad = pc.indices_nonzero(pc.match_substring(value, b"\n").fill_null(False)).to_pylist()
            if bad:
                raise _rejected(bad, "has a line feed, and would be several lines")
        table = writing.columns_of(value)
        for name in self.settings.metadata:
            table = table.append_column(f"_{name}", rows.column(name))
        return table

    def _folders(self, rows: pa.Table) -> Any:
        """Return the folder of each row; None without folders."""
        settings = self.settings
        if not settings.folders:
            return None
        times = rows.column(TIMESTAMP)
        if settings.folder_field:
            value = whole(rows.column(VALUE))
            names = [part.name for part in value.type] if pa.types.is_struct(value.type) else []
            if settings.folder_field not in names:
                raise _rejected(range(rows.num_rows), f"has no field {settings.folder_field}")
            times = pc.struct_field(value, settings.folder_field)
        try:
            zoned = _times(whole(times))
            shown = pc.strftime(zoned, settings.folders)
        except pa.ArrowException as error:
            raise _rejected(range(rows.num_rows), f"has no valid time: {error}") from error
        if shown.null_count:
            bad = pc.indices_nonzero(shown.is_null()).to_pylist()
            raise _rejected(bad, f"has no time in {settings.folder_field or TIMESTAMP}")
        return shown

    # Files

    def _add(self, place: Place, parts: list[_Part]) -> None:
        """Write rows of a partition."""
        found = self._open.get(place)
        if found and any(file.schema not in self._known(file.topic) for file in found.files):
            self._complete(place)
            found = None
        if found is None:
            first = min(pc.min(part.offsets).as_py() for part in parts)
            found = _Range(start=first, next=first, opened=SYSTEM_CLOCK.monotonic())
            self._open[place] = found
        for part in parts:
            for folder, rows in _by_folder(part.table, part.folders):
                with _unavailable(self._location.shown):
                    self._file(found, part, folder).writer.write(rows)
            found.rows += part.table.num_rows
            found.size_bytes += part.table.nbytes

    def _known(self, topic: str) -> list[pa.Schema]:
        return self._schemas[topic] or [_NO_SCHEMA]

    def _file(self, found: _Range, part: _Part, folder: str) -> _OpenFile:
        """Return the file of a range that has the part's schema, opened if there is none."""
        for file in found.files:
            if (file.topic, file.folder) == (part.topic, folder) and file.schema == part.schema:
                return file
        self._temporary += 1
        path = self._location.create(f"{self.connector}+{self._temporary}")
        settings = self.settings
        made = writing.writer(path, part.schema, settings.file_format, settings.codec)
        file = _OpenFile(
            topic=part.topic, folder=folder, schema=part.schema, written=path, writer=made
        )
        found.files.append(file)
        return file

    def _complete_due(self) -> None:
        settings, now = self.settings, SYSTEM_CLOCK.monotonic()
        for place, found in list(self._open.items()):
            if (
                found.rows >= settings.rotate_rows
                or found.size_bytes >= settings.rotate_bytes
                or now - found.opened >= settings.rotate_seconds
            ):
                self._complete(place)

    def _complete(self, place: Place) -> None:
        """Close the files of a range, and publish them."""
        found = self._open[place]
        topic, partition = place
        self._failed = True
        with _unavailable(self._location.shown):
            for file in found.files:
                file.writer.close()
        counts = Counter((file.topic, file.folder) for file in found.files)
        for number, file in enumerate(found.files):
            parts = [topic, str(partition), f"{found.start:020}", f"{found.next:020}"]
            if self.settings.folders or len(found.files) > 1:
                parts.append(str(len(found.files)))
            if counts[file.topic, file.folder] > 1:
                parts.append(str(number))
            inner = file.folder or f"partition={partition}"
            name = f"{'+'.join(parts)}{self.settings.ending}"
            self._location.publish(file.written, f"{file.topic}/{inner}/{name}")
            self._files += 1
        del self._open[place]
        self._stored[place] = found.next
        self._failed = False


@contextmanager
def _unavailable(shown: str) -> Iterator[None]:
    """Convert errors of temporary files, such as a full disk, after which a retry may succeed."""
    try:
        yield
    except PermissionError:
        raise
    except OSError as error:
        raise SinkUnavailable(f"cannot write to {shown}: {error.strerror or error}") from error


def _by_folder(rows: pa.Table, folders: Any) -> Iterator[tuple[str, pa.Table]]:
    if folders is None:
        yield _MAIN, rows
        return
    for folder in pc.unique(folders).to_pylist():
        yield folder, rows.filter(pc.equal(folders, folder))


def _times(column: Any) -> Any:
    """Return a column of times as timestamps in UTC."""
    if pa.types.is_string(column.type):
        column = column.cast(pa.timestamp("us", "UTC"))
    elif pa.types.is_integer(column.type):
        column = column.cast(pa.int64()).cast(pa.timestamp("ms"))
    return column.cast(pa.timestamp(column.type.unit)) if column.type.tz else column


def _rejected(rows: Sequence[int], reason: str) -> RowsRejected:
    return RowsRejected(rows, [reason] * len(rows))
