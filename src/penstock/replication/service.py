"""Replicated partitions of one broker: replicas, leaderships, and the links between brokers.

At the end of an event-loop turn, messages for replicas are sent, in one frame per broker where
possible; then one sync of the store makes all writes durable, and their answers are sent. All
claims and openings of a turn go to the control plane in one call.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, TypeVar

from penstock.base.errors import PenstockError
from penstock.base.pause import pause
from penstock.control.values.errors import EPOCH_PARTITIONS_PER_CALL_MAX
from penstock.records.appends import AppendResult, Done, IdReader, Opening
from penstock.records.transactions import Guard, Marker
from penstock.replication.chain import Chain
from penstock.replication.copies import HEARD_BY_COPIES, Copy
from penstock.replication.epoch import Claim, Epoch, Phase
from penstock.replication.leadership import Leadership
from penstock.replication.links import Links, Outgoing
from penstock.replication.messages import Join, LeadershipOver, NotLeading, SealAndOpen
from penstock.replication.peer_format import (
    ElectUncleanly,
    GiveTo,
    HandOver,
    PartitionKey,
    ReadAnswer,
    Row,
    Said,
    encode_row,
    joined,
)
from penstock.storage.files.errors import StorageFailed

if TYPE_CHECKING:
    from penstock.base.system import Clock
    from penstock.replication.replica import Replica, Sync
    from penstock.storage import Lease, PartitionLog, StorageError
    from penstock.storage.files.values import Buffer


# Calls to the control plane that combine requests about many partitions.
#
# One call of a kind runs at a time. The next call has all requests that arrived meanwhile, up to
# the number that the control plane accepts. A call that fails is repeated after a pause, whatever
# the error, because its callers cannot proceed without the answer.


logger = logging.getLogger(__name__)

_AGAIN_SECONDS: Final = 0.2

K = TypeVar("K")
V = TypeVar("V")
A = TypeVar("A")


class Calls(Generic[K, V, A]):
    """Requests to the control plane of one kind, which wait until one call sends them together.

    A request replaces a waiting one with the same key.

    Belongs to the event loop.
    """

    def __init__(
        self,
        what: str,
        ask: Callable[[Sequence[tuple[K, V]]], Awaitable[Sequence[A]]],
        answered: Callable[[K, V, A], None],
    ) -> None:
        """Create an empty set of requests.

        `ask` performs one call and returns the answers in the order of the requests. `answered`
        handles each answer. `what` names the requests in log messages.
        """
        self._what = what
        self._ask = ask
        self._answered = answered
        self._waiting: dict[K, V] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, key: K, value: V) -> None:
        """Add a request to the next call."""
        self._waiting[key] = value
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    def drop(self, key: K) -> None:
        """Drop a request whose answer is not needed any more."""
        self._waiting.pop(key, None)

    async def close(self) -> None:
        """Cancel the running call, and start no others."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while self._waiting:
            asked = list(islice(self._waiting.items(), EPOCH_PARTITIONS_PER_CALL_MAX))
            for key, _ in asked:
                del self._waiting[key]
            try:
                answers = await self._ask(asked)
            except Exception as error:
                logger.warning(
                    "%s of %d partitions failed: %s", self._what, len(asked), error,
                    exc_info=not isinstance(error, PenstockError),
                )  # fmt: skip
                self._waiting = dict(asked) | self._waiting
                await pause(_AGAIN_SECONDS)
                continue
            for (key, value), answer in zip(asked, answers, strict=True):
                try:
                    self._answered(key, value, answer)
                except Exception:
                    logger.exception("%s: handling a response failed", self._what)


class Owner(Protocol):
    """Partition object of the broker, which serves a replicated partition to clients."""

    def committed_to(self, offset: int) -> bool:
        """Set the high watermark; return whether consumers may read more."""
        ...


class Reserved(NamedTuple):
    """Highest reserved and highest opened epoch of a partition."""

    reserved: int
    opened: int


class Led(Protocol):
    """Partition for which this broker opens an epoch."""

    @property
    def key(self) -> PartitionKey: ...

    @property
    def leading(self) -> Leadership | None: ...


class Register(Protocol):
    """Leader epochs of all partitions in the control plane."""

    async def claim(self, keys: Sequence[PartitionKey]) -> Sequence[Claim | PenstockError]:
        """Reserve the next epoch of each partition.

        The result has an error for each partition that this broker may not claim.
        """
        ...

    async def open_epochs(self, openings: Sequence[tuple[Led, SealAndOpen]]) -> Sequence[bool]:
        """Seal and open epochs; the result is False where a later epoch was reserved."""
        ...

    async def reserved(self, keys: Sequence[PartitionKey]) -> Mapping[PartitionKey, Reserved]:
        """Return the current reserved and opened epochs, without deleted partitions."""
        ...

    def lives(self, broker_id: int) -> bool:
        """Whether a broker is registered, and not known to be offline."""
        ...

    async def older(self, asked: Sequence[tuple[PartitionKey, int]]) -> Sequence[Chain]:
        """Return, for each partition, the newest epochs below the given one, at most a page."""
        ...


_LIVES_BITS: Final = 32
"""Bits of an incarnation that count the restarts of replicas since the broker's start."""
HAND_OVER_MS: Final = 3_000
"""Time limit of a successor's claim, and of a claim that stopped a leader."""
_ALL: Final = -1


class ReplicatedLog:
    """Replica of a partition on this broker, and its leadership. Belongs to the event loop."""

    __slots__ = ("_service", "claiming", "copy", "key", "leading", "log", "owner")

    def __init__(self, service: Replication, key: PartitionKey, log: PartitionLog) -> None:
        self._service = service
        self.key = key
        self.log = log
        self.owner: Owner | None = None
        self.leading: Leadership | None = None
        self.claiming = False
        """Whether a claim waits for the control plane's answer."""
        self.copy = Copy(log, new_life=service.new_life, tell=self._answer, moved=self.committed)

    @property
    def claims(self) -> bool:
        """Whether this broker leads, claims the partition, or is handing it over."""
        leading = self.leading
        if self.claiming or leading is None:
            return self.claiming
        return leading.core.phase is not Phase.STOPPED or leading.successor is not None

    # -- what the partition's owner asks

    def append(
        self,
        appended: memoryview | Marker,
        *,
        now_ms: int,
        acks: int,
        lease: Lease | None = None,
        done: Done,
        guard: Guard | None = None,
        opening: Opening = Opening.HERE,
        ids: IdReader | None = None,
    ) -> AppendResult | None:
        """Append batches, or a marker, as the leader.

        The caller passes a returned result to `done` after the next sync. With acks=all the result
        may be None; then `done` is called here once the append is committed.

        Raises:
            NotLeading, TooFewReplicas: this broker does not lead, or reaches too few replicas.
            PenstockError: the fence's error; as the log's `append` and `append_marker`.
        """
        leading = self.appendable()
        if acks == _ALL:
            self.check_reachable()
        log, state = self.log, self.log.state
        base = state.log_end_offset
        if isinstance(appended, Marker):
            result = log.transactions.append_marker(appended, now_ms=now_ms)
        else:
            result = log.append(
                appended, now_ms=now_ms, lease=lease, single=True, guard=guard, opening=opening,
                ids=ids,
            )  # fmt: skip
        if state.log_end_offset > base:
            self.copy.wrote(leading.appended(base, state.log_end_offset))
        self._service.stir(self)
        if acks != _ALL or state.log_end_offset <= leading.core.mark:
            return result
        leading.answer_at(state.log_end_offset, done, result)
        return None

    def appendable(self) -> Leadership:
        """Return the leadership that accepts appends; raises NotLeading, or the fence's error."""
        leading = self.leading
        if leading is None or not leading.may_append(self.copy.core):
            raise NotLeading.of(self.log.topic_partition)
        if leading.fence is not None:
            raise leading.fence
        return leading

    def check_reachable(self) -> None:
        if self.leading is not None:
            self.leading.check_reachable()

    def mend(self, error: PenstockError) -> bool:
        return self.copy.mend(error, self.leading, self._service.now_ms())

    # -- what a leadership asks (`LeaderShell`)

    @property
    def broker_id(self) -> int:
        return self._service.broker_id

    def reaches(self, broker_id: int) -> bool:
        return broker_id in self._service.links.ready

    def lives(self, broker_id: int) -> bool:
        return self._service.epochs.lives(broker_id)

    def may_be_gone(self) -> bool:
        return self._service.may_be_gone()

    def room_bytes(self, broker_id: int) -> int:
        return self._service.room_bytes(broker_id)

    def tell(
        self, broker_id: int, message: Said, data: Sequence[Buffer] = (), size_bytes: int = 0
    ) -> None:
        self._service.tell(self, broker_id, message, data, size_bytes)

    def seal_and_open(self, effect: SealAndOpen) -> None:
        self._service.open_epoch(self, effect)

    def ask_older(self, below: int) -> None:
        self._service.ask_older(self, below)

    def stopped(self) -> None:
        if self.leading is not None:
            self._service.limit(self, self.leading, HAND_OVER_MS)

    def committed(self, mark: int) -> None:
        if self.owner is not None:
            self.owner.committed_to(mark)
            self._service.advanced([self.owner])

    def heard(self, sender: int, message: Said, data: memoryview) -> None:
        """Handle a message of a broker, this one included, about this partition."""
        if isinstance(message, HEARD_BY_COPIES):
            self.copy.heard(sender, message, data, self._service.now_ms())
            if isinstance(message, Join):
                self._service.joined[self] = None
        elif isinstance(message, HandOver):
            self._service.inherit(self, message.authority)
        elif isinstance(message, GiveTo):
            self._service.give(self, message)
        elif isinstance(message, ElectUncleanly):
            self._service.on_elect_uncleanly(self)
        elif self.leading is not None:
            if isinstance(message, ReadAnswer):
                self.leading.read_answered(sender, message, data)
            else:
                self.leading.heard(sender, message)
        self._service.stir(self)

    def lead(self, claim: Claim) -> None:
        """Begin a leadership with a reserved claim of this broker."""
        if self.leading is not None:
            self.leading.give_up(LeadershipOver(self.log.topic_partition, self.leading.core.epoch))
        self.leading = Leadership(Epoch(claim), self.log, self)
        self._service.limit(self, self.leading, HAND_OVER_MS)
        self.leading.begin()
        self._service.stir(self)

    def log_moved(self) -> None:
        """Have replicas notified if the log start offset has changed."""
        leading = self.leading
        if leading is not None and leading.core.base != self.log.log_start_offset:
            self._service.stir(self)

    def _answer(self, broker_id: int, message: Said, data: list[Buffer], size_bytes: int) -> None:
        self._service.tell(self, broker_id, message, data, size_bytes)
        self._service.stir(self)


class Replication:
    """Replicated partitions of this broker. Belongs to the event loop."""

    def __init__(
        self,
        *,
        broker_id: int,
        epochs: Register,
        flush: Callable[[Callable[[StorageError | None], None]], None],
        advanced: Callable[[Iterable[object]], None],
        clock: Clock,
    ) -> None:
        """Create the service. `flush` calls its argument once everything written is durable."""
        self.broker_id = broker_id
        self.advanced = advanced
        self.links: Links
        self.logs: dict[PartitionKey, ReplicatedLog] = {}
        self.epochs = epochs
        self._flush = flush
        self._clock = clock
        self.may_be_gone: Callable[[], bool] = lambda: False
        """Whether other brokers may consider this broker offline."""
        self.on_refused: Callable[[int], None] = _nothing
        """Called with a broker whose address refuses connections."""
        self.on_elect_uncleanly: Callable[[ReplicatedLog], None] = _nothing
        """Called with a partition whose unclean election was requested."""
        self.on_stuck: Callable[[ReplicatedLog], None] = _nothing
        """Called with a partition whose claim exceeded its time limit."""
        self.joined: dict[ReplicatedLog, None] = {}  # since the last look
        self._stirred: dict[ReplicatedLog, None] = {}
        self._limited: dict[ReplicatedLog, None] = {}  # claim or handover with time limit
        self._touched: dict[ReplicatedLog, None] = {}
        self._waiting: dict[ReplicatedLog, None] = {}  # with unanswered messages
        self._resting: dict[ReplicatedLog, None] = {}  # woken by `say_again`
        self._scheduled = False
        self._outgoing: dict[int, list[Outgoing]] = {}
        self._outgoing_bytes: dict[int, int] = {}
        self._short: dict[int, dict[ReplicatedLog, None]] = {}
        """Partitions whose messages wait for room in the connection to a broker."""
        self._claims = Calls("claims", self._claim, self._claimed)
        self._openings = Calls("openings", epochs.open_epochs, self._opened)
        self._silent = Calls("requests for reserved epochs", self._reserved, self._hear_reserved)
        self._older = Calls("requests for older epochs", self._ask_older, self._hear_older)
        self._life = 0
        self.failed = False
        """Whether the disk has failed; replicas are offline until the broker is restarted."""

    def begin(self, registration: int) -> None:
        """Set the number of this broker's registration, which rises with each start."""
        self._life = max(self._life, registration << _LIVES_BITS)

    async def close(self) -> None:
        """End all calls to the control plane and all connections."""
        for calls in (self._claims, self._openings, self._silent, self._older):
            await calls.close()
        await self.links.close()

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def new_life(self) -> int:
        """Return an incarnation that is higher than all earlier ones on this broker."""
        self._life += 1
        return self._life

    def open(self, key: PartitionKey, log: PartitionLog, *, opened: int) -> ReplicatedLog:
        """Open the replica of a partition, or return the existing one if it has the same log.

        `opened` is the open epoch by the metadata image. A replica that may lack promises or
        acknowledged records ignores messages until the control plane has reported their epochs.
        """
        known = self.logs.get(key)
        if known is not None and known.log is log:
            return known
        known = self.logs[key] = ReplicatedLog(self, key, log)
        known.copy.broken = self.failed
        reason = known.copy.may_lack(opened)
        if reason is not None:
            logger.log(
                logging.INFO if log.replica.lost is None else logging.WARNING,
                "%s: this replica may lack acknowledged records until it has its leader's whole"
                " log: %s", log.topic_partition, reason,
            )  # fmt: skip
            known.copy.silent = True
            self._silent.add(known, None)
        return known

    def forget(self, key: PartitionKey) -> None:
        """Close the replica of a partition that is deleted or moved to other brokers."""
        gone = self.logs.pop(key, None)
        if gone is None:
            return
        if gone.leading is not None:
            gone.leading.lost()
        collections = self.joined, self._stirred, self._waiting, self._limited, self._resting
        for logs in (*collections, *self._short.values()):
            logs.pop(gone, None)
        self._silent.drop(gone)

    def known_epoch(self, key: PartitionKey) -> int:
        """Return the highest epoch of a partition that this broker knows to be reserved."""
        log = self.logs.get(key)
        if log is None:
            return 0
        led = 0 if log.leading is None else log.leading.core.epoch
        return max(log.copy.core.promised, led)

    def claim(self, keys: Iterable[PartitionKey]) -> None:
        """Claim the leadership of partitions."""
        for key in keys:
            self.logs[key].claiming = True
            self._claims.add(key, None)

    def open_epoch(self, log: ReplicatedLog, effect: SealAndOpen) -> None:
        self._openings.add(log, effect)

    def ask_older(self, log: ReplicatedLog, below: int) -> None:
        """Request the epochs of a partition below `below` from the control plane."""
        self._older.add(log, below)

    def say_again(self) -> None:
        """Send unanswered messages again, and wake restarted replicas; called periodically."""
        resting, self._resting = self._resting, {}
        for log in resting:
            log.copy.wake()
            self.stir(log)
        waiting, self._waiting = self._waiting, {}
        for log in waiting:
            if log.leading is not None and log.leading.say_again():
                self.stir(log)

    def hand_over(
        self, log: ReplicatedLog, successor: int, *, limit_ms: int = HAND_OVER_MS
    ) -> None:
        """Ask a replica to claim a partition that this broker leads, within a time limit."""
        if log.leading is not None:
            log.leading.hand_over(successor)
            self.limit(log, log.leading, limit_ms)
            self.stir(log)

    def limit(self, log: ReplicatedLog, leading: Leadership, limit_ms: int) -> None:
        """Set how long, from now on, this broker's claim may take, or the claim of the successor to
        which it hands over. `kept` handles exceeded limits."""
        leading.until_ms = self.now_ms() + limit_ms
        self._limited[log] = None

    def take_touched(self) -> Iterable[ReplicatedLog]:
        """Return and reset the partitions led or claimed here that had an event since the last
        call."""
        touched, self._touched = self._touched, {}
        return touched

    def ask_to_give(self, key: PartitionKey, *, leader: int, epoch: int, successor: int) -> None:
        """Ask a partition's leader to hand it over; this broker may have no replica of it."""
        asked = GiveTo(epoch, successor)
        if leader != self.broker_id:
            self.links.send(leader, [(encode_row(key, asked), (), 0)])
        elif key in self.logs:
            self.give(self.logs[key], asked)

    def give(self, log: ReplicatedLog, asked: GiveTo) -> None:
        """Handle a request to hand the leadership over to a certain broker."""
        leading = log.leading
        if leading is None or leading.successor is not None:
            return
        if leading.core.epoch == asked.authority and leading.may_inherit(asked.successor):
            self.hand_over(log, asked.successor)

    def inherit(self, log: ReplicatedLog, epoch: int) -> None:
        """Claim a partition whose leader in an epoch hands it over to this broker."""
        if epoch >= self.known_epoch(log.key) and not log.claiming:
            self.claim([log.key])

    def kept(self) -> list[ReplicatedLog]:
        """End handovers and claims that have exceeded their time limits; called periodically.

        A claim that waits for new replicas continues with the former ones, with a new limit.
        Returns the partitions whose handover or claim has failed.
        """
        now_ms, found = self.now_ms(), []
        for log in list(self._limited):
            leading = log.leading
            if leading is not None and leading.until_ms > now_ms:
                continue
            del self._limited[log]
            if leading is None or (leading.leads and leading.successor is None):
                continue
            if leading.successor is not None or leading.core.phase is Phase.STOPPED:
                leading.keep()
                found.append(log)
            elif leading.core.unclean:
                logger.error("%s: unclean election lacks records", log.log.topic_partition)
                leading.lost()
                found.append(log)
            else:
                leading.keep_placement()
                self.limit(log, leading, HAND_OVER_MS)
                self.on_stuck(log)
                self.stir(log)
        return found

    # -- turns of the loop

    def stir(self, log: ReplicatedLog) -> None:
        """Have a partition's messages sent and its log synced at the end of this turn."""
        self._stirred[log] = None
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        stirred, self._stirred = self._stirred, {}
        for log in stirred:
            self._fill(log)
        self._send()
        for broker_id in list(filter(self.links.room_bytes, self._short)):
            self.room_again(broker_id)
        copies = [(log, log.copy.core) for log in stirred if log.copy.unsynced]
        tokens = [(log, core, core.begin_sync()) for log, core in copies]
        if tokens:
            self._flush(partial(self._durable, tokens))

    def _fill(self, one: ReplicatedLog) -> None:
        if one.leading is None:
            return
        self._touched[one] = None
        try:
            for broker_id in one.leading.fill():
                self._short.setdefault(broker_id, {})[one] = None
            if one.leading.asks:
                self._waiting[one] = None
            one.leading.may_append(one.copy.core)  # sets the log's epoch for clients
        except PenstockError as error:
            logger.error("%s: cannot send to replicas: %s", one.log.topic_partition, error)
            one.mend(error)

    def room_bytes(self, broker_id: int) -> int:
        """Return how many bytes may be sent to a broker in this turn; 0 without a connection."""
        return max(0, self.links.room_bytes(broker_id) - self._outgoing_bytes.get(broker_id, 0))

    def _durable(
        self, tokens: list[tuple[ReplicatedLog, Replica, Sync]], error: StorageError | None
    ) -> None:
        if isinstance(error, StorageFailed):
            self.end(error)
            return
        for one, core, token in tokens:
            copy = one.copy
            if copy.core is not core or self.logs.get(one.key) is not one:
                continue
            if error is None and not copy.failed:
                copy.synced(token)
            elif error is not None or token.writes == core.writes:  # no write is unsynced
                copy.begin_anew()
                self._resting[one] = None
            if error is None:
                self.stir(one)
            else:
                self._give_away(one)
        self._send()

    def end(self, error: StorageError) -> None:
        """Take all replicas offline after a disk failure, and hand over all leaderships, also those
        of partitions without appends."""
        if self.failed:
            return
        self.failed = True
        logger.critical("%d replicas are offline until a restart: %s", len(self.logs), error)
        for log in self.logs.values():
            log.copy.broken = True
            self._give_away(log)
        self._send()

    def pass_on(self, key: PartitionKey, successor: int, epoch: int) -> None:
        """Ask another broker to claim a partition that this broker leads by the metadata image."""
        told = HandOver(max(epoch, self.known_epoch(key)))
        self.links.send(successor, [(encode_row(key, told), (), 0)])

    def _give_away(self, log: ReplicatedLog) -> None:
        """Hand over the leadership of a log that rejects appends or has lost records."""
        leading = log.leading
        if leading is None or not leading.leads:
            return
        broken, lacks = log.copy.broken, log.log.log_end_offset < leading.core.end
        successors = list(filter(leading.may_inherit, leading.core.followers))
        if broken or lacks or successors:
            leading.lost()
        if successors:
            self.hand_over(log, successors[0])
            self.tell(log, successors[0], HandOver(leading.core.epoch), (), 0)
        elif lacks and not broken:
            self.claim([log.key])
        self.stir(log)

    def tell(
        self,
        log: ReplicatedLog,
        broker_id: int,
        message: Said,
        data: Sequence[Buffer],
        size_bytes: int,
    ) -> None:
        """Send a message to a broker, or pass it to this broker's own replica at once."""
        if broker_id == self.broker_id:
            log.heard(broker_id, message, joined(data))
            return
        row = encode_row(log.key, message, size_bytes)
        self._outgoing.setdefault(broker_id, []).append((row, data, size_bytes))
        waiting = self._outgoing_bytes.get(broker_id, 0)
        self._outgoing_bytes[broker_id] = waiting + len(row) + size_bytes

    def _send(self) -> None:
        outgoing, self._outgoing, self._outgoing_bytes = self._outgoing, {}, {}
        for broker_id, rows in outgoing.items():
            self.links.send(broker_id, rows)

    # -- links (`LinkUser`)

    def rows_came(self, broker_id: int, rows: Iterable[Row]) -> None:
        for row in rows:
            log = self.logs.get(row.key)
            if log is None:
                continue
            try:
                log.heard(broker_id, row.message, row.data)
            except PenstockError as error:
                logger.error(
                    "%s: the log rejected records from broker %d: %s",
                    log.log.topic_partition, broker_id, error,
                )  # fmt: skip
                self.stir(log)

    def refused(self, broker_id: int) -> None:
        self.on_refused(broker_id)

    def room_again(self, broker_id: int) -> None:
        for log in self._short.pop(broker_id, ()):
            self.stir(log)

    def link_changed(self, broker_id: int, *, up: bool) -> None:
        self._short.pop(broker_id, None)
        for log in self.logs.values():
            if log.leading is not None and broker_id in log.leading.core.streams:
                log.leading.link_changed(broker_id)
                self.stir(log)

    # -- the control plane

    async def _claim(
        self, asked: Sequence[tuple[PartitionKey, None]]
    ) -> Sequence[Claim | PenstockError]:
        return await self.epochs.claim([key for key, _ in asked])

    def _claimed(self, key: PartitionKey, _: None, answer: Claim | PenstockError) -> None:
        log = self.logs.get(key)
        if log is not None:
            log.claiming = False
        if isinstance(answer, PenstockError):
            logger.warning("a leadership claim was rejected: %s", answer)
        elif log is not None:
            log.lead(answer)

    def _opened(self, log: ReplicatedLog, effect: SealAndOpen, opened: bool) -> None:
        if log.leading is not None and log.leading.core.epoch == effect.epoch:
            (log.leading.opened if opened else log.leading.lost)()
            self.stir(log)

    async def _reserved(
        self, asked: Sequence[tuple[ReplicatedLog, None]]
    ) -> Sequence[Reserved | None]:
        found = await self.epochs.reserved([log.key for log, _ in asked])
        return [found.get(log.key) for log, _ in asked]

    def _hear_reserved(self, log: ReplicatedLog, _: None, there: Reserved | None) -> None:
        if there is not None and self.logs.get(log.key) is log:
            log.copy.lose(reserved=there.reserved, opened=there.opened)
            self.stir(log)

    async def _ask_older(self, asked: Sequence[tuple[ReplicatedLog, int]]) -> Sequence[Chain]:
        return await self.epochs.older([(log.key, below) for log, below in asked])

    def _hear_older(self, log: ReplicatedLog, _: int, older: Chain) -> None:
        if log.leading is not None and older:
            log.leading.core.extend(older)
            self.stir(log)


def _nothing(_: object) -> None:
    return
