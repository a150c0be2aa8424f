"""Metadata: brokers, topics and leaders. Encoded responses are cached until the image changes.

A missing topic that the request names is created if the client and `auto.create.topics.enable`
allow it. Otherwise it is looked up in the control plane, because another broker may have created
it.

If a leader is unreachable, the response waits up to `NEW_LEADER_SECONDS` for a new leader. A
client that gets no leader may retry only after a second (librdkafka).

Source: `MetadataRequest.json`; KIP-430 (authorised operations), KIP-516 (topic ids).
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from msgspec import Struct

from penstock.base.errors import InvalidError, PenstockError, RetriableError, UnavailableError
from penstock.base.ids import validate_topic_name
from penstock.broker.metadata.leaders import controller_of, rack_of, serving_epoch
from penstock.broker.net.connection import RequestContext
from penstock.broker.net.errors import error_number, error_of
from penstock.broker.net.listeners import address_of
from penstock.broker.requests.access import NOT_ASKED, cluster_operations, operations_of
from penstock.security import CLUSTER, EVERYTHING, AuthorisationFailed
from penstock.wire.kafka.apis import APIS, METADATA
from penstock.wire.kafka.encoder import encoder

if TYPE_CHECKING:
    from penstock.broker.configuration.settings import BrokerSettings
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.partitions.registry import PartitionRegistry
    from penstock.broker.quotas.service import Quotas
    from penstock.broker.topics.admin import TopicAdmin
    from penstock.control import Partition, Topic

METADATA_CACHE_ENTRIES: Final = 256
"""Largest number of encoded responses that are cached until the image changes."""
METADATA_CACHE_BYTES: Final = 32 << 20

logger = logging.getLogger(__name__)

NEW_LEADER_SECONDS: Final = 0.3
_THROTTLE: Final = struct.Struct(">i")
_THROTTLE_FROM: Final = 3
"""First version whose response begins with the throttle time."""
NEVER_STRICT: Final = 2**15
"""First version in which a quota rejects the creation of topics. No version does so."""
_IDS_FROM: Final = 12
"""First version in which a request may name topics by their ids alone."""
_NAME: Final = APIS[METADATA].name
Requested = list[tuple[str | None, Any]]


class NotLookedUp(RetriableError):
    """Unknown topic that cannot be looked up, because the control plane is unavailable."""

    code: ClassVar[str] = "leader_not_available"


class MetadataCache:
    """Cache of encoded responses for one image, by the key of `Metadata._key`."""

    __slots__ = ("_bytes", "_entries")

    def __init__(self) -> None:
        self._entries: dict[Any, bytes] = {}
        self._bytes = 0

    def get(self, key: Any) -> bytes | None:
        return self._entries.get(key)

    def put(self, key: Any, body: bytes) -> None:
        full = len(self._entries) >= METADATA_CACHE_ENTRIES
        if full or self._bytes + len(body) > METADATA_CACHE_BYTES:
            self.clear()
        if len(body) <= METADATA_CACHE_BYTES:
            self._entries[key] = body
            self._bytes += len(body)

    def clear(self) -> None:
        self._entries.clear()
        self._bytes = 0


class Metadata(Struct, frozen=True, kw_only=True):
    settings: BrokerSettings
    cluster: ClusterMetadata
    partitions: PartitionRegistry
    metadata_cache: MetadataCache
    topic_admin: TopicAdmin
    quotas: Quotas

    def metadata(self, context: RequestContext, request: Any) -> bytes | Coroutine[Any, Any, bytes]:
        """Return a response from the cache or the image, after creating missing topics if needed.

        An isolated broker closes the connection after the response. Otherwise librdkafka would send
        its further requests for metadata to this broker too.
        """
        _check_names(context.version, request)
        if self.cluster.alone():
            why = "this broker is isolated; other brokers may have newer metadata"
            asyncio.get_running_loop().call_soon(context.connection.close, why)
        unreachable = self.cluster.unreachable()
        if unreachable and unreachable & self._leaders(_requested(context.version, request)):
            return self._answer_when_led(context, request)
        return self._answer_now(context, request)

    def _answer_now(
        self, context: RequestContext, request: Any
    ) -> bytes | Coroutine[Any, Any, bytes]:
        key = self._key(context, request)
        cached = self.metadata_cache.get(key)
        if cached is not None:
            return cached
        requested, errors = _requested(context.version, request), {}
        if requested is not None:
            if context.rights is not EVERYTHING:
                errors = self._refused(context, request, requested)
            visible = [topic for topic in requested if _key_of(*topic) not in errors]
            missing = self._to_create(request, visible)
            if missing:
                return self._create_and_answer(context, request, requested, missing, errors)
            if any(self._is_unknown(*topic) for topic in visible):
                return self._look_and_answer(context, request, requested, errors)
        return self._answer(context, request, requested, errors)

    def _refused(
        self, context: RequestContext, request: Any, requested: Requested
    ) -> dict[Any, PenstockError]:
        """Return the errors of topics that the caller may not describe, or may not create."""
        rights = context.rights
        errors: dict[Any, PenstockError] = {}
        creates = rights.allows("create", "cluster", CLUSTER)
        for name, topic_id in requested:
            known = None if topic_id is None else self.partitions.topics_by_id.get(topic_id.bytes)
            topic = name if known is None else known.topic.name
            if topic is None:
                continue
            if not rights.allows("describe", "topic", topic):
                errors[_key_of(name, topic_id)] = context.refusal("describe", "topic", topic)
            elif creates or rights.allows("create", "topic", topic):
                continue
            elif self._to_create(request, [(name, topic_id)]):
                errors[_key_of(name, topic_id)] = context.refusal("create", "topic", topic)
        return errors

    def _leaders(self, requested: Requested | None) -> set[int]:
        image = self.cluster.image
        topics = (
            image.topics.values()
            if requested is None
            else [
                image.topics.get(name or "") if topic_id is None else image.topic_by_id(topic_id)
                for name, topic_id in requested
            ]
        )
        return {
            partition.leader
            for topic in topics
            if topic is not None
            for partition in topic.partitions
            if partition.has_epochs
        }

    async def _answer_when_led(self, context: RequestContext, request: Any) -> bytes:
        loop, requested = asyncio.get_running_loop(), _requested(context.version, request)
        until = loop.time() + NEW_LEADER_SECONDS
        while (left := until - loop.time()) > 0:
            await self.cluster.next_image(left)
            if self._leaders(requested) <= self.cluster.live:
                break
        answer = self._answer_now(context, request)
        return answer if isinstance(answer, bytes) else await answer

    def _is_unknown(self, name: str | None, topic_id: Any) -> bool:
        if topic_id is not None:
            return topic_id.bytes not in self.partitions.topics_by_id
        return name not in self.partitions.topics

    async def _look_and_answer(
        self,
        context: RequestContext,
        request: Any,
        requested: Requested,
        errors: Mapping[Any, PenstockError],
    ) -> bytes:
        """Look up unknown topics in the control plane, and respond.

        A client retries only minutes after UNKNOWN_TOPIC_OR_PARTITION, so a topic that another
        broker has just created must not get this error.
        """
        try:
            await self.cluster.refresh()
        except PenstockError as error:
            logger.warning("could not look up unknown topics in the control plane: %s", error)
            errors = {**_not_looked_up(requested, error), **errors}
        return self._answer(context, request, requested, errors)

    def _key(self, context: RequestContext, request: Any) -> tuple[Any, ...]:
        """Return the cache key of a response: all that it depends on besides the image."""
        rack = rack_of(context.client_id, self.cluster.image)
        unreachable = self.cluster.unreachable()
        listener = context.connection.listener
        return context.version, request, rack, listener, unreachable, context.rights

    def _to_create(self, request: Any, requested: Requested) -> list[str]:
        allowed = getattr(request, "allow_auto_topic_creation", True)
        if not allowed or not self.settings.auto_create_topics_enable:
            return []
        return [
            name for name, _ in requested if name is not None and name not in self.partitions.topics
        ]

    async def _create_and_answer(
        self,
        context: RequestContext,
        request: Any,
        requested: Requested,
        missing: list[str],
        refused: Mapping[Any, PenstockError],
    ) -> bytes:
        errors = dict(refused)
        valid: list[str] = []
        for name in dict.fromkeys(missing):
            try:
                valid.append(validate_topic_name(name))
            except PenstockError as error:
                errors[name] = error
        quota = self.quotas.mutations(context, strict_from=NEVER_STRICT)
        quota.take(len(valid) * self.settings.num_partitions)
        try:
            results = zip(valid, await self.topic_admin.create_by_default(valid), strict=True)
        except UnavailableError as error:
            logger.warning("could not create topics for a metadata request: %s", error)
            return self._answer(
                context, request, requested, _not_looked_up(requested, error) | errors
            )
        errors |= {name: result for name, result in results if isinstance(result, PenstockError)}
        return self._answer(context, request, requested, errors)

    def _answer(
        self,
        context: RequestContext,
        request: Any,
        requested: Requested | None,
        errors: Mapping[Any, PenstockError],
    ) -> bytes:
        rights = context.rights
        with_operations = getattr(request, "include_topic_authorized_operations", False)

        def operations(name: str) -> int:
            return operations_of(rights, "topic", name) if with_operations else NOT_ASKED

        key = self._key(context, request)
        rack, image = key[2], self.cluster.image
        live = self.cluster.live
        if requested is None:
            topics = [
                _topic(topic, self.cluster.shown(topic, rack), operations, live)
                for topic in image.topics.values()
                if rights.allows("describe", "topic", topic.name)
            ]
        else:
            topics = [
                self._requested_topic(*topic, rack, operations, live, errors) for topic in requested
            ]
        with_cluster = getattr(request, "include_cluster_authorized_operations", False)
        body = encoder(_NAME, context.version, "response")(
            {
                "brokers": [
                    {
                        "node_id": broker.broker_id,
                        **address_of(broker, context.connection.listener),
                        "rack": broker.rack,
                    }
                    for broker in image.brokers
                ],
                "cluster_id": image.cluster_id,
                "controller_id": controller_of(image),
                "topics": topics,
                "cluster_authorized_operations": (
                    cluster_operations(rights) if with_cluster else NOT_ASKED
                ),
            }
        )
        if not any(topic["error_code"] for topic in topics):
            self.metadata_cache.put(key, body)
        return body

    def _requested_topic(
        self,
        name: str | None,
        topic_id: Any,
        rack: str,
        operations: Callable[[str], int],
        live: frozenset[int],
        errors: Mapping[Any, PenstockError],
    ) -> dict[str, Any]:
        error = errors.get(_key_of(name, topic_id))
        if isinstance(error, AuthorisationFailed):
            return _missing(name, topic_id, error_of(error)[0])
        if topic_id is not None:
            by_id = self.partitions.topics_by_id.get(topic_id.bytes)
            if by_id is not None:
                return _topic(by_id.topic, self.cluster.shown(by_id.topic, rack), operations, live)
            code = errors[topic_id].code if topic_id in errors else "unknown_topic_id"
            return _missing(None, topic_id, error_number(code))
        if name is None:
            return _missing("", None, error_number("invalid_topic_exception"))
        found = self.partitions.topics.get(name)
        if found is not None:
            return _topic(found.topic, self.cluster.shown(found.topic, rack), operations, live)
        try:
            validate_topic_name(name)
        except PenstockError as error:
            return _missing(name, None, error_of(error)[0])
        if name in errors:
            return _missing(name, None, error_of(errors[name])[0])
        unknown = _missing(name, None, error_number("unknown_topic_or_partition"))
        return {**unknown, "topic_authorized_operations": operations(name)}


def _check_names(version: int, request: Any) -> None:
    """Raise InvalidError if a version below 12 names a topic by its id or not at all."""
    if version >= _IDS_FROM:
        return
    for topic in request.topics or ():
        if topic.name is None:
            raise InvalidError(f"Topic name can not be null for version {version}")
        if getattr(topic, "topic_id", None) is not None:
            raise InvalidError(f"Topic IDs are not supported in requests for version {version}")


def _key_of(name: str | None, topic_id: Any) -> Any:
    return topic_id or name


def throttled(version: int, body: bytes, throttle_ms: int) -> bytes:
    if version < _THROTTLE_FROM:
        return body
    return _THROTTLE.pack(throttle_ms) + body[_THROTTLE.size :]


def _not_looked_up(requested: Requested, cause: PenstockError) -> dict[Any, PenstockError]:
    error = NotLookedUp(str(cause))
    return {_key_of(*topic): error for topic in requested}


def _requested(version: int, request: Any) -> Requested | None:
    if request.topics is None or (version == 0 and not request.topics):
        return None
    requested: Requested = []
    for topic in request.topics:
        topic_id = getattr(topic, "topic_id", None)
        requested.append((topic.name if topic_id is None else None, topic_id))
    return requested


def _missing(name: str | None, topic_id: Any, number: int) -> dict[str, Any]:
    return {"error_code": number, "name": name, "topic_id": topic_id, "partitions": ()}


def _topic(
    topic: Topic,
    partitions: Sequence[Partition],
    operations: Callable[[str], int],
    live: frozenset[int],
) -> dict[str, Any]:
    leaderless = error_number("leader_not_available")
    return {
        "error_code": 0,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.internal,
        "topic_authorized_operations": operations(topic.name),
        "partitions": [
            {
                "error_code": 0 if partition.leader in live else leaderless,
                "partition_index": partition.index,
                "leader_id": partition.leader if partition.leader in live else -1,
                "leader_epoch": serving_epoch(topic, partition),
                "replica_nodes": partition.copies,
                "isr_nodes": partition.isr,
                "offline_replicas": [copy for copy in partition.copies if copy not in live],
            }
            for partition in partitions
        ],
    }
