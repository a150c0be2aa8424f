"""Validation of appends before they get offsets: a pure core over the received bytes.

Headers, checksums and the topic's limits are checked in the receive buffer. The topic setting
`record.validation` determines how far records are checked; in a compacted topic, each record needs
a key. The schema ids of the records are read and checked by the caller's `IdReader`, if there is
one (`broker/requests/schema_ids.py`). A batch is recompressed only if `compression.type` demands
another codec.

`prepared` validates batches of producers, for local and diskless logs. `stamped_runs` validates
batches that a follower receives from its leader; these have offsets already.

Source: Kafka's `LogValidator` and `UnifiedLog.analyzeAndValidateRecords`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.base.crc import crc32c
from penstock.base.settings import INT_MAX, LONG_MAX
from penstock.records import (
    HEADER_BYTES,
    BatchHeader,
    Codec,
    CorruptBatch,
    InvalidRecord,
    RecordTooLarge,
    check_single,
    encode_header,
    seal,
    split_batches,
    stamp_append_time,
    validate_batch,
    verify_crc,
)
from penstock.records.appends import IdReader, NeedsOpening, Opening
from penstock.records.columnar.validation import check_chain, check_records
from penstock.records.compression import Allowance
from penstock.records.header import (
    CHECKED_FROM,
    CODEC_MASK,
    HEADER,
    LENGTH_OVERHEAD_BYTES,
    MAGIC,
    NO_TIMESTAMP,
    RECORD_BYTES_MIN,
    TRANSACTIONAL_FLAG,
    WALKED_BYTES_MAX,
    header_of,
)
from penstock.records.transactions import decode_marker
from penstock.storage.files.errors import (
    BatchesTooLarge,
    InvalidTimestamp,
    ReplicaEpochFell,
    ReplicaOverlap,
)
from penstock.storage.files.settings import LogConfig

_CODECS: Final = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
_LZ4_FAST_LEVEL: Final = 9
"""Kafka's default lz4 level, which selects the fast compressor."""
OPENED_NOW_BYTES_MAX: Final = 128 << 10
"""Limit of an append's bytes, before and after decompression, up to which it is decompressed at
once to read schema ids. That takes half a millisecond for gzip, and less for other codecs.
"""


def prepared(
    batches: memoryview,
    config: LogConfig,
    now_ms: int,
    *,
    internal: bool = False,
    single: bool = False,
    transactional: bool = False,
    opening: Opening = Opening.HERE,
    allowance: Allowance | None = None,
    ids: IdReader | None = None,
) -> tuple[memoryview, list[BatchHeader]]:
    """Validate the batches of an append; return the batches to store, and their headers.

    The result is the given batches, or recompressed ones if the topic demands another codec.

    `internal` marks batches that this broker made or checked before. `single` demands one batch
    from offset 0, as in a produce request. `transactional` states whether the request has a
    transactional id. `allowance` bounds the decompressed bytes of the request. `ids` reads the
    schema ids of the records.

    Raises:
        NeedsOpening: validation takes long, and `opening` is `Opening.BESIDE`.
        PenstockError: as `validate_batches`.
    """
    as_sent = config.compression_type == "producer"
    if (  # the usual case: the checks of `validate_batches` without a call
        as_sent
        and not internal
        and config.record_validation != "full"
        and "compact" not in config.cleanup_policy
    ):
        flags = TRANSACTIONAL_FLAG if transactional else 0
        plain = _plain(batches, config, now_ms, flags, summed=opening is Opening.DONE)
        if plain is not None:
            if ids is not None:
                _read_ids(batches, plain, opening, allowance, ids)
            elif config.record_validation == "chain" and opening is not Opening.DONE:
                if opening is Opening.BESIDE and len(batches) > WALKED_BYTES_MAX:
                    raise NeedsOpening
                check_chain(batches, plain, index=0)
            return batches, [plain]
    headers = validate_batches(
        batches, config, now_ms, internal=internal, single=single, transactional=transactional,
        opening=opening, allowance=allowance, ids=ids,
    )  # fmt: skip
    if as_sent:
        return batches, headers
    packed = _recompressed(batches, headers, config, allowance or Allowance())
    if packed is None:
        return batches, headers
    return packed, _checked(packed, config, now_ms, internal=internal, transactional=transactional)


def stamped_runs(
    batches: memoryview, where: object, next_offset: int, newest_epoch: int
) -> list[list[BatchHeader]]:
    """Validate a leader's batches; return their headers in groups, each of which fits one segment.

    All batches of a group have the same leader epoch. The function verifies that batches are
    complete, that their checksums are right, that offsets rise from `next_offset`, and that epochs
    do not fall below `newest_epoch`. Gaps between offsets are allowed, because the leader may have
    compacted its log. The topic's limits are not checked: the leader has accepted the batch, and a
    follower that rejected it could never catch up. `where` names the log in errors.

    Raises:
        CorruptBatch: a batch is incomplete, or its checksum is wrong.
        InvalidRecord: there is no batch.
        BatchesTooLarge: the bytes exceed the size of a segment file.
        ReplicaOverlap: a batch begins below the end of the previous batch or of the log.
        ReplicaEpochFell: a batch has a lower epoch than the previous batch or the log.
    """
    headers = split_batches(batches)
    if not headers:
        raise InvalidRecord("the append contains no batch")
    if len(batches) > INT_MAX:
        raise BatchesTooLarge(
            f"the append has {len(batches)} bytes of batches; at most {INT_MAX} are allowed"
        )
    runs: list[list[BatchHeader]] = []
    offset, epoch, first = 0, -1, 0
    for header in headers:
        if header.base_offset < next_offset:
            raise ReplicaOverlap(where, next_offset, header.base_offset)
        if header.partition_leader_epoch < newest_epoch:
            raise ReplicaEpochFell(where, newest_epoch, header.partition_leader_epoch)
        verify_crc(batches, header, offset)
        if header.is_control and header.producer_id >= 0:
            decode_marker(batches[offset : offset + header.size_bytes], header)
        newest_epoch = header.partition_leader_epoch
        if not runs or newest_epoch != epoch or header.last_offset - first > INT_MAX:
            runs.append([])
            epoch, first = newest_epoch, header.base_offset
        runs[-1].append(header)
        next_offset = header.next_offset
        offset += header.size_bytes
    return runs


def validate_batches(
    batches: memoryview,
    config: LogConfig,
    now_ms: int,
    *,
    internal: bool = False,
    single: bool = False,
    transactional: bool = False,
    opening: Opening = Opening.HERE,
    allowance: Allowance | None = None,
    ids: IdReader | None = None,
) -> list[BatchHeader]:
    """Validate all batches of an append, with the parameters of `prepared`; return their headers.

    Raises:
        NeedsOpening: as `prepared`.
        CorruptBatch, InvalidRecord, TransactionalBatch, InvalidTxnState, UnsupportedCodec: see
            `penstock.records`.
        RecordTooLarge: a batch exceeds `max.message.bytes`.
        BatchesTooLarge: the batches together exceed `segment.bytes`.
        InvalidTimestamp: a timestamp is outside the topic's bounds.
    """
    compacted = "compact" in config.cleanup_policy
    inside = compacted or ids is not None or config.record_validation != "headers"
    looked = inside and not internal
    if single:
        check_single(batches)
    if opening is Opening.BESIDE and _takes_long(
        batches, config, looked=looked, with_ids=ids is not None
    ):
        raise NeedsOpening
    flags, summed = TRANSACTIONAL_FLAG if transactional else 0, opening is Opening.DONE
    plain = None if internal else _plain(batches, config, now_ms, flags, summed=summed)
    if plain is not None:
        headers = [plain]
    else:
        headers = _checked(
            batches, config, now_ms, internal=internal, transactional=transactional, summed=summed
        )
    if looked and opening is not Opening.DONE:
        _look_inside(batches, headers, config, compacted=compacted, allowance=allowance, ids=ids)
    return headers


def _takes_long(batches: memoryview, config: LogConfig, *, looked: bool, with_ids: bool) -> bool:
    """Return whether validation could block the event loop, and so belongs in another thread.

    That is so if batches must be recompressed, or if records must be read from compressed or many
    bytes. `looked` states whether records are checked at all, `with_ids` whether their schema ids
    are read.

    Raises:
        CorruptBatch, InvalidRecord: the batches cannot be separated.
    """
    demanded = _CODECS.get(config.compression_type)
    headers = split_batches(batches)
    if demanded is not None and any(header.codec != demanded for header in headers):
        return True
    if not looked:
        return False
    everything = "compact" in config.cleanup_policy or config.record_validation == "full"
    packed = (everything or with_ids) and any(header.codec for header in headers)
    return packed or len(batches) > WALKED_BYTES_MAX


def _read_ids(
    batch: memoryview,
    header: BatchHeader,
    opening: Opening,
    allowance: Allowance | None,
    ids: IdReader,
) -> None:
    """Check the records of a batch, and read their schema ids.

    A small compressed batch is decompressed even on the event loop, because passing it to the other
    thread takes longer, and all batches of the topic need it.

    Raises:
        NeedsOpening: the batch is large, and `opening` is `Opening.BESIDE`.
        InvalidRecord, RecordTooLarge: as `check_records`.
        PenstockError: `ids` rejects the batch.
    """
    if opening is not Opening.BESIDE:
        check_records(batch, header, index=0, allowance=allowance, ids=ids)
        return
    if len(batch) > (OPENED_NOW_BYTES_MAX if header.codec else WALKED_BYTES_MAX):
        raise NeedsOpening
    small = Allowance(OPENED_NOW_BYTES_MAX)
    try:
        check_records(batch, header, index=0, allowance=small, ids=ids)
    except RecordTooLarge:
        raise NeedsOpening from None


def _look_inside(
    batches: memoryview,
    headers: list[BatchHeader],
    config: LogConfig,
    *,
    compacted: bool,
    allowance: Allowance | None,
    ids: IdReader | None,
) -> None:
    """Check the records of batches.

    Of a compressed batch, only the compression frames are checked, unless schema ids are read, or
    the topic is compacted, has `record.validation = full`, or demands another codec.
    """
    everything = compacted or ids is not None or config.record_validation == "full"
    demanded = _CODECS.get(config.compression_type)
    offset = 0
    for index, header in enumerate(headers):
        end = offset + header.size_bytes
        if everything or demanded not in (None, header.codec):
            check_records(
                batches[offset:end], header, index=index, keyed=compacted, allowance=allowance,
                ids=ids,
            )  # fmt: skip
        else:
            check_chain(batches[offset:end], header, index=index)
        offset = end


def _checked(
    batches: memoryview, config: LogConfig, now_ms: int, *, internal: bool, transactional: bool,
    summed: bool = False,
) -> list[BatchHeader]:  # fmt: skip
    """Check batches, but not their records; return the headers. `summed` skips the checksums."""
    headers = split_batches(batches)
    if not headers:
        raise InvalidRecord("the append contains no batch")
    if len(batches) > config.segment_bytes:
        raise BatchesTooLarge(
            f"the append has {len(batches)} bytes of batches, more than segment.bytes ="
            f" {config.segment_bytes}"
        )
    create_time = config.message_timestamp_type == "CreateTime"
    offset = 0
    for header in headers:
        size_bytes = header.batch_length + LENGTH_OVERHEAD_BYTES
        if not internal:
            if size_bytes > config.max_message_bytes:
                raise RecordTooLarge(
                    f"the batch has {size_bytes} bytes, more than max.message.bytes ="
                    f" {config.max_message_bytes}"
                )
            validate_batch(header, transactional=transactional)
        if not summed:
            verify_crc(batches, header, offset)
        if create_time:
            _check_timestamps(header, config, now_ms)
        offset += size_bytes
    return headers


def _plain(
    batches: memoryview, config: LogConfig, now_ms: int, flags: int = 0, *, summed: bool = False
) -> BatchHeader | None:
    """Return the header if the append is one valid, ordinary batch; otherwise None.

    After None the caller performs the full checks, which cost twice as much. Nearly every append
    is one ordinary batch. `flags` are the expected attributes besides the codec; `summed` skips the
    checksum.
    """
    size_bytes = len(batches)
    if size_bytes < HEADER_BYTES:
        return None
    header = header_of(HEADER.unpack_from(batches))
    (
        base_offset, length, _, magic, checksum, attributes, delta, base_timestamp, max_timestamp,
        producer_id, epoch, sequence, count,
    ) = header  # fmt: skip
    if (
        length + LENGTH_OVERHEAD_BYTES == size_bytes <= config.max_message_bytes
        and size_bytes <= config.segment_bytes
        and magic == MAGIC
        and base_offset == 0 < count == delta + 1
        and (attributes == flags or (0 < attributes ^ flags <= Codec.ZSTD))
        and (attributes != flags or count * RECORD_BYTES_MIN <= size_bytes - HEADER_BYTES)
        and ((producer_id == -1 and not flags) or (producer_id >= 0 <= epoch and sequence >= 0))
        and 0 <= base_timestamp <= max_timestamp <= now_ms + config.message_timestamp_after_max_ms
        and base_timestamp >= now_ms - config.message_timestamp_before_max_ms
        and (summed or crc32c(batches[CHECKED_FROM:]) == checksum)
    ):
        return header
    return None


class PlainLimits(NamedTuple):
    """Limits of an ordinary batch: its size, the bounds of its timestamps in milliseconds, and
    whether its records are checked."""

    bytes_max: int
    oldest: int
    newest: int
    checks_records: bool


def plain_limits(config: LogConfig, now_ms: int) -> PlainLimits | None:
    """Return the limits within which an uncompressed batch is ordinary without further checks.

    Return None if the topic demands checks of other fields, of keys or of schema ids, another
    codec, or the time of the append.
    """
    if (
        config.compression_type != "producer"
        or config.message_timestamp_type != "CreateTime"
        or config.record_validation == "full"
        or "compact" in config.cleanup_policy
        or config.schema_validation_value
        or config.schema_validation_key
    ):
        return None
    return PlainLimits(
        min(config.max_message_bytes, config.segment_bytes),
        now_ms - config.message_timestamp_before_max_ms,
        min(now_ms + config.message_timestamp_after_max_ms, LONG_MAX),
        config.record_validation == "chain",
    )


def _check_timestamps(header: BatchHeader, config: LogConfig, now_ms: int) -> None:
    latest = header.max_timestamp
    if latest > now_ms + config.message_timestamp_after_max_ms:
        raise InvalidTimestamp(
            f"timestamp {latest} is more than message.timestamp.after.max.ms = "
            f"{config.message_timestamp_after_max_ms} after the broker's time {now_ms}"
        )
    earliest = header.base_timestamp
    if NO_TIMESTAMP != earliest < now_ms - config.message_timestamp_before_max_ms:
        raise InvalidTimestamp(
            f"timestamp {earliest} is more than message.timestamp.before.max.ms = "
            f"{config.message_timestamp_before_max_ms} before the broker's time {now_ms}"
        )


def _recompressed(
    batches: memoryview, headers: list[BatchHeader], config: LogConfig, allowance: Allowance
) -> memoryview | None:
    codec = _CODECS.get(config.compression_type)
    if codec is None or all(header.codec == codec for header in headers):
        return None
    parts: list[bytes | bytearray | memoryview] = []
    offset = 0
    for header in headers:
        end = offset + header.size_bytes
        batch = batches[offset:end]
        same = header.codec == codec
        level = _level(codec, config)
        parts.append(batch if same else _packed(batch, header, codec, level, allowance))
        offset = end
    return memoryview(bytearray().join(parts))


def _level(codec: Codec, config: LogConfig) -> int | None:
    """Return the topic's compression level; None means the codec's default, which is Kafka's."""
    if codec == Codec.GZIP and config.compression_gzip_level > 0:
        return config.compression_gzip_level
    if codec == Codec.LZ4 and config.compression_lz4_level != _LZ4_FAST_LEVEL:
        return config.compression_lz4_level
    return config.compression_zstd_level if codec == Codec.ZSTD else None


def _packed(
    batch: memoryview, header: BatchHeader, codec: Codec, level: int | None, allowance: Allowance
) -> bytearray:
    from penstock.records import compress, decompress
    from penstock.records.header import DECOMPRESSED_BATCH_BYTES_MAX

    records = bytes(batch[HEADER_BYTES:])
    if header.codec:
        records = bytes(
            allowance.unpacked(
                decompress, header.codec, records, max_bytes=DECOMPRESSED_BATCH_BYTES_MAX
            )
        )
    if not records:
        raise CorruptBatch("a batch without records cannot be recompressed")
    if codec != Codec.NONE:
        records = bytes(compress(codec, records, level))
    length = HEADER_BYTES - LENGTH_OVERHEAD_BYTES + len(records)
    attributes = header.attributes & ~CODEC_MASK | codec
    packed = bytearray(encode_header(header._replace(batch_length=length, attributes=attributes)))
    packed += records
    seal(packed)
    return packed


def stamp_times(batches: memoryview, headers: list[BatchHeader], now_ms: int) -> list[BatchHeader]:
    """Set the timestamp of all records of the batches to `now_ms`; return the new headers."""
    offset = 0
    for header in headers:
        stamp_append_time(batches, offset, now_ms)
        offset += header.size_bytes
    return [header._replace(max_timestamp=now_ms) for header in headers]
