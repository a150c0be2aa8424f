"""Pages of queues (share groups): list, records by state, dead letters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from msgspec import Struct

from penstock.apps.console.pages.groups import SHARE, call_all
from penstock.apps.console.pages.resetting import leader_offsets
from penstock.apps.console.rendering import Pages
from penstock.apps.console.requests import CallerRequests
from penstock.apps.console.tables import Column, Table
from penstock.base.errors import PenstockError
from penstock.base.http_routes import Routes
from penstock.base.ids import TopicPartition
from penstock.broker.admin.access import DESCRIBE_GROUP, OPEN, Caller, Needs, caller_of
from penstock.broker.admin.views import QueueViews
from penstock.broker.assembly import Assembly
from penstock.records.extents import EARLIEST

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response


class ListedQueue(Struct, frozen=True, kw_only=True):
    """Share group; `broker` coordinates it. The topic is empty if it is not set or not visible."""

    name: str
    state: str
    broker: int
    dead_letter_topic: str
    attempts: int


class QueuePartition(Struct, frozen=True, kw_only=True):
    """Records of a partition by their state for the group.

    `available` includes the records that no member has ever acquired; it is None if the partition's
    end is unknown.
    """

    topic: str
    partition: int
    start: int
    end: int | None
    available: int | None
    acquired: int
    archiving: int


QUEUES: Final[Table[ListedQueue]] = Table(
    Column(name="name", title="Queue", key=lambda row: row.name),
    Column(name="state", title="State", key=lambda row: row.state),
    Column(name="broker", title="Coordinator", key=lambda row: row.broker, number=True),
    Column(name="attempts", title="Deliveries at most", key=lambda row: row.attempts, number=True),
    Column(name="dead_letters", title="Dead letter topic", key=lambda row: row.dead_letter_topic),
    sort="name",
    text=lambda row: row.name,
    search="Search queues",
)

PARTITIONS: Final[Table[QueuePartition]] = Table(
    Column(name="topic", title="Topic", key=lambda row: (row.topic, row.partition)),
    Column(name="partition", title="Partition", key=lambda row: row.partition, number=True),
    Column(name="start", title="Oldest unfinished", key=lambda row: row.start, number=True),
    Column(name="end", title="End offset", key=lambda row: row.end, number=True),
    Column(name="available", title="Available", key=lambda row: row.available, number=True),
    Column(name="acquired", title="Acquired", key=lambda row: row.acquired, number=True),
    Column(name="archiving", title="Archiving", key=lambda row: row.archiving, number=True),
    sort="topic",
    text=lambda row: row.topic,
    search="Search topics",
)


class QueuePages(Struct, frozen=True, kw_only=True):
    broker: Assembly
    pages: Pages
    requests: CallerRequests

    routes: ClassVar[Routes[Any, Needs]] = Routes()

    @routes.add("GET /console/queues", OPEN, QUEUES.parameters)
    async def queues(self, request: Request) -> Response:
        """Show the share groups that the caller may describe, of all reachable brokers."""
        caller = caller_of(request)
        body = {"states_filter": (), "types_filter": (SHARE,)}
        answers, silent = await call_all(self.broker, self.requests, caller, "ListGroups", body)
        found = [
            self._queue(caller, row.group_id, row.group_state, broker_id)
            for broker_id, answer in answers.items()
            for row in answer.groups
            if caller.rights.allows("describe", "group", row.group_id)
        ]
        return self.pages.show(
            request,
            "queues.html",
            title="Queues",
            table=QUEUES.view(request, found),
            silent=silent,
        )

    def _queue(self, caller: Caller, name: str, state: str, broker_id: int) -> ListedQueue:
        settings = self.broker.share.settings_of(name)
        topic = settings.dead_letter_topic
        return ListedQueue(
            name=name,
            state=state,
            broker=broker_id,
            dead_letter_topic=topic if caller.sees(topic) else "",
            attempts=settings.limits.delivery_count_limit,
        )

    @routes.add("GET /console/queues/{group:path}", DESCRIBE_GROUP, PARTITIONS.parameters)
    async def queue(self, request: Request) -> Response:
        """Show a share group's records by state, and its dead letters."""
        broker, caller = self.broker, caller_of(request)
        views = QueueViews(node_id=broker.node_id, cluster=broker.cluster, share=broker.share)
        found = await views.queue(request)
        rows = await self._partitions(found["partitions"])
        topic = found["dead_letter_topic"]
        troubles = [
            trouble
            for trouble in broker.share.dead_letters.troubles.values()
            if trouble.group == found["group_id"] and caller.sees(trouble.topic)
        ]
        available = [row.available for row in rows]
        return self.pages.show(
            request,
            "queue.html",
            title=found["group_id"],
            group=found["group_id"],
            table=PARTITIONS.view(request, rows),
            available=None if None in available else sum(count or 0 for count in available),
            acquired=sum(row.acquired for row in rows),
            archiving=sum(row.archiving for row in rows),
            attempts=found["delivery_count_limit"],
            dead_letter_topic=topic,
            dead_letters=await self._dead_letters(caller, found["group_id"], topic),
            troubles=troubles,
        )

    async def _partitions(self, found: Sequence[Mapping[str, Any]]) -> list[QueuePartition]:
        places = [TopicPartition(row["topic"], row["partition"]) for row in found]
        ends = await self.broker.end_offsets.recent(places)
        return [_partition(row, ends.get(place)) for row, place in zip(found, places, strict=True)]

    async def _dead_letters(self, caller: Caller, group: str, topic: str | None) -> int | None:
        """Return the number of dead letters that were not redriven, of all groups of the topic.

        None if the group has no dead letter topic, or its leaders do not answer.
        """
        served = None if topic is None else self.broker.cluster.image.topics.get(topic)
        if served is None or not caller.rights.allows("describe", "topic", served.name):
            return None
        places = [TopicPartition(served.name, row.index) for row in served.partitions]
        ends = await self.broker.end_offsets.recent(places)
        from penstock.apps.log.redrive import redrive_group

        stored = await self.broker.control.committed_offsets(redrive_group(group), None)
        redriven = {TopicPartition(row.topic, row.partition): row.offset for row in stored}
        try:
            first = await leader_offsets(self.requests, caller, self.broker, places, EARLIEST)
        except PenstockError:
            return None
        if not all(place in ends for place in places):
            return None
        return sum(
            max(0, ends[place] - max(first[place], redriven.get(place, 0))) for place in places
        )


def _partition(row: Mapping[str, Any], end: int | None) -> QueuePartition:
    unread = None if end is None else max(0, end - row["end_offset"])
    return QueuePartition(
        topic=row["topic"],
        partition=row["partition"],
        start=row["start_offset"],
        end=end,
        available=None if unread is None else row["available"] + unread,
        acquired=row["acquired"],
        archiving=row["archiving"],
    )
