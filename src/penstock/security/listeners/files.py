"""Files of one listener: TLS certificates, and keys for the verification of tokens.

They are reloaded when they change (`Reloading`); reading them blocks.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct

from penstock.base.errors import InvalidSetting
from penstock.base.settings import INT_MAX, LONG_MAX, setting
from penstock.base.urls import without_credentials
from penstock.security.addresses import AddressBounds
from penstock.security.files import Reloading
from penstock.security.tls_settings import PROTOCOLS, TlsSettings

if TYPE_CHECKING:
    import ssl

    from penstock.base.system import Clock
    from penstock.security.jwks import TokenVerifier
    from penstock.security.tls import CertificateFacts, ClientAuth, TlsFiles, TlsOptions


logger = logging.getLogger(__name__)


class TlsContexts(Struct, frozen=True, kw_only=True):
    """TLS contexts built from one keystore, and facts about its certificate.

    `client` is for connections that this process opens; None if it opens none.
    """

    server: ssl.SSLContext
    certificate: CertificateFacts
    client: ssl.SSLContext | None = None


class ListenerFiles:
    """Reloadable files of one listener; the constructor reads them."""

    def __init__(
        self,
        name: str,
        settings: ListenerSettings,
        clock: Clock,
        *,
        has_tls: bool,
        has_tokens: bool,
    ) -> None:
        self.name = name
        self._settings = settings
        self._clock = clock
        self.tls: Reloading[TlsContexts] | None = self._tls() if has_tls else None
        self.tokens: TokenVerifier | None = self._verifier() if has_tokens else None
        if self.tokens is not None:
            self.tokens.refresh()

    def _tls(self) -> Reloading[TlsContexts]:
        from penstock.security.tls import TlsOptions, files_of

        settings = self._settings
        files = files_of(settings)
        options = TlsOptions(
            protocols=settings.ssl_enabled_protocols, ciphers=settings.ssl_cipher_suites
        )
        return Reloading(
            files.paths(), lambda: self._contexts(files, options, self._clock.now_ms())
        )

    def _contexts(self, files: TlsFiles, options: TlsOptions, now_ms: int) -> TlsContexts:
        from penstock.security.tls import check_keystore, server_context

        client_auth = cast("ClientAuth", self._settings.ssl_client_auth)
        return TlsContexts(
            server=server_context(files, options, client_auth, now_ms),
            certificate=check_keystore(files, now_ms),
        )

    def principal_of(self, certificate: bytes) -> str:
        """Return the principal's name for a client's certificate (DER).

        Raises:
            NobodysName: no rule maps the certificate to a principal.
        """
        from penstock.security.listeners.certificate_names import (
            PrincipalMapper,
            distinguished_name,
        )

        mapper = PrincipalMapper(self._settings.ssl_principal_mapping_rules)
        return mapper.name(distinguished_name(certificate))

    def _verifier(self) -> TokenVerifier:
        from penstock.security.jwks import TokenVerifier, loader
        from penstock.security.tokens import TokenRules

        settings = self._settings
        url = settings.sasl_oauthbearer_jwks_endpoint_url
        truststore = settings.sasl_oauthbearer_jwks_truststore_location
        rules = TokenRules(
            issuer=settings.sasl_oauthbearer_expected_issuer,
            audiences=settings.sasl_oauthbearer_expected_audience,
            name_claim=settings.sasl_oauthbearer_sub_claim_name,
            clock_skew_seconds=settings.sasl_oauthbearer_clock_skew_seconds,
            unsecured=settings.sasl_oauthbearer_unsecured_tokens,
        )
        return TokenVerifier(
            rules,
            loader(url, truststore, self._clock) if url and not rules.unsecured else None,
            refresh_seconds=settings.sasl_oauthbearer_jwks_endpoint_refresh_ms / 1000,
            clock=self._clock,
        )

    def reloading(self) -> Iterator[tuple[str, Reloading[Any]]]:
        """Yield each group of reloadable files with its name."""
        if self.tls is not None:
            yield "certificates", self.tls

    def reloads(self) -> Iterator[tuple[str, int, int]]:
        """Yield, for each group of files, its name and the numbers of reloads and of failures."""
        for word, one in self.reloading():
            yield word, one.reloads, one.failures
        if self.tokens is not None:
            yield "keys", self.tokens.loads.succeeded, self.tokens.loads.failed

    def reload(self, *, look_closely: bool) -> list[str]:
        """Reload changed files; return a message for each group that failed. This blocks.

        With `look_closely`, files are also read if their times are unchanged.
        """
        failures = []
        for word, one in self.reloading():
            before = one.failures
            if one.reload(look_closely=look_closely):
                logger.info("listener %s: reloaded %s", self.name, word)
            elif one.failures > before:
                logger.error(
                    "listener %s: keeping the previous %s: cannot reload: %s",
                    self.name,
                    word,
                    one.failure,
                )
            if one.failure:
                failures.append(f"listener {self.name}: {one.failure}")
        if self.tokens is not None and (self.tokens.due or look_closely):
            self.tokens.refresh()
        return failures


# Settings of a listener with TLS or tokens, with Kafka's names; all files are in PEM.
#
# A subclass may define a `PREFIX` for the names.
#
# Source: Kafka's `SslConfigs`, `SaslConfigs`; KIP-651, KIP-768.


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSettings(TlsSettings):
    """Settings of a listener: TLS, principals of certificates, tokens, and limits by address."""

    ssl_client_auth: str = setting(
        "none", "Whether clients may (requested) or must (required) present a certificate. For a"
        " broker's listener with SASL, only the listener's own setting applies (listener.name.…).",
        choices=("none", "requested", "required"),
    )  # fmt: skip
    ssl_principal_mapping_rules: str = setting(
        "DEFAULT", "Rules that convert the name in a client's certificate to a principal, separated"
        " by commas: RULE:pattern/replacement/[LU], or DEFAULT for the name unchanged.",
    )  # fmt: skip
    ssl_enabled_protocols: tuple[str, ...] = setting(
        PROTOCOLS, "Accepted versions of TLS.", choices=PROTOCOLS
    )
    ssl_cipher_suites: str = setting(
        "", "Ciphers of TLS 1.2, as an OpenSSL cipher list. If empty, OpenSSL's default applies."
    )
    sasl_oauthbearer_jwks_endpoint_url: str = setting(
        "", "URL of the token issuers' public keys (JWKS): https://… or file:///…"
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = setting(
        3_600_000, "Time in milliseconds after which the keys are loaded again. They are also"
        " loaded when a token names an unknown key.",
        10_000, LONG_MAX,
    )  # fmt: skip
    sasl_oauthbearer_jwks_truststore_location: str = setting(
        "",
        "File with the CA certificates that verify the key server. If empty, the system's apply.",
    )
    sasl_oauthbearer_expected_issuer: str = setting(
        "",
        "Required issuer of tokens (claim iss). If empty, every issuer with a known key is"
        " accepted.",
    )
    sasl_oauthbearer_expected_audience: tuple[str, ...] = setting(
        (),
        "Audiences, one of which a token must have (claim aud). If empty, every audience is"
        " accepted.",
    )
    sasl_oauthbearer_sub_claim_name: str = setting(
        "sub", "Claim of a token that contains the principal's name."
    )
    sasl_oauthbearer_clock_skew_seconds: int = setting(
        30, "Most seconds by which the issuer's clock may differ from the broker's.", 0, 600
    )
    sasl_oauthbearer_unsecured_tokens: bool = setting(
        False, "Whether to accept unsigned tokens, and only these. Use it only for development,"
        " because any client can then claim any name.",
    )  # fmt: skip
    max_unauthenticated_connections: int = setting(
        2_000, "Most connections that have not authenticated yet, including TLS handshakes; further"
        " connections are closed at once.", 1, INT_MAX,
    )  # fmt: skip
    max_unauthenticated_connections_per_ip: int = setting(
        256, "Most connections from one address (for IPv6: one /64 network) that have not"
        " authenticated yet. Further connections are closed at once; an HTTP listener instead ends"
        " the oldest handshake of the address.", 1, INT_MAX,
    )  # fmt: skip
    max_failed_authentications_per_ip: int = setting(
        600, "Most failed authentications and TLS handshakes per minute from one address (for IPv6:"
        " one /64 network). Then connections from the address are closed at once until the minute"
        " is over. Failures over HTTP are counted separately: then requests with credentials get"
        " status 429, and requests without credentials are served.", 1, INT_MAX,
    )  # fmt: skip
    max_tls_handshakes: int = setting(
        400, "Most TLS handshakes that begin per second, evenly spread; further ones wait for at"
        " most 3 seconds.", 1, INT_MAX,
    )  # fmt: skip
    max_tls_handshakes_per_ip: int = setting(
        100,
        "Most TLS handshakes per second from one address (for IPv6: one /64 network); further"
        " ones wait for at most 3 seconds.",
        1,
        INT_MAX,
    )

    def __post_init__(self) -> None:
        prefix = getattr(type(self), "PREFIX", "")
        if self.ssl_principal_mapping_rules != "DEFAULT":
            from penstock.security.listeners.certificate_names import PrincipalMapper

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
        """The limits by address."""
        return AddressBounds(
            waiting=self.max_unauthenticated_connections,
            waiting_per_address=self.max_unauthenticated_connections_per_ip,
            failures_per_address=self.max_failed_authentications_per_ip,
            handshakes=self.max_tls_handshakes,
            handshakes_per_address=self.max_tls_handshakes_per_ip,
        )
