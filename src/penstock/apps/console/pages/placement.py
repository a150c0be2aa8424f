"""Pages of replicas: replicas of a broker, drain, reassign, and reassignments in progress.

Draining a broker excludes it from new replicas (`placement.excluded.brokers`), and orders
reassignments of its replicas, as `penstock broker drain` does. The progress of a reassignment is
known to the leader of the partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final

from msgspec import Struct

from penstock.apps.console.formats import counted, path
from penstock.apps.console.forms import Form, InvalidField, form_of
from penstock.apps.console.pages.brokers import ListedBroker, listed_broker
from penstock.apps.console.pages.partitions import behind, records_behind
from penstock.apps.console.pages.reassigning import (
    FIELDS,
    Choice,
    Planned,
    eligible,
    future_replicas,
    orders,
    pending,
    plan_drain,
    plan_topic,
    read_choice,
    stored,
)
from penstock.apps.console.rendering import Pages
from penstock.apps.console.requests import CallerRequests, check_rows
from penstock.apps.console.tables import Column, Filter, Table
from penstock.base.errors import PenstockError
from penstock.base.http_routes import Routes
from penstock.base.ids import TopicPartition
from penstock.broker.admin.access import DESCRIBE, Caller, Needs, caller_of
from penstock.broker.admin_app import status_of
from penstock.broker.assembly import Assembly
from penstock.broker.configuration.configs import Operation
from penstock.broker.configuration.settings import EXCLUDED_BROKERS
from penstock.broker.handlers.configs import BROKER
from penstock.broker.metadata.leaders import is_diskless
from penstock.broker.net.errors import UnknownTopicOrPartition
from penstock.control import Partition, Topic
from penstock.security import CLUSTER

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

ALTER: Final = Needs(operation="alter")
DRAIN: Final = "/console/brokers/{broker}/drain"
UNDRAIN: Final = "/console/brokers/{broker}/undrain"
REASSIGN: Final = "/console/topics/{topic}/reassign"
CANCEL: Final = "/console/topics/{topic}/reassign-cancel"
SIZES_SECONDS: Final = 2.0
"""Longest wait for the sizes that a broker reports."""

Place = tuple[str, int]


class Replica(Struct, frozen=True, kw_only=True):
    """Replica on a broker; `lag` is the number of offsets that it lacks, None if unknown."""

    topic: str
    row: Partition
    broker_id: int
    in_sync: bool
    lag: int | None

    @property
    def role(self) -> str:
        if self.row.leader == self.broker_id:
            return "leader"
        return "follower" if self.broker_id in self.row.replicas else "copying"

    @property
    def leaves(self) -> bool:
        return self.broker_id in self.row.removing


class Moving(Struct, frozen=True, kw_only=True):
    """Reassignment in progress; `left` has the offsets to copy by added broker, None if unknown."""

    topic: str
    row: Partition
    left: Mapping[int, int | None]

    @property
    def left_in_all(self) -> int | None:
        known = [lag for lag in self.left.values() if lag is not None]
        return sum(known) if len(known) == len(self.left) else None


REPLICAS: Final[Table[Replica]] = Table(
    Column(name="topic", title="Topic", key=lambda row: (row.topic, row.row.index)),
    Column(name="partition", title="Partition", key=lambda row: row.row.index, number=True),
    Column(name="leader", title="Leader", key=lambda row: row.row.leader, number=True),
    Column(name="role", title="Role", key=lambda row: row.role),
    Column(name="lag", title="Offsets behind", key=lambda row: row.lag, number=True),
    Column(name="state", title="State", key=lambda row: row.in_sync),
    sort="topic",
    text=lambda row: row.topic,
    search="Search topics",
    filters=(
        Filter(
            name="show",
            title="Show",
            choices={"": "All replicas", "behind": "Out of sync", "leaving": "Moving away"},
            test=lambda row, value: row.leaves if value == "leaving" else not row.in_sync,
        ),
    ),
)

MOVES: Final[Table[Moving]] = Table(
    Column(name="topic", title="Topic", key=lambda row: (row.topic, row.row.index)),
    Column(name="partition", title="Partition", key=lambda row: row.row.index, number=True),
    Column(name="leader", title="Leader", key=lambda row: row.row.leader, number=True),
    Column(name="replicas", title="Replicas"),
    Column(name="adding", title="Adding"),
    Column(name="removing", title="Removing"),
    Column(name="left", title="Offsets to copy", key=lambda row: row.left_in_all, number=True),
    sort="topic",
    text=lambda row: row.topic,
    search="Search topics",
)

PLANNED: Final[Table[Planned]] = Table(
    Column(name="topic", title="Topic", key=lambda row: (row.topic, row.partition)),
    Column(name="partition", title="Partition", key=lambda row: row.partition, number=True),
    Column(name="before", title="Replicas now"),
    Column(name="after", title="Replicas then"),
    Column(name="copied", title="Copied", number=True),
    Column(name="effect", title="Effect", key=lambda row: not row.refusal),
    sort="topic",
    kept=(*FIELDS, "preview"),
)


class PlacementPages(Struct, frozen=True, kw_only=True):
    broker: Assembly
    pages: Pages
    requests: CallerRequests

    routes: ClassVar[Routes[Any, Needs]] = Routes()

    # -- replicas and reassignments in progress -------------------------------------------------

    @routes.add("GET /console/brokers/{broker}/replicas", DESCRIBE, REPLICAS.parameters)
    async def replicas(self, request: Request) -> Response:
        """Show the replicas of a broker in the topics that the caller may describe."""
        listed = await listed_broker(self.broker, request)
        broker_id, live = listed.broker.broker_id, self.broker.cluster.live
        held = [
            (topic, row)
            for topic, row in stored(self.broker.cluster.image)
            if broker_id in row.copies and caller_of(request).sees(topic.name)
        ]
        ends = await self._own_ends(held) if broker_id == self.broker.node_id else {}
        rows = [
            Replica(
                topic=topic.name,
                row=row,
                broker_id=broker_id,
                in_sync=broker_id in row.isr and broker_id not in behind(row, live),
                lag=self._lag(topic, row, broker_id, ends),
            )
            for topic, row in held
        ]
        return self.pages.show(
            request,
            "broker_replicas.html",
            title=f"Replicas of broker {broker_id}",
            row=listed,
            table=REPLICAS.view(request, rows),
        )

    @routes.add("GET /console/reassignments", DESCRIBE, MOVES.parameters)
    async def reassignments(self, request: Request) -> Response:
        """Show the reassignments in progress of topics that the caller may describe."""
        await self.broker.cluster.look()
        caller = caller_of(request)
        found = [
            (topic, row)
            for topic, row in stored(self.broker.cluster.image)
            if row.move and caller.sees(topic.name)
        ]
        ends = await self._own_ends(found)
        rows = [
            Moving(
                topic=topic.name,
                row=row,
                left={added: self._lag(topic, row, added, ends) for added in row.adding},
            )
            for topic, row in found
        ]
        return self.pages.show(
            request,
            "reassignments.html",
            title="Reassignments",
            table=MOVES.view(request, rows),
            may_cancel=caller.rights.allows("alter", "cluster", CLUSTER),
        )

    async def _own_ends(
        self, rows: Iterable[tuple[Topic, Partition]]
    ) -> Mapping[TopicPartition, int]:
        """Return the end offsets of partitions of which this broker's replica is not in sync."""
        node_id = self.broker.node_id
        return await self.broker.end_offsets.recent(
            [
                TopicPartition(topic.name, row.index)
                for topic, row in rows
                if node_id in row.copies and node_id not in row.isr
            ]
        )

    def _lag(
        self, topic: Topic, row: Partition, replica: int, ends: Mapping[TopicPartition, int]
    ) -> int | None:
        end = ends.get(TopicPartition(topic.name, row.index))
        return records_behind(self.broker, topic, row, replica, end)

    # -- drain ----------------------------------------------------------------------------------

    @routes.add(f"GET {DRAIN}", ALTER, PLANNED.parameters)
    async def preview_drain(self, request: Request) -> Response:
        return await self._drain_page(request)

    @routes.add(f"POST {DRAIN}", ALTER, PLANNED.parameters)
    async def drain(self, request: Request) -> Response:
        """Exclude a broker from new replicas, and order moves of its replicas."""
        listed, caller = await listed_broker(self.broker, request), caller_of(request)
        broker_id = listed.broker.broker_id
        try:
            form_of(request).check_confirmed(str(broker_id))
            await self._exclude(caller, broker_id, Operation.APPEND)
            planned = await self._drain_plan(broker_id)
            done = await self._order(caller, planned)
        except PenstockError as error:
            return await self._drain_page(request, error)
        return self.pages.done(
            path("brokers", broker_id),
            f"Broker {broker_id}: {counted(done, 'replica')} ordered to move away.{_left(planned)}",
        )

    @routes.add(f"GET {UNDRAIN}", ALTER)
    async def preview_undrain(self, request: Request) -> Response:
        return await self._undrain_page(request)

    @routes.add(f"POST {UNDRAIN}", ALTER)
    async def undrain(self, request: Request) -> Response:
        """Allow new replicas on a broker again."""
        broker_id = (await listed_broker(self.broker, request)).broker.broker_id
        try:
            await self._exclude(caller_of(request), broker_id, Operation.SUBTRACT)
        except PenstockError as error:
            return await self._undrain_page(request, error)
        message = f"Broker {broker_id} may get new replicas."
        return self.pages.done(path("brokers", broker_id), message)

    async def _exclude(self, caller: Caller, broker_id: int, operation: Operation) -> None:
        """Change the cluster's list of brokers that get no new replicas."""
        change = {
            "name": EXCLUDED_BROKERS,
            "config_operation": int(operation),
            "value": str(broker_id),
        }
        resource = {"resource_type": BROKER, "resource_name": "", "configs": [change]}
        answer = await self.requests.call(
            caller, "IncrementalAlterConfigs", {"resources": [resource], "validate_only": False}
        )
        check_rows(answer.responses, EXCLUDED_BROKERS)

    async def _drain_plan(self, broker_id: int) -> list[Planned]:
        image, levels = self.broker.cluster.image, self.broker.topic_admin.levels()
        return await asyncio.to_thread(plan_drain, image, levels, broker_id)

    async def _drain_page(self, request: Request, error: PenstockError | None = None) -> Response:
        listed = await listed_broker(self.broker, request)
        planned = await self._drain_plan(listed.broker.broker_id)
        return await self._plan_page(
            request,
            planned,
            template="broker_drain.html",
            title=f"Drain broker {listed.broker.broker_id}",
            error=error,
            row=listed,
        )

    async def _undrain_page(self, request: Request, error: PenstockError | None = None) -> Response:
        listed: ListedBroker = await listed_broker(self.broker, request)
        return self.pages.show(
            request,
            "broker_undrain.html",
            title=f"Undo the drain of broker {listed.broker.broker_id}",
            status=200 if error is None else status_of(error),
            row=listed,
            error=error,
        )

    # -- reassign -------------------------------------------------------------------------------

    @routes.add(f"GET {REASSIGN}", ALTER, PLANNED.parameters)
    async def preview_reassign(self, request: Request) -> Response:
        """Show what a reassignment changes; without the parameter `preview`, only its form."""
        form = Form({name: [value] for name, value in request.query_params.items()})
        return await self._reassign_page(request, form)

    @routes.add(f"POST {REASSIGN}", ALTER, PLANNED.parameters)
    async def reassign(self, request: Request) -> Response:
        form, caller = form_of(request), caller_of(request)
        try:
            topic = await self._topic(request)
            form.check_confirmed(topic.name)
            planned, _ = self._topic_plan(topic, form)
            done = await self._order(caller, planned)
        except PenstockError as error:
            return await self._reassign_page(request, form, error)
        return self.pages.done(
            path("topics", topic.name),
            f"{counted(done, 'partition')} of {topic.name} ordered to move.{_left(planned)}",
        )

    @routes.add(f"GET {CANCEL}", ALTER)
    async def preview_cancel(self, request: Request) -> Response:
        return await self._cancel_page(request)

    @routes.add(f"POST {CANCEL}", ALTER)
    async def cancel(self, request: Request) -> Response:
        """Cancel the reassignments of a topic; replicas that are complete are kept as before."""
        try:
            topic = await self._topic(request)
            done = await self._order(caller_of(request), pending(topic), cancel=True)
        except PenstockError as error:
            return await self._cancel_page(request, error)
        message = f"{counted(done, 'reassignment')} of {topic.name} cancelled."
        return self.pages.done(path("topics", topic.name), message)

    def _topic_plan(self, topic: Topic, form: Form) -> tuple[list[Planned], Choice]:
        image, levels = self.broker.cluster.image, self.broker.topic_admin.levels()
        choice = read_choice(form, topic, image, levels)
        return plan_topic(image, levels, topic, choice), choice

    async def _reassign_page(
        self, request: Request, form: Form, error: PenstockError | None = None
    ) -> Response:
        topic = await self._topic(request)
        planned: Sequence[Planned] = ()
        previewed = bool(form.text("preview"))
        if previewed:
            try:
                planned, _ = self._topic_plan(topic, form)
            except InvalidField as failure:
                error, previewed = error or failure, False
        levels = self.broker.topic_admin.levels()
        return await self._plan_page(
            request,
            planned,
            template="topic_reassign.html",
            title=f"Reassign {topic.name}",
            error=error,
            topic=topic,
            form=form,
            fields=FIELDS,
            previewed=previewed,
            factor=len(future_replicas(topic.partitions[0])),
            brokers=eligible(self.broker.cluster.image, levels),
        )

    async def _cancel_page(self, request: Request, error: PenstockError | None = None) -> Response:
        topic = await self._topic(request)
        return await self._plan_page(
            request,
            pending(topic),
            template="topic_reassign_cancel.html",
            title=f"Cancel reassignments of {topic.name}",
            error=error,
            topic=topic,
        )

    async def _topic(self, request: Request) -> Topic:
        """Return the topic of a path, whose replicas are on brokers.

        Raises:
            AuthorisationFailed: the caller may not describe it.
            UnknownTopicOrPartition: it does not exist, or is diskless.
        """
        name = request.path_params["topic"]
        caller_of(request).check("describe", "topic", [name])
        await self.broker.cluster.look()
        topic = self.broker.cluster.image.topics.get(name)
        if topic is None or is_diskless(topic):
            raise UnknownTopicOrPartition(f"topic {name!r} does not exist, or is diskless")
        return topic

    # -- plans ----------------------------------------------------------------------------------

    async def _order(
        self, caller: Caller, planned: Sequence[Planned], *, cancel: bool = False
    ) -> int:
        """Order the possible changes, and return their number.

        Raises:
            PenstockError: the broker rejected a change; others may have been accepted.
        """
        for body in orders(planned, cancel=cancel):
            answer = await self.requests.call(caller, "AlterPartitionReassignments", body)
            check_rows([answer], "the reassignment")
            for topic in answer.responses:
                check_rows(topic.partitions, f"the reassignment of topic {topic.name}")
        return sum(not row.refusal for row in planned)

    async def _plan_page(
        self,
        request: Request,
        planned: Sequence[Planned],
        *,
        template: str,
        title: str,
        error: PenstockError | None,
        **values: Any,
    ) -> Response:
        """Show a plan: the partitions of topics that the caller may describe, and totals of all."""
        caller = caller_of(request)
        places = [(row.topic, row.partition) for row in planned if row.adding]
        sizes = await partition_sizes(self.broker, self.requests, caller, places)
        shown = [row for row in planned if caller.sees(row.topic)]
        possible = [row for row in planned if not row.refusal]
        copies = [(len(row.adding), sizes.get((row.topic, row.partition))) for row in possible]
        return self.pages.show(
            request,
            template,
            title=title,
            status=200 if error is None else status_of(error),
            error=error,
            table=PLANNED.view(request, shown),
            sizes=sizes,
            possible=len(possible),
            impossible=len(planned) - len(possible),
            hidden=len(planned) - len(shown),
            copied=sum(count * (size or 0) for count, size in copies),
            unsized=sum(1 for count, size in copies if count and size is None),
            **values,
        )


async def partition_sizes(
    broker: Assembly, requests: CallerRequests, caller: Caller, places: Collection[Place]
) -> dict[Place, int]:
    """Return the bytes of partitions, as their leaders report them within `SIZES_SECONDS`.

    The result is empty if the caller may not describe the cluster.
    """
    if not caller.rights.allows("describe", "cluster", CLUSTER):
        return {}
    led: dict[int, dict[str, list[int]]] = {}
    topics = broker.cluster.image.topics
    leaders = {name: broker.cluster.shown(topics[name]) for name in {name for name, _ in places}}
    for name, index in places:
        led.setdefault(leaders[name][index].leader, {}).setdefault(name, []).append(index)

    async def ask(leader: int, indexes: Mapping[str, Sequence[int]]) -> Any:
        rows = [{"topic": name, "partitions": found} for name, found in indexes.items()]
        with suppress(PenstockError):
            return await requests.call(caller, "DescribeLogDirs", {"topics": rows}, leader)
        return None

    tasks = [asyncio.create_task(ask(leader, found)) for leader, found in led.items()]
    done, _ = await asyncio.wait(tasks, timeout=SIZES_SECONDS) if tasks else ((), ())
    return {
        (str(topic.name), int(partition.partition_index)): int(partition.partition_size)
        for answer in [task.result() for task in done]
        if answer is not None
        for directory in answer.results
        for topic in directory.topics
        for partition in topic.partitions
    }


def _left(planned: Sequence[Planned]) -> str:
    """Return a sentence about the changes that are not possible; empty without any."""
    refused = [row for row in planned if row.refusal]
    if not refused:
        return ""
    return f" {counted(len(refused), 'partition')} cannot move, for example: {refused[0].refusal}."
