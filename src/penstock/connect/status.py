"""Status of a connector: its state and counts, in the file `status.json` of its state directory.

    {"connector": "shop", "direction": "source", "state": "RUNNING", "pid": 4711,
     "worker": "host-1", "since_ms": 1790000000000, "cause": null, "records": 120000,
     "batches": 240, "dead_letters": 0, "skipped": 0, "retries": 0,
     "last_commit_ms": 1790000000100, "positions": {…}, "facts": {…}}

| state      | meaning                                                                   |
|------------|---------------------------------------------------------------------------|
| `STARTING` | the process connects to the brokers and to the other system               |
| `RUNNING`  | the connector transfers rows, or waits for new ones                       |
| `RETRYING` | attempts fail with the error in `cause`, until one transfers rows         |
| `FAILED`   | the connector has ended because of the error in `cause`                   |
| `STOPPED`  | the connector has ended as requested, or has read everything              |

A process that was killed cannot write its state. `read_status` therefore also checks that the
process exists, and reports FAILED if it does not. A process that hangs does not write the file any
more: after `STALLED_SECONDS`, RUNNING has a cause too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, get_args

import msgspec
from msgspec import Struct

from penstock.base.files import MACHINE_FILES, write_file
from penstock.base.system import SYSTEM_CLOCK, Clock

FILE: Final = "status.json"
WRITE_SECONDS: Final = 1.0
"""Time between two writes of unchanged states."""
STALLED_SECONDS: Final = 10.0
"""Age of the file of a running connector after which its status has a cause."""
CAUSE_CHARS_MAX: Final = 2_000

State = Literal["STARTING", "RUNNING", "RETRYING", "FAILED", "STOPPED"]
STATES: Final[tuple[State, ...]] = get_args(State)
ALIVE: Final = frozenset({"STARTING", "RUNNING", "RETRYING"})


class ConnectorStatus(Struct, kw_only=True):
    """State of a connector and its counts since its process started.

    Attributes:
        cause: error of RETRYING and FAILED, or the time for which a running connector has not
            finished a step; None in other states.
        records: rows that were committed; `dead_letters` and `skipped` are not included.
        positions: positions of a source, or next offsets of a sink by `topic-partition`.
        facts: facts of the source or sink, such as the lag of a replication slot.
        topics: time of the last committed batch of each topic, in ms since the epoch.
    """

    connector: str
    direction: str
    state: State = "STARTING"
    pid: int = 0
    process_started: int = 0
    since_ms: int = 0
    cause: str | None = None
    records: int = 0
    batches: int = 0
    dead_letters: int = 0
    skipped: int = 0
    retries: int = 0
    last_commit_ms: int | None = None
    positions: dict[str, Any] = {}
    facts: dict[str, Any] = {}
    topics: dict[str, int] = {}

    def commit_age_seconds(self, now_ms: int) -> float | None:
        """Return the time since the last committed batch; None if there is none."""
        return None if self.last_commit_ms is None else max(now_ms - self.last_commit_ms, 0) / 1000


class StatusFile:
    """Status of this process's connector, and the file that it is written to.

    `watch` is called with the status after each write, so once a second while the connector runs.
    """

    def __init__(
        self,
        connector: str,
        direction: str,
        directory: Path,
        *,
        watch: Callable[[ConnectorStatus], None] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._path = directory / FILE
        self._clock = clock
        self._watch = watch
        self._next = 0.0
        pid = os.getpid()
        self.status = ConnectorStatus(
            connector=connector, direction=direction, pid=pid, process_started=_started(pid) or 0,
            since_ms=clock.now_ms(),
        )  # fmt: skip
        directory.mkdir(parents=True, exist_ok=True)
        self._write()

    def enter(self, state: State, cause: str | None = None) -> None:
        """Set the state and its cause; write at once if they changed, else as `refresh` does."""
        shown = None if cause is None else cause[:CAUSE_CHARS_MAX]
        if (state, shown) != (self.status.state, self.status.cause):
            self.status.state, self.status.cause = state, shown
            self.status.since_ms = self._clock.now_ms()
            self._next = 0.0  # write now
        self.refresh(self.status.facts)

    def committed(
        self, records: int, positions: Mapping[str, Any], topics: Iterable[str] = ()
    ) -> None:
        """Count a committed batch."""
        self.status.records += records
        self.status.batches += 1
        self.status.last_commit_ms = now_ms = self._clock.now_ms()
        self.status.topics |= dict.fromkeys(topics, now_ms)
        self.status.positions = dict(positions)

    def refresh(self, facts: Mapping[str, Any]) -> None:
        """Set the facts, and write the file if its last write was `WRITE_SECONDS` ago."""
        self.status.facts = dict(facts)
        if self._clock.monotonic() >= self._next:
            self._write()

    def _write(self) -> None:
        self._next = self._clock.monotonic() + WRITE_SECONDS
        # Not synced: a state from before a crash of the machine is of no use.
        temporary = f"{self._path}.tmp"
        write_file(MACHINE_FILES, temporary, msgspec.json.encode(self.status), sync=False)
        MACHINE_FILES.rename(temporary, self._path)
        if self._watch is not None:
            self._watch(self.status)


def read_status(directory: Path) -> ConnectorStatus | None:
    """Return the status in a state directory; None if no run has written one.

    The state is FAILED if the process that wrote it was killed.
    """
    try:
        with (directory / FILE).open("rb") as file:
            age = SYSTEM_CLOCK.now_ms() / 1000 - os.fstat(file.fileno()).st_mtime
            found = msgspec.json.decode(file.read(), type=ConnectorStatus)
    except (OSError, msgspec.MsgspecError):
        return None
    if found.state in ALIVE and _started(found.pid) != found.process_started:
        found.state = "FAILED"
        found.cause = (
            f"process {found.pid} was killed, perhaps because memory ran out, or could not write"
            f" {directory / FILE} when it ended; start the connector again"
        )
    elif found.state == "RUNNING" and age > STALLED_SECONDS:
        found.cause = f"no step has ended for {age:.0f} s"
    return found


def _started(pid: int) -> int | None:
    """Return the start time of a process in clock ticks since boot; None if it does not run."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b") ")[2].split()
    except OSError:
        return None
    return None if fields[0] == b"Z" else int(fields[19])
