"""Journal of batches: entries are read back, and foreign checkpoints are rejected."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.base.errors import CorruptError
from penstock.spark.pipeline.journal import ENTRIES_KEPT, CheckpointMismatch, Entry, Journal


def entry(batch_id: int, query_id: str | None = "q") -> Entry:
    return Entry(
        batch_id=batch_id, query_id=query_id, now_ms=5, tables={"t": 3}, held_version=2,
        releases=("r1",),
    )  # fmt: skip


def test_a_replay_gets_what_the_first_try_had(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    assert journal.begun(0, "q") is None
    journal.begin(entry(0))
    assert Journal(tmp_path / "j").begun(0, "q") == entry(0)


def test_a_batch_says_when_sinks_may_have_rows_of_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal.begin(entry(0))
    assert not journal.read(0).writing
    journal.write(entry(0))
    assert journal.read(0).writing
    journal.finish(entry(0), counts={}, held=0, ms=0)
    assert (journal.read(0).writing, journal.read(0).done) == (True, True)


def test_finished_batches_keep_their_counts(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    assert journal.last() is None
    for number in range(3):
        journal.begin(entry(number))
        if number < 2:
            journal.finish(entry(number), counts={"written.x": number}, held=1, ms=9)
    assert [entry.counts for entry in journal.finished_after(0)] == [{"written.x": 1}]
    last = journal.last()
    assert last is not None
    assert (last.batch_id, last.done) == (2, False)


def test_old_entries_go(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    for number in range(ENTRIES_KEPT + 5):
        journal.begin(entry(number))
        journal.finish(entry(number), counts={}, held=0, ms=0)
    assert len(list((tmp_path / "j").iterdir())) == ENTRIES_KEPT
    assert journal.begun(ENTRIES_KEPT + 5, "q") is None


@pytest.mark.parametrize(
    ("ran", "batch_id", "query_id", "says"),
    [
        ((), 7, "q", "but the journal is empty"),
        ((0, 1), 5, "q", "but the last batch of the journal is 1"),
        ((4, 5), 0, "q", "but the last batch of the journal is 5"),
        ((0, 1), 2, "other", "is now that of query other"),
        ((0, 1), 1, "other", "is now that of query other"),
    ],
)
def test_a_checkpoint_that_does_not_belong_is_refused(
    tmp_path: Path, ran: tuple[int, ...], batch_id: int, query_id: str, says: str
) -> None:
    journal = Journal(tmp_path / "j")
    for number in ran:
        journal.begin(entry(number))
        journal.finish(entry(number), counts={}, held=0, ms=0)
    with pytest.raises(CheckpointMismatch, match=says):
        journal.begun(batch_id, query_id)


def test_an_unknown_query_id_is_let_pass(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal.begin(entry(0, None))
    assert journal.begun(1, "q") is None
    journal.begin(entry(1))
    assert journal.begun(2, None) is None


def test_an_entry_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal.begin(entry(0))
    path = next((tmp_path / "j").glob("*.json"))
    path.write_text(path.read_text()[:10])
    with pytest.raises(CorruptError, match=path.name):
        journal.begun(0, "q")
