"""Findings, and how checks are run: side by side, each on a thread that nobody waits for too long.

What hangs in the kernel (a file system that is gone, a resolver) cannot be ended: its finding says
so, and its thread ends with the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from penstock.base.errors import PenstockError
from penstock.objects.threads import Threads

CHECK_SECONDS: Final = 15.0
"""How long one check may take; those that ask over a network give up earlier."""

SKEW_WARN_SECONDS: Final = 2.0
SKEW_CURE: Final = "synchronise the clocks (chrony, systemd-timesyncd)"

CHECKS_AT_ONCE_MAX: Final = 256
CHECKS_MAX: Final = 10_000

Status = Literal["ok", "warn", "fail", "skip"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one check found; `skip` is for what there is nothing to look at."""

    check: str
    status: Status
    cause: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing to look at; `run` may block, and may raise what a finding is made of."""

    name: str
    run: Callable[[], Sequence[Finding]]


def listed(names: Sequence[str], most: int) -> str:
    """Some names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def look(checks: Sequence[Check], *, seconds: float = CHECK_SECONDS) -> list[Finding]:
    """Run checks side by side; their findings, in the order of the checks."""
    return asyncio.run(_look(checks, seconds))


async def _look(checks: Sequence[Check], seconds: float) -> list[Finding]:
    threads = Threads("doctor", threads_max=CHECKS_AT_ONCE_MAX, waiting_max=CHECKS_MAX)
    found = await asyncio.gather(*(_one(threads, check, seconds) for check in checks))
    return [finding for findings in found for finding in findings]


async def _one(threads: Threads, check: Check, seconds: float) -> Sequence[Finding]:
    try:
        async with asyncio.timeout(seconds):
            return await threads.run(check.run)
    except TimeoutError:
        cause, fix = f"no answer within {seconds:g} s", "see whether what it asks hangs"
    except (PenstockError, OSError) as error:
        cause, fix = str(error), ""
    except Exception as error:
        cause, fix = f"the check itself failed: {error!r}", "report it"
    return [Finding(check=check.name, status="fail", cause=cause, fix=fix)]
