"""Authentication service of the broker's connections.

Slow steps run on two threads, one for passwords (PLAIN) and one for files and token keys. They
block neither each other nor the event loop. The limit of connections that have not authenticated
also limits the queues of these threads.

A failed authentication is answered `connection.failed.authentication.delay.ms` after the client's
message, so that all failures take the same time. Then the connection is closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, Protocol

from msgspec.structs import replace

from penstock.base.errors import BugError, InvalidSetting, PenstockError
from penstock.base.metrics import Metrics, Sample, counters, gauge
from penstock.base.pause import pause
from penstock.broker.net.authentication import Authentication, IllegalState, NotAuthenticated
from penstock.broker.net.connection import RequestContext
from penstock.broker.net.errors import error_of
from penstock.broker.net.listeners import Listener, between_brokers
from penstock.client.security import NO_SECURITY, ClientSecurity
from penstock.security import ANONYMOUS, Credentials, Principal, ScramCredential
from penstock.security.audit import Audit, AuditEvent
from penstock.security.credentials import (
    HASHES,
    OAUTHBEARER,
    PLAIN,
    FileCredentials,
    Shape,
    parse_users,
)
from penstock.security.files import Reloading, read_file
from penstock.security.listeners.files import ListenerFiles, TlsContexts
from penstock.security.listeners.listener_group import ListenerGroup
from penstock.security.sasl import (
    Accepted,
    AuthenticationFailed,
    Challenge,
    Later,
    NobodysName,
    Outcome,
    new_nonce,
)
from penstock.security.sasl.peers import USER, PeerSecret
from penstock.wire.kafka.apis import BY_NAME

if TYPE_CHECKING:
    from penstock.base.buffers import Lease
    from penstock.base.system import Clock, Randomness
    from penstock.broker.net.connection import Connection, ConnectionOwner
    from penstock.broker.net.security_settings import Security, SecuritySettings
    from penstock.security import Credentials
    from penstock.security.sasl import ServerExchange
    from penstock.security.sasl.scram import Tokens
    from penstock.security.tls import TlsFiles, TlsOptions


Lookup = Callable[[], Credentials]
"""Function that returns the current credentials of one source."""


class UserCredentials:
    """Credentials of several sources; the first that knows a user decides."""

    def __init__(self, lookups: Sequence[Lookup]) -> None:
        self._lookups = lookups

    def credential(self, mechanism: str, user: str) -> ScramCredential | None:
        for lookup in self._lookups:
            found = lookup().credential(mechanism, user)
            if found is not None:
                return found
        return None

    def shapes(self, mechanism: str) -> Mapping[Shape, int]:
        counts = Counter[Shape]()
        for lookup in self._lookups:
            counts.update(lookup().shapes(mechanism))
        return counts


class PeerCredentials:
    """Credentials of `users`, and of brokers, which have the reserved user name `USER`."""

    def __init__(self, secret: PeerSecret, users: Credentials) -> None:
        self._secret = secret
        self._users = users

    def credential(self, mechanism: str, user: str) -> ScramCredential | None:
        if user == USER:
            return self._secret.credential(mechanism)
        return self._users.credential(mechanism, user)

    def shapes(self, mechanism: str) -> Mapping[Shape, int]:
        return self._users.shapes(mechanism)


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
        tokens: Tokens | None = None,
    ) -> None:
        """Read the files; raises InvalidError if one is invalid."""
        self.listener = listener
        self.settings = settings
        self._secret = secret
        self._delegation_tokens = tokens
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

            return ScramServer(
                mechanism,
                self._everybody,
                nonce=nonce,
                secret=self._secret.decoys,
                tokens=self._delegation_tokens,
            )
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


# Owners of connections that have not authenticated, or whose session expires.
#
# A connection passes its requests to its owner. `Unauthenticated` owns new connections of a
# listener with authentication. It accepts only requests for authentication, one at a time, in small
# frames. The server owns a connection after it has authenticated, so that requests are not checked
# any more. `Sessions` owns authenticated connections whose session expires, and those that
# reauthenticate. It checks each of their requests.


FRAME_BYTES_MAX: Final = 64 << 10
"""Largest request frame before authentication."""


class Authenticator(Protocol):
    """Part of `SecurityService` that owners of secured connections call."""

    def arrived(self, connection: Connection) -> bool: ...
    def token(self, connection: Connection, token: bytes) -> None: ...
    def gone(self, connection: Connection) -> None: ...


class _Shared:
    """Base of the owners of secured connections.

    It passes a request to the server only if the connection's SASL state permits it. All other
    calls of the connection go to the server unchanged.
    """

    def __init__(self, owner: ConnectionOwner, authenticator: Authenticator) -> None:
        self._owner = owner
        self._authenticator = authenticator
        self.scratch = owner.scratch
        self.pool = owner.pool
        self.now: Callable[[], float] = owner.now
        self.frame_bytes_max = owner.frame_bytes_max
        self.in_flight_max = owner.in_flight_max
        self.checks_requests = True

    @property
    def bytes_in(self) -> int:
        return self._owner.bytes_in

    @bytes_in.setter
    def bytes_in(self, count: int) -> None:
        self._owner.bytes_in = count

    @property
    def bytes_out(self) -> int:
        return self._owner.bytes_out

    @bytes_out.setter
    def bytes_out(self, count: int) -> None:
        self._owner.bytes_out = count

    def connected(self, connection: Connection) -> bool:
        return self._owner.connected(connection) and self._authenticator.arrived(connection)

    def disconnected(self, connection: Connection) -> None:
        self._authenticator.gone(connection)
        self._owner.disconnected(connection)

    def rejected(self, connection: Connection, error: Exception) -> None:
        self._owner.rejected(connection, error)

    def request(self, connection: Connection, frame: memoryview, lease: Lease | None) -> object:
        """Pass a request to the server if the connection may send it; raises NotAuthenticated."""
        authentication = connection.authentication
        if authentication is None:
            raise NotAuthenticated("a request on a connection without authentication state")
        if authentication.raw:
            self._authenticator.token(connection, bytes(frame))
            return None
        authentication.check(int.from_bytes(frame[:2], "big", signed=True), self.now())
        return self._owner.request(connection, frame, lease)


class Unauthenticated(_Shared):
    """Owner of connections before authentication."""

    def __init__(self, owner: ConnectionOwner, authenticator: Authenticator) -> None:
        super().__init__(owner, authenticator)
        self.frame_bytes_max = min(FRAME_BYTES_MAX, owner.frame_bytes_max)
        self.in_flight_max = 1


class Sessions(_Shared):
    """Owner of authenticated connections whose session expires, or that reauthenticate."""


logger = logging.getLogger(__name__)


class SecurityMetrics(Metrics, prefix="penstock_"):
    unauthenticated = gauge(
        "unauthenticated_connections",
        "Kafka connections that have not authenticated yet, and TLS handshakes in progress.",
    )
    authentications: dict[tuple[str, str, str], int] = counters(
        "authentications_total",
        "Authentications of Kafka clients and brokers, including failures and reauthentications.",
        "listener",
        "mechanism",
        "outcome",
    )


class SecurityService:
    """Authentication of all connections of a broker. Belongs to the event loop."""

    def __init__(
        self,
        *,
        security: Security,
        clock: Clock,
        randomness: Randomness,
        audit: Audit,
        cluster_users: Credentials,
        owner: ConnectionOwner,
        tokens: Tokens | None = None,
    ) -> None:
        """`tokens` are the delegation tokens, if they are enabled."""
        settings = security.settings
        self._tokens = tokens
        self._security = security
        self._clock = clock
        self._randomness = randomness
        self._audit = audit
        self._settings = settings
        self._owner = owner
        self.listener_group = ListenerGroup[ListenerMaterials](settings.bounds, lambda: owner.now())
        self.limits = self.listener_group.limits
        self.listeners = self.listener_group.listeners
        self.cluster_users = cluster_users
        """Credentials of the users in the control plane."""
        self.secret: PeerSecret | None = None
        """Secret of the cluster's brokers, once the control plane has returned it."""
        self.between_brokers = ""
        """Name of the inter-broker listener."""
        self._unauthenticated: dict[str, Unauthenticated] = {}
        self._sessions: Sessions | None = None
        self._waiting: dict[Connection, float] = {}
        """Deadlines of connections that have not authenticated."""
        self._passwords = ThreadPoolExecutor(1, thread_name_prefix="passwords")
        self._metrics = SecurityMetrics()

    # Start and stop

    async def open(self, listeners: Sequence[Listener], secret: PeerSecret) -> None:
        """Load the files of the listeners; raises InvalidError."""
        self.secret = secret
        settings = self._settings
        self.between_brokers = between_brokers(
            listeners, settings.inter_broker_listener_name, settings.security_inter_broker_protocol
        ).name
        self._sessions = Sessions(self._owner, self)
        for listener in listeners:
            await self._load(listener, secret)
            self._unauthenticated[listener.name] = Unauthenticated(self._owner, self)

    async def open_http(self, listener: Listener) -> ListenerMaterials:
        """Load the files of an HTTP interface; raises InvalidError."""
        if self.secret is None or listener.name in self._unauthenticated:
            raise InvalidSetting(
                "listeners",
                listener.name,
                "is reserved for an HTTP interface; give the listener another name",
            )
        return await self._load(listener, self.secret)

    async def _load(self, listener: Listener, secret: PeerSecret) -> ListenerMaterials:
        def load() -> ListenerMaterials:
            for mechanism in HASHES:
                secret.credential(mechanism)  # computed slowly the first time
            return ListenerMaterials(
                listener,
                self._security.of(listener.name, listener.protocol),
                secret=secret,
                cluster_users=lambda: self.cluster_users,
                clock=self._clock,
                tokens=self._tokens,
            )

        return await self.listener_group.open(listener.name, load)

    async def close(self) -> None:
        await self.listener_group.close()
        self._passwords.shutdown(wait=False, cancel_futures=True)

    # Other brokers

    def as_client(self) -> ClientSecurity:
        """Return the security settings for this broker's connections to other brokers."""
        secret = self.secret
        if secret is None:
            return NO_SECURITY
        contexts = self.tls_of(self.between_brokers)
        mechanism = self._settings.sasl_mechanism_inter_broker_protocol
        return ClientSecurity(
            tls=None if contexts is None else contexts.current.client,
            begin=lambda: (mechanism, secret.client(mechanism, self._nonce())),
        )

    def _nonce(self) -> str:
        return new_nonce(self._randomness)

    # Connections (`unauthenticated.Authenticator`)

    def owner_of(self, listener: str) -> ConnectionOwner:
        """Return the owner of a listener's new connections: the server if it is not secured."""
        unauthenticated = self._unauthenticated.get(listener)
        return (
            self._owner
            if unauthenticated is None or not self.listeners[listener].listener.secured
            else unauthenticated
        )

    def tls_of(self, listener: str) -> Reloading[TlsContexts] | None:
        found = self.listeners.get(listener)
        return None if found is None else found.tls

    def arrived(self, connection: Connection) -> bool:
        made = self.listeners[connection.listener]
        if not made.listener.has_tls and not self.listener_group.admitted(
            connection.listener, connection.client_host
        ):
            return False
        if made.listener.has_sasl:
            self._wait(
                connection, self._authentication(made, made.settings.sasl_enabled_mechanisms)
            )
            return True
        return self._accept_certificate(connection, made)

    def _authentication(
        self, made: ListenerMaterials, mechanisms: Sequence[str], *, brokers_only: bool = False
    ) -> Authentication:
        def begin(mechanism: str) -> ServerExchange:
            return made.begin(mechanism, self._nonce())

        return Authentication(mechanisms, begin, self._owner.now(), brokers_only=brokers_only)

    def _wait(self, connection: Connection, authentication: Authentication) -> None:
        connection.authentication = authentication
        seconds = self._settings.authentication_timeout_ms / 1000
        self._waiting[connection] = self._owner.now() + seconds
        self.limits.entered(connection.client_host)

    def gone(self, connection: Connection) -> None:
        """Stop tracking a connection that has ended or authenticated."""
        if self._waiting.pop(connection, None) is not None:
            self.limits.left(connection.client_host)

    def end_overdue(self, now: float) -> None:
        """Close connections that have not authenticated in `authentication.timeout.ms`."""
        overdue = [waiting for waiting, until in self._waiting.items() if until < now]
        for connection in overdue:
            if connection.closing:  # its peer does not read the response
                connection.abort()
                continue
            self._count(connection, "", "timeout")
            self.limits.failed(connection.client_host, now)
            connection.close("no authentication within authentication.timeout.ms")

    def _accept_certificate(self, connection: Connection, made: ListenerMaterials) -> bool:
        certificate = connection.peer_certificate()
        principal = ANONYMOUS
        if certificate is not None:
            try:
                principal = Principal("User", made.principal_of(certificate))
            except NobodysName as error:
                self.limits.failed(connection.client_host, self._owner.now())
                self._record(connection, "SSL", "failure", "", str(error))
                return False
        connection.principal = principal
        connection.enter(self._owner)
        self._record(connection, "SSL", "success", str(principal))
        return True

    # Requests (`handlers/security.py`)

    def handshake(
        self, connection: Connection, mechanism: str, *, raw: bool = False
    ) -> Mapping[str, Any]:
        """Return the response to SaslHandshake; raises IllegalState.

        With `raw`, the client sends raw tokens, instead of requests, until it has authenticated.
        """
        authentication = connection.authentication
        if authentication is None:
            authentication = self._authentication_of_brokers(connection, mechanism)
        try:
            authentication.handshake(mechanism, self._owner.now(), raw=raw)
        except IllegalState:
            raise
        except PenstockError as error:
            number, _ = error_of(error)
            self._refuse(connection, authentication, mechanism, "", str(error))
            return {"error_code": number, "mechanisms": authentication.mechanisms}
        if self._sessions is not None and authentication.principal is not None:
            connection.enter(self._sessions)
        return {"error_code": 0, "mechanisms": authentication.mechanisms}

    def _authentication_of_brokers(self, connection: Connection, mechanism: str) -> Authentication:
        """Begin the authentication of another broker on a listener without SASL."""
        made = self.listeners.get(connection.listener)
        if made is None or self._sessions is None or mechanism not in HASHES:
            raise IllegalState(f"listener {connection.listener} has no SASL")
        authentication = self._authentication(made, tuple(HASHES), brokers_only=True)
        connection.enter(self._sessions)
        self._wait(connection, authentication)
        return authentication

    def token(self, connection: Connection, token: bytes) -> None:
        """Respond to a raw token with a raw token, or close the connection."""
        context = RequestContext(
            api=BY_NAME["SaslAuthenticate"], version=0, correlation_id=0, client_id=None,
            connection=connection, started=self._owner.now(),
        )  # fmt: skip
        connection.opened(context)
        exchange = self._respond(context, token)
        connection.waits_for(asyncio.get_running_loop().create_task(exchange))

    async def _respond(self, context: RequestContext, token: bytes) -> None:
        connection = context.connection
        try:
            answer = await self.authenticate(connection, token, context.started)
        except Exception as error:
            if not isinstance(error, PenstockError):
                logger.exception("authentication of %s failed", connection.client_host)
            connection.close(str(error))
            return
        if not answer["error_code"]:  # after an error, `_refuse` closes the connection
            data = answer["auth_bytes"]
            context.reply([len(data).to_bytes(4, "big") + data])

    async def authenticate(
        self, connection: Connection, message: bytes, started: float
    ) -> Mapping[str, Any]:
        """Return the response to SaslAuthenticate; raises IllegalState."""
        authentication = connection.authentication
        if authentication is None:
            raise IllegalState("SaslAuthenticate requires a SaslHandshake first")
        try:
            outcome = await self._outcome(authentication, message)
            if isinstance(outcome, Challenge):
                return {"error_code": 0, "auth_bytes": outcome.data}
            lifetime_ms = self._accept(connection, authentication, outcome)
        except AuthenticationFailed as error:
            await self._delay(started)
            mechanism = authentication.mechanism
            self._refuse(connection, authentication, mechanism, error.user or "", error.reason)
            number, text = error_of(error)
            return {"error_code": number, "error_message": text, "auth_bytes": b""}
        return {"error_code": 0, "auth_bytes": outcome.data, "session_lifetime": lifetime_ms}

    async def _outcome(self, authentication: Authentication, message: bytes) -> Outcome:
        found = authentication.step(message)
        if isinstance(found, Later):
            pool = (
                self.listener_group.thread
                if authentication.mechanism == OAUTHBEARER
                else self._passwords
            )
            return await asyncio.get_running_loop().run_in_executor(pool, found.find)
        return found

    def _accept(
        self, connection: Connection, authentication: Authentication, accepted: Accepted
    ) -> int:
        again = authentication.principal is not None
        lifetime_ms, principal = authentication.accept(
            accepted,
            self._owner.now(),
            self._clock.now_ms(),
            self.listeners[connection.listener].settings.connections_max_reauth_ms,
        )
        connection.principal = principal
        ends = authentication.expires != float("inf")
        connection.enter(self._sessions if ends and self._sessions is not None else self._owner)
        self.gone(connection)
        outcome = "reauthenticated" if again else "success"
        self._count(connection, authentication.mechanism, outcome)
        self._record(connection, authentication.mechanism, "success", str(principal))
        return lifetime_ms

    async def _delay(self, started: float) -> None:
        delay = self._settings.connection_failed_authentication_delay_ms / 1000
        await pause(started + delay - self._owner.now())

    def _refuse(
        self,
        connection: Connection,
        authentication: Authentication,
        mechanism: str,
        user: str,
        reason: str,
    ) -> None:
        """Record a failed authentication, and close the connection after the response."""
        authentication.fail()
        self.limits.failed(connection.client_host, self._owner.now())
        known = mechanism if mechanism in authentication.mechanisms else ""
        self._count(connection, known, "failure")
        self._record(connection, known, "failure", f"User:{user}" if user else "", reason)
        # The response is written in this turn of the loop, before the close.
        loop = asyncio.get_running_loop()
        loop.call_soon(connection.close, "authentication failed")

    # Metrics and audit

    def _count(self, connection: Connection, mechanism: str, outcome: str) -> None:
        self._metrics.authentications[connection.listener, mechanism, outcome] += 1

    def _record(
        self,
        connection: Connection,
        mechanism: str,
        outcome: Any,
        principal: str,
        reason: str = "",
    ) -> None:
        if mechanism == "SSL":
            self._count(connection, mechanism, outcome)
        self._audit.record(
            AuditEvent(
                event="authentication",
                outcome=outcome,
                principal=principal,
                mechanism=mechanism,
                address=connection.client_host,
                listener=connection.listener,
                reason=reason,
            )
        )

    def samples(self) -> Iterator[Sample]:
        self._metrics.unauthenticated = self.limits.waiting
        yield from self._metrics.samples()
        yield from self.listener_group.samples()
