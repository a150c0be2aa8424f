"""Findings, and the concurrent run of checks, each in its own thread and with a time limit.

A call that hangs in the kernel, as on a lost file system, cannot be ended. It is reported as a
timeout, and its thread ends with the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from penstock.base.errors import PenstockError
from penstock.objects.threads import Threads

CHECK_SECONDS: Final = 15.0
"""Longest duration of one check. Checks that use the network have shorter timeouts."""
OUTAGE_SECONDS: Final = 1.0
"""Longest duration of one check if brokers are known to be unavailable, which the command reports
within 5 s.
"""

SKEW_WARN_SECONDS: Final = 2.0
SKEW_CURE: Final = "synchronise the clocks (chrony, systemd-timesyncd)"

CHECKS_AT_ONCE_MAX: Final = 256
CHECKS_MAX: Final = 10_000

Status = Literal["ok", "warn", "fail", "skip"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check, with cause and fix; `skip` means that the subject was not checked."""

    check: str
    status: Status
    cause: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """Check with a name; `run` may block, and an error that it raises becomes a finding."""

    name: str
    run: Callable[[], Sequence[Finding]]


def listed(names: Sequence[str], most: int) -> str:
    """Join the first `most` names with commas, and append the number of further names."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def look(
    checks: Sequence[Check], *, seconds: float = CHECK_SECONDS, outage: str = ""
) -> list[Finding]:
    """Run checks concurrently; return their findings in the order of the checks.

    `outage` describes brokers that are known to be unavailable. With it a check has
    `OUTAGE_SECONDS`, and counts as skipped, not failed, if it exceeds them.
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
            "check whether the queried service hangs",
        )
        if outage:
            cause = f"not checked: {cause}; {outage}"
            return [Finding(check.name, "skip", cause)]
    except (PenstockError, OSError) as error:
        cause, fix = str(error), ""
    except Exception as error:
        cause, fix = f"the check itself failed: {error!r}", "report this as a bug of Penstock"
    return [Finding(check.name, "fail", cause, fix)]
