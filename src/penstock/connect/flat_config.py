"""Flat configurations, as in Kafka Connect's REST interface, and the files that they become.

    {"connector.class": "postgresql", "tables": "public.orders", "errors.tolerance": "all"}

`connector.class` is the name of a connector, or `file.py:Class`. Other names are those of settings,
with dots or underscores. `transforms` and `predicates` are as in Kafka Connect, and so are the
names in `_ERRORS`. The first line of a written file has the configuration as it was posted, which
is returned while the rest of the file is unchanged. Names in `IGNORED` have no effect.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from penstock.base.document import CONNECTOR, Document, DocumentInvalid, Problem, locate
from penstock.base.errors import InvalidError
from penstock.base.settings import SettingInfo, by_name, render
from penstock.connect.connector_file import (
    Direction,
    ErrorPolicy,
    SinkOptions,
    SourceOptions,
    connectors,
    parsed,
    plugin_named,
)
from penstock.connect.plugins import Sink

CLASS: Final = "connector.class"
_POSTED: Final = "# Configuration: "
_ERRORS: Final[Mapping[str, tuple[str, int]]] = {
    "errors.tolerance": ("tolerance", 1),
    "errors.deadletterqueue.topic.name": ("dead_letters", 1),
    "errors.retry.timeout": ("retry_timeout_seconds", 1000),
    "errors.retry.delay.max.ms": ("retry_delay_max_seconds", 1000),
}
"""Keys of `[errors]` by Kafka's names, and the number of Kafka's units in one of ours."""
IGNORED: Final = frozenset({
    "name", "tasks.max", "tasks.max.enforce", "config.action.reload", "header.converter",
    "errors.log.enable", "errors.log.include.messages", "key.converter.schemas.enable",
    "value.converter.schemas.enable", "errors.deadletterqueue.topic.replication.factor",
    "errors.deadletterqueue.context.headers.enable",
})  # fmt: skip
_FORMATS: Final[Mapping[str, str]] = {
    "org.apache.kafka.connect.json.JsonConverter": "json",
    "org.apache.kafka.connect.storage.StringConverter": "json",
    "org.apache.kafka.connect.converters.ByteArrayConverter": "json",
    "io.confluent.connect.avro.AvroConverter": "registry",
}
_CONVERTERS: Final = {
    "key.converter": "key_format", "value.converter": "format",
    "key.converter.schema.registry.url": "registry",
    "value.converter.schema.registry.url": "registry",
}  # fmt: skip
_LISTS: Final = {"transforms": "transform", "predicates": "predicate"}
_COMMON: Final = {
    "name": ("STRING", True, None, "Name of the connector."),
    CLASS: ("STRING", True, None, "Name of the connector's class, or file.py:Class."),
    "tasks.max": ("INT", False, "1", "Has no effect: a connector has one task."),
    "transforms": ("LIST", False, "", "Names of the transforms, in their order."),
    "predicates": ("LIST", False, "", "Names of the predicates."),
}
_TYPES: Final = {"int": "INT", "float": "DOUBLE", "bool": "BOOLEAN", "str": "STRING"}


class Found(Struct):
    """Class of a connector: its name, its direction, and whether its target stores offsets."""

    name: str
    direction: Direction
    stores_offsets: bool = False


class Checked(Struct):
    """Result of the check of a configuration.

    Attributes:
        problem: reason why the configuration names no connector; empty if it does.
        configs: definitions and values, as in Kafka Connect's response.
        errors: messages of all problems.
    """

    problem: str = ""
    direction: Direction = "source"
    text: str = ""
    configs: list[dict[str, Any]] = []
    errors: list[str] = []


# Files


def toml_of(name: str, config: Mapping[str, str], direction: Direction) -> str:
    """Return the file of a configuration."""
    tables: dict[str, dict[str, str]] = {direction: {"connector": config[CLASS]}, "errors": {}}
    prefixes = {}
    for plural, kind in _LISTS.items():
        for item in _items(config, plural):
            tables[f"{kind}.{json.dumps(item, ensure_ascii=False)}"] = {}
            prefixes[f"{plural}.{item}."] = tables[f"{kind}.{json.dumps(item, ensure_ascii=False)}"]
    for key, value in config.items():
        prefix = next((prefix for prefix in prefixes if key.startswith(prefix)), None)
        if prefix is not None:
            prefixes[prefix][key.removeprefix(prefix)] = value
        elif key in _ERRORS:
            own, factor = _ERRORS[key]
            tables["errors"][own] = value if factor == 1 else _divided(value, factor)
        elif key in _CONVERTERS:
            tables[direction][_CONVERTERS[key]] = _FORMATS.get(value, value)
        elif key not in IGNORED and key not in _LISTS and key != CLASS:
            tables[direction][key.replace(".", "_")] = value
    posted = json.dumps(dict(config), ensure_ascii=False)
    lines = [f"{_POSTED}{posted}", f"name = {_quoted(name)}"]
    for table, values in tables.items():
        if values:
            lines += ["", f"[{table}]"]
            lines += [f"{_quoted(key)} = {_quoted(value)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


def config_of(text: str) -> dict[str, str]:
    """Return the configuration of a file: the posted one, or one that has the same settings.

    Raises:
        ValueError: the text is not TOML.
    """
    head, _, rest = text.partition("\n")
    values = tomllib.loads(text)
    direction: Direction = "sink" if "sink" in values else "source"
    if head.startswith(_POSTED):
        posted: dict[str, str] = json.loads(head.removeprefix(_POSTED))
        if toml_of(str(values.get("name")), posted, direction).partition("\n")[2] == rest:
            return posted
    own = dict(values.get(direction, {}))
    found = {"name": str(values.get("name")), CLASS: str(own.pop("connector", ""))}
    found |= {key.replace("_", "."): _shown(value) for key, value in own.items()}
    for key, (name, factor) in _ERRORS.items():
        if name in values.get("errors", {}):
            value = values["errors"][name]
            found[key] = _shown(value) if factor == 1 else str(round(float(value) * factor))
    for plural, kind in _LISTS.items():
        if values.get(kind):
            found[plural] = ",".join(values[kind])
            for name, table in values[kind].items():
                found |= {f"{plural}.{name}.{key}": _shown(item) for key, item in table.items()}
    return found


def _items(config: Mapping[str, str], key: str) -> list[str]:
    return [name.strip() for name in config.get(key, "").split(",") if name.strip()]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _divided(value: str, factor: int) -> str:
    number = re.fullmatch(r"-?[0-9]+", value)
    return value if number is None or value == "-1" else str(int(value) / factor)


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_shown, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


# Checks; they import the code of connectors


def available() -> list[Found]:
    """Return the connectors that can be used, by name."""
    found = []
    for direction in ("sink", "source"):
        for name in connectors(direction):
            try:
                plugin = plugin_named(name, direction)
            except InvalidError:  # a package is missing, or it is of the other direction
                continue
            found.append(Found(name, direction, _stores_offsets(plugin)))
    return sorted(found, key=lambda item: (item.name, item.direction))


def found_in(text: str, directory: str) -> Found:
    """Return the connector of a file.

    Raises:
        InvalidError: the file names none.
    """
    values = tomllib.loads(text)
    direction: Direction = "sink" if "sink" in values else "source"
    name = str(values.get(direction, {}).get("connector", ""))
    plugin = plugin_named(name, direction, lambda file: Path(directory, file))
    return Found(name, direction, _stores_offsets(plugin))


def _stores_offsets(plugin: type[Any]) -> bool:
    return issubclass(plugin, Sink) and plugin.offsets is not Sink.offsets


def checked(name: str, config: Mapping[str, str], directory: str) -> Checked:
    """Return the problems of a configuration, and its file."""
    given = config.get(CLASS, "")
    directions: tuple[Direction, ...] = ("sink", "source") if "topics" in config else (
        "source", "sink")  # fmt: skip
    plugin, reasons = None, []
    for direction in directions:
        try:
            plugin = plugin_named(given, direction, lambda file: Path(directory, file))
            break
        except InvalidError as error:
            reasons.append(str(error))
    if plugin is None:
        return Checked(problem=reasons[0])
    text = toml_of(name, config, direction)
    document = Document(
        file=Path(directory, f"{name}.toml"), kind=CONNECTOR, text=text,
        values=tomllib.loads(text), locations=locate(text),
    )  # fmt: skip
    errors: dict[str, list[str]] = {}
    try:
        parsed(document)
    except DocumentInvalid as invalid:
        for problem in invalid.problems:
            key = _flat_name(problem, config, direction)
            errors.setdefault(key, []).append(_message(problem, key, config))
    if not config.get("tasks.max", "1").isdecimal():
        value = config["tasks.max"]
        errors["tasks.max"] = [
            f"Invalid value {value} for configuration tasks.max: Not a number of type INT"
        ]
    configs = [
        {
            "definition": definition,
            "value": {
                "name": definition["name"],
                "value": config.get(definition["name"], definition["default_value"]),
                "recommended_values": [],
                "errors": errors.pop(definition["name"], []),
                "visible": True,
            },
        }
        for definition in definitions(plugin, direction)
    ]
    found = [error for item in configs for error in item["value"]["errors"]]
    found += [error for messages in errors.values() for error in messages]
    return Checked(direction=direction, text=text, configs=configs, errors=found)


def definitions_of(given: str, directory: str) -> list[dict[str, Any]]:
    """Return the definitions of a connector's settings; raises `InvalidError` if there is none."""
    try:
        plugin, direction = (
            plugin_named(given, "source", lambda file: Path(directory, file)),
            "source",
        )
    except InvalidError:
        plugin, direction = plugin_named(given, "sink", lambda file: Path(directory, file)), "sink"
    return list(definitions(plugin, "sink" if direction == "sink" else "source"))


def definitions(plugin: type[Any], direction: Direction) -> Iterator[dict[str, Any]]:
    """Yield the definitions of a connector's settings in Kafka Connect's form."""
    common = [*_COMMON.items()]
    for order, (name, (kind, required, default, doc)) in enumerate(common, 1):
        yield _definition(name, kind, required=required, default=default, doc=doc, group="Common",
                          order=order)  # fmt: skip
    policy = by_name(ErrorPolicy)
    for order, (name, (own, factor)) in enumerate(_ERRORS.items(), 1):
        info, unit = policy[own], " In milliseconds." if factor > 1 else ""
        value = float(render(info.default)) if factor > 1 else 0.0
        default = str(round(value * factor) if value > 0 else -1) if factor > 1 else (
            render(info.default))  # fmt: skip
        yield _definition(name, "LONG" if factor > 1 else "STRING", required=False,
                          default=default, doc=info.doc + unit, group="Error Handling",
                          order=order)  # fmt: skip
    shared = SinkOptions if direction == "sink" else SourceOptions
    for cls in (plugin.settings_type, shared):
        needed = {item.name for item in fields(cls) if item.default is MISSING}
        for info in by_name(cls).values():
            yield _of_setting(info, required=info.attribute in needed)


def _of_setting(info: SettingInfo, *, required: bool) -> dict[str, Any]:
    kind = "PASSWORD" if info.secret else _TYPES.get(info.type_name, "LIST")
    default = None if required else render(info.default)
    name = info.name.replace("_", ".")
    return _definition(name, kind, required=required, default=default, doc=info.doc)


def _definition(
    name: str, kind: str, *, required: bool, default: str | None, doc: str,
    group: str | None = None, order: int = -1,
) -> dict[str, Any]:  # fmt: skip
    return {
        "name": name, "type": kind, "required": required, "default_value": default,
        "importance": "HIGH" if required else "MEDIUM", "documentation": doc, "group": group,
        "order_in_group": order, "width": "NONE", "display_name": name, "dependents": [],
    }  # fmt: skip


def _flat_name(problem: Problem, config: Mapping[str, str], direction: Direction) -> str:
    """Return the name in a configuration of the key that a problem has."""
    table, _, rest = problem.where.partition(".")
    rest = rest.replace('"', "")
    if table == "errors":
        return next((key for key, (own, _) in _ERRORS.items() if own == rest), f"errors.{rest}")
    if table in _LISTS.values():
        return f"{table}s.{rest}"
    if table != direction:
        return problem.where
    if rest == "connector":
        return CLASS
    given = [key for key in config if key.replace(".", "_") == rest]
    given += [key for key, own in _CONVERTERS.items() if own == rest and key in config]
    return given[0] if given else rest.replace("_", ".")


def _message(problem: Problem, key: str, config: Mapping[str, str]) -> str:
    if problem.message == "is required":
        return f'Missing required configuration "{key}" which has no default value.'
    return f"Invalid value {config.get(key)} for configuration {key}: {problem.message}"


__all__ = ["CLASS", "Checked", "Found", "available", "checked", "config_of",
           "definitions_of", "found_in"]  # fmt: skip
