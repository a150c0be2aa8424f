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

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Final

from penstock import __version__
from penstock.base.errors import CorruptError, InvalidError
from penstock.base.files import write_durably
from penstock.formats import ValueFormat
from penstock.spark.pipeline import spec as language
from penstock.spark.pipeline.graph import QueryPlan
from penstock.spark.pipeline.spec import PipelineSpec

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


# Definitions: stored copies of the pipeline file, for the replay of a batch that began under one.
#
# A batch may be half written when a run ends. If the replay used a changed file, rows could be in
# one sink and missing in another. So the journal entry of each batch names its definition, which is
# stored in the state directory:
#
#   <state>/definitions/<digest>/definition.json    the pipeline and its queries
#   <state>/definitions/<digest>/<number>-<name>    the Python and schema files that it names
#   <state>/definitions/present.json                the running definition, and its inferred schemas
#
# The digest covers the pipeline without its run options, its queries, and these files. A stored
# definition is never changed. While the file equals the definition in `present.json`, Spark need
# not analyse its queries again.


NAME: Final = "definition.json"
PRESENT: Final = "present.json"
_KIND: Final = "_kind"
_ENTRIES: Final = "_entries"
_PATH: Final = "_path"
_KINDS: Final[Mapping[str, type]] = {
    kind.__name__: kind
    for kind in (
        ValueFormat,
        QueryPlan,
        language.Rule,
        language.Protection,
        language.Source,
        language.PythonStep,
        language.Step,
        language.TableSink,
        language.IcebergSink,
        language.TopicSink,
        language.ConsoleSink,
        language.Sink,
        language.ErrorPolicy,
        language.RunOptions,
        language.PipelineSpec,
    )
}


def with_present_sinks(old: PipelineSpec, plan: QueryPlan, now: PipelineSpec) -> Definition:
    """Return an old definition with the current targets of its sinks and dead letters.

    Sinks that the current file lacks are left out. Sinks do not change the rows, so users can
    change or remove a sink that rejects the batch.
    """
    kept = tuple(name for name in plan.sinks if name in now.sinks)
    sinks = {
        name: dataclasses.replace(old.sinks[name], to=now.sinks[name].to) if name in kept else sink
        for name, sink in old.sinks.items()
    }
    topic = now.errors.dead_letters or old.errors.dead_letters
    errors = dataclasses.replace(old.errors, dead_letters=topic)
    return Definition(
        spec=dataclasses.replace(old, sinks=sinks, errors=errors),
        plans=(dataclasses.replace(plan, sinks=kept),),
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """Pipeline and its analysed queries."""

    spec: PipelineSpec
    plans: tuple[QueryPlan, ...]

    def plan(self, query: str) -> QueryPlan:
        """Return the plan of a query.

        Raises:
            CorruptError: the definition has no such query.
        """
        for plan in self.plans:
            if plan.name == query:
                return plan
        raise CorruptError(f"the stored definition of the batch has no query {query}")


class Definitions:
    """Store of the definitions of one pipeline."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, spec: PipelineSpec, plans: Sequence[QueryPlan]) -> str:
        """Write a definition, if it is new; return its digest."""
        digest, body, contents = _written(spec, plans)
        folder = self._folder / digest
        if not (folder / NAME).exists():
            for number, (path, content) in enumerate(zip(_files(spec), contents, strict=True)):
                write_durably(folder / f"{number}-{path.name}", content)
            write_durably(folder / NAME, body)
        return digest

    def mark_present(self, digest: str, inferred: Mapping[str, str]) -> None:
        """Store that Spark accepted this definition with these inferred schemas."""
        path, body = self._folder / PRESENT, _present(digest, inferred)
        if not path.exists() or path.read_bytes() != body:
            write_durably(path, body)

    def present_queries(
        self, spec: PipelineSpec, inferred: Mapping[str, str]
    ) -> tuple[QueryPlan, ...] | None:
        """Return the queries of a pipeline that is unchanged since it last ran; else None.

        Raises:
            CorruptError: the definition is missing or cannot be read.
        """
        try:
            said = (self._folder / PRESENT).read_bytes()
            digest = json.loads(said)["digest"]
        except (OSError, ValueError, KeyError):
            return None
        plans = self.load(digest, spec.run).plans
        if said != _present(digest, inferred) or digest != _written(spec, plans)[0]:
            return None
        return plans

    def folder(self, digest: str) -> Path:
        return self._folder / digest

    def load(self, digest: str, run: language.RunOptions) -> Definition:
        """Return a stored definition with its stored files and the current run options `run`.

        Raises:
            CorruptError: the definition is missing or cannot be read.
        """
        folder = self._folder / digest
        try:
            packed, plans = json.loads((folder / NAME).read_bytes())
            spec: PipelineSpec = _unpacked(packed)
            return Definition(
                spec=_with_files(dataclasses.replace(spec, run=run), folder), plans=_unpacked(plans)
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CorruptError(
                f"{folder / NAME}: the stored definition of a batch cannot be read: {error}"
            ) from error


def _written(spec: PipelineSpec, plans: Sequence[QueryPlan]) -> tuple[str, bytes, list[bytes]]:
    contents = [path.read_bytes() for path in _files(spec)]
    # The run options (addresses, directories, batch sizes) do not change the rows.
    plain = dataclasses.replace(spec, run=_NOWHERE)
    body = json.dumps([_packed(plain), _packed(tuple(plans))], sort_keys=True).encode()
    return hashlib.sha256(b"\0".join([body, *contents])).hexdigest()[:32], body, contents


def _present(digest: str, inferred: Mapping[str, str]) -> bytes:
    facts = {"digest": digest, "version": __version__, "inferred": dict(inferred)}
    return json.dumps(facts, sort_keys=True).encode()


_NOWHERE: Final = language.RunOptions(bootstrap="", admin_url=None, state=Path())


def _files(spec: PipelineSpec) -> Iterator[Path]:
    for source in spec.sources.values():
        if source.value_format.schema_file is not None:
            yield source.value_format.schema_file
    for step in spec.steps.values():
        if step.python is not None:
            yield step.python.file


def _with_files(spec: PipelineSpec, folder: Path) -> PipelineSpec:
    copies = iter(folder / f"{number}-{path.name}" for number, path in enumerate(_files(spec)))
    sources, steps = dict(spec.sources), dict(spec.steps)
    for name, source in sources.items():
        if source.value_format.schema_file is not None:
            chosen = dataclasses.replace(source.value_format, schema_file=next(copies))
            sources[name] = dataclasses.replace(source, value_format=chosen)
    for name, step in steps.items():
        if step.python is not None:
            python = dataclasses.replace(step.python, file=next(copies))
            steps[name] = dataclasses.replace(step, python=python)
    return dataclasses.replace(spec, sources=sources, steps=steps)


def _packed(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            field.name: _packed(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
        return {_KIND: type(value).__name__, **fields}
    if isinstance(value, Mapping):
        return {_ENTRIES: [[name, _packed(item)] for name, item in value.items()]}
    if isinstance(value, (tuple, list)):
        return [_packed(item) for item in value]
    if isinstance(value, Path):
        return {_PATH: str(value)}
    return value


def _unpacked(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_unpacked(item) for item in value)
    if not isinstance(value, dict):
        return value
    if _PATH in value:
        return Path(value[_PATH])
    if _ENTRIES in value:
        return {name: _unpacked(item) for name, item in value[_ENTRIES]}
    kind = _KINDS[value[_KIND]]
    return kind(**{name: _unpacked(item) for name, item in value.items() if name != _KIND})
