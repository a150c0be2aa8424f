"""Settings of encrypted or authenticated listeners, under Kafka's names.

`listener.name.<name>.<setting>`, with the listener's name in lower case, overrides most of them for
one listener. Files are PEM.

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
ONE_FORMAT: Final = NoEffect(why="PEM is the only format")
_PER_LISTENER: Final = ("ssl_", "sasl_", "connections_max_reauth_ms")
CLIENT_AUTH: Final = "ssl.client.auth"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySettings(ListenerSettings):
    """Settings of the encryption and authentication of clients and brokers."""

    inter_broker_listener_name: str = setting(
        "", "Listener for connections between brokers; empty: the first one whose protocol is"
        " security.inter.broker.protocol.",
    )  # fmt: skip
    security_inter_broker_protocol: str = setting(
        "", "Protocol between brokers if inter.broker.listener.name is empty; empty: that of the"
        " first listener. Replication links use TLS if this protocol does.",
        choices=("", "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    )  # fmt: skip
    sasl_mechanism_inter_broker_protocol: str = setting(
        SCRAM_SHA_512, "SASL mechanism between brokers, with a secret from the control plane.",
        choices=tuple(HASHES),
    )  # fmt: skip
    ssl_keystore_type: str = setting(
        "PEM", "Format of the keystore.", choices=("PEM",), no_effect=ONE_FORMAT
    )
    ssl_truststore_type: str = setting(
        "PEM", "Format of the truststore.", choices=("PEM",), no_effect=ONE_FORMAT
    )
    ssl_endpoint_identification_algorithm: str = setting(
        "https", "Check that another broker's certificate is for its host; empty: any host.",
        choices=("https", ""),
    )  # fmt: skip
    sasl_enabled_mechanisms: tuple[str, ...] = setting(
        tuple(HASHES), "Mechanisms of listeners with SASL.", choices=MECHANISMS
    )
    sasl_users_file: str = setting(
        "", "File of users for SCRAM and PLAIN besides the cluster's, one per line as"
        " NAME:SCRAM-SHA-512$ITERATIONS:SALT$…. Changes take effect within seconds.",
    )  # fmt: skip
    connections_max_reauth_ms: int = setting(
        0, "Time after which a client must reauthenticate (KIP-368); 0: only when its token"
        " expires.", 0, LONG_MAX,
    )  # fmt: skip
    connection_failed_authentication_delay_ms: int = setting(
        100, "Delay of the response to a failed authentication, from the client's message on, so"
        " that all failures take the same time.", 0, 10_000,
    )  # fmt: skip
    authentication_timeout_ms: int = setting(
        10_000, "Time limit for a connection to authenticate.", 100, INT_MAX
    )

    def __post_init__(self) -> None:
        ListenerSettings.__post_init__(self)
        if not self.sasl_enabled_mechanisms:
            raise InvalidSetting("sasl.enabled.mechanisms", "", "must name at least one mechanism")


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """Settings of all listeners, with the overrides of single listeners."""

    settings: SecuritySettings = field(default_factory=SecuritySettings)
    overrides: Mapping[str, Mapping[str, object]] = field(default_factory=dict, repr=False)
    """Values by listener name, as in `listeners`, and setting name."""

    def of(self, listener: str, protocol: str) -> SecuritySettings:
        """Return the settings of one listener; raises InvalidSetting."""
        own = self.overrides.get(listener, {})
        found = replace(self.settings, own)
        if protocol.startswith("SASL_") and CLIENT_AUTH not in own:
            found = dataclasses.replace(found, ssl_client_auth="none")
        return found


def split_override(name: str) -> tuple[str, str] | None:
    """Split `listener.name.<listener>.<setting>` at the longest setting; None for other names."""
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
    """Raise InvalidSetting unless a listener's setting may have this value."""
    split = split_override(name)
    if split is None:
        raise InvalidSetting(name, value, "no listener setting has this name")
    parse(by_name(SecuritySettings)[split[1]], value)
