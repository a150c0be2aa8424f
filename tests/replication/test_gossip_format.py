"""Datagrams of gossip: whole, cut at every byte, damaged in every bit, and made up."""

from __future__ import annotations

from contextlib import suppress
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.crc import crc32c
from penstock.replication.gossip_format import (
    DATAGRAM_BYTES_MAX,
    RUMOURS_MAX,
    Datagram,
    Kind,
    Refusal,
    RefusedDatagram,
    Rumour,
    State,
    cluster_key,
    decode,
    encode,
)

CLUSTER = cluster_key("5f0ddaf4")
BROKERS = st.integers(-(2**31), 2**31 - 1)
INCARNATIONS = st.integers(0, 2**64 - 1)
RUMOURS = st.builds(Rumour, BROKERS, INCARNATIONS, st.sampled_from(State))
DATAGRAMS = st.builds(
    Datagram,
    st.sampled_from(Kind),
    st.integers(0, 2**32 - 1),
    BROKERS,
    INCARNATIONS,
    BROKERS,
    BROKERS,
    st.lists(RUMOURS, max_size=RUMOURS_MAX).map(tuple),
)
ONE = Datagram(Kind.PING_REQUEST, 7, 1, 2**32, 2, 1, (Rumour(3, 2**33, State.DEAD),))


def refused(data: bytes) -> Refusal:
    with pytest.raises(RefusedDatagram) as caught:
        decode(CLUSTER, data)
    assert caught.value.reason in str(caught.value)
    return caught.value.reason


def summed(body: bytes) -> bytes:
    """With the right checksum, as one who forges has it."""
    return body + pack(">I", crc32c(body))


@given(DATAGRAMS)
def test_what_is_written_is_read(datagram: Datagram) -> None:
    data = encode(CLUSTER, datagram)
    assert len(data) <= DATAGRAM_BYTES_MAX
    assert decode(CLUSTER, data) == datagram


def test_the_layout_is_fixed() -> None:
    data = encode(CLUSTER, ONE)
    assert data[:4] == b"PG\x01\x02"
    assert data[4:20] == CLUSTER
    assert data[20:45].hex() == "00000007000000010000000100000000000000020000000101"
    assert data[45:58].hex() == "00000003000000020000000002"
    assert len(data) == 62
    assert RUMOURS_MAX == 103


def test_every_cut_and_every_extension_is_refused() -> None:
    data = encode(CLUSTER, ONE)
    for end in range(len(data)):
        assert refused(data[:end]) is Refusal.MALFORMED
    assert refused(data + b"\0") is Refusal.MALFORMED
    assert refused(data + data) is Refusal.MALFORMED


def test_every_bit_counts() -> None:
    data = encode(CLUSTER, ONE)
    for bit in range(8 * len(data)):
        wrong = bytearray(data)
        wrong[bit // 8] ^= 1 << bit % 8
        assert refused(bytes(wrong)) in (Refusal.MALFORMED, Refusal.FUTURE_VERSION)


def test_another_cluster_is_refused() -> None:
    assert refused(encode(cluster_key("another"), ONE)) is Refusal.OTHER_CLUSTER


def test_a_later_version_is_refused_before_anything_of_it_is_read() -> None:
    data = bytearray(encode(CLUSTER, ONE))
    data[2] = 2
    assert refused(bytes(data)) is Refusal.FUTURE_VERSION
    data[2] = 0
    assert refused(bytes(data)) is Refusal.MALFORMED


@pytest.mark.parametrize(("at", "value"), [(3, 0), (3, 4), (57, 3), (57, 255)])
def test_unknown_kinds_and_states_are_refused(at: int, value: int) -> None:
    body = bytearray(encode(CLUSTER, ONE)[:-4])
    body[at] = value
    assert refused(summed(bytes(body))) is Refusal.MALFORMED


def test_a_count_that_the_length_does_not_have_is_refused() -> None:
    body = encode(CLUSTER, ONE)[:-4]
    for count in (0, 2, 255):
        assert refused(summed(body[:44] + bytes([count]) + body[45:])) is Refusal.MALFORMED


def test_a_datagram_that_is_too_long_is_refused() -> None:
    full = encode(CLUSTER, ONE._replace(rumours=ONE.rumours * RUMOURS_MAX))
    assert decode(CLUSTER, full).rumours == ONE.rumours * RUMOURS_MAX
    over = encode(CLUSTER, ONE._replace(rumours=ONE.rumours * (RUMOURS_MAX + 1)))
    assert refused(over) is Refusal.TOO_LONG
    assert refused(bytes(65_507)) is Refusal.TOO_LONG


@given(st.binary(max_size=1_500), st.booleans())
def test_no_bytes_raise_anything_else(data: bytes, begins_well: bool) -> None:
    if begins_well:
        data = summed(b"PG\x01" + data[:1] + CLUSTER + data[1:])
    with suppress(RefusedDatagram):
        decode(CLUSTER, data)
