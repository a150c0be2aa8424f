"""Subscriptions to client metrics: the metrics that clients push, how often, and which clients.

A subscription is a config resource (CLIENT_METRICS, 16) with a name. It exists if it has a
configuration. A client pushes the metrics of all matching subscriptions, at the shortest of their
intervals.

Source: KIP-714; Kafka's `ClientMetricsConfigs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec import Struct

from penstock.base.errors import InvalidSetting
from penstock.base.settings import SettingInfo, by_name, load, parse, render, setting
from penstock.broker.admin_errors import BadRequest, InvalidConfig
from penstock.broker.configs import (
    Change,
    ConfigEntry,
    ConfigSource,
    ConfigSynonym,
    apply_changes,
    type_of,
)
from penstock.broker.coordination.topic_regex import InvalidRegex, compile_regex

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
