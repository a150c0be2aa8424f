"""Encoding of requests and decoding of responses, without sockets.

`Negotiated` holds the version ranges that a broker advertises, and chooses the highest common
version of each call. The client's own maximum versions are below those that identify topics by id,
so the client needs only a topic's name. Fetch is the exception: with topic ids, all fetched records
are of the same topic, even if it was deleted and created again.

A request is a list of pieces, so record batches are never copied between the encoder and the
socket. Codecs that `penstock.wire.kafka` compiles from Kafka's schemas encode and decode bodies.

Source: Kafka's protocol guide; KIP-35 (ApiVersions), KIP-511.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct, field

from penstock.client.errors import MalformedResponse, UnsupportedByBroker
from penstock.wire.kafka.apis import BY_NAME, Api
from penstock.wire.kafka.decoder import decoder
from penstock.wire.kafka.encoder import encoder
from penstock.wire.kafka.errors import MalformedRequest
from penstock.wire.kafka.framing import request_frame

VERSION_MAX: Final[Mapping[str, int]] = {
    "Produce": 9,
    "Fetch": 16,
    "ListOffsets": 7,
    "Metadata": 12,
    "OffsetCommit": 8,
    "OffsetFetch": 7,
    "FindCoordinator": 3,
    "DescribeGroups": 5,
    "ConsumerGroupDescribe": 1,
    "ListGroups": 5,
    "ApiVersions": 3,
    "CreateTopics": 7,
    "DeleteTopics": 5,
    "DeleteRecords": 2,
    "InitProducerId": 4,
    "EndTxn": 5,
    "TxnOffsetCommit": 5,
    "DescribeConfigs": 4,
    "CreatePartitions": 3,
    "DeleteGroups": 2,
    "IncrementalAlterConfigs": 1,
    "ElectLeaders": 2,
    "AlterPartitionReassignments": 1,
    "ListPartitionReassignments": 0,
    "OffsetDelete": 0,
    "DescribeCluster": 0,
    "DescribeProducers": 0,
    "DescribeLogDirs": 4,
    "UnregisterBroker": 0,
    "AddPartitionsToTxn": 5,
    "AddOffsetsToTxn": 4,
    "SaslHandshake": 1,
    "SaslAuthenticate": 2,
    "WriteTxnMarkers": 2,
    "DescribeTransactions": 0,
    "ListTransactions": 1,
    "DescribeClientQuotas": 1,
    "AlterClientQuotas": 1,
    "DescribeAcls": 3,
    "CreateAcls": 3,
    "DeleteAcls": 3,
    "DescribeUserScramCredentials": 0,
    "AlterUserScramCredentials": 0,
    "ShareGroupHeartbeat": 1,
    "ShareGroupDescribe": 1,
    "ShareFetch": 2,
    "ShareAcknowledge": 2,
}
"""Highest version of each call that this client supports."""
VERSION_MIN: Final[Mapping[str, int]] = {
    "Produce": 9,
    "Fetch": 12,
    "Metadata": 9,
    "EndTxn": 5,
    "TxnOffsetCommit": 5,
    "ShareGroupHeartbeat": 1,
    "ShareFetch": 2,
    "ShareAcknowledge": 2,
}
"""Lowest version of the calls whose older versions this client does not support."""

API_VERSIONS_FIRST: Final = 3


class Call(Struct, frozen=True, kw_only=True):
    """Encoded request, with the information that is needed to decode its response."""

    api: Api
    version: int
    correlation_id: int
    pieces: tuple[bytes | memoryview, ...]

    @property
    def response_header_bytes(self) -> int:
        return 4 + self.api.response_header_version(self.version)


class Negotiated(Struct):
    """Version ranges that one broker advertised, by API key."""

    ranges: dict[int, tuple[int, int]] = field(default_factory=dict)

    def update(self, response: Any) -> None:
        self.ranges = {
            int(item.api_key): (int(item.min_version), int(item.max_version))
            for item in response.api_keys
        }

    def missing(self) -> list[str]:
        names = []
        for name in VERSION_MAX:
            try:
                self.version(name, "the broker")
            except UnsupportedByBroker:
                names.append(name)
        return names

    def version(self, name: str, where: str) -> int:
        """Return the highest common version of a call.

        Raises:
            UnsupportedByBroker: client and broker have no common version.
        """
        highest = VERSION_MAX[name]
        lowest = VERSION_MIN.get(name, 0)
        offered = self.ranges.get(BY_NAME[name].key)
        if offered is None:
            raise UnsupportedByBroker(f"{where} does not support {name}")
        chosen = min(highest, offered[1])
        if chosen < max(lowest, offered[0]):
            raise UnsupportedByBroker(
                f"{where} supports {name} in versions {offered[0]} to {offered[1]}, but"
                f" this client supports only {lowest} to {highest}"
            )
        return chosen


def make_call(
    name: str, version: int, body: Mapping[str, Any], *, correlation_id: int, client_id: bytes
) -> Call:
    api = BY_NAME[name]
    written = encoder(name, version, "request")(body)
    frame = request_frame(api.key, version, correlation_id, client_id, written)
    return Call(api=api, version=version, correlation_id=correlation_id, pieces=(frame,))


def check_correlation(call: Call, frame: memoryview, where: str) -> int:
    """Check that a response belongs to a call; return the offset of its body.

    Raises:
        MalformedResponse: the response is too short, or belongs to another call.
    """
    if len(frame) < call.response_header_bytes:
        raise MalformedResponse(f"{where} answered {call.api.name} with {len(frame)} bytes")
    correlation_id = int.from_bytes(frame[:4], "big", signed=True)
    if correlation_id != call.correlation_id:
        raise MalformedResponse(
            f"{where} sent the response to call number {correlation_id} in place of that to"
            f" {call.api.name} number {call.correlation_id}"
        )
    return call.response_header_bytes


def read_response(call: Call, frame: memoryview, where: str) -> Any:
    """Decode a response to an entity of `kio`.

    Raises:
        MalformedResponse: the response does not follow the schema of the requested version.
    """
    offset = check_correlation(call, frame, where)
    version = call.version
    if call.api.name == "ApiVersions" and int.from_bytes(frame[4:6], "big", signed=True) == 35:
        version = 0  # KIP-511: a broker answers an unknown version in version 0
    try:
        entity, _ = decoder(call.api.name, version, "response")(frame, offset)
    except MalformedRequest as error:
        raise MalformedResponse(f"{where} answered {call.api.name}: {error}") from None
    return entity
