"""Start positions of added sinks, from the state directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.base.errors import CorruptError
from penstock.base.ids import TopicPartition
from penstock.spark.pipeline import joining
from penstock.spark.pipeline.graph import queries
from penstock.spark.pipeline.journal import Entry, Journal
from penstock.spark.pipeline.parsing import load
from penstock.spark.pipeline.spec import PipelineSpec
from penstock.spark.pipeline.state import PipelinePaths
from penstock.spark.reads.positions import Position, Positions

HEAD = """
name = "joins"
[source.rows]
topic = "rows"
format = "json"
schema = "n bigint"
[errors]
on_invalid = "drop"
"""


def pipeline(folder: Path, *sinks: str) -> PipelineSpec:
    parts = [f'[sink.{name}]\nfrom = "rows"\ntable = "{name}"\n' for name in sinks]
    (folder / "pipeline.toml").write_text(HEAD + "".join(parts))
    return load(folder / "pipeline.toml", bootstrap="127.0.0.1:1")


def note(
    spec: PipelineSpec, batch_id: int, held_version: int | None = None
) -> dict[str, joining.Joined | None]:
    """Return the notes after a batch has begun."""
    (plan,) = queries(spec, ())
    begun = Entry(batch_id=batch_id, query_id=None, now_ms=batch_id, held_version=held_version)
    joining.note(spec, plan, begun)
    return {name: joining.read(spec, "rows", name) for name in spec.sinks}


def positions(offset: int) -> Positions:
    return Positions(
        topic_ids={"rows": "id"},
        partitions={TopicPartition("rows", 0): Position(offset=offset, leader_epoch=0)},
    )


def commit(spec: PipelineSpec, number: int, offset: int, *, version: str = "v1") -> None:
    """Write Spark's files of a completed batch."""
    checkpoint = PipelinePaths(spec).checkpoint("rows")
    for folder in ("commits", "offsets"):
        (checkpoint / folder).mkdir(parents=True, exist_ok=True)
    (checkpoint / "commits" / str(number)).write_text("v1\n{}")
    body = json.dumps(positions(offset).to_json())
    (checkpoint / "offsets" / str(number)).write_text(f"{version}\n{{}}\n{body}")


def entry(spec: PipelineSpec, number: int, **more: object) -> None:
    journal = Journal(PipelinePaths(spec).journal("rows"))
    begun = Entry(batch_id=number, query_id=None, now_ms=0, held_version=number)
    journal.begin(begun)
    if more:
        journal.finish(begun, counts={f"written.{name}": 0 for name in more}, held=0, ms=1)


def test_each_sink_is_noted_once(tmp_path: Path) -> None:
    spec = pipeline(tmp_path, "first")
    assert joining.read(spec, "rows", "first") is None
    (first,) = note(spec, 0).values()
    assert first == joining.Joined(since=joining.FIRST)
    entry(spec, 0, first=True)
    commit(spec, 0, 10)
    both = pipeline(tmp_path, "first", "second")
    found = note(both, 1, held_version=4)
    second = joining.Joined(
        since=joining.POSITIONS, positions=(positions(10),), held_version=4, at_ms=1
    )
    assert found == {"first": first, "second": second}
    entry(both, 1, first=True, second=True)
    commit(both, 1, 20)
    assert note(both, 2, held_version=5) == found


def test_sinks_from_before_there_were_notes_have_missed_nothing(tmp_path: Path) -> None:
    spec = pipeline(tmp_path, "first", "second")
    entry(spec, 0, first=True)
    commit(spec, 0, 10)
    found = note(spec, 1)
    assert {name: one and one.since for name, one in found.items()} == {
        "first": joining.FIRST,
        "second": joining.POSITIONS,
    }


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    spec = pipeline(tmp_path, "first")
    note(spec, 0)
    commit(spec, 0, 10, version="v9")
    both = pipeline(tmp_path, "first", "second")
    second = note(both, 1)["second"]
    assert second is not None
    assert second.since == joining.UNKNOWN
    (PipelinePaths(spec).joined("rows") / "first.json").write_text("{")
    with pytest.raises(CorruptError, match=r"first\.json cannot be read"):
        joining.read(both, "rows", "first")
