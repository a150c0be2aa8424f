"""The kernel that joins the batches of Produce requests, beside the checks in Python."""

from __future__ import annotations

import struct
from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.errors import PenstockError
from penstock.records import BatchHeader, decode_header, stamp
from penstock.records.columnar.validation import check_chain
from penstock.records.header import HEADER
from penstock.storage import LogConfig
from penstock.storage.log.validation import _plain, plain_limits
from penstock.wire.kafka.framing import uvarint
from tests.kernels.joins import joined
from tests.storage.batches import batch
from tests.storage.test_wide import changed

NOW_MS = 1001
HEAD = b"\0\0\0\x09head"
"""What precedes the records' length."""


def framed(records: bytes, *, compact: bool) -> bytes:
    if compact:
        return HEAD + uvarint(len(records) + 1) + records + b"\0\0\0"
    return HEAD + struct.pack(">i", len(records)) + records


def accepted(request: bytes, config: LogConfig, *, compact: bool) -> bool:
    limits = plain_limits(config, NOW_MS)
    assert limits is not None
    count, _, _ = joined([request], [len(HEAD)], compact=compact, limits=limits)
    return count == 1


def is_plain(data: memoryview, config: LogConfig) -> bool:
    """Return whether `storage.log.validation` and `check_chain` accept an uncompressed batch."""
    header = _plain(data, config, NOW_MS, summed=True)
    if header is None or header.attributes:
        return False
    try:
        if config.record_validation == "chain":
            check_chain(data, header)
    except PenstockError:
        return False
    return True


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("config", [
    LogConfig(record_validation="chain"),
    LogConfig(record_validation="headers", max_message_bytes=200),
    LogConfig(message_timestamp_before_max_ms=1, message_timestamp_after_max_ms=1),
])  # fmt: skip
def test_the_kernel_and_python_accept_the_same_headers(config: LogConfig, compact: bool) -> None:
    """Compare both for edge values of every pair of header fields."""
    bits = {"q": 64, "i": 32, "I": 32, "h": 16, "b": 8}
    whole = batch(3)
    edges = {}
    for name, code in zip(BatchHeader._fields, HEADER.format[1:], strict=True):
        high = 1 << bits[code] - 1
        values = [-high, -2, -1, 0, 1, 2, 3, 4, 16, 1000, 1002, high - 1, len(whole) - 12]
        edges[name] = [value for value in values if -high <= value < high and name != "crc"]
    found = [whole, batch(), batch(150), batch(2, size=300)]
    found += [
        changed(whole, **{one: value, other: second})
        for one, other in combinations(edges, 2)
        for value, second in product(edges[one], edges[other])
    ]
    expected = [is_plain(data, config) for data in found]
    assert 20 < sum(expected) < len(found)
    requests = [framed(bytes(data), compact=compact) for data in found]
    assert [accepted(request, config, compact=compact) for request in requests] == expected


@given(
    st.lists(st.tuples(st.integers(1, 200), st.integers(7, 900)), min_size=1, max_size=9),
    st.booleans(), st.integers(0, 2**62), st.integers(-1, 2**31 - 1), st.data(),
)  # fmt: skip
def test_requests_before_the_first_other_one_are_joined(
    kinds: list[tuple[int, int]], compact: bool, base_offset: int, epoch: int, data: st.DataObject
) -> None:
    """Change or cut any bytes of one request: those before it are copied and stamped."""
    batches = [bytes(batch(count, size=size, fill=count)) for count, size in kinds]
    requests = [framed(records, compact=compact) for records in batches]
    broken = data.draw(st.integers(0, len(requests) - 1))
    request = bytearray(requests[broken])
    if data.draw(st.booleans()):
        del request[data.draw(st.integers(len(HEAD), len(request) - 1)) :]
    else:
        at = data.draw(st.integers(len(HEAD), len(request) - 1))
        request[at] ^= data.draw(st.integers(1, 255))
    requests[broken] = bytes(request)
    config = LogConfig(record_validation="chain")
    limits = plain_limits(config, NOW_MS)
    assert limits is not None
    count, joined_bytes, headers = joined(
        requests, [len(HEAD)] * len(requests), compact=compact, limits=limits,
        base_offset=base_offset, epoch=epoch,
    )  # fmt: skip
    assert count in (broken, len(requests))
    if count > broken:  # a change that the checksum of the batch would detect
        size = len(batches[broken])
        start = len(request) - size - (3 if compact else 0)
        batches[broken] = bytes(request[start : start + size])
    expected, expected_headers, offset = b"", b"", base_offset
    for records in batches[:count]:
        whole = bytearray(records)
        header = decode_header(records)
        stamp(whole, 0, offset, header.batch_length, epoch)
        expected += whole
        expected_headers += whole[:61]
        offset += header.record_count
    assert joined_bytes == expected
    assert headers == expected_headers


@pytest.mark.parametrize("setting", [
    {"cleanup_policy": "compact"}, {"record_validation": "full"}, {"compression_type": "zstd"},
    {"message_timestamp_type": "LogAppendTime"}, {"schema_validation_value": True},
    {"schema_validation_key": True},
])  # fmt: skip
def test_topics_with_other_checks_have_no_limits(setting: dict[str, object]) -> None:
    assert plain_limits(LogConfig(**setting), NOW_MS) is None  # type: ignore[arg-type]
