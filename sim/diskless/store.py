"""An object store of which every answer may lie about what happened.

| a PUT is      | what happens                                        | what is answered |
|---------------|-----------------------------------------------------|------------------|
| well          | it lands                                            | done             |
| lost          | nothing                                             | unavailable      |
| unanswered    | it lands                                            | unavailable      |
| late          | it lands long after the answer, or after a deletion | unavailable      |
| truncated     | a part lands                                        | unavailable      |
| throttled     | nothing                                             | throttled        |

Deletions and reads may be lost, unanswered or late in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.base.errors import PenstockError
from penstock.objects import ObjectNotFound, ObjectTruncated, StoreThrottled, StoreUnavailable
from penstock.objects.port import Buffer
from sim.host.scheduler import Scheduler, Violation

Failed = Callable[[PenstockError], None]
LATE_MS = 3_000.0
"""The latest that a lost request may still take effect."""


def _short(key: str) -> str:
    """An object's id, as it stands in its key."""
    return key.removesuffix(".log")[-13:-9]


class Stored(NamedTuple):
    """An object as it lies there."""

    data: bytes
    landed_ms: float


class ModelStore:
    """Objects under keys; `deleted` are those that were there once."""

    def __init__(self, scheduler: Scheduler, trouble: float) -> None:
        self._scheduler = scheduler
        self._trouble = trouble
        self.objects: dict[str, Stored] = {}
        self.tried: set[str] = set()
        self.on_deletion: Callable[[str], None] = lambda key: None
        self.slow = False
        """A storm: nearly everything is throttled or late."""

    def _fate(self) -> float:
        """Below 1 trouble of some kind, evenly; above, all is well."""
        trouble = 0.8 if self.slow else self._trouble
        scheduler = self._scheduler
        if not scheduler.faults or not trouble:
            return 1.0
        return scheduler.random.random() / trouble

    def put(
        self, key: str, pieces: Sequence[Buffer], done: Callable[[], None], failed: Failed
    ) -> None:
        scheduler = self._scheduler
        if key in self.tried:
            raise Violation(f"{key} is written a second time")
        self.tried.add(key)
        data = b"".join(pieces)
        fate, delay = self._fate(), scheduler.delay_ms()
        if fate >= 1:
            scheduler.after(delay, lambda: self._land(key, data))
            scheduler.after(delay + scheduler.delay_ms(), done)
            return
        if fate < 0.2:
            error: PenstockError = StoreThrottled("slow down")
        else:
            error = StoreUnavailable("no answer")
            self._in_doubt(key, data, fate, delay)
        scheduler.after(delay, lambda: failed(error))

    def _in_doubt(self, key: str, data: bytes, fate: float, delay: float) -> None:
        scheduler = self._scheduler
        if fate < 0.4:
            scheduler.note("put", _short(key), "lost")
        elif fate < 0.6:
            scheduler.note("put", _short(key), "unanswered")
            scheduler.after(delay, lambda: self._land(key, data))
        elif fate < 0.85:
            late = delay + LATE_MS * scheduler.random.random() ** 2
            scheduler.note("put", _short(key), "late")
            scheduler.after(late, lambda: self._land(key, data))
        else:
            part = data[: scheduler.random.randrange(len(data))]
            scheduler.note("put", _short(key), "truncated")
            scheduler.after(delay, lambda: self._land(key, part))

    def _land(self, key: str, data: bytes) -> None:
        self.objects[key] = Stored(data, self._scheduler.now_ms)

    def get(
        self,
        key: str,
        start: int,
        size_bytes: int,
        done: Callable[[memoryview | PenstockError], None],
    ) -> None:
        scheduler = self._scheduler
        fate = self._fate()
        if fate < 1:
            error = StoreThrottled("slow down") if fate < 0.3 else StoreUnavailable("no answer")
            scheduler.after(scheduler.delay_ms(), lambda: done(error))
        else:
            scheduler.after(scheduler.delay_ms(), lambda: done(self._read(key, start, size_bytes)))

    def _read(self, key: str, start: int, size_bytes: int) -> memoryview | PenstockError:
        stored = self.objects.get(key)
        if stored is None:
            return ObjectNotFound(key)
        found = memoryview(stored.data)[start : start + size_bytes]
        if len(found) < size_bytes:
            return ObjectTruncated(key, start, size_bytes, len(stored.data))
        return found

    def delete(self, keys: Sequence[str], done: Callable[[], None], failed: Failed) -> None:
        scheduler = self._scheduler
        fate, delay = self._fate(), scheduler.delay_ms()
        if fate >= 0.4:
            late = LATE_MS * scheduler.random.random() ** 2 if fate < 0.7 else 0.0
            scheduler.after(delay + late, lambda: self._remove(keys))
        answer = done if fate >= 1 else lambda: failed(StoreUnavailable("no answer"))
        scheduler.after(delay + 0.1, answer)

    def _remove(self, keys: Sequence[str]) -> None:
        for key in keys:
            if self.objects.pop(key, None) is not None:
                self._scheduler.note("gone", _short(key))
                self.on_deletion(key)
