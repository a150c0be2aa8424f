"""Retries of steps whose outcome must be known while a topic is fenced."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from penstock.base.errors import PenstockError
from penstock.base.pause import pause

SWITCH_PAUSE_SECONDS: Final = 0.5
"""Pause before a commit of unknown outcome is retried."""

logger = logging.getLogger(__name__)


async def retry_until_known(
    topic: str,
    attempt: Callable[[], Awaitable[object]],
    *,
    refusals: tuple[type[PenstockError], ...] = (),
) -> None:
    """Repeat an attempt until it succeeds or raises one of `refusals`, which are final."""
    while True:
        try:
            await attempt()
        except refusals:
            raise
        except PenstockError as error:
            logger.warning("topic %s is fenced: %s; retrying", topic, error)
        except Exception:
            logger.exception("topic %s is fenced; retrying", topic)
        else:
            return
        await pause(SWITCH_PAUSE_SECONDS)
