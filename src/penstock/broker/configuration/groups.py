"""Configurations of single groups, which override the broker's settings for all groups.

They are stored as text by group id, whether or not the group exists, and are part of the metadata
image.

Source: Kafka's `GroupConfig`, `ShareGroupAutoOffsetResetStrategy`; KIP-848, KIP-932, KIP-1106
(durations), KIP-1240.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from penstock.base.errors import InvalidSetting, InvalidTopicName
from penstock.base.ids import validate_topic_name
from penstock.base.settings import (
    SettingInfo,
    by_name,
    like,
    load,
    parse,
    render,
    setting,
    to_mapping,
)
from penstock.broker.configuration.configs import (
    Change,
    ConfigEntry,
    ConfigSource,
    ConfigSynonym,
    apply_changes,
    type_of,
)
from penstock.broker.configuration.settings import BrokerSettings
from penstock.broker.net.errors import InvalidConfig

if TYPE_CHECKING:
    from penstock.control.values.topics import EntityConfigs


GROUP_KIND: Final = "group"
"""Entity type under which the metadata image has the configurations of groups."""

READ_COMMITTED: Final = "read_committed"
DURATION: Final = re.compile(
    r"by_duration:P(?:([0-9]{1,10})D)?(?:T(?=[0-9])(?:([0-9]{1,10})H)?(?:([0-9]{1,10})M)?"
    r"(?:([0-9]{1,10}(?:\.[0-9]{1,9})?)S)?)?(?<!P)"
)
KNOWN_MAX: Final = 10_000
"""Limit of groups whose parsed configurations are cached."""

LOCK: Final = "share.record.lock.duration.ms"
STANDBYS: Final = "streams.num.standby.replicas"
_BROKER: Final = by_name(BrokerSettings)


def _of_broker(name: str) -> Any:
    return like(_BROKER[f"group.{name}"])


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfigs:
    consumer_session_timeout_ms: int = _of_broker("consumer.session.timeout.ms")
    consumer_heartbeat_interval_ms: int = _of_broker("consumer.heartbeat.interval.ms")
    consumer_assignment_interval_ms: int = _of_broker("consumer.assignment.interval.ms")
    share_auto_offset_reset: str = setting(
        "latest", "Position at which a share group starts to read a partition: earliest, latest,"
        " or by_duration:<ISO 8601 duration>, which starts at the records of that time before now.",
        pattern=f"earliest|latest|{DURATION.pattern}",
    )  # fmt: skip
    share_isolation_level: str = setting(
        "read_uncommitted", "Isolation level of a share group. read_committed excludes the records"
        " of open and aborted transactions.", choices=("read_uncommitted", READ_COMMITTED),
    )  # fmt: skip
    share_session_timeout_ms: int = _of_broker("share.session.timeout.ms")
    share_heartbeat_interval_ms: int = _of_broker("share.heartbeat.interval.ms")
    share_record_lock_duration_ms: int = _of_broker("share.record.lock.duration.ms")
    share_delivery_count_limit: int = _of_broker("share.delivery.count.limit")
    share_partition_max_record_locks: int = _of_broker("share.partition.max.record.locks")
    share_renew_acknowledge_enable: bool = setting(
        True, "Let members of a share group renew the locks of records that they hold."
    )
    errors_deadletterqueue_topic_name: str = setting(
        "", "Dead letter topic of a share group. A record that is rejected or undeliverable is"
        " written to it before it is archived. Empty: no dead letters."
    )  # fmt: skip
    errors_deadletterqueue_copy_record_enable: bool = setting(
        True,
        "Copy the key, value and headers of a record to its dead letter. If false, a dead letter"
        " has only the headers that identify the record.",
    )
    streams_session_timeout_ms: int = _of_broker("streams.session.timeout.ms")
    streams_heartbeat_interval_ms: int = _of_broker("streams.heartbeat.interval.ms")
    streams_assignment_interval_ms: int = _of_broker("streams.assignment.interval.ms")
    streams_initial_rebalance_delay_ms: int = _of_broker("streams.initial.rebalance.delay.ms")
    streams_num_standby_replicas: int = _of_broker(STANDBYS)


_KNOWN: Final = by_name(GroupConfigs)


def group_configs(settings: BrokerSettings, configs: Mapping[str, str]) -> GroupConfigs:
    """Return a group's configurations: its own `configs`, else the broker's `settings`.

    Raises:
        InvalidSetting: a configuration in `configs` is unknown or invalid.
    """
    return load(GroupConfigs, {**_below(settings), **configs})


def _below(settings: BrokerSettings) -> dict[str, object]:
    return {
        "consumer.session.timeout.ms": settings.group_consumer_session_timeout_ms,
        "consumer.heartbeat.interval.ms": settings.group_consumer_heartbeat_interval_ms,
        "consumer.assignment.interval.ms": settings.group_consumer_assignment_interval_ms,
        "share.session.timeout.ms": settings.group_share_session_timeout_ms,
        "share.heartbeat.interval.ms": settings.group_share_heartbeat_interval_ms,
        LOCK: settings.group_share_record_lock_duration_ms,
        "share.delivery.count.limit": settings.group_share_delivery_count_limit,
        "share.partition.max.record.locks": settings.group_share_partition_max_record_locks,
        "streams.session.timeout.ms": settings.group_streams_session_timeout_ms,
        "streams.heartbeat.interval.ms": settings.group_streams_heartbeat_interval_ms,
        "streams.assignment.interval.ms": settings.group_streams_assignment_interval_ms,
        "streams.initial.rebalance.delay.ms": settings.group_streams_initial_rebalance_delay_ms,
        STANDBYS: settings.group_streams_num_standby_replicas,
    }


class ConfigsOfGroups:
    """Cache of the configurations in effect for groups. Belongs to one event loop."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._image: object = None
        self._known: dict[str, GroupConfigs] = {}

    def of(self, configs: EntityConfigs, group_id: str) -> GroupConfigs:
        """Return the configurations in effect for a group.

        `configs` are the stored configurations of the metadata image. If a value of the group is
        invalid, the broker's settings apply instead of all its values.
        """
        if configs is not self._image:
            self._image, self._known = configs, {}
        found = self._known.get(group_id)
        if found is None:
            try:
                found = group_configs(self._settings, configs.get((GROUP_KIND, group_id), {}))
            except InvalidSetting:
                found = group_configs(self._settings, {})
            if len(self._known) < KNOWN_MAX:
                self._known[group_id] = found
        return found


def duration_ms(reset: str) -> int | None:
    """Return the milliseconds of a `by_duration` reset; None for other resets."""
    found = DURATION.fullmatch(reset)
    if found is None:
        return None
    days, hours, minutes, seconds = (Decimal(part or 0) for part in found.groups())
    return int((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)


def describe_group(
    settings: BrokerSettings, configs: Mapping[str, str], names: Iterable[str] | None = None
) -> list[ConfigEntry]:
    """Return all configs of a group (or those in `names`) with their synonyms."""
    selected = None if names is None else set(names)
    return [
        _entry(info, settings, configs)
        for name, info in sorted(_KNOWN.items())
        if selected is None or name in selected
    ]


def _entry(info: SettingInfo, settings: BrokerSettings, configs: Mapping[str, str]) -> ConfigEntry:
    chain: list[ConfigSynonym] = []
    if info.name in configs:
        own = render(parse(info, configs[info.name]))
        chain.append(ConfigSynonym(name=info.name, value=own, source=ConfigSource.DYNAMIC_GROUP))
    if info.like:
        inherited = _below(settings)[info.name]
        source = ConfigSource.DEFAULT if inherited == info.default else ConfigSource.STATIC_BROKER
        chain.append(ConfigSynonym(name=info.like, value=str(inherited), source=source))
    else:
        chain.append(
            ConfigSynonym(name=info.name, value=render(info.default), source=ConfigSource.DEFAULT)
        )
    return ConfigEntry(
        name=info.name,
        value=chain[0].value,
        source=chain[0].source,
        type=type_of(info),
        documentation=info.doc,
        synonyms=tuple(chain),
    )


def check_group_configs(
    settings: BrokerSettings, group_id: str, configs: Mapping[str, str | None]
) -> dict[str, str]:
    """Return `configs` if they are valid for the group; raises InvalidConfig."""
    missing = sorted(name for name, value in configs.items() if value is None)
    if missing:
        raise InvalidConfig(f"group {group_id!r}: no value given for {', '.join(missing)}")
    given = {name: value for name, value in configs.items() if value is not None}
    try:
        effective = group_configs(settings, given)
        for name, value, least, most in _bounds(settings, effective):
            if name in given and not least <= value <= most:
                kind, _, rest = name.partition(".")
                raise InvalidSetting(
                    name,
                    value,
                    f"must be from group.{kind}.min.{rest} = {least} to"
                    f" group.{kind}.max.{rest} = {most}",
                )
        check_heartbeats(effective)
        check_standbys(settings, given, effective.streams_num_standby_replicas)
        check_letter_topic(settings, effective.errors_deadletterqueue_topic_name)
    except InvalidSetting as error:
        raise InvalidConfig(f"group {group_id!r}: {error}") from error
    return given


def check_heartbeats(effective: GroupConfigs) -> None:
    """Raise InvalidSetting unless the heartbeat interval is less than the session timeout."""
    for kind, interval, timeout in (
        (
            "consumer",
            effective.consumer_heartbeat_interval_ms,
            effective.consumer_session_timeout_ms,
        ),
        ("streams", effective.streams_heartbeat_interval_ms, effective.streams_session_timeout_ms),
    ):
        if interval >= timeout:
            raise InvalidSetting(
                f"{kind}.heartbeat.interval.ms",
                interval,
                f"must be less than {kind}.session.timeout.ms = {timeout}",
            )


def check_standbys(settings: BrokerSettings, given: Mapping[str, str], standbys: int) -> None:
    """Raise InvalidSetting if a group configures more standby tasks than the broker allows."""
    most = settings.group_streams_max_standby_replicas
    if STANDBYS in given and standbys > most:
        rule = f"must be at most group.streams.max.standby.replicas = {most}"
        raise InvalidSetting(STANDBYS, standbys, rule)


def check_letter_topic(settings: BrokerSettings, name: str) -> None:
    """Raise InvalidSetting unless `name` may be a dead letter topic, or is empty."""
    if not name:
        return
    prefix = settings.errors_deadletterqueue_topic_name_prefix
    config = "errors.deadletterqueue.topic.name"
    if not name.startswith(prefix):
        rule = f"must begin with errors.deadletterqueue.topic.name.prefix = {prefix}"
        raise InvalidSetting(config, name, rule)
    try:
        validate_topic_name(name)
    except InvalidTopicName as error:
        raise InvalidSetting(config, name, f"must be a valid topic name: {error}") from None


def _bounds(
    settings: BrokerSettings, effective: GroupConfigs
) -> Iterable[tuple[str, int, int, int]]:
    """Return the configurations with bounds in broker settings: name, value, minimum, maximum."""
    return (
        (
            "consumer.session.timeout.ms",
            effective.consumer_session_timeout_ms,
            settings.group_consumer_min_session_timeout_ms,
            settings.group_consumer_max_session_timeout_ms,
        ),
        (
            "consumer.heartbeat.interval.ms",
            effective.consumer_heartbeat_interval_ms,
            settings.group_consumer_min_heartbeat_interval_ms,
            settings.group_consumer_max_heartbeat_interval_ms,
        ),
        (
            "consumer.assignment.interval.ms",
            effective.consumer_assignment_interval_ms,
            settings.group_consumer_min_assignment_interval_ms,
            settings.group_consumer_max_assignment_interval_ms,
        ),
        (
            LOCK,
            effective.share_record_lock_duration_ms,
            settings.group_share_min_record_lock_duration_ms,
            settings.group_share_max_record_lock_duration_ms,
        ),
        (
            "share.session.timeout.ms",
            effective.share_session_timeout_ms,
            settings.group_share_min_session_timeout_ms,
            settings.group_share_max_session_timeout_ms,
        ),
        (
            "share.heartbeat.interval.ms",
            effective.share_heartbeat_interval_ms,
            settings.group_share_min_heartbeat_interval_ms,
            settings.group_share_max_heartbeat_interval_ms,
        ),
        (
            "streams.session.timeout.ms",
            effective.streams_session_timeout_ms,
            settings.group_streams_min_session_timeout_ms,
            settings.group_streams_max_session_timeout_ms,
        ),
        (
            "streams.heartbeat.interval.ms",
            effective.streams_heartbeat_interval_ms,
            settings.group_streams_min_heartbeat_interval_ms,
            settings.group_streams_max_heartbeat_interval_ms,
        ),
    )


def apply_group_changes(
    settings: BrokerSettings, current: Mapping[str, str], changes: Sequence[Change]
) -> dict[str, str | None]:
    """Return the group configurations `current` after `changes`.

    Raises:
        BadRequest, InvalidConfig: as `apply_changes`.
    """
    return apply_changes(_KNOWN, to_mapping(group_configs(settings, {})), current, changes)
