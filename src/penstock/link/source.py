"""Source cluster of links, as a consumer sees it: metadata, and fetches of several topics.

Its calls block, so they run on threads of the link service. A fetch is read_uncommitted: it returns
control batches and batches of aborted transactions as they are stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from penstock.client import errors
from penstock.client.client import CONNECT_TIMEOUT_MS
from penstock.client.errors import broker_error
from penstock.client.fetch import (
    BY_ID_FROM,
    Asked,
    FetchedPartition,
    Walked,
    read_topics,
    request_body,
    topic_body,
    walk_batches,
)
from penstock.client.frames import Frames
from penstock.client.protocol import TopicMetadata, make_call
from penstock.client.security import client_security, read_properties
from penstock.client.session import Session
from penstock.control.rules.metadata import LINK_CLIENT, LINK_SOURCE
from penstock.records.extents import EARLIEST, READ_UNCOMMITTED

FETCH_BYTES: Final = 16 << 20
"""Maximum size of the response of one source broker."""
PARTITION_BYTES: Final = 4 << 20
"""Maximum size of one partition in a response; a larger batch is sent whole."""
FETCH_WAIT_MS: Final = 250
"""Time for which a source broker waits for records."""
CALL_TIMEOUT_MS: Final = 10_000
CLIENT_ID: Final = "penstock-link"

Wanted = Mapping[str, Mapping[int, Asked]]
"""Positions to fetch from, by topic and partition."""


class Origin(NamedTuple):
    """Source of a link: bootstrap addresses, and the path of the client's options."""

    bootstrap: str
    client_config: str = ""

    @classmethod
    def of(cls, configs: Mapping[str, str]) -> Origin:
        """Return the source in a topic's configurations; without addresses if it is not linked."""
        return cls(configs.get(LINK_SOURCE, ""), configs.get(LINK_CLIENT, ""))

    @property
    def configs(self) -> dict[str, str]:
        """Configurations of a topic that follows this source."""
        client = {LINK_CLIENT: self.client_config} if self.client_config else {}
        return {LINK_SOURCE: self.bootstrap, **client}


class Fetched(NamedTuple):
    """Response for one partition; `walked` covers its whole batches."""

    topic: str
    asked: Asked
    part: FetchedPartition
    walked: Walked


def options_of(path: str) -> dict[str, str]:
    """Return the client's security options in a properties file; none for an empty path.

    Raises:
        UnusableFile: the file cannot be read.
    """
    return read_properties(path) if path else {}


def source_problem(name: str, found: TopicMetadata | None, known_id: str, count: int) -> str:
    """Return why a linked topic cannot follow the source's topic, and the remedy; or "".

    `known_id` is the id of the topic that was followed so far, or empty; `count` is the number of
    partitions of the linked topic.
    """
    if found is None or found.error_code:
        return (
            f"the source has no topic {name!r}, or the link's user may not describe it. Grant"
            " DESCRIBE and READ on the topic, keep the copied records with `penstock link promote"
            " --source-lost`, or delete them with `penstock link delete`"
        )
    recreate = (
        "Keep the copied records with `penstock link promote --source-lost`, or run `penstock link"
        " delete`, then `penstock link create`"
    )
    if known_id and found.topic_id is not None and str(found.topic_id) != known_id:
        return (
            f"topic {name!r} was deleted and created again at the source: its id is"
            f" {found.topic_id}, not {known_id}. {recreate}"
        )
    if len(found.partitions) < count:
        return (
            f"topic {name!r} has {len(found.partitions)} partitions at the source, but {count}"
            f" here. {recreate}"
        )
    return ""


class Source:
    """Connections to the brokers of one source cluster; several threads may use it.

    Raises:
        InvalidArgument: an address is invalid.
        InvalidSetting, UnusableFile: the client's options are invalid.
    """

    def __init__(self, bootstrap: str, client_config: str) -> None:
        self._session = Session(
            bootstrap,
            client_id=CLIENT_ID,
            request_timeout_ms=CALL_TIMEOUT_MS,
            connect_timeout_ms=CONNECT_TIMEOUT_MS,
            api_timeout_ms=CALL_TIMEOUT_MS,
            retry=errors.RETRY,
            security=client_security(options_of(client_config)),
        )
        self._frames: dict[int, Frames] = {}

    def close(self) -> None:
        self._session.close()

    def topics(self, names: Iterable[str]) -> Mapping[str, TopicMetadata]:
        """Return the current metadata of topics; raises PenstockError."""
        found = self._session.refresh(names).topics
        return {name: topic for name, topic in found.items() if not topic.error_code}

    def earliest(self, node_id: int, topic: str, partition: int) -> int:
        """Return the log start offset of a partition; raises PenstockError."""
        requested = {"partition_index": partition, "timestamp": EARLIEST}
        topics = [{"name": topic, "partitions": [requested]}]
        body = {"replica_id": -1, "isolation_level": READ_UNCOMMITTED, "topics": topics}
        answer = self._session.call_node(node_id, "ListOffsets", body)
        [found] = answer.topics[0].partitions
        if found.error_code:
            raise broker_error(int(found.error_code), f"log start of {topic}-{partition}")
        return int(found.offset)

    def fetch(
        self, node_id: int, wanted: Wanted, topics: Mapping[str, TopicMetadata]
    ) -> list[Fetched]:
        """Fetch partitions of several topics from one broker.

        Raises:
            PenstockError: the connection failed, or the broker rejected the request.
        """
        connection = self._session.lease(node_id)
        try:
            version = connection.negotiated.version("Fetch", connection.where)
            ids = {name: topics[name].topic_id for name in wanted}
            if None in ids.values():
                version = min(version, BY_ID_FROM - 1)
            body: Any = request_body(
                [
                    topic_body(name, ids[name], asked, version, PARTITION_BYTES)
                    for name, asked in wanted.items()
                ],
                version=version,
                isolation=READ_UNCOMMITTED,
                max_bytes=FETCH_BYTES,
                max_wait_ms=FETCH_WAIT_MS,
            )
            connection.send(
                make_call(
                    "Fetch",
                    version,
                    body,
                    correlation_id=connection.next_correlation_id(),
                    client_id=connection.client_id,
                )
            )
            frames = self._frames.setdefault(node_id, Frames())
            call, frame = connection.receive_frame(frames)
            code, parts = read_topics(
                frame, call.response_header_bytes, connection.where, call.version
            )
        finally:
            self._session.pool.give_back(connection)
        if code:
            raise broker_error(code, f"fetch from {connection.where}")
        by_id = call.version >= BY_ID_FROM
        names = {
            uuid.bytes if by_id and uuid is not None else name.encode(): name
            for name, uuid in ids.items()
        }
        return [
            Fetched(
                names[key], wanted[names[key]][part.partition], part, walk_batches(part.records)
            )
            for key, part in parts
        ]
