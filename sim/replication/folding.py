"""Whether folding syncs and joins into messages leaves any state out.

Folded and separate exploration must reach exactly the same states in which nothing waits for a
sync, but for which stream a replica has joined: with folding, every message joins anew.

That holds where no disk is lost and a sync is one step. A copy in limbo that has all of its
leader's log leaves the limbo with the join that is folded into the next message; where steps are
separate, it may be seen before. Where the begin of a sync and its end are two steps, a copy may
promise in between, and hold what its leader does not know it to hold. Both are explored without
folding, too (`bounds.FULL`).
"""

from __future__ import annotations

from sim.replication.bounds import Bounds
from sim.replication.exploring import Exploration
from sim.replication.model import Model, State
from sim.replication.plants import SOUND
from sim.replication.records import REPLICA_SLOTS, Copy

_STREAM = ("authority", "epoch", "chain", "joined_after", "acked")


def quiet_states(bounds: Bounds) -> set[tuple[object, ...]]:
    """The states without a sync due, spelled out."""
    exploration = Exploration(bounds, SOUND)
    result = exploration.run()
    if result.trace or not result.complete:
        raise ValueError(f"{bounds} does not hold, so what it reaches means nothing")
    model = exploration.model
    return {
        _spelled_out(model, state)
        for state in exploration.states
        if all(_is_quiet(model.copy_of(member)) for member in state.replicas)
    }


def _is_quiet(copy: Copy) -> bool:
    core = dict(zip(REPLICA_SLOTS, copy.core, strict=True))
    waits = core["writes"] or core["owed"] or core["asked"] or copy.sync
    return not waits and copy.files == copy.disk._replace(mark=0) and copy.mark == copy.disk.mark


def _spelled_out(model: Model, state: State) -> tuple[object, ...]:
    members = []
    for member in state.replicas:
        number, *views = model.members.values[member]
        copy = model.copies.records.values[number]
        core = dict(zip(REPLICA_SLOTS, copy.core, strict=True)) | dict.fromkeys(_STREAM)
        members.append((tuple(core.values()), copy.disk, *(model.views.values[v] for v in views)))
    return (
        state.reserved,
        model.chains.values[state.chain],
        tuple(model.processes.records.values[number] for number in state.processes),
        tuple(sorted(members, key=repr)),
        model.logs.values[state.seen],
        state.wipes,
    )
