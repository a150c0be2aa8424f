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

PROTOCOLS: Final = ("TLSv1.2", "TLSv1.3")
OVERRIDE: Final = "listener.name."
ONE_FORMAT: Final = NoEffect(why="there is no other one")
_PER_LISTENER: Final = ("ssl_", "sasl_", "connections_max_reauth_ms")
CLIENT_AUTH: Final = "ssl.client.auth"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySettings:
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
    ssl_keystore_location: str = setting(
        "", "File with the private key and the certificate chain, own certificate first. A change"
        " is in force for new connections within seconds; a bad file leaves the former one in use.",
    )  # fmt: skip
    ssl_key_location: str = setting(
        "", "File with the private key alone, where the keystore has only certificates."
    )
    ssl_key_password: str = setting("", "Password of the private key.", secret=True)
    ssl_truststore_type: str = setting(
        "PEM", "Format of the truststore.", choices=("PEM",), no_effect=ONE_FORMAT
    )
    ssl_truststore_location: str = setting(
        "", "File with the certificates of authorities by which clients and other brokers are"
        " verified.",
    )  # fmt: skip
    ssl_client_auth: str = setting(
        "none", "Whether clients show a certificate. A listener with SASL asks for one only if it"
        " says so itself (listener.name.…).", choices=("none", "requested", "required"),
    )  # fmt: skip
    ssl_principal_mapping_rules: str = setting(
        "DEFAULT", "How the name of a client's certificate becomes a principal: rules as"
        " RULE:pattern/replacement/[LU], separated by commas, and DEFAULT for the name as it is.",
    )  # fmt: skip
    ssl_enabled_protocols: tuple[str, ...] = setting(
        PROTOCOLS, "Versions of TLS that are spoken.", choices=PROTOCOLS
    )
    ssl_cipher_suites: str = setting(
        "", "Ciphers of TLS 1.2, in OpenSSL's words; empty is the library's default."
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
    sasl_oauthbearer_jwks_endpoint_url: str = setting(
        "", "Where the public keys of those are who sign tokens: https://… or file:///…"
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = setting(
        3_600_000, "How often these keys are loaded; also when a token names an unknown one.",
        10_000, LONG_MAX,
    )  # fmt: skip
    sasl_oauthbearer_jwks_truststore_location: str = setting(
        "", "File with the authorities of that server; empty is the system's."
    )
    sasl_oauthbearer_expected_issuer: str = setting(
        "", "Who must have issued a token (claim iss); empty is anybody who signs."
    )
    sasl_oauthbearer_expected_audience: tuple[str, ...] = setting(
        (), "Whom a token must be for (claim aud), one of them; empty is anybody."
    )
    sasl_oauthbearer_sub_claim_name: str = setting("sub", "Claim that has the principal's name.")
    sasl_oauthbearer_clock_skew_seconds: int = setting(
        30, "How far the clock of the issuer may differ.", 0, 600,
        name="sasl.oauthbearer.clock.skew.seconds",
    )  # fmt: skip
    sasl_oauthbearer_unsecured_tokens: bool = setting(
        False, "Accept tokens that nobody signed, and no others: for development alone, since"
        " everybody can be anybody.",
    )  # fmt: skip
    connection_failed_authentication_delay_ms: int = setting(
        100, "When a failed authentication is answered, counted from the client's message, so that"
        " all failures take the same time.", 0, 10_000,
    )  # fmt: skip
    authentication_timeout_ms: int = setting(
        10_000, "How long a connection has to authenticate.", 100, INT_MAX
    )
    max_unauthenticated_connections: int = setting(
        2_000, "Connections at a time that have not authenticated yet; more are closed at once.", 1,
        INT_MAX,
    )  # fmt: skip
    max_unauthenticated_connections_per_ip: int = setting(
        256, "The same from one address, which is one /64 of IPv6.", 1, INT_MAX
    )
    max_failed_authentications_per_ip: int = setting(
        600, "Failed authentications and TLS handshakes within a minute from one address, or"
        " one /64 of IPv6; more connections from there are closed at once until the minute is"
        " over.", 1, INT_MAX,
    )  # fmt: skip
    max_tls_handshakes_per_ip: int = setting(
        100, "TLS handshakes a second from one address, or one /64 of IPv6; more wait.", 1, INT_MAX
    )

    def __post_init__(self) -> None:
        if self.ssl_principal_mapping_rules != "DEFAULT":
            from penstock.security.certificate_names import PrincipalMapper

            PrincipalMapper(self.ssl_principal_mapping_rules)
        if not self.sasl_enabled_mechanisms:
            raise InvalidSetting("sasl.enabled.mechanisms", "", "must name at least one mechanism")
        url = self.sasl_oauthbearer_jwks_endpoint_url
        if url:
            from penstock.security.jwks import check_url

            try:
                check_url(url)
            except ValueError as error:
                name = "sasl.oauthbearer.jwks.endpoint.url"
                raise InvalidSetting(name, url, str(error)) from None


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
