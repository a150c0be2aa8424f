"""The worker's calls into the event loop."""

from __future__ import annotations

import asyncio
from pathlib import Path

from penstock.storage.files.worker import Worker
from tests.faulty_files import FaultyFiles
from tests.storage.batches import Harness, batch


def test_a_callback_runs_in_a_later_turn_or_at_once_without_a_loop() -> None:
    """A store that is closed after its loop still commits what waits."""
    loop = asyncio.new_event_loop()
    worker = Worker("test")
    calls: list[str] = []
    worker.call_soon(lambda: calls.append("before"))
    assert calls == ["before"]
    worker.attach(loop.call_soon_threadsafe)
    worker.call_soon(lambda: calls.append("in the loop"))
    assert calls == ["before"]
    loop.run_until_complete(asyncio.sleep(0))
    assert calls == ["before", "in the loop"]
    loop.close()
    worker.call_soon(lambda: calls.append("after"))
    assert calls == ["before", "in the loop", "after"]


def test_groups_are_committed_on_the_loop_while_syncs_are_fast(tmp_path: Path) -> None:
    """After slow commits, the thread takes the next group, then three, and so on."""
    files = FaultyFiles()
    harness = Harness(tmp_path, files=files)
    harness.put(batch())
    slow = True

    def took(name: str, path: str) -> None:
        harness.clock.ms += slow and name == "sync_file"

    files.fail = took
    harness.store.attach(lambda callback, *rest: None)
    counters = harness.log().state.parts.counters

    def inline(requests: int) -> bool:
        before, answers = counters.inline_groups, list[object]()
        harness.append(batch())
        for _ in range(requests):
            harness.store.flush(answers.append)
        harness.store.commit_pending()
        harness.store._wait_idle()
        assert answers == [None] * requests
        return counters.inline_groups > before

    turns = [inline(2) for _ in range(8)]
    assert turns == [True, False, True, False, False, False, True, False]
    assert inline(1)
    slow = False
    turns = [inline(2) for _ in range(20)]
    assert turns.count(False) < 16
    assert turns[-4:] == [True] * 4
    harness.store.close()
