"""Overview of the cluster and this broker: live figures, disk, brokers and problems."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
from msgspec import Struct
from starlette.responses import RedirectResponse, Response

from penstock.apps.console.formats import counted, path
from penstock.apps.console.live import Sampler, texts
from penstock.apps.console.pages.partitions import Counts, counts
from penstock.apps.console.rendering import Pages
from penstock.base.http_routes import Routes
from penstock.broker.admin.access import CONSOLE, DESCRIBE, OPEN, Needs, caller_of
from penstock.broker.admin.health import disk_space
from penstock.broker.assembly import Assembly

if TYPE_CHECKING:
    from starlette.requests import Request


class Problem(Struct, frozen=True, kw_only=True):
    """Problem of the broker or the cluster; `url` is the page with details, or empty."""

    text: str
    grave: bool = True
    url: str = ""


class OverviewPages(Struct, frozen=True, kw_only=True):
    broker: Assembly
    pages: Pages
    sampler: Sampler

    routes: ClassVar[Routes[Any, Needs]] = Routes()

    @routes.add("GET /console", DESCRIBE)
    async def overview(self, request: Request) -> Response:
        broker = self.broker
        image = broker.cluster.image
        health = await broker.readiness.look()
        troubled = counts(broker)
        samples = list(self.sampler.samples)
        return self.pages.show(
            request,
            "overview.html",
            title="Overview",
            cluster_id=image.cluster_id,
            broker_count=len(image.brokers) + len(troubled.absent),
            live=broker.cluster.live,
            topic_count=sum(1 for topic in image.topics.values() if not topic.internal),
            partition_count=troubled.total,
            led_count=troubled.led,
            checks=health.checks,
            problems=[
                *(
                    Problem(text=f"{check.name}: {check.cause}")
                    for check in health.checks
                    if check.cause
                ),
                *self._problems(troubled),
            ],
            disk_space=await asyncio.to_thread(disk_space, broker.store.directory),
            texts=texts(samples[-1] if samples else None),
            samples=msgspec.json.encode(samples).decode(),
        )

    @routes.add("GET /console/sign-in", OPEN)
    async def sign_in(self, request: Request) -> Response:
        """Ask a browser without credentials for a user and a password; then show the overview."""
        if not caller_of(request).known.mechanism:
            message = "Sign in with a user and a password of this broker, over TLS."
            return self.pages.failed(request, 403, "", message)
        return RedirectResponse(CONSOLE, HTTPStatus.SEE_OTHER)

    def _problems(self, troubled: Counts) -> Iterator[Problem]:
        broker = self.broker
        gone = broker.cluster.unreachable()
        if gone:
            names = ", ".join(map(str, sorted(gone)))
            yield Problem(
                text=f"cannot reach {counted(len(gone), 'broker')}: {names}", url=path("brokers")
            )
        if troubled.absent:
            names = ", ".join(map(str, troubled.absent))
            yield Problem(
                text=f"brokers that hold replicas are not registered: {names}",
                url=path("brokers"),
            )
        if troubled.refusing:
            yield Problem(
                text=f"{counted(troubled.refusing, 'partition')} rejecting records, because too few"
                " replicas are in sync",
                url=path("topics") + "?show=problems",
            )
        if troubled.leaderless:
            yield Problem(
                text=f"{counted(troubled.leaderless, 'partition')} without a leader",
                url=path("topics") + "?show=problems",
            )
        if troubled.behind:
            yield Problem(
                text=f"{counted(troubled.behind, 'partition')} with replicas out of sync",
                grave=False,
                url=path("topics") + "?show=problems",
            )
        for what, found in (
            ("with damaged records", broker.store.damages),
            ("that cannot be compacted", broker.store.uncleanable),
            ("of queues whose dead letters cannot be written", broker.share.dead_letters.troubles),
        ):
            if found:
                yield Problem(text=f"{counted(len(found), 'partition')} {what}")
