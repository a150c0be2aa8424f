"""Links between brokers on loopback: who may talk, what is lost, and what nonsense leads to."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from penstock.base.system import SYSTEM_RANDOMNESS
from penstock.replication import links as links_module
from penstock.replication.link_transport import Address, LinkTransport
from penstock.replication.links import Links, Outgoing
from penstock.replication.messages import Append, Fenced
from penstock.replication.peer_format import (
    PROOF,
    SIGN_OF_LIFE,
    AskCopy,
    Greeting,
    PartitionKey,
    Refusal,
    Row,
    decode_greeting,
    decode_rows,
    encode_greeting,
    encode_refusal,
    encode_row,
)
from penstock.security.sasl.peers import NONCE_BYTES, PeerSecret
from penstock.wire.frames import PRELUDE_BYTES, decode_parts, encode_parts

KEY = PartitionKey(bytes(range(16)), 3)
SECONDS = 60.0
SECRET = PeerSecret(b"known to the brokers of a cluster")
NONCE = bytes(range(NONCE_BYTES))


class User:
    """Keeps what comes."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, Row]] = []
        self.changes: list[tuple[int, bool]] = []
        self.gone: list[int] = []
        self.room: list[int] = []

    def rows_came(self, broker_id: int, rows: Iterable[Row]) -> None:
        for row in rows:
            self.rows.append((broker_id, row))

    def link_changed(self, broker_id: int, *, up: bool) -> None:
        self.changes.append((broker_id, up))

    def refused(self, broker_id: int) -> None:
        self.gone.append(broker_id)

    def room_again(self, broker_id: int) -> None:
        self.room.append(broker_id)


class Side:
    """A broker's links, and what came over them."""

    def __init__(
        self,
        broker_id: int,
        incarnation: int = 1,
        cluster: str = "c",
        silent: float = SECONDS,
        secret: PeerSecret = SECRET,
        *,
        proven: bool = True,
    ) -> None:
        self.user = User()
        self.links = Links(
            broker_id=broker_id,
            incarnation=UUID(int=incarnation),
            cluster_id=cluster,
            silent_seconds=silent,
            user=self.user,
            secret=secret,
            randomness=SYSTEM_RANDOMNESS,
            transport=LinkTransport(proven=proven),
        )
        self.address: Address = ("", 0)


@pytest.fixture
async def sides() -> AsyncIterator[Callable[..., Side]]:
    made: list[Side] = []

    def make(broker_id: int, *more: Any, **named: Any) -> Side:
        made.append(Side(broker_id, *more, **named))
        return made[-1]

    yield make
    for side in made:
        await side.links.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.sleep(0.001)


async def joined(one: Side, two: Side) -> None:
    for side in (one, two):
        side.address = await side.links.listen("127.0.0.1", 0)
    addresses = {side.links.broker_id: side.address for side in (one, two)}
    for side in (one, two):
        mine = side.links.broker_id
        side.links.reach({id_: at for id_, at in addresses.items() if id_ != mine})
    await until(lambda: bool(one.links.ready and two.links.ready))


def row(number: int, data: bytes = b"") -> Outgoing:
    said = Append(1, 1, number, number + 1, 0) if data else Fenced(number, number)
    return encode_row(KEY, said, len(data)), [data] if data else [], len(data)


async def test_rows_go_both_ways_in_order(sides: Callable[..., Side]) -> None:
    one, two = sides(1), sides(2)
    await joined(one, two)
    assert len(one.links._open) == len(two.links._open) == 1, "one connection for a pair"
    sizes = [1, 0, 100, 70_000, 0, 300_000, 5, links_module._BLOCK_BYTES, 3_000_000]
    datas = [bytes([place]) * size for place, size in enumerate(sizes)]
    for side, other in ((one, two), (two, one)):
        side.links.send(other.links.broker_id, [row(*pair) for pair in enumerate(datas[:4])])
        side.links.send(
            other.links.broker_id, [row(4 + n, data) for n, data in enumerate(datas[4:])]
        )
    for side, other in ((one, two), (two, one)):
        await until(lambda side=side: len(side.user.rows) == len(datas))  # type: ignore[misc]
        assert {sender for sender, _ in side.user.rows} == {other.links.broker_id}
        assert [bytes(got.data) for _, got in side.user.rows] == datas
        assert {got.key for _, got in side.user.rows} == {KEY}
    assert two.links.room_bytes(1) > 0
    assert two.links.room_bytes(9) == 0


async def test_a_caller_without_room_is_notified_when_there_is_room(
    sides: Callable[..., Side],
) -> None:
    one, two = sides(1), sides(2)
    await joined(one, two)
    sent = 0
    while one.links.room_bytes(2):
        one.links.send(2, [row(sent, bytes(1 << 20))])
        sent += 1
    assert not one.user.room
    await until(lambda: one.user.room == [2])
    assert one.links.room_bytes(2) >= links_module.WINDOW_BYTES // 2
    await until(lambda: len(two.user.rows) == sent)


async def test_a_lost_link_is_reported_and_restored(sides: Callable[..., Side]) -> None:
    one, two = sides(1), sides(2)
    await joined(one, two)
    one.links.ready[2].close("a test")
    assert one.links.room_bytes(2) == 0
    one.links.send(2, [row(7)])
    await until(lambda: one.user.changes == [(2, True), (2, False), (2, True)])
    await until(lambda: two.user.changes == [(1, True), (1, False), (1, True)])
    one.links.send(2, [row(8)])
    await until(lambda: bool(two.user.rows))
    assert [got.message for _, got in two.user.rows] == [Fenced(8, 8)]


@pytest.mark.parametrize("gone", [1, 2])
async def test_a_broker_that_stops_listening_is_reported_as_gone(
    sides: Callable[..., Side], gone: int
) -> None:
    one, two = sides(1), sides(2)
    await joined(one, two)
    one.links.ready[2].close("a test")  # both still listen
    await until(lambda: one.user.changes == [(2, True), (2, False), (2, True)])
    await until(lambda: bool(two.links.ready))
    leaving, left = (one, two) if gone == 1 else (two, one)
    await leaving.links.close()
    await until(lambda: left.user.gone == [gone])
    assert leaving.user.gone == []


async def test_a_process_that_ends_may_accept_once_more(sides: Callable[..., Side]) -> None:
    """The kernel closes a process's sockets one after the other: links first, listeners later."""
    one, two = sides(1), sides(2)
    await joined(one, two)
    accepted = 0

    def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal accepted
        accepted += 1
        writer.close()
        if accepted == 2:
            dying.close()

    dying = await asyncio.start_server(accept, "127.0.0.1", 0)
    two.links.reach({1: dying.sockets[0].getsockname()})
    await one.links.close()
    await until(lambda: two.user.gone == [1])
    assert accepted == 2


async def test_a_restarted_broker_replaces_its_former_link(sides: Callable[..., Side]) -> None:
    one, two, again = sides(1), sides(2), sides(1, 5)
    await joined(one, two)
    again.links.reach({2: two.address})
    await until(lambda: bool(again.links.ready))
    again.links.send(2, [row(1)])
    await until(lambda: bool(two.user.rows))


async def test_links_of_unregistered_brokers_stay_open(
    sides: Callable[..., Side],
) -> None:
    one, two = sides(1), sides(2)
    await joined(one, two)
    two.links.reach({})
    one.links.reach({})
    assert not one.links._dialling
    link = one.links.ready[2]
    await asyncio.sleep(0)  # who dialled is cancelled; the connection is not
    assert one.links.ready[2] is link
    link.close("it is lost")
    await until(lambda: not one.links.ready and not two.links.ready)
    assert not one.links._dialling


UNPROVED = "broker 1 did not prove that it belongs to this cluster"
ANOTHER_CLUSTER = "this broker belongs to another cluster: compare control.url of both brokers"
VERSIONS = "the sender supports link versions {} to {}, but this broker supports 2 to 2"


async def frame(reader: asyncio.StreamReader) -> memoryview:
    """The header of the next frame."""
    said = await reader.readexactly(PRELUDE_BYTES)
    while (found := decode_parts(said, 0, 1 << 20))[0] is None:
        said += await reader.readexactly(found[1] - len(said))
    assert found[0] is not None
    return found[0][0]


async def prove(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: PeerSecret = SECRET
) -> bytes:
    """Greet as broker 9 of the cluster a side that was dialled; what else it would accept."""
    theirs = decode_greeting(await frame(reader))
    assert isinstance(theirs, Greeting)
    ids, nonces = (theirs.broker_id, 9), theirs.nonce + NONCE
    proof = PROOF + secret.proof("dialler", "c", ids, nonces)
    writer.write(greeting() + encode_parts(proof, 0))
    return PROOF + secret.proof("dialled", "c", ids, nonces)


async def answer_to(
    side: Side, sent: bytes, *, proved: bool = False
) -> tuple[Refusal | Greeting | None, bytes]:
    """Return a side's second frame and the remaining bytes before it closes.

    With `proved` they come behind a greeting and a proof, whose answer is the second frame.
    """
    reader, writer = await asyncio.open_connection(*side.address)
    if proved:
        assert bytes(await frame_of(reader, await prove(reader, writer)))
    writer.write(sent)
    async with asyncio.timeout(SECONDS):
        try:
            said = await reader.read(-1)
        except ConnectionError:
            said = b""
    writer.close()
    if proved:
        return None, b""
    parts, size = decode_parts(said, 0, 1 << 20) if said else (None, 0)
    assert not said or parts is not None
    if len(said) == size:
        return None, b""
    parts, more = decode_parts(said, size, 1 << 20)
    assert parts is not None
    return decode_greeting(parts[0]), said[size + more :]


async def frame_of(reader: asyncio.StreamReader, expected: bytes) -> bytes:
    """The next frame, which is this one."""
    found = bytes(await frame(reader))
    assert found == expected
    return found


def greeting(broker_id: int = 9, cluster: str = "c", oldest: int = 1, newest: int = 2) -> bytes:
    said = Greeting(broker_id, UUID(int=8), cluster, 1 << 20, oldest, newest, NONCE)
    return encode_parts(encode_greeting(said), 0)


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (greeting(cluster="other"), ANOTHER_CLUSTER),
        (greeting(oldest=7, newest=9), VERSIONS.format(7, 9)),
        (greeting(newest=1), VERSIONS.format(1, 1)),
        (greeting(broker_id=2), "this broker has the same node.id, 2"),
    ],
)
async def test_refused_connections_get_the_reason(
    sides: Callable[..., Side], sent: bytes, why: str
) -> None:
    two = sides(2)
    two.address = await two.links.listen("127.0.0.1", 0)
    assert await answer_to(two, sent) == (Refusal(why), b"")
    assert not two.user.changes


@pytest.mark.parametrize(
    "sent", [b"", greeting(), greeting(cluster="other"), greeting() + encode_parts(PROOF, 0)]
)
async def test_the_clusters_id_is_not_shown_before_a_proof(
    sides: Callable[..., Side], sent: bytes
) -> None:
    cluster = "the-id-of-this-cluster"
    one, two, stranger = sides(1, cluster=cluster), sides(2, cluster=cluster), sides(3)
    await joined(one, two)
    two.links.reach({})
    reader, writer = await asyncio.open_connection(*two.address)
    writer.write(sent)
    writer.write_eof()
    said = await reader.read(-1)
    writer.close()
    assert said
    assert cluster.encode() not in said
    greeted = decode_greeting(await frame(fed(said)))
    assert isinstance(greeted, Greeting)
    assert stranger.links.refusal_of(greeted, None) == ANOTHER_CLUSTER


def fed(data: bytes) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    return reader


NONSENSE = {
    "no frame": b"GET / HTTP/1.1\r\n\r\n" + bytes(100),
    "2 GiB": struct.pack(">IHBBII", 2**31, 4, 0, 0, 0, 0),
    "no greeting": encode_parts(b"hello", 0),
    "a large greeting": encode_parts(b"PSPR" + bytes(links_module.GREETING_BYTES_MAX), 0),
    "wrong checksum": greeting()[:-1] + b"x",
    "rows without a proof": greeting() + encode_parts(row(1)[0], 0),
    "a proof by nothing": greeting() + encode_parts(PROOF + bytes(32), 0),
    "half a proof": greeting() + encode_parts(PROOF, 0),
    "a greeting twice": greeting() + greeting(),
    "no nonce": encode_parts(encode_greeting(Greeting(9, UUID(int=8), "c", 1 << 20)), 0),
}
NONSENSE_OF_BROKERS = {
    "rows that are none": encode_parts(b"\xff" * 30, 0),
    "a row cut off": encode_parts(row(1)[0][:-1], 0),
    "batches that are not there": encode_parts(row(1, b"x")[0], 0),
    "a prelude alone": bytes(PRELUDE_BYTES),
}
SENT = [(nonsense, False) for nonsense in NONSENSE.values()]
SENT += [(nonsense, True) for nonsense in NONSENSE_OF_BROKERS.values()]


@pytest.mark.parametrize(("sent", "proved"), SENT, ids=[*NONSENSE, *NONSENSE_OF_BROKERS])
async def test_nonsense_ends_that_connection_alone(
    sides: Callable[..., Side], sent: bytes, proved: bool
) -> None:
    one, two = sides(1), sides(2)
    await joined(one, two)
    await answer_to(two, sent, proved=proved)
    one.links.send(2, [row(1)])
    await until(lambda: bool([sender for sender, _ in two.user.rows if sender == 1]))
    assert not [sender for sender, _ in two.user.rows if sender != 1]
    await until(lambda: len(two.links._open) == 1)
    assert ((9, True) in two.user.changes) == proved


@pytest.mark.parametrize("proven", [True, False])
async def test_brokers_with_different_secrets_refuse_each_other(
    sides: Callable[..., Side], caplog: pytest.LogCaptureFixture, proven: bool
) -> None:
    secret = PeerSecret(b"another one")
    one, two = sides(1, proven=proven), sides(2, secret=secret, proven=proven)
    two.address = await two.links.listen("127.0.0.1", 0)
    one.links.reach({2: two.address})
    await until(lambda: bool(caplog.messages))
    assert (ANOTHER_CLUSTER if proven else UNPROVED) in caplog.messages[0]
    assert not one.user.changes
    assert not two.user.changes


async def test_a_proof_is_worth_nothing_on_another_connection(sides: Callable[..., Side]) -> None:
    two = sides(2)
    two.address = await two.links.listen("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*two.address)
    theirs = decode_greeting(await frame(reader))
    assert isinstance(theirs, Greeting)
    proof = SECRET.proof("dialler", "c", (2, 9), theirs.nonce + NONCE)
    writer.close()
    await answer_to(two, greeting() + encode_parts(PROOF + proof, 0))
    assert not two.user.changes


async def test_what_a_side_proves_itself_by_cannot_be_sent_back_to_it(
    sides: Callable[..., Side],
) -> None:
    """A peer that mirrors nonces has one side's proof, and needs the other's."""
    two = sides(2)
    other = Greeting(9, UUID(int=8), "c", 1 << 20, nonce=NONCE)
    said = {
        two.links.proof(other, NONCE, dialled=dialled, own=own)
        for dialled in (True, False)
        for own in (True, False)
    }
    assert len(said) == 4


async def test_only_so_many_connections_are_without_a_proof(
    sides: Callable[..., Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links_module, "UNPROVEN_MAX", 3)
    one, two = sides(1), sides(2)
    await joined(one, two)
    opened = [await asyncio.open_connection(*two.address) for _ in range(5)]
    for reader, _ in opened[:3]:
        await frame(reader)
    for reader, _ in opened[3:]:
        with suppress(ConnectionError):
            assert await reader.read() == b""
    assert two.links.ready
    for _, writer in opened:
        writer.close()


@pytest.mark.parametrize("newest", [1, 2, 3])
async def test_a_broker_is_sent_what_it_knows(sides: Callable[..., Side], newest: int) -> None:
    """In a rolling upgrade: a release of the first version, this one, and one that is to come."""
    two = sides(2, proven=False)
    two.address = await two.links.listen("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*two.address)
    theirs = decode_greeting(first := await frame(reader))
    assert isinstance(theirs, Greeting)
    nonce = NONCE if newest > 1 else b""
    hello = encode_greeting(Greeting(9, UUID(int=8), "c", 1 << 20, 1, newest, nonce))
    writer.write(encode_parts(hello[:-2] if newest == 1 else hello, 0))
    if newest > 1:
        proof = SECRET.proof("dialler", "c", (2, 9), theirs.nonce + NONCE)
        writer.write(encode_parts(PROOF + proof, 0))
    await until(lambda: 9 in two.links.ready)
    asked: Outgoing = encode_row(KEY, AskCopy(3, 4)), [], 0
    two.links.send(9, [row(1), asked, row(2)])
    two.links.send(9, [asked])
    two.links.send(9, [row(3)])
    told: list[object] = []
    received = b""
    async with asyncio.timeout(SECONDS):
        while Fenced(3, 3) not in told:
            received += await reader.read(1 << 16)
            frames, at = [], 0
            while (found := decode_parts(received, at, 1 << 20))[0] is not None:
                frames.append(found[0])
                at += found[1]
            rows = [frame for frame in frames if bytes(frame[0][:4]) not in (PROOF, SIGN_OF_LIFE)]
            told = [row.message for frame in rows for row in decode_rows(*frame)]
    copies = [AskCopy(3, 4)] if newest > 1 else []
    assert told == [Fenced(1, 1), *copies, Fenced(2, 2), *copies, Fenced(3, 3)]
    # What a release of the first version looks at in a greeting.
    magic, version = struct.unpack_from(">4sH", first)
    assert (magic, version) == (b"PSPR", 1)
    writer.close()


async def test_a_silent_link_is_closed(sides: Callable[..., Side]) -> None:
    """Cut the network: neither side is notified that the connection is lost."""
    two = sides(2, silent=0.1)
    two.address = await two.links.listen("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*two.address)
    await prove(reader, writer)
    await until(lambda: two.user.changes == [(9, True), (9, False)])
    with suppress(ConnectionError):
        assert SIGN_OF_LIFE in await asyncio.wait_for(reader.read(-1), SECONDS)
    writer.close()


async def test_a_link_over_which_nothing_is_said_stays(
    sides: Callable[..., Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    look = links_module.Link._look

    def counted(link: links_module.Link) -> None:
        nonlocal looks
        looks += 1
        look(link)

    monkeypatch.setattr(links_module.Link, "_look", counted)
    one, two = sides(1, silent=0.4), sides(2, silent=0.4)
    await joined(one, two)
    await until(lambda: looks > 20)  # each has looked more often than a silent link lives
    assert one.user.changes == [(2, True)]
    assert two.user.changes == [(1, True)]


async def test_a_connection_without_a_greeting_is_closed(
    sides: Callable[..., Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links_module, "GREETING_SECONDS", 0.05)
    two = sides(2)
    two.address = await two.links.listen("127.0.0.1", 0)
    assert await answer_to(two, b"") == (None, b"")


async def test_a_refusal_is_logged_once(
    sides: Callable[..., Side], caplog: pytest.LogCaptureFixture
) -> None:
    dialled = 0

    def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal dialled
        dialled += 1
        writer.write(greeting(2) + encode_parts(encode_refusal("other"), 0))
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    one = sides(1)
    one.links.reach({2: (host, port)})
    await until(lambda: dialled > 5)
    why = "the broker rejected the connection: other"
    assert caplog.messages == [f"broker 2 at {host}:{port}: {why}"]
    server.close()


async def test_a_broker_with_another_id_is_refused(
    sides: Callable[..., Side], caplog: pytest.LogCaptureFixture
) -> None:
    """And keeps the connection that it has."""
    one, three = sides(1), sides(3)
    await joined(one, three)
    asked = len(caplog.messages)
    three_again = 0

    def dialled(links: Links, found: Greeting, expected: int | None) -> str | None:
        nonlocal three_again
        three_again += expected == 2
        return Links.refusal_of(links, found, expected)

    one.links.refusal_of = partial(dialled, one.links)  # type: ignore[method-assign]
    one.links.reach({2: three.address, 3: three.address})
    await until(lambda: three_again > 2)
    assert one.user.changes == [(3, True)]
    assert three.user.changes == [(1, True)]
    host, port = three.address
    why = f"broker 2 at {host}:{port}: broker 3 answered at the address of broker 2"
    assert caplog.messages[asked:] == [why], "once, and nothing else"
