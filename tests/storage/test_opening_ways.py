"""An append has the same result whether its batches are opened at once or in a thread before."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from struct import Struct
from typing import Any, Final

from hypothesis import event, given
from hypothesis import strategies as st

from penstock.base.crc import crc32c
from penstock.base.errors import PenstockError
from penstock.records import HEADER_BYTES, BatchHeader, Codec, encode_header
from penstock.records.appends import NeedsOpening, Opening
from penstock.records.header import WALKED_BYTES_MAX
from penstock.storage.files.settings import LogConfig
from penstock.storage.log.validation import prepared, validate_batches
from tests.records.nonsense import GOOD, KEYLESS, SPOILED, TIME_MS, framed, sealed
from tests.records.reference import varint

_CHECKED_FROM: Final = 21
_HEADER: Final = Struct(">qiibIhiqqqhii")
_LARGE: Final = framed(
    b"\0\0\0\x02k" + varint(WALKED_BYTES_MAX) + bytes(WALKED_BYTES_MAX) + varint(0)
)
SECTIONS: Final = [
    *[(b"".join(GOOD), len(GOOD))] * 8,
    (GOOD[0], 1),
    (KEYLESS, 1),
    (b"", 0),
    (_LARGE, 1),
    *((section, count) for section, count, _, _ in SPOILED.values()),
]
FIELDS: Final[dict[str, list[int]]] = {
    "base_offset": [-1, 1, 7],
    "batch_length": [0, 48, 49, 60, 1_000_000],
    "magic": [0, 1, 3],
    "attributes": [0x01, 0x05, 0x07, 0x08, 0x10, 0x13, 0x20, 0x30, 0x44],
    "last_offset_delta": [-1, 0, 2, 9],
    "base_timestamp": [-1, 0, TIME_MS + 10**9],
    "max_timestamp": [-1, 0, TIME_MS + 10**9],
    "producer_id": [0, 9],
    "producer_epoch": [0, 1],
    "base_sequence": [0, 4],
    "record_count": [-1, 0, 1, 4],
}
TRANSACTIONAL: Final = {
    "attributes": 0x10, "producer_id": 9, "producer_epoch": 0, "base_sequence": 0,
}  # fmt: skip

cached_batch = cache(sealed)


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    """A batch that may have wrong fields or bytes, mostly under the right checksum."""
    section, count = draw(st.sampled_from(SECTIONS))
    batch = cached_batch(section, count, codec=draw(st.sampled_from(Codec)))
    header = BatchHeader._make(_HEADER.unpack_from(batch))
    if draw(st.integers(0, 7)) == 0:
        flags = {**TRANSACTIONAL, "attributes": header.attributes | TRANSACTIONAL["attributes"]}
        header = header._replace(**flags)
    changes = draw(st.sampled_from([0, 0, 1, 2]))
    names = draw(st.lists(st.sampled_from(list(FIELDS)), max_size=changes, unique=True))
    header = header._replace(**{name: draw(st.sampled_from(FIELDS[name])) for name in names})
    body = bytearray(batch[HEADER_BYTES:])
    for place in draw(st.lists(st.integers(0, 80), max_size=draw(st.sampled_from([0, 0, 2])))):
        if place < len(body):
            body[place] ^= draw(st.integers(1, 255))
    found = bytearray(encode_header(header) + body)
    if draw(st.integers(0, 7)):
        found[17:21] = crc32c(memoryview(found)[_CHECKED_FROM:]).to_bytes(4, "big")
    return bytes(found)


@st.composite
def appends(draw: st.DrawFn) -> bytes:
    """Mostly one batch; several, or with bytes missing or too many."""
    found = b"".join(draw(st.lists(batches(), min_size=1, max_size=draw(st.sampled_from([1, 3])))))
    cut = draw(st.sampled_from([0, 0, 0, 0, 0, 1, 20, 70]))
    return found[: len(found) - cut] + draw(st.sampled_from([b""] * 6 + [b"\0", bytes(70)]))


mostly_not = st.sampled_from([False, False, False, True])
configs = st.builds(
    LogConfig,
    cleanup_policy=st.sampled_from([("delete",), ("compact",), ("compact", "delete")]),
    compression_type=st.sampled_from(["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"]),
    record_validation=st.sampled_from(["headers", "chain", "full"]),
    max_message_bytes=st.sampled_from([120, 1 << 20, 8 << 20]),
    segment_bytes=st.sampled_from([1 << 20, 1 << 30]),
    message_timestamp_type=st.sampled_from(["CreateTime", "LogAppendTime"]),
)


def result_of(check: Callable[[], Any]) -> object:
    """Return the type of the error where there is one."""
    try:
        return check()
    except PenstockError as error:
        return type(error), str(error)


def stored(found: tuple[memoryview, list[BatchHeader]]) -> tuple[bytes, list[BatchHeader]]:
    return bytes(found[0]), found[1]


@given(appends(), configs, st.booleans(), mostly_not)
def test_the_same_batches_are_stored_or_the_same_error_is_raised(
    batches: bytes, config: LogConfig, single: bool, transactional: bool
) -> None:
    check = partial(
        prepared, config=config, now_ms=TIME_MS, single=single, transactional=transactional
    )
    view = memoryview(batches)

    def beside() -> tuple[bytes, list[BatchHeader]]:
        try:
            return stored(check(view, opening=Opening.BESIDE))
        except NeedsOpening:
            event("opened in a thread")
        ready, _ = check(view, opening=Opening.HERE)
        return stored(check(ready, opening=Opening.DONE))

    here = result_of(lambda: stored(check(view, opening=Opening.HERE)))
    event("refused" if isinstance(here, tuple) and isinstance(here[0], type) else "stored")
    assert result_of(beside) == here


@given(appends(), configs, st.booleans(), mostly_not)
def test_the_same_headers_are_returned_or_the_same_error_is_raised(
    batches: bytes, config: LogConfig, single: bool, transactional: bool
) -> None:
    check = partial(
        validate_batches, memoryview(batches), config, TIME_MS, single=single,
        transactional=transactional,
    )  # fmt: skip

    def beside() -> list[BatchHeader]:
        try:
            return check(opening=Opening.BESIDE)
        except NeedsOpening:
            check(opening=Opening.HERE)
            return check(opening=Opening.DONE)

    assert result_of(beside) == result_of(lambda: check(opening=Opening.HERE))
