"""Producer ids, allocated from the control plane in blocks.

No id is returned twice. The remaining ids of a block are lost when the process ends. The next block
is reserved before the current one is used up, so that producers can start while the control plane
is unavailable (KIP-98).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from penstock.base.errors import PenstockError
from penstock.base.pause import pause

if TYPE_CHECKING:
    from penstock.control import ControlPlane

logger = logging.getLogger(__name__)

PRODUCER_ID_BLOCK: Final = 1000
"""Ids allocated from the control plane at a time, as in Kafka."""

_RETRY_SECONDS: Final = 1.0


class ProducerIds:
    """Allocator of producer ids from reserved blocks. Belongs to the event loop."""

    __slots__ = ("_ahead", "_block", "_control", "_reserving", "_taking")

    def __init__(self, control: ControlPlane) -> None:
        self._control = control
        self._block: Iterator[int] = iter(())
        self._ahead: range | None = None
        self._taking = asyncio.Lock()
        self._reserving: asyncio.Task[None] | None = None

    async def next(self) -> int:
        """Return an unused producer id; raises PenstockError if none can be allocated."""
        while True:
            for producer_id in self._block:
                return producer_id
            if self._ahead is None:
                await self._take()
            else:
                self._block, self._ahead = iter(self._ahead), None
                self.reserve()

    def reserve(self) -> None:
        """Reserve the next block in the background, with retries."""
        if self._reserving is None or self._reserving.done():
            self._reserving = asyncio.get_running_loop().create_task(self._reserve())

    async def stop(self) -> None:
        if self._reserving is not None:
            self._reserving.cancel()
            await asyncio.wait([self._reserving])

    async def _take(self) -> None:
        async with self._taking:
            if self._ahead is None:
                self._ahead = await self._control.allocate_producer_ids(PRODUCER_ID_BLOCK)

    async def _reserve(self) -> None:
        failed = False
        while True:
            try:
                await self._take()
                return
            except PenstockError as error:
                if not failed:
                    logger.warning(
                        "could not reserve the next block of producer ids, retrying: %s", error
                    )
                failed = True
            await pause(_RETRY_SECONDS)
