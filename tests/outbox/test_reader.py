"""Reader: valid payloads by three methods, and every kind of invalid pointer or file."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.base.crc import crc32c
from penstock.base.errors import FencedError, InvalidError, PenstockError
from penstock.outbox.errors import (
    InvalidPath,
    NotAFile,
    PathEscapes,
    PayloadMissing,
    RootUnavailable,
)
from penstock.outbox.layout import data_path
from penstock.outbox.pointer import Pointer
from penstock.outbox.reader.policy import (
    ChecksumMismatch,
    PayloadTooLarge,
    PayloadUnreadable,
    SizeMismatch,
    Trouble,
    classify,
    open_error,
)
from penstock.outbox.reader.reader import OutboxReader
from tests.faulty_files import open_below
from tests.outbox.forked import exit_code_of

AT_MS = 1_779_580_800_000
PATH = data_path("p", "b", AT_MS)


def pointer_of(payload: bytes, **more: Any) -> Pointer:
    given: dict[str, Any] = {
        "file_path": PATH,
        "batch_id": "b",
        "partition_id": "p",
        "size_bytes": len(payload),
        "crc32c": crc32c(payload),
        "codec": "none",
        "event_count": 1,
    }
    return Pointer(**(given | more))


def put(root: Path, payload: bytes, path: str = PATH) -> Pointer:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(payload)
    return pointer_of(payload, file_path=path)


def every_way(reader: OutboxReader, pointer: Pointer) -> list[bytes]:
    with reader.open(pointer, chunk_bytes=7) as stream:
        streamed = b"".join(stream)
        assert stream.verified
    return [reader.read(pointer), streamed, bytes(reader.map(pointer))]


@pytest.mark.parametrize("size", [0, 1, 6, 7, 8, 14, 4_096, 100_003])
def test_three_ways_to_the_same_bytes(tmp_path: Path, size: int) -> None:
    payload = os.urandom(size)
    pointer = put(tmp_path, payload)
    with OutboxReader(tmp_path) as reader:
        assert every_way(reader, pointer) == [payload] * 3
        reader.exists(pointer)


def fails(root: Path, pointer: Pointer, kind: type[PenstockError], says: str | None = None) -> None:
    """Check that all methods reject a pointer alike, and leave no descriptor open."""
    with OutboxReader(root) as reader:
        for way in (reader.read, reader.map, lambda p: b"".join(reader.open(p))):
            with pytest.raises(kind, match=says):
                way(pointer)
    assert open_below(root) == []


def test_a_missing_payload(tmp_path: Path) -> None:
    fails(tmp_path, pointer_of(b"x"), PayloadMissing, "the payload is missing")
    (tmp_path / PATH).parent.mkdir(parents=True)
    fails(tmp_path, pointer_of(b"x"), PayloadMissing)


def test_a_torn_payload(tmp_path: Path) -> None:
    pointer = put(tmp_path, b"0123456789")
    (tmp_path / PATH).write_bytes(b"01234")
    fails(tmp_path, pointer, SizeMismatch, "has 5 bytes, but its pointer says 10")


def test_a_payload_of_another_batch(tmp_path: Path) -> None:
    pointer = put(tmp_path, b"0123456789")
    (tmp_path / PATH).write_bytes(b"9876543210")
    with OutboxReader(tmp_path) as reader:
        with pytest.raises(ChecksumMismatch, match="instead of"):
            reader.read(pointer)
        with pytest.raises(ChecksumMismatch):
            reader.map(pointer)
        with reader.open(pointer, chunk_bytes=4) as stream:
            handed = [stream.read() for _ in range(3)]
            assert b"".join(handed) == b"9876543210"
            assert not stream.verified
            with pytest.raises(ChecksumMismatch):
                stream.read()
            assert not stream.verified


@pytest.mark.parametrize("bit", range(8))
def test_one_bit(tmp_path: Path, bit: int) -> None:
    payload = bytearray(os.urandom(1_000))
    pointer = put(tmp_path, bytes(payload))
    payload[500] ^= 1 << bit
    (tmp_path / PATH).write_bytes(payload)
    with OutboxReader(tmp_path) as reader, pytest.raises(ChecksumMismatch):
        reader.read(pointer)


def test_a_payload_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    pointer = put(tmp_path, b"x" * 100)
    with OutboxReader(tmp_path) as reader, reader.open(pointer, chunk_bytes=10) as stream:
        stream.read()
        os.truncate(tmp_path / PATH, 15)
        stream.read()
        with pytest.raises(SizeMismatch, match="has 15 bytes"):
            stream.read()


def test_a_claim_too_large_takes_no_memory(tmp_path: Path) -> None:
    file = tmp_path / PATH
    file.parent.mkdir(parents=True)
    with file.open("wb") as sparse:
        sparse.truncate(1 << 40)

    def work() -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        fails(tmp_path, pointer_of(b"", size_bytes=1 << 40), PayloadTooLarge, "limit is 1073741824")
        fails(tmp_path, pointer_of(b"", size_bytes=-1), PayloadTooLarge)
        fails(tmp_path, pointer_of(b"", size_bytes=1 << 30), SizeMismatch)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10

    assert exit_code_of(work) == 0


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "../secret",
        "p/../../secret",
        "p/./" + PATH[2:],
        "p//" + PATH[2:],
        PATH + "/",
        PATH + "\0",
        PATH.replace("data.bin", "data.bin.tmp.abc.1"),
        PATH.replace("data.bin", "DATA.BIN"),
        PATH.replace("batch-b", "batch-" + "b" * 65),
        PATH.replace("batch-b", "batch-\u202e"),
        PATH.replace("hour=00", "hour=24"),
        PATH.replace("day=24", "day=99"),
        ".." + PATH[1:],
        "p" * 201 + PATH[1:],
        "x" * 100_000,
        "\ud800" + PATH,
        "PATH\n" + PATH,
    ],
)
def test_paths_that_are_never_opened(tmp_path: Path, path: str) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    root = tmp_path / "root"
    root.mkdir()
    fails(root, pointer_of(b"secret", file_path=path), InvalidError)


@pytest.mark.parametrize("depth", range(1, 8))
def test_a_symlink_anywhere(tmp_path: Path, depth: int) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    pointer = put(outside, b"secret")
    parts = PATH.split("/")
    link = root.joinpath(*parts[:depth])
    link.parent.mkdir(parents=True)
    link.symlink_to(outside.joinpath(*parts[:depth]))
    assert (root / PATH).read_bytes() == b"secret"
    fails(root, pointer, PathEscapes, "symlink")


def test_what_is_no_file(tmp_path: Path) -> None:
    (tmp_path / PATH).mkdir(parents=True)
    fails(tmp_path, pointer_of(b"x"), NotAFile)
    (tmp_path / PATH).rmdir()
    os.mkfifo(tmp_path / PATH)
    fails(tmp_path, pointer_of(b"x"), NotAFile)


def test_a_file_where_a_directory_belongs(tmp_path: Path) -> None:
    (tmp_path / "p").write_bytes(b"")
    fails(tmp_path, pointer_of(b"x"), PayloadMissing)


def test_a_root_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(RootUnavailable):
        OutboxReader(tmp_path / "none")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(RootUnavailable):
        OutboxReader(tmp_path / "file")


def test_after_the_end(tmp_path: Path) -> None:
    pointer = put(tmp_path, b"0123456789")
    reader = OutboxReader(tmp_path)
    stream = reader.open(pointer)
    view = reader.map(pointer)
    reader.close()
    reader.close()
    with pytest.raises(FencedError):
        reader.read(pointer)
    (tmp_path / PATH).unlink()
    assert b"".join(stream) == bytes(view) == b"0123456789"
    stream.close()
    with pytest.raises(FencedError):
        stream.read()


@pytest.mark.parametrize("count", [0, -1, 1 << 40])
def test_chunks_have_bounds(tmp_path: Path, count: int) -> None:
    pointer = put(tmp_path, b"x")
    with OutboxReader(tmp_path) as reader, pytest.raises(InvalidError, match="chunk_bytes"):
        reader.open(pointer, chunk_bytes=count)


def test_a_pointer_of_two_minds(tmp_path: Path) -> None:
    pointer = put(tmp_path, b"0123456789")
    fails(tmp_path, replace(pointer, size_bytes=9), SizeMismatch)
    with OutboxReader(tmp_path) as reader, pytest.raises(ChecksumMismatch):
        reader.read(replace(pointer, crc32c=0))


def test_troubles() -> None:
    import errno

    expected = {
        errno.ENOENT: (PayloadMissing, Trouble.MISSING),
        errno.ENOTDIR: (PayloadMissing, Trouble.MISSING),
        errno.ELOOP: (PathEscapes, Trouble.INVALID),
        errno.ENAMETOOLONG: (InvalidPath, Trouble.INVALID),
        errno.EIO: (PayloadUnreadable, Trouble.UNREADABLE),
        errno.ESTALE: (PayloadUnreadable, Trouble.UNREADABLE),
        errno.EACCES: (PayloadUnreadable, Trouble.UNREADABLE),
        errno.EMFILE: (PayloadUnreadable, Trouble.UNREADABLE),
    }
    for number, (kind, trouble) in expected.items():
        error = open_error("x", number)
        assert type(error) is kind
        assert classify(error)[0] is trouble
    assert classify(PenstockError("unknown"))[0] is Trouble.UNREADABLE
