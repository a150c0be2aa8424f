"""Page of a topic's storage: switch between disks of brokers and an object store, with progress.

A switch is a change of the setting `diskless.enable`, which the broker carries out by copying the
topic (`broker/migration`). Its request waits some seconds for the end. `Switches` repeats the
request in the background, so that the page can show the progress and the reason of a failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final
from uuid import UUID

from msgspec import Struct

from penstock.apps.console.formats import path
from penstock.apps.console.forms import InvalidField, form_of
from penstock.apps.console.pages.partitions import DISKLESS, kind_of, served_topic
from penstock.apps.console.pages.placement import partition_sizes
from penstock.apps.console.rendering import Pages
from penstock.apps.console.requests import CallerRequests, RequestRefused, check_rows
from penstock.base.errors import PenstockError
from penstock.base.http_routes import Routes
from penstock.broker.admin.access import Caller, Needs, caller_of
from penstock.broker.admin_app import status_of
from penstock.broker.assembly import Assembly
from penstock.broker.configuration.configs import Operation
from penstock.broker.handlers.configs import TOPIC as TOPIC_RESOURCE
from penstock.broker.metadata.leaders import is_diskless
from penstock.broker.migration.migrations import MigrationRunning
from penstock.broker.topics.plan import plan_replicas
from penstock.control import Topic
from penstock.control.rules.diskless import DISKLESS_CONFIG
from penstock.security import CLUSTER

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from penstock.control import MigrationParticipant

STORAGE: Final = "/console/topics/{topic}/storage"
ALTER_CONFIGS: Final = Needs(operation="alter_configs", resource_type="topic", named="topic")
SHOWN_SECONDS: Final = 2.0
"""Time that a response waits for the end of a switch; longer ones show their progress."""
REQUESTS_MAX: Final = 10_000
"""Largest number of requests that wait for a switch in turn; each waits about 20 s."""
SWITCHES_MAX: Final = 1_000
"""Topics whose last switch is remembered; the oldest ended ones are dropped."""
DISKS: Final = "disks"
TARGETS: Final = {DISKLESS: "true", DISKS: "false"}
"""Values of `diskless.enable` by target."""


class Switches:
    """Switches that this console has started, by topic id and target.

    Belongs to the event loop.
    """

    def __init__(self, shown_seconds: float = SHOWN_SECONDS) -> None:
        """`shown_seconds` is the time that a response waits for the end of a switch."""
        self._shown_seconds = shown_seconds
        self._tasks: dict[tuple[UUID, str], asyncio.Task[None]] = {}

    async def start(self, topic_id: UUID, target: str, switch: Coroutine[Any, Any, None]) -> bool:
        """Start a switch, and return whether it has ended in the time of a response.

        Raises:
            PenstockError: the switch has failed within this time.
        """
        task = asyncio.get_running_loop().create_task(switch)
        task.add_done_callback(_retrieved)
        self._tasks.pop((topic_id, target), None)
        self._tasks[topic_id, target] = task
        ended = [key for key, known in self._tasks.items() if known.done()]
        for key in ended[: max(0, len(self._tasks) - SWITCHES_MAX)]:
            del self._tasks[key]
        done, _ = await asyncio.wait([task], timeout=self._shown_seconds)
        if done:
            task.result()
        return bool(done)

    def is_running(self, topic_id: UUID, target: str) -> bool:
        task = self._tasks.get((topic_id, target))
        return task is not None and not task.done()

    def failure(self, topic_id: UUID, target: str) -> str:
        """Return the reason for which the last switch to `target` failed; empty if it did not."""
        task = self._tasks.get((topic_id, target))
        if task is None or not task.done() or task.cancelled():
            return ""
        return str(task.exception() or "")


class Progress(Struct, frozen=True, kw_only=True):
    """Progress of a switch: of this broker if it takes part, and of all brokers if several do."""

    here: dict[str, Any] | None
    participants: Sequence[MigrationParticipant]


class StoragePages(Struct, frozen=True, kw_only=True):
    broker: Assembly
    pages: Pages
    requests: CallerRequests
    switches: Switches

    routes: ClassVar[Routes[Any, Needs]] = Routes()

    @routes.add(f"GET {STORAGE}", ALTER_CONFIGS)
    async def preview(self, request: Request) -> Response:
        """Show the storage of a topic, what a switch would change, and a switch in progress."""
        return await self._page(request)

    @routes.add(f"POST {STORAGE}", ALTER_CONFIGS)
    async def switch(self, request: Request) -> Response:
        form = form_of(request)
        try:
            topic = (await served_topic(self.broker, request)).topic
            target = form.text("to")
            if target != _target(topic):
                raise InvalidField(f"topic {topic.name} is switched already; look at its page")
            form.check_confirmed(topic.name)
            switch = self._switch(caller_of(request), topic.name, target)
            ended = await self.switches.start(topic.topic_id, target, switch)
        except PenstockError as error:
            return await self._page(request, error)
        if ended:
            done = "diskless" if target == DISKLESS else "on the disks of brokers"
            return self.pages.done(path("topics", topic.name), f"Topic {topic.name} is {done}.")
        return self.pages.done(request.url.path, f"The switch of topic {topic.name} has started.")

    async def _switch(self, caller: Caller, name: str, target: str) -> None:
        """Change the setting, and repeat the request while the switch is running."""
        for _ in range(REQUESTS_MAX):
            try:
                await self._alter(caller, name, target)
            except RequestRefused as error:
                if error.code != MigrationRunning.code:
                    raise
            else:
                return
        raise MigrationRunning(f"topic {name!r} is still being switched")

    async def _alter(
        self, caller: Caller, name: str, target: str, *, validate_only: bool = False
    ) -> None:
        change = {
            "name": DISKLESS_CONFIG,
            "config_operation": int(Operation.SET),
            "value": TARGETS[target],
        }
        resource = {"resource_type": TOPIC_RESOURCE, "resource_name": name, "configs": [change]}
        body = {"resources": [resource], "validate_only": validate_only}
        answer = await self.requests.call(caller, "IncrementalAlterConfigs", body)
        check_rows(answer.responses, f"{DISKLESS_CONFIG} of topic {name}")

    async def _page(self, request: Request, error: PenstockError | None = None) -> Response:
        served, caller = await served_topic(self.broker, request), caller_of(request)
        topic = served.topic
        target = _target(topic)
        progress = await self._progress(topic, target)
        refusal = "" if progress else await self._refusal(caller, topic, target)
        places = [(topic.name, row.index) for row in topic.partitions]
        if progress and progress.participants:  # they may be too busy to answer
            places = []
        sizes = await partition_sizes(self.broker, self.requests, caller, places)
        return self.pages.show(
            request,
            "topic_storage.html",
            title=f"Storage of {topic.name}",
            status=200 if error is None else status_of(error),
            error=error,
            topic=topic,
            kind=kind_of(served),
            target=target,
            progress=progress,
            failure="" if progress or error else self.switches.failure(topic.topic_id, target),
            refusal=refusal,
            size=sum(sizes.values()) if places and len(sizes) == len(places) else None,
            placed=() if refusal or progress else self._placed(topic, target),
            factor=len(topic.partitions[0].replicas),
            may_reassign=caller.rights.allows("alter", "cluster", CLUSTER),
        )

    async def _progress(self, topic: Topic, target: str) -> Progress | None:
        """Return the progress of the topic's switch; None if there is none."""
        here = self.broker.migrations.view(topic.topic_id)
        service = self.broker.diskless
        running = [] if service is None else await service.migration.plane.running_migrations()
        participants = [
            participant
            for migration in running
            if migration.request.topic_id == topic.topic_id
            for participant in migration.participants
        ]
        if (
            here is None
            and not participants
            and not self.switches.is_running(topic.topic_id, target)
        ):
            return None
        return Progress(here=here, participants=participants)

    async def _refusal(self, caller: Caller, topic: Topic, target: str) -> str:
        """Return the reason for which the broker would reject the switch; empty if it would not."""
        try:
            await self._alter(caller, topic.name, target, validate_only=True)
        except PenstockError as error:
            return str(error)
        return ""

    def _placed(self, topic: Topic, target: str) -> Sequence[tuple[int, ...]]:
        """Return the replicas that the topic's partitions would get; none if it becomes diskless.

        The broker has checked that they can be placed.
        """
        if target == DISKLESS:
            return ()
        levels = self.broker.topic_admin.levels()
        return plan_replicas(topic, image=self.broker.cluster.image, levels=levels)


def _target(topic: Topic) -> str:
    return DISKS if is_diskless(topic) else DISKLESS


def _retrieved(task: asyncio.Task[None]) -> None:
    """Mark the error of a task as retrieved; `Switches.failure` returns it."""
    if not task.cancelled():
        task.exception()
