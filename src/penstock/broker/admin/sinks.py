"""Exactly-once sink over HTTP: staging, commits, and the state of each query.

| route                                      | does                                            |
|--------------------------------------------|-------------------------------------------------|
| GET /v1/staging                            | returns the staging directory                   |
| PUT /v1/staging/{name}                     | stages a blob durably; 201                      |
| POST /v1/sinks/{query}/commits/{batch}     | commits a batch once; 200 when it is durable;   |
|                                            | `?check=true` only checks it                    |
| GET /v1/sinks, GET /v1/sinks/{query}       | returns the newest commit of each query, or one |
| DELETE /v1/sinks/{query}                   | deletes a query's state; `?abandon=true` also   |
|                                            | with an open intent                             |

With an authoriser, ACLs of transactional ids apply to the names of queries. A commit requires write
on its query and on each topic of the manifest. Staging requires write on at least one topic.

A commit may include diskless topics. One transaction of the control plane assigns the offsets of
their records, which the response contains. A commit of diskless topics only is completed by this
transaction.

Query names may contain slashes, percent-encoded or not. Retriable failures have status 503; the
caller then sends the same request again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, ClassVar, Final

from msgspec import Struct
from starlette.requests import ClientDisconnect

from penstock.base.errors import InvalidError
from penstock.base.http_routes import Routes
from penstock.base.settings import LONG_MAX
from penstock.broker.admin.access import DESCRIBE, Caller, Needs, caller_of
from penstock.broker.admin.extents import flag, machine_id, number
from penstock.broker.batch_commits.manifest import (
    MANIFEST_BYTES_MAX,
    Manifest,
    ManifestTooLarge,
    StagingUnavailable,
    check_query,
    parse_post,
)

if TYPE_CHECKING:
    from starlette.requests import Request

    from penstock.broker.batch_commits import SinkService
    from penstock.broker.configuration.settings import BrokerSettings
    from penstock.broker.partitions.registry import PartitionRegistry
    from penstock.control import ControlPlane, SinkCommit


_STAGE: Final = Needs(operation="write", resource_type="topic", some=True)


class UploadCut(InvalidError):
    """Upload whose client disconnected before its end."""


class SinkViews(Struct, frozen=True, kw_only=True):
    settings: BrokerSettings
    control: ControlPlane
    partitions: PartitionRegistry
    sinks: SinkService | None

    routes: ClassVar[Routes[Any, Needs]] = Routes()

    def _sinks(self) -> SinkService:
        if self.sinks is None:
            raise StagingUnavailable("staging is disabled: sink.staging.directory is not set")
        return self.sinks

    @routes.add("GET /v1/staging", _STAGE)
    async def staging(self, request: Request) -> dict[str, Any]:
        """Return the staging directory; fails if it has no room for further blobs."""
        area = self._sinks().area
        await area.check_room()
        return {
            "directory": str(area.directory),
            "token": area.token,
            "machine_id": machine_id(),
            "blob_max_bytes": area.blob_max_bytes,
        }

    @routes.add(
        "PUT /v1/staging/{name}",
        _STAGE,
        status=201,
        body_bytes_max=lambda parts: parts.settings.sink_staging_blob_max_bytes,
    )
    async def upload(self, request: Request) -> dict[str, Any]:
        area = self._sinks().area
        principal = str(caller_of(request).known.principal)
        done = await area.upload(request.path_params["name"], _chunks(request), principal)
        return {"size_bytes": done.size_bytes, "crc32c": done.crc32c}

    @routes.add(
        "POST /v1/sinks/{query:path}/commits/{batch}",
        Needs(operation="write", resource_type="transactional_id", named="query"),
        ("check",),
        body_bytes_max=lambda _: MANIFEST_BYTES_MAX,
    )
    async def commit(self, request: Request) -> dict[str, Any]:
        sinks = self._sinks()
        query = check_query(request.path_params["query"])
        batch_id = number("batch", request.path_params["batch"], LONG_MAX)
        body = bytearray()
        async for chunk in _chunks(request):
            body += chunk
            if len(body) > MANIFEST_BYTES_MAX:
                raise ManifestTooLarge(
                    f"the manifest has more than {MANIFEST_BYTES_MAX} bytes: commit smaller batches"
                )
        owner, manifest = await asyncio.to_thread(parse_post, bytes(body))
        caller_of(request).check("write", "topic", sorted(self._topics(manifest)))
        if flag(request.query_params, "check"):
            await sinks.check(query=query, batch_id=batch_id, owner=owner, manifest=manifest)
            return {"query": query, "batch": batch_id, "outcome": "checked"}
        done = await sinks.post(query=query, batch_id=batch_id, owner=owner, manifest=manifest)
        return {
            "query": done.query,
            "batch": done.batch_id,
            "outcome": done.outcome,
            "records": done.records,
            "offsets": [
                {
                    "topic": target.topic,
                    "partition": target.partition,
                    "base_offset": target.base_offset,
                    "next_offset": target.next_offset,
                }
                for target in done.targets
            ],
        }

    def _topics(self, manifest: Manifest) -> set[str]:
        names = set[str]()
        for target, (name, _) in manifest.targets().items():
            known = self.partitions.topics_by_id.get(target.topic_id.bytes)
            names |= {name} if known is None else {name, known.topic.name}
        return names

    @routes.add("GET /v1/sinks", DESCRIBE)
    async def show_sinks(self, request: Request) -> list[dict[str, Any]]:
        """Return the newest commit of every query; omit topics that the caller may not describe."""
        return [_described(row, caller_of(request)) for row in await self.control.sink_commits()]

    @routes.add(
        "GET /v1/sinks/{query:path}",
        Needs(operation="describe", resource_type="transactional_id", named="query"),
    )
    async def sink(self, request: Request) -> dict[str, Any]:
        """Return the newest commit of one query; omit topics that the caller may not describe."""
        query = check_query(request.path_params["query"])
        return _described(await self._sinks().commit_of(query), caller_of(request))

    @routes.add(
        "DELETE /v1/sinks/{query:path}",
        Needs(operation="write", resource_type="transactional_id", named="query", audited=True),
        ("abandon",),
    )
    async def forget(self, request: Request) -> dict[str, Any]:
        """Delete the stored state of a query, and return it."""
        query = check_query(request.path_params["query"])
        abandon = flag(request.query_params, "abandon")
        return _described(await self._sinks().forget(query, abandon=abandon), caller_of(request))


async def _chunks(request: Request) -> AsyncIterator[bytes]:
    try:
        async for chunk in request.stream():
            yield chunk
    except ClientDisconnect:
        raise UploadCut(f"{request.url.path}: the client closed the connection") from None


def _described(row: SinkCommit, caller: Caller) -> dict[str, Any]:
    return {
        "query": row.query_id,
        "owner": row.owner,
        "batch": row.batch_id,
        "state": row.state,
        "updated_ms": row.updated_ms,
        "partitions": [
            {
                "topic": target.topic,
                "topic_id": str(target.topic_id),
                "partition": target.partition,
                "producer_id": target.producer_id,
                "next_sequence": target.next_sequence,
            }
            for target in row.targets
            if caller.sees(target.topic)
        ],
    }
