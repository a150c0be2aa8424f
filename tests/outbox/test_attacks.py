"""Attackers with write access to the tree or topic cannot redirect readers, writers or the sweeper,
and written files are readable only as the settings allow."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.base.crc import crc32c
from penstock.base.errors import PenstockError
from penstock.outbox import layout
from penstock.outbox.errors import InvalidPath, NotAFile, PathEscapes, PayloadMissing
from penstock.outbox.gc.pointer_index import Window
from penstock.outbox.gc.tree import TreeFiles, WalkCounts, walk
from penstock.outbox.layout import batch_directory, hour_directory
from penstock.outbox.pointer import Pointer
from penstock.outbox.reader.reader import OutboxReader, check_file
from penstock.outbox.writer.safe_write import MODES, Tree, WritePlan
from tests.faulty_files import FaultyFiles
from tests.outbox.test_files import AT_MS, plan

SECRET = b"outside"
MEETINGS = 50


@contextmanager
def umask(bits: int) -> Iterator[None]:
    before = os.umask(bits)
    try:
        yield
    finally:
        os.umask(before)


_SWAPPER = """
import ctypes, os, sys
place, link = map(os.fsencode, sys.argv[1:])
exchange = ctypes.CDLL(None).renameat2
print("begins", flush=True)
while True:
    assert exchange(-100, place, -100, link, 2) == 0
"""


@contextmanager
def swapping(place: Path, other: Path) -> Iterator[None]:
    """Switch `place` between a directory and a link to `other`, all the time."""
    link = place.with_name("aside")
    link.symlink_to(other, target_is_directory=True)
    command = [sys.executable, "-c", _SWAPPER, str(place), str(link)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begins\n"
        try:
            yield
            assert process.poll() is None
        finally:
            process.kill()


def meetings(attempt: Callable[[int], object]) -> None:
    """Make attempts until many have met a link, and many have met none."""
    met = passed = number = 0
    while min(met, passed) < MEETINGS:
        number += 1
        try:
            attempt(number)
            passed += 1
        except PathEscapes:
            met += 1
        except PenstockError:
            passed += 1


def pointer(content: bytes, file_path: str) -> Pointer:
    return Pointer(
        batch_id="b",
        partition_id="p",
        file_path=file_path,
        size_bytes=len(content),
        crc32c=crc32c(content),
        codec="none",
        event_count=1,
    )


@pytest.fixture(params=["openat2", "walk"])
def opener(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "_works", request.param == "openat2")


DATA = f"{batch_directory('p', 'b', AT_MS)}/data.bin"


@pytest.mark.parametrize("level", range(1, 7))
@pytest.mark.usefixtures("opener")
def test_symlinks_created_during_a_read_are_not_followed(tmp_path: Path, level: int) -> None:
    """The file outside has the size and the checksum of the pointer."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    inside = root / DATA
    inside.parent.mkdir(parents=True)
    inside.write_bytes(b"within!")
    parts = Path(DATA).parts
    beneath = outside.joinpath(*parts[level:])
    beneath.parent.mkdir(parents=True)
    beneath.write_bytes(SECRET)
    with OutboxReader(root) as reader, swapping(root.joinpath(*parts[:level]), outside):

        def attempt(number: int) -> None:
            wanted = b"within!" if number % 2 else SECRET
            assert reader.read(pointer(wanted, DATA)) == b"within!"

        meetings(attempt)


@pytest.mark.parametrize("level", range(1, 6))
def test_symlinks_created_during_a_write_are_not_followed(tmp_path: Path, level: int) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    place = root.joinpath(*Path(hour_directory("p", AT_MS)).parts[:level])
    place.mkdir(parents=True)
    outside.mkdir()

    def attempt(number: int) -> None:
        tree = Tree(root)  # one that has nothing open
        try:
            tree.write(plan(batch=str(number), durable=False))
        finally:
            tree.close()

    with swapping(place, outside):
        meetings(attempt)
    assert list(outside.iterdir()) == []


def test_a_walk_under_which_links_are_put_sees_nothing_outside(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    hour = hour_directory("p", AT_MS)
    (root / hour / "batch-within").mkdir(parents=True)
    (outside / hour.partition("/")[2] / "batch-outside").mkdir(parents=True)
    files, seen = TreeFiles(), set[str]()
    handle = files.open_root(root)
    try:
        with swapping(root / "p", outside):
            for _ in range(1000):
                for found in walk(files, handle, Window(), WalkCounts()):
                    seen.update(entry.name for entry in files.entries(found.handle))
    finally:
        os.close(handle)
    assert seen == {"batch-within"}


@pytest.mark.parametrize(
    "file_path",
    [
        "../outside",
        "/etc/passwd",
        "p/../../outside/data.bin",
        DATA.replace("p/", "./p/", 1),
        DATA + "/../data.bin",
        DATA.replace("data.bin", "data.bin.tmp.abc.1"),
        DATA.replace("data.bin", "other"),
        DATA.replace("/", "//", 1),
        DATA.replace("batch-b", "batch-.."),
        DATA + "\0",
        "proc/self/root/etc/passwd",
    ],
)
def test_a_pointer_names_payloads_and_nothing_else(tmp_path: Path, file_path: str) -> None:
    (tmp_path / "root" / DATA).parent.mkdir(parents=True)
    (tmp_path / "outside").write_bytes(SECRET)
    with (
        OutboxReader(tmp_path / "root") as reader,
        pytest.raises((PathEscapes, InvalidPath, PayloadMissing)),
    ):
        reader.read(pointer(SECRET, file_path))


def test_a_hard_link_to_a_foreign_file_is_not_a_payload(tmp_path: Path) -> None:
    """A hard link requires rights on the file (fs.protected_hardlinks), and the pointer its
    checksum."""
    (tmp_path / "root" / DATA).parent.mkdir(parents=True)
    (tmp_path / "outside").write_bytes(SECRET)
    os.link(tmp_path / "outside", tmp_path / "root" / DATA)
    with (
        OutboxReader(tmp_path / "root") as reader,
        pytest.raises(PenstockError, match="has CRC32C"),
    ):
        reader.read(pointer(b"guessed", DATA))


def test_a_link_in_a_payloads_place_is_neither_read_nor_written_through(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / DATA).parent.mkdir(parents=True)
    outside.write_bytes(SECRET)
    (root / DATA).symlink_to(outside)
    tree = Tree(root)
    try:
        with pytest.raises(PathEscapes):
            tree.write(plan())
    finally:
        tree.close()
    with OutboxReader(root) as reader, pytest.raises(PathEscapes):
        reader.read(pointer(SECRET, DATA))
    assert outside.read_bytes() == SECRET


@pytest.mark.parametrize("kind", ["fifo", "socket", "directory"])
def test_what_is_no_file_is_not_waited_for(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import socket

    place = tmp_path / "root" / DATA
    place.parent.mkdir(parents=True)
    if kind == "fifo":
        os.mkfifo(place)
    elif kind == "socket":
        monkeypatch.chdir(place.parent)  # the path is too long for a socket
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(place.name)
    else:
        place.mkdir()
    with OutboxReader(tmp_path / "root") as reader, pytest.raises(PenstockError):
        reader.read(pointer(bytes(7), DATA))


def test_a_device_is_no_payload() -> None:
    with pytest.raises(NotAFile, match="is not a regular file"):
        check_file(pointer(b"", DATA), os.stat("/dev/zero"))


# Permissions


def modes_below(root: Path) -> set[tuple[bool, int]]:
    """Return whether each entry below a root is a directory, and its permissions."""
    return {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in root.rglob("*")}


def with_modes(access: str, **changes: Any) -> WritePlan:

    return replace(plan(**changes), modes=MODES[access])


@pytest.mark.parametrize("bits", [0, 0o022, 0o077])
@pytest.mark.parametrize(
    ("access", "file", "directory"),
    [("owner", 0o600, 0o700), ("group", 0o640, 0o750), ("all", 0o644, 0o755)],
)
def test_settings_decide_permissions_and_not_the_umask(
    tmp_path: Path, bits: int, access: str, file: int, directory: int
) -> None:
    with umask(bits):
        tree = Tree(tmp_path)
        try:
            tree.write(with_modes(access))
        finally:
            tree.close()
    assert modes_below(tmp_path) == {(False, file), (True, directory)}


def test_nothing_is_readable_by_others_at_any_moment(tmp_path: Path) -> None:
    seen = set[tuple[bool, int]]()

    def look(number: int, name: str, arguments: Any, result: Any) -> None:
        seen.update(modes_below(tmp_path))

    with umask(0):
        tree = Tree(tmp_path, FaultyFiles(after=look))
        try:
            tree.write(with_modes("owner"))
            tree.check(0)
        finally:
            tree.close()
    assert seen == {(False, 0o600), (True, 0o700)}


def test_a_directory_keeps_passing_on_its_group(tmp_path: Path) -> None:
    group = next((getgroup for getgroup in os.getgroups() if getgroup != os.getgid()), os.getgid())
    os.chown(tmp_path, -1, group)
    tmp_path.chmod(0o2770)
    with umask(0o077):
        tree = Tree(tmp_path)
        try:
            tree.write(with_modes("group"))
        finally:
            tree.close()
    assert modes_below(tmp_path) == {(False, 0o640), (True, 0o2750)}
    assert {path.stat().st_gid for path in tmp_path.rglob("*")} == {group}


def test_a_mode_that_cannot_be_set_leaves_nothing_open_and_nothing_visible(
    tmp_path: Path, open_descriptors: Callable[[], int]
) -> None:
    before = open_descriptors()
    files = FaultyFiles()
    files.fail = lambda name, path: 1 if name == "set_mode" else None
    tree = Tree(tmp_path, files)
    for _ in range(9):  # each attempt gets a level further
        with pytest.raises(PenstockError, match="EPERM"):
            tree.write(with_modes("group"))
    tree.close()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert open_descriptors() == before
    shutil.rmtree(tmp_path)


@pytest.fixture
def open_descriptors() -> Callable[[], int]:
    return lambda: len(os.listdir("/proc/self/fd"))
