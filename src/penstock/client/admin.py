"""Administrative calls: topics, configurations, offsets of the log.

Each call sends one request, or one per leader, and retries while its error is retriable. If a
broker adds a message to a success, the client logs it as a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

from msgspec import Struct

from penstock.base.ids import validate_topic_name
from penstock.base.settings import INT_MAX, LONG_MAX, whole_number
from penstock.client.arguments import (
    REPLICAS_MAX,
    offsets_by_partition,
    partition_list,
    text,
    whole,
)
from penstock.client.errors import (
    BrokerBusy,
    BrokerRefused,
    InvalidArgument,
    TopicExists,
    UnknownBroker,
    UnknownTopic,
    broker_error,
    is_retriable,
)
from penstock.client.protocol import ClusterMetadata, Node, TopicMetadata, from_response
from penstock.client.session import Session, metadata_body
from penstock.records.extents import EARLIEST, LATEST, MAX_TIMESTAMP

logger = logging.getLogger(__name__)

_AT: Final = {"earliest": EARLIEST, "latest": LATEST, "max_timestamp": MAX_TIMESTAMP}
_RESOURCES: Final = {"topic": 2, "broker": 4, "client-metrics": 16, "group": 32}
_OWN: Final = "dynamic topic"
_SOURCES: Final = {
    0: "unknown",
    1: _OWN,
    2: "dynamic broker",
    3: "dynamic default broker",
    4: "static broker",
    5: "default",
    6: "dynamic broker logger",
    7: "client metrics",
    8: "group",
}
_SET: Final = 0
_DELETE: Final = 1
_APPEND: Final = 2
_SUBTRACT: Final = 3

ResourceKind = Literal["topic", "broker", "client-metrics", "group"]


class ConfigEntry(Struct, frozen=True, kw_only=True):
    name: str
    value: str | None
    source: str
    read_only: bool = False
    sensitive: bool = False
    documentation: str | None = None


class AdminCalls:
    _session: Session
    _request_timeout_ms: int

    def metadata(self, topics: Iterable[str] | None = None) -> ClusterMetadata:
        """Request metadata of the brokers and of the named topics; None requests all topics."""
        if isinstance(topics, str):
            raise InvalidArgument(f"topics = {topics!r}: must be a list of topic names")
        names = None if topics is None else [text("topics", name) for name in topics]
        return self._session.retrying(lambda: self._session.refresh(names))

    def metadata_of(self, node: Node, topics: Iterable[str]) -> ClusterMetadata:
        """Request metadata of topics from one broker, as that broker knows them."""
        address = node.host, node.port
        return from_response(self._session.call_address(address, "Metadata", metadata_body(topics)))

    def unsupported_calls(self, node: Node) -> list[str]:
        """Return the names of this client's calls that a broker does not support.

        Raises:
            Disconnected, TimedOut, MalformedResponse: its advertised address does not respond.
        """
        connection = self._session.pool.lease(node.host, node.port)
        try:
            return connection.negotiated.missing()
        finally:
            self._session.pool.give_back(connection)

    def list_topics(self, *, internal: bool = False) -> list[TopicMetadata]:
        topics = self.metadata().topics.values()
        return sorted((t for t in topics if internal or not t.internal), key=lambda t: t.name)

    def describe_topic(self, name: str) -> TopicMetadata:
        """Return a topic's metadata.

        Raises:
            UnknownTopic: the cluster has no topic of this name.
        """
        text("name", name)
        return self._session.retrying(lambda: self._session.fetch_topic(name))

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        configs: Mapping[str, str] | None = None,
        *,
        replication_factor: int = -1,
        exist_ok: bool = False,
    ) -> TopicMetadata:
        """Create a topic and wait until each of its partitions has a leader.

        With `exist_ok`, a user that may describe the topic needs no right to create it if it
        exists.

        Raises:
            InvalidTopicName, InvalidArgument: an argument is invalid; nothing is sent.
            TopicExists: the topic exists, and `exist_ok` is False.
            BrokerRefused: a configuration or a number is invalid.
        """
        validate_topic_name(name)
        if partitions != -1:  # the broker's default
            whole("partitions", partitions, 1, INT_MAX)
        if replication_factor != -1:
            whole("replication_factor", replication_factor, 1, REPLICAS_MAX)
        body = {
            "topics": [
                {
                    "name": name,
                    "num_partitions": partitions,
                    "replication_factor": replication_factor,
                    "assignments": (),
                    "configs": [
                        {"name": key, "value": str(value)} for key, value in (configs or {}).items()
                    ],
                }
            ],
            "timeout": self._request_timeout_ms,
        }
        try:
            self._control("CreateTopics", body, "topics", lambda item: f"topic {item.name!r}")
        except BrokerRefused as error:
            if not exist_ok:
                raise
            if not isinstance(error, TopicExists) and name not in self.metadata().topics:
                raise
        self._session.forget(name)
        return self._session.retrying(lambda: self._usable(name))

    def _usable(self, name: str) -> TopicMetadata:
        try:
            topic = self._session.fetch_topic(name)
        except UnknownTopic as error:
            raise BrokerBusy(f"topic {name!r} was created, but is not visible yet") from error
        if any(partition.leader < 0 for partition in topic.partitions):
            raise BrokerBusy(f"topic {name!r} was created, but some partitions have no leader yet")
        return topic

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its records and committed offsets.

        Raises:
            UnknownTopic: the cluster has no topic of this name.
        """
        body = {
            "topic_names": [text("name", name)],
            "topics": [{"name": name}],
            "timeout": self._request_timeout_ms,
        }
        self._control("DeleteTopics", body, "responses", lambda item: f"topic {item.name!r}")
        self._session.forget(name)

    def create_partitions(self, name: str, total: int) -> None:
        """Raise the number of a topic's partitions to `total`.

        Raises:
            UnknownTopic: the cluster has no topic of this name.
            BrokerRefused: the topic has as many partitions, or more.
        """
        body = {
            "topics": [
                {
                    "name": text("name", name),
                    "count": whole("total", total, 1, INT_MAX),
                    "assignments": None,
                }
            ],
            "timeout": self._request_timeout_ms,
            "validate_only": False,
        }
        self._control(
            "CreatePartitions", body, "results", lambda item: f"topic {item.name!r} to {total}"
        )
        self._session.forget(name)

    def delete_records(self, topic: str, before: Mapping[int, int]) -> dict[int, int]:
        """Delete the records before an offset per partition; -1 deletes all records.

        Returns the new log start offsets.

        Raises:
            InvalidArgument: an offset is below -1, or there is no offset.
            OffsetOutOfRange: an offset is above the high watermark.
        """
        text("topic", topic)
        before = offsets_by_partition("before", before, minimum=-1)

        def once() -> dict[int, int]:
            starts: dict[int, int] = {}
            for node_id, partitions in self._session.leaders_of(topic, before).items():
                body = {
                    "topics": [
                        {
                            "name": topic,
                            "partitions": [
                                {"partition_index": p, "offset": before[p]} for p in partitions
                            ],
                        }
                    ],
                    "timeout": self._request_timeout_ms,
                }
                response = self._session.call_node(node_id, "DeleteRecords", body)
                for item in self._partitions(response.topics, topic, "delete records of", before):
                    starts[int(item.partition_index)] = int(item.low_watermark)
            return dict(sorted(starts.items()))

        return self._session.retrying(once)

    def list_offsets(
        self,
        topic: str,
        at: str | int = "latest",
        *,
        partitions: Sequence[int] | None = None,
        isolation: int = 0,
    ) -> dict[int, int]:
        """Return an offset per partition.

        `at` is `earliest`, `latest` (the offset of the next record), or a timestamp in
        milliseconds. For a timestamp it is the offset of the first record at or after it, or -1 if
        there is none.

        Raises:
            UnknownTopic: the cluster has no such topic or partition.
        """
        text("topic", topic)
        whole("isolation", isolation, 0, 1)
        given = partition_list(partitions)
        if isinstance(at, str) and at not in _AT:
            raise InvalidArgument(
                f"at = {at!r}: must be {', '.join(_AT)}, or a timestamp in milliseconds of"
                " at least 0"
            )
        timestamp = _AT[at] if isinstance(at, str) else whole("at", at, 0, LONG_MAX)

        def once() -> dict[int, int]:
            chosen = given
            if chosen is None:
                chosen = [item.index for item in self._session.topic(topic).partitions]
            offsets: dict[int, int] = {}
            for node_id, led in self._session.leaders_of(topic, chosen).items():
                requested = [{"partition_index": p, "timestamp": timestamp} for p in led]
                body = {
                    "replica_id": -1,
                    "isolation_level": isolation,
                    "topics": [{"name": topic, "partitions": requested}],
                }
                response = self._session.call_node(node_id, "ListOffsets", body)
                for item in self._partitions(response.topics, topic, "offsets of", {}):
                    offsets[int(item.partition_index)] = int(item.offset)
            return dict(sorted(offsets.items()))

        return self._session.retrying(once)

    def _partitions(
        self, topics: Iterable[Any], topic: str, what: str, values: Mapping[int, int]
    ) -> Iterable[Any]:
        for found in topics:
            for item in found.partitions:
                code = int(item.error_code)
                if code:
                    index = int(item.partition_index)
                    at = f" at offset {values[index]}" if index in values else ""
                    if is_retriable(code):
                        self._session.forget(topic)
                    raise broker_error(code, f"{what} {topic}-{index}{at}")
                yield item

    def describe_configs(
        self, kind: ResourceKind, name: str | int, *, documentation: bool = False
    ) -> list[ConfigEntry]:
        """Return the configuration of the topic, broker, group or metrics subscription of this
        name.

        Raises:
            UnknownTopic: the cluster has no topic of this name.
        """
        resource = {
            "resource_type": _resource(kind),
            "resource_name": str(name),
            "configuration_keys": None,
        }
        body = {
            "resources": [resource],
            "include_synonyms": False,
            "include_documentation": documentation,
        }

        def once() -> list[ConfigEntry]:
            response = self._call_resource(kind, name, "DescribeConfigs", body)
            found: list[ConfigEntry] = []
            for result in response.results:
                if int(result.error_code):
                    raise broker_error(
                        int(result.error_code), f"{kind} {name!r}", result.error_message
                    )
                found.extend(_entry(item) for item in result.configs)
            return sorted(found, key=lambda item: item.name)

        return self._session.retrying(once)

    def own_configs(self, topic: str) -> dict[str, str]:
        """Return the configurations that were set for a topic itself, without any defaults.

        Raises:
            UnknownTopic: the cluster has no topic of this name.
        """
        return {
            entry.name: entry.value or ""
            for entry in self.describe_configs("topic", topic)
            if entry.source == _OWN
        }

    def alter_configs(
        self,
        kind: ResourceKind,
        name: str | int,
        changes: Mapping[str, str] | None = None,
        *,
        delete: Iterable[str] = (),
        append: Mapping[str, str] | None = None,
        subtract: Mapping[str, str] | None = None,
    ) -> None:
        """Set configurations, and reset those in `delete` to their defaults.

        `append` and `subtract` add elements to configurations that are lists, or remove them.

        Raises:
            BrokerRefused: a name is unknown or a value invalid; nothing is changed.
        """
        entries: list[dict[str, Any]] = [
            {"name": key, "config_operation": operation, "value": str(value)}
            for operation, values in ((_SET, changes), (_APPEND, append), (_SUBTRACT, subtract))
            for key, value in (values or {}).items()
        ]
        entries += [{"name": key, "config_operation": _DELETE, "value": None} for key in delete]
        resource = {
            "resource_type": _resource(kind),
            "resource_name": str(name),
            "configs": entries,
        }
        body = {"resources": [resource], "validate_only": False}

        def once() -> None:
            response = self._call_resource(kind, name, "IncrementalAlterConfigs", body)
            for result in response.responses:
                if int(result.error_code):
                    raise broker_error(
                        int(result.error_code), f"{kind} {name!r}", result.error_message
                    )
                if result.error_message:
                    logger.warning("%s %r: %s", kind, name, result.error_message)

        self._session.retrying(once)

    def registered(self, broker_id: int) -> Node:
        """Return a registered broker, after a request for fresh metadata.

        Raises:
            UnknownBroker: no broker of this id is registered.
        """
        nodes = self._session.refresh(()).nodes
        if broker_id not in nodes:
            names = ", ".join(map(str, sorted(nodes)))
            raise UnknownBroker(
                f"broker {broker_id} is not registered; registered brokers are {names}"
            )
        return nodes[broker_id]

    def _call_resource(self, kind: ResourceKind, name: str | int, api: str, body: Any) -> Any:
        if kind == "broker" and str(name):
            number = whole_number(str(name), INT_MAX)
            if number is None:
                raise InvalidArgument(f"broker {name!r}: must be a broker id")
            return self._session.call_node(self.registered(number).node_id, api, body)
        return self._session.call_any(api, body)

    def _control(self, api: str, body: Any, results: str, subject: Any) -> None:
        def once() -> None:
            response = self._session.call_controller(api, body)
            for item in getattr(response, results):
                code = int(item.error_code)
                message = getattr(item, "error_message", None)
                if code:
                    raise broker_error(code, subject(item), message)
                if message:
                    logger.warning("%s: %s", subject(item), message)

        self._session.retrying(once)


def _resource(kind: str) -> int:
    number = _RESOURCES.get(kind)
    if number is None:
        raise InvalidArgument(f"kind = {kind!r}: must be {' or '.join(_RESOURCES)}")
    return number


def _entry(item: Any) -> ConfigEntry:
    source = _SOURCES.get(int(getattr(item, "config_source", 0)), "unknown")
    return ConfigEntry(
        name=str(item.name),
        value=item.value,
        source=source,
        read_only=bool(item.read_only),
        sensitive=bool(item.is_sensitive),
        documentation=getattr(item, "documentation", None),
    )
