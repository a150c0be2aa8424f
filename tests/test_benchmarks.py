"""`make bench`: a benchmark that breaks is reported, and the others run."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from benchmarks import __main__ as bench
from benchmarks.harness import RECORDED, ROOT, SCRATCH
from benchmarks.pipelines import FILES, SINKS
from rich.console import Console

from penstock.spark.pipeline.parsing import survey

WORKS = """
from benchmarks.harness import Row

def measure(quick):
    return [Row(name="rate", value=2 if quick else 3, unit="1/s")]
"""
BREAKS = """
def measure(quick):
    raise ValueError("no [peer] here")
"""


def bench_planted(tmp_path: Path, *names: str) -> tuple[list[str], str]:
    """Run planted benchmarks; return those that broke, and the output."""
    out = io.StringIO()
    broken = bench.run(
        names,
        quick=True,
        console=Console(file=out, width=1_000),
        results=tmp_path / "results",
        failures=tmp_path / "failures",
        package="planted",
    )
    return broken, out.getvalue()


def test_a_failed_benchmark_is_reported_and_the_others_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "planted"
    package.mkdir()
    (package / "breaks.py").write_text(BREAKS)
    (package / "works.py").write_text(WORKS)
    monkeypatch.syspath_prepend(tmp_path)

    broken, printed = bench_planted(tmp_path, "breaks", "absent", "works")
    assert broken == ["breaks", "absent"]
    failure = tmp_path / "failures" / "breaks.failure.txt"
    assert f"breaks broke: ValueError: no [peer] here (traceback: {failure})" in printed
    assert 'breaks.py", line 3, in measure' in failure.read_text()
    assert "absent broke: ModuleNotFoundError" in printed
    results = tmp_path / "results"
    assert sorted(path.name for path in results.iterdir()) == ["README.md", "works.json"]
    assert json.loads((results / "works.json").read_text())["rows"][0]["value"] == 2
    assert "| rate | 2 | 1/s |" in (results / "README.md").read_text()

    (tmp_path / "failures" / "works.failure.txt").write_text("of an earlier run")
    assert bench_planted(tmp_path, "works")[0] == []
    assert [path.name for path in failure.parent.glob("works*")] == []


def test_only_what_is_recorded_goes_to_the_repository() -> None:
    assert ROOT / "benchmarks" / "results" == RECORDED
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert f"{SCRATCH.relative_to(ROOT).parts[0]}/" in ignored


@pytest.mark.parametrize("sink", SINKS)
def test_the_pipeline_files_of_the_main_job_are_valid(sink: str) -> None:
    assert not survey(FILES / f"{sink}.toml").problems
