"""The exactly-once sink over HTTP: staging, commits, and what is known of each query.

| route                                      | does                                            |
|--------------------------------------------|-------------------------------------------------|
| GET /v1/staging                            | says where blobs are staged                     |
| PUT /v1/staging/{name}                     | stages one, durably; 201                        |
| POST /v1/sinks/{query}/commits/{batch}     | commits a batch once; 200 when all is durable;  |
|                                            | `?check=true` only says whether it would        |
| GET /v1/sinks, GET /v1/sinks/{query}       | the newest commit of each query, or of one      |
| DELETE /v1/sinks/{query}                   | forgets a query; `?abandon=true` an open intent |

With an authoriser a query is a transactional id: who commits needs write on it, and on each topic
that the manifest names; who stages, on some topic.

A commit may name diskless topics, whose offsets one transaction assigns; the answer has them. Where
all of its topics are, it is recorded as done or not at all.

The name of a query may have slashes, percent-encoded or not. Retriable failures are 503: the
caller posts the same again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.requests import ClientDisconnect

from penstock.base.errors import InvalidError
from penstock.base.settings import LONG_MAX
from penstock.broker.admin.extents import flag, machine_id, number
from penstock.broker.batch_commits.errors import ManifestTooLarge, StagingUnavailable
from penstock.broker.batch_commits.limits import MANIFEST_BYTES_MAX
from penstock.broker.batch_commits.manifest import check_query, parse_post

if TYPE_CHECKING:
    from starlette.requests import Request

    from penstock.broker.admin.access import Asker
    from penstock.broker.batch_commits import SinkService
    from penstock.broker.batch_commits.manifest import Manifest
    from penstock.broker.partition_registry import PartitionRegistry
    from penstock.control import ControlPlane, SinkCommit


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What these views use."""

    control: ControlPlane
    partitions: PartitionRegistry
    sinks: SinkService | None


class UploadCut(InvalidError):
    """The client went away in the middle of an upload."""


def _sinks(parts: Parts) -> SinkService:
    if parts.sinks is None:
        raise StagingUnavailable("sink.staging.directory is not set: nothing can be staged here")
    return parts.sinks


async def staging(parts: Parts, request: Request) -> dict[str, Any]:
    """Where to stage, while there is room."""
    area = _sinks(parts).area
    await area.check_room()
    return {
        "directory": str(area.directory),
        "token": area.token,
        "machine_id": machine_id(),
        "blob_max_bytes": area.blob_max_bytes,
    }


async def upload(parts: Parts, request: Request) -> dict[str, Any]:
    """Stage a blob from the body."""
    area = _sinks(parts).area
    principal = str(request.state.asker.principal)
    done = await area.upload(request.path_params["name"], _chunks(request), principal)
    return {"size_bytes": done.size_bytes, "crc32c": done.crc32c}


async def commit(parts: Parts, request: Request) -> dict[str, Any]:
    """Commit one batch of a query."""
    sinks = _sinks(parts)
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
    request.state.asker.check("write", "topic", sorted(_topics(parts, manifest)))
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


def _topics(parts: Parts, manifest: Manifest) -> set[str]:
    """The topics that a manifest names, and those that its ids are of."""
    names = set[str]()
    for target, (name, _) in manifest.targets().items():
        known = parts.partitions.topics_by_id.get(target.topic_id.bytes)
        names |= {name} if known is None else {name, known.topic.name}
    return names


async def sinks(parts: Parts, request: Request) -> list[dict[str, Any]]:
    """Describe the newest commit of every query, in topics that the asker may describe."""
    return [_described(row, request.state.asker) for row in await parts.control.sink_commits()]


async def sink(parts: Parts, request: Request) -> dict[str, Any]:
    """Describe the newest commit of one query, in topics that the asker may describe."""
    query = check_query(request.path_params["query"])
    return _described(await _sinks(parts).commit_of(query), request.state.asker)


async def forget(parts: Parts, request: Request) -> dict[str, Any]:
    """Forget a query; answers what was known."""
    query = check_query(request.path_params["query"])
    abandon = flag(request.query_params, "abandon")
    return _described(await _sinks(parts).forget(query, abandon=abandon), request.state.asker)


async def _chunks(request: Request) -> AsyncIterator[bytes]:
    try:
        async for chunk in request.stream():
            yield chunk
    except ClientDisconnect:
        raise UploadCut(f"{request.url.path}: the client closed the connection") from None


def _described(row: SinkCommit, asker: Asker) -> dict[str, Any]:
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
            if asker.sees(target.topic)
        ],
    }
