"""Source `files`: files of a directory or an object store, in the order of their names.

Each file has a position, which is written in the transaction that writes its rows:

    {"offset": 4096}                   read up to here
    {"offset": 9120, "size": 9120}     read completely, when the file had this size in bytes

A file of lines, or an Avro file, that has grown is read on from its offset. Another file whose size
has changed is a new file, and is read from its begin. The position of a file is removed when the
file is.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import MISSING
from typing import Any, ClassVar, Final

import pyarrow as pa

from penstock.base.errors import InvalidError, InvalidSetting
from penstock.base.settings import setting
from penstock.base.system import SYSTEM_CLOCK
from penstock.connect.errors import ConnectorFailed, SourceUnavailable
from penstock.connect.files.avro import AvroFileInvalid
from penstock.connect.files.locations import FileEntry, location, matcher
from penstock.connect.files.reading import (
    FORMATS,
    ReadOptions,
    column_types,
    format_of,
    plain,
    read_parts,
)
from penstock.connect.plugins import (
    KEY,
    VALUE,
    ConnectorSettings,
    Source,
    SourceBatch,
    SourceContext,
    records_of,
)

FILES_MAX: Final = 1_000_000
"""Most files of a location."""
IDLE_SECONDS: Final = 0.05
"""Pause between two empty batches."""
SHOWN_FILES: Final = 5
_GROWING: Final = ("jsonl", "csv", "text", "avro")
"""Formats of files that programs append to."""


class FileSourceSettings(ConnectorSettings):
    """Keys of `[source]` for `connector = "files"`."""

    url: str = setting(
        MISSING, "Required: a directory, or a URL `file://`, `s3://`, `gs://`, `az://`."
    )
    topic: str = setting(MISSING, "Required: the topic that rows are written to.")
    files: str = setting(
        "**", "Pattern of the paths below `url`: `*` and `?` match within a name, `**/` matches any"
        " directories.",
    )  # fmt: skip
    file_format: str = setting(
        "auto", "Format of the files; `auto` uses the ending of each name, and `text` for unknown"
        " ones.", choices=("auto", *FORMATS),
    )  # fmt: skip
    key: str = setting("", "Column whose value becomes the record's key.")
    parse: bool = setting(
        False, "Whether lines of JSON Lines files become columns, which transforms, `key` and the"
        " format `registry` need; else lines are written unchanged.", shown="true with `key`",
    )  # fmt: skip
    columns: tuple[str, ...] = setting(
        (), "Names of the columns of CSV files without a header line.",
        shown="the first line has the names",
    )  # fmt: skip
    types: tuple[str, ...] = setting(
        (), "Types of columns of CSV files as `name:type`, such as `id:int64`, `at:timestamp` or"
        " `price:decimal(10 2)`; other columns are texts.",
    )  # fmt: skip
    delimiter: str = setting(
        "", "Delimiter of CSV files.", pattern=".?", shown="a tab for `.tsv`, else a comma"
    )
    tail: bool = setting(
        False, "Whether programs append to the text files: a last line is read only when its line"
        " feed was written.",
    )  # fmt: skip
    poll_interval_seconds: float = setting(
        1.0, "Time between two listings of the files.", minimum=0.05, maximum=86_400.0
    )
    rows_max: int = setting(50_000, "Rows after which a transaction is committed.", 1, 10_000_000)
    options: tuple[str, ...] = setting(
        (), "Options of the object store as `name=value`, such as `aws_region`.", secret=True
    )

    def __post_init__(self) -> None:
        try:
            column_types(self.types)
        except InvalidError as error:
            raise InvalidSetting("types", self.types, str(error)) from error
        if self.key and self.file_format == "text":
            raise InvalidSetting("key", self.key, "lines of text have no columns; remove the key")


class FileSource(Source[FileSourceSettings]):
    """Source of rows in files."""

    settings_type: ClassVar[type[Any]] = FileSourceSettings

    def __init__(self, settings: FileSourceSettings, context: SourceContext) -> None:
        super().__init__(settings, context)
        self._location = location(settings.url, settings.options)
        self._pattern = matcher(settings.files)
        self._options = ReadOptions(
            rows=settings.rows_max,
            parse=settings.parse or bool(settings.key),
            delimiter=settings.delimiter,
            columns=settings.columns,
            types=column_types(settings.types),
            tail=settings.tail,
        )
        self._batch = _Collected(settings.rows_max)
        self._known: dict[str, Any] = {}
        self._listed = 0

    def problems(self) -> Sequence[str]:
        return self._location.problems(writing=False)

    def plan(self) -> Sequence[str]:
        found = self._matching()
        size = sum(entry.size_bytes for entry in found)
        shown = [f"{entry.path} ({self._format(entry.path)})" for entry in found[:SHOWN_FILES]]
        more = ["…"] if len(found) > SHOWN_FILES else []
        return [
            f"read {len(found)} files with {size} bytes in {self._location.shown}:"
            f" {', '.join((*shown, *more)) or 'none yet'}",
            f"write the rows to topic {self.settings.topic}, and follow new files",
        ]

    def topics(self) -> Sequence[str]:
        return (self.settings.topic,)

    def facts(self) -> Mapping[str, Any]:
        done = sum("size" in position for position in self._known.values())
        return {"files": self._listed, "files_read": done}

    def read(self, positions: Mapping[str, Any]) -> Iterator[SourceBatch]:
        self._known = dict(positions)
        while True:
            entries = self._matching()
            self._forget(entries)
            for entry in entries:
                if not self._is_read(entry):
                    yield from self._read_file(entry)
            yield self._batch.taken(caught_up=True)
            due = SYSTEM_CLOCK.monotonic() + self.settings.poll_interval_seconds
            while SYSTEM_CLOCK.monotonic() < due:
                threading.Event().wait(IDLE_SECONDS)
                yield SourceBatch(caught_up=True)

    def _matching(self) -> list[FileEntry]:
        """Return the files in the order of their names."""
        found = [entry for entry in self._location.entries() if self._pattern.fullmatch(entry.path)]
        if len(found) > FILES_MAX:
            raise ConnectorFailed(
                f"{self._location.shown} has {len(found)} files, the limit is {FILES_MAX}. Narrow"
                " `files`, or remove files that have been read"
            )
        self._listed = len(found)
        return sorted(found)

    def _forget(self, entries: Sequence[FileEntry]) -> None:
        """Remove positions of missing files, except if all files of the location are missing."""
        if entries:
            for path in self._known.keys() - {entry.path for entry in entries}:
                del self._known[path]
                self._batch.positions[path] = None

    def _is_read(self, entry: FileEntry) -> bool:
        position = self._known.get(entry.path)
        return position is not None and position.get("size") == entry.size_bytes

    def _format(self, path: str) -> str:
        given = self.settings.file_format
        return format_of(path)[0] if given == "auto" else given

    def _start(self, entry: FileEntry) -> int:
        """Return the offset at which a file is read on; 0 if it is another file than before."""
        position = self._known.get(entry.path)
        if position is None:
            return 0
        offset, size = int(position["offset"]), position.get("size")
        if size is None:
            return offset
        grows = self._format(entry.path) in _GROWING and format_of(entry.path)[1] is None
        if grows and entry.size_bytes > size:
            return offset
        self.context.report(f"{entry.path} has another size than before, and is read again")
        return 0

    def _read_file(self, entry: FileEntry) -> Iterator[SourceBatch]:
        path, offset = entry.path, self._start(entry)
        try:
            with closing(self._location.open(entry)) as file:
                size = file.size()
                parts = read_parts(file, path, self._format(path), offset, self._options)
                for values, offset in parts:
                    self._collect(path, values, offset)
                    if self._batch.full:
                        yield self._batch.taken()
        except (pa.ArrowException, AvroFileInvalid, EOFError, OSError) as error:
            raise SourceUnavailable(
                f"{path} in {self._location.shown} cannot be read: {error}. If it is still being"
                " written, wait; else correct or remove it"
            ) from error
        self._set(path, {"offset": offset, "size": size})

    def _collect(self, path: str, values: Any, offset: int) -> None:
        columns = {VALUE: plain(values)}
        key = self.settings.key
        if key:
            names = [field.name for field in values.type] if pa.types.is_struct(values.type) else []
            if key not in names:
                known = ", ".join(names) or "none"
                raise ConnectorFailed(
                    f"{path} has no column {key!r}, which `key` names; its columns are {known}"
                )
            columns[KEY] = plain(values.field(key))
        self._batch.add(records_of(self.settings.topic, columns))
        self._set(path, {"offset": offset})

    def _set(self, path: str, position: Mapping[str, Any]) -> None:
        self._known[path] = self._batch.positions[path] = position


class _Collected:
    """Rows and positions of the next batch."""

    def __init__(self, rows_max: int) -> None:
        self._rows_max = rows_max
        self._records: list[Any] = []
        self.positions: dict[str, Any] = {}
        self._rows = 0

    def add(self, records: Any) -> None:
        if records.count:
            self._records.append(records)
            self._rows += records.count

    @property
    def full(self) -> bool:
        return self._rows >= self._rows_max

    def taken(self, *, caught_up: bool = False) -> SourceBatch:
        made = SourceBatch(
            records=tuple(self._records), positions=self.positions, caught_up=caught_up
        )
        self._records, self.positions, self._rows = [], {}, 0
        return made
