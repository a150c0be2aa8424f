"""In-sync replicas are computed from leaders' cores, and only where they may have changed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.broker.partitions.leadership import InSync
from penstock.control.values.epochs import InSyncReplicas
from penstock.replication.epoch import Phase
from penstock.replication.peer_format import PartitionKey
from tests.replication.cluster import Leader, Node, first_leader

LAG_MS = 10_000


class Led:
    """A partition that broker 1 leads, with copies at 2 and 3; `isr` is the image's."""

    key = PartitionKey(bytes(16), 0)
    broker_id = 1

    def __init__(self, sync: InSync) -> None:
        self.leader: Leader = first_leader({name: Node() for name in (1, 2, 3)}, acks=2)
        self.sync = sync
        self.leading = SimpleNamespace(core=self.leader.core, leads=True)
        self.isr: tuple[int, ...] = (1, 2, 3)
        self.rows = 0
        assert self.leader.core.phase is Phase.LEADING
        self.leader.talk([1, 2, 3])

    def row_of(self, log: Any) -> Any:
        assert log is self
        self.rows += 1
        return SimpleNamespace(isr=self.isr, replicas=(1, 2, 3))

    def look(
        self, now_ms: int, *, touched: bool = True, live: tuple[int, ...] = (1, 2, 3)
    ) -> list[InSyncReplicas]:
        logs: list[Any] = [self] if touched else []
        found = self.sync.look(logs, now_ms=now_ms, live=live, row_of=self.row_of)
        for change in found:
            self.isr = change.isr
        return found


@pytest.mark.parametrize("lag_ms", [LAG_MS, 500])
def test_a_replica_that_is_always_a_little_behind_keeps_up(lag_ms: int) -> None:
    led = Led(InSync(lag_ms))
    for second in range(40):
        led.leader.append(1)
        led.leader.talk([1, 2])
        assert led.look(second * 1000) == []
        led.leader.talk([3])
        led.leader.append(1)
    assert led.isr == (1, 2, 3)


def test_a_follower_without_progress_leaves_the_isr_whatever_the_interval() -> None:
    led = Led(InSync(500))
    for second in range(3):
        led.leader.append(1)
        led.leader.talk([1, 2])
        found = led.look(second * 1000)
    assert [change.isr for change in found] == [(1, 2)]


def test_a_stalled_follower_leaves_the_isr_and_returns() -> None:
    led = Led(InSync(LAG_MS))
    assert led.look(0) == []
    led.leader.append(1)
    led.leader.talk([1, 2])
    gone = [second for second in range(1, 30) if led.look(second * 1000, touched=second == 1)]
    assert (gone, led.isr) == ([10], (1, 2))
    led.leader.talk([3])
    assert led.look(31_000)[0].isr == (1, 2, 3)


def test_what_is_idle_is_not_looked_at_and_was_in_sync_until_it_is_not() -> None:
    led = Led(InSync(LAG_MS))
    assert led.look(0) == []
    rows = led.rows
    for second in range(1, 100):
        assert led.look(second * 1000, touched=False) == []
    assert led.rows == rows
    led.leader.append(1)
    led.leader.core.rewind(3)
    led.leader.talk([1, 2])
    assert led.look(100_000) == [], "it was in sync a second before"
    assert led.rows == rows + 1
    assert led.look(108_000, touched=False) == []
    assert led.look(109_000, touched=False)[0].isr == (1, 2)
    rows = led.rows
    for second in (111, 112, 113):
        assert led.look(second * 1000, touched=False) == []
    assert led.rows == rows + 1, "nothing but a word of the broker that is out changes that"


def test_a_broker_that_is_gone_is_not_in_sync_at_once() -> None:
    led = Led(InSync(LAG_MS))
    assert led.look(0) == []
    assert led.look(1000, live=(1, 3))[0].isr == (1, 3)
    assert led.look(2000)[0].isr == (1, 2, 3)
    led.leading.leads = False
    assert led.look(90_000, live=(1,)) == []
