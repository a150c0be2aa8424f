"""Kernels are compiled once for all, wherever they may be kept, and never silently again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest

from penstock.kernels import sources
from penstock.kernels.memory import copy_bytes

COPY = """
import sys
sys.modules["penstock.kernels._native"] = None  # Numba compiles
import numpy as np
from penstock.kernels.memory import copy_bytes
target = np.zeros(4, np.uint8)
copy_bytes(target, 1, np.frombuffer(b"abc", np.uint8), 0, 3)
print(target.tobytes().hex())
"""


ANSWER = "00616263\n"


def run(code: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    usual = {"PENSTOCK_KERNELS": str(folder), "PENSTOCK_KERNELS_CHECKED": ""}
    environment = {**os.environ, **usual, **variables}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )


def test_a_second_process_finds_what_the_first_compiled(tmp_path: Path) -> None:
    first = run(COPY, tmp_path)
    assert first.stdout == ANSWER
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert any(path.suffix == ".nbc" for path in kept)
    tmp_path.chmod(0o500)
    assert run(COPY, tmp_path).stdout == first.stdout
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == kept


def test_a_folder_that_takes_nothing_is_named_in_a_warning(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    said = run(COPY, blocked)
    assert said.stdout == ANSWER
    assert said.stderr.count("cannot be stored in") == 1
    assert str(blocked) in said.stderr


@pytest.mark.long
def test_a_package_that_changed_is_compiled_again(tmp_path: Path) -> None:
    run(COPY, tmp_path)
    (index,) = (path for path in tmp_path.glob("*.nbi") if "copy_bytes" in path.name)
    before = index.read_bytes()
    change = "from penstock.kernels import jit; jit.digest = lambda: 'other'\n"
    run(change + COPY, tmp_path)
    assert index.read_bytes() != before


NATIVE = """
import sys
from types import ModuleType
made = sys.modules["penstock.kernels._native"] = ModuleType("_native")
made.SOURCES = DIGEST
made.utf8_is_utf8 = len
from penstock.kernels.utf8 import is_utf8
print(is_utf8 is len)
"""


@pytest.mark.parametrize("same", [True, False])
def test_machine_code_of_the_present_sources_alone_is_used(*, same: bool, tmp_path: Path) -> None:
    digest = sources.digest() if same else "0" * 64
    code = NATIVE.replace("DIGEST", repr(digest))
    assert run(code, tmp_path).stdout == f"{same}\n"


def test_the_digest_covers_all_files_of_the_package(tmp_path: Path) -> None:
    here = Path(sources.__file__).parent
    for path in here.glob("*.py"):
        shutil.copy(path, tmp_path)
    digests = {digest_of(tmp_path)}
    for count, path in enumerate(sorted(tmp_path.glob("*.py")), 2):
        path.write_text(path.read_text() + "\n")
        digests.add(digest_of(tmp_path))
        assert len(digests) == count


def digest_of(folder: Path) -> str:
    spec = spec_from_file_location("sources", folder / "sources.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module.digest())


@pytest.mark.parametrize(
    ("target_at", "source_at", "size"), [(5, 0, 4), (0, 7, 4), (-1, 0, 1), (0, -1, 1), (0, 0, -1)]
)
def test_nothing_is_copied_outside_of_an_array(target_at: int, source_at: int, size: int) -> None:
    target = np.zeros(8, np.uint8)
    with pytest.raises(IndexError):
        copy_bytes(target, target_at, np.ones(8, np.uint8), source_at, size)
    assert not target.any()


INDEXES = """
import numpy as np
from numba import njit
from penstock.kernels.compiling import kernel

def last(numbers, index):
    return numbers[index]

checked = kernel("int64(int64[::1], int64)")(last)
numbers = np.array([1, 2, 3])
print(checked(numbers, 2), njit(last)(numbers, -1))
try:
    checked(numbers, -1)
except IndexError as error:
    print(error)
"""


def test_an_index_below_zero_is_outside_in_kernels_alone(tmp_path: Path) -> None:
    said = run(INDEXES, tmp_path, PENSTOCK_KERNELS_CHECKED="1")
    assert said.stdout == "3 3\nindex is out of bounds\n"
