"""A broker that dies by SIGKILL at one step of a transaction: a program, see the test beside it.

`python -m tests.broker.dying_broker POINT COUNT serve …`: the rest is what `penstock` takes. The
process kills itself when POINT is reached for the COUNTth time. Points are before and after a save
of the transaction coordinator is durable, before markers are written and after one is.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, Final

from penstock.apps.cli import root
from penstock.broker.coordination.markers import Markers
from penstock.broker.coordination.transactions import WriteMarkers
from penstock.control import TRANSACTION
from penstock.control.coordination.plane import CoordinationRecords

BEFORE_SAVE: Final = "before-save"
AFTER_SAVE: Final = "after-save"
BEFORE_MARKERS: Final = "before-markers"
AFTER_MARKER: Final = "after-marker"

_left: dict[str, Any] = {"point": "", "count": 0}


def reached(point: str) -> None:
    if point == _left["point"]:
        _left["count"] -= 1
        if _left["count"] == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def plant() -> None:
    save, write, written = CoordinationRecords.save_records, Markers.write, Markers._tell

    async def dying_save(plane: Any, changes: Sequence[Any], **more: Any) -> Any:
        ours = any(change.kind == TRANSACTION for change in changes)
        if ours:
            reached(BEFORE_SAVE)
        saved = await save(plane, changes, **more)
        if ours:
            reached(AFTER_SAVE)
        return saved

    def dying_write(markers: Markers, wanted: WriteMarkers) -> None:
        reached(BEFORE_MARKERS)
        write(markers, wanted)

    def dying_tell(markers: Markers) -> None:
        reached(AFTER_MARKER)
        written(markers)

    patches = (
        (CoordinationRecords, "save_records", dying_save),
        (Markers, "write", dying_write),
        (Markers, "_tell", dying_tell),
    )
    for place, name, function in patches:
        setattr(place, name, function)


if __name__ == "__main__":
    point, count, *rest = sys.argv[1:]
    _left.update(point=point, count=int(count))
    plant()
    sys.argv = ["penstock", *rest]
    root()
