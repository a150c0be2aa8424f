"""Settings of a listener with TLS or tokens, under Kafka's names; files are PEM.

A class that inherits them may have a `PREFIX`.

Source: Kafka's `SslConfigs`, `SaslConfigs`; KIP-651, KIP-768.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.base.errors import InvalidSetting
from penstock.base.settings import INT_MAX, LONG_MAX, setting
from penstock.base.urls import without_credentials
from penstock.security.addresses import AddressBounds

PROTOCOLS: Final = ("TLSv1.2", "TLSv1.3")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSettings:
    """TLS of a listener, principals of certificates and tokens, and limits by address."""

    ssl_keystore_location: str = setting(
        "", "File with the private key and the certificate chain, own certificate first. A change"
        " is in force for new connections within seconds; a bad file leaves the former one in use.",
    )  # fmt: skip
    ssl_key_location: str = setting(
        "", "File with the private key alone, where the keystore has only certificates."
    )
    ssl_key_password: str = setting("", "Password of the private key.", secret=True)
    ssl_truststore_location: str = setting(
        "", "File with the certificates of authorities by which clients and other brokers are"
        " verified.",
    )  # fmt: skip
    ssl_client_auth: str = setting(
        "none", "Whether clients present a certificate. For a broker's listener with SASL, only the"
        " listener's own setting applies (listener.name.…).",
        choices=("none", "requested", "required"),
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
    sasl_oauthbearer_jwks_endpoint_url: str = setting(
        "", "Location of the public keys of token issuers: https://… or file:///…"
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
        30, "How far the clock of the issuer may differ.", 0, 600
    )
    sasl_oauthbearer_unsecured_tokens: bool = setting(
        False, "Accept unsigned tokens, and no others: for development alone, since"
        " everybody can be anybody.",
    )  # fmt: skip
    max_unauthenticated_connections: int = setting(
        2_000, "Connections at a time that have not authenticated yet, TLS handshakes among them;"
        " more are closed at once.", 1, INT_MAX,
    )  # fmt: skip
    max_unauthenticated_connections_per_ip: int = setting(
        256, "The same from one address, which is one /64 of IPv6. Over HTTP one more ends the"
        " oldest handshake of its address.", 1, INT_MAX,
    )  # fmt: skip
    max_failed_authentications_per_ip: int = setting(
        600, "Failed authentications and TLS handshakes within a minute from one address, or"
        " one /64 of IPv6; more connections from there are closed at once until the minute is"
        " over. Over HTTP failures are counted apart: requests with credentials are answered 429"
        " then, those without are served.", 1, INT_MAX,
    )  # fmt: skip
    max_tls_handshakes: int = setting(
        400, "TLS handshakes that begin within a second, one after the other; more wait, for 3 s at"
        " most.", 1, INT_MAX,
    )  # fmt: skip
    max_tls_handshakes_per_ip: int = setting(
        100, "TLS handshakes a second from one address, or one /64 of IPv6; more wait.", 1, INT_MAX
    )

    def __post_init__(self) -> None:
        prefix = getattr(type(self), "PREFIX", "")
        if self.ssl_principal_mapping_rules != "DEFAULT":
            from penstock.security.certificate_names import PrincipalMapper

            try:
                PrincipalMapper(self.ssl_principal_mapping_rules)
            except InvalidSetting as error:
                raise InvalidSetting(prefix + error.name, error.value, error.reason) from None
        url = self.sasl_oauthbearer_jwks_endpoint_url
        if url:
            from penstock.security.jwks import check_url

            try:
                check_url(url)
            except ValueError as error:
                name = f"{prefix}sasl.oauthbearer.jwks.endpoint.url"
                raise InvalidSetting(name, without_credentials(url), str(error)) from None

    @property
    def bounds(self) -> AddressBounds:
        """Return the limits by address."""
        return AddressBounds(
            waiting=self.max_unauthenticated_connections,
            waiting_per_address=self.max_unauthenticated_connections_per_ip,
            failures_per_address=self.max_failed_authentications_per_ip,
            handshakes=self.max_tls_handshakes,
            handshakes_per_address=self.max_tls_handshakes_per_ip,
        )
