"""`penstock` that kills, itself or others, at one point of a transaction; see `plan.py`.

    python -m compat.kills.broker DIRECTORY serve …

Points are named by what has just been done, or is about to be: what is saved of a transactional
id, what answers leave, what partitions' logs take, at leaders and followers. The product knows
nothing of it: its methods are wrapped here.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, Final

from compat.kills.plan import ANYBODY, SELF, Plan, PlanFiles
from penstock.broker.net.connection import RequestContext
from penstock.broker.transactions.coordinator import Markers
from penstock.broker.transactions.events import decode_transaction
from penstock.control import TRANSACTION
from penstock.control.operations.coordination import CoordinationRecords, GroupOffsets
from penstock.diskless.topics.partition import DisklessPartition
from penstock.partitions.local import LocalPartition
from penstock.partitions.replicated import ReplicatedPartition
from penstock.records import decode_header
from penstock.storage.log.replica import LogReplica

ANSWERS: Final = frozenset({
    "AddOffsetsToTxn", "AddPartitionsToTxn", "EndTxn", "InitProducerId", "Produce",
    "TxnOffsetCommit", "WriteTxnMarkers",
})  # fmt: skip
FROM_BROKERS: Final = 4
"""AddPartitionsToTxn comes from brokers from this version."""
LOGS: Final = (LocalPartition, ReplicatedPartition, DisklessPartition)


class Points:
    """The points that this broker reaches."""

    def __init__(self, files: PlanFiles) -> None:
        self._files = files
        self._counted = ""
        self._count = 0

    def reached(self, point: str) -> None:
        """Carry out what is planned for this point, if anything is."""
        self._files.note(point)
        plan = self._files.read()
        if plan is None or plan.point != point or plan.by not in (ANYBODY, os.getpid()):
            return
        if plan.name != self._counted:
            self._counted, self._count = plan.name, 0
        self._count += 1
        if self._count == plan.count and self._files.take():
            self._send(plan)

    @staticmethod
    def _send(plan: Plan) -> None:
        own = {SELF, os.getpid()}
        for pid, number in plan.signals:
            if pid not in own:
                os.kill(pid, number)
        if any(pid in own for pid, _ in plan.signals):
            os.kill(os.getpid(), signal.SIGKILL)


def plant(reached: Callable[[str], None]) -> None:
    """Wrap what brokers do for transactions."""
    CoordinationRecords.save_records = _saves(CoordinationRecords.save_records, reached)  # type: ignore[method-assign]
    GroupOffsets.stage_offsets = _stages(GroupOffsets.stage_offsets, reached)  # type: ignore[method-assign]
    RequestContext.reply = _replies(RequestContext.reply, reached)  # type: ignore[method-assign]
    Markers._report = _tells(Markers._report, reached)  # type: ignore[method-assign]
    LogReplica.append = _copies(LogReplica.append, reached)  # type: ignore[method-assign]
    for log in LOGS:
        log.append = _appends(log.append, reached)  # type: ignore[method-assign]
        log.write_marker = _marks(log.write_marker, reached)  # type: ignore[method-assign]


def _saves(save: Any, reached: Callable[[str], None]) -> Any:
    @wraps(save)
    async def saves(plane: Any, changes: Sequence[Any], **more: Any) -> Any:
        states = [_state(change) for change in changes if change.kind == TRANSACTION]
        for state in states:
            reached(f"saving {state}")
        saved = await save(plane, changes, **more)
        for state in states:
            reached(f"saved {state}")
        return saved

    return saves


def _state(change: Any) -> str:
    """The state that is saved of a transactional id."""
    own = {"": change.rows[""]} if change.rows.get("") is not None else {}
    return decode_transaction(change.key, own).state.value if own else "Dead"


def _stages(stage: Any, reached: Callable[[str], None]) -> Any:
    @wraps(stage)
    async def stages(plane: Any, **named: Any) -> Any:
        reached("staging offsets")
        await stage(plane, **named)
        reached("staged offsets")

    return stages


def _replies(reply: Any, reached: Callable[[str], None]) -> Any:
    @wraps(reply)
    def replies(context: Any, buffers: Any) -> None:
        reply(context, buffers)
        name = context.api.name
        if name == "AddPartitionsToTxn" and context.version >= FROM_BROKERS:
            reached("answered a broker's AddPartitionsToTxn")
        elif name in ANSWERS:
            reached(f"answered {name}")

    return replies


def _tells(tell: Any, reached: Callable[[str], None]) -> Any:
    @wraps(tell)
    def tells(markers: Markers) -> None:
        reached("told of markers")
        tell(markers)

    return tells


def _copies(copy: Any, reached: Callable[[str], None]) -> Any:
    @wraps(copy)
    def copies(replica: Any, batches: memoryview, **named: Any) -> int:
        end: int = copy(replica, batches, **named)
        header = decode_header(batches)
        if header.is_transactional:
            kind = "marker" if header.is_control else "data"
            partition = replica._state.topic_partition.partition
            reached(f"copied {kind} {partition}")
        return end

    return copies


def _appends(append: Any, reached: Callable[[str], None]) -> Any:
    @wraps(append)
    def appends(partition: Any, batches: memoryview, *, done: Any, **named: Any) -> None:
        if not decode_header(batches).is_transactional:
            append(partition, batches, done=done, **named)
            return
        number = partition.topic_partition.partition
        reached(f"appending data {number}")
        append(partition, batches, done=_then(done, f"stored data {number}", reached), **named)
        reached(f"appended data {number}")

    return appends


def _marks(mark: Any, reached: Callable[[str], None]) -> Any:
    @wraps(mark)
    def marks(partition: Any, marker: Any, *, done: Any, **named: Any) -> None:
        number = partition.topic_partition.partition
        reached(f"appending marker {number}")
        mark(partition, marker, done=_then(done, f"stored marker {number}", reached), **named)
        reached(f"appended marker {number}")

    return marks


def _then(done: Any, point: str, reached: Callable[[str], None]) -> Any:
    def then(outcome: Any) -> None:
        reached(point)
        done(outcome)

    return then


def main() -> None:
    """Run the command line that follows."""
    plant(Points(PlanFiles(Path(sys.argv.pop(1)))).reached)
    from penstock.apps.cli import main as penstock

    penstock()


if __name__ == "__main__":
    main()
