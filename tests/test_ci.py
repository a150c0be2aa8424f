"""CI's handling of a run with failing tests: `scripts/retry_failed.py` over real runs of pytest."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.parallel import FileQueue

ROOT = Path(__file__).parents[1]

_FLAKY = """
from pathlib import Path
import pytest

@pytest.mark.parametrize("number", range({count}))
def test_flaky(number):
    mark = Path(__file__).with_name(f"tried-{{number}}")
    tried = mark.exists()
    mark.touch()
    assert tried, "only the second time"
"""
_BROKEN = "def test_broken():\n    assert 1 == 2\n"
_GOOD = "def test_good():\n    pass\n"


def _run(tmp_path: Path, *tests: str, workers: int = 0) -> tuple[int, str]:
    """Status and output of a run of `tests` (each a file) and of what follows it in CI."""
    for number, text in enumerate(tests):
        (tmp_path / f"test_{number}.py").write_text(text)
    shutil.copy(ROOT / "conftest.py", tmp_path)
    (tmp_path / "tests").mkdir(exist_ok=True)
    shutil.copy(ROOT / "tests" / "parallel.py", tmp_path / "tests")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    report = tmp_path / "out" / "report.json"
    plain = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment = os.environ | {"PENSTOCK_TEST_REPORT": str(report)} | plain
    pytest_run = [sys.executable, "-m", "pytest", "-q", "--processes", str(workers)]
    first = subprocess.run(pytest_run, cwd=tmp_path, env=environment, capture_output=True)
    if first.returncode == 0:
        return 0, first.stdout.decode()
    second = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "retry_failed.py"), str(report)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
    )
    return second.returncode, second.stdout.decode()


def test_a_test_that_fails_twice_fails_the_run(tmp_path: Path) -> None:
    status, output = _run(tmp_path, _GOOD, _BROKEN)
    assert status == 1
    assert "FAILED TWICE: test_1.py::test_broken" in output
    assert "FLAKY" not in output


@pytest.mark.parametrize("workers", [0, 2])
def test_one_that_passes_then_is_printed_with_its_first_failure(
    tmp_path: Path, workers: int
) -> None:
    status, output = _run(tmp_path, _GOOD, _FLAKY.format(count=2), workers=workers)
    assert status == 0, output
    written = (tmp_path / "out" / "flaky.txt").read_text()
    for text in (output, written):
        assert text.count("FLAKY: test_1.py::test_flaky[") == 2
        assert text.count("AssertionError: only the second time") == 2
    assert output.endswith("2 flaky, 0 failed twice\n")


def test_a_flaky_one_hides_no_broken_one(tmp_path: Path) -> None:
    status, output = _run(tmp_path, _FLAKY.format(count=1), _BROKEN)
    assert status == 1
    assert "FLAKY: test_0.py::test_flaky[0]" in output
    assert output.endswith("1 flaky, 1 failed twice\n")


def test_more_than_five_fail_the_run(tmp_path: Path) -> None:
    assert _run(tmp_path, _FLAKY.format(count=5))[0] == 0
    for mark in tmp_path.glob("tried-*"):
        mark.unlink()
    status, output = _run(tmp_path, _FLAKY.format(count=6))
    assert status == 1
    assert "6 tests failed" in output


@pytest.mark.parametrize("how", ["os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_a_process_that_dies_fails_and_its_other_tests_run(tmp_path: Path, how: str) -> None:
    dies = f"""
import os
def test_dies():
    {how}
def test_later():
    open("later", "w").close()
"""
    status, output = _run(tmp_path, dies, workers=2)
    assert status == 1
    assert output.endswith("0 flaky, 1 failed twice\n")
    assert (tmp_path / "later").exists()


def test_an_error_in_a_fixture_of_the_module_is_reported_by_a_process(tmp_path: Path) -> None:
    fails = """
import pytest
@pytest.fixture(scope="module")
def failing():
    yield
    raise ValueError("while the fixture ends")
def test_passes(failing):
    pass
"""
    status, output = _run(tmp_path, fails, _GOOD, workers=2)
    assert status == 1
    assert "FAILED TWICE: test_0.py::test_passes" in output


def test_a_broken_import_fails_the_run_at_once(tmp_path: Path) -> None:
    status, output = _run(tmp_path, _GOOD, "import no_such_module\n")
    assert status == 1
    assert "nothing is tried again" in output


def test_processes_take_files_from_both_ends_and_groups_of_files_at_once() -> None:
    names = [
        "spark/test_a",
        "spark/test_b",
        "apps/test_c",
        "test_imports",
        "apps/test_d",
        "test_tidy",
    ]
    items: list[Any] = [SimpleNamespace(nodeid=f"tests/{name}.py::test") for name in names]
    queue = FileQueue(items)
    assert [queue.take(process) for process in (0, 1, 2, 3)] == [[0], [1], [2], [4]]
    queue.put_back(items, [1])
    assert [queue.take(process) for process in (2, 0, 2)] == [[3, 5], [1], []]
