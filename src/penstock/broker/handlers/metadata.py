"""Metadata: brokers, topics and their leaders; encoded once, answered until the image changes.

Three ways of asking: for all topics (null; in version 0 an empty list), for none (an empty
list), for some, by name or from version 12 on by id. A topic that is asked for by name and does
not exist is created when both the client and `auto.create.topics.enable` allow it; one that is not
known here is looked for in the control plane, where another broker may have put it.

Who leads a partition whose leader seems to be gone will be known in a moment, and a client that is
told of the old one, or of none, asks again after as much as a second (librdkafka). So an answer
waits for a new leader, `LED_ANEW_SECONDS` at most; then there is none.

The leaders of diskless partitions depend on the client's rack as well; see `broker/diskless.py`.

Source: `MetadataRequest.json`; KIP-430 (authorised operations), KIP-516 (topic ids).
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from penstock.base.errors import InvalidError, PenstockError, RetriableError, UnavailableError
from penstock.base.ids import validate_topic_name
from penstock.broker.connection import RequestContext
from penstock.broker.diskless import rack_of
from penstock.broker.errors import error_number, error_of
from penstock.broker.identity import address_of
from penstock.broker.leader_epochs import serving_epoch
from penstock.broker.limits import METADATA_CACHE_BYTES, METADATA_CACHE_ENTRIES
from penstock.broker.operations import NOT_ASKED, cluster_operations, operations_of
from penstock.security import CLUSTER, EVERYTHING, AuthorisationFailed
from penstock.wire.kafka.apis import APIS, METADATA
from penstock.wire.kafka.encoder import encoder

if TYPE_CHECKING:
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.partition_registry import PartitionRegistry
    from penstock.broker.quotas.service import Quotas
    from penstock.broker.settings import BrokerSettings
    from penstock.broker.topic_admin import TopicAdmin
    from penstock.control import Partition, Topic

logger = logging.getLogger(__name__)

LED_ANEW_SECONDS: Final = 0.3
_THROTTLE: Final = struct.Struct(">i")
_THROTTLE_FROM: Final = 3
"""The version from which an answer begins with the time to wait."""
NEVER_STRICT: Final = 2**15
"""The version from which topics are refused because of a quota: they are created, for now."""
_IDS_FROM: Final = 12
"""The version from which topics may be named by ids: before, answers have names alone."""
_NAME: Final = APIS[METADATA].name
Wanted = list[tuple[str | None, Any]]


class NotLookedUp(RetriableError):
    """A topic that is not known here, while the control plane cannot be asked for it.

    Clients ask again for metadata at this error, and at few others.
    """

    code: ClassVar[str] = "leader_not_available"


class MetadataCache:
    """Encoded answers by version, request, rack and listener, dropped when the image changes."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What these handlers use."""

    settings: BrokerSettings
    cluster: ClusterMetadata
    partitions: PartitionRegistry
    metadata_cache: MetadataCache
    topic_admin: TopicAdmin
    quotas: Quotas


def metadata(parts: Parts, context: RequestContext, request: Any) -> bytes | Awaitable[bytes]:
    """Answer from the cache, from the image, or after creating what is missing.

    What a broker says that hears of nobody may be old, and librdkafka asks the one that it has
    talked to last, for as long as they are connected: the connection is closed after the answer.
    """
    _check_names(context.version, request)
    if parts.cluster.alone():
        why = "another broker may know of newer leaders: this one hears of nobody"
        asyncio.get_running_loop().call_soon(context.connection.close, why)
    unreachable = parts.cluster.unreachable()
    if unreachable and unreachable & _leaders(parts, _wanted(context.version, request)):
        return _answer_when_led(parts, context, request)
    return _answer_now(parts, context, request)


def _check_names(version: int, request: Any) -> None:
    """Raise InvalidError where topics are named by ids in versions 10 and 11, or not at all.

    These versions have the fields, and no answer for them.
    """
    if version >= _IDS_FROM:
        return
    for topic in request.topics or ():
        if topic.name is None:
            raise InvalidError(f"Topic name can not be null for version {version}")
        if getattr(topic, "topic_id", None) is not None:
            raise InvalidError(f"Topic IDs are not supported in requests for version {version}")


def _answer_now(parts: Parts, context: RequestContext, request: Any) -> bytes | Awaitable[bytes]:
    key = _key(parts, context, request)
    cached = parts.metadata_cache.get(key)
    if cached is not None:
        return cached
    wanted, errors = _wanted(context.version, request), {}
    if wanted is not None:
        if context.rights is not EVERYTHING:
            errors = _refused(parts, context, request, wanted)
        visible = [one for one in wanted if _key_of(*one) not in errors]
        missing = _to_create(parts, request, visible)
        if missing:
            return _create_and_answer(parts, context, request, wanted, missing, errors)
        if any(_is_unknown(parts, *one) for one in visible):
            return _look_and_answer(parts, context, request, wanted, errors)
    return _answer(parts, context, request, wanted, errors)


def _key_of(name: str | None, topic_id: Any) -> Any:
    """By what errors of a topic are known."""
    return topic_id or name


def _refused(
    parts: Parts, context: RequestContext, request: Any, wanted: Wanted
) -> dict[Any, PenstockError]:
    """The errors of the topics that may not be described, or be created where they are not."""
    rights = context.rights
    errors: dict[Any, PenstockError] = {}
    creates = rights.allows("create", "cluster", CLUSTER)
    for name, topic_id in wanted:
        known = None if topic_id is None else parts.partitions.topics_by_id.get(topic_id.bytes)
        topic = name if known is None else known.topic.name
        if topic is None:
            continue
        if not rights.allows("describe", "topic", topic):
            errors[_key_of(name, topic_id)] = context.refusal("describe", "topic", topic)
        elif creates or rights.allows("create", "topic", topic):
            continue
        elif _to_create(parts, request, [(name, topic_id)]):
            errors[_key_of(name, topic_id)] = context.refusal("create", "topic", topic)
    return errors


def throttled(version: int, body: bytes, throttle_ms: int) -> bytes:
    """The body of an answer that says how long the client has to wait."""
    if version < _THROTTLE_FROM:
        return body
    return _THROTTLE.pack(throttle_ms) + body[_THROTTLE.size :]


def _leaders(parts: Parts, wanted: Wanted | None) -> set[int]:
    """Who leads the replicated partitions that are asked for."""
    image = parts.cluster.image
    topics = (
        image.topics.values()
        if wanted is None
        else [
            image.topics.get(name or "") if topic_id is None else image.topic_by_id(topic_id)
            for name, topic_id in wanted
        ]
    )
    return {
        partition.leader
        for topic in topics
        if topic is not None
        for partition in topic.partitions
        if partition.has_epochs
    }


async def _answer_when_led(parts: Parts, context: RequestContext, request: Any) -> bytes:
    loop, wanted = asyncio.get_running_loop(), _wanted(context.version, request)
    until = loop.time() + LED_ANEW_SECONDS
    while (left := until - loop.time()) > 0:
        await parts.cluster.next_image(left)
        if _leaders(parts, wanted) <= parts.cluster.live:
            break
    answer = _answer_now(parts, context, request)
    return answer if isinstance(answer, bytes) else await answer


def _is_unknown(parts: Parts, name: str | None, topic_id: Any) -> bool:
    if topic_id is not None:
        return topic_id.bytes not in parts.partitions.topics_by_id
    return name not in parts.partitions.topics


async def _look_and_answer(
    parts: Parts,
    context: RequestContext,
    request: Any,
    wanted: Wanted,
    errors: Mapping[Any, PenstockError],
) -> bytes:
    """Ask the control plane before a topic is said to be unknown.

    Another broker may have created it just now. A consumer that subscribes to it is told so once,
    and would not ask again before its metadata expire, minutes later. Where it cannot be asked,
    whether there is such a topic is not known: clients are told to ask again.
    """
    try:
        await parts.cluster.refresh()
    except PenstockError as error:
        logger.warning("looking for new topics failed: %s", error)
        errors = {**_not_looked_up(wanted, error), **errors}
    return _answer(parts, context, request, wanted, errors)


def _not_looked_up(wanted: Wanted, cause: PenstockError) -> dict[Any, PenstockError]:
    """The error of each topic that turns out not to be known, by name or id."""
    error = NotLookedUp(str(cause))
    return {_key_of(*one): error for one in wanted}


def _key(parts: Parts, context: RequestContext, request: Any) -> tuple[Any, ...]:
    """What an answer depends on beside the image. A client that names no rack has the empty one."""
    rack = rack_of(context.client_id, parts.cluster.image)
    unreachable = parts.cluster.unreachable()
    listener = context.connection.listener
    return context.version, request, rack, listener, unreachable, context.rights


def _wanted(version: int, request: Any) -> Wanted | None:
    """The topics asked for as (name, id); None means all."""
    if request.topics is None or (version == 0 and not request.topics):
        return None
    wanted: Wanted = []
    for topic in request.topics:
        topic_id = getattr(topic, "topic_id", None)
        wanted.append((topic.name if topic_id is None else None, topic_id))
    return wanted


def _to_create(parts: Parts, request: Any, wanted: Wanted) -> list[str]:
    allowed = getattr(request, "allow_auto_topic_creation", True)
    if not allowed or not parts.settings.auto_create_topics_enable:
        return []
    return [name for name, _ in wanted if name is not None and name not in parts.partitions.topics]


async def _create_and_answer(
    parts: Parts,
    context: RequestContext,
    request: Any,
    wanted: Wanted,
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
    quota = parts.quotas.mutations(context, strict_from=NEVER_STRICT)
    quota.take(len(valid) * parts.settings.num_partitions)
    try:
        results = zip(valid, await parts.topic_admin.create_by_default(valid), strict=True)
    except UnavailableError as error:
        logger.warning("creating topics failed: %s", error)
        return _answer(parts, context, request, wanted, _not_looked_up(wanted, error) | errors)
    errors |= {name: result for name, result in results if isinstance(result, PenstockError)}
    return _answer(parts, context, request, wanted, errors)


def _answer(
    parts: Parts,
    context: RequestContext,
    request: Any,
    wanted: Wanted | None,
    errors: Mapping[Any, PenstockError],
) -> bytes:
    rights = context.rights
    with_operations = getattr(request, "include_topic_authorized_operations", False)

    def operations(name: str) -> int:
        return operations_of(rights, "topic", name) if with_operations else NOT_ASKED

    key = _key(parts, context, request)
    rack, image = key[2], parts.cluster.image
    live = parts.cluster.live
    if wanted is None:
        topics = [
            _topic(topic, parts.cluster.shown(topic, rack), operations, live)
            for topic in image.topics.values()
            if rights.allows("describe", "topic", topic.name)
        ]
    else:
        topics = [_wanted_topic(parts, *one, rack, operations, live, errors) for one in wanted]
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
            "controller_id": min((broker.broker_id for broker in image.serving), default=-1),
            "topics": topics,
            "cluster_authorized_operations": (
                cluster_operations(rights) if with_cluster else NOT_ASKED
            ),
        }
    )
    if not any(topic["error_code"] for topic in topics):
        parts.metadata_cache.put(key, body)
    return body


def _wanted_topic(
    parts: Parts,
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
        by_id = parts.partitions.topics_by_id.get(topic_id.bytes)
        if by_id is not None:
            return _topic(by_id.topic, parts.cluster.shown(by_id.topic, rack), operations, live)
        code = errors[topic_id].code if topic_id in errors else "unknown_topic_id"
        return _missing(None, topic_id, error_number(code))
    if name is None:
        return _missing("", None, error_number("invalid_topic_exception"))
    found = parts.partitions.topics.get(name)
    if found is not None:
        return _topic(found.topic, parts.cluster.shown(found.topic, rack), operations, live)
    try:
        validate_topic_name(name)
    except PenstockError as error:
        return _missing(name, None, error_of(error)[0])
    if name in errors:
        return _missing(name, None, error_of(errors[name])[0])
    unknown = _missing(name, None, error_number("unknown_topic_or_partition"))
    return {**unknown, "topic_authorized_operations": operations(name)}


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
