"""Configurations of topics and brokers, merged from several levels.

The levels are, in order of precedence: the topic's own configurations, dynamic configurations of
the broker, dynamic configurations of all brokers, the configuration file, and defaults. The first
level that sets a configuration decides. DescribeConfigs returns the values of all levels as
synonyms. `TOPIC_SYNONYMS` maps each topic configuration to the broker's (`retention.bytes` to
`log.retention.bytes`).

Source: Kafka's `ConfigHelper`, `ServerTopicConfigSynonyms`, `ConfigAdminManager`; KIP-226, KIP-339,
KIP-569.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from typing import Any, Final

from msgspec import Struct

from penstock.base.errors import InvalidSetting
from penstock.base.settings import (
    INT_MAX,
    Kind,
    NoEffect,
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
from penstock.broker.configuration.settings import (
    EXCLUDED_BROKERS,
    UNSET,
    BrokerSettings,
    TopicDefaults,
    check_broker_ids,
)
from penstock.broker.net.errors import BadRequest, InvalidConfig
from penstock.control import MetadataImage
from penstock.storage.files.settings import LogConfig

# Apache Kafka broker settings that have no effect here, with the reason.
#
# Configuration files that were written for Apache Kafka, and AlterConfigs requests, may contain
# these settings. The broker accepts them with a warning. A setting without which security or
# durability would be reduced is not in this list, so the broker rejects it as unknown.
#
# Source: Kafka's `KafkaConfig`, and `DynamicBrokerConfig` for the settings that AlterConfigs
# changes.


class Idle(Struct, frozen=True, kw_only=True):
    """Settings that have no effect for the same reason. A name that ends in a dot is a prefix."""

    names: Sequence[str]
    why: str
    dynamic: bool = False
    """Whether AlterConfigs may change these settings in Apache Kafka."""

    def has(self, name: str) -> bool:
        return any(
            name.startswith(own) and name != own if own.endswith(".") else name == own
            for own in self.names
        )


IDLE: Final = (
    Idle(
        names=("sasl.kerberos.",),
        why="the SASL mechanism GSSAPI (Kerberos) is not supported",
        dynamic=True,
    ),
    Idle(
        names=(
            "background.threads", "num.io.threads", "num.network.threads",
            "num.recovery.threads.per.data.dir", "num.replica.fetchers",
        ),
        why="a broker serves all requests on one event loop",
        dynamic=True,
    ),
    Idle(
        names=("num.replica.alter.log.dirs.threads",),
        why="a broker has one log directory",
    ),
    Idle(
        names=("metric.reporters",),
        why="metrics are served at /metrics of the admin address",
        dynamic=True,
    ),
    Idle(
        names=("auto.include.jmx.reporter", "kafka.metrics.", "metrics."),
        why="metrics are served at /metrics of the admin address",
    ),
    Idle(
        names=(
            "controller.listener.names", "controller.quorum.", "controller.socket.timeout.ms",
            "initial.broker.registration.timeout.ms", "inter.broker.protocol.version", "metadata.",
            "process.roles", "zookeeper.",
        ),
        why="metadata is stored in the control plane, and no broker is a controller",
    ),
    Idle(
        names=(
            "group.coordinator.", "offsets.commit.required.acks", "offsets.load.buffer.size",
            "offsets.topic.", "share.coordinator.", "transaction.state.log.",
        ),
        why="groups and transactions are stored in the control plane, not in topics",
    ),
    Idle(
        names=(
            "replica.fetch.", "replica.high.watermark.checkpoint.interval.ms", "replica.socket.",
        ),
        why="leaders send records to followers, so followers do not fetch",
    ),
    Idle(
        names=("log.message.downconversion.enable",),
        why="all records have the same message format",
        dynamic=True,
    ),
    Idle(
        names=("log.cleaner.io.buffer.load.factor",),
        why="compaction computes the size of its tables",
        dynamic=True,
    ),
    Idle(
        names=(
            "log.flush.offset.checkpoint.interval.ms", "log.flush.scheduler.interval.ms",
            "log.flush.start.offset.checkpoint.interval.ms", "log.initial.task.delay.ms",
            "log.message.format.version",
        ),
        why="the journal and its checkpoints replace this mechanism",
    ),
    Idle(
        names=(
            "remote.log.metadata.", "remote.log.storage.manager.", "rlmm.config.", "rsm.config.",
        ),
        why="archived segments are stored in the object store of diskless.storage.url",
    ),
)  # fmt: skip
_ANY: Final = Kind("text", render)


def idle_setting(name: str) -> SettingInfo | None:
    """Return the declaration of an Apache Kafka setting without effect; None for other names."""
    group = _group(name)
    if group is None:
        return None
    return SettingInfo(
        name=name,
        doc=f"A setting of Apache Kafka. It has no effect: {group.why}.",
        unit="",
        default="",
        minimum=None,
        maximum=None,
        choices=(),
        pattern="",
        no_effect=NoEffect(why=group.why),
        like="",
        kind=_ANY,
        shown="",
        secret=False,
        type_name="str",
        attribute="",
    )


def may_be_altered(name: str) -> bool:
    """Return whether `name` is a setting without effect that AlterConfigs accepts."""
    group = _group(name)
    return group is not None and group.dynamic


def _group(name: str) -> Idle | None:
    return next((group for group in IDLE if group.has(name)), None)


class ConfigSource(IntEnum):
    """Level that a value comes from, numbered as in DescribeConfigs."""

    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_CLIENT_METRICS = 7
    DYNAMIC_GROUP = 8


class ConfigType(IntEnum):
    """Type of a value, numbered as in DescribeConfigs."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7


class Operation(IntEnum):
    """Operations of IncrementalAlterConfigs on one value."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigSynonym(Struct, frozen=True, kw_only=True):
    name: str
    value: str
    source: ConfigSource


class ConfigEntry(Struct, frozen=True, kw_only=True):
    """Configuration in a DescribeConfigs response; `value` is None when unset or secret."""

    name: str
    value: str | None
    source: ConfigSource
    type: ConfigType
    documentation: str
    read_only: bool = False
    sensitive: bool = False
    synonyms: tuple[ConfigSynonym, ...] = ()


class Change(Struct, frozen=True, kw_only=True):
    name: str
    operation: Operation
    value: str | None


class Levels(Struct, frozen=True, kw_only=True):
    """Levels below a topic's own configurations.

    `file` holds the settings objects of the configuration file, `BrokerSettings` first. `cluster`
    and `broker` hold dynamic values by name, of all brokers and of this broker.
    """

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
"""Broker configurations by topic configuration, in order of precedence. Each has the factor that
converts its value to the unit of the topic configuration."""

DYNAMIC_BROKER_NAMES: Final = frozenset(
    {EXCLUDED_BROKERS, *(info.name for info in describe(TopicDefaults))}
)
"""Broker configurations that AlterConfigs may change: the defaults of topics, and the brokers that
get no new replicas."""

_SECRET_WORDS: Final = ("password", "secret")


# -- lookups --------------------------------------------------------------------------------


def topic_config(levels: Levels, topic: Mapping[str, str]) -> LogConfig:
    """Return the configuration in effect for a topic's partitions; raises InvalidSetting."""
    values: dict[str, object] = dict(_inherited(levels))
    values.update(topic)
    config = load(LogConfig, values)
    if config.internal_segment_bytes:
        return replace(config, segment_bytes=config.internal_segment_bytes)
    return config


def describe_topic(
    levels: Levels, topic: Mapping[str, str], names: Iterable[str] | None = None
) -> list[ConfigEntry]:
    """Return all configurations of a topic (or those in `names`) with their synonyms."""
    selected = None if names is None else set(names)
    return [
        _topic_entry(info, levels, topic)
        for name, info in sorted(by_name(LogConfig).items())
        if selected is None or name in selected
    ]


def describe_broker(levels: Levels, names: Iterable[str] | None = None) -> list[ConfigEntry]:
    """Return all configurations of this broker (or those in `names`) with their synonyms."""
    selected = None if names is None else set(names)
    return sorted(
        (
            _broker_entry(info, tuple(_broker_synonyms(levels, info.name)))
            for info in _declared(levels)
            if selected is None or info.name in selected
        ),
        key=lambda entry: entry.name,
    )


def _declared(levels: Levels) -> Iterator[SettingInfo]:
    for settings in levels.file:
        yield from by_name(type(settings)).values()
    for name in {**levels.cluster, **levels.broker}:
        info = idle_setting(name)
        if info is not None:
            yield info


def describe_cluster_defaults(
    levels: Levels, names: Iterable[str] | None = None
) -> list[ConfigEntry]:
    """Return the dynamic configurations of all brokers, which the empty broker name selects."""
    selected = None if names is None else set(names)
    return [
        _broker_entry(
            info,
            (ConfigSynonym(name=name, value=value, source=ConfigSource.DYNAMIC_DEFAULT_BROKER),),
        )
        for name, value in sorted(levels.cluster.items())
        if (info := _broker_info(name)) is not None and (selected is None or name in selected)
    ]


def _broker_info(name: str) -> SettingInfo | None:
    return by_name(BrokerSettings).get(name) or idle_setting(name)


def _inherited(levels: Levels) -> Iterator[tuple[str, str]]:
    """Yield the values that topics inherit from the broker, with the topic's names and units."""
    for name, chain in TOPIC_SYNONYMS.items():
        for broker_name, factor in chain:
            value = next((s.value for s in _broker_synonyms(levels, broker_name)), None)
            if value is not None:
                yield name, _scaled(value, factor)
                break


def _scaled(value: str, factor: int) -> str:
    """Return `value` times `factor`; a negative value means unlimited in every unit."""
    return value if factor == 1 or value.startswith("-") else str(int(value) * factor)


def _broker_synonyms(levels: Levels, name: str) -> Iterator[ConfigSynonym]:
    """Yield the values of a broker setting on all levels, highest precedence first."""
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
    """Return the type of a setting's values, numbered as in DescribeConfigs."""
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
        InvalidConfig: a name is unknown, or a value is missing, of the wrong type or out of
            bounds. The message names the topic, the configuration, the rule and the value.
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
    """Return `configs` if all are valid dynamic broker configurations.

    Raises:
        BadRequest: a setting cannot be changed while the broker runs.
        InvalidConfig: a name is unknown, or a value is missing or invalid.
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
    """Return the ids of brokers that get no new replicas except by manual assignment."""
    settings, dynamic = levels.file[0], {**levels.cluster, **levels.broker}.get(EXCLUDED_BROKERS)
    words = settings.placement_excluded_brokers if dynamic is None else parse_list(dynamic)
    return frozenset([int(word) for word in words])


def idle_topic_configs(configs: Mapping[str, str]) -> tuple[str, ...]:
    """Return a warning for each topic configuration without effect; raises InvalidSetting."""
    return _idle(by_name(LogConfig).get, configs)


def idle_broker_configs(configs: Mapping[str, str]) -> tuple[str, ...]:
    """Return a warning for each dynamic broker configuration without effect."""
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
    """Return a topic's configurations after `changes`; raises BadRequest, InvalidConfig."""
    inherited = dict(_inherited(levels))
    return apply_changes(by_name(LogConfig), inherited, current, changes)


def apply_broker_changes(
    levels: Levels, current: Mapping[str, str], changes: Sequence[Change]
) -> dict[str, str | None]:
    """Return dynamic configurations of a broker or of all brokers after `changes`.

    Raises:
        BadRequest, InvalidConfig: as `apply_changes`.
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
    """Return the configurations `current` after `changes`.

    APPEND and SUBTRACT start from the value in `below`, the next level, if `current` has none.

    Raises:
        BadRequest: a configuration is given twice, or a change lacks its value.
        InvalidConfig: APPEND or SUBTRACT is used on a configuration that is not a list.
    """
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
            f"configuration {change.name}: {change.operation.name} is allowed for lists only"
        )
    words = [word for word in old.split(",") if word]
    given = [word.strip() for word in (change.value or "").split(",") if word.strip()]
    if change.operation is Operation.APPEND:
        words += [word for word in dict.fromkeys(given) if word not in words]
    else:
        words = [word for word in words if word not in given]
    return ",".join(words)


def check_unique(names: Iterable[str]) -> None:
    """Raise `BadRequest` if a configuration is given twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise BadRequest(f"configuration {name}: given more than once")
        seen.add(name)


# Configuration of each topic's partitions, kept up to date with the image.
#
# The store is opened before the broker exists and requests configurations by topic name, from the
# image or the broker's defaults. Results are cached until the values change.


logger = logging.getLogger(__name__)

_NONE: Final[Mapping[str, str]] = {}


class TopicConfigs:
    """Source of the topic configurations in effect, for the log store.

    Before `bind` sets the source of metadata images, it returns the configuration file's defaults
    for every topic.
    """

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._image_of: Callable[[], MetadataImage | None] = lambda: None
        self._dynamic: Mapping[str, Mapping[str, str]] = {}
        self._levels = Levels(file=(settings,), cluster={}, broker={})
        self._known: dict[str, tuple[Mapping[str, str], LogConfig]] = {}
        self._image: MetadataImage | None = None
        self._current: dict[str, LogConfig] = {}

    def bind(self, image_of: Callable[[], MetadataImage | None]) -> None:
        self._image_of = image_of

    def config_of(self, topic: str) -> LogConfig:
        """Return the configuration in effect for a topic; for an unknown topic the defaults."""
        image = self._image_of()
        if image is not self._image:
            self._image = image
            self._current = {}
        # Called several times for each append; cached for the same image.
        config = self._current.get(topic)
        if config is None:
            config = self._find(topic, image)
            if image is not None and topic in image.topics:
                self._current[topic] = config
        return config

    def _find(self, topic: str, image: MetadataImage | None) -> LogConfig:
        configs = _NONE
        if image is not None:
            if image.broker_configs is not self._dynamic:
                self._take_dynamic(image)
            found = image.topics.get(topic)
            if found is not None:
                configs = found.configs
            elif topic in self._known:
                del self._known[topic]
        known = self._known.get(topic)
        if known is not None and (known[0] is configs or known[0] == configs):
            return known[1]
        config = self._load(topic, configs)
        if configs is not _NONE:
            self._known[topic] = (configs, config)
        return config

    def _take_dynamic(self, image: MetadataImage) -> None:
        if image.broker_configs != self._dynamic:
            self._levels = Levels(
                file=(self._settings,),
                cluster=image.broker_configs.get("", {}),
                broker=image.broker_configs.get(str(self._settings.node_id), {}),
            )
            self._known.clear()
        self._dynamic = image.broker_configs

    def _load(self, topic: str, configs: Mapping[str, str]) -> LogConfig:
        try:
            return topic_config(self._levels, configs)
        except InvalidSetting as error:
            # Stored by a version with other bounds: the topic must still open.
            logger.warning("topic %s: %s; using the broker's default", topic, error)
            left = {name: value for name, value in configs.items() if name != error.name}
            if len(left) == len(configs):
                return LogConfig()
            return self._load(topic, left)
