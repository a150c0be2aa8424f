"""The socket file: stale, live and replaced ones, permissions, and what is never touched."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.host.server.socket_file import (
    PATH_BYTES_MAX,
    SocketAlive,
    SocketDirectoryBusy,
    SocketFile,
    SocketPathUnusable,
    probe,
)


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ps-") as name:
        yield Path(name)


@pytest.fixture
def path(directory: Path) -> str:
    return str(directory / "host.sock")


def claim(path: str, *, takeover: bool = False) -> SocketFile:
    return SocketFile.claim(path, mode=0o660, directory_mode=0o770, takeover=takeover)


def leave_stale(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(path)
        left.listen()


def test_it_listens_and_is_removed(path: str) -> None:
    file = claim(path)
    assert file.ours
    assert probe(path) == 0
    assert not file.listener.getblocking()
    assert file.listener.getsockname() == path
    assert file.remove()
    file.close()
    assert not os.path.lexists(path)
    assert file.remove()


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o777])
@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
def test_permissions_do_not_depend_on_the_umask(path: str, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        inside = str(Path(path).parent / "made" / "host.sock")
        file = SocketFile.claim(inside, mode=mode, directory_mode=0o770)
    finally:
        os.umask(before)
    with closing(file):
        assert stat.S_IMODE(os.lstat(inside).st_mode) == mode
        assert stat.S_IMODE(os.stat(os.path.dirname(inside)).st_mode) == 0o770


def test_a_directory_that_is_there_keeps_its_permissions(directory: Path) -> None:
    directory.chmod(0o711)
    with closing(claim(str(directory / "host.sock"))):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o711


def test_a_stale_file_is_replaced(path: str) -> None:
    leave_stale(path)
    before = os.lstat(path)
    with closing(claim(path)) as file:
        assert probe(path) == 0
        assert file.ours
        assert stat.S_IMODE(os.lstat(path).st_mode) == 0o660
    assert before.st_ino  # the file was there


def test_a_file_of_an_agent_that_was_killed_is_replaced(path: str) -> None:
    text = (
        "import os, signal, sys; from penstock.host.server.socket_file import SocketFile;"
        "SocketFile.claim(sys.argv[1], mode=0o660, directory_mode=0o770);"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", text, path], check=False, timeout=60)
    assert done.returncode == -9
    assert os.path.lexists(path)
    with closing(claim(path)):
        assert probe(path) == 0


def test_a_live_file_is_left_alone(path: str) -> None:
    with closing(claim(path)) as first:
        with pytest.raises(SocketAlive, match=r"host\.sock: another agent uses it"):
            claim(path)
        assert first.ours
        assert probe(path) == 0


def test_a_listener_whose_queue_is_full_is_alive(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as holder:
        holder.bind(path)
        holder.listen(0)
        waiting = []
        while (client := socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) is not None:
            client.setblocking(False)
            waiting.append(client)
            if client.connect_ex(path):
                break
            assert len(waiting) < 100
        with pytest.raises(SocketAlive, match="uses it"):
            claim(path)
        for client in waiting:
            client.close()


def test_a_socket_of_another_kind_is_left_alone(path: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(path)
        with pytest.raises(
            SocketAlive, match="cannot check whether another agent uses it: Protocol"
        ):
            claim(path)
        assert os.path.lexists(path)


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda path: Path(path).write_text("precious"), "a file"),
        (lambda path: Path(path).mkdir(), "a directory"),
        (lambda path: Path(path).symlink_to("elsewhere"), "a symbolic link"),
        (lambda path: os.mkfifo(path), "a file of another type"),
    ],
)
def test_what_is_no_socket_is_never_deleted(path: str, make: object, what: str) -> None:
    assert callable(make)
    make(path)
    before = os.lstat(path)
    with pytest.raises(SocketPathUnusable, match=f"the path is {what}"):
        claim(path, takeover=True)
    assert os.path.samestat(before, os.lstat(path))


def test_a_link_to_a_live_socket_is_no_socket(directory: Path, path: str) -> None:
    with closing(claim(path)):
        link = directory / "link.sock"
        link.symlink_to(path)
        with pytest.raises(SocketPathUnusable, match="symbolic link"):
            claim(str(link), takeover=True)


def test_the_path_s_length_is_limited(directory: Path) -> None:
    room = PATH_BYTES_MAX - len(str(directory)) - 1
    fits = str(directory / ("x" * room))
    assert len(fits) == PATH_BYTES_MAX
    with closing(claim(fits)) as file:
        assert probe(fits) == 0
        assert file.remove()
    with pytest.raises(SocketPathUnusable, match="108 bytes, but at most 107 are allowed"):
        claim(fits + "x")


@pytest.mark.parametrize("wrong", ["", "/tmp/", "/tmp/a\0b"])
def test_a_path_must_name_a_file(wrong: str) -> None:
    with pytest.raises(SocketPathUnusable, match="must name a file"):
        claim(wrong)


def test_a_directory_that_cannot_be_made(directory: Path) -> None:
    with pytest.raises(SocketPathUnusable, match="No such file or directory"):
        claim(str(directory / "no" / "such" / "host.sock"))
    (directory / "file").write_text("")
    with pytest.raises(SocketPathUnusable, match="Not a directory"):
        claim(str(directory / "file" / "host.sock"))


def test_a_directory_in_which_nothing_can_be_made() -> None:
    with pytest.raises(SocketPathUnusable, match=r"socket /proc/self/host\.sock: "):
        claim("/proc/self/host.sock")


def test_one_decision_at_a_time(directory: Path, path: str) -> None:
    leave_stale(path)
    holder = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(SocketDirectoryBusy):
            claim(path)
        assert os.path.lexists(path)
    finally:
        os.close(holder)
    with closing(claim(path)) as file:
        holder = os.open(directory, os.O_RDONLY)
        fcntl.flock(holder, fcntl.LOCK_EX)
        assert not file.remove()
        assert file.ours
        os.close(holder)
        assert file.remove()
        assert not os.path.lexists(path)


def test_the_lock_is_not_kept_while_serving(path: str) -> None:
    with (
        closing(claim(path)),
        closing(claim(path + "2")),
        pytest.raises(SocketAlive),
    ):
        claim(path)


def test_a_late_cleanup_leaves_the_next_one_s_file(path: str) -> None:
    first = claim(path)
    second = claim(path, takeover=True)
    with closing(first), closing(second):
        assert not first.ours
        assert second.ours
        assert first.remove()
        assert second.ours
        assert probe(path) == 0


def test_an_inode_is_not_given_again_while_its_listener_is_open(path: str) -> None:
    first = claim(path)
    for _ in range(50):
        os.unlink(path)
        with closing(claim(path)) as other:
            assert other.ours
            assert not first.ours
    first.close()


def test_a_removed_socket_file(path: str) -> None:
    with closing(claim(path)) as file:
        os.unlink(path)
        assert not file.ours
        assert file.remove()


def test_two_starters_at_once_over_a_stale_file(path: str) -> None:
    """Exactly one of many processes that start at the same instant gets the path."""
    text = (
        "import sys; from penstock.host.server.socket_file import *\n"
        "sys.stdout.write('r'); sys.stdout.flush(); sys.stdin.read(1)\n"
        "while True:\n"
        "    try:\n"
        "        file = SocketFile.claim(sys.argv[1], mode=0o660, directory_mode=0o770)\n"
        "    except SocketDirectoryBusy: continue\n"
        "    except SocketAlive: sys.stdout.write('n'); break\n"
        "    sys.stdout.write('y'); break\n"
        "sys.stdout.flush(); sys.stdin.read(1)\n"
    )
    starters = [
        subprocess.Popen(
            [sys.executable, "-c", text, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=0,
        )
        for _ in range(4)
    ]
    try:
        pipes = [(starter.stdin, starter.stdout) for starter in starters]
        for _, out in pipes:
            assert out is not None
            assert out.read(1) == "r"
        leave_stale(path)
        for into, _ in pipes:
            assert into is not None
            into.write("g")
        answers = [out.read(1) for _, out in pipes if out is not None]
        assert sorted(answers) == ["n", "n", "n", "y"]
        assert probe(path) == 0
    finally:
        for starter in starters:
            starter.kill()
            starter.communicate()
