"""Journal: the inputs of each batch, stored before it runs, so that a replay gives the same rows.

Spark replays a batch under its number with the same offsets. Its other inputs are chosen once and
stored in a file per batch: the current time, versions of tables, held records, release requests,
and the definition. Every sink writes a batch number once.

    <state>/journal/<query>/<batch number, 12 digits>.json

Each entry also has the query id of Spark's checkpoint. A checkpoint that was deleted, or that
belongs to another pipeline, has another id, or a batch number that does not follow the last entry.
The journal rejects it, because sinks would skip rows under batch numbers that they already have.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Final

from penstock.base.errors import CorruptError, InvalidError
from penstock.base.files import write_durably

ENTRIES_KEPT: Final = 100
"""Number of finished batches whose entries are kept for inspection."""


class CheckpointMismatch(InvalidError):
    """Checkpoint that does not belong to the journal, and so not to the sinks."""

    code: ClassVar[str] = "invalid_config"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Inputs of a batch and, once it has run, the number of rows by target.

    `writing` means that sinks may have rows of the batch. Before that, a replay may choose the
    inputs again, so that users can correct the file if its own rules stop the batch.
    """

    batch_id: int
    query_id: str | None
    now_ms: int
    definition: str = ""
    tables: Mapping[str, int | None] = field(default_factory=dict)
    held_version: int | None = None
    releases: tuple[str, ...] = ()
    writing: bool = False
    done: bool = False
    counts: Mapping[str, int] = field(default_factory=dict)
    held: int = 0
    milliseconds: int = 0


class Journal:
    """Journal entries of one query."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def begun(self, batch_id: int, query_id: str | None) -> Entry | None:
        """Return the entry of a batch that has begun before; None for a new batch.

        Raises:
            CheckpointMismatch: the checkpoint does not belong to the journal.
            CorruptError: an entry cannot be read.
        """
        numbers = self._numbers()
        if batch_id in numbers:
            entry = self.read(batch_id)
            self._check_query(entry, query_id)
            return entry
        if not numbers:
            if batch_id:
                raise CheckpointMismatch(
                    f"{self._folder}: the checkpoint is at batch {batch_id}, but the journal is "
                    "empty: the checkpoint belongs to another pipeline, or the journal was "
                    "deleted. Restore the journal, or start with a new state directory"
                )
            return None
        last = numbers[-1]
        if batch_id != last + 1:
            raise CheckpointMismatch(
                f"{self._folder}: the checkpoint is at batch {batch_id}, but the last batch of the "
                f"journal is {last}: the checkpoint was deleted, restored from a copy, or belongs "
                "to another pipeline. Restore the matching checkpoint, or start with a new "
                "state directory and other sinks"
            )
        self._check_query(self.read(last), query_id)
        return None

    def begin(self, entry: Entry) -> None:
        """Write the entry of a new batch durably."""
        self._write(entry)

    def write(self, entry: Entry) -> None:
        """Mark an entry as `writing`, durably; called before sinks are written."""
        self._write(replace(entry, writing=True))

    def finish(self, entry: Entry, *, counts: Mapping[str, int], held: int, ms: int) -> None:
        """Store the result of a batch, and delete entries beyond the last `ENTRIES_KEPT`."""
        entry = replace(entry, writing=True, done=True)
        self._write(replace(entry, counts=dict(counts), held=held, milliseconds=ms))
        for number in self._numbers()[:-ENTRIES_KEPT]:
            self._path(number).unlink(missing_ok=True)

    def read(self, batch_id: int) -> Entry:
        """Return the entry of a batch.

        Raises:
            CorruptError: the entry is missing or cannot be read.
        """
        path = self._path(batch_id)
        try:
            body: dict[str, Any] = json.loads(path.read_bytes())
            return Entry(**{**body, "releases": tuple(body["releases"])})
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise CorruptError(f"{path} cannot be read: {error}") from error

    def last(self) -> Entry | None:
        numbers = self._numbers()
        return self.read(numbers[-1]) if numbers else None

    def entries(self) -> list[Entry]:
        return [self.read(number) for number in self._numbers()]

    def finished_after(self, batch_id: int) -> list[Entry]:
        """Return the entries of finished batches with a higher number, in order."""
        entries = [self.read(number) for number in self._numbers() if number > batch_id]
        return [entry for entry in entries if entry.done]

    def _check_query(self, entry: Entry, query_id: str | None) -> None:
        known = entry.query_id
        if known is not None and query_id is not None and known != query_id:
            raise CheckpointMismatch(
                f"{self._folder}: batch {entry.batch_id} ran with the checkpoint of Spark query "
                f"{known}, but the checkpoint is now that of query {query_id}. Restore the "
                "matching checkpoint, or start with a new state directory and other sinks"
            )

    def _numbers(self) -> list[int]:
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return []
        return sorted(int(name[:-5]) for name in names if name.endswith(".json"))

    def _path(self, batch_id: int) -> Path:
        return self._folder / f"{batch_id:012d}.json"

    def _write(self, entry: Entry) -> None:
        write_durably(self._path(entry.batch_id), json.dumps(asdict(entry)).encode())
