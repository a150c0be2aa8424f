"""Base class of the coordinators: a core and its runtime, for the keys that this broker owns."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.broker.coordination.ownership import Ownership
from penstock.broker.coordination.runtime import Runtime
from penstock.broker.coordination.saving import Saver

if TYPE_CHECKING:
    from penstock.base.system import Clock
    from penstock.broker.coordination.core import Act, Core
    from penstock.broker.coordination.loading import Source
    from penstock.broker.coordination.ownership import Cluster
    from penstock.broker.coordination.saving import RecordPlane


class Coordinator:
    """Coordinator of one kind of keys: group ids, or transactional ids. Runs on the event loop."""

    def __init__(
        self,
        kind: str,
        make_core: Callable[[], Core],
        *,
        node_id: int,
        cluster: Cluster,
        control: RecordPlane,
        source: Source,
        clock: Clock,
        loaded: Callable[[], None],
        act: Callable[[Act], None] | None = None,
    ) -> None:
        self.ownership = Ownership(node_id, cluster)
        self.check_owner = self.ownership.check
        self._saver = Saver(control, self.ownership)
        self.runtime = Runtime(
            kind,
            make_core,
            source=source,
            saver=self._saver,
            ownership=self.ownership,
            clock=clock,
            loaded=loaded,
            act=act,
        )

    def image_changed(self) -> None:
        self.runtime.image_changed()

    def start(self) -> None:
        self.runtime.start()

    async def stop(self) -> None:
        """Refuse waiting requests, finish saves under way, and cancel timers. Idempotent."""
        await self.runtime.stop()
        await self._saver.finish()

    @property
    def suspended(self) -> bool:
        return self.runtime.suspended

    def suspend(self) -> None:
        """Refuse requests until `resume`.

        Called while this broker cannot renew its registration: other brokers may own its keys now.
        """
        self.runtime.suspended = True

    def resume(self) -> None:
        self.runtime.suspended = False
