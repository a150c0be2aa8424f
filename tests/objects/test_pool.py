"""Admission of jobs: running, waiting, rejected."""

from __future__ import annotations

import random

import pytest

from penstock.objects.store_path import Admission, Pool

START, WAIT, REJECT = Admission.START, Admission.WAIT, Admission.REJECT


def test_running_then_waiting_then_rejected() -> None:
    pool: Pool[int] = Pool(running_max=2, waiting_max=3)
    assert [pool.offer(job) for job in range(7)] == [START, START, WAIT, WAIT, WAIT, REJECT, REJECT]
    assert (pool.running, pool.waiting) == (2, 3)
    assert pool.finish() == 2
    assert (pool.running, pool.waiting) == (2, 2)
    assert pool.offer(7) is WAIT
    assert [pool.finish() for _ in range(5)] == [3, 4, 7, None, None]
    assert (pool.running, pool.waiting) == (0, 0)


def test_a_pool_of_none_rejects_all() -> None:
    pool: Pool[int] = Pool(running_max=0, waiting_max=0)
    assert pool.offer(1) is REJECT


def test_draining_takes_out_all_that_wait() -> None:
    pool: Pool[int] = Pool(running_max=1, waiting_max=3)
    for job in range(4):
        pool.offer(job)
    assert pool.drain() == [1, 2, 3]
    assert pool.finish() is None
    assert pool.running == 0


@pytest.mark.parametrize("seed", range(10))
def test_any_order_of_offers_and_ends(seed: int) -> None:
    dice = random.Random(seed)
    pool: Pool[int] = Pool(running_max=3, waiting_max=4)
    running, waiting = 0, 0
    for job in range(500):
        if dice.random() < 0.5 and running:
            following = pool.finish()
            assert (following is not None) == (waiting > 0)
            waiting -= following is not None
            running -= following is None
        else:
            admission = pool.offer(job)
            assert (admission is START) == (running < 3)
            assert (admission is REJECT) == (running == 3 and waiting == 4)
            running += admission is START
            waiting += admission is WAIT
        assert (pool.running, pool.waiting) == (running, waiting)
