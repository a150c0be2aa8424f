"""Load beside a client whose latency is measured, and how much of what it costs is the machine's.

Whoever makes the load shares the cores with client and broker, which in production is somewhere
else. So a load is measured three times: at the client's broker (`HERE`), at another broker of the
same machine (`ELSEWHERE`), which shows what the machine's part is, and at the client's broker by
somebody who gives way to all others (`GIVING_WAY`, nice 19), which shows the broker's part.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.pool import Pool

HERE, ELSEWHERE, GIVING_WAY = "here", "at another broker", "giving way"
_NICE = 19


@contextmanager
def load_makers() -> Iterator[Mapping[str, Pool]]:
    """A process that makes load, by way."""
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(1) as usual, spawn.Pool(1, os.nice, (_NICE,)) as polite:
        yield {HERE: usual, ELSEWHERE: usual, GIVING_WAY: polite}


def explained(found_ms: Mapping[str, float]) -> str:
    """What the other two ways say, in words."""
    return (
        f"the same at another broker: {found_ms[ELSEWHERE]:.1f} ms,"
        f" by who gives way: {found_ms[GIVING_WAY]:.1f} ms"
    )
