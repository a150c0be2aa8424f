"""Compacted topics of a broker, local and diskless: what was written, and what is left of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
import pytest

from penstock.client import Client
from penstock.diskless.reading import reader
from penstock.testing import Broker

SETTINGS: Final[Mapping[str, Any]] = {
    "log.checkpoint.interval.ms": 50,
    "log.cleaner.backoff.ms": 20,
    "diskless.compaction.interval.ms": 50,
    "diskless.consolidation.min.age.ms": 0,
}
COMPACTED: Final[Mapping[str, str]] = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0",
    "internal.segment.bytes": "4000",
    "retention.ms": "-1",
}
KINDS: Final[Mapping[str, Mapping[str, str]]] = {
    "local": COMPACTED,
    "diskless": {**COMPACTED, "diskless.enable": "true"},
}
COUNT: Final = 420
"""Records that were written, in batches of 20; the last batch is larger than a segment has room."""
TIME_MS: Final = 1_700_000_000_000
_BATCH: Final = 20
_KEYS: Final = 4
"""That come again and again, the last time before the last batch."""
_PATIENCE_SECONDS: Final = 100.0


def _alone(offset: int) -> bool:
    """Whether no other record has the key of this one."""
    return (offset % 7 == 3 and not 100 <= offset < 200) or offset == 0 or offset >= COUNT - _BATCH


LEFT: Final = [at for at in range(COUNT) if _alone(at) or at >= COUNT - _BATCH - _KEYS]
"""Offsets of the records that stay: gone are some of a batch, whole batches, several in a row."""
_HOLES: Final = [(low + 1, high) for low, high in pairwise(LEFT) if high > low + 1]
_WIDEST: Final = max(_HOLES, key=lambda hole: hole[1] - hole[0])
HOLE: Final = _WIDEST[0] + 40
"""An offset of a batch that is gone, between others."""

RANGES: Final = [
    (0, COUNT),
    (1, 2),
    (HOLE - 10, HOLE + 10),
    (_WIDEST[0] - 1, _WIDEST[1] - 1),
    (HOLE - 10, _WIDEST[1] + 1),
    (_WIDEST[1] + 20, 321),
    _HOLES[-1],
    (393, COUNT),
]
"""Of which some begin or end in holes, or lie within one."""


def _key(offset: int) -> bytes:
    return b"only %d" % offset if _alone(offset) else b"again %d" % (offset % _KEYS)


def value(offset: int) -> bytes:
    """Return the record at an offset."""
    return b"value %d " % offset + bytes(130 if offset >= COUNT - _BATCH else 30)


@contextmanager
def compacting() -> Iterator[Broker]:
    """A broker that compacts at once, and whose readers soon see it."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(reader, "COORDINATES_AGE_SECONDS", 0.2)
        patched.setattr(reader, "READY_SECONDS", 0.2)
        with Broker(SETTINGS) as broker:
            yield broker


def fill(client: Client, topic: str) -> None:
    """Write the records, to a topic of one partition, and wait until those that stay are left."""
    for start in range(0, COUNT, _BATCH):
        offsets = range(start, start + _BATCH)
        table = pa.table(
            {
                "key": [_key(offset) for offset in offsets],
                "value": [value(offset) for offset in offsets],
                "timestamp": [TIME_MS + offset for offset in offsets],
            }
        )
        client.write_arrow(topic, table, codec="zstd" if start % 40 else "none")
    end = time.monotonic() + _PATIENCE_SECONDS
    while (found := client.read_arrow(topic)["offset"].to_pylist()) != LEFT:
        assert time.monotonic() < end, (len(found), set(found) ^ set(LEFT))
        threading.Event().wait(0.1)
