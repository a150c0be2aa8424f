"""Findings, and parallel checks with time limits, each on a thread of its own.

A call that hangs in the kernel (a lost file system, a resolver) cannot be ended: its finding
reports it, and its thread ends with the process.
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
OUTAGE_SECONDS: Final = 1.0
"""The same while brokers are known to be unavailable: that is to be reported within 5 s."""

SKEW_WARN_SECONDS: Final = 2.0
SKEW_CURE: Final = "synchronise the clocks (chrony, systemd-timesyncd)"

CHECKS_AT_ONCE_MAX: Final = 256
CHECKS_MAX: Final = 10_000

Status = Literal["ok", "warn", "fail", "skip"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Result of one check; `skip` if the subject is absent or was not checked."""

    check: str
    status: Status
    cause: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """Check; `run` may block, and may raise the error that becomes a finding."""

    name: str
    run: Callable[[], Sequence[Finding]]


def listed(names: Sequence[str], most: int) -> str:
    """Join some names, with the number of the others."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def look(
    checks: Sequence[Check], *, seconds: float = CHECK_SECONDS, outage: str = ""
) -> list[Finding]:
    """Run checks concurrently; return their findings in the order of the checks.

    With an `outage` checks have little time, and a timeout is not a failure.
    """
    return asyncio.run(_look(checks, OUTAGE_SECONDS if outage else seconds, outage))


async def _look(checks: Sequence[Check], seconds: float, outage: str) -> list[Finding]:
    threads = Threads("doctor", threads_max=CHECKS_AT_ONCE_MAX, waiting_max=CHECKS_MAX)
    found = await asyncio.gather(*(_one(threads, check, seconds, outage) for check in checks))
    return [finding for findings in found for finding in findings]


async def _one(threads: Threads, check: Check, seconds: float, outage: str) -> Sequence[Finding]:
    try:
        async with asyncio.timeout(seconds):
            return await threads.run(check.run)
    except TimeoutError:
        cause, fix = (
            f"no answer within {seconds:g} s",
            "check whether the service that it queries is blocked",
        )
        if outage:
            cause = f"not checked: {cause}; {outage}"
            return [Finding(check=check.name, status="skip", cause=cause)]
    except (PenstockError, OSError) as error:
        cause, fix = str(error), ""
    except Exception as error:
        cause, fix = f"the check itself failed: {error!r}", "report it"
    return [Finding(check=check.name, status="fail", cause=cause, fix=fix)]
