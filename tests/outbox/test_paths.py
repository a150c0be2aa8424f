"""Opening below the root: by `openat2`, and by walking without it."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.outbox import layout
from penstock.outbox.errors import NotAFile, PathEscapes, PayloadMissing, TooManyOpenFiles
from penstock.outbox.layout import check_relative, open_beneath, raw_open_beneath, walk_beneath
from tests.faulty_files import open_below
from tests.outbox.forked import exit_code_of

Opener = Callable[[int, str, int], int]


@pytest.fixture
def root(tmp_path: Path) -> Iterator[int]:
    inside = tmp_path / "root"
    (inside / "a" / "b").mkdir(parents=True)
    (inside / "a" / "b" / "file").write_bytes(b"inside")
    (tmp_path / "secret").write_bytes(b"outside")
    (inside / "up").symlink_to("..", target_is_directory=True)
    (inside / "a" / "absolute").symlink_to(tmp_path / "secret")
    (inside / "a" / "aside").symlink_to("b", target_is_directory=True)
    (inside / "a" / "b" / "alias").symlink_to("file")
    (inside / "a" / "dangling").symlink_to("nowhere")
    (inside / "a" / "loop").symlink_to("loop")
    handle = os.open(inside, os.O_RDONLY | os.O_DIRECTORY)
    yield handle
    os.close(handle)
    assert open_below(tmp_path) == [], "a descriptor is left open"


@pytest.fixture(params=["openat2", "walk"])
def opener(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Opener:
    """`open_beneath` with the kernel's call and without it."""
    monkeypatch.setattr(layout, "_works", request.param == "openat2")
    return open_beneath


def test_the_kernel_here_has_the_call(root: int) -> None:
    handle = raw_open_beneath(root, "a", os.O_RDONLY | os.O_DIRECTORY)
    os.close(handle)
    assert layout._works is True


def test_files_and_directories_open(root: int, opener: Opener) -> None:
    handle = opener(root, "a/b/file", os.O_RDONLY)
    assert os.read(handle, 100) == b"inside"
    assert not os.get_inheritable(handle)
    os.close(handle)
    os.close(opener(root, "a/b", os.O_RDONLY | os.O_DIRECTORY))


@pytest.mark.parametrize(
    "relative",
    ["up/secret", "up/root/a/b/file", "a/absolute", "a/aside/file", "a/b/alias", "a/dangling",
     "a/loop", "a/loop/x", "up"],
)  # fmt: skip
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDONLY | os.O_DIRECTORY])
def test_no_symlink_is_followed(root: int, opener: Opener, relative: str, flags: int) -> None:
    with pytest.raises(PathEscapes):
        opener(root, relative, flags)


@pytest.mark.parametrize(
    "relative",
    ["", "/", "/etc/passwd", "../secret", "a/../../secret", "a/..", ".", "a/./b", "a//b", "a/",
     "a\0b", "\0", "x" * 600],
)  # fmt: skip
def test_forms_that_are_refused(root: int, opener: Opener, relative: str) -> None:
    with pytest.raises(PathEscapes):
        opener(root, relative, os.O_RDONLY)
    with pytest.raises(PathEscapes):
        check_relative(relative)


@pytest.mark.parametrize("relative", ["nothing", "a/nothing", "a/b/file/more", "nothing/at/all"])
def test_what_is_missing_is_missing(root: int, opener: Opener, relative: str) -> None:
    with pytest.raises(PayloadMissing, match="the payload is missing below the outbox's root"):
        opener(root, relative, os.O_RDONLY)


def test_names_that_the_file_system_refuses(root: int, opener: Opener) -> None:
    from penstock.outbox.errors import NameTooLong

    with pytest.raises(NameTooLong):
        opener(root, "a/" + "x" * 300, os.O_RDONLY)
    with pytest.raises(NotAFile):
        opener(root, "a/b", os.O_WRONLY)


@pytest.mark.parametrize("name", ["ümläut", "日本", "a b", "-rf", "*", "\udcff"])
def test_any_other_name_is_a_name(tmp_path: Path, root: int, opener: Opener, name: str) -> None:
    (tmp_path / "root" / name).write_bytes(b"!")
    os.close(opener(root, name, os.O_RDONLY))


def test_walking_leaves_nothing_open_when_it_fails(root: int) -> None:
    for relative in ("a/b/nothing", "a/aside/file", "nothing/a"):
        with pytest.raises(OSError, match=r"No such file|Too many levels"):
            walk_beneath(root, relative, os.O_RDONLY)


def test_no_descriptor_left(root: int, opener: Opener) -> None:
    def work() -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        with pytest.raises(TooManyOpenFiles, match="EMFILE"):
            opener(root, "a/b/file", os.O_RDONLY)

    assert exit_code_of(work) == 0
