"""Watch over a running mirror: names the partitions that stop, and writes the status.

A thread compares the mirror's positions with the ends of the source's partitions. A partition is
reported if the target rejects it, if it has no leader, or if it has records to mirror and its
position has not changed for `STALLED_SECONDS`. While attempts fail, all such partitions are
reported with the last error. While partitions are reported, the state is RETRYING, and `cause`
names them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from typing import Any, Final

from penstock.base.errors import PenstockError, RetriableError, UnavailableError
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

Stopped = dict[TopicAndPartition, str]
"""Reasons of partitions that are not mirrored."""

logger = logging.getLogger(__name__)


def _name(place: TopicAndPartition) -> str:
    return f"{place[0]}-{place[1]}"


def _cause(stopped: Stopped) -> str | None:
    """Return the reasons, each with the names of its partitions; None if nothing has stopped."""
    names: dict[str, list[str]] = {}
    for place, reason in stopped.items():
        names.setdefault(reason, []).append(_name(place))
    words = []
    for reason, found in names.items():
        more = f" and {len(found) - SHOWN_MAX} more" if len(found) > SHOWN_MAX else ""
        words.append(f"{', '.join(found[:SHOWN_MAX])}{more}: {reason}")
    if len(words) > SHOWN_MAX:
        words[SHOWN_MAX:] = [f"{len(words) - SHOWN_MAX} more causes"]
    return "; ".join(words) or None


class Watch:
    """Status of a mirror, and the thread that updates it; a context manager."""

    def __init__(self, spec: MirrorSpec, status: StatusFile) -> None:
        self.status = status
        self.stopped: Stopped = {}
        self.lags: dict[TopicAndPartition, int] = {}
        """Offsets of the source's partitions that are not mirrored yet."""
        self._spec = spec
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._positions: dict[TopicAndPartition, tuple[int, float]] = {}
        """Position of each partition, and the last time at which it changed or was at the end."""
        self._clients: tuple[Client, ...] = ()
        self._rejected: Stopped = {}
        self._failure = ""
        """Error of the last attempt, if it has failed and no other one has begun."""
        self._thread = threading.Thread(target=self._run, name="mirror watch", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def enter(self, state: State, cause: str | None = None) -> None:
        with self._lock:
            self._failure = ""
            self.status.enter(state, cause)

    def retrying(self, cause: str) -> None:
        """Count a failed attempt, which another one follows."""
        with self._lock:
            self._failure = cause
            self.status.status.retries += 1
            self.status.enter("RETRYING", _cause(self._unmirrored()) or cause)

    def began(
        self, positions: Mapping[TopicAndPartition, int], clients: Iterable[Client],
        rejected: Stopped,
    ) -> None:  # fmt: skip
        """Watch an attempt, which starts at these positions and uses these clients.

        `rejected` has the reasons of partitions that the attempt does not mirror.
        """
        now = SYSTEM_CLOCK.monotonic()
        with self._lock:
            known, self._positions, self.lags = self._positions, {}, {}
            for place, offset in positions.items():
                before, since = known.get(place, (offset, now))
                self._positions[place] = (offset, since if before == offset else now)
            self._clients, self._failure = tuple(clients), ""
            self._rejected = rejected
            self.status.status.positions = {_name(at): offset for at, offset in positions.items()}
            self.status.enter("RETRYING" if rejected else "RUNNING", _cause(rejected))

    def ended(self) -> None:
        """Note that the attempt has ended."""
        with self._lock:
            self._clients = ()

    def committed(self, records: int, changed: Mapping[TopicAndPartition, int]) -> None:
        """Count a committed transaction, and keep its positions."""
        now = SYSTEM_CLOCK.monotonic()
        with self._lock:
            self._positions.update({place: (offset, now) for place, offset in changed.items()})
            known = self.status.status.positions  # of all partitions, since `began`
            changes = {_name(place): offset for place, offset in changed.items()}
            self.status.committed(records, known | changes, {topic for topic, _ in changed})

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
                    positions, watched = self._positions.copy(), bool(self._clients)
                    stopped, failing = self._unmirrored(), bool(self._failure)
                if watched:
                    stopped = self._look(client, positions)
                if watched or failing:
                    self._show(stopped)

    def _unmirrored(self) -> Stopped:
        """Return the partitions whose positions are old, with the error of the last attempt."""
        until = SYSTEM_CLOCK.monotonic() - STALLED_SECONDS
        return {
            place: f"not mirrored: {self._failure}"
            for place, (_, since) in self._positions.items()
            if since < until
        }

    def _show(self, stopped: Stopped) -> None:
        with self._lock:
            stopped |= self._rejected
            if new := {place: why for place, why in stopped.items() if place not in self.stopped}:
                logger.warning("mirror %s: %s", self._spec.name, _cause(new))
            if again := dict.fromkeys(self.stopped.keys() - stopped.keys(), "mirrored again"):
                logger.warning("mirror %s: %s", self._spec.name, _cause(again))
            self.stopped = stopped
            if self._clients or self._failure:
                cause = _cause(stopped) or self._failure or None
                self.status.enter("RETRYING" if cause else "RUNNING", cause)
                names = [_name(place) for place in stopped]
                self.status.refresh(self.status.status.facts | {"stopped": names})

    def _look(
        self, client: Client, positions: Mapping[TopicAndPartition, tuple[int, float]]
    ) -> Stopped:
        """Return the partitions that have stopped, each with the reason."""
        try:
            topics = client.metadata({topic for topic, _ in positions}).topics
        except PenstockError as error:
            return dict.fromkeys(positions, f"cannot be read: {error}")
        stopped: Stopped = {}
        silent: dict[int, str] = {}  # reasons of leaders that do not respond
        for name, topic in topics.items():
            led: dict[int, list[int]] = {}
            for item in topic.partitions:
                if (name, item.index) in positions:
                    led.setdefault(item.leader, []).append(item.index)
            for leader, indexes in led.items():
                reason = "has no leader in the source" if leader < 0 else silent.get(leader)
                try:
                    if reason is None:
                        ends = client.list_offsets(
                            name, partitions=indexes, isolation=READ_COMMITTED
                        )
                        stopped |= self._stalled(name, ends, positions)
                except PenstockError as error:
                    reason = f"cannot be read: {error}"
                    if isinstance(error, (RetriableError, UnavailableError)):
                        silent[leader] = reason
                if reason is not None:
                    stopped |= {(name, index): reason for index in indexes}
        return stopped

    def _stalled(
        self, topic: str, ends: Mapping[int, int],
        positions: Mapping[TopicAndPartition, tuple[int, float]],
    ) -> Stopped:  # fmt: skip
        now = SYSTEM_CLOCK.monotonic()
        found: Stopped = {}
        for partition, end in ends.items():
            offset, since = positions[topic, partition]
            self.lags[topic, partition] = max(0, end - offset)
            if offset >= end:
                with self._lock:
                    if self._positions.get((topic, partition)) == (offset, since):
                        self._positions[topic, partition] = (offset, now)
            elif now - since > STALLED_SECONDS:
                reason = f"has {end - offset} offsets to mirror since {now - since:.0f} s"
                troubles = [text for client in self._clients if (text := client.waits().trouble)]
                found[topic, partition] = ": ".join([reason, *troubles[:1]])
        return found
