"""Kernels whose machine code is built ahead: an extension module without Numba."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from datetime import UTC, datetime
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripts import kernels as clone

from penstock.kernels import ahead, sources
from penstock.kernels.texts import HOUR_AT, LINE_BYTES, YEAR_AT

BUILD = "import sys; from pathlib import Path; from penstock.kernels import ahead as a;"
MODULES = ("memory", "texts", "utf8")
ROOT = Path(__file__).resolve().parents[2]


def built(folder: Path, *names: str) -> Path:
    """Build the extension module of some kernels, or of all."""
    code = f"{BUILD} a.build(Path(sys.argv[1]), {names!r})"
    environment = {**os.environ, **ahead.ENVIRONMENT}
    subprocess.run([sys.executable, "-c", code, str(folder)], env=environment, check=True)
    made = folder / "_native.abi3.so"
    include = sysconfig.get_path("include")
    words = ["cc", "-O1", "-shared", "-fPIC", "-Wall", "-Werror", "-Wno-unused-function"]
    subprocess.run(
        [*words, f"-I{include}", ahead.SOURCE, ahead.OBJECT, "-o", made.name],
        cwd=folder, check=True,
    )  # fmt: skip
    return made


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The module with the kernels of two small files."""
    made = built(tmp_path_factory.mktemp("native"), *MODULES)
    loader = ExtensionFileLoader("_native", str(made))
    spec = spec_from_file_location("_native", made, loader=loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_it_is_built_from_these_sources(native: Any) -> None:
    assert sources.digest() == native.SOURCES


@pytest.mark.parametrize("content", [b"text", "Zürich…".encode(), b"\xed\xa0\x80", b"\xff", b""])
def test_it_returns_what_python_returns(native: Any, content: bytes) -> None:
    data = np.frombuffer(b"-" + content + b"---", np.uint8)
    valid = content.decode(errors="replace").encode() == content
    assert native.utf8_is_utf8(data, 1, 1 + len(content)) is valid


def test_it_writes_into_arrays_of_booleans(native: Any) -> None:
    texts = np.frombuffer(b"2026" + b"x026" + b"1", np.uint8)
    bounds, moments = np.array([0, 4, 8, 9], np.int32), np.zeros(3, np.int64)
    line, read = np.zeros(LINE_BYTES, np.uint8), np.array([False, True, True])
    line[YEAR_AT + 5] = line[YEAR_AT + 7] = 1  # the first of January
    places, fixed = np.arange(YEAR_AT, YEAR_AT + 4, dtype=np.uint8), np.empty(0, np.uint8)
    others = places, fixed, line, HOUR_AT, 0, -1, moments
    native.texts_read_moments(texts, bounds, *others, read)
    assert read.tolist() == [True, False, False]
    assert moments[0] == datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000
    with pytest.raises(TypeError, match="type \\?"):
        native.texts_read_moments(texts, bounds, *others, read.view(np.uint8))


def test_it_writes_into_arrays(native: Any) -> None:
    target = np.zeros(4, np.uint8)
    assert native.memory_copy_bytes(target, 1, np.frombuffer(b"abc", np.uint8), 0, 3) is None
    assert target.tobytes() == b"\0abc"
    assert native.memory_load_word(np.frombuffer(b"\1\2", np.uint8), 0) == 0x0201
    assert native.memory_load_word(np.full(8, 0xFF, np.uint8), 0) == 2**64 - 1


def test_an_error_of_a_kernel_is_raised(native: Any) -> None:
    with pytest.raises(IndexError, match="outside of an array"):
        native.memory_copy_bytes(np.zeros(2, np.uint8), 1, np.zeros(8, np.uint8), 0, 4)


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        (np.zeros(4, np.uint8), 0),
        (np.zeros(4, np.int64), 0, 4),
        (np.zeros((2, 2), np.uint8), 0, 4),
        (np.zeros(4, np.uint8), "0", 4),
        (None, 0, 4),
    ],
)
def test_wrong_arguments_are_refused(native: Any, arguments: tuple[Any, ...]) -> None:
    before = [sys.getrefcount(argument) for argument in arguments]
    with pytest.raises(TypeError):
        native.utf8_is_utf8(*arguments)
    assert [sys.getrefcount(argument) for argument in arguments] == before


def test_an_array_that_cannot_be_used_is_refused(native: Any) -> None:
    read_only = np.frombuffer(bytes(4), np.uint8)
    with pytest.raises(ValueError, match="read-only"):
        native.memory_copy_bytes(read_only, 0, read_only, 0, 1)
    with pytest.raises(ValueError, match="not C-contiguous"):
        native.utf8_is_utf8(np.zeros(8, np.uint8)[::2], 0, 4)
    kept = np.zeros(4, np.uint8)
    native.memory_copy_bytes(kept, 0, read_only, 0, 1)
    kept.resize(8)  # no buffer is held


def test_numbers_of_numpy_are_accepted(native: Any) -> None:
    data = np.frombuffer(b"-text-", np.uint8)
    assert native.utf8_is_utf8(data, np.int64(1), np.int32(5)) is True


def test_a_clone_builds_the_code_only_if_it_must(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(clone, "ROOT", tmp_path)
    target = tmp_path / "src" / clone.FOLDER / clone.NAME
    target.parent.mkdir(parents=True)
    target.write_bytes(b"")
    os.utime(target, (0, 0))
    monkeypatch.setattr(sources, "NATIVE", object())
    clone.main()
    assert target.stat().st_mtime > 0
    monkeypatch.setattr(sources, "NATIVE", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    clone.main()
    assert "No C compiler" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_clone_loads_the_code_that_it_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    unbuilt = shutil.ignore_patterns("__pycache__", clone.NAME)
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=unbuilt)
    monkeypatch.setattr(clone, "ROOT", tmp_path)
    monkeypatch.setattr(clone, "BUILT", tmp_path / "built")
    monkeypatch.setattr(sources, "NATIVE", None)
    clone.main()
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src")}
    command = [sys.executable, "-m", "penstock", "kernels"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"kernels: {tmp_path / 'src' / clone.FOLDER / clone.NAME}\n"


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("blocked", ["numba", "penstock.kernels._native"])
@pytest.mark.parametrize("tests", ["tests/records", "tests/formats", "tests/storage/compaction"])
def test_callers_of_kernels_pass_both_ways(tmp_path: Path, tests: str, blocked: str) -> None:
    source = tmp_path / "src"
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
    if blocked == "numba":
        shutil.copy(built(tmp_path), source / "penstock/kernels")
    (tmp_path / "sitecustomize.py").write_text(f"import sys; sys.modules[{blocked!r}] = None")
    paths = os.pathsep.join([str(source), str(tmp_path)])
    # These tests are about Numba itself.
    own = ("nothing_is_read_or_written_outside", "broker_loads_no_arrow")
    others = " and ".join([f"not {name}" for name in own])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", others, tests],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4_000:]
