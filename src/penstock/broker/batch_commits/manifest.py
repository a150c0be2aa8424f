"""Manifest of a commit: blobs and their sections, in posted and in stored form.

A posted manifest is the JSON of `_Posted`. The stored form, which the control plane keeps while the
commit is an intent, names each topic once and is compressed:

    zlib(JSON)    {"topics": [[name, topic id], …],
                   "blobs": [[name, size_bytes, [[topic, partition, position, size_bytes, records],
                                                 …]], …],
                   "transactional": true}

`topic` is an index of `topics`; `transactional` is omitted if false. A section is a byte range of a
blob with record batches of one partition. The sections of a blob are adjacent and cover all of it.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Collection
from typing import Annotated, ClassVar, Final, NamedTuple
from urllib.parse import quote
from uuid import UUID

import msgspec
from msgspec import Struct

from penstock.base.errors import (
    CorruptError,
    FencedError,
    InvalidError,
    RetriableError,
    UnavailableError,
)
from penstock.base.settings import INT_MAX, LONG_MAX
from penstock.control.values.errors import SINK_TARGETS_MAX
from penstock.records import HEADER_BYTES


class InvalidCommit(InvalidError):
    code: ClassVar[str] = "invalid_request"


class ManifestTooLarge(InvalidError):
    """The manifest exceeds its limit: commit smaller batches, or fewer blobs."""

    code: ClassVar[str] = "message_too_large"


class InconsistentTopicId(FencedError):
    """The topic was recreated after the blobs were staged."""

    code: ClassVar[str] = "inconsistent_topic_id"


class SinkOwnerChanged(FencedError):
    """The query's commits belong to another owner: its checkpoint was copied or replaced."""

    code: ClassVar[str] = "producer_fenced"

    def __init__(self, query: str, owner: str, found: str) -> None:
        super().__init__(
            f"commits of application {query!r} belong to owner {found!r}, but this one comes from"
            f" owner {owner!r}: the checkpoint was deleted, replaced or copied. Use another"
            " application name, or, to restart this one with the new checkpoint, delete its state:"
            f" DELETE /v1/sinks/{quote(query, safe='')}"
        )
        self.query = query


class CommitUnderWay(FencedError):
    code: ClassVar[str] = "concurrent_transactions"


class UnknownSink(InvalidError):
    code: ClassVar[str] = "resource_not_found"


class BlobExists(FencedError):
    code: ClassVar[str] = "duplicate_resource"


class BlobTooLarge(InvalidError):
    code: ClassVar[str] = "message_too_large"


class StagingFull(UnavailableError):
    """The staging directory or its disk has no room."""

    code: ClassVar[str] = "kafka_storage_error"


class StagingUnavailable(UnavailableError):
    code: ClassVar[str] = "kafka_storage_error"


class CorruptBlob(CorruptError):
    """A staged blob is missing, truncated, or not made of whole record batches."""

    code: ClassVar[str] = "corrupt_message"


class NotFinished(RetriableError):
    """The commit may be recorded, but is not finished. Repeat the post to wait for it."""

    code: ClassVar[str] = "request_timed_out"


class TargetBehind(RetriableError):
    """The log of a partition ends before the commit's first record."""


MANIFEST_BYTES_MAX: Final = 16 << 20
TARGET_RECORDS_MAX: Final = 1 << 30
"""Maximum records of a commit in one partition: half of all sequence numbers, so that the number of
appended records is unambiguous."""
QUERY_LENGTH_MAX: Final = 249
OWNER_LENGTH_MAX: Final = 1024

BLOB_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")
_QUERY: Final = re.compile(rf"[A-Za-z0-9._/-]{{1,{QUERY_LENGTH_MAX}}}")
_ZLIB_LEVEL: Final = 1
_TOPIC_LENGTH_MAX: Final = 249
_UUID_LENGTH_MAX: Final = 36


class TopicIdPartition(NamedTuple):
    """Partition of a topic by topic id, so that a recreated topic of the same name differs."""

    topic_id: UUID
    partition: int


class Section(Struct, frozen=True, kw_only=True):
    topic: str
    topic_id: UUID
    partition: int
    position: int
    size_bytes: int
    records: int

    @property
    def target(self) -> TopicIdPartition:
        return TopicIdPartition(self.topic_id, self.partition)


class Blob(Struct, frozen=True, kw_only=True):
    name: str
    size_bytes: int
    sections: tuple[Section, ...]


class Manifest(Struct, frozen=True, kw_only=True):
    """Blobs of a commit, in the order of appends; if `transactional`, as one transaction."""

    blobs: tuple[Blob, ...]
    transactional: bool = False

    @property
    def names(self) -> frozenset[str]:
        return frozenset(blob.name for blob in self.blobs)

    @property
    def size_bytes(self) -> int:
        return sum(blob.size_bytes for blob in self.blobs)

    def size_of(self, targets: Collection[TopicIdPartition]) -> int:
        return sum(
            section.size_bytes
            for blob in self.blobs
            for section in blob.sections
            if section.target in targets
        )

    def targets(self) -> dict[TopicIdPartition, tuple[str, int]]:
        """Return topic name and record count by partition, in the order of appends."""
        found: dict[TopicIdPartition, tuple[str, int]] = {}
        for blob in self.blobs:
            for section in blob.sections:
                _, records = found.get(section.target, ("", 0))
                found[section.target] = section.topic, records + section.records
        return found


_Size = Annotated[int, msgspec.Meta(ge=HEADER_BYTES, le=LONG_MAX)]
_Position = Annotated[int, msgspec.Meta(ge=0, le=LONG_MAX)]
_Records = Annotated[int, msgspec.Meta(ge=1, le=TARGET_RECORDS_MAX)]


class _PostedSection(msgspec.Struct, forbid_unknown_fields=True):
    topic: Annotated[str, msgspec.Meta(min_length=1, max_length=_TOPIC_LENGTH_MAX)]
    topic_id: Annotated[str, msgspec.Meta(max_length=_UUID_LENGTH_MAX)]
    partition: Annotated[int, msgspec.Meta(ge=0, le=INT_MAX)]
    position: _Position
    size_bytes: _Size
    records: _Records


class _PostedBlob(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    size_bytes: _Size
    sections: Annotated[list[_PostedSection], msgspec.Meta(min_length=1)]


class _Posted(msgspec.Struct, forbid_unknown_fields=True):
    blobs: list[_PostedBlob]
    owner: Annotated[str, msgspec.Meta(max_length=OWNER_LENGTH_MAX)] | None = None
    transactional: bool = False


def check_query(query: str) -> str:
    """Return a query name if it is valid.

    Raises:
        InvalidCommit: the name is empty, too long, or has an invalid character.
    """
    if not _QUERY.fullmatch(query):
        raise InvalidCommit(
            f"query {query[:64]!r}: 1 to {QUERY_LENGTH_MAX} letters, digits or ._/- are allowed"
        )
    return query


def check_blob_name(name: str) -> str:
    """Return a blob name if it is safe as a file name.

    Raises:
        InvalidCommit: the name is not valid.
    """
    if not BLOB_NAME.fullmatch(name):
        raise InvalidCommit(
            f"blob name {name[:64]!r}: 1 to 200 letters, digits and ._- are allowed, and the first"
            " must not be a dot"
        )
    return name


def parse_post(body: bytes) -> tuple[str | None, Manifest]:
    """Parse a posted commit into its owner and manifest.

    Raises:
        InvalidCommit: the body is not valid; the message names the position.
    """
    try:
        posted = msgspec.json.decode(body, type=_Posted)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidCommit(f"the posted commit is invalid: {error}") from None
    topic_ids: dict[str, UUID] = {}
    manifest = Manifest(
        blobs=tuple(_blob(blob, topic_ids) for blob in posted.blobs),
        transactional=posted.transactional,
    )
    _check(manifest)
    return posted.owner, manifest


def _blob(posted: _PostedBlob, topic_ids: dict[str, UUID]) -> Blob:
    name = check_blob_name(posted.name)
    position = 0
    sections: list[Section] = []
    for index, section in enumerate(posted.sections):
        if section.position != position:
            raise InvalidCommit(
                f"blob {name!r}, section {index}: position {section.position}, expected {position}:"
                " sections must be consecutive"
            )
        position += section.size_bytes
        sections.append(
            Section(
                topic=section.topic,
                topic_id=_topic_id(section.topic_id, topic_ids),
                partition=section.partition,
                position=section.position,
                size_bytes=section.size_bytes,
                records=section.records,
            )
        )
    if position != posted.size_bytes:
        raise InvalidCommit(
            f"blob {name!r} has {posted.size_bytes} bytes, its sections have {position}"
        )
    return Blob(name=name, size_bytes=posted.size_bytes, sections=tuple(sections))


def _topic_id(text: str, known: dict[str, UUID]) -> UUID:
    found = known.get(text)
    if found is None:
        try:
            found = known[text] = UUID(text)
        except ValueError:
            raise InvalidCommit(f"topic id {text!r} is not a UUID") from None
    return found


def _check(manifest: Manifest) -> None:
    if len(manifest.names) != len(manifest.blobs):
        raise InvalidCommit("the commit names a blob twice")
    targets = manifest.targets()
    if len(targets) > SINK_TARGETS_MAX:
        raise InvalidCommit(f"the commit has {len(targets)} partitions, limit {SINK_TARGETS_MAX}")
    names: dict[UUID, str] = {}
    for key, (topic, records) in targets.items():
        if names.setdefault(key.topic_id, topic) != topic:
            raise InvalidCommit(
                f"topic id {key.topic_id} has two names, {names[key.topic_id]!r} and {topic!r}"
            )
        if records > TARGET_RECORDS_MAX:
            raise InvalidCommit(
                f"the commit has {records} records for {topic}-{key.partition}, limit"
                f" {TARGET_RECORDS_MAX}"
            )


def encode_manifest(manifest: Manifest) -> bytes:
    topics: dict[tuple[str, str], int] = {}
    blobs = [
        [
            blob.name,
            blob.size_bytes,
            [
                [
                    topics.setdefault((section.topic, section.topic_id.hex), len(topics)),
                    section.partition,
                    section.position,
                    section.size_bytes,
                    section.records,
                ]
                for section in blob.sections
            ],
        ]
        for blob in manifest.blobs
    ]
    stored: dict[str, object] = {"topics": list(topics), "blobs": blobs}
    if manifest.transactional:
        stored["transactional"] = True
    text = json.dumps(stored, separators=(",", ":"))
    return zlib.compress(text.encode(), _ZLIB_LEVEL)


def decode_manifest(data: bytes) -> Manifest:
    """Return the manifest of a stored form; empty bytes are a manifest without blobs.

    Raises:
        InvalidCommit: the bytes are not valid, or too large.
    """
    if not data:
        return Manifest(blobs=())
    inflater = zlib.decompressobj()
    try:
        stored = json.loads(inflater.decompress(data, MANIFEST_BYTES_MAX))
        topics = [(name, UUID(hex=topic_id)) for name, topic_id in stored["topics"]]
        return Manifest(
            blobs=tuple(
                Blob(
                    name=name,
                    size_bytes=size_bytes,
                    sections=tuple(
                        Section(
                            topic=topics[topic][0],
                            topic_id=topics[topic][1],
                            partition=partition,
                            position=position,
                            size_bytes=section_bytes,
                            records=records,
                        )
                        for topic, partition, position, section_bytes, records in sections
                    ),
                )
                for name, size_bytes, sections in stored["blobs"]
            ),
            transactional=bool(stored.get("transactional")),
        )
    except (ValueError, KeyError, IndexError, TypeError, zlib.error) as error:
        raise InvalidCommit(f"a stored manifest cannot be read: {error!r}") from None
