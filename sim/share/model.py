"""A small world: two brokers that may both lead, two members, a log of a few records, one row.

A broker decides in memory with the product's `SharePartition`, sends the row to the store, one save
at a time, and responds to members once a decision is stored. If another broker has stored a newer
row, the store rejects the save; the broker discards the decision and returns an error. A broker may
die at any time, with its save made or not. If the group has dead letters, a broker writes those of
waiting records, and resolves the records in a second step. The model compares every state with the
responses that members received, and with their acknowledgements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from penstock.broker.share.partition import SharePartition
from penstock.broker.share.stored import decode_state, encode_state
from penstock.broker.share.values import (
    Acknowledge,
    Acknowledged,
    Acquired,
    Batch,
    InvalidRecordState,
    RecordState,
    Run,
    ShareLimits,
)

ACCEPT, RELEASE, RENEW = Acknowledge.ACCEPT, Acknowledge.RELEASE, Acknowledge.RENEW
REJECT = Acknowledge.REJECT
AVAILABLE, ACQUIRED = RecordState.AVAILABLE, RecordState.ACQUIRED
MEMBERS = ("a", "b")
BROKERS = (0, 1)
BATCHES = (Batch(0, 1), Batch(2, 2))
OFFSETS = (0, 1, 2)
LIMITS = ShareLimits(
    delivery_count_limit=2, lock_duration_ms=2, record_locks_max=3, dead_letters=True
)


class Violation(Exception):
    """A rule does not hold."""


class Bounds(NamedTuple):
    """How far the world may go. `sizes` are how many records members ask for.

    `dead_letters` of one record are written at most; 0: members reject nothing.
    """

    time_ms: int = 4
    crashes: int = 1
    attempts: int = 3
    brokers: int = 2
    sizes: tuple[int, ...] = (1, 3)
    depth: int = 5
    dead_letters: int = 0


ONE_BROKER = Bounds(time_ms=3, crashes=0, brokers=1, sizes=(3,), depth=8)
"""A longer way with less on it."""

DEAD_LETTERS = Bounds(time_ms=2, attempts=1, sizes=(3,), depth=6, dead_letters=2)
"""Records that are given up, by brokers that die."""


class Plant(NamedTuple):
    """What is broken, and the bounds in which it shows; nothing by default.

    `cas`: the store refuses what was decided by an older row. `tells_early`: before it is stored.
    `keeps_refused`: a broker goes on with what was refused. `forgets_locks`: they are not stored.
    `early_dead_letters`: they are written of what is not stored. `resolves_first`: before they are.
    """

    what: str = ""
    bounds: Bounds = Bounds(depth=6)
    share: type[SharePartition] = SharePartition
    cas: bool = True
    tells_early: bool = False
    keeps_refused: bool = False
    forgets_locks: bool = False
    early_dead_letters: bool = False
    resolves_first: bool = False


class Answer(NamedTuple):
    """What a member is told once a save is made: what it acquired, or that its word is taken."""

    member: str
    acquired: tuple[Acquired, ...] = ()
    said: tuple[Acknowledged, ...] = ()
    asked_ms: int = 0


class View(NamedTuple):
    """What a broker has in memory: a row's version, what it made of it, and who waits."""

    version: int
    start: int
    runs: tuple[Run, ...]
    sent: tuple[bytes, tuple[Answer, ...]] | None = None
    gathered: tuple[Answer, ...] = ()
    written: tuple[int, ...] = ()
    """Offsets whose dead letters are durable, and which are to be resolved."""


class Record(NamedTuple):
    """The truth of one record. `holder` was told that it has it, until `until_ms`."""

    holder: str = ""
    until_ms: int = 0
    deliveries: int = 0
    attempts: int = 0
    accepted: bool = False
    may_be_accepted: bool = False
    dead_letters: int = 0


class World(NamedTuple):
    """Everything; a value."""

    now_ms: int = 0
    version: int = 1
    row: bytes = encode_state(0, 0, 0, ())
    views: tuple[View | None, ...] = (None,) * len(BROKERS)
    records: tuple[Record, ...] = (Record(),) * len(OFFSETS)
    crashes: int = 0


def share_of(plant: Plant, view: View) -> SharePartition:
    return plant.share(limits=LIMITS, start=view.start, runs=view.runs)


Step = tuple[str, Callable[[], World | None]]
"""What may happen, and how the world is then: None if nothing comes of it. Raises Violation."""


def steps(world: World, plant: Plant, bounds: Bounds) -> Iterator[Step]:
    """All that may happen next."""
    if world.now_ms < bounds.time_ms:
        yield "time passes", partial(world._replace, now_ms=world.now_ms + 1)
    for broker in BROKERS[: bounds.brokers]:
        view = world.views[broker]
        if view is not None and view.sent is not None:
            yield f"broker {broker}: saved", partial(saved, world, broker, plant)
            if world.crashes < bounds.crashes:
                made = stored(world, view.sent[0], view.version, plant)
                yield f"broker {broker} dies, saved", partial(died, made, broker)
        if view is not None and world.crashes < bounds.crashes:
            yield f"broker {broker} dies", partial(died, world, broker)
        if bounds.dead_letters:
            most = bounds.dead_letters
            yield f"broker {broker} writes", partial(write_dead_letters, world, broker, plant, most)
            yield f"broker {broker} resolves", partial(resolve_dead_letters, world, broker, plant)
        for member in MEMBERS:
            yield from requests(world, broker, member, plant, bounds)


def requests(
    world: World, broker: int, member: str, plant: Plant, bounds: Bounds
) -> Iterator[Step]:
    """What a member may ask a broker for."""
    if max(record.attempts for record in world.records) < bounds.attempts:
        for most in bounds.sizes:
            name = f"{member} asks broker {broker} for {most}"
            yield name, partial(acquire, world, broker, member, most, plant)
    held = [at for at in OFFSETS if world.records[at].holder == member]
    for offsets in {tuple(held[:1]), tuple(held)} - {()}:
        for kind in (ACCEPT, REJECT) if bounds.dead_letters else (ACCEPT, RELEASE, RENEW):
            said = tuple(Acknowledged(at, at, kind) for at in offsets)
            name = f"{member} tells broker {broker} {kind.name} of {offsets}"
            yield name, partial(acknowledge, world, broker, member, said, plant)
    for at in OFFSETS:
        one = world.records[at]
        if one.holder not in ("", member) and one.until_ms > world.now_ms:
            said = (Acknowledged(at, at, ACCEPT),)
            name = f"{member} tells broker {broker} ACCEPT of {at}, which another has"
            yield name, partial(acknowledge, world, broker, member, said, plant)
    if held:
        yield f"{member} leaves broker {broker}", partial(leave, world, broker, member, plant)


def load(world: World, broker: int) -> View:
    view = world.views[broker]
    if view is None:
        state = decode_state("share", world.row)
        view = View(world.version, state.start, state.runs)
    return view


def acquire(world: World, broker: int, member: str, most: int, plant: Plant) -> World | None:
    view = load(world, broker)
    share = share_of(plant, view)
    share.expire(world.now_ms)
    begin = share.next_offset()
    found = [] if begin is None else [batch for batch in BATCHES if batch.last >= begin]
    if begin is None or not found:
        return None
    got = share.acquire(
        member, found, begin=begin, records_max=most, exact=most == 1, now_ms=world.now_ms
    )
    taken = {at for run in got for at in range(run.first, run.last + 1)}
    records = tuple(
        record._replace(attempts=record.attempts + (at in taken))
        for at, record in zip(OFFSETS, world.records, strict=True)
    )
    answer = Answer(member, acquired=tuple(got), asked_ms=world.now_ms)
    return decided(world._replace(records=records), broker, view, share, answer, plant)


def acknowledge(
    world: World, broker: int, member: str, said: tuple[Acknowledged, ...], plant: Plant
) -> World:
    """A member says something; for itself it holds what it gives away from here on no more."""
    records = list(world.records)
    for first, _, kind in said:
        one = records[first]
        if one.holder != member:
            continue
        may = one.may_be_accepted or kind == ACCEPT
        until_ms = one.until_ms if kind == RENEW else 0
        records[first] = one._replace(may_be_accepted=may, until_ms=until_ms)
        if kind != RENEW:
            records[first] = records[first]._replace(holder="")
    world = world._replace(records=tuple(records))
    view = load(world, broker)
    share = share_of(plant, view)
    share.expire(world.now_ms)
    try:
        share.acknowledge(member, said, now_ms=world.now_ms)
    except InvalidRecordState:
        return world
    answer = Answer(member, said=said, asked_ms=world.now_ms)
    return decided(world, broker, view, share, answer, plant)


def write_dead_letters(world: World, broker: int, plant: Plant, most: int) -> World | None:
    """The dead letters of all that waits, once it is stored that it does."""
    view = load(world, broker)
    if (view.sent or view.gathered) and not plant.early_dead_letters:
        return None
    waiting = share_of(plant, view).awaiting_dead_letters()
    offsets = tuple(at for run in waiting for at in range(run.first, run.last + 1))
    if not offsets or view.written or any(world.records[at].dead_letters >= most for at in offsets):
        return None
    after = seen(world, broker, view._replace(written=offsets))
    if plant.resolves_first:
        return resolve_dead_letters(after, broker, plant)
    records = list(world.records)
    for at in offsets:
        records[at] = lettered(world, at)
    return after._replace(records=tuple(records))


def lettered(world: World, at: int) -> Record:
    state = decode_state("share", world.row)
    open_runs = [run for run in state.runs if run.state in (ACQUIRED, AVAILABLE)]
    if any(run.first <= at <= run.last for run in open_runs):
        raise Violation(f"{at} has a dead letter, and is not stored as given up")
    one = world.records[at]
    if one.accepted:
        raise Violation(f"{at} was accepted, and has a dead letter")
    return one._replace(dead_letters=one.dead_letters + 1)


def resolve_dead_letters(world: World, broker: int, plant: Plant) -> World | None:
    view = world.views[broker]
    if view is None or not view.written:
        return None
    share = share_of(plant, view)
    if not sum(share.archived(at, at) for at in view.written):
        return seen(world, broker, view._replace(written=()))
    return decided(world, broker, view._replace(written=()), share, Answer(""), plant)


def leave(world: World, broker: int, member: str, plant: Plant) -> World:
    view = load(world, broker)
    share = share_of(plant, view)
    share.release(member, delivered=True)
    records = tuple(
        record._replace(holder="", until_ms=0) if record.holder == member else record
        for record in world.records
    )
    world = world._replace(records=records)
    return decided(world, broker, unheard(view, member), share, Answer(member), plant)


def unheard(view: View, member: str) -> View:
    """Who has left is told nothing any more."""
    gathered = tuple(answer for answer in view.gathered if answer.member != member)
    if view.sent is None:
        return view._replace(gathered=gathered)
    row, answers = view.sent
    left = tuple(answer for answer in answers if answer.member != member)
    return view._replace(gathered=gathered, sent=(row, left))


def decided(
    world: World, broker: int, view: View, share: SharePartition, answer: Answer, plant: Plant
) -> World:
    """Something changed in memory: it is stored, behind what is being stored."""
    if plant.tells_early:
        world = told(world, answer)
        answer = Answer(answer.member)
    view = view._replace(
        start=share.start, runs=tuple(share.runs), gathered=(*view.gathered, answer)
    )
    return seen(world, broker, send(view, plant))


def send(view: View, plant: Plant) -> View:
    if view.sent is not None or not view.gathered:
        return view
    runs = view.runs
    if plant.forgets_locks:
        runs = tuple(
            Run(run.first, run.last, RecordState.AVAILABLE, run.deliveries)
            if run.state == RecordState.ACQUIRED
            else run
            for run in runs
        )
    row = encode_state(0, 0, view.start, runs)
    return view._replace(sent=(row, view.gathered), gathered=())


def seen(world: World, broker: int, view: View | None) -> World:
    views = list(world.views)
    views[broker] = view
    return world._replace(views=tuple(views))


def stored(world: World, row: bytes, expected: int, plant: Plant) -> World:
    """The store's part of a save."""
    if plant.cas and expected != world.version:
        return world
    return world._replace(row=row, version=world.version + 1)


def saved(world: World, broker: int, plant: Plant) -> World:
    """A save ends: what rests on it is told, or, if it was refused, all is forgotten."""
    view = world.views[broker]
    if view is None or view.sent is None:
        return world
    row, answers = view.sent
    after = stored(world, row, view.version, plant)
    if after.version == world.version:
        if not plant.keeps_refused:
            return seen(world, broker, None)
        view = view._replace(version=world.version, gathered=(*answers, *view.gathered), sent=None)
        return seen(world, broker, send(view, plant))
    for answer in answers:
        after = told(after, answer)
    return seen(after, broker, send(view._replace(version=after.version, sent=None), plant))


def died(world: World, broker: int) -> World:
    return seen(world, broker, None)._replace(crashes=world.crashes + 1)


def told(world: World, answer: Answer) -> World:
    """A member learns that it has records, or that its locks are longer, or its word is taken."""
    records = list(world.records)
    for got in answer.acquired:
        for at in range(got.first, got.last + 1):
            records[at] = given(at, records[at], got.deliveries, answer, world.now_ms)
    for first, _, kind in answer.said:
        records[first] = believed(first, records[first], kind, answer, world.now_ms)
    return world._replace(records=tuple(records))


def given(at: int, one: Record, deliveries: int, answer: Answer, now_ms: int) -> Record:
    if one.accepted:
        raise Violation(f"{at} was accepted, and is delivered again")
    if one.holder not in ("", answer.member) and one.until_ms > now_ms:
        raise Violation(f"{at} is acquired by {answer.member}, and {one.holder} has it")
    if deliveries <= one.deliveries:
        raise Violation(f"{at} is delivered again, and not counted")
    if deliveries > LIMITS.delivery_count_limit:
        raise Violation(f"{at} is delivered more often than the limit says")
    until_ms = answer.asked_ms + LIMITS.lock_duration_ms
    return one._replace(holder=answer.member, until_ms=until_ms, deliveries=deliveries)


def believed(at: int, one: Record, kind: Acknowledge, answer: Answer, now_ms: int) -> Record:
    if one.holder not in ("", answer.member) and one.until_ms > now_ms:
        raise Violation(f"{answer.member} has acknowledged {at}, and {one.holder} has it")
    if kind == RENEW and one.holder == answer.member:
        until_ms = answer.asked_ms + LIMITS.lock_duration_ms
        return one._replace(until_ms=max(one.until_ms, until_ms))
    return one._replace(accepted=True) if kind == ACCEPT else one


def check(world: World, plant: Plant) -> None:
    """What is stored holds nobody back, and gives up nothing that nobody has said."""
    state = decode_state("share", world.row)
    share = plant.share(limits=LIMITS, start=state.start, runs=state.runs)
    resolved = set(range(state.start))
    resolved |= {
        at
        for run in state.runs
        if run.state == RecordState.RESOLVED
        for at in range(run.first, run.last + 1)
    }
    for at in resolved:
        one = world.records[at]
        if not one.may_be_accepted and not one.dead_letters:
            raise Violation(f"{at} is resolved, not accepted and no dead letter: it is lost")
    share.expire(10**6)
    resolved |= {
        at for run in share.awaiting_dead_letters() for at in range(run.first, run.last + 1)
    }
    for at in set(OFFSETS) - resolved:
        begin = share.next_offset()
        if begin is None or begin > at:
            break
        found = [batch for batch in BATCHES if batch.last >= begin]
        got = share.acquire("c", found, begin=begin, records_max=1, exact=True, now_ms=10**6)
        resolved |= {at for run in got for at in range(run.first, run.last + 1)}
    if left := set(OFFSETS) - resolved:
        raise Violation(f"nobody can acquire {sorted(left)} any more")
