"""Settings of listeners that are encrypted or authenticated, under Kafka's names.

Most of them may differ between listeners: `listener.name.<name>.<setting>`, with the listener's
name in small letters, wins over the setting alone. Files are PEM.

Source: Kafka's `BrokerSecurityConfigs`, `SslConfigs`, `SaslConfigs`; KIP-103, KIP-651.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock.base.errors import InvalidSetting
from penstock.base.settings import INT_MAX, LONG_MAX, NoEffect, by_name, parse, replace, setting
from penstock.security.credentials import HASHES, MECHANISMS, SCRAM_SHA_512
from penstock.security.listeners.settings import ListenerSettings

OVERRIDE: Final = "listener.name."
ONE_FORMAT: Final = NoEffect(why="there is no other one")
_PER_LISTENER: Final = ("ssl_", "sasl_", "connections_max_reauth_ms")
CLIENT_AUTH: Final = "ssl.client.auth"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySettings(ListenerSettings):
    """How listeners are encrypted, and how clients and brokers prove who they are."""

    inter_broker_listener_name: str = setting(
        "", "Listener by which brokers call each other; empty is the first one whose protocol is"
        " security.inter.broker.protocol.",
    )  # fmt: skip
    security_inter_broker_protocol: str = setting(
        "", "Protocol between brokers where no listener is named; empty is that of the first"
        " listener. Links of replicated partitions are encrypted if it is.",
        choices=("", "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    )  # fmt: skip
    sasl_mechanism_inter_broker_protocol: str = setting(
        SCRAM_SHA_512, "How brokers prove to each other who they are, by a secret that they have"
        " from the control plane.", choices=tuple(HASHES),
    )  # fmt: skip
    ssl_keystore_type: str = setting(
        "PEM", "Format of the keystore.", choices=("PEM",), no_effect=ONE_FORMAT
    )
    ssl_truststore_type: str = setting(
        "PEM", "Format of the truststore.", choices=("PEM",), no_effect=ONE_FORMAT
    )
    ssl_endpoint_identification_algorithm: str = setting(
        "https", "Whether another broker's certificate must be for its host; empty: any host.",
        choices=("https", ""),
    )  # fmt: skip
    sasl_enabled_mechanisms: tuple[str, ...] = setting(
        tuple(HASHES), "Mechanisms of listeners with SASL.", choices=MECHANISMS
    )
    sasl_users_file: str = setting(
        "", "File of users, one a line as NAME:SCRAM-SHA-512$ITERATIONS:SALT$…, beside those of"
        " the cluster; for SCRAM and PLAIN. A change is in force within seconds.",
    )  # fmt: skip
    connections_max_reauth_ms: int = setting(
        0, "How long a client stays authenticated before it has to prove anew who it is (KIP-368);"
        " 0 asks only those whose token has ended.", 0, LONG_MAX,
    )  # fmt: skip
    connection_failed_authentication_delay_ms: int = setting(
        100, "When a failed authentication is answered, counted from the client's message, so that"
        " all failures take the same time.", 0, 10_000,
    )  # fmt: skip
    authentication_timeout_ms: int = setting(
        10_000, "How long a connection has to authenticate.", 100, INT_MAX
    )

    def __post_init__(self) -> None:
        ListenerSettings.__post_init__(self)
        if not self.sasl_enabled_mechanisms:
            raise InvalidSetting("sasl.enabled.mechanisms", "", "must name at least one mechanism")


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """The settings of all listeners: what each has, and what some have for themselves."""

    settings: SecuritySettings = field(default_factory=SecuritySettings)
    overrides: Mapping[str, Mapping[str, object]] = field(default_factory=dict, repr=False)
    """By the listener's name, as in `listeners`, and the setting's name."""

    def of(self, listener: str, protocol: str) -> SecuritySettings:
        """The settings of one listener.

        Raises:
            InvalidSetting: two of them do not go together.
        """
        own = self.overrides.get(listener, {})
        found = replace(self.settings, own)
        if protocol.startswith("SASL_") and CLIENT_AUTH not in own:
            found = dataclasses.replace(found, ssl_client_auth="none")
        return found


def split_override(name: str) -> tuple[str, str] | None:
    """The listener and the setting of a name as `listener.name.<listener>.<setting>`, if it is one.

    Listeners' names may have dots: the longest setting that a name ends in is meant.
    """
    if not name.startswith(OVERRIDE):
        return None
    words = name.removeprefix(OVERRIDE).split(".")
    for place in range(1, len(words)):
        rest = ".".join(words[place:])
        info = by_name(SecuritySettings).get(rest)
        if info is not None and info.attribute.startswith(_PER_LISTENER):
            return ".".join(words[:place]).upper(), rest
    return None


def check_override(name: str, value: object) -> None:
    """Raise InvalidSetting unless a setting of one listener may have this value."""
    split = split_override(name)
    if split is None:
        raise InvalidSetting(name, value, "there is no setting of this name for a listener")
    parse(by_name(SecuritySettings)[split[1]], value)
