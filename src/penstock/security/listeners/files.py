"""Files of one listener: TLS certificates, and keys for the verification of tokens.

They are reloaded when they change (`Reloading`); reading them blocks.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct

from penstock.security.files import Reloading

if TYPE_CHECKING:
    import ssl

    from penstock.base.system import Clock
    from penstock.security.jwks import TokenVerifier
    from penstock.security.listeners.settings import ListenerSettings
    from penstock.security.tls import CertificateFacts, ClientAuth, TlsFiles, TlsOptions

logger = logging.getLogger(__name__)


class TlsContexts(Struct, frozen=True, kw_only=True):
    """TLS contexts of one keystore: for the server and, if needed, for the client side."""

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
        from penstock.security.certificate_names import PrincipalMapper, distinguished_name

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
