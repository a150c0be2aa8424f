"""The pool of receive buffers."""

from __future__ import annotations

from penstock.base.buffers import POOLED_BUFFER_BYTES, ReceivePool


def test_a_released_buffer_is_reused() -> None:
    pool = ReceivePool(1 << 30)
    first = pool.take(100_000)
    pool.received(first, 100_000)
    first.retain()
    first.release()
    assert pool.take(100_000) is not first
    first.release()
    assert pool.take(70_000) is first
    assert len(first.view) >= 70_000
    assert first.received_bytes == 0


def test_what_has_arrived_is_accounted_until_the_last_release() -> None:
    pool = ReceivePool(1 << 30)
    lease = pool.take(100_000)
    assert pool.received_bytes == 0
    pool.received(lease, 60_000)
    assert pool.received_bytes == 60_000
    pool.received(lease, 40_000)
    lease.retain()
    lease.release()
    assert pool.received_bytes == 100_000
    lease.release()
    assert pool.received_bytes == 0


def test_buffers_above_the_pooled_size_are_mapped_exactly_and_not_kept() -> None:
    pool = ReceivePool(1 << 30)
    lease = pool.take(POOLED_BUFFER_BYTES + 1)
    assert len(lease.view) == POOLED_BUFFER_BYTES + 1
    lease.release()
    assert pool.take(POOLED_BUFFER_BYTES + 1) is not lease


def test_above_the_limit_only_the_oldest_frame_reads_on() -> None:
    pool = ReceivePool(100_000)
    oldest, younger = pool.take(200_000), pool.take(200_000)
    assert pool.received(oldest, 90_000)
    assert not pool.received(younger, 90_000)
    assert pool.received(oldest, 50_000)
    woken: list[str] = []
    pool.wait(lambda: woken.append("a"))

    def forgotten() -> None:
        woken.append("b")

    pool.wait(forgotten)
    pool.forget(forgotten)
    pool.received(oldest, 60_000)
    assert pool.may_read(younger)
    oldest.release()
    assert woken == ["a"]
