"""Heartbeats by which workers share connectors, so that each connector runs on one worker.

Each worker writes a record every `BEAT_SECONDS` to the compacted topic `TOPIC`: its id as the key,
and as the value the names of the connectors that it has, and the states of those that it runs or
claims. A worker whose newest record is `DEAD_SECONDS` old is dead.

Rendezvous hashing assigns a connector to one of the live workers that have its file. A worker
claims a connector that no other live worker runs, and starts it when its own claim precedes all
others in the log. It stops connectors that are assigned to another worker, which then claims them.

A worker that cannot write heartbeats for `DEAD_SECONDS` stops its connectors if there are other
workers. The transactional id of a source fences a run that continues nevertheless.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Iterable
from typing import Any, Final

import msgspec
from msgspec import Struct

from penstock.base.errors import PenstockError
from penstock.base.pause import pause
from penstock.base.system import SYSTEM_CLOCK, Clock
from penstock.client import Client
from penstock.connect.worker import LOOK_SECONDS, Worker

TOPIC: Final = "penstock-connect.workers"
CONFIGS: Final = {"cleanup.policy": "compact", "segment.ms": "600000"}
BEAT_SECONDS: Final = 2.0
DEAD_SECONDS: Final = 8.0
CAUSE_CHARS_MAX: Final = 300
RECORDS_MAX: Final = 1_000_000
"""Most records that are read at once."""

logger = logging.getLogger(__name__)


class Heartbeat(Struct, frozen=True, kw_only=True):
    """State of a worker: names of its connectors, and state and cause of those that it claims."""

    time_ms: int
    has: tuple[str, ...]
    claims: dict[str, tuple[str, str | None]]


def owner(name: str, workers: Iterable[str]) -> str:
    """Return the worker that a connector is assigned to, by rendezvous hashing."""

    def weight(worker: str) -> bytes:
        return hashlib.sha256(f"{worker}\0{name}".encode()).digest()

    return max(workers, key=weight)


class Sharing:
    """Heartbeats of this worker, and its knowledge of the others; used by one event loop."""

    def __init__(
        self, worker: Worker, worker_id: str, client: Client, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.cluster_id = ""
        self._worker = worker
        self._id = worker_id
        self._client = client
        self._clock = clock
        self._others: dict[str, tuple[Heartbeat, float]] = {}
        self._offset = 0
        self._claims: set[str] = set()
        self._beat_at = clock.monotonic()
        self._ready = False
        worker.assign(())  # until the first heartbeat

    async def run(self, stop: asyncio.Event) -> None:
        """Send heartbeats and assign connectors until `stop` is set, then leave."""
        while not stop.is_set():
            try:
                await self._round()
            except PenstockError as error:
                logger.warning("heartbeat: %s", error)
                if self._clock.monotonic() - self._beat_at > DEAD_SECONDS:
                    self._worker.assign(() if self._others else None)
            known = set(self._worker.entries)
            for _ in range(round(BEAT_SECONDS / LOOK_SECONDS)):
                await pause(LOOK_SECONDS)
                if stop.is_set() or set(self._worker.entries) != known or self._unclaimed():
                    break
        while any(self._worker.runs(name) for name in self._worker.entries):
            await pause(0.05)
        await asyncio.to_thread(self._write, None)

    def elsewhere(self, name: str) -> tuple[str, str | None, str] | None:
        """Return state, cause and worker of a connector that another live worker claims."""
        if self._worker.runs(name):
            return None
        for worker, beat in self._live().items():
            if name in beat.claims:
                state, cause = beat.claims[name]
                return {"STARTING": "UNASSIGNED"}.get(state, state), cause, worker
        return None

    def _live(self) -> dict[str, Heartbeat]:
        since = self._clock.monotonic() - DEAD_SECONDS
        return {worker: beat for worker, (beat, at) in self._others.items() if at > since}

    def _owned(self) -> set[str]:
        live = self._live()
        return {
            name for name, entry in self._worker.entries.items()
            if entry.target.state == "RUNNING" and self._id
            == owner(name, [self._id, *(other for other, beat in live.items() if name in beat.has)])
        }  # fmt: skip

    def _unclaimed(self) -> bool:
        """Return whether a connector can be claimed or has to be released."""
        taken = {name for beat in self._live().values() for name in beat.claims}
        running = {name for name in self._claims if self._worker.runs(name)}
        return (self._owned() - taken) | running != self._claims

    async def _round(self) -> None:
        taken = {name for beat in self._live().values() for name in beat.claims}
        owned = self._owned()
        running = {name for name in self._worker.entries if self._worker.runs(name)}
        if self._clock.monotonic() - self._beat_at > DEAD_SECONDS:
            running -= taken
        self._claims = running | (owned - taken)
        states: dict[str, tuple[str, str | None]] = {}
        for name in self._claims & set(self._worker.entries):
            found = self._worker.status(name)
            states[name] = (found.state, (found.cause or "")[:CAUSE_CHARS_MAX] or None)
        beat = Heartbeat(
            time_ms=self._clock.now_ms(), has=tuple(self._worker.entries), claims=states
        )
        await asyncio.to_thread(self._exchange, beat)
        self._beat_at = self._clock.monotonic()
        before = {
            name for worker, other in self._live().items() for name in other.claims
            if worker != self._id
        }  # fmt: skip
        self._worker.assign((self._claims - before | running & self._claims) & self._owned())
        self._worker.look()

    # Calls of brokers, made by another thread

    def _exchange(self, beat: Heartbeat) -> None:
        """Write a heartbeat, and read the log up to it."""
        if not self._ready:
            self._client.create_topic(TOPIC, 1, CONFIGS, exist_ok=True)
            self.cluster_id = self._client.metadata([]).cluster_id or ""
        self._write(beat)
        rows = self._client.read_arrow(
            TOPIC, start={0: self._offset} if self._offset else "earliest",
            columns=("key", "value", "offset"), max_records=RECORDS_MAX,
        ).to_pylist()  # fmt: skip
        mine = max((row["offset"] for row in rows if row["key"] == self._id.encode()), default=0)
        for row in rows:
            self._accept(row, mine)
        self._offset, self._ready = mine + 1, True

    def _accept(self, row: Any, mine: int) -> None:
        worker = row["key"].decode()
        if row["offset"] > mine or worker == self._id:
            return
        if row["value"] is None:
            self._others.pop(worker, None)
            return
        beat = msgspec.json.decode(row["value"], type=Heartbeat)
        age = 0.0 if self._ready else max(0.0, (self._clock.now_ms() - beat.time_ms) / 1000)
        self._others[worker] = (beat, self._clock.monotonic() - age)

    def _write(self, beat: Heartbeat | None) -> None:
        import pyarrow as pa

        value = None if beat is None else msgspec.json.encode(beat)
        self._client.write_arrow(
            TOPIC,
            pa.table({"key": [self._id.encode()], "value": pa.array([value], pa.binary())}),
        )
