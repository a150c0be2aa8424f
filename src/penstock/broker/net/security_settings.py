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
from penstock.security.listeners.files import ListenerSettings

OVERRIDE: Final = "listener.name."
ONE_FORMAT: Final = NoEffect(why="PEM is the only format")
_PER_LISTENER: Final = ("ssl_", "sasl_", "connections_max_reauth_ms")
CLIENT_AUTH: Final = "ssl.client.auth"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySettings(ListenerSettings):
    """Settings of the encryption and authentication of clients and brokers."""

    inter_broker_listener_name: str = setting(
        "", "Listener for connections between brokers. Empty: the first listener with the protocol"
        " security.inter.broker.protocol.",
    )  # fmt: skip
    security_inter_broker_protocol: str = setting(
        "", "Protocol of connections between brokers if inter.broker.listener.name is empty. If"
        " this setting is empty too, it is the protocol of the first listener. Replication uses TLS"
        " if this protocol does.",
        choices=("", "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    )  # fmt: skip
    sasl_mechanism_inter_broker_protocol: str = setting(
        SCRAM_SHA_512, "SASL mechanism of connections between brokers. Their common secret is in"
        " the control plane.",
        choices=tuple(HASHES),
    )  # fmt: skip
    ssl_keystore_type: str = setting(
        "PEM", "Format of the keystore.", choices=("PEM",), no_effect=ONE_FORMAT
    )
    ssl_truststore_type: str = setting(
        "PEM", "Format of the truststore.", choices=("PEM",), no_effect=ONE_FORMAT
    )
    ssl_endpoint_identification_algorithm: str = setting(
        "https", "https: check that the certificate of another broker is for its host. Empty: do"
        " not check the host.",
        choices=("https", ""),
    )  # fmt: skip
    sasl_enabled_mechanisms: tuple[str, ...] = setting(
        tuple(HASHES), "SASL mechanisms that clients may use.", choices=MECHANISMS
    )
    sasl_users_file: str = setting(
        "", "File of users for SCRAM and PLAIN, in addition to the users in the control plane. Each"
        " line has the form NAME:SCRAM-SHA-512$ITERATIONS:SALT$…. Changes take effect within"
        " seconds.",
    )  # fmt: skip
    connections_max_reauth_ms: int = setting(
        0, "Time after which a client must reauthenticate (KIP-368). 0: only when its token"
        " expires.", 0, LONG_MAX,
    )  # fmt: skip
    delegation_token_secret_key: str = setting(
        "", "Key of the HMACs of delegation tokens, the same on all brokers. Empty: delegation"
        " tokens are disabled.",
        secret=True,
    )  # fmt: skip
    delegation_token_max_lifetime_ms: int = setting(
        604_800_000, "Longest lifetime of a delegation token, up to which it can be renewed.",
        1, LONG_MAX,
    )  # fmt: skip
    delegation_token_expiry_time_ms: int = setting(
        86_400_000, "Time after which a delegation token expires unless it is renewed.",
        1, LONG_MAX,
    )  # fmt: skip
    connection_failed_authentication_delay_ms: int = setting(
        100, "Time from a client's message to the response that its authentication has failed. All"
        " failures take this time, so that it does not reveal their causes.", 0, 10_000,
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
    """Security settings of all listeners, and overrides for single listeners."""

    settings: SecuritySettings = field(default_factory=SecuritySettings)
    overrides: Mapping[str, Mapping[str, object]] = field(default_factory=dict, repr=False)
    """Values that override `settings`, by listener name (as in `listeners`) and setting name."""

    def of(self, listener: str, protocol: str) -> SecuritySettings:
        """Return the settings of one listener; raises InvalidSetting."""
        own = self.overrides.get(listener, {})
        found = replace(self.settings, own)
        if protocol.startswith("SASL_") and CLIENT_AUTH not in own:
            found = dataclasses.replace(found, ssl_client_auth="none")
        return found


def split_override(name: str) -> tuple[str, str] | None:
    """Return the listener and the setting in `listener.name.<listener>.<setting>`.

    None for other names. If a listener's name contains dots, the longest setting name applies.
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
    """Raise InvalidSetting unless `name` is a setting of a listener and may have this value."""
    split = split_override(name)
    if split is None:
        raise InvalidSetting(name, value, "no listener setting has this name")
    parse(by_name(SecuritySettings)[split[1]], value)
