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
(`security/sasl/peers.py`). A side that rejects the other sends "PSNO" and the reason as UTF-8, and
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
from penstock.security.sasl.peers import NONCE_BYTES
from penstock.storage.files.values import Buffer
from penstock.wire.frames import HEADER_BYTES_MAX, MalformedFrame

VERSION: Final = 2
OLDEST_VERSION: Final = 1
PROVEN_SINCE: Final = 2
"""Version from which on both sides prove that they belong to the cluster."""
_SINCE: Final = {18: 2, 19: 2}
"""Version that introduced a kind of row; kinds of version 1 are omitted."""
LINKS_MAX: Final = 4096
"""Maximum number of epochs in the chain of one row. A replica needs no epoch that is older than its
own newest one."""

_GREETING: Final = b"PSPR"
REFUSAL: Final = b"PSNO"
SIGN_OF_LIFE: Final = b"PSUP"
PROOF: Final = b"PSPF"


class HandOver(NamedTuple):
    """Request to claim the partition, because the leader in epoch `authority` appends no more."""

    authority: int


class GiveTo(NamedTuple):
    """Request to the leader in epoch `authority` to hand over to the broker `successor`."""

    authority: int
    successor: int


class ElectUncleanly(NamedTuple):
    """Request for an unclean election to a claimant that cannot lead after epoch `authority`."""

    authority: int


class Begun(NamedTuple):
    """Report that the replica's log begins at `base`, after a `LogStart` of the leader."""

    authority: int
    epoch: int
    incarnation: int
    base: int


class Read(NamedTuple):
    """Request of a claimant to a fenced replica for the batches [base, next) of an epoch."""

    authority: int
    epoch: int
    base: int
    next: int


class ReadAnswer(NamedTuple):
    """Answer to `Read`: batches [base, next), as many as fit; none if they cannot be read.

    If the log begins above the requested offset, `base` and `next` are its start, and the data is
    the producer state below it.
    """

    authority: int
    epoch: int
    base: int
    next: int


class AskCopy(NamedTuple):
    """Request for the committed batches [base, next), which are damaged in the sender's log."""

    base: int
    next: int


class CopyAnswer(NamedTuple):
    """Answer to `AskCopy`: batches [base, next), as many as fit.

    It has none if they are missing, damaged, or not known as committed at the sender.
    """

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
"""Messages on behalf of an epoch: of the cores, of claimants that read records, of handovers."""
Said = OfEpochs | AskCopy | CopyAnswer
"""Messages about a partition."""


class PartitionKey(NamedTuple):
    """Key of a partition in messages between brokers."""

    topic_id: bytes
    partition: int


class Row(NamedTuple):
    """Message about one partition; `data` is its part of the frame's payload."""

    key: PartitionKey
    message: Said
    data: memoryview = _NOTHING


class Greeting(NamedTuple):
    """Identity of a side of a link, its largest frame in bytes, and its versions."""

    broker_id: int
    incarnation: UUID
    cluster: str
    """Name of the side's cluster (`security.peers.PeerSecret.name_of`), or the cluster's id."""
    frame_bytes_max: int
    oldest: int = OLDEST_VERSION
    newest: int = VERSION
    nonce: bytes = b""
    """Random bytes for the other side's proof; empty in version 1."""


class Refusal(NamedTuple):
    """Reason why one side rejects the other."""

    reason: str


def encode_greeting(greeting: Greeting) -> bytes:
    """Return the header of a side's first frame."""
    name = greeting.cluster.encode()
    numbers = (greeting.oldest, greeting.broker_id, greeting.incarnation.bytes)
    head = _HELLO.pack(_GREETING, *numbers, greeting.frame_bytes_max, len(name))
    return head + name + _NEWEST.pack(greeting.newest) + greeting.nonce


def encode_refusal(reason: str) -> bytes:
    """Return the header of the frame with which a side rejects the other."""
    return REFUSAL + reason.encode()[: HEADER_BYTES_MAX - len(REFUSAL)]


def decode_greeting(header: memoryview) -> Greeting | Refusal:
    """Decode the header of a first frame; ignore the additional fields of later versions.

    Raises:
        MalformedFrame: the header is neither a greeting nor a refusal.
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
        raise MalformedFrame(f"a greeting of {len(header)} bytes is malformed") from None
    if magic != _GREETING or len(header) < end:
        raise MalformedFrame(f"a link begins with {bytes(header[:4])!r} instead of a greeting")
    nonce = bytes(header[end + _NEWEST.size :][:NONCE_BYTES]) if newest >= PROVEN_SINCE else b""
    if newest >= PROVEN_SINCE and len(nonce) < NONCE_BYTES:
        raise MalformedFrame(f"a greeting has a nonce of {len(nonce)} bytes, not {NONCE_BYTES}")
    return Greeting(broker_id, UUID(bytes=incarnation), name, frame_bytes, oldest, newest, nonce)


def is_known(row: bytes, version: int) -> bool:
    """Return whether a version has the kind of an encoded row."""
    return _SINCE.get(row[0], OLDEST_VERSION) <= version


def encode_row(key: PartitionKey, message: Said, data_bytes: int = 0) -> bytes:
    """Encode one row; `data_bytes` is the size of its data in the payload."""
    if isinstance(message, Join):
        links = message.chain[-LINKS_MAX:]
        packed = b"".join([_LINK.pack(*link) for link in links])
        head = message.authority, len(links)
        return _KEY.pack(_JOIN_KIND, *key) + _JOIN.pack(*head) + packed
    kind, struct = _NUMBERS[type(message)]
    row = _KEY.pack(kind, *key) + struct.pack(*message)
    return row + _SIZE.pack(data_bytes) if kind in _WITH_DATA else row


def decode_rows(header: memoryview, payload: memoryview) -> Iterator[Row]:
    """Yield the rows of a frame; their data are views of the payload.

    Raises:
        MalformedFrame: a row has an unknown kind or is truncated, the chain of a join is empty, or
            the data of the rows are not the whole payload.
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
                raise MalformedFrame(f"a row has the unknown kind {kind}")
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
                    f"the rows need {taken + size} bytes of a payload of {len(payload)} bytes"
                )
            yield Row(key, message, payload[taken : taken + size])
            taken += size
    except error:
        raise MalformedFrame(f"a row is truncated at byte {len(header)}") from None
    if taken != len(payload):
        raise MalformedFrame(f"the rows use {taken} bytes of a payload of {len(payload)} bytes")


def _join(header: memoryview, at: int) -> tuple[Join, int]:
    authority, count = _JOIN.unpack_from(header, at)
    at += _JOIN.size
    end = at + count * _LINK.size
    if not 0 < count <= LINKS_MAX or end > len(header):
        raise MalformedFrame(f"a chain of {count} epochs; 1 to {LINKS_MAX} are allowed")
    chain = tuple([Link(*pair) for pair in _LINK.iter_unpack(header[at:end])])
    return Join(authority, chain), end


def joined(data: Sequence[Buffer]) -> memoryview:
    """Return the data of one message as one buffer, for a replica on this broker."""
    return memoryview(data[0] if len(data) == 1 else b"".join(data))


def gather(rows: Iterable[tuple[bytes, int]], *, frame_bytes_max: int) -> Iterator[list[int]]:
    """Yield the indexes of the rows of each frame, in order.

    Each row is given by its encoded bytes and the size of its data. A row that is too large for any
    frame gets a frame of its own; the caller prevents such rows.
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
