"""Consumer group calls: list, describe, committed offsets, delete.

Commits here are *simple*: they have no generation, which Kafka allows while a group has no members.
Spark checkpoints and offset resets use them, so that a group shows their progress.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar

from msgspec import Struct, field

from penstock.base.settings import LONG_MAX
from penstock.client.arguments import text, topic_partition, whole
from penstock.client.errors import UnsupportedByBroker, broker_error, is_retriable
from penstock.client.protocol import TopicAndPartition
from penstock.client.session import Session

DEAD: Final = "Dead"
GROUP_ID_NOT_FOUND: Final = 69

T = TypeVar("T")


class GroupListing(Struct, frozen=True, kw_only=True):
    """Entry of a list of groups; `group_type` is empty if the broker does not return it."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str = ""


class GroupMember(Struct, frozen=True, kw_only=True):
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicAndPartition, ...] = ()


class GroupDescription(Struct, frozen=True, kw_only=True):
    group_id: str
    state: str
    protocol_type: str
    protocol: str
    members: tuple[GroupMember, ...] = field(default=())


class Committed(Struct, frozen=True, kw_only=True):
    """Committed offset of a group: the offset of the next record to read."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class GroupCalls:
    _session: Session

    def list_groups(self) -> list[GroupListing]:
        def once() -> list[GroupListing]:
            found: dict[str, GroupListing] = {}
            for node in self._session.nodes():
                address = (node.host, node.port)
                body = {"states_filter": (), "types_filter": ()}
                response = self._session.call_address(address, "ListGroups", body)
                if int(response.error_code):
                    raise broker_error(int(response.error_code), f"groups of broker {node.node_id}")
                for item in response.groups:
                    found[str(item.group_id)] = GroupListing(
                        group_id=str(item.group_id),
                        protocol_type=str(item.protocol_type),
                        state=str(getattr(item, "group_state", "")),
                        group_type=str(getattr(item, "group_type", "")),
                    )
            return [found[name] for name in sorted(found)]

        return self._session.retrying(once)

    def describe_group(self, group: str) -> GroupDescription:
        """Return a group with its members; a group that does not exist has the state `Dead`."""
        found = self._describe_classic(group)
        return (self._describe_consumer(group) or found) if found.state == DEAD else found

    def _describe_consumer(self, group: str) -> GroupDescription | None:
        """Return a consumer-protocol group (KIP-848); None if it or the protocol does not exist."""
        body = {"group_ids": [group], "include_authorized_operations": False}

        def read(response: Any) -> GroupDescription | None:
            item = response.groups[0]
            if int(item.error_code) == GROUP_ID_NOT_FOUND:
                return None
            self._check(group, int(item.error_code))
            return GroupDescription(
                group_id=str(item.group_id),
                state=str(item.group_state),
                protocol_type="consumer",
                protocol=str(item.assignor_name),
                members=tuple(_consumer(member) for member in item.members),
            )

        with suppress(UnsupportedByBroker):
            return self._coordinated(group, "ConsumerGroupDescribe", body, read)
        return None

    def _describe_classic(self, group: str) -> GroupDescription:
        body = {"groups": [group], "include_authorized_operations": False}

        def read(response: Any) -> GroupDescription:
            item = response.groups[0]
            self._check(group, int(item.error_code))
            return GroupDescription(
                group_id=str(item.group_id),
                state=str(item.group_state),
                protocol_type=str(item.protocol_type),
                protocol=str(item.protocol_data),
                members=tuple(_member(member) for member in item.members),
            )

        return self._coordinated(group, "DescribeGroups", body, read)

    def delete_group(self, group: str) -> None:
        """Delete a group that has no members, with its offsets.

        Raises:
            BrokerRefused: the group has members, or does not exist.
        """

        def read(response: Any) -> None:
            for item in response.results:
                self._check(group, int(item.error_code))

        self._coordinated(group, "DeleteGroups", {"groups_names": [group]}, read)

    def committed(
        self, group: str, partitions: Iterable[TopicAndPartition] | None = None
    ) -> dict[TopicAndPartition, Committed]:
        """Return the committed offsets of a group; partitions without one are omitted."""
        topics = None
        if partitions is not None:
            topics = [
                {"name": name, "partition_indexes": indexes}
                for name, indexes in _by_topic(partitions).items()
            ]
        body = {"group_id": group, "topics": topics, "require_stable": False}

        def read(response: Any) -> dict[TopicAndPartition, Committed]:
            self._check(group, int(getattr(response, "error_code", 0)))
            found: dict[TopicAndPartition, Committed] = {}
            for topic in response.topics:
                for item in topic.partitions:
                    self._check(group, int(item.error_code), f"{topic.name}-{item.partition_index}")
                    if int(item.committed_offset) >= 0:
                        found[str(topic.name), int(item.partition_index)] = Committed(
                            offset=int(item.committed_offset),
                            leader_epoch=int(getattr(item, "committed_leader_epoch", -1)),
                            metadata=item.metadata or "",
                        )
            return dict(sorted(found.items()))

        return self._coordinated(group, "OffsetFetch", body, read)

    def commit_offsets(
        self, group: str, offsets: Mapping[TopicAndPartition, int], *, metadata: str = ""
    ) -> None:
        """Commit offsets for a group that has no members.

        Raises:
            InvalidArgument: a topic, partition or offset is invalid.
            BrokerRefused: the group has members, or the metadata is too long.
            UnknownTopic: the cluster has no such topic or partition.
        """
        topics = [
            {
                "name": name,
                "partitions": [
                    {
                        "partition_index": index,
                        "committed_offset": whole(
                            f"offset of {name}-{index}", offsets[name, index], 0, LONG_MAX
                        ),
                        "committed_metadata": metadata,
                    }
                    for index in indexes
                ],
            }
            for name, indexes in _by_topic(offsets).items()
        ]
        body = {
            "group_id": group,
            "generation_id_or_member_epoch": -1,
            "generation_id": -1,
            "member_id": "",
            "retention_time": -1,
            "topics": topics,
        }

        def read(response: Any) -> None:
            for topic in response.topics:
                for item in topic.partitions:
                    index = int(item.partition_index)
                    value = offsets.get((str(topic.name), index))
                    self._check(
                        group, int(item.error_code), f"{topic.name}-{index} at offset {value}"
                    )

        self._coordinated(group, "OffsetCommit", body, read)

    def delete_offsets(self, group: str, partitions: Iterable[TopicAndPartition]) -> None:
        """Delete committed offsets of partitions to which no member is subscribed.

        Raises:
            BrokerRefused: a member is subscribed to a partition, or the group does not exist.
        """
        topics = [
            {"name": name, "partitions": [{"partition_index": index} for index in indexes]}
            for name, indexes in _by_topic(partitions).items()
        ]

        def read(response: Any) -> None:
            self._check(group, int(response.error_code))
            for topic in response.topics:
                for item in topic.partitions:
                    self._check(group, int(item.error_code), f"{topic.name}-{item.partition_index}")

        self._coordinated(group, "OffsetDelete", {"group_id": group, "topics": topics}, read)

    def _coordinated(
        self, group: str, api: str, body: Mapping[str, Any], read: Callable[[Any], T]
    ) -> T:
        text("group", group)
        return self._session.retrying(
            lambda: read(self._session.call_coordinator(group, api, body))
        )

    def _check(self, group: str, code: int, subject: str = "") -> None:
        if code:
            if is_retriable(code):
                self._session.forget_coordinator(group)
            raise broker_error(code, f"group {group!r}" + (f", {subject}" if subject else ""))


def _by_topic(partitions: Iterable[TopicAndPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for name, index in sorted(map(topic_partition, partitions)):
        topics.setdefault(name, []).append(index)
    return topics


def _member(item: Any) -> GroupMember:
    return GroupMember(
        member_id=str(item.member_id),
        instance_id=getattr(item, "group_instance_id", None),
        client_id=str(item.client_id),
        host=str(item.client_host),
        partitions=read_assignment(bytes(item.member_assignment)),
    )


def _consumer(item: Any) -> GroupMember:
    found = sorted(
        (str(topic.topic_name), int(index))
        for topic in item.assignment.topic_partitions
        for index in topic.partitions
    )
    return GroupMember(
        member_id=str(item.member_id),
        instance_id=item.instance_id,
        client_id=str(item.client_id),
        host=str(item.client_host),
        partitions=tuple(found),
    )


def read_assignment(data: bytes) -> tuple[TopicAndPartition, ...]:
    """Return the partitions in a consumer's assignment; empty if it is not of the consumer
    protocol.

    version i16 | topics i32 [ name (i16 length) | partitions i32 [ i32 ] ] | user data
    Source: Kafka's `ConsumerProtocolAssignment.json`.
    """
    found: list[TopicAndPartition] = []
    try:
        _, topics = struct.unpack_from(">hi", data)
        at = 6
        for _ in range(topics):
            (length,) = struct.unpack_from(">h", data, at)
            name = data[at + 2 : at + 2 + length].decode()
            (count,) = struct.unpack_from(">i", data, at + 2 + length)
            at += 6 + length
            indexes = struct.unpack_from(f">{count}i", data, at)
            at += 4 * count
            found.extend((name, index) for index in indexes)
    except (struct.error, UnicodeDecodeError):
        return ()
    return tuple(sorted(found))
