"""Pages of groups: list, detail, reset offsets, delete.

Each group has a coordinator, one of the brokers. The list has the groups of all brokers that can be
reached. Committed offsets are read from the control plane.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final

from msgspec import Struct

from penstock.apps.console.formats import counted, path
from penstock.apps.console.forms import Form, form_of
from penstock.apps.console.pages.lag_lines import LagLine, chart_of, lag_lines
from penstock.apps.console.pages.resetting import RESETS, Move, Reset, moves, read_reset
from penstock.apps.console.rendering import Pages
from penstock.apps.console.requests import CallerRequests, check_rows, refused
from penstock.apps.console.tables import Column, Filter, Table
from penstock.base.errors import PenstockError
from penstock.base.http_routes import Routes
from penstock.base.ids import TopicPartition
from penstock.broker.admin.access import DESCRIBE_GROUP, OPEN, Caller, Needs, caller_of
from penstock.broker.admin_app import status_of
from penstock.broker.assembly import Assembly
from penstock.broker.groups.classic.states import GroupState as ClassicState
from penstock.broker.groups.consumer.classic_requests import decode_assignment
from penstock.broker.groups.consumer.group import GroupState as ConsumerState
from penstock.broker.groups.coordinator import GroupIdNotFound
from penstock.broker.groups.runtime.saving import owner_of
from penstock.broker.lag.rules import Evaluation, State, Summary, summary_of
from penstock.broker.lag.service import UNREAD_MAX, EvaluatedGroup
from penstock.control import CommittedOffset

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"
SHARE: Final = "share"
_DESCRIBE: Final = {CONSUMER: "ConsumerGroupDescribe", SHARE: "ShareGroupDescribe"}
DEAD: Final = ClassicState.DEAD.value


class ListedGroup(Struct, frozen=True, kw_only=True):
    """Group of the list; `broker` coordinates it."""

    name: str
    state: str
    kind: str
    broker: int


class Lag(Struct, frozen=True, kw_only=True):
    """Lag of a group in the partitions that the caller may see; `partitions` is their number.

    `records` is None if the end offset of a partition is unknown. Only the group's coordinator
    evaluates it, so `summary` is None on other brokers.
    """

    records: int | None
    partitions: int
    summary: Summary | None = None


class Member(Struct, frozen=True, kw_only=True):
    member_id: str
    instance_id: str
    client_id: str
    host: str
    partitions: Sequence[tuple[str, int]]


class Position(Struct, frozen=True, kw_only=True):
    """Position of a group in a partition; `committed` is None if it has committed none.

    `client` is the client id of the member that reads the partition. `evaluation` is None on other
    brokers than the group's coordinator.
    """

    topic: str
    partition: int
    committed: CommittedOffset | None
    end: int | None
    client: str
    evaluation: Evaluation | None

    @property
    def behind(self) -> float | None:
        return None if self.evaluation is None else self.evaluation.seconds_behind

    @property
    def state(self) -> int:
        return State.NOTFOUND if self.evaluation is None else self.evaluation.state

    @property
    def lag(self) -> int | None:
        if self.committed is None or self.end is None:
            return None
        return max(0, self.end - self.committed.offset)


class Group(Struct, frozen=True, kw_only=True):
    name: str
    state: str
    kind: str
    protocol: str
    broker: int
    members: Sequence[Member]
    positions: Sequence[Position]
    summary: Summary | None
    explanation: str
    """Reasons of the state in one sentence; empty without an evaluation."""
    lines: Sequence[LagLine]
    """Lag over time of the partitions with the most lag; empty without an evaluation."""

    @property
    def lag(self) -> int | None:
        lags = [row.lag for row in self.positions if row.committed is not None]
        return None if None in lags else sum(lag or 0 for lag in lags)


STATES: Final = sorted({state.value for state in (*ClassicState, *ConsumerState)})

GROUPS: Final[Table[ListedGroup]] = Table(
    Column(name="name", title="Group", key=lambda row: row.name),
    Column(name="state", title="State", key=lambda row: row.state),
    Column(name="kind", title="Type", key=lambda row: row.kind),
    Column(name="broker", title="Coordinator", key=lambda row: row.broker, number=True),
    Column(name="partitions", title="Partitions", number=True),
    Column(name="lag", title="Lag", number=True),
    Column(name="behind", title="Behind", number=True),
    Column(name="trend", title="Trend"),
    sort="name",
    text=lambda row: row.name,
    search="Search groups",
    filters=(
        Filter(
            name="state",
            title="State",
            choices={"": "Any state", **{state: state for state in STATES}},
            test=lambda row, value: row.state == value,
        ),
        Filter(
            name="type",
            title="Type",
            choices={"": "Any type", CLASSIC: CLASSIC, CONSUMER: CONSUMER, SHARE: SHARE},
            test=lambda row, value: row.kind == value,
        ),
    ),
)

POSITIONS: Final[Table[Position]] = Table(
    Column(name="topic", title="Topic", key=lambda row: (row.topic, row.partition)),
    Column(name="partition", title="Partition", key=lambda row: row.partition, number=True),
    Column(
        name="committed",
        title="Committed offset",
        key=lambda row: None if row.committed is None else row.committed.offset,
        number=True,
    ),
    Column(name="end", title="End offset", key=lambda row: row.end, number=True),
    Column(name="lag", title="Lag", key=lambda row: row.lag, number=True),
    Column(name="behind", title="Behind", key=lambda row: row.behind, number=True),
    Column(name="trend", title="Trend", key=lambda row: row.state),
    Column(name="client", title="Read by", key=lambda row: row.client),
    sort="topic",
    text=lambda row: f"{row.topic} {row.client}",
    search="Search partitions",
)


async def call_all(
    broker: Assembly, requests: CallerRequests, caller: Caller, name: str, body: Mapping[str, Any]
) -> tuple[dict[int, Any], int]:
    """Send a request to all brokers that can be reached.

    Returns the successful responses by broker, and the number of the other brokers.
    """

    async def call(broker_id: int) -> tuple[int, Any]:
        try:
            answer = await requests.call(caller, name, body, broker_id)
        except PenstockError:
            return broker_id, None
        return broker_id, None if answer.error_code else answer

    await broker.cluster.look()
    answers = await asyncio.gather(*map(call, sorted(broker.cluster.live)))
    found = {broker_id: answer for broker_id, answer in answers if answer is not None}
    return found, len(answers) - len(found)


class GroupPages(Struct, frozen=True, kw_only=True):
    broker: Assembly
    pages: Pages
    requests: CallerRequests

    routes: ClassVar[Routes[Any, Needs]] = Routes()

    @routes.add("GET /console/groups", OPEN, GROUPS.parameters)
    async def groups(self, request: Request) -> Response:
        """Show the groups that the caller may describe, of all brokers that can be reached."""
        caller = caller_of(request)
        body = {"states_filter": (), "types_filter": ()}
        answers, silent = await call_all(self.broker, self.requests, caller, "ListGroups", body)
        found = [
            ListedGroup(
                name=row.group_id, state=row.group_state, kind=row.group_type, broker=broker_id
            )
            for broker_id, answer in answers.items()
            for row in answer.groups
            if caller.rights.allows("describe", "group", row.group_id)
        ]
        view = GROUPS.view(request, found)
        return self.pages.show(
            request,
            "groups.html",
            title="Groups",
            table=view,
            lags=await self._lags(caller, view.rows),
            silent=silent,
        )

    async def _lags(self, caller: Caller, rows: Sequence[ListedGroup]) -> dict[str, Lag]:
        """Return the lag of groups, in the partitions of topics that the caller may describe."""
        read = await asyncio.gather(
            *(self.broker.control.committed_offsets(row.name, None) for row in rows)
        )
        seen = [[offset for offset in offsets if caller.sees(offset.topic)] for offsets in read]
        ends = await self.broker.end_offsets.recent(
            {TopicPartition(offset.topic, offset.partition) for found in seen for offset in found}
        )
        lags = {}
        for row, offsets, shown in zip(rows, read, seen, strict=True):
            evaluated = await self._evaluated(row.name, row.broker, offsets, 1)
            summary = None if evaluated is None else _summary(caller, evaluated)
            lags[row.name] = _lag(shown, ends, summary)
        return lags

    async def _evaluated(
        self, name: str, broker_id: int, committed: Sequence[CommittedOffset], unread_max: int
    ) -> EvaluatedGroup | None:
        """Return the evaluation of a group; None if another broker coordinates it."""
        if broker_id != self.broker.node_id or not committed:
            return None
        return await self.broker.lag.group(name, committed, unread_max)

    @routes.add("GET /console/groups/{group:path}", DESCRIBE_GROUP, POSITIONS.parameters)
    async def group(self, request: Request) -> Response:
        group, allows = await self._group(request), caller_of(request).rights.allows
        return self.pages.show(
            request,
            "group.html",
            title=group.name,
            group=group,
            chart=chart_of(group.lines),
            table=POSITIONS.view(request, group.positions),
            may_reset=group.kind != SHARE and allows("read", "group", group.name),
            may_delete=allows("delete", "group", group.name),
        )

    # -- reset ----------------------------------------------------------------------------------

    @routes.add(
        "GET /console/group-reset/{group:path}",
        Needs(operation="read", resource_type="group", named="group"),
        ("to", "offset", "time", "topic"),
    )
    async def preview_reset(self, request: Request) -> Response:
        """Show what a reset would change; without the parameter `to`, only the form for it."""
        form = Form({name: [value] for name, value in request.query_params.items()})
        return await self._reset_page(request, form)

    @routes.add(
        "POST /console/group-reset/{group:path}",
        Needs(operation="read", resource_type="group", named="group"),
    )
    async def reset(self, request: Request) -> Response:
        form, name = form_of(request), request.path_params["group"]
        caller = caller_of(request)
        try:
            form.check_confirmed(name)
            group = await self._group(request)
            changes = await moves(
                self.requests, caller, self.broker, group.positions, read_reset(form)
            )
            body = _commit(name, changes)
            answer = await self.requests.call(caller, "OffsetCommit", body, group.broker)
            for topic in answer.topics:
                check_rows(topic.partitions, f"offsets of group {name} in topic {topic.name}")
        except PenstockError as error:
            return await self._reset_page(request, form, error)
        return self.pages.done(
            path("groups", name), f"Group {name}: {counted(len(changes), 'offset')} reset."
        )

    async def _reset_page(
        self, request: Request, form: Form, error: PenstockError | None = None
    ) -> Response:
        group, caller = await self._group(request), caller_of(request)
        changes: Sequence[Move] = ()
        reset = Reset(to="")
        if form.text("to"):
            try:
                reset = read_reset(form)
                changes = await moves(self.requests, caller, self.broker, group.positions, reset)
            except PenstockError as failure:
                error = error or failure
        return self.pages.show(
            request,
            "group_reset.html",
            title=f"Reset offsets of {group.name}",
            status=200 if error is None else status_of(error),
            group=group,
            form=form,
            resets=RESETS,
            reset=reset,
            changes=changes,
            topics={
                "": "All topics of the group",
                **{row.topic: row.topic for row in group.positions},
            },
            error=error,
        )

    # -- delete ---------------------------------------------------------------------------------

    @routes.add(
        "GET /console/group-delete/{group:path}",
        Needs(operation="delete", resource_type="group", named="group"),
    )
    async def delete_form(self, request: Request) -> Response:
        return await self._delete_page(request)

    @routes.add(
        "POST /console/group-delete/{group:path}",
        Needs(operation="delete", resource_type="group", named="group"),
    )
    async def delete(self, request: Request) -> Response:
        name = request.path_params["group"]
        try:
            form_of(request).check_confirmed(name)
            body = {"groups_names": (name,)}
            answer = await self.requests.call(
                caller_of(request), "DeleteGroups", body, self._coordinator(name)
            )
            check_rows(answer.results, f"group {name}")
        except PenstockError as error:
            return await self._delete_page(request, error)
        return self.pages.done(path("groups"), f"Group {name} was deleted.")

    async def _delete_page(self, request: Request, error: PenstockError | None = None) -> Response:
        group = await self._group(request)
        return self.pages.show(
            request,
            "group_delete.html",
            title=f"Delete group {group.name}",
            status=200 if error is None else status_of(error),
            group=group,
            error=error,
        )

    # -- values ---------------------------------------------------------------------------------

    def _coordinator(self, name: str) -> int:
        return owner_of(self.broker.cluster.image, name).broker_id

    async def _group(self, request: Request) -> Group:
        """Return the group of a path; raises GroupIdNotFound."""
        await self.broker.cluster.look()
        caller, name = caller_of(request), request.path_params["group"]
        described = await self._described(caller, name)
        if described is None:
            raise GroupIdNotFound(f"group {name!r} does not exist")
        kind, row, broker_id = described
        members = [_member(member, caller, kind) for member in row.members]
        committed = await self.broker.control.committed_offsets(name, None)
        evaluated = await self._evaluated(name, broker_id, committed, UNREAD_MAX)
        summary = None if evaluated is None else _summary(caller, evaluated)
        return Group(
            name=name,
            state=row.group_state,
            kind=kind,
            protocol=getattr(row, "assignor_name", "") or getattr(row, "protocol_data", ""),
            broker=broker_id,
            members=members,
            positions=await self._positions(caller, committed, members, evaluated),
            summary=summary,
            explanation="" if evaluated is None else _explanation(caller, evaluated),
            lines=() if evaluated is None else lag_lines(caller, evaluated),
        )

    async def _described(self, caller: Caller, name: str) -> tuple[str, Any, int] | None:
        """Return a group's type, its description and its coordinator; None if it does not exist."""
        broker_id = self._coordinator(name)
        body = {"groups": [name], "include_authorized_operations": False}
        answer = await self.requests.call(caller, "DescribeGroups", body, broker_id)
        [row] = answer.groups
        if row.error_code:
            raise refused(row.error_code, getattr(row, "error_message", None), f"group {name}")
        if row.group_state != DEAD:
            return CLASSIC, row, broker_id
        body = {"group_ids": [name], "include_authorized_operations": False}
        for kind, api in _DESCRIBE.items():
            answer = await self.requests.call(caller, api, body, broker_id)
            [row] = answer.groups
            if not row.error_code and row.group_state != DEAD:
                return kind, row, broker_id
        return None

    async def _positions(
        self,
        caller: Caller,
        committed: Iterable[CommittedOffset],
        members: Sequence[Member],
        evaluated: EvaluatedGroup | None,
    ) -> list[Position]:
        offsets = {(row.topic, row.partition): row for row in committed if caller.sees(row.topic)}
        clients = {place: member.client_id for member in members for place in member.partitions}
        evaluations = {
            row.where: row.evaluation for row in (() if evaluated is None else evaluated.partitions)
        }
        places = sorted({*offsets, *clients})
        ends = await self.broker.end_offsets.recent(TopicPartition(*place) for place in places)
        return [
            Position(
                topic=place[0],
                partition=place[1],
                committed=offsets.get(place),
                end=ends.get(TopicPartition(*place)),
                client=clients.get(place, ""),
                evaluation=evaluations.get(TopicPartition(*place)),
            )
            for place in places
        ]


def _lag(
    offsets: Sequence[CommittedOffset],
    ends: Mapping[TopicPartition, int],
    summary: Summary | None,
) -> Lag:
    found = [(row.offset, ends.get(TopicPartition(row.topic, row.partition))) for row in offsets]
    lags = [None if end is None else max(0, end - offset) for offset, end in found]
    records = None if None in lags else sum(lag or 0 for lag in lags)
    return Lag(records=records, partitions=len(lags), summary=summary)


def _summary(caller: Caller, evaluated: EvaluatedGroup) -> Summary:
    """Return the summary of the partitions that the caller may see."""
    return summary_of(
        [row.evaluation for row in evaluated.partitions if caller.sees(row.where.topic)]
    )


def _explanation(caller: Caller, evaluated: EvaluatedGroup) -> str:
    """Return the reasons of the state; empty if the caller may not see all of the partitions."""
    hidden = any(not caller.sees(row.where.topic) for row in evaluated.partitions)
    return "" if hidden else evaluated.explanation


def _member(row: Any, caller: Caller, kind: str) -> Member:
    if kind == CLASSIC:
        assigned = _assigned(bytes(row.member_assignment))
        instance = row.group_instance_id
    else:
        assigned = [
            (str(topic.topic_name), int(index))
            for topic in row.assignment.topic_partitions
            for index in topic.partitions
        ]
        instance = getattr(row, "instance_id", None)
    return Member(
        member_id=row.member_id,
        instance_id=instance or "",
        client_id=row.client_id,
        host=row.client_host,
        partitions=sorted(place for place in assigned if caller.sees(place[0])),
    )


def _assigned(assignment: bytes) -> list[tuple[str, int]]:
    """Return the partitions of a classic member; none if it is not a consumer."""
    with suppress(ValueError):
        owned = decode_assignment(assignment)
        return [(topic, index) for topic, indexes in owned.items() for index in indexes]
    return []


def _commit(name: str, changes: Sequence[Move]) -> dict[str, Any]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for move in changes:
        row = {
            "partition_index": move.partition,
            "committed_offset": move.target,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        topics.setdefault(move.topic, []).append(row)
    return {
        "group_id": name,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [
            {"name": topic, "partitions": partitions} for topic, partitions in topics.items()
        ],
    }
