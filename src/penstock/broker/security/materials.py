"""TLS files, users and token keys of one listener, and its SASL exchanges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from penstock.base.errors import BugError
from penstock.broker.security.credentials import Lookup, PeerCredentials, UserCredentials
from penstock.security.credentials import HASHES, OAUTHBEARER, PLAIN
from penstock.security.files import Reloading, read_file
from penstock.security.listeners.files import ListenerFiles, TlsContexts
from penstock.security.users_file import FileCredentials, parse_users

if TYPE_CHECKING:
    from penstock.base.system import Clock
    from penstock.broker.listeners import Listener
    from penstock.broker.security.settings import SecuritySettings
    from penstock.security.peers import PeerSecret
    from penstock.security.sasl import ServerExchange
    from penstock.security.tls import TlsFiles, TlsOptions

USERS_BYTES_MAX: Final = 32 << 20


class ListenerMaterials(ListenerFiles):
    """Files and credentials with which one listener authenticates its clients."""

    def __init__(
        self,
        listener: Listener,
        settings: SecuritySettings,
        *,
        secret: PeerSecret,
        cluster_users: Lookup,
        clock: Clock,
    ) -> None:
        """Read the files; raises InvalidError if one is invalid."""
        self.listener = listener
        self.settings = settings
        self._secret = secret
        by_tokens = listener.has_sasl and OAUTHBEARER in settings.sasl_enabled_mechanisms
        super().__init__(
            listener.name, settings, clock, has_tls=listener.has_tls, has_tokens=by_tokens
        )
        self.users = self._users() if listener.has_sasl else None
        users = self.users
        file_users: list[Lookup] = [] if users is None else [lambda: users.current]
        self.credentials = UserCredentials([*file_users, cluster_users])
        self._everybody = PeerCredentials(secret, self.credentials)

    def _contexts(self, files: TlsFiles, options: TlsOptions, now_ms: int) -> TlsContexts:
        from penstock.security.tls import client_context

        check_host = bool(self.settings.ssl_endpoint_identification_algorithm)
        client = client_context(files, options, check_host=check_host, now_ms=now_ms)
        return replace(super()._contexts(files, options, now_ms), client=client)

    def _users(self) -> Reloading[FileCredentials] | None:
        path = self.settings.sasl_users_file
        if not path:
            return None
        return Reloading(
            [path],
            lambda: parse_users(read_file(path, USERS_BYTES_MAX)),
            USERS_BYTES_MAX,
        )

    def begin(self, mechanism: str, nonce: str) -> ServerExchange:
        """Begin a SASL exchange by a mechanism that clients of the listener, or brokers, use."""
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

    def reloading(self) -> Iterator[tuple[str, Reloading[Any]]]:
        yield from super().reloading()
        if self.users is not None:
            yield "users", self.users
