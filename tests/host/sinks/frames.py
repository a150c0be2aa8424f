"""Frames for sinks, and what becomes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.base.buffers import ReceivePool
from penstock.client import Client
from penstock.host.port import ChunkFormat, Chunks, ChunkSink, FinalVerdict, Pending
from penstock.records.columnar import encode_batches

WAIT_SECONDS = 60
NOW_MS = 1_700_000_000_000


def frame(
    chunks: Sequence[bytes | memoryview], *, gap: bytes = b"", payload: Any = None, **fields: Any
) -> Chunks:
    """A frame of these chunks, with `gap` before each one if it is given."""
    lengths = np.array([len(chunk) for chunk in chunks], np.uint32)
    content = b"".join(piece for chunk in chunks for piece in (gap, chunk))
    offsets = None
    if gap:
        steps = lengths + len(gap)
        offsets = (np.cumsum(steps) - lengths).astype(np.uint32)
    values: dict[str, Any] = {
        "producer_id": 77,
        "producer_epoch": 0,
        "first_sequence": 0,
        "count": len(chunks),
        "event_count": len(chunks),
        "topic": "orders",
        "partition": 0,
        **fields,
    }
    view = memoryview(content) if payload is None else payload
    return Chunks(payload=view, lengths=lengths, offsets=offsets, **values)


def leased(pool: ReceivePool, chunks: Sequence[bytes], **fields: Any) -> Chunks:
    """Frame in a receive buffer; the lease is the connection's."""
    content = b"".join(chunks)
    lease = pool.take(len(content))
    pool.received(lease, len(content))
    lease.view[: len(content)] = content
    return frame(chunks, payload=lease.view[: len(content)], lease=lease, **fields)


def batch(values: Sequence[bytes], **options: Any) -> bytes:
    """Return a record batch of these values."""
    (encoded,) = encode_batches(pa.table({"value": list(values)}), now_ms=NOW_MS, **options)
    return bytes(encoded.data)


def batches(groups: Iterable[Sequence[bytes]], **fields: Any) -> Chunks:
    """A RECORD_BATCH frame of one batch per group."""
    listed = [list(group) for group in groups]
    return frame(
        [batch(group) for group in listed],
        event_count=sum(map(len, listed)),
        format=ChunkFormat.RECORD_BATCH,
        **fields,
    )


class Fate:
    """Verdict of a frame; a second one is recorded and reported by `of`."""

    def __init__(self, sink: ChunkSink, chunks: Chunks) -> None:
        self.verdicts: list[FinalVerdict] = []
        self._event = asyncio.Event()
        verdict = sink.accept(chunks, self._complete)
        self.pending = isinstance(verdict, Pending)
        assert not self.verdicts, "verdict before accept returned"
        if not isinstance(verdict, Pending):
            self._complete(verdict)

    def _complete(self, verdict: FinalVerdict) -> None:
        self.verdicts.append(verdict)
        self._event.set()

    async def of(self) -> FinalVerdict:
        async with asyncio.timeout(WAIT_SECONDS):
            await self._event.wait()
        (verdict,) = self.verdicts
        return verdict


async def fates(sink: ChunkSink, frames: Iterable[Chunks]) -> list[FinalVerdict]:
    """Hand frames over one after another, and wait for all verdicts."""
    handed = [Fate(sink, chunks) for chunks in frames]
    return [await fate.of() for fate in handed]


def stored(bootstrap: str, topic: str, partition: int = 0) -> list[bytes]:
    """The values in a partition."""
    with Client(bootstrap) as client:
        table = client.read_arrow(topic, partitions=[partition], columns=("value",))
    found: list[bytes] = table["value"].to_pylist()
    return found
