"""Replicated partitions of this broker: its replicas, claims of leadership, and in-sync replicas.

The broker takes part in every partition whose replicas include it in the metadata image, or will
include it after a reassignment (`broker/partitions/leadership.py`). It connects to all registered
brokers.

The broker claims a partition if the image names it as leader, for example after a start. It also
claims a partition whose leader is gone if it is the first of the live replicas, in-sync ones before
others. A broker is gone when its registration has expired, or when its connection is lost and its
address refuses connections. A killed process is thus replaced at once, an unreachable machine after
its session. Claims are safe at any time, because epochs fence older leaders (`replication/`). A
leader that the image no longer names stops leading.

A leader that reaches too few replicas for longer than a session resigns
(`broker/partitions/leadership.py`). A stopping broker first hands over its leaderships
(`hand_over_all`) and claims no more partitions.

In-sync replicas are information for clients; durability does not depend on them. A replica is not
in sync if its broker is not registered, or if it has not had the leader's whole log for
`replica.lag.time.max.ms`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from uuid import UUID

from penstock.base.errors import PenstockError
from penstock.base.pause import pause
from penstock.broker.metadata.leaders import is_diskless
from penstock.broker.net.listeners import REPLICATION, replication_address
from penstock.broker.partitions.leadership import CutOff, InSync, LeaderBalance, Moves
from penstock.control.rules.metadata import link_epoch
from penstock.control.values.epochs import FIRST_EPOCH, EpochClaim, EpochOpening, PartitionChain
from penstock.replication.chain import Chain, Link
from penstock.replication.copies import disk_of
from penstock.replication.epoch import Claim, Terms, quorum_of
from penstock.replication.link_transport import LinkTransport
from penstock.replication.links import Links
from penstock.replication.messages import SealAndOpen
from penstock.replication.peer_format import ElectUncleanly, PartitionKey, encode_row
from penstock.replication.service import HAND_OVER_MS, Led, ReplicatedLog, Replication, Reserved

if TYPE_CHECKING:
    from penstock.base.system import Clock, Randomness
    from penstock.broker.configuration.settings import BrokerSettings
    from penstock.broker.metadata import ImageDelta
    from penstock.broker.metadata.cluster import Leaders
    from penstock.control import Broker, ControlPlane, MetadataImage
    from penstock.control import Partition as PartitionRow
    from penstock.partitions import GroupCommits
    from penstock.security.sasl.peers import PeerSecret
    from penstock.storage import PartitionLog, StorageError


logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
SAID_AGAIN_PER_LOOK: Final = 5
HAND_OVER_BATCH: Final = 1000
"""Largest number of partitions that a stopping broker hands over at a time."""
_HANDED_LOOK_SECONDS: Final = 0.01
_ASK_SECONDS: Final = 0.2


class Replicas:
    """Service for the replicated partitions of this broker. Belongs to the event loop."""

    def __init__(
        self,
        *,
        settings: BrokerSettings,
        control: ControlPlane,
        clock: Clock,
        randomness: Randomness,
        commits: GroupCommits,
        advanced: Callable[[Iterable[object]], None],
        load_image: Callable[[], Awaitable[None]],
        apply_leaders: Callable[[Leaders], None],
    ) -> None:
        """Create the service with callbacks of the broker.

        `advanced` receives the partitions whose high watermark has advanced. `load_image` is
        called when this broker has changed the metadata. `apply_leaders` receives leaders that have
        connected to this broker's replicas with newer epochs than the image has.
        """
        self._settings = settings
        self._node_id = settings.node_id
        self._control = control
        self._clock = clock
        self._randomness = randomness
        self._commits = commits
        self.replication = Replication(
            broker_id=self._node_id,
            epochs=self,
            flush=commits.flush_then,
            advanced=advanced,
            clock=clock,
        )
        self._load_image = load_image
        self._apply_leaders = apply_leaders
        self.replication.on_refused = self._refused
        self.replication.on_elect_uncleanly = self._elect_remaining
        self.replication.on_stuck = self._stuck
        self._moves = Moves(self.replication, self._row)
        self._balance = LeaderBalance(settings, clock.monotonic())
        self._image: MetadataImage | None = None
        self._incarnation = UUID(int=0)
        self._gone: dict[int, UUID] = {}
        """Incarnations of brokers that refuse connections, by broker id."""
        self._in_sync = InSync(settings.replica_lag_time_max_ms)
        session_seconds = settings.broker_session_timeout_ms / 1000
        self._cut_off = CutOff(self._node_id, session_seconds)
        self._live: set[int] = set()
        self._looking: asyncio.Task[None] | None = None
        self._refreshing: set[asyncio.Task[None]] = set()
        self._joined = self._leaving = False
        self._passed = 0
        self.endpoint = (REPLICATION, "", 0)
        """Bound replication address, once the broker listens."""

    async def listen(self, incarnation: UUID, secret: PeerSecret, transport: LinkTransport) -> None:
        """Accept connections of brokers that know the secret, and start periodic checks.

        Raises:
            OSError: the replication address cannot be bound.
        """
        self._incarnation = incarnation
        links = Links(
            broker_id=self._node_id,
            incarnation=incarnation,
            cluster_id=(await self._control.image()).cluster_id,
            silent_seconds=self._settings.broker_session_timeout_ms / 1000,
            user=self.replication,
            secret=secret,
            randomness=self._randomness,
            transport=transport,
        )
        self.replication.links = links
        self._joined = True
        host, _, port = self._settings.replication_listener.rpartition(":")
        self.endpoint = (REPLICATION, *await links.listen(host, int(port)))
        self._looking = asyncio.get_running_loop().create_task(self._look_on())

    def registered(self, epoch: int) -> None:
        """Use `epoch`, the broker epoch of a new registration, which rises with each one."""
        self.replication.begin(epoch)

    async def close(self) -> None:
        tasks = [*self._refreshing, *filter(None, [self._looking])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._joined:  # else the broker could not start
            await self.replication.close()

    def open(self, row: PartitionRow, log: PartitionLog) -> ReplicatedLog:
        """Take part in a partition, with `log` as this broker's replica."""
        key = PartitionKey(log.topic_id.bytes, row.index)
        return self.replication.open(key, log, opened=row.leader_epoch)

    # -- the image

    def follow(self, delta: ImageDelta) -> None:
        """Apply a metadata image: connect to its brokers, and claim partitions without a leader."""
        image, before = delta.image, self._image
        self._image = image
        logs = self.replication.logs
        if before is None or delta.whole or before.cluster_epoch != image.cluster_epoch:
            own = self._node_id
            addresses = {broker.broker_id: replication_address(broker) for broker in image.brokers}
            self.replication.links.reach(
                {
                    broker_id: at
                    for broker_id, at in addresses.items()
                    if at is not None and broker_id != own
                }
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
        live = {broker.broker_id for broker in image.brokers if self._seems_alive(broker)}
        claimed = []
        for log in logs:
            row = self._row(log.key)
            if row is None or not row.has_epochs or self._node_id not in row.copies:
                self.replication.forget(log.key)
                continue
            self._moves.look_at(log, row)
            if self._is_mine(row, live, log):
                claimed.append(log.key)
        if claimed:
            self.replication.claim(claimed)

    def _seems_alive(self, broker: Broker) -> bool:
        known = broker.broker_id in self.replication.links.ready
        return known or self._gone.get(broker.broker_id) != broker.incarnation

    def lives(self, broker_id: int) -> bool:
        """Return whether a broker is registered and does not refuse connections."""
        broker = None if self._image is None else self._image.broker(broker_id)
        return broker is not None and self._seems_alive(broker)

    def unreachable(self) -> frozenset[int]:
        """Return the registered brokers that clients should not use.

        Their connection was just lost, or they refuse connections.
        """
        brokers = self._image.brokers if self._gone and self._image is not None else ()
        gone = [broker.broker_id for broker in brokers if not self._seems_alive(broker)]
        return self.replication.links.lost.union(gone)

    def alone(self) -> bool:
        """Return whether this broker is cut off: no connections, and its session has expired."""
        replication, image = self.replication, self._image
        if replication.links.ready or image is None or not replication.may_be_gone():
            return False
        others = [broker for broker in image.brokers if broker.broker_id != self._node_id]
        return any([replication_address(broker) is not None for broker in others])

    def _refused(self, broker_id: int) -> None:
        """Record that a broker refuses connections, and check whether to claim its partitions.

        Such a broker counts as gone, although its session has not expired.
        """
        image = self._image
        broker = None if image is None else image.broker(broker_id)
        if broker is not None:
            self._gone[broker_id] = broker.incarnation
            self._look_at(list(self.replication.logs.values()))

    def _is_mine(self, row: PartitionRow, live: set[int], log: ReplicatedLog) -> bool:
        own = self._node_id
        if self._leaving:
            return False
        if row.leader in live and row.leader != own:
            if log.leading is not None and row.leader_epoch > log.leading.core.epoch:
                log.leading.lost()
            return False
        # In-sync replicas first: others may lack records that all other logs have deleted.
        order = (row.leader, *row.isr, *row.replicas)
        first = next((broker_id for broker_id in order if broker_id in live), None)
        return first == own and not log.claims and not log.copy.broken

    def _pass_on(self) -> None:
        """Request other replicas to claim this broker's partitions, after a disk failure."""
        own, self._passed = self._node_id, self._passed + 1
        ready = self.replication.links.ready
        topics = () if self._image is None else self._image.topics.values()
        for topic in topics:
            for row in () if is_diskless(topic) else topic.partitions:
                others = [
                    replica for replica in row.replicas if replica != own and replica in ready
                ]
                if row.leader == own and row.has_epochs and others:
                    successor = others[self._passed % len(others)]
                    key = PartitionKey(topic.topic_id.bytes, row.index)
                    self.replication.pass_on(key, successor, row.leader_epoch)

    def _row(self, key: PartitionKey) -> PartitionRow | None:
        topic = None if self._image is None else self._image.topic_by_id(UUID(bytes=key.topic_id))
        if topic is None or is_diskless(topic) or key.partition >= len(topic.partitions):
            return None
        return topic.partitions[key.partition]

    # -- handing over

    async def hand_over_all(self, seconds: float) -> None:
        """Hand over all leaderships before a shutdown, for at most `seconds`, and claim no more."""
        self._leaving = True
        until = self._clock.monotonic() + seconds
        successors = {
            log: successor
            for log in list(self.replication.logs.values())
            if (successor := self._successor_of(log)) is not None
        }
        logs = list(successors)
        for start in range(0, len(logs), HAND_OVER_BATCH):
            left = until - self._clock.monotonic()
            if left <= 0:
                break
            batch = {log: successors[log] for log in logs[start : start + HAND_OVER_BATCH]}
            await self.hand_over(batch, min(left, HAND_OVER_MS / 1000))
        kept = sum([self._leader(log.key) == self._node_id for log in logs])
        if kept:
            logger.warning("no replica took over %d partitions before shutdown", kept)

    async def hand_over(self, successors: Mapping[ReplicatedLog, int], seconds: float) -> None:
        """Hand partitions to successors; return once the image shows it, or after `seconds`."""
        for log, successor in successors.items():
            self.replication.hand_over(log, successor, limit_ms=int(seconds * 1000))
        await self._leaders_changed({log.key: self._node_id for log in successors}, seconds)

    async def elect(
        self, successors: Mapping[PartitionKey, int], seconds: float
    ) -> set[PartitionKey]:
        """Request the leaders of partitions to hand over to the given successors, by broker id.

        Return the partitions that their successors lead within `seconds`.
        """
        until = self._clock.monotonic() + seconds
        left = dict(successors)
        while left and self._clock.monotonic() < until:
            before = {}
            for key, broker_id in left.items():  # repeated: a successor may be catching up
                row = self._row(key)
                if row is not None:
                    before[key] = row.leader
                    self.replication.ask_to_give(
                        key, leader=row.leader, epoch=row.leader_epoch, successor=broker_id
                    )
            await self._leaders_changed(before, _ASK_SECONDS)
            left = {key: chosen for key, chosen in left.items() if self._leader(key) != chosen}
        return {key for key, chosen in successors.items() if self._leader(key) == chosen}

    async def _leaders_changed(self, before: Mapping[PartitionKey, int], seconds: float) -> None:
        """Wait until the image has other leaders than `before`, at most `seconds`."""
        until = self._clock.monotonic() + seconds
        waiting = list(before)
        while waiting and self._clock.monotonic() < until:
            await pause(_HANDED_LOOK_SECONDS)
            waiting = [key for key in waiting if self._leader(key) == before[key]]

    def _successor_of(self, log: ReplicatedLog) -> int | None:
        leading, row = log.leading, self._row(log.key)
        if leading is None or row is None:
            return None
        return next(filter(leading.may_inherit, row.replicas), None)

    def _leader(self, key: PartitionKey) -> int | None:
        row = self._row(key)
        return None if row is None else row.leader

    # -- epochs, as `replication.register.Register`

    async def claim(self, keys: Sequence[PartitionKey]) -> Sequence[Claim | PenstockError]:
        histories = await self._histories(keys)
        asked = [
            EpochClaim(
                UUID(bytes=key.topic_id), key.partition, self.replication.known_epoch(key),
                histories.get(key, ()),
            )
            for key in keys
        ]  # fmt: skip
        answer = await self._control.claim_epochs(
            asked, broker_id=self._node_id, incarnation=self._incarnation
        )
        return [
            answer.refused[epoch.key]
            if epoch.key in answer.refused
            else self._claim_of(key, answer.chains[epoch.key])
            for key, epoch in zip(keys, asked, strict=True)
        ]

    async def _histories(self, keys: Iterable[PartitionKey]) -> Mapping[PartitionKey, Chain]:
        """Return the epochs of logs from promoted links, of partitions that never had replicas.

        The last one is the link epoch, with which producers have written since the promotion. All
        epochs begin in durable records: otherwise a crash could leave a log that ends below them.

        Raises:
            StorageError: the logs cannot be synced.
        """
        epochs = {key: epoch for key in keys if (epoch := self._copied_epoch(key)) > 0}
        if not epochs:
            return {}
        synced: asyncio.Future[StorageError | None] = asyncio.get_running_loop().create_future()
        self._commits.flush_then(synced.set_result)
        if (error := await synced) is not None:
            raise error
        found: dict[PartitionKey, Chain] = {}
        for key, epoch in epochs.items():
            if key in self.replication.logs:
                disk = disk_of(self.replication.logs[key].log)
                runs = disk.history
                if not runs or runs[-1].epoch < epoch:
                    runs = (*runs, Link(epoch, disk.end))
                found[key] = (Link(runs[0].epoch, 0), *runs[1:])
        return found

    def _copied_epoch(self, key: PartitionKey) -> int:
        """Return the link epoch of a partition that gets its first replicas after a promotion."""
        row = self._row(key)
        topic = None if self._image is None else self._image.topic_by_id(UUID(bytes=key.topic_id))
        if row is None or topic is None or row.leader != self._node_id:
            return 0
        new = row.leader_epoch == FIRST_EPOCH and len(row.replicas) == 1
        return link_epoch(topic) if new else 0

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
            logger.warning(
                "partition %s keeps its acknowledgement quorum of %d: %s", key, before.acks, error
            )
        return Claim(
            epoch=chain.reservation.reserved,
            chain=_links(chain),
            before=before,
            terms=terms,
            move=move,
        )

    async def open_epochs(self, openings: Sequence[tuple[Led, SealAndOpen]]) -> Sequence[bool]:
        """Store that partitions seal their open epoch and open the next one.

        Returns for each of `openings` whether the control plane accepted it.
        """
        asked = [self._opening(log, effect) for log, effect in openings]
        refused = await self._control.open_epochs(
            asked, broker_id=self._node_id, incarnation=self._incarnation
        )
        for key, error in refused.items():
            logger.warning(
                "the control plane rejected opening an epoch of partition %s: %s", key, error
            )
        if all([self._is_first(log, effect) for log, effect in openings]):
            # In the background, because no client waits for it: the image has named these leaders
            # since the partitions were created.
            task = asyncio.get_running_loop().create_task(self._refresh())
            self._refreshing.add(task)
            task.add_done_callback(self._refreshing.discard)
        else:
            await self._load_image()
        return [opening.key not in refused for opening in asked]

    def _is_first(self, log: Led, effect: SealAndOpen) -> bool:
        row = self._row(log.key)
        named = row is not None and row.leader == self._node_id and not row.move
        return named and effect.target == FIRST_EPOCH

    async def _refresh(self) -> None:
        with suppress(PenstockError):
            await self._load_image()

    async def reserved(self, keys: Sequence[PartitionKey]) -> Mapping[PartitionKey, Reserved]:
        """Return the highest reserved and opened epochs; deleted partitions are missing."""
        asked = {(UUID(bytes=key.topic_id), key.partition): key for key in keys}
        found = await self._control.highest_reserved(list(asked))
        return {
            asked[key]: Reserved(epochs.reserved, epochs.opened) for key, epochs in found.items()
        }

    async def older(self, asked: Sequence[tuple[PartitionKey, int]]) -> Sequence[Chain]:
        """Return for each partition its newest epochs below the given one, at most one page.

        Replicas that missed more epochs than a claim returns need them.
        """
        chains = []
        for key, below in asked:  # few: replicas that missed more epochs than a claim returns
            where = UUID(bytes=key.topic_id), key.partition
            found = await self._control.partition_chains([where], below=below)
            chains.append(_links(found[where]) if where in found else ())
        return chains

    def _opening(self, log: Led, effect: SealAndOpen) -> EpochOpening:
        core = log.leading.core if log.leading is not None else None
        terms = Terms((self._node_id,), 1) if core is None else core.terms
        streams = {} if core is None else core.streams
        held = [broker_id for broker_id in terms.placement if broker_id in streams]
        isr = [broker_id for broker_id in held if streams[broker_id].durable >= effect.end]
        return EpochOpening(
            topic_id=UUID(bytes=log.key.topic_id),
            partition=log.key.partition,
            epoch=effect.epoch,
            end_offset=effect.end,
            replicas=terms.placement,
            ack_quorum=terms.acks,
            isr=tuple(dict.fromkeys([self._node_id, *isr])),
            move=0 if core is None else core.move,
            unclean=core is not None and core.unclean,
        )

    # -- unclean elections

    def _stuck(self, log: ReplicatedLog) -> None:
        """Start an unclean election after a claim has taken long, if the topic allows it."""
        if log.log.config.unclean_leader_election_enable:
            self._elect_remaining(log)

    def _elect_remaining(self, log: ReplicatedLog) -> None:
        """Complete a claim without the missing replicas, if their brokers are not registered."""
        leading, image = log.leading, self._image
        if leading is None or image is None:
            return
        followers = leading.core.followers
        missing = [follower for follower in followers if followers[follower].answer is None]
        if any([image.broker(broker_id) is not None for broker_id in missing]):
            return  # it may still answer
        if leading.claim_uncleanly():
            self.replication.limit(log, leading, HAND_OVER_MS)
            logger.warning(
                "%s: unclean leader election, because brokers %s are gone; records may be lost",
                log.log.topic_partition,
                missing,
            )
            self.replication.stir(log)

    async def elect_uncleanly(
        self, keys: Sequence[PartitionKey], seconds: float
    ) -> set[PartitionKey]:
        """Request elections of the remaining replicas, which may lose acknowledged records.

        Return the partitions that have a new leader epoch within `seconds`.
        """
        until = self._clock.monotonic() + seconds
        left = {key: row.leader_epoch for key in keys if (row := self._row(key)) is not None}
        led: set[PartitionKey] = set()
        while left and self._clock.monotonic() < until:
            for key, epoch in left.items():
                row = self._row(key)
                self._request_unclean_election(key, epoch, () if row is None else row.replicas)
            await pause(_ASK_SECONDS)
            led |= {key for key, epoch in left.items() if self._epoch(key) > epoch}
            left = {key: epoch for key, epoch in left.items() if key not in led}
        return led

    def _request_unclean_election(
        self, key: PartitionKey, epoch: int, brokers: Iterable[int]
    ) -> None:
        """Request an unclean election from each of `brokers` whose claim cannot complete."""
        asked = encode_row(key, ElectUncleanly(epoch))
        for broker_id in brokers:
            if broker_id != self._node_id:
                self.replication.links.send(broker_id, [(asked, (), 0)])
            elif key in self.replication.logs:
                self._elect_remaining(self.replication.logs[key])

    def _epoch(self, key: PartitionKey) -> int:
        row = self._row(key)
        return -1 if row is None else row.leader_epoch

    # -- leaders that reach too few replicas

    async def _resign(self) -> None:
        replication, image = self.replication, self._image
        brokers = () if image is None else image.brokers
        live = {broker.broker_id for broker in brokers if replication_address(broker) is not None}
        cut = live - {self._node_id} - replication.links.ready.keys()
        resigned = self._cut_off.look(
            list(replication.logs.values()) if cut else (),
            now=self._clock.monotonic(),
            live=live,
            row_of=lambda log: self._row(log.key),
        )
        if not resigned:
            return
        refused = await self._control.resign(
            list(resigned.values()), broker_id=self._node_id, incarnation=self._incarnation
        )
        logger.warning(
            "resigned leadership of %d partitions: brokers %s are unreachable from this broker",
            len(resigned) - len(refused), ", ".join(map(str, sorted(cut))),
        )  # fmt: skip
        for log, resignation in resigned.items():
            if resignation.key not in refused and log.leading is not None:
                log.leading.lost()
                replication.stir(log)
        await self._load_image()

    def _hear_leaders(self) -> None:
        """Report leaders that have connected with newer epochs than the image has.

        Clients thus get the new leader before the image shows it.
        """
        joined = list(self.replication.joined)
        self.replication.joined.clear()
        found: dict[tuple[UUID, int], tuple[int, int]] = {}
        for log in joined:
            row, leader = self._row(log.key), log.copy.leader
            if row is not None and leader is not None and leader[1] > row.leader_epoch:
                found[UUID(bytes=log.key.topic_id), row.index] = leader
        if found:
            self._apply_leaders(found)

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
                failed = self._commits.failed
                if failed is not None:
                    self.replication.end(failed)
                    self._pass_on()
                await self._look_at_lag()
                await self._resign()
                self._hand_back()
            except PenstockError as error:
                logger.warning("could not store the state of replicas, retrying: %s", error)
            except Exception:
                logger.exception("a check of replicated partitions failed")

    def _hand_back(self) -> None:
        if self._leaving:
            return
        led = ((log, self._row(log.key)) for log in self.replication.logs.values())
        successors = self._balance.due(self._clock.monotonic(), self._image, led)
        for log, successor in successors.items():
            self.replication.hand_over(log, successor)
        if successors:
            logger.info("returning %d partitions to their preferred leaders", len(successors))

    async def _look_at_lag(self) -> None:
        image, live = self._image, self._live
        brokers = set() if image is None else {broker.broker_id for broker in image.brokers}
        self._live = brokers
        touched = self.replication.take_touched()
        changes = self._in_sync.look(
            touched if live == brokers else list(self.replication.logs.values()),
            now_ms=self._clock.now_ms(),
            live=brokers,
            row_of=lambda log: self._row(log.key),
        )
        if changes:
            await self._control.set_isr(
                changes, broker_id=self._node_id, incarnation=self._incarnation
            )
            await self._load_image()


def _links(chain: PartitionChain) -> Chain:
    return tuple(Link(epoch.epoch, epoch.start_offset) for epoch in chain.epochs)
