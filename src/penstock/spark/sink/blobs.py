"""Staged blobs: record batches of one Spark task, uploaded before the commit.

    blob      sections, back to back
    section   record batches (v2), back to back, of one topic partition; base offsets count from 0
              within the section; no producer id, not transactional

The driver's commit request (the manifest) has one entry per blob. An entry has the blob's name and
size, and the topic, partition, position, size in bytes and record count of each section. The broker
appends the blobs in the manifest's order, and the sections in the blob's order.
"""

from __future__ import annotations

import contextlib
import http
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.base.files import MACHINE_FILES, sync_directory, write_all
from penstock.client.admin_http import Answer, Body
from penstock.client.errors import AdminUnavailable
from penstock.client.partitioning import Partitions, groups, partitions_of_keys
from penstock.records.columnar import EncodedBatch
from penstock.spark.admin_http import ATTEMPT_SECONDS, BrokerAdmins
from penstock.spark.errors import InvalidRows, NotPenstock, StagingRefused
from penstock.spark.sink.options import KEY, PARTITION, TOPIC

# Assignment of rows to topics and partitions, on Arrow columns.
#
# The column `partition` chooses a row's partition. If it is missing or null, the key chooses, as in
# Kafka's default partitioner. Rows without a key are distributed over the partitions in turn, in
# runs of at least `RUN_ROWS_MIN` rows. Rows of one partition keep their order.


RUN_ROWS_MIN: Final = 1_024
"""Least number of consecutive rows without a key that go to one partition, to fill batches."""
MESSAGE_BYTES_DEFAULT: Final = 1_048_588
"""Assumed `max.message.bytes` if the client may not read the topic's configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Topic that rows are written to; `batch_bytes_max` is its `max.message.bytes`."""

    name: str
    topic_id: str
    partitions: int
    batch_bytes_max: int = MESSAGE_BYTES_DEFAULT


Resolve = Callable[[str], Target]


class Turns:
    """Round-robin assignment of rows without a key to partitions, with a counter per topic."""

    def __init__(self, start: int) -> None:
        self._start = start
        self._taken: dict[str, int] = {}

    def take(self, target: Target, rows: int) -> Partitions:
        """Return a partition for each of the next `rows` rows without a key.

        At least `RUN_ROWS_MIN` consecutive rows get the same partition, so that batches are large.
        """
        run = max(RUN_ROWS_MIN, -(-rows // target.partitions))
        first = self._taken.get(target.name, self._start)
        self._taken[target.name] = first + -(-rows // run)
        turns = (first + np.arange(rows) // run) % target.partitions
        return turns.astype(np.int32)


def by_topic(chunk: Any, topic: str | None) -> Iterator[tuple[str, Any]]:
    """Yield each topic with its rows of `chunk`.

    All rows go to `topic`; if it is None, the column `topic` chooses.

    Raises:
        InvalidRows: a row's topic is null.
    """
    if topic is not None:
        yield topic, chunk
        return
    column = chunk.column(TOPIC)
    if column.null_count:
        raise InvalidRows(
            f"the column topic is null in {column.null_count} rows. Drop these rows, or set the"
            " option topic"
        )
    coded = column.dictionary_encode()
    names = coded.dictionary.to_pylist()
    if len(names) == 1:
        yield names[0], chunk
        return
    for number, name in enumerate(names):
        yield name, chunk.filter(pc.equal(coded.indices, number))


def by_partition(chunk: Any, rows: Any, target: Target, turns: Turns) -> Iterator[tuple[int, Any]]:
    """Yield each partition, in ascending order, with its rows in the order of `chunk`.

    `rows` is `chunk` as converted by `read_input`.

    Raises:
        InvalidRows: a row's partition does not exist in the topic.
    """
    partitions = _partitions(chunk, target, turns)
    if bool((partitions == partitions[0]).all()):
        yield int(partitions[0]), rows
        return
    order, bounds = groups(partitions, target.partitions)
    ordered = rows.select(order)  # moves addresses only
    for partition in np.flatnonzero(np.diff(bounds)).tolist():
        yield partition, ordered.select(slice(bounds[partition], bounds[partition + 1]))


def _partitions(chunk: Any, target: Target, turns: Turns) -> Partitions:
    names = chunk.schema.names
    given = chunk.column(PARTITION) if PARTITION in names else None
    if given is not None and not given.null_count:
        return _checked(given.to_numpy(), target)
    keys = chunk.column(KEY) if KEY in names else pa.nulls(chunk.num_rows, pa.binary())
    partitions = partitions_of_keys(keys, target.partitions, unkeyed=0)
    open_rows = keys.is_null() if given is None else pc.and_(keys.is_null(), given.is_null())
    unkeyed = np.flatnonzero(open_rows.to_numpy(zero_copy_only=False))
    if unkeyed.size:
        partitions[unkeyed] = turns.take(target, unkeyed.size)
    if given is not None:
        named = given.is_valid().to_numpy(zero_copy_only=False)
        partitions[named] = _checked(given.drop_null().to_numpy(), target)
    return partitions


def _checked(partitions: Partitions, target: Target) -> Partitions:
    if not partitions.size:
        return partitions
    lowest, highest = int(partitions.min()), int(partitions.max())
    if lowest < 0 or highest >= target.partitions:
        wrong = lowest if lowest < 0 else highest
        raise InvalidRows(
            f"the column partition has the value {wrong}, but topic {target.name} has partitions 0"
            f" to {target.partitions - 1}. Omit the column to let the key choose, or add partitions"
            " to the topic"
        )
    return partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Section of a blob: location of the record batches for one topic partition."""

    topic: str
    topic_id: str
    partition: int
    position: int
    size_bytes: int
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """Staged blob; `holders` are the admin addresses of the brokers that store it."""

    name: str
    size_bytes: int
    sections: tuple[Section, ...]
    holders: tuple[str, ...]

    @property
    def records(self) -> int:
        return sum(section.records for section in self.sections)

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    def entry(self) -> str:
        body = asdict(self)
        del body["holders"]
        return json.dumps(body, separators=(",", ":"))


def blob_from_json(text: str) -> Blob:
    body = json.loads(text)
    sections = tuple(Section(**section) for section in body.pop("sections"))
    return Blob(**body | {"holders": tuple(body["holders"])}, sections=sections)


class BlobParts:
    """Blob under construction: the bytes of its record batches, and its sections so far."""

    def __init__(self) -> None:
        self.pieces: list[Any] = []
        self.sections: list[Section] = []
        self.size_bytes = 0

    def add(self, target: Target, partition: int, batches: Sequence[EncodedBatch]) -> None:
        size_bytes = sum(batch.size_bytes for batch in batches)
        self.sections.append(
            Section(
                topic=target.name,
                topic_id=target.topic_id,
                partition=partition,
                position=self.size_bytes,
                size_bytes=size_bytes,
                records=sum(batch.record_count for batch in batches),
            )
        )
        self.pieces += [batch.data for batch in batches]
        self.size_bytes += size_bytes

    def named(self, name: str, holders: tuple[str, ...]) -> Blob:
        return Blob(
            name=name,
            size_bytes=self.size_bytes,
            sections=tuple(self.sections),
            holders=holders,
        )


# Storage of blobs at brokers: in a staging directory on the same machine, else by HTTP.
#
# If there are several brokers, each blob is stored at the first two that respond, so that one of
# them may fail. A worker uses a broker's staging directory directly if it can write there and the
# directory's token file has the token that the broker returned. A blob is durable when `put`
# returns: the file is written under a temporary name, synced and renamed, and its directory is
# synced.


STAGED_COPIES: Final = 2
"""Number of brokers that store each blob, if there are several admin addresses."""
COPY_TIMEOUT_SECONDS: Final = 10.0
"""Longest time to store a blob at one of several brokers, including retries."""
STAGING_TIMEOUT_SECONDS: Final = 60.0
"""Longest time to store a blob at the only broker or to request locations, including retries."""

TOKEN_FILE: Final = ".penstock-staging"  # noqa: S105  (a file's name)
_TOKEN_CHARS_MAX: Final = 4_096
_STAGING: Final = "/v1/staging"


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingLocation:
    """Staging directory of a broker; `url` is the broker's admin address."""

    url: str
    directory: str
    token: str
    blob_bytes_max: int

    @property
    def here(self) -> bool:
        """Whether the broker's staging directory is on this machine and writable."""
        try:
            with open(os.path.join(self.directory, TOKEN_FILE), encoding="utf-8") as file:
                found = file.read(_TOKEN_CHARS_MAX).strip()
        except (OSError, UnicodeDecodeError):
            return False
        return bool(found) and found == self.token and os.access(self.directory, os.W_OK)


def staging_locations(admins: BrokerAdmins) -> tuple[StagingLocation, ...]:
    """Return the staging locations of the first brokers that respond, at most `STAGED_COPIES`.

    Raises:
        NotPenstock: the response is not from a Penstock broker with this sink.
        AdminUnavailable: no broker responds.
    """
    timeout_seconds = STAGING_TIMEOUT_SECONDS
    if len(admins.addresses) == 1:
        answer = admins.call("GET", _STAGING, timeout_seconds=timeout_seconds)
        return (_location(admins.addresses[0].url, answer),)
    found: list[StagingLocation] = []
    for address in admins.in_order:
        with contextlib.suppress(AdminUnavailable):
            answer = address.ask("GET", _STAGING, timeout_seconds=ATTEMPT_SECONDS)
            if answer.status < http.HTTPStatus.INTERNAL_SERVER_ERROR:
                found.append(_location(address.url, answer))
        if len(found) == STAGED_COPIES:
            break
    if not found:  # `call` waits until a broker responds
        admins.call("GET", _STAGING, timeout_seconds=timeout_seconds)
        return staging_locations(admins)
    return tuple(found)


def _location(url: str, answer: Answer) -> StagingLocation:
    try:
        if answer.status != http.HTTPStatus.OK:
            raise NotPenstock(url, f"GET {_STAGING}: {answer.status} {answer.error}")
        return StagingLocation(
            url=url,
            directory=str(answer.body["directory"]),
            token=str(answer.body["token"]),
            blob_bytes_max=int(answer.body["blob_max_bytes"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise NotPenstock(url, f"invalid response to GET {_STAGING}: {error!r}") from error


class BlobStore:
    """Client that stores blobs at the brokers of the given staging locations."""

    def __init__(self, admins: BrokerAdmins, locations: Sequence[StagingLocation]) -> None:
        self._admins = admins
        self._locations = locations

    def put(self, name: str, pieces: list[Any], size_bytes: int) -> tuple[str, ...]:
        """Store a blob under a unique name, and return the addresses of the brokers that have it.

        The blob is durable at these brokers; at least one of several must store it.

        Raises:
            OSError: the staging directory cannot be written to, for example because the disk is
                full.
            StagingRefused: the broker rejects the blob.
            AdminUnavailable: no broker responds.
        """
        if len(self._locations) == 1:
            self._put(self._locations[0], name, pieces, size_bytes, STAGING_TIMEOUT_SECONDS)
            return (self._locations[0].url,)
        holders: list[str] = []
        for place in self._locations:
            with contextlib.suppress(AdminUnavailable, StagingRefused, OSError):
                self._put(place, name, pieces, size_bytes, COPY_TIMEOUT_SECONDS)
                holders.append(place.url)
        if not holders:
            self._put(self._locations[0], name, pieces, size_bytes, STAGING_TIMEOUT_SECONDS)
            holders.append(self._locations[0].url)
        return tuple(holders)

    def _put(
        self,
        place: StagingLocation,
        name: str,
        pieces: list[Any],
        size_bytes: int,
        timeout_seconds: float,
    ) -> None:
        if place.here:
            self._write(Path(place.directory), name, pieces)
        else:
            self._upload(
                place.url, name, Body(pieces=pieces, size_bytes=size_bytes), timeout_seconds
            )

    def _write(self, directory: Path, name: str, pieces: list[Any]) -> None:
        hidden = directory / f".{name}.part"
        descriptor = MACHINE_FILES.create(hidden, mode=0o660)
        try:
            write_all(MACHINE_FILES, descriptor, 0, [memoryview(piece) for piece in pieces])
            MACHINE_FILES.sync_file(descriptor)
            MACHINE_FILES.rename(hidden, directory / name)
        except BaseException:
            with contextlib.suppress(OSError):
                MACHINE_FILES.remove(hidden)
            raise
        finally:
            MACHINE_FILES.close(descriptor)
        sync_directory(MACHINE_FILES, directory)

    def _upload(self, url: str, name: str, body: Body, timeout_seconds: float) -> None:
        answer = self._admins.call(
            "PUT", f"{_STAGING}/{name}", body, timeout_seconds=timeout_seconds, among=(url,)
        )
        # The name is unique. If it exists, an earlier attempt succeeded but its response was lost.
        if answer.status not in {http.HTTPStatus.CREATED, http.HTTPStatus.CONFLICT}:
            raise StagingRefused(
                f"{url} rejected blob {name} of {body.size_bytes} bytes:"
                f" {answer.status} {answer.error}: {answer.message}"
            )
