"""Watch over a running mirror: names the partitions that stop, and writes the status.

A thread compares the mirror's positions with the ends of the source's partitions. A partition is
reported if it has no leader, or if it has records to mirror and its position has not changed for
`STALLED_SECONDS`. While a partition is reported, the state is RETRYING, and `cause` names it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from typing import Any, Final

from penstock.base.errors import PenstockError
from penstock.base.system import SYSTEM_CLOCK
from penstock.client import Client
from penstock.client.protocol import TopicAndPartition
from penstock.connect.status import State, StatusFile
from penstock.mirror.mirror_file import MirrorSpec
from penstock.records.extents import READ_COMMITTED

STALLED_SECONDS: Final = 5.0
LOOK_SECONDS: Final = 1.5
ANSWER_MS: Final = 2_500
SHOWN_MAX: Final = 20
"""Most partitions that a cause names."""

logger = logging.getLogger(__name__)


class Watch:
    """Status of a mirror, and the thread that updates it; a context manager."""

    def __init__(self, spec: MirrorSpec, status: StatusFile) -> None:
        self.status = status
        self._spec = spec
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._positions: dict[TopicAndPartition, tuple[int, float]] = {}
        self._clients: tuple[Client, ...] = ()
        self._stopped: dict[str, str] = {}
        self._thread = threading.Thread(target=self._run, name="mirror watch", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def enter(self, state: State, cause: str | None = None) -> None:
        with self._lock:
            self.status.enter(state, cause)

    def retrying(self, cause: str) -> None:
        """Count a failed attempt, which another one follows."""
        with self._lock:
            self.status.status.retries += 1
            self.status.enter("RETRYING", cause)

    def began(self, positions: Mapping[TopicAndPartition, int], clients: Iterable[Client]) -> None:
        """Watch an attempt, which starts at these positions and uses these clients."""
        now = SYSTEM_CLOCK.monotonic()
        with self._lock:
            self._positions = {place: (offset, now) for place, offset in positions.items()}
            self._clients = tuple(clients)
            self.status.enter("RUNNING")

    def ended(self) -> None:
        """Stop watching, because the attempt has ended."""
        with self._lock:
            self._positions, self._clients = {}, ()

    def committed(self, records: int, changed: Mapping[TopicAndPartition, int]) -> None:
        """Count a committed transaction, and keep its positions."""
        now = SYSTEM_CLOCK.monotonic()
        with self._lock:
            self._positions.update({place: (offset, now) for place, offset in changed.items()})
            positions = {f"{t}-{p}": offset for (t, p), (offset, _) in self._positions.items()}
            self.status.committed(records, positions, {topic for topic, _ in changed})

    def note(self, name: str, value: Any) -> None:
        """Set a fact of the status; None removes it."""
        with self._lock:
            facts = {**self.status.status.facts, name: value}
            self.status.status.facts = {key: v for key, v in facts.items() if v is not None}

    def _run(self) -> None:
        with self._spec.source_client(
            api_timeout_ms=ANSWER_MS, request_timeout_ms=ANSWER_MS, connect_timeout_ms=ANSWER_MS
        ) as client:
            while not self._ended.wait(LOOK_SECONDS):
                with self._lock:
                    positions = self._positions.copy()
                self._show(self._look(client, positions) if positions else {})

    def _show(self, stopped: dict[str, str]) -> None:
        for name, reason in stopped.items():
            if name not in self._stopped:
                logger.warning("mirror %s: %s %s", self._spec.name, name, reason)
        for name in self._stopped.keys() - stopped.keys():
            logger.warning("mirror %s: %s is mirrored again", self._spec.name, name)
        self._stopped = stopped
        with self._lock:
            if self._clients:
                words = [f"{name} {reason}" for name, reason in stopped.items()]
                more = f"; and {len(words) - SHOWN_MAX} more" if len(words) > SHOWN_MAX else ""
                cause = "; ".join(words[:SHOWN_MAX]) + more
                self.status.enter("RETRYING" if words else "RUNNING", cause or None)
                self.status.status.facts["stopped"] = list(stopped)
                self.status.refresh(self.status.status.facts)

    def _look(
        self, client: Client, positions: Mapping[TopicAndPartition, tuple[int, float]]
    ) -> dict[str, str]:
        """Return the partitions that have stopped, each with the reason."""
        try:
            topics = client.metadata({topic for topic, _ in positions}).topics
        except PenstockError as error:
            return {f"{name}-{index}": f"cannot be read: {error}" for name, index in positions}
        stopped: dict[str, str] = {}
        for name, topic in topics.items():
            led = [item.index for item in topic.partitions if item.leader >= 0]
            for item in topic.partitions:
                if item.leader < 0 and (name, item.index) in positions:
                    stopped[f"{name}-{item.index}"] = "has no leader in the source"
            try:
                ends = client.list_offsets(name, partitions=led, isolation=READ_COMMITTED)
            except PenstockError as error:
                stopped |= {f"{name}-{index}": f"cannot be read: {error}" for index in led}
                continue
            stopped |= self._stalled(name, ends, positions)
        return stopped

    def _stalled(
        self, topic: str, ends: Mapping[int, int],
        positions: Mapping[TopicAndPartition, tuple[int, float]],
    ) -> dict[str, str]:  # fmt: skip
        now = SYSTEM_CLOCK.monotonic()
        found: dict[str, str] = {}
        for partition, end in ends.items():
            offset, since = positions.get((topic, partition), (end, now))
            if offset >= end:
                with self._lock:
                    if self._positions.get((topic, partition)) == (offset, since):
                        self._positions[topic, partition] = (offset, now)
            elif now - since > STALLED_SECONDS:
                reason = f"has {end - offset} offsets to mirror since {now - since:.0f} s"
                troubles = [text for client in self._clients if (text := client.waits().trouble)]
                found[f"{topic}-{partition}"] = ": ".join([reason, *troubles[:1]])
        return found
