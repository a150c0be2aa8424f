"""Blocks and who waits for them: every state and event, room, time."""

from __future__ import annotations

import random

import pytest

from penstock.objects.fetch_paths import CACHE_BLOCK_OVERHEAD_BYTES, Block, BlockCache, Pending

A = Block("a", 0)
B = Block("b", 0)
CONTENT = memoryview(b"x" * 100)
OTHER = memoryview(b"y" * 100)
COST = 100 + CACHE_BLOCK_OVERHEAD_BYTES


def cache(*, blocks: int = 3, lifespan_ms: int = 1000) -> BlockCache[str]:
    return BlockCache(block_bytes=100, bytes_max=blocks * COST, lifespan_ms=lifespan_ms)


def in_state(state: str) -> BlockCache[str]:
    """A cache whose block `A` is absent, loading for "first", present or expired, at 2000 ms."""
    blocks = cache()
    if state == "loading":
        assert blocks.ask(A, "first", 1900) is Pending.LOAD
    elif state == "present":
        blocks.loaded(A, CONTENT, 1900)
    elif state == "expired":
        blocks.loaded(A, CONTENT, 1000)
    return blocks


@pytest.mark.parametrize(
    ("state", "asked", "loaded", "failed", "kept"),
    [
        ("absent", Pending.LOAD, [], [], []),
        ("loading", Pending.WAIT, ["first"], ["first"], ["first"]),
        ("present", CONTENT, [], [], []),
        ("expired", Pending.LOAD, [], [], []),
    ],
)
def test_every_event_in_every_state(
    state: str,
    asked: memoryview | Pending,
    loaded: list[str],
    failed: list[str],
    kept: list[str],
) -> None:
    assert in_state(state).ask(A, "second", 2000) == asked
    assert list(in_state(state).loaded(A, CONTENT, 2000)) == loaded
    assert list(in_state(state).failed(A)) == failed
    after = in_state(state)
    assert [list(askers) for _, askers in after.keep("a", CONTENT, 2000)] == [kept]
    assert after.ask(A, "third", 2000) == CONTENT
    assert after.loading == 0


def test_all_callers_share_one_load() -> None:
    blocks = cache()
    answers = [blocks.ask(A, f"asker {number}", 0) for number in range(100)]
    assert answers == [Pending.LOAD] + [Pending.WAIT] * 99
    assert (blocks.counters.misses, blocks.counters.joins, blocks.counters.hits) == (1, 99, 0)
    assert list(blocks.loaded(A, CONTENT, 1)) == [f"asker {number}" for number in range(100)]
    assert blocks.ask(A, "late", 1) == CONTENT
    assert blocks.counters.hits == 1


def test_a_failed_load_is_begun_again_by_the_next() -> None:
    blocks = cache()
    blocks.ask(A, "first", 0)
    assert list(blocks.failed(A)) == ["first"]
    assert blocks.ask(A, "second", 0) is Pending.LOAD
    assert list(blocks.loaded(A, CONTENT, 0)) == ["second"]


def test_a_kept_object_answers_waiting_callers() -> None:
    blocks = cache()
    blocks.ask(A, "first", 0)
    assert [list(askers) for _, askers in blocks.keep("a", CONTENT, 0)] == [["first"]]
    assert list(blocks.loaded(A, OTHER, 0)) == []
    assert blocks.ask(A, "second", 0) == CONTENT
    assert blocks.size_bytes == COST


def test_objects_are_cut_at_multiples_of_the_block() -> None:
    blocks = cache(blocks=10)
    content = memoryview(bytes(range(250)))
    blocks.keep("a", content, 0)
    parts = [blocks.peek(Block("a", index), 0) for index in range(4)]
    assert parts == [content[:100], content[100:200], content[200:], None]
    assert list(blocks.blocks("a", 99, 2)) == [Block("a", 0), Block("a", 1)]
    assert list(blocks.blocks("a", 100, 100)) == [Block("a", 1)]
    assert list(blocks.blocks("a", 249, 1)) == [Block("a", 2)]


def test_the_least_recently_used_block_is_evicted() -> None:
    blocks = cache(blocks=2)
    blocks.loaded(A, CONTENT, 0)
    blocks.loaded(B, CONTENT, 1)
    blocks.ask(A, "reader", 2)
    blocks.loaded(Block("c", 0), CONTENT, 3)
    assert blocks.peek(B, 3) is None
    assert blocks.peek(A, 3) == CONTENT
    assert (len(blocks), blocks.counters.evictions, blocks.size_bytes) == (2, 1, 2 * COST)


def test_blocks_live_for_the_lifespan_after_their_last_use() -> None:
    blocks = cache(lifespan_ms=1000)
    blocks.loaded(A, CONTENT, 0)
    blocks.loaded(B, CONTENT, 0)
    assert blocks.ask(A, "reader", 999) == CONTENT
    assert blocks.peek(B, 999) == CONTENT
    assert blocks.expire(999) == 0
    assert blocks.peek(B, 1000) is None
    assert blocks.expire(1000) == 1
    assert blocks.ask(A, "reader", 1998) == CONTENT
    assert blocks.ask(A, "reader", 2998) is Pending.LOAD
    assert (blocks.counters.expirations, blocks.size_bytes, len(blocks)) == (2, 0, 0)


def test_looking_without_asking_counts_and_changes_nothing() -> None:
    blocks = cache()
    assert blocks.peek(A, 0) is None
    blocks.loaded(A, CONTENT, 0)
    assert blocks.peek(A, 900) == CONTENT
    assert (blocks.counters.hits, blocks.counters.misses) == (0, 0)
    assert blocks.ask(A, "reader", 1000) is Pending.LOAD


def test_clearing_returns_all_waiting_callers() -> None:
    blocks = cache()
    blocks.loaded(B, CONTENT, 0)
    blocks.ask(A, "first", 0)
    blocks.ask(A, "second", 0)
    assert list(blocks.clear()) == ["first", "second"]
    assert (blocks.size_bytes, len(blocks), blocks.loading) == (0, 0, 0)


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_events(seed: int) -> None:
    """Bytes are bounded and exact, one load runs per block, every asker is answered once."""
    dice = random.Random(seed)
    blocks: BlockCache[int] = BlockCache(block_bytes=100, bytes_max=4 * COST, lifespan_ms=50)
    loading: dict[Block, set[int]] = {}
    now = 0
    for asker in range(600):
        now += dice.randrange(10)
        block = Block("abcdefgh"[dice.randrange(8)], 0)
        match dice.randrange(4):
            case 0:
                answered = set(blocks.loaded(block, CONTENT, now))
                assert answered == loading.pop(block, set())
            case 1:
                assert set(blocks.failed(block)) == loading.pop(block, set())
            case 2:
                blocks.expire(now)
            case _:
                found = blocks.ask(block, asker, now)
                if isinstance(found, Pending):
                    assert (found is Pending.LOAD) == (block not in loading)
                    loading.setdefault(block, set()).add(asker)
        present = sum(blocks.peek(Block(key, 0), 0) is not None for key in "abcdefgh")
        assert blocks.size_bytes == present * COST == len(blocks) * COST
        assert len(blocks) <= 4
        assert blocks.loading == len(loading)
