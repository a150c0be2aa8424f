"""File of a connector: its declared keys, and the parser that reports all problems.

    name = "shop"

    [source]                       # or [sink]
    connector = "postgresql"       # a name, or file.py:Class
    url = "postgresql://penstock@127.0.0.1:5432/shop"
    tables = ["public.orders"]
    topic = "shop.{schema}.{table}"

    [transform.masked]             # applied in the order of the file
    type = "MaskField"
    fields = ["card"]

    [errors]
    dead_letters = "shop.dead"

`${env:NAME}` and `${file:PATH}` in a text are replaced by an environment variable and by the
content of a file, so that files of connectors need no passwords.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final, Literal

from penstock.base.document import (
    CONNECTOR,
    Document,
    DocumentInvalid,
    Key,
    Problem,
    in_order,
    read,
)
from penstock.base.errors import InvalidError, InvalidSetting, InvalidTopicName
from penstock.base.extras import missing_extra
from penstock.base.ids import validate_topic_name
from penstock.base.settings import by_name, parse, setting, unknown
from penstock.connect.plugins import ConnectorSettings, Sink, Source
from penstock.connect.steps import Transform, build_transforms

ENTRY_POINTS: Final = "penstock.connectors"
BOOTSTRAP: Final = "127.0.0.1:9092"
STATE_DIRECTORY: Final = ".penstock/connect"
NAME_CHARS_MAX: Final = 100
SECRET_BYTES_MAX: Final = 64 << 10
BUILT_IN: Final[Mapping[str, str]] = {
    "sink:iceberg": "penstock.connect.iceberg:IcebergSink",
    "source:postgresql": "penstock.connect.postgresql.source:PostgresSource",
    "source:files": "penstock.connect.files.source:FileSource",
    "sink:files": "penstock.connect.files.sink:FileSink",
    "sink:http": "penstock.connect.http:HttpSink",
    "source:sql": "penstock.connect.sql.source:SqlSource",
    "sink:sql": "penstock.connect.sql.sink:SqlSink",
    "source:outbox": "penstock.connect.postgresql.outbox:OutboxSource",
    "source:outbox-polling": "penstock.connect.sql.outbox_polling:OutboxSource",
}
"""Classes of the connectors that Penstock has, by name."""
_VARIABLE: Final = re.compile(r"\$\{(env|file):([^}]+)\}")

Direction = Literal["source", "sink"]


class ErrorPolicy(ConnectorSettings):
    """Keys of `[errors]`."""

    tolerance: str = setting(
        "none", "Action for rows that cannot be processed, without `dead_letters`: `none` stops the"
        " connector, `all` skips the rows.", choices=("none", "all"),
    )  # fmt: skip
    dead_letters: str = setting("", "Dead-letter topic of rows that cannot be processed.")
    retry_timeout_seconds: float = setting(
        -1.0, "Time for which a batch is retried while a system does not respond; -1 means without"
        " end.", minimum=-1.0,
    )  # fmt: skip
    retry_delay_max_seconds: float = setting(
        60.0, "Longest pause between two attempts.", minimum=0.1, maximum=3600.0
    )


class RunOptions(ConnectorSettings):
    """Keys of `[run]`."""

    bootstrap: str = setting(
        BOOTSTRAP, "Brokers as HOST:PORT,…. A flag overrides the file, which overrides"
        " `PENSTOCK_BOOTSTRAP`.",
    )  # fmt: skip
    state: str = setting(
        "", "Directory of the status file.", shown="`.penstock/connect/<name>` beside the file"
    )


class ValueOptions(ConnectorSettings):
    """Keys of `[source]` and `[sink]` that say how rows are stored in topics."""

    format: str = setting(
        "json", "Format of values: `json` writes text and bytes unchanged and other types as JSON;"
        " `registry` writes Avro with a schema id of the registry.", choices=("json", "registry"),
    )  # fmt: skip
    key_format: str = setting(
        "", "Format of keys.", choices=("", "json", "registry"), shown="`format`"
    )
    registry: str = setting("", "URL of the schema registry.", shown="`PENSTOCK_REGISTRY`")


class SourceOptions(ValueOptions):
    """Keys of `[source]` that all sources share."""

    compression: str = setting(
        "none", "Compression of written batches.", choices=("none", "gzip", "snappy", "lz4", "zstd")
    )
    partitions: int = setting(1, "Partitions of topics that are created.", 1, 100_000)
    replication_factor: int = setting(
        -1, "Replication factor of topics that are created; -1 means the brokers' default.", -1, 100
    )


class SinkOptions(ValueOptions):
    """Keys of `[sink]` that all sinks share."""

    topics: tuple[str, ...] = setting(MISSING, "Required: the topics that are read.")
    batch_rows: int = setting(10_000, "Most rows of a batch.", 1, 10_000_000)
    flush_interval_seconds: float = setting(
        1.0, "Longest time between two commits of offsets.", minimum=0.01, maximum=3600.0
    )


_CONNECTOR: Final = "connector"
_TOP: Final = ("name", "source", "sink", "transform", "predicate", "errors", "run")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorSpec:
    """Checked content of a connector's file.

    Attributes:
        plugin: class of the source or sink.
        settings: instance of the plugin's settings class.
        options: `SourceOptions` or `SinkOptions`.
    """

    name: str
    file: Path
    direction: Direction
    connector: str
    plugin: type[Any]
    settings: Any
    options: Any
    transforms: tuple[Transform, ...]
    errors: ErrorPolicy
    run: RunOptions
    state: Path
    bootstrap: str

    def source_plugin(self) -> type[Source[Any]]:
        return self.plugin

    def sink_plugin(self) -> type[Sink[Any]]:
        return self.plugin


def load(path: Path, *, bootstrap: str | None = None, state: Path | None = None) -> ConnectorSpec:
    """Read and check a connector's file.

    Args:
        path: the file, or a directory with a `connector.toml`.
        bootstrap: overrides the file.
        state: overrides the file.

    Raises:
        DocumentInvalid: the file has problems; the error has all of them.
    """
    return parsed(read(path, CONNECTOR), bootstrap=bootstrap, state=state)


def parsed(
    document: Document, *, bootstrap: str | None = None, state: Path | None = None
) -> ConnectorSpec:
    """Return the checked content of a document; arguments and errors are those of `load`."""
    parser = Parser(document)
    spec = parser.spec(bootstrap, state)
    if spec is None or parser.problems:
        raise DocumentInvalid(in_order(parser.problems, document.file))
    return spec


class Parser:
    def __init__(self, document: Document) -> None:
        self.document = document
        self.problems: list[Problem] = []

    def refuse(self, key: Key, message: str, fix: str = "") -> None:
        self.problems.append(self.document.problem(key, message, fix))

    def spec(self, bootstrap: str | None, state: Path | None) -> ConnectorSpec | None:
        values = self.document.values
        for name in values:
            if name not in _TOP:
                self.refuse((name,), "is not known here", f"known are {', '.join(_TOP)}")
        name = self.document_name()
        errors = self.part(("errors",), ErrorPolicy)
        run = self.part(("run",), RunOptions)
        transforms = build_transforms(
            self.table(("transform",)), self.table(("predicate",)), self.refuse
        )
        found = self._plugin()
        if found is None or errors is None or run is None:
            return None
        direction, plugin, settings, options = found
        if errors.dead_letters:
            self.topic(("errors", "dead_letters"), errors.dead_letters)
        place = state or self.document.path(run.state or f"{STATE_DIRECTORY}/{name}")
        given = "bootstrap" in self.table(("run",))
        environment = None if given else os.environ.get("PENSTOCK_BOOTSTRAP")
        return ConnectorSpec(
            name=name,
            file=self.document.file,
            direction=direction,
            connector=str(values[direction][_CONNECTOR]),
            plugin=plugin,
            settings=settings,
            options=options,
            transforms=transforms,
            errors=errors,
            run=run,
            state=place,
            bootstrap=bootstrap or environment or run.bootstrap,
        )

    # Parts of the file

    def table(self, key: Key) -> Mapping[str, Any]:
        value = self.document.values.get(str(key[0]), {})
        if isinstance(value, dict):
            return value
        self.refuse(key, "must be a table", f"write [{key[0]}]")
        return {}

    def part(self, key: Key, cls: type[Any]) -> Any:
        """Return a settings object from a table; None if the table has problems."""
        found = self.settings(key, self.table(key), (cls,))
        return None if found is None else found[0]

    def settings(
        self, key: Key, raw: Mapping[str, Any], classes: Sequence[type[Any]]
    ) -> list[Any] | None:
        """Return one settings object of each class; every key of the table belongs to one of them.

        Return None if a value is invalid, a required key is missing, or a key is unknown.
        """
        before = len(self.problems)
        known = {name: (cls, info) for cls in classes for name, info in by_name(cls).items()}
        values: dict[type[Any], dict[str, Any]] = {cls: {} for cls in classes}
        for name, value in raw.items():
            if name == _CONNECTOR:
                continue
            if name not in known:
                self.refuse((*key, name), unknown(name, known))
                continue
            cls, info = known[name]
            try:
                values[cls][info.attribute] = parse(info, self._resolved((*key, name), value))
            except InvalidSetting as error:
                shown = "" if info.secret else f", not {error.value!r}"
                self.refuse((*key, name), f"{error.reason}{shown}")
        for cls in classes:
            for item in fields(cls):
                if item.default is MISSING and item.name not in raw:
                    self.refuse((*key, item.name), "is required", f"write {item.name} = …")
        if len(self.problems) > before:
            return None
        return self._made(key, raw, values)

    def _made(
        self, key: Key, raw: Mapping[str, Any], values: Mapping[type[Any], dict[str, Any]]
    ) -> list[Any] | None:
        try:
            return [cls(**given) for cls, given in values.items()]
        except InvalidSetting as error:
            where = (*key, error.name) if error.name in raw else key
            self.refuse(where, f"{error.name}: {error.reason}" if where == key else error.reason)
            return None

    def _resolved(self, key: Key, value: Any) -> Any:
        """Return a value in which `${env:NAME}` and `${file:PATH}` are replaced."""
        if not isinstance(value, str):
            return value

        def replaced(found: re.Match[str]) -> str:
            kind, name = found.groups()
            if kind == "env":
                if name not in os.environ:
                    self.refuse(key, f"environment variable {name} is not set", "set it")
                return os.environ.get(name, "")
            path = self.document.path(name)
            try:
                with path.open("rb") as file:
                    return file.read(SECRET_BYTES_MAX).decode().strip()
            except (OSError, UnicodeDecodeError) as error:
                self.refuse(key, f"file {path} cannot be read: {error}", "correct the path")
                return ""

        return _VARIABLE.sub(replaced, value)

    def document_name(self) -> str:
        name = self.document.values.get("name", self.document.default_name)
        if not isinstance(name, str):
            self.refuse(("name",), "must be text", 'write name = "orders"')
            return self.document.default_name
        self.topic(("name",), name)
        if len(name) > NAME_CHARS_MAX:
            self.refuse(("name",), f"has {len(name)} characters, the limit is {NAME_CHARS_MAX}")
        return name

    def topic(self, key: Key, name: str) -> None:
        """Report a value that cannot be the name of a topic."""
        try:
            validate_topic_name(name)
        except InvalidTopicName as error:
            self.refuse(
                key, f"{name!r}: {error.reason.removeprefix('a topic name ')}", "correct it"
            )

    def _plugin(self) -> tuple[Direction, type[Any], Any, Any] | None:
        there: list[Direction] = [
            name for name in ("source", "sink") if name in self.document.values
        ]
        if len(there) != 1:
            self.refuse(("source",), "write exactly one of [source] and [sink]")
            return None
        [direction] = there
        raw, key = self.table((direction,)), (direction,)
        given = raw.get(_CONNECTOR)
        if not isinstance(given, str) or not given:
            self.refuse((*key, _CONNECTOR), "is required", 'write connector = "postgresql"')
            return None
        try:
            plugin = plugin_named(given, direction, self.document.path)
        except InvalidError as error:
            self.refuse((*key, _CONNECTOR), str(error))
            return None
        shared = SourceOptions if direction == "source" else SinkOptions
        made = self.settings(key, raw, (plugin.settings_type, shared))
        return None if made is None else (direction, plugin, made[0], made[1])


# Plugins


def plugin_named(given: str, direction: Direction, path: Callable[[str], Path] = Path) -> type[Any]:
    """Return the class of a connector by its name, or by `file.py:Class`.

    Raises:
        InvalidError: there is no such connector, a package is missing, or the class is not a
            `Source` or `Sink`.
    """
    found = _loaded(given, direction, path)
    base = Source if direction == "source" else Sink
    if not (isinstance(found, type) and issubclass(found, base)):
        raise InvalidError(f"{given} is not a {base.__name__}: derive the class from it")
    return found


def _loaded(given: str, direction: Direction, path: Callable[[str], Path]) -> Any:
    file, colon, name = given.rpartition(":")
    if colon and file.endswith(".py"):
        return _of_file(path(file), name)
    place = BUILT_IN.get(f"{direction}:{given}")
    try:
        if place is not None:
            module, _, attribute = place.partition(":")
            return getattr(import_module(module), attribute)
        for entry in entry_points(group=ENTRY_POINTS, name=given):
            return entry.load()
    except ModuleNotFoundError as error:
        raise missing_extra(error) or InvalidError(
            f"{given} cannot be imported: {error}"
        ) from error
    except (ImportError, AttributeError) as error:
        raise InvalidError(f"{given} cannot be imported: {error}") from error
    known = ", ".join(sorted(connectors(direction)))
    raise InvalidError(f"there is no {direction} {given!r}; write one of {known}, or file.py:Class")


def connectors(direction: Direction) -> Iterator[str]:
    """Yield the names of the sources or sinks that can be used."""
    yield from (name.partition(":")[2] for name in BUILT_IN if name.startswith(f"{direction}:"))
    yield from (entry.name for entry in entry_points(group=ENTRY_POINTS))


def _of_file(file: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"penstock_connector_{file.stem}", file)
    if spec is None or spec.loader is None or not file.is_file():
        raise InvalidError(f"there is no file {file}; paths are relative to the connector's file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look annotations up there
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InvalidError(f"{file} cannot be imported: {type(error).__name__}: {error}") from error
    if not hasattr(module, name):
        raise InvalidError(f"{file} has no class {name}")
    return getattr(module, name)
