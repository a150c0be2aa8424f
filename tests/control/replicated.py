"""Fixtures of replicated partitions: three brokers, topics, and a model of their epochs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from penstock.control import (
    ControlPlane,
    EpochClaim,
    EpochOpening,
    PartitionChain,
    PartitionEpoch,
)
from penstock.control.values.diskless import PartitionKey

TOPIC, OTHER, SINGLE, DISKLESS = (UUID(int=number) for number in (71, 72, 73, 74))
PROCESSES: Mapping[int, UUID] = {1: UUID(int=101), 2: UUID(int=102), 3: UUID(int=103)}
REPLICAS = (1, 2, 3)


async def register(plane: ControlPlane, broker_id: int, incarnation: UUID) -> None:
    await plane.register_broker(
        broker_id=broker_id, host="h", port=9, rack=None, incarnation=incarnation
    )


async def create(
    plane: ControlPlane,
    name: str = "replicated",
    topic_id: UUID = TOPIC,
    *,
    partitions: Sequence[Sequence[int]] = (REPLICAS,) * 4,
    configs: Mapping[str, str] | None = None,
    min_insync_replicas: int = 1,
) -> None:
    await plane.create_topic(
        name=name,
        topic_id=topic_id,
        partitions=partitions,
        configs=configs or {},
        min_insync_replicas=min_insync_replicas,
    )


async def furnish(plane: ControlPlane, partitions: int = 4) -> list[PartitionKey]:
    """Three brokers and a topic of which all have replicas; the keys of its partitions."""
    for broker_id, incarnation in PROCESSES.items():
        await register(plane, broker_id, incarnation)
    await create(plane, partitions=[REPLICAS] * partitions)
    return [(TOPIC, number) for number in range(partitions)]


def claims(keys: Iterable[PartitionKey], above: int = 0) -> list[EpochClaim]:
    return [EpochClaim(*key, above) for key in keys]


def opening(
    key: PartitionKey,
    epoch: int,
    end: int = 10,
    *,
    replicas: tuple[int, ...] = REPLICAS,
    ack_quorum: int = 2,
    isr: tuple[int, ...] | None = None,
    move: int = 0,
    unclean: bool = False,
) -> EpochOpening:
    isr = replicas if isr is None else isr
    return EpochOpening(*key, epoch, end, replicas, ack_quorum, isr, move, unclean)


async def claim(
    plane: ControlPlane, keys: Iterable[PartitionKey], broker_id: int = 1, above: int = 0
) -> dict[PartitionKey, int]:
    """The epochs that a broker gets, where it is not refused."""
    got = await plane.claim_epochs(
        claims(keys, above), broker_id=broker_id, incarnation=PROCESSES[broker_id]
    )
    return {key: chain.reservation.reserved for key, chain in got.chains.items()}


async def open_all(
    plane: ControlPlane, epochs: Mapping[PartitionKey, int], broker_id: int = 1, end: int = 10
) -> dict[PartitionKey, str]:
    """Open reserved epochs; what was refused, by name of the error."""
    refused = await plane.open_epochs(
        [opening(key, epoch, end) for key, epoch in epochs.items()],
        broker_id=broker_id,
        incarnation=PROCESSES[broker_id],
    )
    return names(refused)


def names(refused: Mapping[PartitionKey, Exception]) -> dict[PartitionKey, str]:
    return {key: type(error).__name__ for key, error in refused.items()}


def epoch(
    number: int,
    start: int,
    end: int | None = None,
    *,
    leader: int = 1,
    replicas: tuple[int, ...] = REPLICAS,
    ack_quorum: int = 2,
    incarnation: UUID | None = None,
) -> PartitionEpoch:
    process = PROCESSES[leader] if incarnation is None else incarnation
    return PartitionEpoch(number, start, end, replicas, ack_quorum, leader, process)


async def chain(plane: ControlPlane, key: PartitionKey) -> PartitionChain:
    [found] = (await plane.partition_chains([key])).values()
    return found


def assert_grown(before: PartitionChain, after: PartitionChain) -> None:
    """Assert that earlier epochs are unchanged, except for the end of the open one."""
    assert after.reservation.reserved >= before.reservation.reserved
    assert after.epochs[: len(before.epochs) - 1] == before.epochs[:-1]
    last = after.epochs[len(before.epochs) - 1]
    if before.epochs[-1].end_offset is None:
        assert last._replace(end_offset=None) == before.epochs[-1]
    else:
        assert last == before.epochs[-1]
    assert_sound(after)


def assert_sound(found: PartitionChain) -> None:
    """A chain has rising epochs without gaps in between, and one that is open: the last."""
    for earlier, following in zip(found.epochs, found.epochs[1:], strict=False):
        assert earlier.epoch < following.epoch
        assert earlier.start_offset <= following.start_offset == earlier.end_offset
    assert found.epochs[-1].end_offset is None
    assert found.epochs[-1].epoch == found.reservation.opened <= found.reservation.reserved


@dataclass
class Opened:
    """An epoch of the model."""

    number: int
    start: int
    replicas: tuple[int, ...]
    ack_quorum: int
    leader: int
    process: UUID | None


@dataclass
class Model:
    """A reference model of a partition: all reservations and all opened epochs."""

    reservations: list[tuple[int, int, UUID | None]]
    opened: list[Opened]
    isr: tuple[int, ...]
    registered: dict[int, UUID] = field(default_factory=dict)

    def claim(self, broker_id: int, above: int) -> int | str:
        number, owner, process = self.reservations[-1]
        if broker_id not in self.opened[-1].replicas:
            return "NotReplica"
        if above > number:
            return "DatabaseSetBack"
        mine = (owner, process) == (broker_id, self.registered[broker_id])
        never_opened = all(opened_epoch.number != number for opened_epoch in self.opened)
        if mine and never_opened and above < number:
            return number
        self.reservations.append((number + 1, broker_id, self.registered[broker_id]))
        return number + 1

    def open(self, broker_id: int, asked: EpochOpening) -> str | None:
        process = self.registered[broker_id]
        made = Opened(
            asked.epoch, asked.end_offset, asked.replicas, asked.ack_quorum, broker_id, process
        )
        if made == self.opened[-1]:
            return None
        if self.reservations[-1] != (asked.epoch, broker_id, process):
            return "StaleEpoch"
        if any(opened_epoch.number == asked.epoch for opened_epoch in self.opened):
            return "StaleEpoch"
        if asked.end_offset < self.opened[-1].start:
            return "StaleEpoch"
        count = len(asked.replicas)
        if count == 0 or len(set(asked.replicas)) < count:
            return "InvalidReplicas"
        if not 1 <= asked.ack_quorum <= count or 2 * asked.ack_quorum <= count:
            return "InvalidQuorum"
        if broker_id not in asked.replicas:
            return "NotReplica"
        if not self.is_in_sync(asked.isr, asked.replicas, broker_id):
            return "InvalidReplicas"
        self.opened.append(made)
        self.isr = asked.isr
        return None

    def set_isr(self, broker_id: int, number: int, isr: tuple[int, ...]) -> str | None:
        last = self.opened[-1]
        if (last.number, last.leader) != (number, broker_id):
            return "StaleEpoch"
        if last.process != self.registered[broker_id]:
            return "StaleEpoch"
        if not self.is_in_sync(isr, last.replicas, broker_id):
            return "InvalidReplicas"
        self.isr = isr
        return None

    @staticmethod
    def is_in_sync(isr: tuple[int, ...], replicas: tuple[int, ...], leader: int) -> bool:
        each_once = len(set(isr)) == len(isr)
        return leader in isr and each_once and all(replica in replicas for replica in isr)

    def chain(self) -> tuple[PartitionEpoch, ...]:
        ends: list[int | None] = [opened_epoch.start for opened_epoch in self.opened[1:]]
        return tuple(
            PartitionEpoch(
                opened_epoch.number,
                opened_epoch.start,
                end,
                opened_epoch.replicas,
                opened_epoch.ack_quorum,
                opened_epoch.leader,
                opened_epoch.process,
            )
            for opened_epoch, end in zip(self.opened, [*ends, None], strict=True)
        )
