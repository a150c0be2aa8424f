"""Every step that some process, replica, client or fault of one partition may take.

**Network.** A message is a fact about what its sender did, and such facts are never removed: a
range may arrive as long as its leader's log holds it, also what was written back before an epoch
was opened; the answers to fences are kept. So every message may be late, repeated, overtaken or
lost, without a bound on any of these.

**What is folded, and why nothing is lost by it.** An acknowledgement reaches its leader at once,
and clients and readers look at everything as soon as they may (`State.seen`): this makes checks
stricter only, as what a commit mark causes elsewhere is delayed on its own. A new life's first word
may be delayed. A process that crashes takes no further step; one that restarts is a new claimant.
A replica crashes and restarts in one step. States that differ by the names of replicas are one.
`syncs="folded"`: a message, the join before it and the sync after it are one step: nobody sees
what is not synced, and a crash is then a lost message. `"separate"`: each is a step. `"begun"`:
the begin of a sync and its end are two steps, too.

A batch stands for the model's entry, named by its epoch and its writer, with `span` offsets.

Source: the protocol's executable specification; BookKeeper's recovery, Vanlightly's models of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import combinations, product
from typing import NamedTuple

from penstock.replication.chain import Chain, Link, parts_at
from penstock.replication.epoch import Effects, Epoch, Phase, Terms
from penstock.replication.messages import Ack, Committed, Fenced, Position
from sim.replication import copies
from sim.replication.bounds import Bounds
from sim.replication.copies import Copies, Output
from sim.replication.plants import Plant
from sim.replication.processes import Held, Processes, Said
from sim.replication.records import (
    Copy,
    Entry,
    Fact,
    Log,
    Numbered,
    Stored,
    View,
    compacted,
    disk_of,
    is_hole,
    original,
)
from sim.replication.traffic import Arrival, Label, Sending, Traffic


class State(NamedTuple):
    """Numbers of values that a model has, see there. `processes` are in the order of claims.

    `move`: the change of placement that is wanted now, 0 for none, of the `moves` ordered so far.
    `deletes`: how often something was deleted; `deleted`: the highest place below which it was.
    """

    reserved: int
    chain: int
    processes: tuple[int, ...]
    replicas: tuple[int, ...]
    seen: int = 0
    wipes: int = 0
    move: int = 0
    moves: int = 0
    deletes: int = 0
    deleted: int = 0


class Seen(Exception):
    """A reader or client sees what contradicts what was seen before."""


class Model:
    """The steps, and the values that states number."""

    def __init__(self, bounds: Bounds, plant: Plant) -> None:
        self.bounds = bounds
        self.plant = plant
        self.terms = tuple(Terms(placement, bounds.acks) for placement in bounds.placements)
        roles = [
            tuple(replica in terms.placement for terms in self.terms)
            for replica in range(bounds.replicas)
        ]
        self.alike = [
            [at for at, other in enumerate(roles) if other == role] for role in sorted(set(roles))
        ]
        """Replicas of which one may stand for the other."""
        self.copies = Copies(
            plant.replica, plant.own or plant.replica, span=bounds.span, folded=bounds.folded,
            remembers=plant.forgets_start,
        )  # fmt: skip
        self.processes = Processes(plant.epoch, bounds.replicas)
        self.traffic = Traffic(
            self.copies, self.processes, span=bounds.span, folded=bounds.folded,
            refusals=bounds.refusals,
        )  # fmt: skip
        self.views: Numbered[View] = Numbered()
        self.members: Numbered[tuple[int, ...]] = Numbered()
        """A replica: its copy's number, and the numbers of its views by process."""
        self.chains: Numbered[Chain] = Numbered()
        self.logs: Numbered[Log] = Numbered()
        self.logs.number(())

    def initial(self) -> State:
        """Epoch 1 is open, led by process 0."""
        bounds = self.bounds
        blank = (self.views.number(View()),) * (1 + bounds.claims)
        homes = (True, *[False] * (bounds.replicas - 1))
        terms = self.terms[0]
        members = [
            self.members.number(
                (self.copies.empty(home=home and self.plant.own is not None), *blank)
            )
            for home in homes
        ]
        nobody: Held = ((0, 0),) * bounds.replicas
        first = self.processes.claimed(1, (), terms, terms)
        first, _, _ = self.processes.step(first, nobody, "begin", lambda core: core.begin())
        first, _, _ = self.processes.step(first, nobody, "opened", lambda core: core.opened())
        chain = self.chains.number(self.processes.said(first).chain)
        return State(1, chain, (first,), tuple(members))

    def canonical(self, state: State) -> State:
        """The same state whatever replicas that are alike are called."""
        replicas = list(state.replicas)
        for places in self.alike:
            for place, member in zip(
                places, sorted([replicas[replica] for replica in places]), strict=True
            ):
                replicas[place] = member
        return state._replace(replicas=tuple(replicas))

    # -- values of a state

    def copy_of(self, member: int) -> Copy:
        return self.copies.records.values[self.members.values[member][0]]

    def view_of(self, member: int, process: int) -> View:
        return self.views.values[self.members.values[member][1 + process]]

    def said(self, state: State, process: int) -> Said:
        return self.processes.said(state.processes[process])

    def held(self, state: State, process: int) -> Held:
        views = [self.view_of(member, process) for member in state.replicas]
        return tuple((view.incarnation, view.durable) for view in views)

    def _with_copy(self, state: State, place: int, copy: int) -> State:
        member = self.members.values[state.replicas[place]]
        return self._with_member(state, place, (copy, *member[1:]))

    def _with_view(self, state: State, place: int, process: int, view: View) -> State:
        member = list(self.members.values[state.replicas[place]])
        member[1 + process] = self.views.number(view)
        return self._with_member(state, place, tuple(member))

    def _with_member(self, state: State, place: int, member: tuple[int, ...]) -> State:
        replicas = list(state.replicas)
        replicas[place] = self.members.number(member)
        return state._replace(replicas=tuple(replicas))

    def _with_process(self, state: State, process: int, number: int, held: Held) -> State:
        """After a step of a process; whoever cannot open its epoch any more counts no copies."""
        processes = list(state.processes)
        processes[process] = number
        after = state._replace(processes=tuple(processes))
        if self.said(after, process).phase is Phase.CLAIMED:
            return after
        counts = self._counts(after, process)
        for place, (incarnation, durable) in enumerate(held):
            view = View((), incarnation, durable) if counts else View()
            if view != self.view_of(after.replicas[place], process):
                after = self._with_view(after, place, process, view)
        return after

    def _counts(self, state: State, process: int) -> bool:
        """Whether it matters what this process knows of its followers."""
        said = self.said(state, process)
        if said.phase is Phase.LEADING:
            return True
        hopeful = said.epoch == state.reserved or self.plant.seal != "reserved"
        return hopeful and said.phase in (Phase.FOUND, Phase.SEALING)

    # -- what replicas tell

    def _told(self, state: State, place: int, arrival: Arrival) -> Iterator[tuple[Label, State]]:
        """The states after a replica's step: what it told was heard; or a new life's was not."""
        _, copy, outputs = arrival
        form, *parts = arrival.label
        label = (form, place, *parts)
        after = self._with_copy(state, place, copy)
        late = False
        for output in outputs:
            authority = output.answer.authority if isinstance(output, Fact) else output.authority
            for process in self._speakers(state, authority):
                incarnation = self.view_of(after.replicas[place], process).incarnation
                heard = self._hears(after, place, process, output)
                new_life = isinstance(output, (Ack, Position)) and output.incarnation > incarnation
                late = late or (new_life and heard is not after)
                after = heard
                if isinstance(output, Fenced):
                    yield (
                        label,
                        self._process_step(
                            after,
                            process,
                            ("fenced", place, output),
                            partial(_fenced, place, output),
                        ),
                    )
        if after != state:
            yield label, after
        if late and copy != self.members.values[state.replicas[place]][0]:
            yield label, self._with_copy(state, place, copy)

    def _speakers(self, state: State, authority: int) -> Iterable[int]:
        """The processes that claim an epoch: one."""
        if not self.plant.reuses_epochs:
            return (authority - 1,)
        numbers = range(len(state.processes))
        return [number for number in numbers if self.said(state, number).epoch == authority]

    def _hears(self, state: State, place: int, process: int, output: Output) -> State:
        view = self.view_of(state.replicas[place], process)
        if isinstance(output, Fact):
            if output in view.facts or self.said(state, process).phase is not Phase.CLAIMED:
                return state
            facts = (*view.facts, output)
            return self._with_view(state, place, process, view._replace(facts=facts))
        if isinstance(output, Ack):
            known = output.incarnation == view.incarnation and output.durable <= view.durable
            event = partial(_acknowledged, place, output)
        elif isinstance(output, Position):
            known = output.incarnation <= view.incarnation  # only where the stream goes on
            event = partial(_positioned, place, output)
        else:
            return state
        if known or not self._counts(state, process):
            return state
        return self._process_step(state, process, (place, output), event)

    def _process_step(
        self,
        state: State,
        process: int,
        key: tuple[object, ...],
        event: Callable[[Epoch], Effects],
        log: Callable[[Epoch, Log], Log] | None = None,
    ) -> State:
        before = self.held(state, process)
        number, held, effects = self.processes.step(
            state.processes[process], before, key, event, log
        )
        if number == state.processes[process] and held == before and not effects:
            return state
        after = self._with_process(state, process, number, held)
        for effect in effects:
            if isinstance(effect, Committed):
                said = self.processes.said(number)
                answered = said.log[: effect.mark // self.bounds.span]
                after = self.see(after, f"the leader of epoch {said.epoch}", answered)
        return after

    # -- what is seen

    def see(self, state: State, where: str, log: Log) -> State:
        """A client is answered, or a reader looks; what was seen once must stay."""
        seen = self.logs.values[state.seen]
        shared = min(len(seen), len(log))
        if any(
            a != original(b)
            for a, b in zip(seen[:shared], log[:shared], strict=True)
            if b is not None
        ):
            raise Seen(f"{where} shows another value than what was acknowledged or read")
        if len(log) <= len(seen):
            return state
        return state._replace(seen=self.logs.number(seen + tuple(map(original, log[shared:]))))

    def observe(self, state: State) -> State:
        """Let every client and reader look."""
        for number in state.processes:
            said = self.processes.said(number)
            if said.phase is Phase.LEADING:
                log = said.log[: said.mark // self.bounds.span]
                state = self.see(state, f"the leader of epoch {said.epoch}", log)
        for member in state.replicas:
            copy = self.members.values[member][0]
            end = self.copies.readable(copy)
            if end:
                log = self.copies.records.values[copy].files.log[:end]
                state = self.see(state, "a replica", log)
        return state

    # -- steps

    def successors(self, state: State) -> Iterator[tuple[Label, State]]:
        for process, number in enumerate(state.processes):
            said = self.processes.said(number)
            for place, member in enumerate(state.replicas):
                copy = self.members.values[member][0]
                view = self.view_of(member, process)
                if said.phase is Phase.CLAIMED and place not in said.voters:
                    continue
                for arrival in self.traffic.arrivals(copy, number):
                    if arrival.after != copy or not _is_known(arrival.outputs, view):
                        yield from self._told(state, place, arrival)
            if said.phase is Phase.CLAIMED:
                yield from self._find_end(state, process, said)
            if said.phase is Phase.FOUND and set(said.voters) != set(said.terms.placement):
                after = self._process_step(state, process, ("keep",), lambda c: c.keep_placement())
                yield ("the claimant of epoch {} keeps the placement", -1, said.epoch), after
            if said.phase is Phase.SEALING:
                yield from self._seal(state, process, said)
            if said.phase is Phase.LEADING:
                yield from self._lead(state, process, said)
        yield from self._order(state)
        yield from self._faults(state)
        yield from self._claim(state)

    def _find_end(self, state: State, process: int, said: Said) -> Iterator[tuple[Label, State]]:
        """The answers of any replicas have arrived, those in limbo first."""
        views = [self.view_of(member, process) for member in state.replicas]
        answered = [place for place in said.voters if views[place].facts]
        sealed = self._sealed(state, said)
        if sealed is None:
            return
        fences = len(said.voters) - self.bounds.acks + 1
        for size in range(max(1, fences - 1), len(answered) + 1):
            for places in combinations(answered, size):
                for facts in product(*(views[place].facts for place in places)):
                    chosen = sorted(
                        zip(places, facts, strict=True),
                        key=lambda pair: (pair[1].answer.limbo < said.chain[-1].epoch, pair[0]),
                    )
                    yield from self._found(state, process, said, chosen, sealed)

    def _found(
        self,
        state: State,
        process: int,
        said: Said,
        chosen: list[tuple[int, Fact]],
        sealed: Log,
    ) -> Iterator[tuple[Label, State]]:
        """If just these answers are what a claimant waits for."""
        span = self.bounds.span

        def event(core: Epoch) -> Effects:
            effects: Effects = ()
            for place, fact in chosen:
                if core.phase is Phase.CLAIMED:
                    effects = core.fence_answered(place, fact.answer)
                else:
                    core.phase = Phase.CLAIMED  # fewer answers would have done
                    return ()
            return effects

        def log(core: Epoch, _: Log) -> Log:
            if core.phase is Phase.CLAIMED:
                return ()
            holder = max(chosen, key=lambda pair: pair[1].answer.end)[1].log
            found = (sealed + holder[len(sealed) :])[: core.end // span]
            if self.plant.ends_at_holes and any(map(is_hole, found)):
                core.end = [*map(is_hole, found)].index(True) * span
                found = found[: core.end // span]
            gone = max([place + 1 for place, entry in enumerate(found) if entry is None], default=0)
            core.base = core.floor = gone * span
            return (None,) * gone + found[gone:]

        nobody: Held = ((0, 0),) * len(state.replicas)
        number, _, _ = self.processes.step(
            state.processes[process], nobody, ("found", tuple(chosen), sealed), event, log
        )
        found = self.processes.said(number)
        if found.phase is Phase.CLAIMED:
            return
        after = self._process_step(state, process, ("found", tuple(chosen), sealed), event, log)
        label = "claimant of epoch {} finds that epoch {} ends at {}"
        yield (label, -1, said.epoch, said.chain[-1].epoch, found.end), after

    def _sealed(self, state: State, said: Said) -> Log | None:
        """What lies below the epoch to be sealed: any replica that has it may be asked for it."""
        start = said.chain[-1].start // self.bounds.span
        known: list[Entry] = [None] * start
        for member in state.replicas:
            disk = self.copy_of(member).disk
            stored = disk_of(disk, self.bounds.span)
            end = parts_at(stored.history, stored.end, said.chain) // self.bounds.span
            for place, entry in enumerate(disk.log[: min(end, start)]):
                known[place] = entry or known[place]
        return None if None in known[state.deleted :] else tuple(known)

    def _seal(self, state: State, process: int, said: Said) -> Iterator[tuple[Label, State]]:
        """One compare-and-set; a claimant that does not get it takes no further step."""
        chain = self.chains.values[state.chain]
        allowed = said.epoch == state.reserved
        if self.plant.seal == "unchanged":
            allowed = chain == said.chain
        if not allowed and self.plant.seal != "always":
            return
        moves = set(said.voters) != set(said.terms.placement)
        if moves and said.move != state.move and not self.plant.moves_blindly:
            return
        after = self._process_step(state, process, ("opened",), lambda core: core.opened())
        opened = (*said.chain, Link(said.epoch, said.end))
        move = 0 if moves else after.move
        after = after._replace(chain=self.chains.number(opened), move=move)
        label = "epoch {} is sealed at {}, epoch {} is open"
        yield (label, -1, said.chain[-1].epoch, said.end, said.epoch), after

    def _lead(self, state: State, process: int, said: Said) -> Iterator[tuple[Label, State]]:
        """A leader, fenced or not: a client's append, and commit marks to the replicas."""
        members = map(self.copy_of, state.replicas)
        numbers = enumerate(state.processes)
        written = sum(
            entry is not None and author in (entry[1], ~entry[1])
            for author, number in numbers
            for entry in self.processes.said(number).log
        )
        # A leader that all replicas have fenced has no effect any more, whatever it appends.
        if written < self.bounds.entries and any(m.disk.promised <= said.epoch for m in members):
            after = self._process_step(
                state, process, ("append",), self._append,
                lambda _, log: (*log, (said.epoch, process)),
            )  # fmt: skip
            yield ("the leader of epoch {} appends offset {}", -1, said.epoch, said.end), after
        if self.bounds.compacts:
            end = said.mark // self.bounds.span + self.plant.drops_newest
            after = self._process_step(
                state, process, ("compact", end), lambda _: (), lambda _, log: compacted(log, end)
            )
            if after != state:
                yield ("the leader of epoch {} compacts its log", -1, said.epoch), after
        for base in self._deletable(state, said.base, said.mark):
            after = self._process_step(state, process, ("delete", base), partial(_deleted, base))
            label = ("the leader of epoch {} deletes what is below offset {}", -1, said.epoch, base)
            yield label, self._less(after, base)
        for place, member in enumerate(state.replicas):
            copy, view = self.copy_of(member), self.view_of(member, process)
            if copy.files.limbo == said.epoch and copy.incarnation == view.incarnation:
                number = self.members.values[member][0]
                arrival = self.traffic.log_end(number, said, view.incarnation)
                if arrival is not None:
                    yield from self._told(state, place, arrival)

    def _deletable(self, state: State, base: int, end: int) -> range:
        """The offsets below which may be deleted now."""
        more = state.deletes < self.bounds.deletes
        return range(base + self.bounds.span, end + 1 if more else 0, self.bounds.span)

    def _less(self, state: State, base: int) -> State:
        deleted = max(state.deleted, base // self.bounds.span)
        return state._replace(deletes=state.deletes + 1, deleted=deleted)

    def _append(self, core: Epoch) -> Effects:
        core.append(self.bounds.span)
        return ()

    def _faults(self, state: State) -> Iterator[tuple[Label, State]]:
        opened = self.chains.values[state.chain][-1].epoch
        for place, member in enumerate(state.replicas):
            number = self.members.values[member][0]
            for label, key, event in self._own_steps():
                yield from self._told(state, place, self.traffic.arrives(number, label, key, event))
            copy = self.copy_of(member)
            committed = copy.durable if self.plant.deletes_all else min(copy.durable, copy.mark)
            if self.bounds.compacts:
                least = copy.durable if self.plant.compacts_all else committed
                end = least // self.bounds.span
                key, event = ("compact", end), copies.compact(end)
                arrival = self.traffic.arrives(number, ("{} compacts its log",), key, event)
                yield from self._told(state, place, arrival)
            for base in self._deletable(state, copy.base, committed):
                label = ("{} deletes what is below offset {}", base)
                arrival = self.traffic.arrives(number, label, ("delete", base), copies.delete(base))
                yield from self._told(self._less(state, base), place, arrival)
            if state.wipes < self.bounds.wipes and self.copy_of(member).disk != Stored():
                key = ("wipe", state.reserved, opened)
                event = copies.wipe(state.reserved, opened)
                label = ("{} restarts with an empty disk",)
                counted = state._replace(wipes=state.wipes + 1)
                yield from self._told(
                    counted, place, self.traffic.arrives(number, label, key, event)
                )
            yield from self._delete(state, place, opened)

    def _delete(self, state: State, place: int, opened: int) -> Iterator[tuple[Label, State]]:
        """A removed copy goes; it comes back as one that lost its disk, whenever it does."""
        copy = self.copy_of(state.replicas[place])
        at = state.reserved if self.plant.deletes_early else opened
        wanted = self._other(state).placement if state.move else ()
        placement = self.said(state, at - 1).terms.placement
        if copy.incarnation or place in placement or place in wanted:
            return
        key, event = ("wipe", state.reserved, opened), copies.wipe(state.reserved, opened)
        number = self.members.values[state.replicas[place]][0]
        label = ("{} is no replica any more, and its copy is deleted",)
        yield from self._told(state, place, self.traffic.arrives(number, label, key, event))

    def _own_steps(self) -> Iterator[Sending]:
        """What a replica does by itself, or suffers; with `folded`, syncs belong to messages."""
        if self.bounds.syncs == "separate":
            yield Sending(("{} syncs",), "sync", copies.sync)
        if self.bounds.syncs == "begun":
            yield Sending(("{} begins to sync",), "begin", copies.begin_sync)
            yield Sending(("{} has synced",), "complete", copies.complete_sync)
        if not self.bounds.folded or self.plant.forgets_start:
            yield Sending(("{} crashes and restarts",), "crash", self.plant.crash)

    def _other(self, state: State) -> Terms:
        """The terms that a move of now goes to."""
        opened = self.chains.values[state.chain][-1].epoch
        return next(term for term in self.terms if term != self.said(state, opened - 1).terms)

    def _order(self, state: State) -> Iterator[tuple[Label, State]]:
        """Somebody wants another placement, or does not any more."""
        if state.move:
            yield ("the move is cancelled",), state._replace(move=0)
        elif self.bounds.target and state.moves < self.bounds.moves:
            number = state.moves + 1
            label = ("replicas {} are wanted", -1, self._other(state).placement)
            yield label, state._replace(move=number, moves=number)

    def _claim(self, state: State) -> Iterator[tuple[Label, State]]:
        """Compare-and-set reserves the next epoch; nobody with a lower one can open it any more."""
        if len(state.processes) > self.bounds.claims:
            return
        epoch = state.reserved + 1
        chain = self.chains.values[state.chain]
        before = self.said(state, chain[-1].epoch - 1).terms
        for move in {0, state.move}:
            terms = self._other(state) if move else before
            claimed = self.processes.claimed(epoch, chain, before, terms, move)
            after = state._replace(reserved=epoch, processes=(*state.processes, claimed))
            for process, number in enumerate(state.processes):
                after = self._with_process(after, process, number, self.held(after, process))
            yield ("a process claims epoch {} for {}", -1, epoch, terms.placement), after
        if self.plant.reuses_epochs:
            yield from self._reuse(state)

    def _reuse(self, state: State) -> Iterator[tuple[Label, State]]:
        """The planted restart: a second process leads in the open epoch, over a replica's log."""
        chain = self.chains.values[state.chain]
        epoch, start = chain[-1]
        claimed = self.processes.claimed(epoch, chain[:-1], self.terms[0], self.terms[0])
        for place, member in enumerate(state.replicas):
            disk = self.copy_of(member).disk
            stored = disk_of(disk, self.bounds.span)
            end = parts_at(stored.history, stored.end, chain)
            if end < start:
                continue
            log = disk.log[: end // self.bounds.span]

            def event(core: Epoch, end: int = end) -> Effects:
                core.phase, core.chain, core.target = Phase.LEADING, chain, epoch
                core.start, core.mark, core.end = start, start, end
                return ()

            def found(_: Epoch, __: Log, log: Log = log) -> Log:
                return log

            nobody: Held = ((0, 0),) * len(state.replicas)
            number, _, _ = self.processes.step(claimed, nobody, ("reuse", log), event, found)
            label = ("the leader of epoch {1} restarts in it, with the log of {0}", place, epoch)
            yield label, state._replace(processes=(*state.processes, number))


def _is_known(outputs: tuple[Output, ...], view: View) -> bool:
    """Whether a process has heard just this; where another is told something, it is not."""
    return all(
        output in view.facts
        if isinstance(output, Fact)
        else isinstance(output, Ack)
        and output.incarnation == view.incarnation
        and output.durable <= view.durable
        for output in outputs
    )


def _fenced(place: int, refusal: Fenced, core: Epoch) -> Effects:
    return core.fenced(place, refusal)


def _deleted(base: int, core: Epoch) -> Effects:
    core.base = core.floor = base
    return ()


def _acknowledged(place: int, ack: Ack, core: Epoch) -> Effects:
    return core.acknowledged(place, ack)


def _positioned(place: int, position: Position, core: Epoch) -> Effects:
    return core.positioned(place, position)
