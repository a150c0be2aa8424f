"""Extents: which bytes of which file hold an offset range, as the admin address tells it.

The broker answers `GET /v1/topics/{topic}/partitions/{n}/extents?start=&end=` from its indexes,
so this costs it one lookup per segment and no payload byte. A range's extents start at the batch
that holds `start` and end with the batch that holds `end - 1`; neighbours may share a batch, and
readers cut to offsets.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol
from urllib.parse import quote, unquote, urlsplit

from penstock.base.ids import TopicPartition
from penstock.spark.errors import ExtentsUnavailable, InvalidOption

REQUEST_TIMEOUT_SECONDS: Final = 30.0
RESPONSE_BYTES_MAX: Final = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """A run of whole batches in one file. `path` is None when the bytes are not in a file."""

    path: str | None
    position: int
    size_bytes: int
    base_offset: int
    next_offset: int
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionExtents:
    """The extents of one range, and the partition's bounds at the moment of the answer."""

    topic_id: str
    log_start_offset: int
    extents: tuple[Extent, ...]

    @property
    def size_bytes(self) -> int:
        return sum(extent.size_bytes for extent in self.extents)


class ExtentSource(Protocol):
    """Tells where the bytes of an offset range are."""

    def extents(self, at: TopicPartition, start: int, end: int) -> PartitionExtents:
        """The extents of [start, end), which must lie within the log.

        Raises:
            ExtentsUnavailable: the broker refused or could not be reached.
        """
        ...


class HttpExtents:
    """`ExtentSource` over the admin address; one kept connection, one retry on a stale one."""

    def __init__(self, admin_url: str) -> None:
        parts = urlsplit(admin_url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise InvalidOption("penstock.admin.url", admin_url, "must look like http://host:9644")
        self._url = admin_url
        self._prefix = parts.path.rstrip("/")
        self._host = parts.hostname
        self._port = parts.port
        self._secure = parts.scheme == "https"
        self._connection: http.client.HTTPConnection | None = None

    def extents(self, at: TopicPartition, start: int, end: int) -> PartitionExtents:
        path = (
            f"{self._prefix}/v1/topics/{quote(at.topic, safe='')}/partitions/{at.partition}"
            f"/extents?start={start}&end={end}"
        )
        status, body = self._get(path)
        answer = _json(body)
        if status != http.HTTPStatus.OK:
            raise ExtentsUnavailable(
                f"{at} offsets {start} to {end}: {self._url} answered {status} "
                f"{answer.get('error', '')}: {answer.get('message', body[:200])}"
            )
        return _partition_extents(at, answer)

    def close(self) -> None:
        """Drop the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _get(self, path: str) -> tuple[int, bytes]:
        for last_try in (False, True):
            try:
                if self._connection is None:
                    self._connection = self._connect()
                self._connection.request("GET", path)
                response = self._connection.getresponse()
                return response.status, response.read(RESPONSE_BYTES_MAX)
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if last_try:
                    raise ExtentsUnavailable(
                        f"the admin address {self._url} cannot be reached: {error}"
                    ) from error
        raise ExtentsUnavailable(self._url)

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        return kind(self._host, self._port, timeout=REQUEST_TIMEOUT_SECONDS)


def _json(body: bytes) -> Mapping[str, Any]:
    try:
        parsed = json.loads(body)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _partition_extents(at: TopicPartition, answer: Mapping[str, Any]) -> PartitionExtents:
    try:
        return PartitionExtents(
            topic_id=str(answer["topic_id"]),
            log_start_offset=int(answer["log_start_offset"]),
            extents=tuple(
                Extent(
                    path=_file_path(str(item["url"])),
                    position=int(item["position"]),
                    size_bytes=int(item["size_bytes"]),
                    base_offset=int(item["base_offset"]),
                    next_offset=int(item["next_offset"]),
                    leader_epoch=int(item["leader_epoch"]),
                )
                for item in answer["extents"]
            ),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ExtentsUnavailable(
            f"{at}: the extents are not in the form expected: {error!r}"
        ) from error


def _file_path(url: str) -> str | None:
    parts = urlsplit(url)
    return unquote(parts.path) if parts.scheme == "file" else None
