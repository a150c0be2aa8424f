"""What must hold in every state and every step.

1. What was acknowledged or read stays, at its offset, on `acks` replicas (those in limbo count as
   lost, not as wrong), and is in the log of every later epoch; unless it was deleted, by a leader
   or a copy that knew it as committed.
2. (epoch, offset) never has two values, and no replica halts because it finds another one.
3. The chain only grows: an end is set once, at or above all that was acknowledged or read.
4. After f replicas have promised an epoch, no lower one completes a quorum for an offset that none
   of these f held.
5. A leader's commit mark never falls; a replica's never covers what is not committed.
6. No reader sees a value that another reader, or a later one, does not (`Model.see`).
7. One process commits per epoch.
8. Compaction takes no record from a copy but by a newer one of its key that is committed, and is
   there: copies that have all that is committed agree on the last value.

And no core asks its files for what they cannot do, or knows something else than they hold.
"""

from __future__ import annotations

from penstock.replication.epoch import Phase
from sim.replication.model import Model, State
from sim.replication.records import Copy, Entry, Log, is_hole, original


class Violation(Exception):
    """An invariant does not hold; the text says which."""


class Checks:
    """The invariants over the states of one model."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._span = model.bounds.span
        self._acks = model.bounds.acks
        self._sound: set[tuple[object, ...]] = set()
        self._before: State | None = None
        self._before_reached: list[int] = []

    def check(self, state: State) -> None:
        """Invariants of one state; what was looked at before is sound."""
        model = self._model
        numbers = tuple(model.members.values[member][0] for member in state.replicas)
        key = (
            state.seen, numbers, state.processes, state.wipes, state.chain, state.deleted,
        )  # fmt: skip
        if key in self._sound:
            return
        copies = [model.copies.records.values[number] for number in numbers]
        seen = model.logs.values[state.seen]
        for copy in copies:
            if copy.halted:
                raise Violation("a replica finds another value than its leader's, and halts")
            if copy.mark > len(seen) * self._span:
                raise Violation("a replica's commit mark covers what is not committed")
            newest = copy.files.log[: len(seen)][len(seen) - 1 :] if seen else ()
            if copy.mark == len(seen) * self._span and any(map(is_hole, newest)):
                raise Violation("a replica that has all has not the last value")
        if state.deleted > len(seen):
            raise Violation("what was not committed is deleted")
        opened = model.chains.values[state.chain][-1].epoch
        placement = model.said(state, opened - 1).terms.placement
        self._check_copies(state, seen, [copies[place] for place in placement])
        logs = [model.processes.said(number).log for number in state.processes]
        self._check_values([*logs, *(copy.files.log for copy in copies)])
        self._sound.add(key)

    def _check_copies(self, state: State, seen: Log, copies: list[Copy]) -> None:
        for place, entry in enumerate(seen):
            if entry is None or place < state.deleted:
                continue
            held = lost = 0
            for copy in copies:
                log = copy.disk.log
                has = log[place] if place < len(log) else "less"
                there = has == entry or self._is_superseded(log[place : len(seen)], entry)
                held += there
                lost += not there and (has is None or copy.files.limbo >= entry[0])
            if not self._model.bounds.wipes:
                lost = 0
            if held + lost < self._acks and not self._model.plant.loses:
                raise Violation(f"batch {place} was committed, but {held} hold it durably")
            if not held and state.wipes < self._acks:
                raise Violation(f"batch {place} was acknowledged, and no copy is left")

    @staticmethod
    def _is_superseded(log: Log, entry: Entry) -> bool:
        """Whether the first batch of a log is a hole, made by one behind it."""
        return bool(log) and original(log[0]) == entry and not all(map(is_hole, log))

    def _check_values(self, logs: list[Log]) -> None:
        values: dict[tuple[int, int], int] = {}
        for log in logs:
            for place, entry in enumerate(log):
                if entry is not None:
                    epoch, writer = original(entry) or entry
                    if values.setdefault((epoch, place), writer) != writer:
                        raise Violation(f"(epoch {epoch}, batch {place}) has two values")

    def check_step(self, before: State, after: State) -> None:
        """Invariants of one step; replicas are in the same order in both states."""
        model = self._model
        if after.chain != before.chain:
            chains = model.chains.values
            if chains[after.chain][:-1] != chains[before.chain]:
                raise Violation("an epoch's end is set twice")
            self._check_opened(before, after)
        if after.replicas == before.replicas:
            return
        for process in range(len(before.processes)):
            self._check_process(before, after, process)

    def _check_opened(self, before: State, after: State) -> None:
        model = self._model
        opened = model.chains.values[after.chain][-1].epoch
        seen = model.logs.values[before.seen]
        for number in after.processes:
            said = model.processes.said(number)
            if said.epoch == opened and said.phase is Phase.LEADING:
                gone = said.base // self._span
                log = said.log[gone : len(seen)]
                if len(said.log) < len(seen) or tuple(map(original, log)) != seen[gone:]:
                    raise Violation("an epoch is sealed without what was acknowledged or read")
                return

    def _check_process(self, before: State, after: State, process: int) -> None:
        model = self._model
        if before.processes[process] == after.processes[process]:
            was = now = model.said(before, process)
        else:
            was, now = model.said(before, process), model.said(after, process)
        if was.phase is not Phase.LEADING:
            return
        if now.mark < was.mark:
            raise Violation("a leader's commit mark falls")
        reached = self._reached(after, process)
        if reached <= self._reached_before(before, process):
            return
        for other, number in enumerate(after.processes):
            rival = model.processes.said(number)
            if other != process and rival.epoch == was.epoch and rival.mark > rival.start:
                raise Violation(f"two processes commit in epoch {was.epoch}")
        copies = [model.copy_of(before.replicas[place]) for place in was.voters]
        fences = len(copies) - self._acks + 1
        for higher in range(was.epoch + 1, before.reserved + 1):
            fenced = [copy for copy in copies if copy.disk.promised >= higher]
            held = any(
                len(copy.disk.log) * self._span >= reached or copy.files.limbo for copy in fenced
            )
            literally = self._model.plant.literal_fences
            if len(fenced) >= fences and (literally or not held):
                raise Violation(
                    f"epoch {was.epoch} gathers a quorum up to offset {reached} after f replicas"
                    f" have promised epoch {higher}"
                )

    def _reached_before(self, state: State, process: int) -> int:
        """Of a state of which many steps are checked, one after the other."""
        if state is not self._before:
            self._before = state
            self._before_reached = [
                self._reached(state, number) for number in range(len(state.processes))
            ]
        return self._before_reached[process]

    def _reached(self, state: State, process: int) -> int:
        held = self._model.held(state, process)
        voters = self._model.said(state, process).voters
        return sorted(held[place][1] for place in voters)[-self._acks]
