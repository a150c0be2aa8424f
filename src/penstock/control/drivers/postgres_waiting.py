"""Wait of a starting broker for a database that does not answer, with log lines."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from penstock.base.errors import PenstockError
from penstock.base.pause import pause
from penstock.control.errors import (
    ControlUnavailable,
    DatabaseDamaged,
    DatabaseFull,
    DatabaseRefused,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_LOG_SECONDS: Final = 2.0
LOG_SECONDS: Final = 10.0
"""Interval of the log lines during the wait."""
RETRY_SECONDS: Final = 0.5
LASTING: Final = (DatabaseDamaged, DatabaseFull, DatabaseRefused)
"""Failures that need an administrator, so that waiting is pointless."""


async def when_answering(attempt: Callable[[], Awaitable[T]], *, where: str, seconds: float) -> T:
    """Repeat an attempt until the database answers; return the value of the attempt.

    Raises:
        ControlUnavailable: the failure of the last attempt, after `seconds` without success.
        PenstockError: a failure that waiting cannot end, raised at once.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    failures: deque[PenstockError] = deque(maxlen=1)
    logging_on = loop.create_task(_log_on(where, seconds, failures)) if seconds else None
    try:
        while True:
            try:
                return await attempt()
            except ControlUnavailable as error:
                if isinstance(error, LASTING) or loop.time() + RETRY_SECONDS >= until:
                    if seconds and not isinstance(error, LASTING):
                        error.add_note(
                            f"the broker waited for {seconds:g} s (control.start.timeout.ms)"
                        )
                    raise
                failures.append(error)
            await pause(RETRY_SECONDS)
    finally:
        if logging_on is not None:
            logging_on.cancel()


async def _log_on(where: str, seconds: float, failures: Iterable[PenstockError]) -> None:
    waited = FIRST_LOG_SECONDS
    await pause(FIRST_LOG_SECONDS)
    while True:
        logger.warning(
            "waiting for %s, which has not answered for %d s; the broker stops after %d s"
            " (control.start.timeout.ms)%s", where, waited, seconds,
            "".join([f"; the last attempt: {failure}" for failure in failures]),
        )  # fmt: skip
        await pause(LOG_SECONDS)
        waited += LOG_SECONDS
