from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FrameType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FRAME_TYPE_UNSPECIFIED: _ClassVar[FrameType]
    HELLO: _ClassVar[FrameType]
    HELLO_ACK: _ClassVar[FrameType]
    DATA: _ClassVar[FrameType]
    DATA_BATCH: _ClassVar[FrameType]
    ACCEPTED: _ClassVar[FrameType]
    FAILED: _ClassVar[FrameType]
    CREDIT_UPDATE: _ClassVar[FrameType]
    DRAIN: _ClassVar[FrameType]
    PING: _ClassVar[FrameType]
    PONG: _ClassVar[FrameType]

class ChunkFormat(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OPAQUE: _ClassVar[ChunkFormat]
    RECORD_BATCH: _ClassVar[ChunkFormat]
FRAME_TYPE_UNSPECIFIED: FrameType
HELLO: FrameType
HELLO_ACK: FrameType
DATA: FrameType
DATA_BATCH: FrameType
ACCEPTED: FrameType
FAILED: FrameType
CREDIT_UPDATE: FrameType
DRAIN: FrameType
PING: FrameType
PONG: FrameType
OPAQUE: ChunkFormat
RECORD_BATCH: ChunkFormat

class Header(_message.Message):
    __slots__ = ("type", "first_sequence", "count", "event_count", "topic", "partition", "log_sequence", "format", "traceparent", "tracestate", "lengths", "offsets", "event_counts", "ring_position", "ring_bytes", "ranges", "reason", "retryable", "retry_after_ms", "fenced", "chunk_slots", "raw_events", "payload_bytes", "version_min", "version_max", "version", "accepted", "producer_id", "producer_epoch", "topics", "partition_counts", "client_name", "ring_size_bytes", "frame_bytes_max", "idle_timeout_ms", "deadline_ms", "token")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    EVENT_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LOG_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    TRACESTATE_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    EVENT_COUNTS_FIELD_NUMBER: _ClassVar[int]
    RING_POSITION_FIELD_NUMBER: _ClassVar[int]
    RING_BYTES_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    CHUNK_SLOTS_FIELD_NUMBER: _ClassVar[int]
    RAW_EVENTS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    VERSION_MIN_FIELD_NUMBER: _ClassVar[int]
    VERSION_MAX_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    PARTITION_COUNTS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_NAME_FIELD_NUMBER: _ClassVar[int]
    RING_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FRAME_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    IDLE_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    type: FrameType
    first_sequence: int
    count: int
    event_count: int
    topic: str
    partition: int
    log_sequence: int
    format: ChunkFormat
    traceparent: str
    tracestate: str
    lengths: bytes
    offsets: bytes
    event_counts: bytes
    ring_position: int
    ring_bytes: int
    ranges: _containers.RepeatedScalarFieldContainer[int]
    reason: str
    retryable: bool
    retry_after_ms: int
    fenced: bool
    chunk_slots: int
    raw_events: int
    payload_bytes: int
    version_min: int
    version_max: int
    version: int
    accepted: bool
    producer_id: int
    producer_epoch: int
    topics: _containers.RepeatedScalarFieldContainer[str]
    partition_counts: _containers.RepeatedScalarFieldContainer[int]
    client_name: str
    ring_size_bytes: int
    frame_bytes_max: int
    idle_timeout_ms: int
    deadline_ms: int
    token: int
    def __init__(self, type: _Optional[_Union[FrameType, str]] = ..., first_sequence: _Optional[int] = ..., count: _Optional[int] = ..., event_count: _Optional[int] = ..., topic: _Optional[str] = ..., partition: _Optional[int] = ..., log_sequence: _Optional[int] = ..., format: _Optional[_Union[ChunkFormat, str]] = ..., traceparent: _Optional[str] = ..., tracestate: _Optional[str] = ..., lengths: _Optional[bytes] = ..., offsets: _Optional[bytes] = ..., event_counts: _Optional[bytes] = ..., ring_position: _Optional[int] = ..., ring_bytes: _Optional[int] = ..., ranges: _Optional[_Iterable[int]] = ..., reason: _Optional[str] = ..., retryable: _Optional[bool] = ..., retry_after_ms: _Optional[int] = ..., fenced: _Optional[bool] = ..., chunk_slots: _Optional[int] = ..., raw_events: _Optional[int] = ..., payload_bytes: _Optional[int] = ..., version_min: _Optional[int] = ..., version_max: _Optional[int] = ..., version: _Optional[int] = ..., accepted: _Optional[bool] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., topics: _Optional[_Iterable[str]] = ..., partition_counts: _Optional[_Iterable[int]] = ..., client_name: _Optional[str] = ..., ring_size_bytes: _Optional[int] = ..., frame_bytes_max: _Optional[int] = ..., idle_timeout_ms: _Optional[int] = ..., deadline_ms: _Optional[int] = ..., token: _Optional[int] = ...) -> None: ...
