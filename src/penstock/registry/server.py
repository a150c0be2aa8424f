"""HTTP server of the schema registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.base.http_listener import Bind, HttpListener
from penstock.registry.association_routes import AssociationViews
from penstock.registry.http import RegistryApp
from penstock.registry.routes import (
    CompatibilityViews,
    ConfigViews,
    SchemaViews,
    ServerViews,
)
from penstock.registry.service import SchemaRegistry

if TYPE_CHECKING:
    from penstock.control import ControlPlane
    from penstock.registry.access import RegistryAccess


class RegistryServer:
    """The registry of one process, and its listener."""

    def __init__(
        self,
        control: ControlPlane,
        access: RegistryAccess,
        *,
        version: str,
        registry: SchemaRegistry | None = None,
    ) -> None:
        """`registry` is the one to serve, if other parts of the process use it too."""
        self._control = control
        self._access = access
        self._version = version
        self._listener = HttpListener()
        self.registry = registry or SchemaRegistry(control)

    async def start(
        self, address: tuple[str, int], *, connections_max: int, bind: Bind | None = None
    ) -> tuple[str, int]:
        """Read the registry, listen, and return the bound address.

        Raises:
            PenstockError: the control plane does not answer.
            OSError: the address cannot be bound.
        """
        await self.registry.start()
        cluster_id = (await self._control.image()).cluster_id
        app = RegistryApp(
            self.registry,
            self._access,
            [
                SchemaViews(self.registry),
                CompatibilityViews(self.registry),
                ConfigViews(self.registry),
                AssociationViews(self.registry),
                ServerViews(cluster_id, self._version),
            ],
        )
        return await self._listener.start(app, address, connections_max=connections_max, bind=bind)

    async def stop(self) -> None:
        await self._listener.stop()
        await self.registry.stop()
