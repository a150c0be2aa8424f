"""What must hold in every state, and what must come to be from it."""

from __future__ import annotations

from penstock.broker.transactions import TransactionState
from sim.transactions.logs import Tag, Violation
from sim.transactions.model import Model, State

STEPS_TO_REST = 200


def check(state: State) -> None:
    """Every transaction ends in one way, everywhere, and as its client was told.

    Raises:
        Violation: one does not.
    """
    ends: dict[Tag, set[bool]] = {}
    for log in state.logs:
        for tag, committed in log.outcomes().items():
            if committed is not None:
                ends.setdefault(tag, set()).add(committed)
    for tag, committed in state.completed:
        ends.setdefault(tag, set()).add(committed)
    for tag, committed in state.told:
        if {committed} != (ends.get(tag, set()) | {committed}):
            raise Violation(f"{tag} was said to be {_text(committed)}, and some of it is not")
    for tag, found in ends.items():
        if len(found) > 1:
            raise Violation(f"{tag} is committed in part")
        if True in found and tag in state.fenced:
            raise Violation(f"{tag} is committed, and its producer was fenced before")


def check_rest(model: Model, state: State) -> None:
    """From any state on, if nothing more happens, everything comes to its end.

    Raises:
        Violation: a transaction stays open, or data that were acknowledged are not as was told.
    """
    for _ in range(STEPS_TO_REST):
        after = _next(model, state)
        if after is None:
            break
        check(after)
        state = after
    metadata = None if state.core is None else state.core.metadata
    if (
        metadata is not None
        and not metadata.state.idle
        and metadata.state is not TransactionState.DEAD
    ):
        raise Violation(f"the transaction stays in state {metadata.state.value}")
    for index, log in enumerate(state.logs):
        if log.open is not None:
            raise Violation(f"partition {index} has the transaction of {log.open} open forever")
    if state.staged:
        raise Violation("offsets stay staged")
    for tag, committed in state.told:
        for acknowledged, index in state.acknowledged:
            if acknowledged == tag and state.logs[index].outcomes().get(tag) is not committed:
                raise Violation(f"data of {tag} in {index} are not {_text(committed)}")


def _next(model: Model, state: State) -> State | None:
    if state.core is None:
        return model.load(state)
    if state.save is not None:
        if state.save.durable:
            return model.report(state, failed=False)
        return model.store(state)
    for write in sorted(state.writes):
        after = model.arrive(state, write)
        if after is not None and after != state:
            return after
    if state.writing is not None:
        marker, partitions = state.writing
        return model.mark(state, marker, min(partitions))
    for marker, index in state.acks:
        return model.acknowledge(state, marker, index)
    metadata = state.core.metadata
    if metadata is None or (metadata.state.idle and not state.core.waiting):
        return None
    return model.tick(state)


def _text(committed: bool) -> str:
    return "committed" if committed else "aborted"
