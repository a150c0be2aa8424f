"""States of one transactional id, its coordinator, its producers and partitions, and their steps.

A state is a value. A step thaws the core (`frozen.py`), gives it one event, and performs the
effects. Modelled as steps of their own, so that anything may come in between and the coordinator
may crash there:

- what a client sends; data on the way into a partition after the coordinator was asked;
- a save: it becomes durable, it is reported; or it fails, with or without effect (in doubt);
- a marker at each partition, and its acknowledgement; markers that a crashed coordinator has left
  on the way arrive later, or never;
- the next deadline of the core.

Folded: a request and an answer take no time of their own. What is lost with them is lost by a crash
as well, after which clients ask again.

Each client begins, writes to partitions and ends its transaction, as it likes; what it was told is
kept, so that `checks.py` can hold the product to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from penstock.base.ids import TopicPartition
from penstock.broker.groups.runtime.core import (
    NO_TOKEN,
    Effect,
    Refused,
    Reply,
    Save,
    Saved,
    SaveFailed,
    Stored,
    Tick,
)
from penstock.broker.transactions import (
    NO_PRODUCER,
    PRODUCER_EPOCH_MAX,
    Added,
    AddToTransaction,
    Ended,
    EndTransaction,
    Initialised,
    InitProducerId,
    MarkersWritten,
    ProducerIdentity,
    ProducerIdNeeded,
    TransactionMetadata,
    Transactions,
    TransactionState,
    Verified,
    VerifyPartitions,
    WriteMarkers,
)
from penstock.broker.transactions.events import decode_transaction, encode_transaction
from penstock.control import GROUP_MEMBER
from penstock.control.values.coordination import producer_of_group_row
from penstock.records.transactions import EPOCH_VERSION
from sim.transactions.bounds import Bounds
from sim.transactions.frozen import KEY, NOTHING, TIMEOUT_MS, FrozenCore, freeze, thaw
from sim.transactions.logs import Log, Marker, Tag, Violation

GROUP = "group"
AGAIN = ("concurrent_transactions", "coordinator_not_available", "not_coordinator")
Rows = tuple[tuple[str, bytes], ...]


class SaveUnderWay(NamedTuple):
    rows: Rows
    completes: str | None
    durable: bool = False


class Write(NamedTuple):
    """Data on the way into a partition, which asks the coordinator when they come.

    Those that it has allowed are void once a marker has come.
    """

    client: int
    partition: int
    producer: ProducerIdentity
    tag: Tag
    stage: Literal["sent", "asked", "allowed"] = "sent"


class Client(NamedTuple):
    """A producer, and what it was told.

    `wanted` is the outcome that it asks for, `asked` what it waits for an answer to.
    """

    producer: ProducerIdentity = NO_PRODUCER
    number: int = 0
    added: frozenset[int] = frozenset()
    written: frozenset[int] = frozenset()
    with_group: bool = False
    wanted: bool | None = None
    asked: frozenset[str] = frozenset()
    gone: bool = False
    returned: bool = False


class State(NamedTuple):
    """Everything. `core` is None while the coordinator is down."""

    core: FrozenCore | None
    clients: tuple[Client, ...]
    logs: tuple[Log, ...]
    stored: Rows = ()
    save: SaveUnderWay | None = None
    writing: tuple[Marker, frozenset[int]] | None = None
    acks: frozenset[tuple[Marker, int]] = frozenset()
    strays: frozenset[tuple[Marker, int]] = frozenset()
    writes: frozenset[Write] = frozenset()
    staged: frozenset[tuple[ProducerIdentity, Tag]] = frozenset()
    completed: frozenset[tuple[Tag, bool]] = frozenset()
    told: frozenset[tuple[Tag, bool]] = frozenset()
    acknowledged: frozenset[tuple[Tag, int]] = frozenset()
    fenced: frozenset[Tag] = frozenset()
    decided: frozenset[tuple[ProducerIdentity, bool]] = frozenset()
    identities: frozenset[tuple[ProducerIdentity, int]] = frozenset()
    incarnation: int = 1
    fresh: int = 1
    crashes: int = 0
    failures: int = 0
    ticks: int = 0
    now_ms: int = 0


Label = str


class Model:
    """The steps from a state, by the core of a class."""

    def __init__(self, bounds: Bounds, kind: type[Transactions] = Transactions) -> None:
        self.bounds = bounds
        self._kind = kind

    def initial(self) -> State:
        bounds = self.bounds
        state = State(
            core=NOTHING,
            clients=tuple(Client() for _ in range(bounds.clients)),
            logs=tuple(Log() for _ in range(bounds.partitions)),
        )
        if not bounds.epoch:
            return state
        producer = ProducerIdentity(0, bounds.epoch)
        metadata = TransactionMetadata(producer=producer, timeout_ms=TIMEOUT_MS, updated_ms=0)
        return state._replace(
            core=FrozenCore(metadata=metadata),
            stored=_sorted(encode_transaction(KEY, metadata)),
            clients=(Client(producer=producer), *state.clients[1:]),
            identities=frozenset({(producer, 0)}),
        )

    # Steps

    def successors(self, state: State) -> Iterator[tuple[Label, State]]:
        for number, client in enumerate(state.clients):
            if state.core is not None and not client.gone:
                yield from self._of_client(state, number, client)
        yield from self._of_saves(state)
        yield from self._of_markers(state)
        for write in sorted(state.writes):
            after = self.arrive(state, write)
            if after is not None:
                yield f"{write} arrives", after
        if state.core is None:
            yield "the coordinator loads", self.load(state)
            return
        if state.crashes < self.bounds.crashes:
            yield "the coordinator crashes", self._crash(state)
        if state.ticks < self.bounds.ticks:
            after = self.tick(state)
            if after is not None:
                yield "a deadline comes", after._replace(ticks=state.ticks + 1)

    def tick(self, state: State) -> State | None:
        """The next deadline of the core, if there is any."""
        if state.core is None:
            return None
        deadline_ms = thaw(self._kind, state.core, state.now_ms).next_deadline_ms()
        if deadline_ms is None:
            return None
        return self._handle(state._replace(now_ms=max(deadline_ms, state.now_ms)), Tick())

    # Clients

    def _of_client(
        self, state: State, number: int, client: Client
    ) -> Iterator[tuple[Label, State]]:
        bounds, who = self.bounds, f"client {'AB'[number]}"
        if client.asked & {"init", "end"}:
            return
        if client.producer == NO_PRODUCER:
            yield f"{who} begins", self._ask(state, number, "init", _init(NO_PRODUCER))
            return
        if bounds.returns and not client.returned and not client.asked and client.wanted is None:
            after = _with(state, number, returned=True)
            event = _init(client.producer)
            yield f"{who} begins anew as itself", self._ask(after, number, "init", event)
        if client.number >= bounds.transactions:
            return
        if client.wanted is None:
            yield from self._more(state, number, client)
        if not client.asked:
            yield from self._ends(state, number, client)

    def _more(self, state: State, number: int, client: Client) -> Iterator[tuple[Label, State]]:
        """What a client may bring into its transaction."""
        bounds, who = self.bounds, f"client {'AB'[number]}"
        for index in sorted(set(range(bounds.partitions)) - client.written):
            if not client.asked and not _under_way(state, number, index):
                yield f"{who} writes to {index}", self._write(state, number, index)
        if bounds.group and not client.with_group and "group" not in client.asked:
            event = AddToTransaction(
                transactional_id=KEY, producer=client.producer, groups=frozenset({GROUP})
            )
            yield f"{who} commits offsets", self._ask(state, number, "group", event)

    def _ends(self, state: State, number: int, client: Client) -> Iterator[tuple[Label, State]]:
        """A client commits what was written; it aborts whatever is on its way."""
        began = client.written or client.with_group or client.added
        writes = _writes(state, number)
        for commit in (True, False) if client.wanted is None else (client.wanted,):
            empty = not commit and self.bounds.version >= EPOCH_VERSION
            if (began or empty) and not (commit and writes):
                after = _with(state, number, wanted=commit)
                event = self._end(client.producer, commit)
                label = f"client {'AB'[number]} {'commits' if commit else 'aborts'}"
                yield label, self._ask(after, number, "end", event)

    def _end(self, producer: ProducerIdentity, commit: bool) -> EndTransaction:
        return EndTransaction(
            transactional_id=KEY,
            producer=producer,
            commit=commit,
            raises_epoch=self.bounds.version >= EPOCH_VERSION,
        )

    def _write(self, state: State, number: int, index: int) -> State:
        """Data are sent; in version 1 the client adds the partition before."""
        client = state.clients[number]
        if self.bounds.version < EPOCH_VERSION and index not in client.added:
            return self._ask(state, number, f"add {index}", _add(client.producer, index))
        write = Write(number, index, client.producer, Tag(number, client.number))
        return state._replace(writes=state.writes | {write})

    def _ask(self, state: State, number: int, what: str, event: Any) -> State:
        client = state.clients[number]
        state = _with(state, number, asked=client.asked | {what})
        return self._handle(state, event, _token(number, what))

    def _answered(self, state: State, token: int, response: Any) -> State:
        number, what = _asked(token)
        client = state.clients[number]
        index = int(what[-1]) if what[-1].isdigit() else -1
        if index >= 0 and _under_way(state, number, index, "asked"):
            return self._allowed(state, number, index, response)
        if what not in client.asked:
            return state
        state = _with(state, number, asked=client.asked - {what})
        tag = Tag(number, client.number)
        match response:
            case ProducerIdNeeded():
                event = (
                    _init(client.producer)
                    if what == "init"
                    else self._end(client.producer, bool(client.wanted))
                )
                state = _with(state, number, asked=client.asked)
                event = replace(event, fresh_producer_id=state.fresh)
                return self._handle(state._replace(fresh=state.fresh + 1), event, token)
            case Initialised():
                return self._initialised(state, number, response.producer)
            case Added() if what == "group":
                return self._stage(_with(state, number, with_group=True), client.producer, tag)
            case Added():
                return _with(state, number, added=client.added | {index})
            case Ended():
                state = state._replace(told=state.told | {(tag, bool(client.wanted))})
                state = self._given(state, number, response.producer)
                return _with(
                    state,
                    number,
                    producer=response.producer,
                    number=client.number + 1,
                    added=frozenset(),
                    written=frozenset(),
                    with_group=False,
                    wanted=None,
                )
            case Refused() if response.error in AGAIN:
                return state
            case _:
                return _with(state, number, gone=True)

    def _initialised(self, state: State, number: int, producer: ProducerIdentity) -> State:
        """Nobody else's transaction that is open now may ever be committed."""
        ended = {tag for tag, _ in (*state.told, *state.completed)}
        for log in state.logs:
            ended |= {tag for tag, end in log.outcomes().items() if end is not None}
        open_tags = {write.tag for write in state.writes}
        open_tags |= {
            Tag(index, client.number)
            for index, client in enumerate(state.clients)
            if client.producer != NO_PRODUCER
        }
        others = {tag for tag in open_tags if tag.client != number}
        state = self._given(state, number, producer)
        client = state.clients[number]
        moved = client.producer != NO_PRODUCER and (
            client.added or client.written or client.with_group
        )
        fenced = state.fenced | (others - ended)
        if not moved and not _writes(state, number):
            fenced -= {Tag(number, client.number)}  # the new identity begins it anew
        state = state._replace(fenced=fenced)
        return _with(
            state,
            number,
            producer=producer,
            number=client.number + bool(moved),
            added=frozenset(),
            written=frozenset(),
            with_group=False,
        )

    def _given(self, state: State, number: int, producer: ProducerIdentity) -> State:
        owners = {owner for identity, owner in state.identities if identity == producer}
        if owners - {number}:
            raise Violation(f"{producer} is given to two clients")
        if producer.producer_epoch > PRODUCER_EPOCH_MAX:
            raise Violation(f"{producer} is given, and cannot be fenced")
        return state._replace(identities=state.identities | {(producer, number)})

    def _stage(self, state: State, producer: ProducerIdentity, tag: Tag) -> State:
        """Offsets are staged in the control plane, if the group's row is there."""
        row = dict(state.stored).get(f"{GROUP_MEMBER}{GROUP}")
        if row is None or producer_of_group_row(row) != producer:
            raise Violation("a group was told that it is part of the transaction, and is not")
        return state._replace(staged=state.staged | {(producer, tag)})

    # Partitions

    def arrive(self, state: State, write: Write) -> State | None:
        """Data go one step further; None while they cannot."""
        if write.stage == "allowed":
            return self._append(state, write)
        if state.core is None or write.stage == "asked":
            return None
        number, index = write.client, write.partition
        event: Any
        if self.bounds.version < EPOCH_VERSION:
            event = VerifyPartitions(
                transactional_id=KEY, producer=write.producer, partitions=_partitions(index)
            )
            token = _token(number, f"verify {index}")
        elif _under_way(state, number, index, "asked"):
            return None
        else:
            event = _add(write.producer, index)
            token = _token(number, f"add {index}")
        return self._handle(_staged(state, write, "asked"), event, token)

    def _allowed(self, state: State, number: int, index: int, response: Any) -> State:
        """The coordinator has answered a partition."""
        [write] = (
            write
            for write in state.writes
            if (write.client, write.partition, write.stage) == (number, index, "asked")
        )
        allowed = isinstance(response, Added) or (
            isinstance(response, Verified) and not response.missing
        )
        if allowed:
            return _staged(state, write, "allowed")
        if isinstance(response, Refused) and response.error in AGAIN:
            return _staged(state, write, "sent")
        return self._refused(state, write)

    def _refused(self, state: State, write: Write) -> State:
        """Who is told that data are refused gives up, if it still waits for that."""
        state = state._replace(writes=state.writes - {write})
        current = Tag(write.client, state.clients[write.client].number) == write.tag
        return _with(state, write.client, gone=True) if current else state

    def _append(self, state: State, write: Write) -> State:
        log = state.logs[write.partition].append(write.producer, write.tag)
        if log is None:
            return self._refused(state, write)
        state = state._replace(writes=state.writes - {write})
        client = state.clients[write.client]
        if Tag(write.client, client.number) == write.tag and client.wanted is None:
            state = _with(state, write.client, written=client.written | {write.partition})
            acknowledged = state.acknowledged | {(write.tag, write.partition)}
            state = state._replace(acknowledged=acknowledged)
        logs = (*state.logs[: write.partition], log, *state.logs[write.partition + 1 :])
        return state._replace(logs=logs)

    def _of_markers(self, state: State) -> Iterator[tuple[Label, State]]:
        if state.writing is not None and state.core is not None:
            marker, partitions = state.writing
            for index in sorted(partitions):
                yield f"{marker} at {index}", self.mark(state, marker, index)
        for marker, index in sorted(state.acks):
            yield f"{marker} acknowledged by {index}", self.acknowledge(state, marker, index)
        for marker, index in sorted(state.strays):
            after = state._replace(strays=state.strays - {(marker, index)})
            yield f"{marker} at {index}, late", self._marked(after, marker, index)[0]

    def mark(self, state: State, marker: Marker, index: int) -> State:
        """A marker comes to a partition; the same one may come again, late, in version 2."""
        state, refused = self._marked(state, marker, index)
        if state.writing is None or refused:
            return state
        left = state.writing[1] - {index}
        state = state._replace(
            writing=(marker, left) if left else None, acks=state.acks | {(marker, index)}
        )
        if self.bounds.version >= EPOCH_VERSION and self.bounds.crashes:
            state = state._replace(strays=state.strays | {(marker, index)})
        return state

    def _marked(self, state: State, marker: Marker, index: int) -> tuple[State, bool]:
        if (marker.producer, marker.commit) not in state.decided:
            raise Violation(f"{marker} is at partition {index}, and is not decided")
        log = state.logs[index].mark(marker)
        if log is None:
            return state, True
        logs = (*state.logs[:index], log, *state.logs[index + 1 :])
        state = state._replace(logs=logs)
        for write in sorted(state.writes):
            if (write.partition, write.stage) == (index, "allowed"):
                state = self._refused(state, write)
        return state, False

    def acknowledge(self, state: State, marker: Marker, index: int) -> State:
        state = state._replace(acks=state.acks - {(marker, index)})
        if marker.coordinator != state.incarnation or state.core is None:
            return state
        event = MarkersWritten(
            transactional_id=KEY, producer=marker.producer, partitions={TopicPartition("t", index)}
        )
        return self._handle(state, event)

    # Saves, and the coordinator's life

    def _of_saves(self, state: State) -> Iterator[tuple[Label, State]]:
        save = state.save
        if save is None:
            return
        if not save.durable:
            yield "the save is durable", self.store(state)
        else:
            yield "the save is reported", self.report(state, failed=False)
        if state.failures < self.bounds.failures and state.core is not None:
            doubt = ", though it is durable" if save.durable else ""
            after = state._replace(failures=state.failures + 1)
            yield f"the save fails{doubt}", self.report(after, failed=True)

    def store(self, state: State) -> State:
        """Make the save under way durable, and complete its offsets."""
        save = state.save
        if save is None or save.durable:
            return state
        state = state._replace(save=save._replace(durable=True))
        if save.rows == state.stored:  # found to be there already, after a save in doubt
            return state
        if save.rows:
            metadata = decode_transaction(KEY, dict(save.rows))
            if not metadata.state.idle and metadata.state is not TransactionState.ONGOING:
                state = self._decided(state, metadata.producer, metadata.state.commits)
        left = dict(state.stored).keys() - dict(save.rows).keys()
        row = dict(state.stored).get(f"{GROUP_MEMBER}{GROUP}")
        if row is not None and f"{GROUP_MEMBER}{GROUP}" in left:
            if save.completes is None:
                raise Violation("a group leaves the transaction, and its offsets are not completed")
            producer = producer_of_group_row(row)
            tags = {tag for staged, tag in state.staged if staged == producer}
            commits = save.completes == "commit"
            if commits and (not save.rows or not metadata.state.commits):
                raise Violation("offsets are committed by a save that does not decide so")
            state = state._replace(
                staged=frozenset(offsets for offsets in state.staged if offsets[0] != producer),
                completed=state.completed | {(tag, commits) for tag in tags},
            )
        return state._replace(stored=save.rows)

    def _decided(self, state: State, producer: ProducerIdentity, commits: bool) -> State:
        return state._replace(decided=state.decided | {(producer, commits)})

    def report(self, state: State, *, failed: bool) -> State:
        event = SaveFailed(key=KEY, reason="in doubt") if failed else Saved(key=KEY)
        state = state._replace(save=None)
        return state if state.core is None else self._handle(state, event)

    def _crash(self, state: State) -> State:
        """What is under way may be durable later, or never: it is fenced once another one loads."""
        strays = state.strays
        if state.writing is not None:
            marker, partitions = state.writing
            strays |= {(marker, index) for index in partitions}
        clients = tuple(client._replace(asked=frozenset()) for client in state.clients)
        for write in state.writes:
            if write.stage == "asked":
                state = _staged(state, write, "sent")
        return state._replace(
            core=None, writing=None, strays=strays, clients=clients, crashes=state.crashes + 1
        )

    def load(self, state: State) -> State:
        """Another coordinator: saves of the one before are refused from now on."""
        state = state._replace(
            core=NOTHING, save=None, acks=frozenset(), incarnation=state.incarnation + 1
        )
        core = thaw(self._kind, NOTHING, state.now_ms)
        if not state.stored:
            return state
        effects = core.load(Stored(key=KEY, rows=dict(state.stored)), state.now_ms)
        return self._perform(state._replace(core=freeze(core)), effects)

    def _handle(self, state: State, event: Any, token: int = NO_TOKEN) -> State:
        if state.core is None:
            return state
        core = thaw(self._kind, state.core, state.now_ms)
        effects = core.handle(event, state.now_ms, token)
        return self._perform(state._replace(core=freeze(core)), effects)

    def _perform(self, state: State, effects: Iterable[Effect]) -> State:
        for effect in effects:
            if isinstance(effect, Save):
                if state.save is not None:
                    raise Violation("two saves of an id at a time")
                rows = _sorted(effect.rows)
                state = state._replace(save=SaveUnderWay(rows, effect.completes_offsets))
            elif isinstance(effect, WriteMarkers):
                producer, incarnation = effect.producer, state.incarnation
                marker = Marker(producer, effect.commit, effect.version, incarnation)
                partitions = frozenset(partition.partition for partition in effect.partitions)
                state = state._replace(writing=(marker, partitions))
        for effect in effects:
            if isinstance(effect, Reply):
                state = self._answered(state, effect.token, effect.response)
        return state


WHAT = ("init", "end", "group", "add 0", "add 1", "verify 0", "verify 1")


def _token(number: int, what: str) -> int:
    return 1 + number * len(WHAT) + WHAT.index(what)


def _asked(token: int) -> tuple[int, str]:
    number, what = divmod(token - 1, len(WHAT))
    return number, WHAT[what]


def _init(producer: ProducerIdentity) -> InitProducerId:
    return InitProducerId(transactional_id=KEY, timeout_ms=TIMEOUT_MS, producer=producer)


def _add(producer: ProducerIdentity, index: int) -> AddToTransaction:
    return AddToTransaction(transactional_id=KEY, producer=producer, partitions=_partitions(index))


def _partitions(index: int) -> frozenset[TopicPartition]:
    return frozenset({TopicPartition("t", index)})


def _writes(state: State, number: int) -> bool:
    return any(write.client == number for write in state.writes)


def _under_way(state: State, number: int, index: int, stage: str = "") -> bool:
    return any(
        (write.client, write.partition) == (number, index) and stage in ("", write.stage)
        for write in state.writes
    )


def _staged(state: State, write: Write, stage: Literal["sent", "asked", "allowed"]) -> State:
    return state._replace(writes=(state.writes - {write}) | {write._replace(stage=stage)})


def _with(state: State, which: int, /, **changes: Any) -> State:
    client = state.clients[which]._replace(**changes)
    return state._replace(clients=(*state.clients[:which], client, *state.clients[which + 1 :]))


def _sorted(rows: Mapping[str, bytes]) -> Rows:
    return tuple(sorted(rows.items()))
