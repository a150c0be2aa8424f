"""Format of the messages between brokers about replicated partitions, in frames of `wire/frames`.

A frame's header has rows back to back, its payload the bytes that belong to rows, in order:
batches, or the producers of a log start (`LogReplica.producers_below`). Integers are big endian.
A row begins with

    at  bytes  field
     0      1  kind
     1     16  topic id
    17      4  partition
    21      …  the fields of its kind, in the order of `messages.py`:

    1 Fence         authority i32, target i32
    2 FenceAnswer   authority i32, incarnation i64, end i64, mark i64, limbo i32
    3 Fenced        authority i32, promised i32
    4 Join          authority i32, links u16, per link: epoch i32, start i64
    5 Position      authority i32, epoch i32, incarnation i64, end i64, asks for the end u8
    6 JoinFirst     authority i32, epoch i32, incarnation i64
    7 Append        authority i32, epoch i32, base i64, next i64, mark i64, bytes of batches u32
    8 Ack           authority i32, epoch i32, incarnation i64, durable i64
    9 LogEnd        authority i32, epoch i32, incarnation i64, end i64
   10 Read          authority i32, epoch i32, base i64, next i64
   11 ReadAnswer    authority i32, epoch i32, base i64, next i64, bytes of batches u32
   12 HandOver      authority i32
   13 GiveTo        authority i32, successor i32
   14 LogStart      authority i32, epoch i32, base i64, bytes of producers u32
   15 AskChain      authority i32, epoch i32, incarnation i64, newest i32
   16 ElectUncleanly authority i32
   17 Begun         authority i32, epoch i32, incarnation i64, base i64
   18 AskCopy       base i64, next i64
   19 CopyAnswer    base i64, next i64, bytes of batches u32

The first frame of each side is a greeting, the accepting side's first: "PSPR", oldest version
u16, broker id i32, incarnation 16, largest frame u32, cluster name (length u8, bytes), newest
version u16, nonce 32. Version 1 ends after the cluster name. Both sides use the newest version
that both know: version 1 has the kinds up to 17, version 2 adds 18, 19 and proofs. With version
2 the next frame is a proof, the connecting side's first: "PSPF" and 32 bytes
(`security/peers.py`). A side that rejects the other sends "PSNO" and the reason as UTF-8, and
closes. A header "PSUP" is a keep-alive."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from struct import Struct, error
from typing import Any, Final, NamedTuple
from uuid import UUID

from penstock.replication.chain import Link
from penstock.replication.messages import (
    Ack,
    Append,
    AskChain,
    Fence,
    FenceAnswer,
    Fenced,
    Join,
    JoinFirst,
    LogEnd,
    LogStart,
    Position,
)
from penstock.security.peers import NONCE_BYTES
from penstock.storage.values import Buffer
from penstock.wire.frames import HEADER_BYTES_MAX, MalformedFrame

VERSION: Final = 2
OLDEST_VERSION: Final = 1
PROVEN_SINCE: Final = 2
"""The version from which on sides prove who they are."""
_SINCE: Final = {18: 2, 19: 2}
"""The version of a kind of row that the first one does not know."""
LINKS_MAX: Final = 4096
"""Of a chain in one row. A replica needs none that are older than its own newest epoch."""

_GREETING: Final = b"PSPR"
REFUSAL: Final = b"PSNO"
SIGN_OF_LIFE: Final = b"PSUP"
PROOF: Final = b"PSPF"


class HandOver(NamedTuple):
    """The leader in epoch `authority` appends no more; the receiver should claim."""

    authority: int


class GiveTo(NamedTuple):
    """The leader in epoch `authority` should hand over to the broker `successor`."""

    authority: int
    successor: int


class ElectUncleanly(NamedTuple):
    """A claimant that cannot lead after epoch `authority` should use the replicas that have
    answered."""

    authority: int


class Begun(NamedTuple):
    """The copy's log begins at `base` or above, as its leader's does."""

    authority: int
    epoch: int
    incarnation: int
    base: int


class Read(NamedTuple):
    """A claimant asks a copy that it has fenced for batches of [base, next) of an epoch."""

    authority: int
    epoch: int
    base: int
    next: int


class ReadAnswer(NamedTuple):
    """The batches of [base, next), as many as fit; none if they cannot be read.

    None of [base, base), and producers, where `base` is above what was asked for: the log begins
    there.
    """

    authority: int
    epoch: int
    base: int
    next: int


class AskCopy(NamedTuple):
    """The sender's committed offsets [base, next) are damaged: send yours."""

    base: int
    next: int


class CopyAnswer(NamedTuple):
    """The batches of [base, next), as many as fit; none if they are not here, or not known as
    committed, or damaged here too."""

    base: int
    next: int


_HELLO: Final = Struct(">4sHi16sIB")
_NEWEST: Final = Struct(">H")
_KEY: Final = Struct(">B16si")
_JOIN: Final = Struct(">iH")
_LINK: Final = Struct(">iq")
_SIZE: Final = Struct(">I")
_KINDS: Final[dict[int, tuple[type[Any], Struct]]] = {
    1: (Fence, Struct(">ii")),
    2: (FenceAnswer, Struct(">iqqqi")),
    3: (Fenced, Struct(">ii")),
    5: (Position, Struct(">iiqq?")),
    6: (JoinFirst, Struct(">iiq")),
    7: (Append, Struct(">iiqqq")),
    8: (Ack, Struct(">iiqq")),
    9: (LogEnd, Struct(">iiqq")),
    10: (Read, Struct(">iiqq")),
    11: (ReadAnswer, Struct(">iiqq")),
    12: (HandOver, Struct(">i")),
    13: (GiveTo, Struct(">ii")),
    14: (LogStart, Struct(">iiq")),
    15: (AskChain, Struct(">iiqi")),
    16: (ElectUncleanly, Struct(">i")),
    17: (Begun, Struct(">iiqq")),
    18: (AskCopy, Struct(">qq")),
    19: (CopyAnswer, Struct(">qq")),
}
_JOIN_KIND: Final = 4
_WITH_DATA: Final = (7, 11, 14, 19)
_NUMBERS: Final = {cls: (kind, struct) for kind, (cls, struct) in _KINDS.items()}
ROW_BYTES_MAX: Final = _KEY.size + max(
    _JOIN.size + LINKS_MAX * _LINK.size, *(struct.size + 4 for _, struct in _KINDS.values())
)
_NOTHING: Final = memoryview(b"")


OfEpochs = (
    Fence | FenceAnswer | Fenced | Join | Position | JoinFirst | AskChain | Append | Ack | LogStart
    | LogEnd | Read | ReadAnswer | HandOver | GiveTo | ElectUncleanly | Begun
)  # fmt: skip
"""What is said on behalf of an epoch: by the cores, for reading what is to be written back, and for
a leadership that is given away."""
Said = OfEpochs | AskCopy | CopyAnswer
"""What is said of a partition."""


class PartitionKey(NamedTuple):
    """A partition as brokers name it to each other."""

    topic_id: bytes
    partition: int


class Row(NamedTuple):
    """A message about one partition; `data` are what its payload has of it."""

    key: PartitionKey
    message: Said
    data: memoryview = _NOTHING


class Greeting(NamedTuple):
    """Identity of a side of a link, its largest frame in bytes, and its versions."""

    broker_id: int
    incarnation: UUID
    cluster: str
    """Name of its cluster (`security.peers.PeerSecret.name_of`), or the id."""
    frame_bytes_max: int
    oldest: int = OLDEST_VERSION
    newest: int = VERSION
    nonce: bytes = b""
    """What the other side's proof is made of; sides of version 1 have none."""


class Refusal(NamedTuple):
    """Why a side does not talk to the other."""

    reason: str


def encode_greeting(greeting: Greeting) -> bytes:
    """The header of the first frame."""
    name = greeting.cluster.encode()
    numbers = (greeting.oldest, greeting.broker_id, greeting.incarnation.bytes)
    head = _HELLO.pack(_GREETING, *numbers, greeting.frame_bytes_max, len(name))
    return head + name + _NEWEST.pack(greeting.newest) + greeting.nonce


def encode_refusal(reason: str) -> bytes:
    """The header of the only frame of a side that refuses."""
    return REFUSAL + reason.encode()[: HEADER_BYTES_MAX - len(REFUSAL)]


def decode_greeting(header: memoryview) -> Greeting | Refusal:
    """Read the header of a first frame; of a later version what every version has.

    Raises:
        MalformedFrame: it is neither.
    """
    if bytes(header[:4]) == REFUSAL:
        return Refusal(str(header[4:], "utf-8", "replace"))
    try:
        magic, oldest, broker_id, incarnation, frame_bytes, size = _HELLO.unpack_from(header)
        end = _HELLO.size + size
        name = str(header[_HELLO.size : end], "utf-8")
        more = len(header) >= end + _NEWEST.size
        newest = _NEWEST.unpack_from(header, end)[0] if more else oldest
    except (error, UnicodeDecodeError):
        raise MalformedFrame(f"a greeting of {len(header)} bytes that is none") from None
    if magic != _GREETING or len(header) < end:
        raise MalformedFrame(f"a link between brokers begins with {bytes(header[:4])!r}")
    nonce = bytes(header[end + _NEWEST.size :][:NONCE_BYTES]) if newest >= PROVEN_SINCE else b""
    if newest >= PROVEN_SINCE and len(nonce) < NONCE_BYTES:
        raise MalformedFrame(f"a greeting with a nonce of {len(nonce)} bytes")
    return Greeting(broker_id, UUID(bytes=incarnation), name, frame_bytes, oldest, newest, nonce)


def is_known(row: bytes, version: int) -> bool:
    """Whether who speaks a version knows the kind of an encoded row."""
    return _SINCE.get(row[0], OLDEST_VERSION) <= version


def encode_row(key: PartitionKey, message: Said, data_bytes: int = 0) -> bytes:
    """Encode one row; `data_bytes` are its bytes in the payload."""
    if isinstance(message, Join):
        links = message.chain[-LINKS_MAX:]
        packed = b"".join([_LINK.pack(*link) for link in links])
        head = message.authority, len(links)
        return _KEY.pack(_JOIN_KIND, *key) + _JOIN.pack(*head) + packed
    kind, struct = _NUMBERS[type(message)]
    row = _KEY.pack(kind, *key) + struct.pack(*message)
    return row + _SIZE.pack(data_bytes) if kind in _WITH_DATA else row


def decode_rows(header: memoryview, payload: memoryview) -> Iterator[Row]:
    """The rows of a frame, one after another; batches are views of the payload.

    Raises:
        MalformedFrame: an unknown kind, a row that is cut, no chain where one must be, or batches
            that are not the payload.
    """
    at = taken = 0
    try:
        while at < len(header):
            kind, topic_id, partition = _KEY.unpack_from(header, at)
            at += _KEY.size
            key = PartitionKey(topic_id, partition)
            if kind == _JOIN_KIND:
                join, at = _join(header, at)
                yield Row(key, join)
                continue
            found = _KINDS.get(kind)
            if found is None:
                raise MalformedFrame(f"a row of the unknown kind {kind}")
            make, struct = found
            message = make._make(struct.unpack_from(header, at))
            at += struct.size
            if kind not in _WITH_DATA:
                yield Row(key, message)
                continue
            (size,) = _SIZE.unpack_from(header, at)
            at += _SIZE.size
            if taken + size > len(payload):
                raise MalformedFrame(
                    f"batches of {taken + size} bytes in a payload of {len(payload)}"
                )
            yield Row(key, message, payload[taken : taken + size])
            taken += size
    except error:
        raise MalformedFrame(f"a row is cut off at {len(header)} bytes") from None
    if taken != len(payload):
        raise MalformedFrame(f"batches of {taken} bytes in a payload of {len(payload)}")


def _join(header: memoryview, at: int) -> tuple[Join, int]:
    authority, count = _JOIN.unpack_from(header, at)
    at += _JOIN.size
    end = at + count * _LINK.size
    if not 0 < count <= LINKS_MAX or end > len(header):
        raise MalformedFrame(f"a chain of {count} epochs; there are 1 to {LINKS_MAX}")
    chain = tuple([Link(*pair) for pair in _LINK.iter_unpack(header[at:end])])
    return Join(authority, chain), end


def joined(data: Sequence[Buffer]) -> memoryview:
    """The batches of one message, for a copy on this broker."""
    return memoryview(data[0] if len(data) == 1 else b"".join(data))


def gather(rows: Iterable[tuple[bytes, int]], *, frame_bytes_max: int) -> Iterator[list[int]]:
    """Choose the rows of one frame by index; each row is given by its own bytes and those of its
    batches.

    A row that is too large for any frame gets a frame of its own; the caller prevents such rows.
    """
    indexes: list[int] = []
    header = payload = 0
    for index, (row, data_bytes) in enumerate(rows):
        over = header + len(row) > HEADER_BYTES_MAX
        over = over or header + len(row) + payload + data_bytes > frame_bytes_max
        if indexes and over:
            yield indexes
            indexes, header, payload = [], 0, 0
        indexes.append(index)
        header += len(row)
        payload += data_bytes
    if indexes:
        yield indexes
