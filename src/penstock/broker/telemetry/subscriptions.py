"""Subscriptions to client metrics (which metrics, how often, which clients), and client instances.

A subscription is a config resource (CLIENT_METRICS, 16) with a name. It exists if it has a
configuration. A client pushes the metrics of all matching subscriptions, at the shortest of their
intervals.

Source: KIP-714; Kafka's `ClientMetricsConfigs`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final
from uuid import UUID

from msgspec import Struct

from penstock.base.crc import crc32c
from penstock.base.errors import InvalidError, InvalidSetting, RetriableError
from penstock.base.settings import SettingInfo, by_name, load, parse, render, setting
from penstock.broker.configuration.configs import (
    Change,
    ConfigEntry,
    ConfigSource,
    ConfigSynonym,
    apply_changes,
    type_of,
)
from penstock.broker.groups.runtime.topic_regex import InvalidRegex, compile_regex
from penstock.broker.net.errors import BadRequest, InvalidConfig

MATCHES_MAX: Final = 20
"""Largest number of patterns in one subscription."""
PREFIXES_MAX: Final = 500
"""Largest number of name prefixes in one subscription."""

ALL: Final = "*"
"""Entry of the configuration `metrics` that requests all metrics of a client."""

INTERVAL_MS: Final = 300_000
INSTANCE_ID: Final = "client_instance_id"
CLIENT_ID: Final = "client_id"
SOFTWARE: Final = "client_software_name"
SOFTWARE_VERSION: Final = "client_software_version"
SOURCE_ADDRESS: Final = "client_source_address"
SOURCE_PORT: Final = "client_source_port"
ATTRIBUTES: Final = (
    INSTANCE_ID, CLIENT_ID, SOFTWARE, SOFTWARE_VERSION, SOURCE_ADDRESS, SOURCE_PORT,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionConfigs:
    interval_ms: int = setting(INTERVAL_MS, "Interval at which clients push.", 100, 3_600_000)
    metrics: tuple[str, ...] = setting(
        (), "Name prefixes of the requested metrics. * requests all metrics, an empty list none."
    )
    match: tuple[str, ...] = setting(
        (), "Conditions for clients to which the subscription applies, each in the form"
        " attribute=regular expression. All must match. An empty list matches all clients.",
    )  # fmt: skip


_KNOWN: Final = by_name(SubscriptionConfigs)
Attributes = Mapping[str, str]


class Subscription(Struct, frozen=True, kw_only=True):
    """Subscription to `metrics` of the clients that `match`, pushed every `interval_ms`."""

    metrics: tuple[str, ...]
    interval_ms: int
    match: Sequence[tuple[str, str]] = ()

    def fits(self, client: Attributes) -> bool:
        """Return whether the subscription applies to a client."""
        return all(compile_regex(pattern)(client[attribute]) for attribute, pattern in self.match)


def subscription_of(configs: Mapping[str, str]) -> Subscription:
    """Return the subscription with these stored configurations."""
    values = load(SubscriptionConfigs, configs)
    return Subscription(
        metrics=values.metrics, interval_ms=values.interval_ms, match=_matches(values.match)
    )


def _matches(words: Sequence[str]) -> list[tuple[str, str]]:
    found: dict[str, str] = {}
    for word in words:
        attribute, equals, pattern = (part.strip() for part in word.partition("="))
        if attribute not in ATTRIBUTES or not equals or not pattern:
            raise InvalidConfig(
                f"match: {word!r} must have the form attribute=expression; attributes are"
                f" {', '.join(ATTRIBUTES)}"
            )
        try:
            compile_regex(pattern)
        except InvalidRegex as error:
            raise InvalidConfig(f"match: {attribute}: {error}") from error
        found[attribute] = pattern
    return list(found.items())


def check_subscription(name: str, configs: Mapping[str, str | None]) -> dict[str, str]:
    """Return `configs` if they are valid for a subscription; raises BadRequest, InvalidConfig."""
    given = {key: value for key, value in configs.items() if value is not None}
    if len(given) < len(configs):
        missing = sorted(key for key, value in configs.items() if value is None)
        raise BadRequest(f"client metrics {name!r}: no value given for {', '.join(missing)}")
    try:
        values = load(SubscriptionConfigs, given)
    except InvalidSetting as error:
        raise BadRequest(f"client metrics {name!r}: {error}") from error
    for key, words, most in (
        ("match", values.match, MATCHES_MAX),
        ("metrics", values.metrics, PREFIXES_MAX),
    ):
        if len(words) > most:
            raise InvalidConfig(
                f"client metrics {name!r}: {key} has {len(words)} entries, more than {most}"
            )
    _matches(values.match)
    return given


def apply_subscription_changes(
    current: Mapping[str, str], changes: Sequence[Change]
) -> dict[str, str | None]:
    return apply_changes(_KNOWN, {}, current, changes)


def describe_subscription(
    configs: Mapping[str, str], names: Iterable[str] | None = None
) -> list[ConfigEntry]:
    """Return all configurations of a subscription, or those in `names`."""
    selected = None if names is None else set(names)
    return [
        _entry(info, configs)
        for name, info in sorted(_KNOWN.items())
        if selected is None or name in selected
    ]


def _entry(info: SettingInfo, configs: Mapping[str, str]) -> ConfigEntry:
    default = ConfigSynonym(name=info.name, value=render(info.default), source=ConfigSource.DEFAULT)
    chain: tuple[ConfigSynonym, ...] = (default,)
    if info.name in configs:
        own = render(parse(info, configs[info.name]))
        source = ConfigSource.DYNAMIC_CLIENT_METRICS
        chain = (ConfigSynonym(name=info.name, value=own, source=source), default)
    return ConfigEntry(
        name=info.name,
        value=chain[0].value,
        source=chain[0].source,
        type=type_of(info),
        documentation=info.doc,
        synonyms=chain,
    )


def subscribed_metrics(
    client: Attributes, subscriptions: Iterable[Subscription]
) -> tuple[tuple[str, ...], int]:
    """Return the name prefixes of the metrics that a client should push, and its interval in ms."""
    metrics: set[str] = set()
    interval_ms: int | None = None
    for subscription in subscriptions:
        if subscription.fits(client):
            metrics.update(subscription.metrics)
            interval_ms = min(subscription.interval_ms, interval_ms or subscription.interval_ms)
    if ALL in metrics:
        metrics = {ALL}
    return tuple(sorted(metrics)), interval_ms or INTERVAL_MS


# Client instances that push metrics: their subscriptions, and the checks of their requests.
#
# A client requests its subscription, then pushes once per interval. Its first push is accepted at
# any time, so that clients can spread their pushes. If the subscription has changed, a push gets
# UNKNOWN_SUBSCRIPTION_ID, and the client requests the new subscription. The subscription id depends
# only on the subscription and the client's id, so a client may continue at any broker.
#
# This is a core: times are ms of a monotonic clock, ids are arguments.
#
# Source: KIP-714; Kafka's `ClientMetricsManager` and `ClientMetricsInstance`.


INSTANCES_MAX: Final = 16_384
"""Limit of client instances, above which the least recently used are discarded (as in Kafka)."""
FORGOTTEN_AFTER_INTERVALS: Final = 3
"""Intervals without a request or push after which a client and its metrics are discarded."""

CODECS: Final = (4, 3, 1, 2)
"""Accepted compressions, best first: zstd, lz4, gzip, snappy."""

_LONG_AGO: Final = float("-inf")


class UnknownSubscription(InvalidError):
    """Push for a subscription that has changed; the client must request the new one."""

    code: ClassVar[str] = "unknown_subscription_id"


class UnsupportedCompression(InvalidError):
    code: ClassVar[str] = "unsupported_compression_type"


class TelemetryTooLarge(InvalidError):
    """Push that exceeds `telemetry.max.bytes`."""

    code: ClassVar[str] = "telemetry_too_large"


class TooEarly(RetriableError):
    code: ClassVar[str] = "throttling_quota_exceeded"


class Instance(Struct, kw_only=True):
    instance_id: UUID
    attributes: Attributes
    version: int
    metrics: tuple[str, ...]
    interval_ms: int
    subscription_id: int
    asked_ms: float = _LONG_AGO
    pushed_ms: float = _LONG_AGO
    may_ask: bool = True
    """Whether the client may request its subscription before its interval has passed. It may at
    first, and after a push was rejected because of its subscription or codec."""
    ended: bool = False

    @property
    def used_ms(self) -> float:
        return max(self.asked_ms, self.pushed_ms)

    @property
    def kept_ms(self) -> float:
        """Time in ms without a request or push after which the client is discarded."""
        return self.interval_ms * FORGOTTEN_AFTER_INTERVALS


class Instances:
    """Client instances of a broker, least recently used first."""

    def __init__(self, telemetry_bytes_max: int) -> None:
        self._bytes_max = telemetry_bytes_max
        self._subscriptions: Sequence[Subscription] = ()
        self._version = 0
        self._known: dict[UUID, Instance] = {}

    def __len__(self) -> int:
        return len(self._known)

    def replace(self, subscriptions: Sequence[Subscription]) -> None:
        self._subscriptions = subscriptions
        self._version += 1

    def ask(self, instance_id: UUID, attributes: Attributes, now_ms: float) -> Instance:
        """Return a client's subscription; raises TooEarly."""
        instance = self._instance(instance_id, attributes, now_ms)
        if now_ms - instance.used_ms < instance.interval_ms and not instance.may_ask:
            raise TooEarly(
                f"client {instance_id} requested its subscription again before its interval of"
                f" {instance.interval_ms} ms has passed"
            )
        instance.asked_ms = now_ms
        instance.may_ask = False
        return instance

    def push(
        self,
        instance_id: UUID,
        attributes: Attributes,
        now_ms: float,
        *,
        subscription_id: int,
        codec: int,
        size_bytes: int,
        ends: bool,
    ) -> Instance:
        """Check a push, whose content is not parsed here; raises PenstockError.

        `ends`: it is the client's last push.
        """
        instance = self._instance(instance_id, attributes, now_ms)
        if instance.ended:
            raise BadRequest(f"client {instance_id} pushed again after its terminating push")
        early = instance.asked_ms <= instance.pushed_ms
        if early and now_ms - instance.pushed_ms < instance.interval_ms and not ends:
            raise TooEarly(
                f"client {instance_id} pushed again before its interval of {instance.interval_ms}"
                " ms has passed"
            )
        instance.pushed_ms = now_ms
        instance.ended = ends
        if subscription_id != instance.subscription_id:
            instance.may_ask = True
            raise UnknownSubscription(
                f"client {instance_id} pushed for subscription {subscription_id}, but its"
                f" subscription is {instance.subscription_id}: request it again"
            )
        if codec != 0 and codec not in CODECS:
            instance.may_ask = True
            raise UnsupportedCompression(f"compression {codec} is unknown; must be 0 to 4")
        if size_bytes > self._bytes_max:
            raise TelemetryTooLarge(
                f"client {instance_id} pushed {size_bytes} bytes, more than telemetry.max.bytes ="
                f" {self._bytes_max}"
            )
        return instance

    def _instance(self, instance_id: UUID, attributes: Attributes, now_ms: float) -> Instance:
        known = self._known.pop(instance_id, None)
        if known is None or known.version != self._version:
            known = self._new(instance_id, attributes, known)
        self._known[instance_id] = known
        self._forget(now_ms)
        return known

    def _new(self, instance_id: UUID, attributes: Attributes, before: Instance | None) -> Instance:
        metrics, interval_ms = subscribed_metrics(attributes, self._subscriptions)
        found = Instance(
            instance_id=instance_id,
            attributes=attributes,
            version=self._version,
            metrics=metrics,
            interval_ms=interval_ms,
            subscription_id=subscription_id_of(instance_id, metrics, interval_ms),
        )
        if before is not None:
            found.asked_ms, found.pushed_ms = before.asked_ms, before.pushed_ms
            found.may_ask, found.ended = before.may_ask, before.ended
        return found

    def _forget(self, now_ms: float) -> None:
        """Discard up to two least recently used clients if they are expired or above the limit."""
        for _ in range(2):
            first = next(iter(self._known.values()))
            due = now_ms - first.used_ms > first.kept_ms and first.used_ms != _LONG_AGO
            if not due and len(self._known) <= INSTANCES_MAX:
                return
            del self._known[first.instance_id]
            if not self._known:
                return


def subscription_id_of(instance_id: UUID, metrics: Sequence[str], interval_ms: int) -> int:
    """Return the id of a client's subscription, a signed int32 that is equal at all brokers."""
    subscription = json.dumps([instance_id.hex, list(metrics), interval_ms]).encode()
    return crc32c(subscription) - (1 << 31)
