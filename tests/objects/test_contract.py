"""Contract of the object store port, run over every implementation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from penstock.objects import (
    Buffer,
    InvalidKey,
    InvalidRange,
    ObjectExists,
    ObjectInfo,
    ObjectNotFound,
    ObjectStore,
    ObjectTruncated,
)
from penstock.objects.obstore_store import INLINE_BODY_BYTES_MAX, UPLOAD_PART_BYTES

CONTENT = bytes(range(256)) * 8


async def keys_of(store: ObjectStore, prefix: str = "", *, after: str = "") -> list[str]:
    return [info.key async for info in store.list(prefix, after=after)]


async def put_all(store: ObjectStore, keys: Sequence[str]) -> None:
    await asyncio.gather(*(store.put(key, [key.encode()]) for key in keys))


@pytest.mark.parametrize(
    "pieces",
    [
        [CONTENT],
        [CONTENT[:1], b"", bytearray(CONTENT[1:100]), memoryview(CONTENT)[100:]],
        [CONTENT[at : at + 1] for at in range(len(CONTENT))],
    ],
    ids=["one", "kinds", "many"],
)
async def test_put_objects_are_readable(store: ObjectStore, pieces: list[Buffer]) -> None:
    await store.put("wal/1/a", pieces)
    assert bytes(await store.get("wal/1/a", 0, len(CONTENT))) == CONTENT


async def test_a_large_object_of_many_pieces(store: ObjectStore) -> None:
    pieces: list[Buffer] = [bytes([number % 251]) * (number * 37 % 5000) for number in range(300)]
    await store.put("large", [*pieces, b"", bytearray(b"end")])
    content = b"".join(pieces) + b"end"
    assert len(content) > INLINE_BODY_BYTES_MAX
    assert await store.get("large", 0, len(content)) == content


async def _pieces(*pieces: Buffer, failing: Exception | None = None) -> AsyncIterator[Buffer]:
    for piece in pieces:
        yield piece
    if failing is not None:
        raise failing


@pytest.mark.parametrize("size", [0, 1, 100_000, UPLOAD_PART_BYTES * 2 + 17])
async def test_uploaded_objects_are_readable(store: ObjectStore, size: int) -> None:
    content = memoryview((CONTENT * (size // len(CONTENT) + 1))[:size])
    step = 3_000_001
    pieces = [content[at : at + step] for at in range(0, size, step)]
    assert await store.upload("archive/a.log", _pieces(*pieces)) == size
    assert (await store.head("archive/a.log")).size_bytes == size
    if size:
        assert await store.get("archive/a.log", 0, size) == content


@pytest.mark.parametrize("size", [10, UPLOAD_PART_BYTES + 1])
async def test_an_upload_whose_pieces_fail_is_not_there(store: ObjectStore, size: int) -> None:
    with pytest.raises(ZeroDivisionError, match="damaged"):
        await store.upload("a", _pieces(bytes(size), failing=ZeroDivisionError("damaged")))
    assert await keys_of(store) == []


async def test_a_small_upload_never_replaces(store: ObjectStore) -> None:
    await store.put("a", [b"first"])
    with pytest.raises(ObjectExists):
        await store.upload("a", _pieces(b"second"))
    assert bytes(await store.get("a", 0, 5)) == b"first"


async def test_an_upload_that_is_cancelled_is_not_there(store: ObjectStore) -> None:
    begun = asyncio.Event()

    async def endless() -> AsyncIterator[Buffer]:
        while True:
            yield bytes(UPLOAD_PART_BYTES)
            begun.set()
            await asyncio.Event().wait()

    upload = asyncio.ensure_future(store.upload("a", endless()))
    await begun.wait()
    upload.cancel()
    with pytest.raises(asyncio.CancelledError):
        await upload
    assert await keys_of(store) == []


async def test_ranges(store: ObjectStore) -> None:
    await store.put("a", [CONTENT])
    for start, size in [(0, 1), (1, 7), (255, 258), (len(CONTENT) - 1, 1), (0, len(CONTENT))]:
        content = await store.get("a", start, size)
        assert isinstance(content, memoryview)
        assert content == CONTENT[start : start + size]


@pytest.mark.parametrize(
    ("start", "size"), [(0, len(CONTENT) + 1), (len(CONTENT) - 1, 2), (len(CONTENT), 1), (9999, 9)]
)
async def test_a_range_beyond_the_end_is_truncated(
    store: ObjectStore, start: int, size: int
) -> None:
    await store.put("a", [CONTENT])
    with pytest.raises(ObjectTruncated) as raised:
        await store.get("a", start, size)
    assert raised.value.object_size_bytes == len(CONTENT)
    assert bytes(raised.value.content or b"") == CONTENT[start:]


async def test_an_empty_object_has_no_range(store: ObjectStore) -> None:
    await store.put("empty", [])
    assert (await store.head("empty")).size_bytes == 0
    with pytest.raises(ObjectTruncated):
        await store.get("empty", 0, 1)


@pytest.mark.parametrize(("start", "size"), [(-1, 2), (0, 0), (0, -1)])
async def test_invalid_ranges_are_rejected(store: ObjectStore, start: int, size: int) -> None:
    await store.put("a", [CONTENT])
    with pytest.raises(InvalidRange):
        await store.get("a", start, size)


async def test_objects_are_never_replaced(store: ObjectStore) -> None:
    await store.put("a/b", [b"first"])
    with pytest.raises(ObjectExists, match="a/b"):
        await store.put("a/b", [b"second"])
    assert bytes(await store.get("a/b", 0, 5)) == b"first"


async def test_of_many_that_put_one_key_one_succeeds(store: ObjectStore) -> None:
    outcomes = await asyncio.gather(
        *(store.put("race", [bytes([number]) * 1000]) for number in range(8)),
        return_exceptions=True,
    )
    assert outcomes.count(None) == 1
    assert sum(isinstance(outcome, ObjectExists) for outcome in outcomes) == 7
    winner = outcomes.index(None)
    assert bytes(await store.get("race", 0, 1000)) == bytes([winner]) * 1000


async def test_missing_objects(store: ObjectStore) -> None:
    with pytest.raises(ObjectNotFound, match="a/b"):
        await store.get("a/b", 0, 1)
    with pytest.raises(ObjectNotFound):
        await store.head("a/b")
    await store.put("a/b", [b"x"])
    with pytest.raises(ObjectNotFound):
        await store.get("a", 0, 1)
    with pytest.raises(ObjectNotFound):
        await store.head("a")


async def test_head(store: ObjectStore) -> None:
    await store.put("a/b", [CONTENT])
    info = await store.head("a/b")
    assert info == ObjectInfo("a/b", len(CONTENT), info.modified_ms)
    assert info.modified_ms > 1_600_000_000_000


async def test_delete(store: ObjectStore) -> None:
    await put_all(store, ["a/1", "a/2", "b/1", "c"])
    await store.delete(["a/1", "c", "never/there", "b/never"])
    assert await keys_of(store) == ["a/2", "b/1"]
    with pytest.raises(ObjectNotFound):
        await store.get("a/1", 0, 1)
    await store.delete(["a/1"])
    await store.delete([])
    assert await keys_of(store) == ["a/2", "b/1"]


async def test_deleting_the_same_at_once(store: ObjectStore) -> None:
    keys = [f"a/{number}" for number in range(50)]
    await put_all(store, keys)
    await asyncio.gather(*(store.delete(keys) for _ in range(4)))
    assert await keys_of(store) == []


async def test_list_is_in_the_order_of_keys(store: ObjectStore) -> None:
    keys = ["a", "a-b", "a.b", "a1", "b/1", "b/2/x", "b-1", "b.1", "b0", "b/1-", "B", "_", "0/9"]
    await put_all(store, keys)
    assert await keys_of(store) == sorted(keys)
    for prefix in ("", "b", "b/", "b/1", "b/2/", "b/2/x", "b-", "z", "0"):
        expected = [key for key in sorted(keys) if key.startswith(prefix)]
        assert await keys_of(store, prefix) == expected
        for after in [*keys, "b/", "b/2", "zz"]:
            left = [key for key in expected if key > after]
            assert await keys_of(store, prefix, after=after) == left


async def test_list_returns_size_and_time(store: ObjectStore) -> None:
    await store.put("a/b", [CONTENT])
    assert [info async for info in store.list("a")] == [await store.head("a/b")]


@pytest.mark.parametrize(
    "key",
    ["", "/", "/a", "a/", "a//b", "..", "a/../b", "../a", ".", ".partial/a", "a/.b", "a b", "ä",
     "a\x00", "a\n", "a\\b", "x" * 513, "x" * 256],
)  # fmt: skip
async def test_invalid_keys_are_rejected(store: ObjectStore, key: str) -> None:
    with pytest.raises(InvalidKey):
        await store.put(key, [b"x"])
    with pytest.raises(InvalidKey):
        await store.get(key, 0, 1)
    with pytest.raises(InvalidKey):
        await store.head(key)
    with pytest.raises(InvalidKey):
        await store.delete(["a", key])
    assert await keys_of(store) == []


async def test_long_keys(store: ObjectStore) -> None:
    key = "/".join(["x" * 127] * 4)
    await store.put(key, [b"x"])
    assert await keys_of(store) == [key]


async def test_closing_twice(store: ObjectStore) -> None:
    await store.put("a", [b"x"])
    await store.close()
    await store.close()
