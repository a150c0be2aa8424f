"""Stages blobs and posts commits as Spark's workers and driver do, over plain HTTP."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import pyarrow as pa

from penstock.records import split_batches
from penstock.records.columnar import decode_batches, encode_batches
from penstock.testing import Broker

TIMEOUT_SECONDS = 60


class Answer(NamedTuple):
    status: int
    body: Any


class Part(NamedTuple):
    """Values for one partition."""

    topic: str
    partition: int
    values: Sequence[str]


class SinkClient:
    """Client with one connection per request, as attempts come from different processes."""

    def __init__(self, url: str, topic_ids: Mapping[str, str]) -> None:
        self._address = urlsplit(url).netloc
        self.topic_ids = dict(topic_ids)

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        connection = http.client.HTTPConnection(self._address, timeout=TIMEOUT_SECONDS)
        try:
            connection.request(method, path, body=body, headers=headers or {})
            response = connection.getresponse()
            return Answer(response.status, json.loads(response.read()))
        finally:
            connection.close()

    def put(self, name: str, data: bytes) -> Answer:
        return self.request("PUT", f"/v1/staging/{quote(name, safe='')}", data)

    def stage(
        self, name: str, parts: Sequence[Part], *, records_per_batch: int = 10, put: bool = True
    ) -> dict[str, Any]:
        """Stage one blob; return its entry of a manifest."""
        blob, entry = encode_blob(name, parts, self.topic_ids, records_per_batch=records_per_batch)
        if put:
            answer = self.put(name, blob)
            assert answer.status == 201, answer
            assert answer.body["size_bytes"] == len(blob)
        return entry

    def post(
        self,
        query: str,
        batch: int,
        blobs: Sequence[Mapping[str, Any]],
        owner: str | None = "one",
        **more: Any,
    ) -> Answer:
        body = json.dumps({"owner": owner, "blobs": list(blobs), **more}).encode()
        return self.request("POST", f"/v1/sinks/{quote(query, safe='')}/commits/{batch}", body)

    def sink(self, query: str) -> Any:
        answer = self.request("GET", f"/v1/sinks/{quote(query, safe='')}")
        return answer.body if answer.status == 200 else None


def encode_blob(
    name: str,
    parts: Sequence[Part],
    topic_ids: Mapping[str, str],
    *,
    records_per_batch: int,
    codec: int = 0,
) -> tuple[bytes, dict[str, Any]]:
    data = bytearray()
    sections = []
    for part in parts:
        table = pa.table({"value": pa.array([v.encode() for v in part.values], pa.binary())})
        batches = encode_batches(
            table, now_ms=1_700_000_000_000, codec=codec, records_per_batch=records_per_batch
        )
        section = b"".join(bytes(batch.data) for batch in batches)
        sections.append(
            {
                "topic": part.topic,
                "topic_id": topic_ids[part.topic],
                "partition": part.partition,
                "position": len(data),
                "size_bytes": len(section),
                "records": len(part.values),
            }
        )
        data += section
    return bytes(data), {"name": name, "size_bytes": len(data), "sections": sections}


def client_of(broker: Broker, *topics: str) -> SinkClient:
    client = SinkClient(broker.admin_url, {})
    for topic in topics:
        client.topic_ids[topic] = client.request("GET", f"/v1/topics/{topic}").body["topic_id"]
    return client


def log_of(broker: Broker, topic: str, partition: int) -> list[str]:
    """Return every value of a partition by offset, read from the segment files."""
    client = SinkClient(broker.admin_url, {})
    path = f"/v1/topics/{topic}/partitions/{partition}/extents"
    answer = client.request("GET", path)
    assert answer.status == 200, answer
    values: list[str] = []
    expected = answer.body["log_start_offset"]
    for extent in answer.body["extents"]:
        with open(urlsplit(extent["url"]).path, "rb") as file:
            file.seek(extent["position"])
            data = file.read(extent["size_bytes"])
        for header in split_batches(data):
            assert header.base_offset == expected
            expected = header.next_offset
        table = decode_batches(data)
        values += [value.decode() for value in table.column("value").to_pylist()]
    assert expected == answer.body["high_watermark"]
    return values
