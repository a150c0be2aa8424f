"""What one listener needs beside sockets: contexts of TLS, users of a file, what tokens are worth.

Everything that comes from files is made anew when they change (`Reloading`); reading them blocks.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from penstock.base.errors import BugError
from penstock.broker.security.credentials import Lookup, PeerCredentials, UserCredentials
from penstock.security.credentials import HASHES, OAUTHBEARER, PLAIN
from penstock.security.files import Reloading, read_file
from penstock.security.users_file import FileCredentials, parse_users

if TYPE_CHECKING:
    import ssl

    from penstock.base.system import Clock
    from penstock.broker.listeners import Listener
    from penstock.broker.security.settings import SecuritySettings
    from penstock.security.jwks import TokenVerifier
    from penstock.security.peers import PeerSecret
    from penstock.security.sasl import ServerExchange
    from penstock.security.tls import CertificateFacts, ClientAuth, TlsFiles

logger = logging.getLogger(__name__)

USERS_BYTES_MAX: Final = 32 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsContexts:
    """Of one keystore: to be called by, and to call other brokers with."""

    server: ssl.SSLContext
    client: ssl.SSLContext
    certificate: CertificateFacts


class ListenerMaterials:
    """One listener's; making it reads files."""

    def __init__(
        self,
        listener: Listener,
        settings: SecuritySettings,
        *,
        secret: PeerSecret,
        cluster_users: Lookup,
        clock: Clock,
    ) -> None:
        """Raises InvalidError: a file cannot be used."""
        self.listener = listener
        self.settings = settings
        self._clock = clock
        self._secret = secret
        self.tls: Reloading[TlsContexts] | None = None
        if listener.has_tls:
            self.tls = self._tls()
        self.users: Reloading[FileCredentials] | None = None
        self.tokens: TokenVerifier | None = None
        if listener.has_sasl:
            self._load_users()
            if OAUTHBEARER in settings.sasl_enabled_mechanisms:
                self.tokens = self._verifier()
        users = self.users
        file_users: list[Lookup] = [] if users is None else [lambda: users.current]
        self.credentials = UserCredentials([*file_users, cluster_users])
        self._everybody = PeerCredentials(secret, self.credentials)

    def _tls(self) -> Reloading[TlsContexts]:
        from penstock.security.tls import TlsFiles

        settings = self.settings
        files = TlsFiles(
            keystore=settings.ssl_keystore_location,
            key=settings.ssl_key_location,
            key_password=settings.ssl_key_password,
            truststore=settings.ssl_truststore_location,
        )
        return Reloading(files.paths(), lambda: self._contexts(files))

    def _contexts(self, files: TlsFiles) -> TlsContexts:
        from penstock.security.tls import (
            TlsOptions,
            check_keystore,
            client_context,
            server_context,
        )

        settings, now_ms = self.settings, self._clock.now_ms()
        options = TlsOptions(
            protocols=settings.ssl_enabled_protocols, ciphers=settings.ssl_cipher_suites
        )
        client_auth = cast("ClientAuth", settings.ssl_client_auth)
        return TlsContexts(
            server=server_context(files, options, client_auth, now_ms),
            client=client_context(
                files,
                options,
                check_host=bool(settings.ssl_endpoint_identification_algorithm),
                now_ms=now_ms,
            ),
            certificate=check_keystore(files, now_ms),
        )

    def principal_of(self, certificate: bytes) -> str:
        """The name of the principal that a client's certificate (DER) makes it.

        Raises:
            NobodysName: it makes it nobody.
        """
        from penstock.security.certificate_names import PrincipalMapper, distinguished_name

        mapper = PrincipalMapper(self.settings.ssl_principal_mapping_rules)
        return mapper.name(distinguished_name(certificate))

    def _load_users(self) -> None:
        path = self.settings.sasl_users_file
        if path:
            self.users = Reloading(
                [path],
                lambda: parse_users(read_file(path, USERS_BYTES_MAX).decode("utf-8", "replace")),
                USERS_BYTES_MAX,
            )

    def _verifier(self) -> TokenVerifier:
        from penstock.security.jwks import TokenVerifier, loader
        from penstock.security.tokens import TokenRules

        settings = self.settings
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

    def begin(self, mechanism: str, nonce: str) -> ServerExchange:
        """An exchange by one of the listener's mechanisms, or of brokers."""
        if mechanism in HASHES:
            from penstock.security.sasl.scram import ScramServer

            return ScramServer(mechanism, self._everybody, nonce=nonce, secret=self._secret.decoys)
        if mechanism == PLAIN:
            from penstock.security.sasl.plain import PlainServer

            return PlainServer(self.credentials, self._secret.decoys)
        if self.tokens is None:
            raise BugError(f"listener {self.listener.name} has no {mechanism}")
        from penstock.security.sasl.oauthbearer import OAuthBearerServer

        return OAuthBearerServer(self.tokens)

    def reloading(
        self,
    ) -> Iterator[tuple[str, Reloading[TlsContexts] | Reloading[FileCredentials]]]:
        """What comes from files, and a word for it."""
        if self.tls is not None:
            yield "certificates", self.tls
        if self.users is not None:
            yield "users", self.users

    def reload(self, *, look_closely: bool) -> list[str]:
        """Take changed files into use; blocks. What could not be, in sentences."""
        failures = []
        for word, one in self.reloading():
            before = one.failures
            if one.reload(look_closely=look_closely):
                logger.info("listener %s has new %s", self.listener.name, word)
            elif one.failures > before:
                logger.error(
                    "listener %s keeps its former %s: %s", self.listener.name, word, one.failure
                )
            if one.failure:
                failures.append(f"listener {self.listener.name}: {one.failure}")
        if self.tokens is not None and (self.tokens.due or look_closely):
            self.tokens.refresh()
        return failures
