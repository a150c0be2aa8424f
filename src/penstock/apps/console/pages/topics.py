"""Pages of topics: list, detail, create, configure, add partitions, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from msgspec import Struct

from penstock.apps.console.formats import counted, path
from penstock.apps.console.forms import Form, InvalidField, form_of
from penstock.apps.console.pages.partitions import (
    DISKLESS,
    LOCAL,
    REPLICATED,
    kind_of,
    records_here,
    served_topic,
    size_here,
    trouble,
    troubles,
)
from penstock.apps.console.rendering import Pages
from penstock.apps.console.requests import CallerRequests, check_rows
from penstock.apps.console.tables import Column, Filter, Table
from penstock.base.errors import PenstockError
from penstock.base.http_routes import Routes
from penstock.base.ids import TopicPartition
from penstock.base.settings import INT_MAX, by_name
from penstock.broker.admin.access import OPEN, Needs, caller_of
from penstock.broker.admin_app import status_of
from penstock.broker.assembly import Assembly
from penstock.broker.configuration.configs import (
    ConfigEntry,
    ConfigSource,
    Operation,
    describe_topic,
)
from penstock.broker.handlers.configs import TOPIC as TOPIC_RESOURCE
from penstock.broker.handlers.replication import Minimums
from penstock.broker.partitions.registry import ServedTopic
from penstock.control import Partition
from penstock.partitions import look_up_watermarks
from penstock.security import CLUSTER
from penstock.storage.files.settings import LogConfig

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from penstock.partitions import Partition as ServedPartition

TOPIC: Final = "/console/topics/{topic}"
SOURCES: Final = {
    ConfigSource.DYNAMIC_TOPIC: "this topic",
    ConfigSource.DYNAMIC_BROKER: "this broker",
    ConfigSource.DYNAMIC_DEFAULT_BROKER: "the cluster",
    ConfigSource.STATIC_BROKER: "the broker's file",
    ConfigSource.DEFAULT: "default",
}
"""Origin of a configuration's value, as text."""


def _of_topic(operation: str) -> Needs:
    return Needs(operation=operation, resource_type="topic", named="topic")


class PartitionRow(Struct, frozen=True, kw_only=True):
    """Partition on a topic's page; offsets and sizes that this broker does not know are None."""

    row: Partition
    trouble: str
    start: int | None
    end: int | None
    size: int | None


class ConfigRow(Struct, frozen=True, kw_only=True):
    """Configuration of a topic; `choices` are its allowed values, or empty."""

    entry: ConfigEntry
    default: str
    choices: tuple[str, ...]

    @property
    def is_own(self) -> bool:
        return self.entry.source == ConfigSource.DYNAMIC_TOPIC


class ListedTopic(Struct, frozen=True, kw_only=True):
    """Topic of the list. Values that are costly are computed for the rows of one page."""

    served: ServedTopic
    live: frozenset[int]

    @property
    def name(self) -> str:
        return self.served.topic.name

    @property
    def kind(self) -> str:
        return kind_of(self.served)

    @property
    def size(self) -> int | None:
        return size_here(self.served)

    @property
    def records(self) -> int | None:
        return records_here(self.served)

    @property
    def troubles(self) -> int:
        return troubles(self.served, self.live)


def _is_shown(row: ListedTopic, value: str) -> bool:
    if value == "problems":
        return row.troubles > 0
    return row.served.topic.internal == (value == "internal")


TOPICS: Final[Table[ListedTopic]] = Table(
    Column(name="name", title="Topic", key=lambda row: row.name),
    Column(
        name="partitions",
        title="Partitions",
        key=lambda row: len(row.served.topic.partitions),
        number=True,
    ),
    Column(name="storage", title="Storage", key=lambda row: row.kind),
    Column(name="records", title="Records", key=lambda row: row.records, number=True),
    Column(name="size", title="Size here", key=lambda row: row.size, number=True),
    Column(name="state", title="State", key=lambda row: -row.troubles),
    sort="name",
    text=lambda row: row.name,
    search="Search topics",
    filters=(
        Filter(
            name="storage",
            title="Storage",
            choices={"": "Any storage", LOCAL: LOCAL, REPLICATED: REPLICATED, DISKLESS: DISKLESS},
            test=lambda row, value: row.kind == value,
        ),
        Filter(
            name="show",
            title="Show",
            choices={
                "": "All topics",
                "own": "Without internal topics",
                "internal": "Internal topics",
                "problems": "With problems",
            },
            test=_is_shown,
        ),
    ),
)

PARTITIONS: Final[Table[PartitionRow]] = Table(
    Column(name="partition", title="Partition", key=lambda row: row.row.index, number=True),
    Column(name="leader", title="Leader", key=lambda row: row.row.leader, number=True),
    Column(name="replicas", title="Replicas"),
    Column(name="isr", title="In sync"),
    Column(name="start", title="First offset", key=lambda row: row.start, number=True),
    Column(name="end", title="End offset", key=lambda row: row.end, number=True),
    Column(name="size", title="Size", key=lambda row: row.size, number=True),
    Column(name="state", title="State", key=lambda row: row.trouble),
    sort="partition",
)

CONFIGS: Final[Table[ConfigRow]] = Table(
    Column(name="name", title="Setting", key=lambda row: row.entry.name),
    Column(name="value", title="Value"),
    Column(name="source", title="Set by", key=lambda row: SOURCES[row.entry.source]),
    sort="name",
    text=lambda row: f"{row.entry.name} {row.entry.value} {row.entry.documentation}",
    search="Search settings",
    filters=(
        Filter(
            name="show",
            title="Show",
            choices={"": "All settings", "own": "Set by this topic"},
            test=lambda row, _: row.is_own,
        ),
    ),
)


class TopicPages(Struct, frozen=True, kw_only=True):
    broker: Assembly
    pages: Pages
    requests: CallerRequests

    routes: ClassVar[Routes[Any, Needs]] = Routes()

    @routes.add("GET /console/topics", OPEN, TOPICS.parameters)
    async def topics(self, request: Request) -> Response:
        """Show the topics that the caller may describe."""
        await self.broker.cluster.look()
        caller, live = caller_of(request), self.broker.cluster.live
        rows = [
            ListedTopic(served=served, live=live)
            for name, served in self.broker.partitions.topics.items()
            if caller.sees(name)
        ]
        return self.pages.show(
            request,
            "topics.html",
            title="Topics",
            table=TOPICS.view(request, rows),
            may_create=caller.rights.allows_some("create", "topic")
            or caller.rights.allows("create", "cluster", CLUSTER),
        )

    @routes.add(f"GET {TOPIC}", _of_topic("describe"), PARTITIONS.parameters)
    async def topic(self, request: Request) -> Response:
        served = await served_topic(self.broker, request)
        topic, allows = served.topic, caller_of(request).rights.allows
        await look_up_watermarks(served.partitions)
        rows = await self._partitions(served)
        may = {
            operation: allows(operation, "topic", topic.name)
            for operation in ("alter", "alter_configs", "delete", "describe_configs", "read")
        }
        return self.pages.show(
            request,
            "topic.html",
            title=topic.name,
            topic=topic,
            kind=kind_of(served),
            size=size_here(served),
            records=records_here(served),
            switch=self.broker.migrations.view(topic.topic_id),
            table=PARTITIONS.view(request, rows),
            may=may,
            may_reassign=allows("alter", "cluster", CLUSTER),
        )

    # -- create ---------------------------------------------------------------------------------

    @routes.add("GET /console/create-topic", OPEN)
    async def create_form(self, request: Request) -> Response:
        return self._create_page(request, Form({}))

    @routes.add("POST /console/create-topic", OPEN)
    async def create(self, request: Request) -> Response:
        form = form_of(request)
        name = form.text("name")
        try:
            body = {
                "name": name,
                "num_partitions": _optional(form, "partitions", "Partitions"),
                "replication_factor": _optional(form, "replication", "Replication factor"),
                "assignments": (),
                "configs": _given_configs(form),
            }
            answer = await self.requests.call(
                caller_of(request),
                "CreateTopics",
                {"topics": [body], "timeout": 30_000, "validate_only": False},
            )
            check_rows(answer.topics, f"topic {name}")
        except PenstockError as error:
            return self._create_page(request, form, error)
        return self.pages.done(path("topics", name), f"Topic {name} was created.")

    def _create_page(
        self, request: Request, form: Form, error: PenstockError | None = None
    ) -> Response:
        settings = self.broker.settings
        return self.pages.show(
            request,
            "topic_create.html",
            title="Create topic",
            status=200 if error is None else status_of(error),
            form=form,
            error=error,
            partitions_default=settings.num_partitions,
            replication_default=settings.default_replication_factor,
            policies=by_name(LogConfig)["cleanup.policy"].default,
        )

    # -- configure ------------------------------------------------------------------------------

    @routes.add(f"GET {TOPIC}/configs", _of_topic("describe_configs"), CONFIGS.parameters)
    async def configs(self, request: Request) -> Response:
        return await self._configs_page(request)

    @routes.add(f"POST {TOPIC}/configs", _of_topic("alter_configs"), CONFIGS.parameters)
    async def alter_configs(self, request: Request) -> Response:
        form, topic = form_of(request), request.path_params["topic"]
        name, resets = form.text("name"), form.text("act") == "reset"
        change = {
            "name": name,
            "config_operation": int(Operation.DELETE if resets else Operation.SET),
            "value": None if resets else form.text("value"),
        }
        resource = {
            "resource_type": TOPIC_RESOURCE,
            "resource_name": topic,
            "configs": [change],
        }
        try:
            answer = await self.requests.call(
                caller_of(request),
                "IncrementalAlterConfigs",
                {"resources": [resource], "validate_only": False},
            )
            check_rows(answer.responses, f"{name} of topic {topic}")
        except PenstockError as error:
            return await self._configs_page(request, error, name)
        said = "was reset" if resets else f"is now {form.text('value')}"
        return self.pages.done(request.url.path, f"{name} {said}.")

    async def _configs_page(
        self, request: Request, error: PenstockError | None = None, changed: str = ""
    ) -> Response:
        served = await served_topic(self.broker, request)
        levels = self.broker.topic_admin.levels()
        infos = by_name(LogConfig)
        inherited = {entry.name: entry.value for entry in describe_topic(levels, {})}
        rows = [
            ConfigRow(
                entry=entry,
                default=inherited[entry.name] or "",
                choices=_choices(infos[entry.name]),
            )
            for entry in describe_topic(levels, served.topic.configs)
        ]
        return self.pages.show(
            request,
            "topic_configs.html",
            title=f"Settings of {served.topic.name}",
            status=200 if error is None else status_of(error),
            topic=served.topic,
            table=CONFIGS.view(request, rows),
            sources=SOURCES,
            error=error,
            changed=changed,
            may_alter=caller_of(request).rights.allows("alter_configs", "topic", served.topic.name),
        )

    # -- add partitions -------------------------------------------------------------------------

    @routes.add(f"GET {TOPIC}/partitions", _of_topic("alter"))
    async def partitions_form(self, request: Request) -> Response:
        return await self._act_page(request, "topic_partitions.html", "Add partitions")

    @routes.add(f"POST {TOPIC}/partitions", _of_topic("alter"))
    async def add_partitions(self, request: Request) -> Response:
        topic = request.path_params["topic"]
        try:
            count = form_of(request).number("count", "Partitions", INT_MAX)
            body = {"name": topic, "count": count, "assignments": None}
            answer = await self.requests.call(
                caller_of(request),
                "CreatePartitions",
                {"topics": [body], "timeout": 30_000, "validate_only": False},
            )
            check_rows(answer.results, f"topic {topic}")
        except PenstockError as error:
            return await self._act_page(request, "topic_partitions.html", "Add partitions", error)
        return self.pages.done(
            path("topics", topic), f"Topic {topic} has {counted(count, 'partition')}."
        )

    # -- delete ---------------------------------------------------------------------------------

    @routes.add(f"GET {TOPIC}/delete", _of_topic("delete"))
    async def delete_form(self, request: Request) -> Response:
        return await self._act_page(request, "topic_delete.html", "Delete topic")

    @routes.add(f"POST {TOPIC}/delete", _of_topic("delete"))
    async def delete(self, request: Request) -> Response:
        topic = request.path_params["topic"]
        try:
            form_of(request).check_confirmed(topic)
            body = {"topic_names": [topic], "topics": [{"name": topic}], "timeout": 30_000}
            answer = await self.requests.call(caller_of(request), "DeleteTopics", body)
            check_rows(answer.responses, f"topic {topic}")
        except PenstockError as error:
            return await self._act_page(request, "topic_delete.html", "Delete topic", error)
        return self.pages.done(path("topics"), f"Topic {topic} was deleted.")

    async def _act_page(
        self, request: Request, template: str, title: str, error: PenstockError | None = None
    ) -> Response:
        served = await served_topic(self.broker, request)
        return self.pages.show(
            request,
            template,
            title=f"{title} {served.topic.name}",
            status=200 if error is None else status_of(error),
            topic=served.topic,
            size=size_here(served),
            records=records_here(served),
            error=error,
        )

    # -- values ---------------------------------------------------------------------------------

    async def _partitions(self, served: ServedTopic) -> list[PartitionRow]:
        cluster, name = self.broker.cluster, served.topic.name
        places = [TopicPartition(name, row.index) for row in served.topic.partitions]
        ends = await self.broker.end_offsets.recent(places)
        minimum = Minimums(self.broker.topic_admin.levels()).of(served.topic)
        return [
            _partition_row(
                row,
                served.partitions[row.index] or served.followed[row.index],
                "" if served.diskless else trouble(row, cluster.live, minimum),
                ends.get(place),
            )
            for row, place in zip(cluster.shown(served.topic), places, strict=True)
        ]


def _partition_row(
    row: Partition, log: ServedPartition | None, trouble: str, end: int | None
) -> PartitionRow:
    known = None if log is None or log.high_watermark < 0 else log
    return PartitionRow(
        row=row,
        trouble=trouble,
        start=None if known is None else known.log_start_offset,
        end=end,
        size=None if known is None else known.size_bytes,
    )


def _choices(info: Any) -> tuple[str, ...]:
    if isinstance(info.default, bool):
        return ("true", "false")
    return tuple(info.choices) if isinstance(info.default, str) else ()


def _optional(form: Form, name: str, title: str) -> int:
    return form.number(name, title, INT_MAX) if form.text(name) else -1


def _given_configs(form: Form) -> list[dict[str, str]]:
    """Return the configurations of the form for a new topic; raises InvalidField."""
    configs: dict[str, str] = {}
    for number, line in enumerate(form.text("configs").splitlines(), 1):
        name, equals, value = line.partition("=")
        if not line.strip():
            continue
        if not equals or not name.strip():
            raise InvalidField(f"Settings, line {number}: {line!r} must read name=value")
        configs[name.strip()] = value.strip()
    for field, config in (
        ("storage", "diskless.enable"),
        ("cleanup", "cleanup.policy"),
        ("retention", "retention.ms"),
    ):
        if value := form.text(field):
            configs[config] = value
    return [{"name": name, "value": value} for name, value in configs.items()]
