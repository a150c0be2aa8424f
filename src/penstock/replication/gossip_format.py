"""One datagram of gossip: a probe or its answer, and what its sender says of members.

Big endian:

    at  bytes  field
     0      2  magic "PG"
     2      1  version, 1
     3      1  kind                 1 ping, 2 ping request, 3 acknowledgement
     4     16  cluster              BLAKE2b, 16 bytes, of the cluster's id
    20      4  sequence             of the probe, as the one who wants to know counts
    24      4  sender
    28      8  sender's incarnation
    36      4  target               the member that is probed
    40      4  origin               the member that wants to know
    44      1  number of rumours
    45   13 n  rumours: broker 4, incarnation 8, state 1 (0 alive, 1 suspect, 2 dead)
     …      4  CRC32C of all before

Decoding takes no memory that a count in the datagram asks for: the length must be that of the
count. The checksum finds damage, not forgery: whoever can send to the port is believed, and gossip
is therefore a hint and nothing more.

Source: the messages of SWIM (Das, Gupta and Motivala, 2002); the layout is our own.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from hashlib import blake2b
from struct import Struct
from typing import Final, NamedTuple

from penstock.base.crc import crc32c
from penstock.base.errors import CorruptError

DATAGRAM_BYTES_MAX: Final = 1_400
"""Fits an Ethernet frame below IPv6 and a tunnel, so that no datagram is sent in fragments."""

MAGIC: Final = b"PG"
VERSION: Final = 1
_HEADER: Final = Struct(">2sBB16sIiQiiB")
_RUMOUR: Final = Struct(">iQB")
_CRC: Final = Struct(">I")
RUMOURS_MAX: Final = (DATAGRAM_BYTES_MAX - _HEADER.size - _CRC.size) // _RUMOUR.size


class Kind(IntEnum):
    """What a datagram asks or answers."""

    PING = 1
    PING_REQUEST = 2
    ACK = 3


class State(IntEnum):
    """What is known of a member; of one incarnation, the higher state is the later one."""

    ALIVE = 0
    SUSPECT = 1
    DEAD = 2


class Rumour(NamedTuple):
    """One incarnation of a member is in a state, as somebody says."""

    broker_id: int
    incarnation: int
    state: State


class Datagram(NamedTuple):
    """A datagram of this cluster."""

    kind: Kind
    sequence: int
    sender: int
    incarnation: int
    target: int
    origin: int
    rumours: tuple[Rumour, ...] = ()


class Refusal(StrEnum):
    """Why a datagram is not taken."""

    TOO_LONG = "too long"
    MALFORMED = "malformed"
    FUTURE_VERSION = "future version"
    OTHER_CLUSTER = "other cluster"
    STRANGER = "stranger"


class RefusedDatagram(CorruptError):
    """Bytes that are no datagram of this cluster and version; `reason` is the rule they break."""

    def __init__(self, reason: Refusal, detail: str) -> None:
        super().__init__(f"datagram refused, {reason}: {detail}")
        self.reason = reason


def cluster_key(cluster_id: str) -> bytes:
    """The 16 bytes by which datagrams name their cluster."""
    return blake2b(cluster_id.encode(), digest_size=16).digest()


def encode(cluster: bytes, datagram: Datagram) -> bytes:
    """Write a datagram of at most `RUMOURS_MAX` rumours."""
    kind, sequence, sender, incarnation, target, origin, rumours = datagram
    body = _HEADER.pack(
        MAGIC, VERSION, kind, cluster, sequence, sender, incarnation, target, origin, len(rumours)
    ) + b"".join([_RUMOUR.pack(*rumour) for rumour in rumours])
    return body + _CRC.pack(crc32c(body))


def decode(cluster: bytes, data: bytes) -> Datagram:
    """Read a datagram.

    Raises:
        RefusedDatagram: longer than 1,400 bytes, not of the layout, of a later version, or of
            another cluster.
    """
    if len(data) > DATAGRAM_BYTES_MAX:
        raise RefusedDatagram(Refusal.TOO_LONG, f"{len(data)} bytes, over {DATAGRAM_BYTES_MAX}")
    if data[:2] != MAGIC or len(data) < _HEADER.size + _CRC.size:
        raise RefusedDatagram(Refusal.MALFORMED, f"{len(data)} bytes that begin with {data[:4]!r}")
    if data[2] > VERSION:
        raise RefusedDatagram(Refusal.FUTURE_VERSION, f"version {data[2]}, {VERSION} is known")
    _, version, kind, named, sequence, sender, incarnation, target, origin, count = (
        _HEADER.unpack_from(data)
    )
    end = _HEADER.size + count * _RUMOUR.size
    if version != VERSION or len(data) != end + _CRC.size:
        raise RefusedDatagram(Refusal.MALFORMED, f"{len(data)} bytes for {count} rumours")
    if _CRC.unpack_from(data, end)[0] != crc32c(data[:end]):
        raise RefusedDatagram(Refusal.MALFORMED, "the checksum is another one")
    if named != cluster:
        raise RefusedDatagram(Refusal.OTHER_CLUSTER, f"{named.hex()}, this is {cluster.hex()}")
    try:
        rumours = tuple(
            [
                Rumour(broker_id, number, _STATES[state])
                for broker_id, number, state in _RUMOUR.iter_unpack(data[_HEADER.size : end])
            ]
        )
        return Datagram(_KINDS[kind], sequence, sender, incarnation, target, origin, rumours)
    except KeyError as error:
        raise RefusedDatagram(Refusal.MALFORMED, f"no kind or state {error}") from None


_KINDS: Final = {int(kind): kind for kind in Kind}
_STATES: Final = {int(state): state for state in State}
