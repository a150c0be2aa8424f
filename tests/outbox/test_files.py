"""Safe write on real files: the remaining tree, with every call failing in turn."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock.base.crc import crc32c
from penstock.base.errors import InvalidError, PenstockError, RetriableError, UnavailableError
from penstock.base.files import MACHINE_FILES, Files
from penstock.outbox.errors import (
    AccessDenied,
    BatchConflict,
    NotAFile,
    OutboxClosed,
    PathEscapes,
    ReadOnlyRoot,
    RootUnavailable,
    StorageFull,
    SyncFailed,
    TooManyOpenFiles,
    UnfitFileSystem,
    WriteFailed,
)
from penstock.outbox.layout import batch_directory, hour_directory, temporary_name
from penstock.outbox.writer.safe_write import (
    CHECKSUM_ATTRIBUTE,
    SLICE_BYTES,
    Tree,
    WritePlan,
    Written,
    as_buffers,
)
from tests.faulty_files import FaultyFiles, open_below

AT_MS = 1_779_632_400_000
PAYLOAD = [b"first ", b"", b"second ", b"x" * 3000]
CONTENT = b"".join(PAYLOAD)
LARGE = [b"y" * SLICE_BYTES, b"z" * 100_000]


def plan(
    payload: Sequence[bytes] = PAYLOAD,
    *,
    partition: str = "p",
    batch: str = "b",
    attempt: int = 1,
    durable: bool = True,
) -> WritePlan:
    buffers, size_bytes = as_buffers(list(payload))
    return WritePlan(
        hour_directory=hour_directory(partition, AT_MS),
        batch_name=f"batch-{batch}",
        temporary_name=temporary_name("abc", attempt),
        buffers=buffers,
        size_bytes=size_bytes,
        durable=durable,
    )


def files_of(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


LEVELS = 7  # batch, hour, day, month, year, partition, root
DATA = f"{batch_directory('p', 'b', AT_MS)}/data.bin"


@pytest.fixture
def open_tree(tmp_path: Path) -> Iterator[Callable[..., Tree]]:
    trees: list[Tree] = []

    def opening(files: Files = MACHINE_FILES, **options: Any) -> Tree:
        trees.append(Tree(tmp_path, files, **options))
        return trees[-1]

    yield opening
    for tree in trees:
        tree.close()


@pytest.fixture(autouse=True)
def no_descriptor_is_left(tmp_path: Path) -> Iterator[None]:
    yield
    assert open_below(tmp_path) == []


@pytest.mark.parametrize("durable", [True, False])
def test_a_payload_is_there_whole(
    tmp_path: Path, open_tree: Callable[..., Tree], durable: bool
) -> None:
    written = open_tree().write(plan(durable=durable))
    assert written == Written(size_bytes=len(CONTENT), crc32c=crc32c(CONTENT), existing=False)
    assert files_of(tmp_path) == {DATA: CONTENT}


@pytest.mark.parametrize("count", [0, 1, 1023, 1024, 1025, 2048, 5000])
def test_any_number_of_buffers(tmp_path: Path, open_tree: Callable[..., Tree], count: int) -> None:
    payload = [b"%d," % number for number in range(count)]
    files = FaultyFiles()
    written = open_tree(files).write(plan(payload))
    content = b"".join(payload)
    assert files_of(tmp_path) == {DATA: content}
    assert (written.size_bytes, written.crc32c) == (len(content), crc32c(content))
    assert files.calls.count("write") == -(-count // 1024)


def test_large_buffers_are_written_in_slices(
    tmp_path: Path, open_tree: Callable[..., Tree]
) -> None:
    payload = [os.urandom(700_000), os.urandom(2_500_000), os.urandom(3)]
    files = FaultyFiles()
    written = open_tree(files).write(plan(payload))
    content = b"".join(payload)
    assert files_of(tmp_path) == {DATA: content}
    assert written.crc32c == crc32c(content)
    slices = -(-len(content) // SLICE_BYTES)
    assert slices == 4
    assert files.calls.count("write") == slices
    assert files.calls.count("start_write_back") == slices - 1


@pytest.mark.parametrize("at_most", [1, 7, 999])
def test_short_writes_are_continued(
    tmp_path: Path, open_tree: Callable[..., Tree], at_most: int
) -> None:
    written = open_tree(FaultyFiles(write_bytes_max=at_most)).write(plan())
    assert files_of(tmp_path) == {DATA: CONTENT}
    assert written.crc32c == crc32c(CONTENT)


def test_a_write_that_takes_nothing_fails(tmp_path: Path, open_tree: Callable[..., Tree]) -> None:
    with pytest.raises(WriteFailed, match="wrote no bytes"):
        open_tree(FaultyFiles(write_bytes_max=0)).write(plan())
    assert files_of(tmp_path) == {}


@pytest.mark.parametrize("durable", [True, False])
def test_a_retry_finds_the_file_and_reads_it_at_most_once(
    tmp_path: Path, open_tree: Callable[..., Tree], durable: bool
) -> None:
    """A durable file with its recorded checksum is not read at all."""
    open_tree().write(plan(durable=durable))
    files = FaultyFiles()
    again = open_tree(files).write(plan(attempt=2, durable=durable))
    assert again == Written(size_bytes=len(CONTENT), crc32c=crc32c(CONTENT), existing=True)
    assert not {"create", "write", "rename_new"} & set(files.calls)
    assert ("sync_file" in files.calls) == durable
    assert ("sync_directory" in files.calls) == durable
    assert files.calls.count("read") == (0 if durable else 1)


def older(tmp_path: Path, recorded: bytes | None) -> None:
    """Leave the file as another writer may have: without a recorded checksum, or with nonsense."""
    os.removexattr(tmp_path / DATA, CHECKSUM_ATTRIBUTE)
    if recorded is not None:
        os.setxattr(tmp_path / DATA, CHECKSUM_ATTRIBUTE, recorded)


@pytest.mark.parametrize("recorded", [None, b"", b"nonsense", b"DEADBEEF", b"0" * 100])
def test_a_file_without_a_recorded_checksum_is_read(
    tmp_path: Path, open_tree: Callable[..., Tree], recorded: bytes | None
) -> None:
    size_bytes = 2 * SLICE_BYTES + 1
    payload = [os.urandom(size_bytes)]
    open_tree().write(plan(payload))
    older(tmp_path, recorded)
    files = FaultyFiles()
    tree = open_tree(files)
    assert tree.write(plan(payload, attempt=2)).existing
    assert files.calls.count("read") == 3
    with pytest.raises(BatchConflict):
        tree.write(plan([os.urandom(size_bytes)], attempt=3))


def test_a_file_system_without_attributes(tmp_path: Path, open_tree: Callable[..., Tree]) -> None:
    def unsupported(number: int, name: str, arguments: tuple[Any, ...]) -> None:
        if name in {"set_attribute", "attribute"}:
            raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    tree = open_tree(FaultyFiles(unsupported))
    assert not tree.write(plan()).existing
    assert tree.write(plan(attempt=2)).existing
    with pytest.raises(BatchConflict):
        tree.write(plan([b"q" * len(CONTENT)], attempt=3))
    assert files_of(tmp_path) == {DATA: CONTENT}


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("other", [b"q" * len(CONTENT), b"four", b"", CONTENT + b"."])
def test_another_content_is_a_conflict(
    tmp_path: Path, open_tree: Callable[..., Tree], recorded: bool, other: bytes
) -> None:
    tree = open_tree()
    tree.write(plan())
    if not recorded:
        older(tmp_path, None)
    with pytest.raises(BatchConflict) as info:
        tree.write(plan([other], attempt=2))
    assert isinstance(info.value, InvalidError)
    assert str(info.value) == (
        f"batch b: {DATA} has 3013 bytes with CRC32C {crc32c(CONTENT):08x}, but the payload has"
        f" {len(other)} bytes with CRC32C {crc32c(other):08x}:"
        " use a batch id for one payload only"
    )
    assert files_of(tmp_path) == {DATA: CONTENT}


def test_the_first_write_to_an_hour_syncs_to_the_root_and_later_ones_do_not(
    open_tree: Callable[..., Tree],
) -> None:
    files = FaultyFiles()
    tree = open_tree(files)
    tree.write(plan(batch="one"))
    assert files.calls.count("sync_directory") == LEVELS, (
        "batch, hour, day, month, year, partition, root"
    )
    files.calls.clear()
    tree.write(plan(batch="two"))
    assert files.calls == [
        "make_directory", "open_directory", "create", "write", "set_attribute", "sync_file",
        "close", "rename_new", "sync_directory", "sync_directory", "close",
    ]  # fmt: skip


def test_what_others_made_is_synced_too(tmp_path: Path, open_tree: Callable[..., Tree]) -> None:
    """The creator of a directory may have been killed before it was synced."""
    (tmp_path / hour_directory("p", AT_MS)).mkdir(parents=True)
    files = FaultyFiles()
    open_tree(files).write(plan())
    assert files.calls.count("sync_directory") == LEVELS


def test_a_write_that_was_not_durable_does_not_count_as_synced(
    open_tree: Callable[..., Tree],
) -> None:
    files = FaultyFiles()
    tree = open_tree(files)
    tree.write(plan(batch="one", durable=False))
    assert "sync_directory" not in files.calls
    tree.write(plan(batch="two"))
    assert files.calls.count("sync_directory") == LEVELS


ERRORS: dict[int, type[PenstockError]] = {
    errno.ENOSPC: StorageFull,
    errno.EDQUOT: StorageFull,
    errno.EMFILE: TooManyOpenFiles,
    errno.EROFS: ReadOnlyRoot,
    errno.EACCES: AccessDenied,
    errno.EIO: WriteFailed,
}


class Failing(FaultyFiles):
    """File calls of which one fails with an errno; a failed close closes all the same."""

    def __init__(self, at: int, number: int) -> None:
        super().__init__(self._fail)
        self._at = at
        self._number = number

    def _fail(self, number: int, name: str, arguments: tuple[Any, ...]) -> None:
        if number == self._at:
            if name == "close":
                os.close(arguments[0])
            raise OSError(self._number, os.strerror(self._number))


def attempt(root: Path, files: Files, plan: WritePlan) -> Written | PenstockError:
    tree = Tree(root, files)
    try:
        return tree.write(plan)
    except PenstockError as error:
        return error
    finally:
        tree.close()


@pytest.mark.parametrize("case", ["new", "found", "large"])
@pytest.mark.parametrize("number", ERRORS)
def test_every_call_fails_in_turn(tmp_path: Path, number: int, case: str) -> None:
    payload = LARGE if case == "large" else PAYLOAD
    whole = {DATA: b"".join(payload)}
    if case == "found":
        attempt(tmp_path, MACHINE_FILES, plan(payload))
    counting = FaultyFiles()
    attempt(tmp_path, counting, plan(payload, batch="b" if case == "found" else "count"))
    assert ("start_write_back" in counting.calls) == (case == "large")
    for at in range(1, len(counting.calls)):
        root = tmp_path / f"root{at}"
        if case == "found":
            shutil.copytree(tmp_path / "p", root / "p")
        else:
            root.mkdir()
        files = Failing(at, number)
        result = attempt(root, files, plan(payload, attempt=at))
        name = files.calls[at]
        where = f"{errno.errorcode[number]} at call {at}, {name}"
        assert open_below(root) == [], where
        renamed = "rename_new" in files.calls[:at]
        there = renamed or case == "found" or isinstance(result, Written)
        assert files_of(root) == (whole if there else {}), where
        if isinstance(result, PenstockError):
            synced = name.startswith("sync") and number == errno.EIO
            assert type(result) is (SyncFailed if synced else ERRORS[number]), where
            assert isinstance(result, (RetriableError, UnavailableError))
        else:
            assert name in {
                    "close", "start_write_back", "set_attribute", "attribute",
                }, f"{where}: it must not be passed over"  # fmt: skip
            assert counting.calls[at + 1 : at + 2] != ["rename_new"], (
                "a file's close reports writes"
            )
        retried = attempt(root, MACHINE_FILES, plan(payload, attempt=at + 1))
        assert isinstance(retried, Written), where
        assert files_of(root) == whole, where


def test_a_failed_sync_is_never_repeated(tmp_path: Path, open_tree: Callable[..., Tree]) -> None:
    """The retry writes a new file, under another name, from its beginning."""
    synced: list[int] = []
    created: list[str] = []

    def fail_once(number: int, name: str, arguments: tuple[Any, ...]) -> None:
        if name == "create":
            created.append(arguments[0])
        if name == "sync_file":
            synced.append(os.fstat(arguments[0]).st_ino)
            if len(synced) == 1:
                raise OSError(errno.EIO, "")

    tree = open_tree(FaultyFiles(fail_once))
    with pytest.raises(SyncFailed):
        tree.write(plan())
    assert files_of(tmp_path) == {}
    tree.write(plan(attempt=2))
    assert len(synced) == 2
    assert created == ["data.bin.tmp.abc.1", "data.bin.tmp.abc.2"]
    assert files_of(tmp_path) == {DATA: CONTENT}


def test_a_directory_whose_sync_failed_is_reopened(
    tmp_path: Path, open_tree: Callable[..., Tree]
) -> None:
    synced: list[int] = []
    failing = False

    def fail(number: int, name: str, arguments: tuple[Any, ...]) -> None:
        if name == "sync_directory":
            synced.append(arguments[0])
            if failing and len(synced) == 2:
                raise OSError(errno.EIO, "")

    files = FaultyFiles(fail)
    tree = open_tree(files)
    tree.write(plan(batch="warm"))
    synced.clear()
    failing = True
    with pytest.raises(SyncFailed):
        tree.write(plan())
    assert len(synced) == 2, "the batch's directory and the hour's, which was kept open"
    files.calls.clear()
    synced.clear()
    failing = False
    assert tree.write(plan(attempt=2)).existing
    assert files.calls[0] == "open_directory", "the walk begins again"
    assert len(synced) == LEVELS


class WithoutNoReplace(FaultyFiles):
    """File system like NFS, without renameat2, and on request without links."""

    def __init__(self, number: int = errno.EINVAL, link_number: int | None = None) -> None:
        super().__init__(self._refuse)
        self._number = number
        self._link_number = link_number

    def _refuse(self, number: int, name: str, arguments: tuple[Any, ...]) -> None:
        if name == "rename_new":
            raise OSError(self._number, "")
        if name == "link" and self._link_number is not None:
            raise OSError(self._link_number, "")


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSYS, errno.EPERM])
def test_files_are_linked_where_rename_without_replace_fails(
    tmp_path: Path, open_tree: Callable[..., Tree], number: int
) -> None:
    files = WithoutNoReplace(number)
    assert not open_tree(files).write(plan()).existing
    assert files_of(tmp_path) == {DATA: CONTENT}
    assert os.stat(tmp_path / DATA).st_nlink == 1
    assert files.calls.index("remove") < files.calls.index("sync_directory")


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK])
def test_a_file_system_that_could_replace_is_refused(
    tmp_path: Path, open_tree: Callable[..., Tree], number: int
) -> None:
    with pytest.raises(UnfitFileSystem, match="neither rename without replacing nor link"):
        open_tree(WithoutNoReplace(link_number=number)).write(plan())
    assert files_of(tmp_path) == {}


@pytest.mark.parametrize("links", [False, True])
@pytest.mark.parametrize("same", [True, False])
def test_of_two_writers_of_a_batch_one_writes(
    tmp_path: Path, open_tree: Callable[..., Tree], links: bool, same: bool
) -> None:
    """The second has checked, found nothing, and written all before the first renames."""
    other = open_tree()
    payload = PAYLOAD if same else [b"o" * len(CONTENT)]
    outcome: list[Written] = []

    def late(number: int, name: str, arguments: tuple[Any, ...]) -> None:
        if name == "rename_new":
            if not outcome:
                outcome.append(other.write(plan(payload, attempt=2)))
            if links:
                raise OSError(errno.EINVAL, "")

    tree = open_tree(FaultyFiles(late))
    if same:
        assert tree.write(plan()).existing
    else:
        with pytest.raises(BatchConflict):
            tree.write(plan())
    assert not outcome[0].existing
    assert files_of(tmp_path) == {DATA: b"".join(payload)}, "the first one's, and no orphan"


def test_many_threads_write_the_same_batches(
    tmp_path: Path, open_tree: Callable[..., Tree]
) -> None:
    tree = open_tree(hours_max=2)
    gate = threading.Barrier(8)

    def work(thread: int) -> list[bool]:
        gate.wait()
        return [
            tree.write(
                plan(partition=f"p{number % 5}", batch=str(number), attempt=thread, durable=False)
            ).existing
            for number in range(40)
        ]

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(work, range(8)))
    for number in range(40):
        assert [row[number] for row in found].count(False) == 1, "one wrote, the others found it"
    assert set(files_of(tmp_path).values()) == {CONTENT}
    assert len(files_of(tmp_path)) == 40


def test_directories_that_vanish_are_made_again(
    tmp_path: Path, open_tree: Callable[..., Tree]
) -> None:
    """A sweeper removes empty directories, at any moment before the file is created in them."""
    for at in range(1, 40):
        root = tmp_path / str(at)
        root.mkdir()

        def remove(
            number: int, name: str, arguments: tuple[Any, ...], root: Path = root, at: int = at
        ) -> None:
            if number == at and not list(root.rglob("data.bin*")):
                shutil.rmtree(root / "p", ignore_errors=True)

        result = attempt(root, FaultyFiles(remove), plan())
        assert isinstance(result, Written), at
        assert files_of(root) == {DATA: CONTENT}


def test_an_hour_that_was_removed_between_two_writes(
    tmp_path: Path, open_tree: Callable[..., Tree]
) -> None:
    files = FaultyFiles()
    tree = open_tree(files)
    tree.write(plan(batch="one"))
    shutil.rmtree(tmp_path / "p")
    files.calls.clear()
    tree.write(plan())
    assert files_of(tmp_path) == {DATA: CONTENT}
    assert files.calls.count("sync_directory") == LEVELS, "its directories are new ones"


def test_directories_that_keep_vanishing_end_the_attempt(
    tmp_path: Path, open_tree: Callable[..., Tree]
) -> None:
    def missing(number: int, name: str, arguments: tuple[Any, ...]) -> None:
        if name == "create":
            raise OSError(errno.ENOENT, "")

    with pytest.raises(WriteFailed, match=r"(look|create) .*ENOENT"):
        open_tree(FaultyFiles(missing)).write(plan())


@pytest.mark.parametrize("level", range(6))
@pytest.mark.parametrize("inside", [True, False])
def test_no_symlink_is_followed(
    tmp_path: Path, open_tree: Callable[..., Tree], level: int, inside: bool
) -> None:
    parts = batch_directory("p", "b", AT_MS).split("/")
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    target = tmp_path / "elsewhere" if inside else outside
    target.mkdir()
    above = tmp_path.joinpath(*parts[:level])
    above.mkdir(parents=True, exist_ok=True)
    (above / parts[level]).symlink_to(target, target_is_directory=True)
    with pytest.raises(PathEscapes, match="through a symlink"):
        open_tree().write(plan())
    assert list(target.iterdir()) == []


@pytest.mark.parametrize("dangling", [True, False])
def test_a_symlink_in_the_payloads_place(
    tmp_path: Path, open_tree: Callable[..., Tree], dangling: bool
) -> None:
    secret = tmp_path / "secret"
    if not dangling:
        secret.write_bytes(CONTENT)
    (tmp_path / DATA).parent.mkdir(parents=True)
    (tmp_path / DATA).symlink_to(secret)
    with pytest.raises(PathEscapes):
        open_tree().write(plan())


def test_things_of_another_kind_in_the_way(tmp_path: Path, open_tree: Callable[..., Tree]) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotAFile):
        open_tree().write(plan(partition="file"))
    (tmp_path / DATA).mkdir(parents=True)
    with pytest.raises(NotAFile):
        open_tree().write(plan())
    os.mkfifo(tmp_path / batch_directory("p", "pipe", AT_MS).replace("batch-pipe", "batch-x"))
    with pytest.raises(NotAFile):
        open_tree().write(plan(batch="x"))


def test_the_root_must_be_there(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name, reason in (("missing", "ENOENT"), ("file", "ENOTDIR")):
        with pytest.raises(RootUnavailable, match=reason):
            Tree(tmp_path / name)
    assert not (tmp_path / "missing").exists()


def test_a_root_may_itself_be_a_symlink(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    tree = Tree(tmp_path / "link")
    tree.write(plan())
    tree.close()
    assert files_of(tmp_path / "real") == {DATA: CONTENT}


def test_a_closed_tree_takes_nothing(open_tree: Callable[..., Tree]) -> None:
    tree = open_tree()
    tree.close()
    with pytest.raises(OutboxClosed):
        tree.write(plan())


def test_open_hours_are_bounded(tmp_path: Path, open_tree: Callable[..., Tree]) -> None:
    tree = open_tree(hours_max=3)
    assert len(open_below(tmp_path)) == 1
    for number in range(10):
        tree.write(plan(partition=f"p{number}", durable=False))
    assert len(open_below(tmp_path)) == 1 + 3
