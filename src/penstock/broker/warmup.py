"""Preloading of the schemas of common requests after start, one in each turn of the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Final

from penstock.base.errors import PenstockError
from penstock.wire.kafka.apis import BY_NAME
from penstock.wire.kafka.decoder import decoder
from penstock.wire.kafka.encoder import encoder

logger = logging.getLogger(__name__)

USUAL: Final[dict[str, tuple[int, ...]]] = {
    "ApiVersions": (0, 3, 4),
    "Metadata": (12, 13),
    "FindCoordinator": (2, 6),
    "InitProducerId": (4,),
    "ListOffsets": (7,),
    "JoinGroup": (9,),
    "SyncGroup": (5,),
    "Heartbeat": (4,),
    "OffsetCommit": (9,),
    "OffsetFetch": (9,),
    "LeaveGroup": (5,),
}


def warm_up(loop: asyncio.AbstractEventLoop) -> None:
    """Start preloading, and return immediately."""
    _step(loop, _steps())


def _steps() -> Iterator[tuple[str, int]]:
    for name, versions in USUAL.items():
        for version in versions:
            if BY_NAME[name].serves(version):
                yield name, version


def _step(loop: asyncio.AbstractEventLoop, steps: Iterator[tuple[str, int]]) -> None:
    following = next(steps, None)
    if following is None or loop.is_closed():
        return
    name, version = following
    try:
        decoder(name, version, "request")
        encoder(name, version, "response")
    except PenstockError:
        logger.exception("could not load the schema of %s version %d", name, version)
    loop.call_later(0.001, _step, loop, steps)
