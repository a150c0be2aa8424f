"""The worker's calls into the event loop."""

from __future__ import annotations

import asyncio

from penstock.storage.files.worker import Worker


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
