"""Schema registry in a process of its own: control plane, security and HTTP server.

The process has no topics and registers no broker. It reads users and ACLs from the metadata image,
which it loads again when the control plane reports a change, and every `LOOK_SECONDS`.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.apps.process.registry import start_registry
from penstock.apps.process.wiring import (
    audit_log,
    authoriser_of,
    control_of,
    prepare_directory,
)
from penstock.base.errors import PenstockError
from penstock.base.metrics import Registry
from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS, Randomness
from penstock.broker.net.security import ListenerMaterials
from penstock.control import DatabaseLocked
from penstock.control.access import ClusterUsers, bindings_of
from penstock.control.plane import cluster_secret
from penstock.security import AclAuthoriser
from penstock.security.listeners.listener_group import ListenerGroup

if TYPE_CHECKING:
    from penstock.apps.process.configuration import Configuration
    from penstock.broker.net.listeners import Listener
    from penstock.broker.net.security_settings import Security
    from penstock.control import ControlPlane, MetadataImage
    from penstock.registry.server import RegistryServer
    from penstock.security import Authoriser
    from penstock.security.audit import Audit
    from penstock.security.sasl.peers import PeerSecret

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 5.0
"""Longest time between two reads of users and ACLs, if no change is reported."""


class Access:
    """Users and ACLs of the newest metadata image."""

    def __init__(self, control: ControlPlane, authoriser: Authoriser) -> None:
        self._control = control
        self._authoriser = authoriser
        self._image: MetadataImage | None = None
        self._changed = asyncio.Event()
        self._following: asyncio.Task[None] | None = None
        self.users = ClusterUsers(lambda: self._image)

    def notice(self) -> None:
        """Load the image soon; the control plane calls this after a change of metadata."""
        self._changed.set()

    async def start(self) -> None:
        """Load the image, and follow its changes; raises PenstockError."""
        await self._load()
        self._following = asyncio.get_running_loop().create_task(self._follow())

    async def stop(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait({self._following})

    async def _load(self) -> None:
        image = await self._control.image()
        known = self._image
        if isinstance(self._authoriser, AclAuthoriser) and (
            known is None or known.entity_configs is not image.entity_configs
        ):
            self._authoriser.replace(bindings_of(image))
        self._image = image

    async def _follow(self) -> None:
        silent = False
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), LOOK_SECONDS)
            self._changed.clear()
            try:
                await self._load()
                silent = False
            except PenstockError as error:
                if not silent:
                    logger.warning("cannot read changes of users and ACLs: %s", error)
                silent = True


class Listeners:
    """HTTP listeners of the process, with the files of their certificates and users."""

    def __init__(self, security: Security, secret: PeerSecret, users: ClusterUsers) -> None:
        self._security = security
        self._secret = secret
        self._users = users
        self.listener_group = ListenerGroup[ListenerMaterials](
            security.settings.bounds, SYSTEM_CLOCK.monotonic
        )

    async def open_http(self, listener: Listener) -> ListenerMaterials:
        """Load the files of an HTTP interface; raises InvalidError."""

        def load() -> ListenerMaterials:
            return ListenerMaterials(
                listener,
                self._security.of(listener.name, listener.protocol),
                secret=self._secret,
                cluster_users=lambda: self._users,
                clock=SYSTEM_CLOCK,
            )

        return await self.listener_group.open(listener.name, load)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpServices:
    """Services that the registry's HTTP interface uses (`broker/http_security.py`)."""

    authoriser: Authoriser
    audit: Audit
    security_service: Listeners
    randomness: Randomness = SYSTEM_RANDOMNESS


class StandaloneRegistry:
    """Schema registry of this process."""

    def __init__(self, configuration: Configuration) -> None:
        """Create the registry without opening anything, except the file of the audit log.

        Raises:
            AuditFileUnusable: the file of the audit log cannot be opened.
        """
        locations = configuration.locations
        self._configuration = configuration
        self._control = control_of(
            locations.control_url,
            configuration.directory,
            start_seconds=locations.control_start_timeout_ms / 1000,
        )
        self._authoriser = authoriser_of(configuration.broker)
        self._audit = audit_log(configuration.audit, Registry(), {"process": "registry"})
        self._access = Access(self._control, self._authoriser)
        self._listeners: Listeners | None = None
        self._server: RegistryServer | None = None

    async def start(self) -> tuple[str, int]:
        """Open the control plane, listen, and return the bound address.

        The caller calls `stop`, also after an error.

        Raises:
            DatabaseLocked: another process uses the SQLite database.
            PenstockError: the control plane does not answer, a file of the settings cannot be
                loaded, or the address cannot be bound.
        """
        configuration = self._configuration
        if not configuration.locations.control_url:
            prepare_directory(configuration.directory)
        self._control.watch(self._access.notice, lambda _: None)
        try:
            await self._control.start()
        except DatabaseLocked as error:
            error.add_note(
                "stop the broker that uses it, or serve the registry from that broker with"
                " -X registry.enable=true"
            )
            raise
        await self._access.start()
        secret = await cluster_secret(self._control, SYSTEM_RANDOMNESS)
        self._listeners = Listeners(configuration.security, secret, self._access.users)
        services = HttpServices(
            authoriser=self._authoriser,
            audit=self._audit,
            security_service=self._listeners,
        )
        self._server, address = await start_registry(configuration, services, self._control)
        return address

    async def stop(self) -> None:
        """Finish open requests, and close everything."""
        if self._server is not None:
            await self._server.stop()
        if self._listeners is not None:
            await self._listeners.listener_group.close()
        await self._access.stop()
        await self._control.close()
        self._audit.close()
