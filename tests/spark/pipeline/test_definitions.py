"""A pipeline comes back from its definition as it was, whatever became of its files."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from examples.pipelines import data

from penstock.base.errors import CorruptError
from penstock.spark.pipeline.graph import queries
from penstock.spark.pipeline.journal import Definitions
from penstock.spark.pipeline.parsing import load
from penstock.spark.pipeline.scaffold import templates

EXAMPLES = [data.HERE / name for name in sorted(data.MAKERS)]
TEXT = """
[run]
max_records = 5
[source.a]
topic = "a"
format = "avro"
schema_file = "a.avsc"
expect = {fine = {that = "n > 0", otherwise = "retry"}}
[step.s]
python = "steps.py:same"
inputs = ["a"]
[sink.s]
from = "s"
table = "s"
[errors]
dead_letters = "dead"
retry_delays = ["1 second", "2 seconds"]
"""


@pytest.mark.parametrize("folder", EXAMPLES, ids=lambda folder: folder.name)
def test_examples_come_back(folder: Path, tmp_path: Path) -> None:
    spec = load(folder)
    plans = queries(spec, ())
    kept = Definitions(tmp_path)
    found = kept.load(kept.keep(spec, plans), spec.run)
    assert found.spec == spec
    assert found.plans == plans
    assert found.plan(plans[0].name) == plans[0]
    assert templates()


def test_files_are_kept_as_they_were(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    folder.mkdir()
    (folder / "pipeline.toml").write_text(TEXT)
    (folder / "steps.py").write_text("def same(a):\n    return a\n")
    (folder / "a.avsc").write_text("{}")
    spec = load(folder)
    kept = Definitions(tmp_path / "kept")
    first = kept.keep(spec, queries(spec, ()))
    assert (
        kept.keep(replace(spec, run=replace(spec.run, records_max=7)), queries(spec, ())) == first
    )
    (folder / "steps.py").write_text("def same(a):\n    return a.limit(0)\n")
    second = kept.keep(spec, queries(spec, ()))
    assert second != first
    shutil.rmtree(folder)
    found = kept.load(first, spec.run).spec
    assert found.run == spec.run
    step = found.steps["s"]
    assert step.python is not None
    assert step.python.file.read_text() == "def same(a):\n    return a\n"
    schema = found.sources["a"].value_format.schema_file
    assert schema is not None
    assert schema.read_text() == "{}"
    assert found.sources["a"].rules == spec.sources["a"].rules
    with pytest.raises(CorruptError, match="nowhere"):
        kept.load("nowhere", spec.run)
    with pytest.raises(CorruptError, match="no query other"):
        kept.load(first, spec.run).plan("other")


def test_the_present_one_is_known_while_nothing_changed(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    folder.mkdir()
    (folder / "pipeline.toml").write_text(TEXT)
    (folder / "steps.py").write_text("def same(a):\n    return a\n")
    (folder / "a.avsc").write_text("{}")
    spec = load(folder)
    plans = queries(spec, ())
    kept = Definitions(tmp_path / "kept")
    assert kept.present_queries(spec, {}) is None
    kept.mark_present(kept.keep(spec, plans), {"a": "n bigint"})
    assert kept.present_queries(spec, {"a": "n bigint"}) == plans
    assert kept.present_queries(spec, {"a": "n int"}) is None
    (folder / "steps.py").write_text("def same(a):\n    return a.limit(0)\n")
    assert kept.present_queries(spec, {"a": "n bigint"}) is None
