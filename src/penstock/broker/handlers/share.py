"""ShareFetch and ShareAcknowledge: delivery of records to members of share groups.

Source: `ShareFetchRequest.json`, `ShareAcknowledgeRequest.json`; KIP-932, KIP-1206, KIP-1222.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from penstock.broker.connection import Buffer, RequestContext
from penstock.broker.errors import InvalidGroupId
from penstock.broker.fetch.operation import FETCH_WAIT_SECONDS_MAX
from penstock.broker.identity import endpoints_of
from penstock.broker.share.acknowledging import Answers
from penstock.broker.share.fetching import ShareFetching
from penstock.broker.share.sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    InvalidShareRequest,
    InvalidShareSessionEpoch,
    Place,
    ShareSession,
)
from penstock.wire.kafka.primitives import milliseconds
from penstock.wire.kafka.share_fetch import encode_response

if TYPE_CHECKING:
    from penstock.base.system import Clock
    from penstock.broker.fetch.operation import FetchHub
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.partition_registry import PartitionRegistry
    from penstock.broker.quotas.service import Quotas
    from penstock.broker.settings import BrokerSettings
    from penstock.broker.share.service import ShareService
    from penstock.wire.kafka.leader_hints import Endpoint


class ShareRecords(Struct, frozen=True, kw_only=True):
    share: ShareService
    fetch_hub: FetchHub
    partitions: PartitionRegistry
    cluster: ClusterMetadata
    clock: Clock
    quotas: Quotas
    settings: BrokerSettings
    stopping: asyncio.Event

    async def share_fetch(self, context: RequestContext, request: Any) -> list[Buffer]:
        """Apply acknowledgements, then acquire and return records of the session's partitions."""
        partitions, acknowledgements = _named(request)
        if request.share_session_epoch == INITIAL_EPOCH and acknowledgements:
            raise InvalidShareRequest(
                "the first request of a share session must not contain acknowledgements"
            )
        if getattr(request, "is_renew_ack", False) and (request.max_records or request.max_bytes):
            raise InvalidShareRequest(
                "a request that renews locks must not fetch: set max_records and max_bytes to 0"
            )
        session = self._session(context, request)
        last = request.share_session_epoch == FINAL_EPOCH
        if not last:
            forgotten = [
                (topic.topic_id, index)
                for topic in request.forgotten_topics_data
                for index in topic.partitions
            ]
            session.update(partitions, forgotten)
        answers = await self._acknowledge(context, session, acknowledgements)
        throttled = self.quotas.active and self.quotas.before_fetch(context)
        if not last and not throttled:
            fetching = ShareFetching(
                answers,
                session,
                self.share.settings_of(request.group_id),
                request,
                shares=self.share.shares,
                hub=self.fetch_hub,
                bytes_max=self._bytes_max(context),
            )
            seconds = min(milliseconds(request.max_wait) / 1000, FETCH_WAIT_SECONDS_MAX)
            await fetching.run(0 if self.stopping.is_set() else seconds)
        await answers.acknowledged()
        if last:
            self.share.sessions.end(session, said=True)
        return encode_response(
            list(answers.by_topic().items()),
            lock_timeout_ms=self._lock_timeout_ms(request),
            endpoints=self._leaders(context, answers),
        )

    async def share_acknowledge(self, context: RequestContext, request: Any) -> dict[str, Any]:
        """Apply acknowledgements; respond when they are stored."""
        if request.share_session_epoch == INITIAL_EPOCH:
            raise InvalidShareSessionEpoch(
                "ShareAcknowledge cannot open a share session: send ShareFetch first"
            )
        _, acknowledgements = _named(request)
        session = self._session(context, request)
        answers = await self._acknowledge(context, session, acknowledgements)
        await answers.acknowledged()
        if request.share_session_epoch == FINAL_EPOCH:
            self.share.sessions.end(session, said=True)
        return {
            "acquisition_lock_timeout": self._lock_timeout_ms(request),
            "responses": [
                {
                    "topic_id": topic_id,
                    "partitions": [
                        {
                            "partition_index": partition.index,
                            "error_code": partition.acknowledge_error,
                            "error_message": partition.acknowledge_message,
                            "current_leader": {
                                "leader_id": partition.leader[0],
                                "leader_epoch": partition.leader[1],
                            },
                        }
                        for partition in partitions
                    ],
                }
                for topic_id, partitions in answers.by_topic().items()
            ],
            "node_endpoints": [
                {"node_id": node_id, "host": host, "port": port, "rack": rack}
                for node_id, host, port, rack in self._leaders(context, answers)
            ],
        }

    def _session(self, context: RequestContext, request: Any) -> ShareSession:
        """Open or continue the share session of a request; raises PenstockError."""
        if not request.group_id or not request.member_id:
            raise InvalidGroupId("group id and member id must not be empty")
        key, epoch = (request.group_id, request.member_id), request.share_session_epoch
        sessions, now = self.share.sessions, context.started
        connection, owner = context.connection, context.connection.principal
        if epoch == INITIAL_EPOCH:
            return sessions.begin(key, connection, owner=owner, now=now)
        return sessions.next_request(key, epoch, connection, owner=owner, now=now)

    async def _acknowledge(
        self, context: RequestContext, session: ShareSession, acknowledgements: Acknowledgements
    ) -> Answers:
        group_id, member = session.key
        answers = Answers(
            group_id,
            member,
            shares=self.share.shares,
            partitions=self.partitions,
            renews=self.share.settings_of(group_id).renews,
            context=context,
        )
        await answers.open([place for place, _ in acknowledgements])
        for place, batches in acknowledgements:
            answers.acknowledge(place, batches)
        return answers

    def _bytes_max(self, context: RequestContext) -> int:
        quota = self.quotas.fetch_bytes_max(context) if self.quotas.active else None
        most = self.settings.fetch_max_bytes
        return most if quota is None else min(most, quota)

    def _lock_timeout_ms(self, request: Any) -> int:
        return self.share.settings_of(request.group_id).limits.lock_duration_ms

    def _leaders(self, context: RequestContext, answers: Answers) -> list[Endpoint]:
        named = [answer.leader[0] for answer in answers.found.values() if answer.leader[0] >= 0]
        return endpoints_of(self.cluster.image, named, context.connection.listener)


Acknowledgements = list[tuple[Place, Sequence[Any]]]
"""Acknowledgement batches of a request by partition."""


def _named(request: Any) -> tuple[list[Place], Acknowledgements]:
    partitions, acknowledgements = [], []
    for topic in request.topics:
        for partition in topic.partitions:
            partition_key = (topic.topic_id, partition.partition_index)
            partitions.append(partition_key)
            if partition.acknowledgement_batches:
                acknowledgements.append((partition_key, partition.acknowledgement_batches))
    return partitions, acknowledgements
