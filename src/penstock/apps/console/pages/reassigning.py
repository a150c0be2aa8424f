"""Plans of reassignments as the console previews and orders them, without I/O.

A plan is computed from the metadata image, with the placement of `penstock broker drain` and
`penstock topic reassign`: as few replicas as possible move, and the new ones are in other racks if
possible. Each planned change is checked as the broker checks AlterPartitionReassignments.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from penstock.apps.console.forms import Form, InvalidField
from penstock.base.errors import PenstockError
from penstock.base.settings import INT_MAX, whole_number
from penstock.broker.configuration.configs import Levels, excluded_brokers
from penstock.broker.handlers.replication import Minimums, reassignment_of
from penstock.broker.metadata.leaders import is_diskless
from penstock.broker.net.errors import InvalidReplicationFactor
from penstock.replication.placement import placed_again

if TYPE_CHECKING:
    from penstock.control import Broker, MetadataImage, Partition, Topic

ORDERED_AT_ONCE: Final = 1_000
"""Largest number of partitions in one AlterPartitionReassignments request."""
FIELDS: Final = ("partitions", "brokers", "factor", "replicas")
"""Fields of the form that reassigns partitions of a topic."""
REPLICAS_MAX: Final = 1_000
"""Largest number of ids in a field."""


class Planned(Struct, frozen=True, kw_only=True):
    """Change of a partition's replicas; `refusal` is the reason if it is not possible.

    `pending` means that a reassignment is in progress, which the change replaces.
    """

    topic: str
    partition: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    pending: bool
    refusal: str = ""

    @property
    def adding(self) -> list[int]:
        return [replica for replica in self.after if replica not in self.before]

    @property
    def removing(self) -> list[int]:
        if self.refusal:
            return []
        return [replica for replica in self.before if replica not in self.after]


class Choice(Struct, frozen=True, kw_only=True):
    """Values of the form that reassigns partitions of a topic.

    `exact` are the replicas of each partition, the preferred leader first. If it is empty, `factor`
    replicas are placed on `brokers`.
    """

    partitions: frozenset[int]
    brokers: tuple[int, ...]
    factor: int
    exact: tuple[int, ...] = ()


def future_replicas(row: Partition) -> tuple[int, ...]:
    """Return the replicas of a partition after its reassignment in progress, if there is one."""
    return row.target if row.move else row.replicas


def eligible(image: MetadataImage, levels: Levels, excluded: int | None = None) -> list[Broker]:
    """Return the brokers that may get replicas, without the broker `excluded`."""
    closed = excluded_brokers(levels)
    return [
        broker
        for broker in image.storing
        if broker.broker_id not in closed and broker.broker_id != excluded
    ]


def stored(image: MetadataImage) -> Iterator[tuple[Topic, Partition]]:
    """Yield the partitions whose replicas are on brokers, in the order of topics."""
    for _, topic in sorted(image.topics.items()):
        if not is_diskless(topic):
            for row in topic.partitions:
                yield topic, row


def plan_drain(image: MetadataImage, levels: Levels, broker_id: int) -> list[Planned]:
    """Return the changes that move all replicas of a broker to other brokers."""
    others, minimums = eligible(image, levels, broker_id), Minimums(levels)
    return [
        _planned(image, minimums, topic, row, others)
        for topic, row in stored(image)
        if broker_id in future_replicas(row)
    ]


def plan_topic(image: MetadataImage, levels: Levels, topic: Topic, choice: Choice) -> list[Planned]:
    """Return the changes of a topic's partitions; partitions without a change are left out."""
    brokers = [broker for broker in image.brokers if broker.broker_id in choice.brokers]
    minimums = Minimums(levels)
    planned = [
        _planned(image, minimums, topic, row, brokers, choice)
        for row in topic.partitions
        if row.index in choice.partitions
    ]
    now = {row.index: future_replicas(row) for row in topic.partitions}
    return [row for row in planned if row.refusal or row.after != now[row.partition]]


def read_choice(form: Form, topic: Topic, image: MetadataImage, levels: Levels) -> Choice:
    """Return the values of the form for a topic, with the defaults of empty fields.

    Raises:
        InvalidField: a field is invalid.
    """
    count = len(topic.partitions)
    default = [broker.broker_id for broker in eligible(image, levels)]
    brokers = read_ids(form.text("brokers"), "Brokers", INT_MAX) or default
    known = {broker.broker_id for broker in image.brokers}
    if unknown := [broker_id for broker_id in brokers if broker_id not in known]:
        raise InvalidField(f"Brokers: broker {unknown[0]} is not registered")
    factor = len(future_replicas(topic.partitions[0]))
    if form.text("factor"):
        factor = form.number("factor", "Replicas", REPLICAS_MAX)
    return Choice(
        partitions=frozenset(
            read_ids(form.text("partitions"), "Partitions", count - 1) or range(count)
        ),
        brokers=tuple(brokers),
        factor=factor,
        exact=tuple(read_ids(form.text("replicas"), "Exact replicas", INT_MAX)),
    )


def read_ids(text: str, title: str, maximum: int) -> list[int]:
    """Return numbers in the form `0, 2-5`, in their order; raises InvalidField."""
    found: list[int] = []
    for part in filter(None, map(str.strip, text.split(","))):
        first, dash, last = part.partition("-")
        low = whole_number(first.strip(), maximum)
        high = whole_number(last.strip(), maximum) if dash else low
        if low is None or high is None or not 0 <= high - low < REPLICAS_MAX:
            raise InvalidField(
                f"{title} {text!r}: {part!r} must be a number of at most {maximum:,}, or a range"
                " such as 0-3"
            )
        found += range(low, high + 1)
        if len(found) > REPLICAS_MAX:
            raise InvalidField(f"{title} {text[:64]!r}: at most {REPLICAS_MAX:,} numbers")
    return found


def orders(planned: Sequence[Planned], *, cancel: bool = False) -> Iterator[Mapping[str, Any]]:
    """Yield the bodies of AlterPartitionReassignments requests for the possible changes."""
    possible = [row for row in planned if not row.refusal]
    for start in range(0, len(possible), ORDERED_AT_ONCE):
        topics: dict[str, list[dict[str, Any]]] = {}
        for row in possible[start : start + ORDERED_AT_ONCE]:
            replicas = None if cancel else row.after
            entry = {"partition_index": row.partition, "replicas": replicas}
            topics.setdefault(row.topic, []).append(entry)
        yield {
            "timeout": 30_000,
            "allow_replication_factor_change": True,
            "topics": [{"name": name, "partitions": rows} for name, rows in topics.items()],
        }


def pending(topic: Topic) -> list[Planned]:
    """Return the reassignments of a topic that are in progress."""
    return [
        Planned(
            topic=topic.name,
            partition=row.index,
            before=row.replicas,
            after=row.target,
            pending=True,
        )
        for row in topic.partitions
        if row.move
    ]


def _planned(
    image: MetadataImage,
    minimums: Minimums,
    topic: Topic,
    row: Partition,
    brokers: Collection[Broker],
    choice: Choice | None = None,
) -> Planned:
    """Return the change of a partition to replicas on `brokers`; without `choice`, as many."""
    after: tuple[int, ...] = ()
    refusal = ""
    try:
        exact = () if choice is None else choice.exact
        factor = len(future_replicas(row)) if choice is None else choice.factor
        after = exact or _placed(topic, row, brokers, factor)
        reassignment_of(image, minimums, (topic.name, row.index), after)
    except PenstockError as error:
        refusal = str(error)
    return Planned(
        topic=topic.name,
        partition=row.index,
        before=row.replicas,
        after=after,
        pending=bool(row.move),
        refusal=refusal,
    )


def _placed(
    topic: Topic, row: Partition, brokers: Collection[Broker], factor: int
) -> tuple[int, ...]:
    if not 1 <= factor <= len(brokers):
        raise InvalidReplicationFactor(
            f"{topic.name}-{row.index} cannot have {factor} replicas: {len(brokers)} brokers may"
            " get replicas"
        )
    return placed_again(
        brokers,
        topic.topic_id,
        row.index,
        replicas=future_replicas(row),
        replication_factor=factor,
    )
