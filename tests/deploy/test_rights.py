"""Rights that the users and mounts of the deployment grant: tried with real users and real mounts.

The numbers, the mode and the command that makes the directory are read from the files. The
directory is a temporary one; everything else is as on a host.
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.agreement import DIRECTORY, Facts, compose
from tests.deploy.files import COMPOSE, DEPLOY, documents
from tests.deploy.linters import need_root, run

BECOME = (
    "import os, socket; os.setgroups([]); os.setresgid({1}, {1}, {1}); os.setresuid({0}, {0}, {0})"
)
CONNECT = "socket.socket(socket.AF_UNIX).connect({path!r})"
REMOVE = "os.unlink({path!r})"


@pytest.fixture(scope="module")
def facts() -> Facts:
    return compose(DEPLOY)


@pytest.fixture
def directory() -> Iterator[Path]:
    """Somewhere that other users can reach: a test's own folder is closed to them."""
    need_root("take on other users")
    folder = Path(tempfile.mkdtemp(prefix="penstock-"))
    folder.chmod(0o755)
    yield folder / "penstock"
    shutil.rmtree(folder)


def prepare(facts: Facts, directory: Path) -> subprocess.CompletedProcess[str]:
    """The first container's command, with the capabilities that the file gives it."""
    service = documents(DEPLOY / COMPOSE)[0]["services"]["socket-directory"]
    assert service["cap_drop"] == ["ALL"]
    kept = ",".join(["-all", *(f"+{name.lower()}" for name in service["cap_add"])])
    assert facts.preparation is not None
    words = [word.replace(DIRECTORY, str(directory)) for word in facts.preparation]
    return run("setpriv", f"--bounding-set={kept}", f"--inh-caps={kept}", "--no-new-privs", *words)


def as_user(user: tuple[int, int], code: str, *, read_only: Path | None = None) -> str:
    """Run a line of Python as a user, perhaps behind a read-only mount; what it complained of.

    The interpreter changes its user itself, because that user may not be able to reach it.
    """
    words = [sys.executable, "-I", "-S", "-c", f"{BECOME.format(*user)}; {code}"]
    if read_only is not None:
        mount = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
        words = ["unshare", "--mount", "sh", "-c", mount, str(read_only), *words]
    return run(*words).stderr


@pytest.fixture
def listening(facts: Facts, directory: Path) -> Iterator[Path]:
    """A socket as the agent makes it."""
    directory.mkdir(mode=0o755)
    assert prepare(facts, directory).returncode == 0
    path = directory / "host.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        path.chmod(0o660)
        os.chown(path, *facts.user)
        server.listen()
        yield path


def test_the_directory_is_given_to_the_agent(facts: Facts, directory: Path) -> None:
    directory.mkdir(mode=0o755)
    for _ in range(2):  # the second time, when it is the agent's already
        done = prepare(facts, directory)
        assert done.returncode == 0, done.stderr
        found = directory.stat()
        assert (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid) == (0o770, *facts.user)
    touch = f"open({str(directory / 'x')!r}, 'w').close()"
    assert as_user(facts.user, touch) == ""


def test_without_it_the_agent_could_not_bind(facts: Facts, directory: Path) -> None:
    directory.mkdir(mode=0o755)
    touch = f"open({str(directory / 'x')!r}, 'w').close()"
    assert "PermissionError" in as_user(facts.user, touch)


def test_a_producer_connects_through_a_read_only_mount(facts: Facts, listening: Path) -> None:
    assert facts.producer is not None
    connect = CONNECT.format(path=str(listening))
    assert as_user(facts.producer.user, connect, read_only=listening.parent) == ""


def test_a_producer_cannot_remove_the_socket_through_it(facts: Facts, listening: Path) -> None:
    assert facts.producer is not None
    remove = REMOVE.format(path=str(listening))
    said = as_user(facts.producer.user, remove, read_only=listening.parent)
    assert "Read-only file system" in said
    assert listening.exists()


def test_users_outside_the_group_cannot_connect(facts: Facts, listening: Path) -> None:
    assert facts.producer is not None
    stranger = (facts.producer.user[0], facts.producer.user[1] + 1)
    assert "PermissionError" in as_user(stranger, CONNECT.format(path=str(listening)))
