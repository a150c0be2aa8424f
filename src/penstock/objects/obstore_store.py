"""Object store in S3, Google Cloud Storage, Azure Blob Storage and compatible services.

`obstore` (the Rust crate `object_store`) makes the requests on its own threads. Its retries are
disabled: the caller decides about retries, and a put is never sent twice under one key.

A put is conditional (`If-None-Match: *`), so that it never replaces an object. Stores without
conditional puts rely on unique keys. The store verifies length and checksum: an S3 request is
signed over the SHA-256 of its body. A read compares the received range with the requested one.

`upload` sends large objects in parts, without a condition, and checks the object's length
afterwards. An interrupted upload may leave parts that belong to no object. A lifecycle rule of the
bucket should remove them.

A cancelled or timed-out request drops its connection. The outcome of a put is then unknown.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Final

import numpy as np
import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    InvalidPathError,
    NotSupportedError,
    PermissionDeniedError,
    UnauthenticatedError,
)

from penstock.base.errors import PenstockError
from penstock.base.urls import without_credentials_in
from penstock.objects.port import (
    LIST_PAGE_OBJECTS,
    THROTTLED_STATUS,
    Buffer,
    ObjectExists,
    ObjectInfo,
    ObjectNotFound,
    ObjectTruncated,
    StoreClosed,
    StoreRefused,
    StoreThrottled,
    StoreUnavailable,
    check_key,
    check_prefix,
    check_range,
)
from penstock.objects.threads import Threads

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore as Client

INLINE_BODY_BYTES_MAX: Final = 256 << 10
"""Bytes up to which the caller joins the pieces of a body. A thread joins larger bodies."""
BODY_THREADS: Final = 2
BODIES_WAITING_MAX: Final = 1024
"""Puts that may wait for such a thread. Further ones fail with `StoreThrottled`."""
UPLOAD_PART_BYTES: Final = 8 << 20
"""Size of the parts of an upload. S3 allows 10,000 parts."""
UPLOAD_PARTS_AT_ONCE: Final = 2
"""Parts of one object that are sent in parallel. As many more are held in memory."""
UPLOAD_STALL_TIMEOUTS: Final = 3
"""Maximum time for one part of an upload, as a multiple of the request timeout."""
DELETE_KEYS_MAX: Final = 1000
"""Keys in one delete request, which is S3's limit."""

_REFUSALS: Final = (
    InvalidPathError,
    NotSupportedError,
    PermissionDeniedError,
    UnauthenticatedError,
)
_STATUS: Final = re.compile(r"status code:? (\d\d\d)|\bstatus: (\d\d\d)|Client error.*?(\d\d\d)")
_READING: Final = ("read", "look at")
_NO_BUCKET: Final = re.compile(r"NoSuchBucket|ContainerNotFound|FilesystemNotFound")
_THROTTLED: Final = re.compile(r"SlowDown|TooManyRequests|RequestLimitExceeded|ServerBusy")
_RANGE_STATUS: Final = 416
_NOT_IMPLEMENTED_STATUS: Final = 501
_REASON_CHARACTERS_MAX: Final = 300


class RemoteStore:
    """Object store over one client of obstore. `name` is used in messages."""

    def __init__(self, client: Client, *, name: str, request_timeout_ms: int) -> None:
        self._client = client
        self._name = name
        self._timeout_seconds = request_timeout_ms / 1000
        self._conditional = True
        self._closed = False
        self._threads = Threads(
            "object-body",
            threads_max=BODY_THREADS,
            waiting_max=BODIES_WAITING_MAX,
        )

    async def put(self, key: str, pieces: Sequence[Buffer]) -> None:
        check_key(key)
        size = sum(map(len, pieces))
        body: Buffer
        if size <= INLINE_BODY_BYTES_MAX:
            body = b"".join(pieces)
        else:
            body = await self._threads.run(lambda: _joined(pieces, size))
        if self._conditional:
            try:
                return await self._put(key, body, conditional=True)
            except _NotImplemented:
                self._conditional = False
        return await self._put(key, body, conditional=False)

    async def upload(self, key: str, pieces: AsyncIterator[Buffer]) -> int:
        check_key(key)
        first: list[Buffer] = []
        async for piece in pieces:
            first.append(piece)
            if sum(map(len, first)) >= UPLOAD_PART_BYTES:
                return await self._upload(key, _Stream(first, pieces))
        await self.put(key, first)
        return sum(map(len, first))

    async def _upload(self, key: str, stream: _Stream) -> int:
        """Upload an object in parts, a few at a time, and check its size."""
        seconds = self._timeout_seconds * UPLOAD_STALL_TIMEOUTS
        loop = asyncio.get_running_loop()
        with self._errors("write", key):
            async with asyncio.timeout(seconds) as limit:
                stream.on_piece = lambda: limit.reschedule(loop.time() + seconds)
                try:
                    await obstore.put_async(
                        self._client,
                        key,
                        stream,
                        use_multipart=True,
                        chunk_size=UPLOAD_PART_BYTES,
                        max_concurrency=UPLOAD_PARTS_AT_ONCE,
                    )
                except Exception:
                    if stream.failure is not None:
                        raise stream.failure from None
                    raise
        there = (await self.head(key)).size_bytes
        if there != stream.size_bytes:
            raise StoreUnavailable(
                f"{self._name}: {stream.size_bytes} bytes of object {key} were written, but it"
                f" has {there}"
            )
        return stream.size_bytes

    async def get(self, key: str, start: int, size_bytes: int) -> memoryview:
        check_range(key, start, size_bytes)
        try:
            return await self._get(key, start, size_bytes)
        except _RangeBeyond:
            found = await self.head(key)
        raise ObjectTruncated(key, start, size_bytes, found.size_bytes)

    async def head(self, key: str) -> ObjectInfo:
        check_key(key)
        with self._errors("look at", key):
            async with asyncio.timeout(self._timeout_seconds):
                found = await obstore.head_async(self._client, key)
        return _info(found)

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)
        for first in range(0, len(keys), DELETE_KEYS_MAX):
            await self._delete(list(keys[first : first + DELETE_KEYS_MAX]))

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        check_prefix(prefix)
        # The client's prefixes are whole parts of keys without a final slash, so it may list more
        # objects than requested.
        directory = prefix.rpartition("/")[0] or None
        pages = obstore.list(
            self._client,
            directory,
            offset=after or None,
            chunk_size=LIST_PAGE_OBJECTS,
        ).__aiter__()
        last = ""
        while page := await self._page(pages, prefix):
            for info in map(_info, page):
                if info.key <= last:
                    raise StoreRefused(
                        f"{self._name} lists {info.key} after {last}, not in the order of keys"
                    )
                last = info.key
                if info.key.startswith(prefix):
                    if info.key > after:
                        yield info
                elif info.key > prefix:
                    return

    async def close(self) -> None:
        self._closed = True
        await self._threads.close()

    async def _put(self, key: str, body: Buffer, *, conditional: bool) -> None:
        with self._errors("write", key):
            async with asyncio.timeout(self._timeout_seconds):
                await obstore.put_async(
                    self._client,
                    key,
                    body,
                    mode="create" if conditional else "overwrite",
                    use_multipart=False,
                )

    async def _get(self, key: str, start: int, size_bytes: int) -> memoryview:
        with self._errors("read", key):
            async with asyncio.timeout(self._timeout_seconds):
                found = await obstore.get_async(
                    self._client, key, options={"range": (start, start + size_bytes)}
                )
                content = memoryview(await found.bytes_async())
        object_size = found.meta["size"]
        there = min(size_bytes, object_size - start)
        if len(content) != there:
            raise StoreUnavailable(
                f"{self._name}: received {len(content)} bytes of object {key}, expected {there}"
            )
        if there < size_bytes:
            raise ObjectTruncated(key, start, size_bytes, object_size, content=content)
        return content

    async def _delete(self, keys: Sequence[str]) -> None:
        with self._errors("delete", f"{keys[0]} and {len(keys) - 1} more"):
            async with asyncio.timeout(self._timeout_seconds):
                try:
                    await obstore.delete_async(self._client, keys)
                    return
                except (FileNotFoundError, BaseError) as error:
                    # Some stores raise this when another client deletes the same object.
                    if not isinstance(error, FileNotFoundError) and "NoSuchKey" not in str(error):
                        raise
                    if len(keys) == 1:
                        return
        for key in keys:
            await self._delete([key])

    async def _page(
        self, pages: AsyncIterator[Sequence[ObjectMeta]], prefix: str
    ) -> Sequence[ObjectMeta]:
        page: Sequence[ObjectMeta] = ()
        with self._errors("list", prefix), suppress(StopAsyncIteration):
            async with asyncio.timeout(self._timeout_seconds):
                page = await pages.__anext__()
        return page

    @contextmanager
    def _errors(self, doing: str, key: str) -> Iterator[None]:
        """Convert the client's errors to errors of this package."""
        if self._closed:
            raise StoreClosed(f"{self._name} is closed")
        try:
            yield
        except FileNotFoundError as error:
            if doing in _READING and not _NO_BUCKET.search(str(error)):
                raise ObjectNotFound(key) from error
            raise _translated(error, f"{self._name}: cannot {doing} {key}") from error
        except AlreadyExistsError as error:
            raise ObjectExists(key) from error
        except TimeoutError as error:
            raise StoreUnavailable(
                f"{self._name}: cannot {doing} {key}: no answer within {self._timeout_seconds:g} s"
            ) from error
        except (BaseError, OSError, ValueError) as error:
            raise _translated(error, f"{self._name}: cannot {doing} {key}") from error


class _Stream:
    """Iterator over the pieces of an upload, which counts their bytes.

    It stores an error of the iterator in `failure`, because obstore raises another one instead.
    """

    def __init__(self, first: Sequence[Buffer], others: AsyncIterator[Buffer]) -> None:
        self.size_bytes = 0
        self.failure: Exception | None = None
        self.on_piece: Callable[[], None] = _nothing
        self._first = deque(first)
        self._others = others

    def __aiter__(self) -> _Stream:
        return self

    async def __anext__(self) -> Buffer:
        try:
            piece = self._first.popleft() if self._first else await anext(self._others)
        except StopAsyncIteration:
            raise
        except Exception as error:
            self.failure = error
            raise
        self.on_piece()
        self.size_bytes += len(piece)
        return piece


def _nothing() -> None:
    return


class _NotImplemented(StoreRefused):
    """The store does not support a header of the request."""


class _RangeBeyond(StoreRefused):
    """The requested range begins at or after the end of the object."""


def _translated(error: Exception, what: str) -> PenstockError:
    text = str(error)
    reason = without_credentials_in(text.partition("\n")[0])[:_REASON_CHARACTERS_MAX]
    message = f"{what}: {reason}"
    found = _STATUS.search(text)
    status = int(next(filter(None, found.groups()))) if found else 0
    if status == _NOT_IMPLEMENTED_STATUS:
        return _NotImplemented(message)
    if status == _RANGE_STATUS or "InvalidRange" in text:
        return _RangeBeyond(message)
    if isinstance(error, (*_REFUSALS, FileNotFoundError)):
        return StoreRefused(message)
    if status in THROTTLED_STATUS or _THROTTLED.search(text):
        return StoreThrottled(message)
    return StoreRefused(message) if 400 <= status < 500 else StoreUnavailable(message)


def _joined(pieces: Sequence[Buffer], size_bytes: int) -> memoryview:
    """Return all pieces in one buffer. NumPy copies without holding the interpreter lock."""
    joined = np.empty(size_bytes, np.uint8)
    position = 0
    for piece in pieces:
        if len(piece):
            joined[position : position + len(piece)] = np.frombuffer(piece, np.uint8)
            position += len(piece)
    return joined.data


def _info(meta: ObjectMeta) -> ObjectInfo:
    modified: datetime = meta["last_modified"]
    return ObjectInfo(meta["path"], meta["size"], int(modified.timestamp() * 1000))
