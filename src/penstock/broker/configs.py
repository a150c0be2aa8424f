"""Configurations by level: topic over broker over cluster over file over default.

A value of a topic is looked for in this order, and DescribeConfigs shows the whole chain as
synonyms: the topic itself; this broker's dynamic values; the cluster's dynamic values; the
broker's settings file; the default. Broker-side names differ from the topic's (`log.` prefixes)
and some come in several units; `TOPIC_SYNONYMS` is that table.

Everything here is a pure function of `Levels`, which the handlers build from the settings and
the metadata image.

Source: Kafka's `ConfigHelper`, `ServerTopicConfigSynonyms`, `ConfigAdminManager`; KIP-226,
KIP-339, KIP-569.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Final

from penstock.base.errors import InvalidSetting
from penstock.base.settings import (
    INT_MAX,
    SettingInfo,
    by_name,
    describe,
    load,
    parse,
    parse_list,
    render,
    unknown,
    without_effect,
)
from penstock.broker.admin_errors import BadRequest, InvalidConfig
from penstock.broker.apache_settings import idle_setting, may_be_altered
from penstock.broker.settings import (
    EXCLUDED_BROKERS,
    UNSET,
    BrokerSettings,
    TopicDefaults,
    check_broker_ids,
)
from penstock.storage.config import LogConfig


class ConfigSource(IntEnum):
    """Where a value comes from, as DescribeConfigs numbers it."""

    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_CLIENT_METRICS = 7
    DYNAMIC_GROUP = 8


class ConfigType(IntEnum):
    """The type of a value, as DescribeConfigs numbers it."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7


class Operation(IntEnum):
    """What IncrementalAlterConfigs does to one value."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigSynonym:
    """One level's value of a configuration."""

    name: str
    value: str
    source: ConfigSource


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """A configuration as DescribeConfigs answers it; `value` is None when unset or secret."""

    name: str
    value: str | None
    source: ConfigSource
    type: ConfigType
    documentation: str
    read_only: bool = False
    sensitive: bool = False
    synonyms: tuple[ConfigSynonym, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One operation on one configuration."""

    name: str
    operation: Operation
    value: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """The levels below the topic. `file` are settings objects, the broker's own first."""

    file: tuple[Any, ...]
    cluster: Mapping[str, str]
    broker: Mapping[str, str]


_UNIT_MS: Final[Mapping[str, int]] = {"minutes": 60_000, "hours": 3_600_000}


def _synonyms() -> dict[str, tuple[tuple[str, int], ...]]:
    found: dict[str, tuple[tuple[str, int], ...]] = {}
    for info in sorted(describe(TopicDefaults), key=lambda info: info.like):
        chain = found.get(info.like, ())
        found[info.like] = (*chain, (info.name, _UNIT_MS.get(info.unit, 1)))
    return found


TOPIC_SYNONYMS: Final[Mapping[str, tuple[tuple[str, int], ...]]] = _synonyms()
"""By a topic's name: the broker's names and the factors from their units, in their order."""

DYNAMIC_BROKER_NAMES: Final = frozenset(
    {EXCLUDED_BROKERS, *(info.name for info in describe(TopicDefaults))}
)
"""Broker configurations that AlterConfigs may change: what new topics are like, read per image."""

_SECRET_WORDS: Final = ("password", "secret")


# -- lookups --------------------------------------------------------------------------------


def topic_config(levels: Levels, topic: Mapping[str, str]) -> LogConfig:
    """The configuration that a topic's partitions run with.

    Raises:
        InvalidSetting: an unknown name or a value out of its bounds.
    """
    values: dict[str, object] = dict(_inherited(levels))
    values.update(topic)
    config = load(LogConfig, values)
    if config.internal_segment_bytes:
        return replace(config, segment_bytes=config.internal_segment_bytes)
    return config


def describe_topic(
    levels: Levels, topic: Mapping[str, str], names: Iterable[str] | None = None
) -> list[ConfigEntry]:
    """Every configuration of a topic (or those in `names`) with its chain of synonyms."""
    wanted = None if names is None else set(names)
    return [
        _topic_entry(info, levels, topic)
        for name, info in sorted(by_name(LogConfig).items())
        if wanted is None or name in wanted
    ]


def describe_broker(levels: Levels, names: Iterable[str] | None = None) -> list[ConfigEntry]:
    """Every configuration of this broker (or those in `names`) with its chain of synonyms."""
    wanted = None if names is None else set(names)
    return sorted(
        (
            _broker_entry(info, tuple(_broker_synonyms(levels, info.name)))
            for info in _declared(levels)
            if wanted is None or info.name in wanted
        ),
        key=lambda entry: entry.name,
    )


def _declared(levels: Levels) -> Iterator[SettingInfo]:
    """The broker's settings, and those without effect that AlterConfigs has set."""
    for settings in levels.file:
        yield from by_name(type(settings)).values()
    for name in {**levels.cluster, **levels.broker}:
        info = idle_setting(name)
        if info is not None:
            yield info


def describe_cluster_defaults(
    levels: Levels, names: Iterable[str] | None = None
) -> list[ConfigEntry]:
    """The dynamic values that hold for all brokers: what the empty broker name describes."""
    wanted = None if names is None else set(names)
    return [
        _broker_entry(
            info,
            (ConfigSynonym(name=name, value=value, source=ConfigSource.DYNAMIC_DEFAULT_BROKER),),
        )
        for name, value in sorted(levels.cluster.items())
        if (info := _broker_info(name)) is not None and (wanted is None or name in wanted)
    ]


def _broker_info(name: str) -> SettingInfo | None:
    return by_name(BrokerSettings).get(name) or idle_setting(name)


def _inherited(levels: Levels) -> Iterator[tuple[str, str]]:
    """What a topic gets from the broker, in the topic's names and units."""
    for name, chain in TOPIC_SYNONYMS.items():
        for broker_name, factor in chain:
            value = next((s.value for s in _broker_synonyms(levels, broker_name)), None)
            if value is not None:
                yield name, _scaled(value, factor)
                break


def _scaled(value: str, factor: int) -> str:
    """A time in the unit of the topic's name; negative numbers mean 'for ever' in any unit."""
    return value if factor == 1 or value.startswith("-") else str(int(value) * factor)


def _broker_synonyms(levels: Levels, name: str) -> Iterator[ConfigSynonym]:
    """The values of one broker name from the level that wins down to the default."""
    for values, source in (
        (levels.broker, ConfigSource.DYNAMIC_BROKER),
        (levels.cluster, ConfigSource.DYNAMIC_DEFAULT_BROKER),
    ):
        if name in values:
            yield ConfigSynonym(name=name, value=values[name], source=source)
    for settings in levels.file:
        info = by_name(type(settings)).get(name)
        if info is None:
            continue
        value = getattr(settings, info.attribute)
        if value != info.default:
            yield ConfigSynonym(name=name, value=render(value), source=ConfigSource.STATIC_BROKER)
        if info.default != UNSET:
            yield ConfigSynonym(name=name, value=render(info.default), source=ConfigSource.DEFAULT)


def _topic_entry(info: SettingInfo, levels: Levels, topic: Mapping[str, str]) -> ConfigEntry:
    synonyms: list[ConfigSynonym] = []
    if info.name in topic:
        value = render(parse(info, topic[info.name]))
        synonyms.append(
            ConfigSynonym(name=info.name, value=value, source=ConfigSource.DYNAMIC_TOPIC)
        )
    value = synonyms[0].value if synonyms else ""
    for broker_name, factor in TOPIC_SYNONYMS.get(info.name, ()):
        for synonym in _broker_synonyms(levels, broker_name):
            value = value if synonyms else _scaled(synonym.value, factor)
            synonyms.append(synonym)
    return ConfigEntry(
        name=info.name,
        value=value if synonyms else render(info.default),
        source=synonyms[0].source if synonyms else ConfigSource.DEFAULT,
        type=type_of(info),
        documentation=info.doc,
        synonyms=tuple(synonyms),
    )


def _broker_entry(info: SettingInfo, synonyms: tuple[ConfigSynonym, ...]) -> ConfigEntry:
    sensitive = any(word in info.name for word in _SECRET_WORDS)
    return ConfigEntry(
        name=info.name,
        value=synonyms[0].value if synonyms and not sensitive else None,
        source=synonyms[0].source if synonyms else ConfigSource.DEFAULT,
        type=type_of(info),
        documentation=info.doc,
        read_only=not _is_dynamic(info.name),
        sensitive=sensitive,
        synonyms=() if sensitive else synonyms,
    )


def _is_dynamic(name: str) -> bool:
    return name in DYNAMIC_BROKER_NAMES or may_be_altered(name)


def type_of(info: SettingInfo) -> ConfigType:
    """The type of a setting's values, as DescribeConfigs numbers it."""
    if info.type_name == "int":
        return ConfigType.INT if (info.maximum or INT_MAX + 1) <= INT_MAX else ConfigType.LONG
    return {
        "bool": ConfigType.BOOLEAN,
        "str": ConfigType.STRING,
        "float": ConfigType.DOUBLE,
        "list": ConfigType.LIST,
    }[info.type_name]


# -- changes --------------------------------------------------------------------------------


def check_topic_configs(
    topic_name: str, levels: Levels, configs: Mapping[str, str | None]
) -> dict[str, str]:
    """Return a topic's configurations if all are known and within their bounds.

    Raises:
        InvalidConfig: the message names the topic, the configuration, the rule and the value;
            also of one that has no effect and would be a promise.
    """
    missing = sorted(name for name, value in configs.items() if value is None)
    if missing:
        raise InvalidConfig(f"topic {topic_name!r}: no value given for {', '.join(missing)}")
    given = {name: value for name, value in configs.items() if value is not None}
    try:
        topic_config(levels, given)
        idle_topic_configs(given)
    except InvalidSetting as error:
        raise InvalidConfig(f"topic {topic_name!r}: {error}") from error
    return given


def check_broker_configs(configs: Mapping[str, str | None]) -> dict[str, str]:
    """Return dynamic broker configurations if they may be changed and are within bounds.

    Raises:
        BadRequest: a configuration that only a restart can change.
        InvalidConfig: unknown, or out of its bounds.
    """
    infos = by_name(BrokerSettings)
    given: dict[str, str] = {}
    for name, value in configs.items():
        info = _broker_info(name)
        if info is None:
            raise InvalidConfig(f"broker setting {name}: {unknown(name, infos)}")
        if not _is_dynamic(name):
            raise BadRequest(f"broker setting {name}: cannot be changed while the broker runs")
        if value is None:
            raise InvalidConfig(f"broker setting {name}: no value given")
        parse(info, value)
        if name == EXCLUDED_BROKERS:
            check_broker_ids(parse_list(value))
        given[name] = value
    return given


def excluded_brokers(levels: Levels) -> frozenset[int]:
    """The brokers that get no new replicas unless they are named by hand."""
    settings, dynamic = levels.file[0], {**levels.cluster, **levels.broker}.get(EXCLUDED_BROKERS)
    words = settings.placement_excluded_brokers if dynamic is None else parse_list(dynamic)
    return frozenset([int(word) for word in words])


def idle_topic_configs(configs: Mapping[str, str]) -> tuple[str, ...]:
    """A sentence for each configuration of a topic that is taken and has no effect yet.

    Raises:
        InvalidSetting: one that is not taken.
    """
    return _idle(by_name(LogConfig).get, configs)


def idle_broker_configs(configs: Mapping[str, str]) -> tuple[str, ...]:
    """As `idle_topic_configs`, of a broker's dynamic configurations."""
    return _idle(_broker_info, configs)


def _idle(
    info_of: Callable[[str], SettingInfo | None], configs: Mapping[str, str]
) -> tuple[str, ...]:
    found = ((info_of(name), value) for name, value in configs.items())
    sentences = [without_effect(info, value) for info, value in found if info is not None]
    return tuple(sentence for sentence in sentences if sentence)


def apply_topic_changes(
    levels: Levels, current: Mapping[str, str], changes: Sequence[Change]
) -> dict[str, str | None]:
    """A topic's configurations after `changes`; lists grow from the value in effect.

    Raises:
        BadRequest: a name twice, or no value where one is needed.
        InvalidConfig: APPEND or SUBTRACT on a configuration that is not a list.
    """
    inherited = dict(_inherited(levels))
    return apply_changes(by_name(LogConfig), inherited, current, changes)


def apply_broker_changes(
    levels: Levels, current: Mapping[str, str], changes: Sequence[Change]
) -> dict[str, str | None]:
    """A broker's or the cluster's dynamic configurations after `changes`.

    Raises:
        BadRequest, InvalidConfig: as `apply_topic_changes`.
    """
    below = {
        change.name: next((s.value for s in _broker_synonyms(levels, change.name)), "")
        for change in changes
    }
    return apply_changes(by_name(BrokerSettings), below, current, changes)


def apply_changes(
    infos: Mapping[str, SettingInfo],
    below: Mapping[str, str],
    current: Mapping[str, str],
    changes: Sequence[Change],
) -> dict[str, str | None]:
    """Configurations after `changes`; `below` is what lists grow from that are not set yet."""
    check_unique(change.name for change in changes)
    result: dict[str, str | None] = dict(current)
    for change in changes:
        if change.operation is Operation.DELETE:
            result.pop(change.name, None)
            continue
        if change.value is None:
            raise BadRequest(f"configuration {change.name}: {change.operation.name} needs a value")
        if change.operation is Operation.SET:
            result[change.name] = change.value
            continue
        result[change.name] = _changed_list(
            infos.get(change.name), change, current.get(change.name, below.get(change.name, ""))
        )
    return result


def _changed_list(info: SettingInfo | None, change: Change, old: str) -> str:
    if info is None or info.type_name != "list":
        raise InvalidConfig(
            f"configuration {change.name}: {change.operation.name} works on lists only"
        )
    words = [word for word in old.split(",") if word]
    given = [word.strip() for word in (change.value or "").split(",") if word.strip()]
    if change.operation is Operation.APPEND:
        words += [word for word in dict.fromkeys(given) if word not in words]
    else:
        words = [word for word in words if word not in given]
    return ",".join(words)


def check_unique(names: Iterable[str]) -> None:
    """Raise `BadRequest` if a configuration is named twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise BadRequest(f"configuration {name}: given more than once")
        seen.add(name)
