"""Blocks of recent objects in memory, and who waits for those that are being loaded.

An object is cut into blocks at multiples of the block's size; its last block ends where it ends. A
block is absent, being loaded, or present:

| state   | asked                | loaded             | failed            | kept (just written)  |
|---------|----------------------|--------------------|-------------------|----------------------|
| absent  | → loading: `LOAD`    | → present          | —                 | → present            |
| loading | joins: `WAIT`        | → present, answers | → absent, answers | → present, answers   |
| present | the bytes; it is new | (the first stay)   | —                 | (the first stay)     |

So there is one load per block however many ask. Present blocks stand in the order in which they
were last written or asked for: the first ones are those that expire (after the lifespan) and those
that make room. Bytes never change under a key, so nothing is ever invalidated.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from enum import Enum, auto
from typing import Generic, NamedTuple, TypeVar

from penstock.objects import limits

A = TypeVar("A")


class Block(NamedTuple):
    """One block of an object, numbered from 0."""

    key: str
    number: int


class Pending(Enum):
    """The block is not there: the asker waits, and has it loaded first or not."""

    LOAD = auto()
    WAIT = auto()


class _Entry(NamedTuple):
    content: memoryview
    touched_ms: int


class BlockCache(Generic[A]):
    """Present blocks, bounded in bytes and time, and the askers (`A`) of those being loaded."""

    def __init__(self, *, block_bytes: int, bytes_max: int, lifespan_ms: int) -> None:
        self.block_bytes = block_bytes
        self._bytes_max = bytes_max
        self._lifespan_ms = lifespan_ms
        self._present: OrderedDict[Block, _Entry] = OrderedDict()
        self._loading: dict[Block, list[A]] = {}
        self.size_bytes = 0
        self.hits = 0
        self.misses = 0
        self.joins = 0
        self.evictions = 0
        self.expirations = 0

    def __len__(self) -> int:
        return len(self._present)

    @property
    def loading(self) -> int:
        return len(self._loading)

    def blocks(self, key: str, start: int, size_bytes: int) -> Iterator[Block]:
        """The blocks that hold a range."""
        first, last = start // self.block_bytes, (start + size_bytes - 1) // self.block_bytes
        return (Block(key, number) for number in range(first, last + 1))

    def peek(self, block: Block, now_ms: int) -> memoryview | None:
        """A present block, without counting or touching it."""
        entry = self._present.get(block)
        if entry is None or self._expired(entry, now_ms):
            return None
        return entry.content

    def ask(self, block: Block, asker: A, now_ms: int) -> memoryview | Pending:
        """The block's bytes; or the asker is remembered until `loaded`, `failed` or `keep`."""
        entry = self._present.get(block)
        if entry is not None:
            if not self._expired(entry, now_ms):
                self._present[block] = _Entry(entry.content, now_ms)
                self._present.move_to_end(block)
                self.hits += 1
                return entry.content
            self.expire(now_ms)
        askers = self._loading.get(block)
        if askers is not None:
            askers.append(asker)
            self.joins += 1
            return Pending.WAIT
        self._loading[block] = [asker]
        self.misses += 1
        return Pending.LOAD

    def loaded(self, block: Block, content: memoryview, now_ms: int) -> Sequence[A]:
        """A load has ended well; who is to be answered with `content`."""
        self._store(block, content, now_ms)
        return self._loading.pop(block, ())

    def failed(self, block: Block) -> Sequence[A]:
        """A load has failed; who is to be told. The next to ask has it loaded again."""
        return self._loading.pop(block, ())

    def keep(
        self, key: str, content: memoryview, now_ms: int
    ) -> Sequence[tuple[memoryview, Sequence[A]]]:
        """Cut a whole object into present blocks; each with those who waited for it.

        Blocks of an object that has several own their bytes, so that each can be dropped.
        """
        kept: list[tuple[memoryview, Sequence[A]]] = []
        for number, start in enumerate(range(0, len(content), self.block_bytes)):
            cut = content[start : start + self.block_bytes]
            if len(cut) < len(content):
                cut = memoryview(bytes(cut))
            kept.append((cut, self.loaded(Block(key, number), cut, now_ms)))
        return kept

    def expire(self, now_ms: int) -> int:
        """Drop what was not touched for the lifespan; how many blocks."""
        dropped = 0
        while self._present:
            block, entry = next(iter(self._present.items()))
            if not self._expired(entry, now_ms):
                break
            self._drop(block)
            dropped += 1
        self.expirations += dropped
        return dropped

    def clear(self) -> Sequence[A]:
        """Drop everything; who waited."""
        self._present.clear()
        self.size_bytes = 0
        askers = [asker for waiting in self._loading.values() for asker in waiting]
        self._loading.clear()
        return askers

    def _store(self, block: Block, content: memoryview, now_ms: int) -> None:
        self.expire(now_ms)
        if block in self._present or not content:
            return
        self._present[block] = _Entry(content, now_ms)
        self.size_bytes += len(content) + limits.CACHE_BLOCK_OVERHEAD_BYTES
        while self.size_bytes > self._bytes_max:
            self._drop(next(iter(self._present)))
            self.evictions += 1

    def _drop(self, block: Block) -> None:
        entry = self._present.pop(block)
        self.size_bytes -= len(entry.content) + limits.CACHE_BLOCK_OVERHEAD_BYTES

    def _expired(self, entry: _Entry, now_ms: int) -> bool:
        return now_ms - entry.touched_ms >= self._lifespan_ms
