"""This broker's part in replicated partitions: what it copies, when it claims, who is in sync.

By the metadata's image it takes part in every partition in whose replicas it is, or is to be
(`moves.py`), and reaches the brokers that are registered. It claims a partition that it leads by
the image and not in fact, as after its start; and one whose leader is gone if it comes first among
the replicas that are left. A broker is gone when its session is over, or when its connection is
lost and nobody listens at its address: a process that was killed is followed at once, a machine
that is silent after its session. Anybody may claim at any time: who leads is decided by epochs
(`replication/`), and a leader that the image does not name any more stops.

A leader that reaches too few copies for longer than a session has another one claim
(`cut_off.py`). A broker that is to stop gives away what it leads before (`hand_over_all`), and
claims nothing more.

In-sync replicas are what clients see; no promise depends on them. A broker that is gone has none,
nor one that has not had all of the leader's log for `replica.lag.time.max.ms`, as in Kafka.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID

from penstock.base.errors import PenstockError
from penstock.base.pause import pause
from penstock.broker.cut_off import CutOff
from penstock.broker.diskless import is_diskless
from penstock.broker.identity import replication_address
from penstock.broker.in_sync import InSync
from penstock.broker.leader_balance import LeaderBalance
from penstock.broker.listeners import REPLICATION
from penstock.broker.moves import Moves
from penstock.control.epochs.values import FIRST_EPOCH, EpochClaim, EpochOpening
from penstock.replication.chain import Chain, Link
from penstock.replication.effects import SealAndOpen
from penstock.replication.epoch import Claim, Terms
from penstock.replication.links import Links, LinkTransport
from penstock.replication.peer_format import PartitionKey, Settle, encode_row
from penstock.replication.quorum import quorum_of
from penstock.replication.register import Led, Reserved
from penstock.replication.service import HAND_OVER_MS, ReplicatedLog, Replication

if TYPE_CHECKING:
    from penstock.base.system import Clock, Randomness
    from penstock.broker.metadata import ImageDelta
    from penstock.broker.metadata.cluster import Leaders
    from penstock.broker.settings import BrokerSettings
    from penstock.control import Broker, ControlPlane, MetadataImage
    from penstock.control import Partition as PartitionRow
    from penstock.control.epochs.values import PartitionChain
    from penstock.partitions import GroupCommits
    from penstock.security.peers import PeerSecret
    from penstock.storage import ReplicaLog

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
SAID_AGAIN_PER_LOOK: Final = 5
HAND_OVER_BATCH: Final = 1000
"""So many partitions at most have no leader at one time because a broker stops."""
_HANDED_LOOK_SECONDS: Final = 0.01
_ASK_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaParts:
    """What is used of the broker."""

    settings: BrokerSettings
    node_id: int
    control: ControlPlane
    clock: Clock
    randomness: Randomness
    commits: GroupCommits


class Replicas:
    """See the module's text. Belongs to the event loop."""

    def __init__(
        self, parts: ReplicaParts, *, advanced: Callable[[Iterable[object]], None]
    ) -> None:
        """`advanced` is told of the partitions of which consumers may read more."""
        self._parts = parts
        self.replication = Replication(
            broker_id=parts.node_id,
            epochs=self,
            flush=parts.commits.flush_then,
            advanced=advanced,
            clock=parts.clock,
        )
        self.refresh: Callable[[], Awaitable[None]] = _nothing
        """Loads the image that a change of this broker has made."""
        self.heard_leaders: Callable[[Leaders], None] = _ignored
        """Told of leaders that copies have heard from, and that the image does not know."""
        self.replication.on_refused = self._refused
        self.replication.on_settle = self._settle
        self.replication.on_stuck = self._stuck
        self._moves = Moves(self.replication, self._row)
        self._balance = LeaderBalance(parts.settings, parts.clock.monotonic())
        self._image: MetadataImage | None = None
        self._incarnation = UUID(int=0)
        self._gone: dict[int, UUID] = {}
        """Incarnations of brokers that refuse connections, by broker id."""
        self._in_sync = InSync(parts.settings.replica_lag_time_max_ms)
        session_seconds = parts.settings.broker_session_timeout_ms / 1000
        self._cut_off = CutOff(parts.node_id, session_seconds)
        self._live: set[int] = set()
        self._looking: asyncio.Task[None] | None = None
        self._refreshing: set[asyncio.Task[None]] = set()
        self._joined = self._leaving = False
        self._passed = 0
        self.endpoint = (REPLICATION, "", 0)
        """Where other brokers reach this one, once it listens."""

    async def listen(self, incarnation: UUID, secret: PeerSecret, transport: LinkTransport) -> None:
        """Accept other brokers, which know the same secret.

        Raises:
            OSError: it cannot be bound.
        """
        self._incarnation = incarnation
        links = Links(
            broker_id=self._parts.node_id,
            incarnation=incarnation,
            cluster_id=(await self._parts.control.image()).cluster_id,
            silent_seconds=self._parts.settings.broker_session_timeout_ms / 1000,
            user=self.replication,
            secret=secret,
            randomness=self._parts.randomness,
            transport=transport,
        )
        self.replication.links = links
        self._joined = True
        host, _, port = self._parts.settings.replication_listener.rpartition(":")
        self.endpoint = (REPLICATION, *await links.listen(host, int(port)))
        self._looking = asyncio.get_running_loop().create_task(self._look_on())

    def registered(self, epoch: int) -> None:
        """The broker is registered in an epoch, which rises with each of its starts."""
        self.replication.begin(epoch)

    async def close(self) -> None:
        """Take part no more."""
        tasks = [*self._refreshing, *filter(None, [self._looking])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._joined:  # else the broker could not start
            await self.replication.close()

    def open(self, row: PartitionRow, log: ReplicaLog) -> ReplicatedLog:
        """Take part in a partition with a log of this broker."""
        key = PartitionKey(log.topic_id.bytes, row.index)
        return self.replication.open(key, log, opened=row.leader_epoch)

    # -- the image

    def follow(self, delta: ImageDelta) -> None:
        """Reach who is registered, and claim what has no leader."""
        image, before = delta.image, self._image
        self._image = image
        logs = self.replication.logs
        if before is None or delta.whole or before.cluster_epoch != image.cluster_epoch:
            own = self._parts.node_id
            addresses = {one.broker_id: replication_address(one) for one in image.brokers}
            self.replication.links.reach(
                {one: at for one, at in addresses.items() if at is not None and one != own}
            )
            concerned = list(logs.values())
        else:
            keys = [
                PartitionKey(topic.topic_id.bytes, row.index)
                for topic in (*delta.changed, *delta.gone)
                for row in topic.partitions
            ]
            concerned = [logs[key] for key in keys if key in logs]
        self._look_at(concerned)

    def _look_at(self, logs: Iterable[ReplicatedLog]) -> None:
        image = self._image
        if image is None:
            return
        live = {one.broker_id for one in image.brokers if self._seems_alive(one)}
        claimed = []
        for log in logs:
            row = self._row(log.key)
            if row is None or not row.has_epochs or self._parts.node_id not in row.copies:
                self.replication.forget(log.key)
                continue
            self._moves.look_at(log, row)
            if self._is_mine(row, live, log):
                claimed.append(log.key)
        if claimed:
            self.replication.claim(claimed)

    def _seems_alive(self, broker: Broker) -> bool:
        """Whether a registered broker can be reached, or is not known to refuse."""
        known = broker.broker_id in self.replication.links.ready
        return known or self._gone.get(broker.broker_id) != broker.incarnation

    def lives(self, broker_id: int) -> bool:
        """Whether a broker is registered, and not known to be gone."""
        broker = None if self._image is None else self._image.broker(broker_id)
        return broker is not None and self._seems_alive(broker)

    def unreachable(self) -> frozenset[int]:
        """Registered brokers that have just lost their connection, or refuse one."""
        brokers = self._image.brokers if self._gone and self._image is not None else ()
        gone = [one.broker_id for one in brokers if not self._seems_alive(one)]
        return self.replication.links.lost.union(gone)

    def alone(self) -> bool:
        """Whether others may go on without this broker: it hears of none, its session is over."""
        replication, image = self.replication, self._image
        if replication.links.ready or image is None or not replication.may_be_gone():
            return False
        others = [one for one in image.brokers if one.broker_id != self._parts.node_id]
        return any([replication_address(one) is not None for one in others])

    def _refused(self, broker_id: int) -> None:
        """Nobody listens at a broker's address: do not wait until its session is over."""
        image = self._image
        broker = None if image is None else image.broker(broker_id)
        if broker is not None:
            self._gone[broker_id] = broker.incarnation
            self._look_at(list(self.replication.logs.values()))

    def _is_mine(self, row: PartitionRow, live: set[int], log: ReplicatedLog) -> bool:
        """Whether this broker should claim a partition now."""
        own = self._parts.node_id
        if self._leaving:
            return False
        if row.leader in live and row.leader != own:
            if log.leading is not None and row.leader_epoch > log.leading.core.epoch:
                log.leading.lost()
            return False
        # Those in sync first: another may lack what the logs of all others have deleted.
        order = (row.leader, *row.isr, *row.replicas)
        first = next((one for one in order if one in live), None)
        return first == own and not log.claims and not log.copy.broken

    def _pass_on(self) -> None:
        """The disk has failed: have others claim what is led here by the image, one by one.

        Of some there is no log: they are newer than the failure.
        """
        own, self._passed = self._parts.node_id, self._passed + 1
        ready = self.replication.links.ready
        topics = () if self._image is None else self._image.topics.values()
        for topic in topics:
            for row in () if is_diskless(topic) else topic.partitions:
                others = [
                    replica for replica in row.replicas if replica != own and replica in ready
                ]
                if row.leader == own and row.has_epochs and others:
                    heir = others[self._passed % len(others)]
                    key = PartitionKey(topic.topic_id.bytes, row.index)
                    self.replication.pass_on(key, heir, row.leader_epoch)

    def _row(self, key: PartitionKey) -> PartitionRow | None:
        topic = None if self._image is None else self._image.topic_by_id(UUID(bytes=key.topic_id))
        if topic is None or is_diskless(topic) or key.partition >= len(topic.partitions):
            return None
        return topic.partitions[key.partition]

    # -- handing over

    async def hand_over_all(self, seconds: float) -> None:
        """Have others lead what this broker leads, as far as they can within this time.

        The broker is about to stop: it claims nothing from now on.
        """
        self._leaving = True
        until = self._parts.clock.monotonic() + seconds
        heirs = {
            log: heir
            for log in list(self.replication.logs.values())
            if (heir := self._heir_of(log)) is not None
        }
        logs = list(heirs)
        for start in range(0, len(logs), HAND_OVER_BATCH):
            left = until - self._parts.clock.monotonic()
            if left <= 0:
                break
            batch = {log: heirs[log] for log in logs[start : start + HAND_OVER_BATCH]}
            await self.hand_over(batch, min(left, HAND_OVER_MS / 1000))
        kept = sum([self._leader(log.key) == self._parts.node_id for log in logs])
        if kept:
            logger.warning("%d partitions were led here until the end", kept)

    async def hand_over(self, heirs: Mapping[ReplicatedLog, int], seconds: float) -> None:
        """Have other replicas lead; returns when they do by the image, or did not in time."""
        for log, heir in heirs.items():
            self.replication.hand_over(log, heir, limit_ms=int(seconds * 1000))
        await self._led_anew({log.key: self._parts.node_id for log in heirs}, seconds)

    async def elect(self, heirs: Mapping[PartitionKey, int], seconds: float) -> set[PartitionKey]:
        """Have these replicas lead; those of the partitions whose leaders gave them up in time."""
        until = self._parts.clock.monotonic() + seconds
        left = dict(heirs)
        while left and self._parts.clock.monotonic() < until:
            before = {}
            for key, heir in left.items():  # once more: an heir may be about to catch up
                row = self._row(key)
                if row is not None:
                    before[key] = row.leader
                    self.replication.ask_to_give(
                        key, leader=row.leader, epoch=row.leader_epoch, heir=heir
                    )
            await self._led_anew(before, _ASK_SECONDS)
            left = {key: heir for key, heir in left.items() if self._leader(key) != heir}
        return {key for key, heir in heirs.items() if self._leader(key) == heir}

    async def _led_anew(self, before: Mapping[PartitionKey, int], seconds: float) -> None:
        """Wait until others than these lead by the image, or for so long."""
        until = self._parts.clock.monotonic() + seconds
        waiting = list(before)
        while waiting and self._parts.clock.monotonic() < until:
            await pause(_HANDED_LOOK_SECONDS)
            waiting = [key for key in waiting if self._leader(key) == before[key]]

    def _heir_of(self, log: ReplicatedLog) -> int | None:
        """Who should lead next: the first replica that can."""
        leading, row = log.leading, self._row(log.key)
        if leading is None or row is None:
            return None
        return next(filter(leading.may_inherit, row.replicas), None)

    def _leader(self, key: PartitionKey) -> int | None:
        row = self._row(key)
        return None if row is None else row.leader

    # -- epochs, as `replication.register.Register`

    async def claim(self, keys: Sequence[PartitionKey]) -> Sequence[Claim | PenstockError]:
        """Reserve the next epoch of each."""
        asked = [
            EpochClaim(UUID(bytes=key.topic_id), key.partition, self.replication.known_epoch(key))
            for key in keys
        ]
        answer = await self._parts.control.claim_epochs(
            asked, broker_id=self._parts.node_id, incarnation=self._incarnation
        )
        return [
            answer.refused[one.key]
            if one.key in answer.refused
            else self._claim_of(key, answer.chains[one.key])
            for key, one in zip(keys, asked, strict=True)
        ]

    def _claim_of(self, key: PartitionKey, chain: PartitionChain) -> Claim | PenstockError:
        row, log, last = self._row(key), self.replication.logs.get(key), chain.epochs[-1]
        before = Terms(last.replicas, last.ack_quorum)
        terms, move = before, 0
        try:
            if row is not None and log is not None:
                minimum = log.log.config.min_insync_replicas
                placement, ordered = self._moves.placement(key, row, last.replicas)
                terms = Terms(placement, quorum_of(len(placement), minimum).acks)
                move = ordered
        except PenstockError as error:
            logger.warning("partition %s keeps its quorum of %d: %s", key, before.acks, error)
        return Claim(
            epoch=chain.reservation.reserved,
            chain=_links(chain),
            before=before,
            terms=terms,
            move=move,
        )

    async def open_epochs(self, openings: Sequence[tuple[Led, SealAndOpen]]) -> Sequence[bool]:
        """Seal and open; false for each whose reservation has been overtaken."""
        asked = [self._opening(log, effect) for log, effect in openings]
        refused = await self._parts.control.open_epochs(
            asked, broker_id=self._parts.node_id, incarnation=self._incarnation
        )
        for key, error in refused.items():
            logger.warning("opening an epoch of partition %s was refused: %s", key, error)
        if all([self._is_first(log, effect) for log, effect in openings]):
            # Beside the answer: the image names these leaders since the creation, and clients of
            # other brokers may know that they serve before this one has read it.
            task = asyncio.get_running_loop().create_task(self._refresh())
            self._refreshing.add(task)
            task.add_done_callback(self._refreshing.discard)
        else:
            await self.refresh()
        return [one.key not in refused for one in asked]

    def _is_first(self, log: Led, effect: SealAndOpen) -> bool:
        """Whether an opening is that of a new partition, by the leader that it was created with."""
        row = self._row(log.key)
        named = row is not None and row.leader == self._parts.node_id and not row.move
        return named and effect.target == FIRST_EPOCH

    async def _refresh(self) -> None:
        """Load the image that openings have made; without it, the next notice does."""
        with suppress(PenstockError):
            await self.refresh()

    async def reserved(self, keys: Sequence[PartitionKey]) -> Mapping[PartitionKey, Reserved]:
        """What is reserved and opened now; without partitions that are no more."""
        asked = {(UUID(bytes=key.topic_id), key.partition): key for key in keys}
        found = await self._parts.control.highest_reserved(list(asked))
        return {asked[key]: Reserved(one.reserved, one.opened) for key, one in found.items()}

    async def older(self, asked: Sequence[tuple[PartitionKey, int]]) -> Sequence[Chain]:
        """Of each partition the newest epochs below one, as many as there are in a page."""
        chains = []
        for key, below in asked:  # few: copies that were away for as many epochs as a claim knows
            where = UUID(bytes=key.topic_id), key.partition
            found = await self._parts.control.partition_chains([where], below=below)
            chains.append(_links(found[where]) if where in found else ())
        return chains

    def _opening(self, log: Led, effect: SealAndOpen) -> EpochOpening:
        core = log.leading.core if log.leading is not None else None
        terms = Terms((self._parts.node_id,), 1) if core is None else core.terms
        streams = {} if core is None else core.streams
        held = [one for one in terms.placement if one in streams]
        isr = [one for one in held if streams[one].durable >= effect.end]
        return EpochOpening(
            topic_id=UUID(bytes=log.key.topic_id),
            partition=log.key.partition,
            epoch=effect.epoch,
            end_offset=effect.end,
            replicas=terms.placement,
            ack_quorum=terms.acks,
            isr=tuple(dict.fromkeys([self._parts.node_id, *isr])),
            move=0 if core is None else core.move,
            unclean=core is not None and core.settled,
        )

    # -- leaders at the price of records

    def _stuck(self, log: ReplicatedLog) -> None:
        """A claim takes long: lead with what is left, where the topic asks for that."""
        if log.log.config.unclean_leader_election_enable:
            self._settle(log)

    def _settle(self, log: ReplicatedLog) -> None:
        """Go by the replicas that have answered, if the others are not registered any more."""
        leading, image = log.leading, self._image
        if leading is None or image is None:
            return
        followers = leading.core.followers
        missing = [follower for follower in followers if followers[follower].answer is None]
        if any([image.broker(one) is not None for one in missing]):
            return  # it may answer yet
        if leading.settle():
            self.replication.limit(log, leading, HAND_OVER_MS)
            logger.warning(
                "%s: an unclean election, as brokers %s are gone", log.log.topic_partition, missing
            )
            self.replication.stir(log)

    async def elect_uncleanly(
        self, keys: Sequence[PartitionKey], seconds: float
    ) -> set[PartitionKey]:
        """Have what is left of partitions led, at the price of records; those that are in time."""
        until = self._parts.clock.monotonic() + seconds
        left = {key: row.leader_epoch for key in keys if (row := self._row(key)) is not None}
        led: set[PartitionKey] = set()
        while left and self._parts.clock.monotonic() < until:
            for key, epoch in left.items():
                row = self._row(key)
                self._ask_to_settle(key, epoch, () if row is None else row.replicas)
            await pause(_ASK_SECONDS)
            led |= {key for key, epoch in left.items() if self._epoch(key) > epoch}
            left = {key: epoch for key, epoch in left.items() if key not in led}
        return led

    def _ask_to_settle(self, key: PartitionKey, epoch: int, brokers: Iterable[int]) -> None:
        """Ask who claims a partition in vain after an epoch to lead it with what is left."""
        asked = encode_row(key, Settle(epoch))
        for broker_id in brokers:
            if broker_id != self._parts.node_id:
                self.replication.links.send(broker_id, [(asked, (), 0)])
            elif key in self.replication.logs:
                self._settle(self.replication.logs[key])

    def _epoch(self, key: PartitionKey) -> int:
        row = self._row(key)
        return -1 if row is None else row.leader_epoch

    # -- leaders that reach too few copies

    async def _resign(self) -> None:
        """Have others lead what this broker cannot."""
        replication, image = self.replication, self._image
        brokers = () if image is None else image.brokers
        live = {one.broker_id for one in brokers if replication_address(one) is not None}
        cut = live - {self._parts.node_id} - replication.links.ready.keys()
        given_up = self._cut_off.look(
            list(replication.logs.values()) if cut else (),
            now=self._parts.clock.monotonic(),
            live=live,
            row_of=lambda log: self._row(log.key),
        )
        if not given_up:
            return
        refused = await self._parts.control.resign(
            list(given_up.values()), broker_id=self._parts.node_id, incarnation=self._incarnation
        )
        logger.warning(
            "%d partitions are for others to lead: brokers %s cannot be reached from here",
            len(given_up) - len(refused), ", ".join(map(str, sorted(cut))),
        )  # fmt: skip
        for log, one in given_up.items():
            if one.key not in refused and log.leading is not None:
                log.leading.lost()
                replication.stir(log)
        await self.refresh()

    def _hear_leaders(self) -> None:
        """Know leaders by their streams where the control plane has not told of them by now."""
        joined = list(self.replication.joined)
        self.replication.joined.clear()
        heard: dict[tuple[UUID, int], tuple[int, int]] = {}
        for log in joined:
            row, leader = self._row(log.key), log.copy.leader
            if row is not None and leader is not None and leader[1] > row.leader_epoch:
                heard[UUID(bytes=log.key.topic_id), row.index] = leader
        if heard:
            self.heard_leaders(heard)

    # -- in-sync replicas

    async def _look_on(self) -> None:
        while True:
            try:
                for _ in range(SAID_AGAIN_PER_LOOK):
                    await pause(LOOK_SECONDS / SAID_AGAIN_PER_LOOK)
                    self.replication.say_again()
                    self._look_at(self.replication.kept())
                    self._moves.go_on()
                    self._hear_leaders()
                failed = self._parts.commits.failed
                if failed is not None:
                    self.replication.end(failed)
                    self._pass_on()
                await self._look_at_lag()
                await self._resign()
                self._hand_back()
            except PenstockError as error:
                logger.warning("what was seen of replicas was not stored: %s", error)
            except Exception:
                logger.exception("a look at replicated partitions was broken off")

    def _hand_back(self) -> None:
        """Have preferred replicas lead again, if it is time to."""
        if self._leaving:
            return
        led = ((log, self._row(log.key)) for log in self.replication.logs.values())
        heirs = self._balance.due(self._parts.clock.monotonic(), self._image, led)
        for log, heir in heirs.items():
            self.replication.hand_over(log, heir)
        if heirs:
            logger.info("%d partitions go back to their preferred leaders", len(heirs))

    async def _look_at_lag(self) -> None:
        """Store which replicas are in sync, where that has changed."""
        image, live = self._image, self._live
        brokers = set() if image is None else {one.broker_id for one in image.brokers}
        self._live = brokers
        touched = self.replication.take_touched()
        changes = self._in_sync.look(
            touched if live == brokers else list(self.replication.logs.values()),
            now_ms=self._parts.clock.now_ms(),
            live=brokers,
            row_of=lambda log: self._row(log.key),
        )
        if changes:
            await self._parts.control.set_isr(
                changes, broker_id=self._parts.node_id, incarnation=self._incarnation
            )
            await self.refresh()


def _links(chain: PartitionChain) -> Chain:
    return tuple(Link(one.epoch, one.start_offset) for one in chain.epochs)


async def _nothing() -> None:
    return


def _ignored(_: Leaders) -> None:
    return
