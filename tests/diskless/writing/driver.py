"""A gathering core that is driven by hand: its effects, and a clock."""

from __future__ import annotations

from typing import Any, TypeVar

from penstock.base.errors import PenstockError
from penstock.control.values.diskless import CommitAnswer
from penstock.control.values.errors import ControlUnavailable
from penstock.diskless.settings import DisklessSettings
from penstock.diskless.writing.accumulator import (
    Accumulator,
    Answer,
    CommitObject,
    Effect,
    Finished,
    LeaseKeys,
    PutObject,
)
from penstock.objects import StoreUnavailable
from penstock.records.appends import AppendResult
from tests.diskless.submissions import Sent, keys

E = TypeVar("E")
LOST = StoreUnavailable("no answer")
UNKNOWN = ControlUnavailable("no answer")


class Driver:
    """A core, the effects that it asked for, and a clock."""

    def __init__(
        self, *, keys_granted: bool = True, interval_ms: int = 10, **settings: Any
    ) -> None:
        self.core = Accumulator(DisklessSettings(**settings), interval_ms=interval_ms, broker_id=3)
        self.now_ms = 1000.0
        self.effects: list[Effect] = []
        self.keys_granted = keys_granted
        self.next_id = 1

    def submit(self, **options: Any) -> Sent:
        sent = Sent(**options)
        self.core.submit(sent.submission, self.now_ms)
        self.take()
        return sent

    def take(self) -> None:
        """Perform answers and leases; keep the rest for the test."""
        while effects := self.core.take():
            for effect in effects:
                if isinstance(effect, Answer):
                    for submission, outcome in effect.outcomes:
                        submission.done(outcome)
                elif isinstance(effect, LeaseKeys) and self.keys_granted:
                    self.grant(effect.wanted)
                else:
                    self.effects.append(effect)

    def grant(self, count: int) -> None:
        self.core.leased(keys(self.next_id, count), self.now_ms)
        self.next_id += count
        self.take()

    def pass_ms(self, time_ms: float, chance: float = 0.5) -> None:
        """Let time pass, waking the core whenever it asks for it."""
        end = self.now_ms + time_ms
        wakes = 0
        while self.core.wake_ms <= end:
            self.now_ms = max(self.now_ms, self.core.wake_ms)
            self.core.tick(self.now_ms, chance)
            self.take()
            wakes += 1
            assert wakes < 1000, f"the core wakes at {self.core.wake_ms} for nothing"
        self.now_ms = end

    def expect(self, kind: type[E]) -> E:
        """The next effect, which has to be of a kind."""
        effect = self.effects.pop(0)
        assert isinstance(effect, kind), effect
        return effect

    def put_done(self, put: PutObject) -> None:
        self.core.put_done(put.number, put.lease.object_id, self.now_ms)
        self.take()

    def put_failed(self, put: PutObject, error: PenstockError = LOST) -> None:
        self.core.put_failed(put.number, put.lease.object_id, error, self.now_ms, 0.5)
        self.take()

    def commit_done(self, commit: CommitObject, base_offset: int = 0) -> Finished:
        placed = []
        for entry in commit.entries:
            placed.append(AppendResult(base_offset, -1, 0))
            base_offset += entry.offset_count
        self.core.committed(commit.number, CommitAnswer(placed=tuple(placed)), self.now_ms)
        self.take()
        return self.expect(Finished)

    def commit_failed(self, commit: CommitObject, error: PenstockError = UNKNOWN) -> None:
        self.core.commit_failed(commit.number, error, self.now_ms, 0.5)
        self.take()

    def write(self, **options: Any) -> tuple[Sent, PutObject]:
        """A submission whose object is being written."""
        sent = self.submit(**options)
        self.pass_ms(self.core.interval_ms)
        return sent, self.expect(PutObject)

    def committing(self, **options: Any) -> tuple[Sent, PutObject, CommitObject]:
        """A submission whose object is being committed."""
        sent, put = self.write(**options)
        self.put_done(put)
        return sent, put, self.expect(CommitObject)
