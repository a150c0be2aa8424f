"""Cache of the blocks of recent objects, and the callers that wait for blocks being loaded.

| state   | `ask`             | `loaded`         | `failed`         | `keep` (just written)        |
|---------|-------------------|------------------|------------------|------------------------------|
| absent  | `LOAD`; → loading | → present        | no effect        | → present                    |
| loading | `WAIT`            | → present; bytes | → absent; error  | → present; bytes             |
| present | the bytes         | no effect        | no effect        | no effect                    |

"Bytes" and "error" mean that the waiting callers get the bytes or the error. Each block is
therefore loaded once for all callers. Present blocks are ordered by their last write or request.
The first ones in this order expire after the lifespan, and are evicted if the cache is full. The
bytes under a key never change, so no block is ever invalidated.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from enum import Enum, auto
from typing import Final, Generic, NamedTuple, TypeVar

from penstock.base.metrics import Metrics, Sample, counter, gauge

CACHE_BLOCK_OVERHEAD_BYTES: Final = 512
"""Memory of a cached block in addition to its bytes."""

A = TypeVar("A")


class Block(NamedTuple):
    key: str
    number: int


class Pending(Enum):
    """Result of a request for a missing block: the caller must load it, or only wait."""

    LOAD = auto()
    WAIT = auto()


class _Entry(NamedTuple):
    content: memoryview
    touched_ms: int


class CacheCounters(Metrics, prefix="penstock_objects_cache_"):
    hits = counter("hits_total", "Blocks found in the cache.")
    misses = counter("misses_total", "Blocks that had to be loaded.")
    joins = counter("shared_loads_total", "Blocks requested while they were being loaded.")
    evictions = counter("evictions_total", "Blocks evicted because the cache was full.")
    expirations = counter("expirations_total", "Blocks dropped because they were not requested.")
    size_bytes = gauge("bytes", "Memory of the cached blocks.")
    blocks = gauge("blocks", "Blocks in the cache.")


class BlockCache(Generic[A]):
    """Cached blocks, limited in bytes and age, and the callers (`A`) that wait for loads."""

    def __init__(self, *, block_bytes: int, bytes_max: int, lifespan_ms: int) -> None:
        self.block_bytes = block_bytes
        self._bytes_max = bytes_max
        self._lifespan_ms = lifespan_ms
        self._present: OrderedDict[Block, _Entry] = OrderedDict()
        self._loading: dict[Block, list[A]] = {}
        self.size_bytes = 0
        self.counters = CacheCounters()

    def __len__(self) -> int:
        return len(self._present)

    @property
    def loading(self) -> int:
        return len(self._loading)

    def blocks(self, key: str, start: int, size_bytes: int) -> Iterator[Block]:
        first, last = start // self.block_bytes, (start + size_bytes - 1) // self.block_bytes
        return (Block(key, number) for number in range(first, last + 1))

    def peek(self, block: Block, now_ms: int) -> memoryview | None:
        """Return a cached block, or None. Does not count the request or renew the block."""
        entry = self._present.get(block)
        if entry is None or self._expired(entry, now_ms):
            return None
        return entry.content

    def ask(self, block: Block, asker: A, now_ms: int) -> memoryview | Pending:
        """Return the block's bytes, or register the caller as waiting for it.

        A registered caller is returned by the next `loaded`, `failed` or `keep` of the block.
        """
        entry = self._present.get(block)
        if entry is not None:
            if not self._expired(entry, now_ms):
                self._present[block] = _Entry(entry.content, now_ms)
                self._present.move_to_end(block)
                self.counters.hits += 1
                return entry.content
            self.expire(now_ms)
        askers = self._loading.get(block)
        if askers is not None:
            askers.append(asker)
            self.counters.joins += 1
            return Pending.WAIT
        self._loading[block] = [asker]
        self.counters.misses += 1
        return Pending.LOAD

    def loaded(self, block: Block, content: memoryview, now_ms: int) -> Sequence[A]:
        """Store a loaded block; return the callers that wait for it."""
        self._store(block, content, now_ms)
        return self._loading.pop(block, ())

    def failed(self, block: Block) -> Sequence[A]:
        """Record a failed load; return the callers that wait for it."""
        return self._loading.pop(block, ())

    def keep(
        self, key: str, content: memoryview, now_ms: int
    ) -> Sequence[tuple[memoryview, Sequence[A]]]:
        """Store the blocks of a whole object. Return each block with the callers that wait for it.

        Each block gets its own copy of its bytes, unless the object is a single block.
        """
        kept: list[tuple[memoryview, Sequence[A]]] = []
        for number, start in enumerate(range(0, len(content), self.block_bytes)):
            cut = content[start : start + self.block_bytes]
            if len(cut) < len(content):
                cut = memoryview(bytes(cut))
            kept.append((cut, self.loaded(Block(key, number), cut, now_ms)))
        return kept

    def expire(self, now_ms: int) -> int:
        """Drop the blocks that were not used during the lifespan; return their number."""
        dropped = 0
        while self._present:
            block, entry = next(iter(self._present.items()))
            if not self._expired(entry, now_ms):
                break
            self._drop(block)
            dropped += 1
        self.counters.expirations += dropped
        return dropped

    def clear(self) -> Sequence[A]:
        self._present.clear()
        self.size_bytes = 0
        askers = [asker for waiting in self._loading.values() for asker in waiting]
        self._loading.clear()
        return askers

    def samples(self) -> Iterator[Sample]:
        self.counters.size_bytes = self.size_bytes
        self.counters.blocks = len(self)
        return self.counters.samples()

    def _store(self, block: Block, content: memoryview, now_ms: int) -> None:
        self.expire(now_ms)
        if block in self._present or not content:
            return
        self._present[block] = _Entry(content, now_ms)
        self.size_bytes += len(content) + CACHE_BLOCK_OVERHEAD_BYTES
        while self.size_bytes > self._bytes_max:
            self._drop(next(iter(self._present)))
            self.counters.evictions += 1

    def _drop(self, block: Block) -> None:
        entry = self._present.pop(block)
        self.size_bytes -= len(entry.content) + CACHE_BLOCK_OVERHEAD_BYTES

    def _expired(self, entry: _Entry, now_ms: int) -> bool:
        return now_ms - entry.touched_ms >= self._lifespan_ms
