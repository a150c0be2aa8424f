"""TLS, authentication and authorisation of an HTTP interface of a broker or a registry."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar
from urllib.parse import urlsplit

from penstock.base.http_listener import Bind
from penstock.security.credentials import HASHES, PLAIN
from penstock.security.http_credentials import PasswordVerifier, names_of_listener
from penstock.security.listeners.http_authentication import (
    Authentication,
    Identities,
    Shown,
    Somebody,
)
from penstock.security.listeners.listener_group import Gate

if TYPE_CHECKING:
    from starlette.requests import Request

    from penstock.base.system import Randomness
    from penstock.broker.configuration.settings import BrokerSettings
    from penstock.broker.net.listeners import Listener
    from penstock.broker.net.security import ListenerMaterials
    from penstock.security import Authoriser
    from penstock.security.audit import Audit
    from penstock.security.listeners.listener_group import ListenerGroup

K = TypeVar("K", bound=Somebody)


class HttpListeners(Protocol):
    """Port to the listeners of a process."""

    listener_group: ListenerGroup[ListenerMaterials]

    async def open_http(self, listener: Listener) -> ListenerMaterials:
        """Load the files of an HTTP interface; raises InvalidError."""
        ...


class HttpProcess(Protocol):
    """Port to the process that has an HTTP interface: a broker, or a schema registry."""

    @property
    def authoriser(self) -> Authoriser: ...
    @property
    def audit(self) -> Audit: ...
    @property
    def randomness(self) -> Randomness: ...
    @property
    def security_service(self) -> HttpListeners: ...


class HttpSecurity:
    """Security of one HTTP listener, with the users, tokens and certificates of its settings."""

    def __init__(
        self, process: HttpProcess, settings: BrokerSettings, listener: Listener, setting: str
    ) -> None:
        """`setting` names the listener in the audit log."""
        self._process = process
        self._settings = settings
        self._setting = setting
        self._materials: ListenerMaterials | None = None
        self.listener = listener
        self.authoriser = process.authoriser
        self.audit = process.audit

    @property
    def hosts(self) -> frozenset[str]:
        return names_of(self._settings, self.listener.host)

    async def open(self) -> Bind | None:
        """Load the listener's files; return the function that binds it, or None without TLS.

        Raises:
            InvalidSetting, InvalidError: a file cannot be loaded, or the name is taken.
        """
        service = self._process.security_service
        self._materials = await service.open_http(self.listener)
        return service.listener_group.http(self.listener.name)

    def authentication(self, known: Callable[[Request, Shown], K]) -> Authentication[K]:
        """Return the authenticator of requests; `known` converts its result."""
        process = self._process
        return Authentication(
            self._setting,
            self._identities,
            known,
            PasswordVerifier(process.randomness),
            process.audit,
            Gate(process.security_service.listener_group, self.listener.name),
            plain_loopback=self._settings.admin_basic_loopback,
        )

    def _identities(self) -> Identities:
        made = self._materials
        if made is None:
            return Identities()
        passwords = {*made.settings.sasl_enabled_mechanisms} & {PLAIN, *HASHES}
        return Identities(
            credentials=made.credentials if passwords else None,
            tokens=made.tokens,
            name_of=made.principal_of,
        )


def names_of(settings: BrokerSettings, host: str) -> frozenset[str]:
    """Return the host names that are valid in the Host header of requests that change state.

    `host` is that of the listener.
    """
    advertised = [
        urlsplit(advertised_listener).hostname or ""
        for advertised_listener in settings.advertised_listeners
    ]
    return names_of_listener(host, [*advertised, *settings.admin_hosts])
