"""Connections to all other brokers for the messages of replicated partitions.

In each pair of brokers, the one with the lower id connects to the replication address of the other,
and reconnects when the connection is lost. Each side sends a greeting, the accepting side first. A
broker of another cluster or an incompatible version, or another broker than expected, gets the
reason and is disconnected.

Then each side proves that it knows the cluster's secret, the connecting side first
(`security/sasl/peers.py`), over TLS if brokers use it (`link_transport.py`). With proofs, a
greeting names the cluster by a digest under that secret, so an unauthenticated peer does not learn
the cluster's id. A connection counts only if both sides accept it. The connection of a new
incarnation of a broker replaces the former one.

An interrupted network or a stopped process does not close connections. Each side therefore sends
something at least every `LOOK_SECONDS`. A side that has received nothing for `silent_seconds`
closes the connection.

Brokers of different releases use the newest version that both know, and do not send messages that
the other broker does not know. Messages without a connection are dropped: cores send everything
again, and senders are notified when a connection is made or lost (`LinkUser`). An invalid frame
closes the connection.

Bounds: a frame has at most `FRAME_BYTES_MAX`, before the proof `GREETING_BYTES_MAX`; at most
`UNPROVEN_MAX` connections are without a proof. Senders ask `room_bytes` first, so that at most
`WINDOW_BYTES` wait in a connection, and are notified when there is room again. A connection is made
within `CONNECT_SECONDS`, and a greeting must arrive within `GREETING_SECONDS`.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import UUID

from penstock.base.pause import pause
from penstock.replication.link_transport import Address, LinkServer, LinkTransport
from penstock.replication.peer_format import (
    OLDEST_VERSION,
    PROOF,
    PROVEN_SINCE,
    REFUSAL,
    SIGN_OF_LIFE,
    VERSION,
    Greeting,
    Refusal,
    Row,
    decode_greeting,
    decode_rows,
    encode_greeting,
    encode_refusal,
    gather,
    is_known,
)
from penstock.security.sasl.peers import NONCE_BYTES, PeerSecret
from penstock.wire.frames import MalformedFrame, decode_parts, encode_parts

if TYPE_CHECKING:
    from penstock.base.system import Randomness

logger = logging.getLogger(__name__)

FRAME_BYTES_MAX: Final = 32 << 20
WINDOW_BYTES: Final = 8 << 20
CONNECT_SECONDS: Final = 3.0
GREETING_SECONDS: Final = 10.0
GREETING_BYTES_MAX: Final = 4096
UNPROVEN_MAX: Final = 256
LOOK_SECONDS: Final = 0.5
_LOOKS_MIN: Final = 4
"""Minimum number of keep-alive intervals before a silent link is closed."""
_BLOCK_BYTES: Final = 128 << 10
_LOOK_SECONDS: Final = 0.02
_DIAL_SECONDS: Final = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Pauses between attempts to reach a broker, in seconds; the last pause is repeated."""

Buffer = bytes | bytearray | memoryview
Outgoing = tuple[bytes, Sequence[Buffer], int]
"""Encoded row, the batches that belong to it, and the size of these in bytes."""


class LinkUser(Protocol):
    """Receiver of other brokers' messages, which is notified when connections change."""

    def rows_came(self, broker_id: int, rows: Iterable[Row]) -> None:
        """Handle another broker's messages; iterating raises MalformedFrame for invalid ones."""
        ...

    def link_changed(self, broker_id: int, *, up: bool) -> None:
        """Handle a connection that is ready, or that is lost with its messages in flight."""
        ...

    def refused(self, broker_id: int) -> None:
        """Handle a lost connection to a broker whose address refuses new ones."""
        ...

    def room_again(self, broker_id: int) -> None:
        """Handle a connection that has room again after it had none."""
        ...


class Links:
    """Connections of this broker to other brokers. Belongs to the event loop."""

    def __init__(
        self,
        *,
        broker_id: int,
        incarnation: UUID,
        cluster_id: str,
        silent_seconds: float,
        user: LinkUser,
        secret: PeerSecret,
        randomness: Randomness,
        transport: LinkTransport | None = None,
    ) -> None:
        self.broker_id = broker_id
        self._secret = secret
        self._randomness = randomness
        self._link_transport = transport or LinkTransport()
        self._oldest = PROVEN_SINCE if self._link_transport.proven else OLDEST_VERSION
        self.silent_seconds = silent_seconds
        self.look_seconds = min(LOOK_SECONDS, silent_seconds / _LOOKS_MIN)
        self.user = user
        self.ready: dict[int, Link] = {}
        """Connections that may send rows, by the other broker's id."""
        self._incarnation = incarnation
        self._cluster_id = cluster_id
        self._names = (secret.name_of(cluster_id), cluster_id)
        """Names of this cluster in greetings: the digest and, on links without proofs, the id."""
        self._server: LinkServer | None = None
        self._open: set[Link] = set()
        self._dialling: dict[int, tuple[Address, asyncio.Task[None]]] = {}
        self._addresses: Mapping[int, Address] = {}
        self._looking: dict[int, asyncio.Task[None]] = {}
        self._closed = False

    async def listen(self, host: str, port: int) -> Address:
        """Accept connections of other brokers; return the bound address.

        Raises:
            OSError: the address cannot be bound.
        """
        self._server = await self._link_transport.listen(
            lambda: Link(self, None), host or None, port
        )
        host, port = self._server.sockets[0].getsockname()[:2]
        return str(host), int(port)

    @property
    def lost(self) -> frozenset[int]:
        """Brokers whose connection was lost, while it is checked whether they are online."""
        return frozenset([one for one, task in self._looking.items() if not task.done()])

    def reach(self, addresses: Mapping[int, Address]) -> None:
        """Keep connections to these brokers, unless this object is closed.

        An existing connection to a broker that is not registered any more is kept, too. A broker
        that cannot reach the control plane may learn only through it which broker leads now.
        """
        if self._closed:
            return
        self._addresses = addresses
        for broker_id, (address, task) in list(self._dialling.items()):
            if addresses.get(broker_id) != address:
                task.cancel()
                del self._dialling[broker_id]
        loop = asyncio.get_running_loop()
        for broker_id, address in addresses.items():
            if broker_id > self.broker_id and broker_id not in self._dialling:
                task = loop.create_task(self._dial(broker_id, address))
                self._dialling[broker_id] = address, task

    async def close(self) -> None:
        """Close all connections permanently."""
        self._closed = True
        tasks = [*self._looking.values(), *[task for _, task in self._dialling.values()]]
        self._dialling.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._server is not None:
            self._server.close()
        for link in list(self._open):
            link.close("the broker stops")

    def room_bytes(self, broker_id: int) -> int:
        """Return how many bytes may be sent to a broker now; 0 without a connection."""
        link = self.ready.get(broker_id)
        return 0 if link is None else max(0, WINDOW_BYTES - link.waiting_bytes)

    def send(self, broker_id: int, rows: Sequence[Outgoing]) -> None:
        """Send rows in their order; drop them if there is no connection."""
        link = self.ready.get(broker_id)
        if link is not None:
            link.send(rows)

    async def _dial(self, broker_id: int, address: Address) -> None:
        """Connect to a broker, and reconnect whenever the connection is lost."""
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    _, link = await loop.create_connection(
                        lambda: Link(self, broker_id),
                        *address,
                        ssl=self._link_transport.context,
                        server_hostname=self._link_transport.name_of(address),
                    )
                await link.greeted
                await link.lost
                failures = 0
            except (OSError, TimeoutError, LinkRefused) as error:
                if not failures:
                    logger.warning("broker %d at %s:%d: %s", broker_id, *address, error)
                failures += 1
            await pause(_DIAL_SECONDS[min(failures, len(_DIAL_SECONDS) - 1)])

    # -- what connections ask

    def opened(self, link: Link) -> bool:
        """Register a new connection; return False if it must be closed, because too many
        connections are without a proof."""
        self._open.add(link)
        return len(self._open) - len(self.ready) <= UNPROVEN_MAX

    def nonce(self) -> bytes:
        """Return a new nonce for a connection, from which the other side computes its proof."""
        return self._randomness.bits(8 * NONCE_BYTES).to_bytes(NONCE_BYTES, "big")

    def greeting(self, nonce: bytes) -> bytes:
        """Return this broker's greeting as the header of a frame."""
        mine = Greeting(
            self.broker_id,
            self._incarnation,
            self._names[0 if self._link_transport.proven else 1],
            FRAME_BYTES_MAX,
            oldest=self._oldest,
            nonce=nonce,
        )
        return encode_greeting(mine)

    def proof(self, other: Greeting, nonce: bytes, *, dialled: bool, own: bool) -> bytes:
        """Return the proof of one side of a link.

        `dialled` states whether the other side made the connection, `own` whether the proof is that
        of this side.
        """
        ids, nonces = (self.broker_id, other.broker_id), nonce + other.nonce
        if not dialled:
            ids, nonces = (other.broker_id, self.broker_id), other.nonce + nonce
        side = "dialled" if dialled == own else "dialler"
        return PROOF + self._secret.proof(side, self._cluster_id, ids, nonces)

    def refusal_of(self, greeting: Greeting, expected: int | None) -> str | None:
        """Return why this broker rejects the sender of a greeting; None if it does not."""
        if greeting.cluster not in self._names:
            return "this broker belongs to another cluster: compare control.url of both brokers"
        if greeting.oldest > VERSION or greeting.newest < self._oldest:
            return (
                f"the sender supports link versions {greeting.oldest} to {greeting.newest}, but"
                f" this broker supports {self._oldest} to {VERSION}"
            )
        if greeting.broker_id == self.broker_id:
            return f"this broker has the same node.id, {greeting.broker_id}"
        if expected is not None and greeting.broker_id != expected:
            return f"broker {greeting.broker_id} answered at the address of broker {expected}"
        return None

    def greeted(self, link: Link, greeting: Greeting) -> None:
        """Make a connection ready, and close the former one to the same broker."""
        former = self.ready.get(greeting.broker_id)
        if former is not None:
            former.close("the broker has connected again")
        self.ready[greeting.broker_id] = link
        self.user.link_changed(greeting.broker_id, up=True)

    def closed(self, link: Link) -> None:
        """Remove a closed connection, and notify the user."""
        self._open.discard(link)
        if link.peer is not None and self.ready.get(link.peer) is link:
            del self.ready[link.peer]
            self.user.link_changed(link.peer, up=False)
            if not self._closed:
                looking = asyncio.get_running_loop().create_task(self._look_for(link.peer))
                self._looking[link.peer] = looking

    async def _look_for(self, broker_id: int) -> None:
        """Check whether a broker whose connection was lost still accepts connections."""
        address = self._addresses.get(broker_id)
        if address is None:
            return
        try:
            async with asyncio.timeout(GREETING_SECONDS):
                while not await _greets(address, self._link_transport):
                    await pause(_LOOK_SECONDS)
        except ConnectionRefusedError:
            if broker_id not in self.ready:
                self.user.refused(broker_id)
        except (OSError, TimeoutError):
            return  # it may be online, but cut off; its session determines this


async def _greets(address: Address, transport: LinkTransport) -> bool:
    """Return whether a broker sends anything on a new connection.

    It sends nothing if its process is ending, which closes or resets the connection.

    Raises:
        OSError: the connection cannot be made.
    """
    reader, writer = await asyncio.open_connection(
        *address, ssl=transport.context, server_hostname=transport.name_of(address)
    )
    try:
        return bool(await reader.read(1))
    except ConnectionResetError:
        return False
    finally:
        writer.close()


class LinkRefused(Exception):
    """Rejection of a connection by this broker or by the other side."""


class Link(asyncio.BufferedProtocol):
    """Connection to a broker. It receives into its own blocks, which batches keep alive."""

    def __init__(self, links: Links, expected: int | None) -> None:
        self._links = links
        self._expected = expected
        self._transport: Any = None
        self._block = memoryview(bytearray(_BLOCK_BYTES))
        self._start = self._filled = 0
        self._frame_bytes_max = 0
        self._nonce = links.nonce()
        self._other: Greeting | None = None
        """Greeting of the other side, whose proof has not been received yet."""
        self.version = VERSION
        """Newest version that both sides support, once the greetings are exchanged."""
        self._heard = False
        """Whether anything was received in the current keep-alive interval."""
        self._quiet = 0
        """Number of keep-alive intervals in which nothing was received."""
        self._timer: asyncio.TimerHandle | None = None
        self.peer: int | None = None
        loop = asyncio.get_running_loop()
        self.greeted: asyncio.Future[None] = loop.create_future()
        self.lost: asyncio.Future[None] = loop.create_future()

    @property
    def waiting_bytes(self) -> int:
        """Bytes that were written and are still in the send buffer."""
        return int(self._transport.get_write_buffer_size())

    def send(self, rows: Sequence[Outgoing]) -> None:
        """Write rows in as few frames as possible; omit kinds that the other side does not know."""
        if self.version < VERSION:
            rows = [row for row in rows if is_known(row[0], self.version)]
        if not rows:
            return
        sizes = [(row, data_bytes) for row, _, data_bytes in rows]
        pieces: list[Buffer] = []
        for indexes in gather(sizes, frame_bytes_max=self._frame_bytes_max):
            header = b"".join([rows[index][0] for index in indexes])
            pieces.append(encode_parts(header, sum([rows[index][2] for index in indexes])))
            for index in indexes:
                pieces += rows[index][1]
        self._transport.writelines(pieces)

    def close(self, reason: str) -> None:
        """Abort the connection, and log the reason."""
        if not self._transport.is_closing():
            logger.info("the link to broker %s is closed: %s", self.peer, reason)
            self._transport.abort()
            self._links.closed(self)

    # -- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        # With these limits, `resume_writing` is called whenever there was no room.
        self._transport.set_write_buffer_limits(high=WINDOW_BYTES - 1, low=WINDOW_BYTES // 2)
        if not self._links.opened(self):
            self.close("too many connections have not proved their identity")
            return
        if self._expected is None:
            self._transport.write(self._who())
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(GREETING_SECONDS, self.close, "no valid greeting arrived")

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self.greeted.done():
            self.greeted.set_exception(LinkRefused(str(error or "closed without a greeting")))
            self.greeted.exception()  # retrieved, so that asyncio does not log it
        if not self.lost.done():
            self.lost.set_result(None)
        self._links.closed(self)

    def resume_writing(self) -> None:
        if self.peer is not None and self._links.ready.get(self.peer) is self:
            self._links.user.room_again(self.peer)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._block[self._filled :]

    def buffer_updated(self, count: int) -> None:
        self._heard = True
        self._filled += count
        try:
            self._take_frames()
        except MalformedFrame as error:
            logger.error("broker %s sent an invalid message: %s", self.peer, error)
            self.close("invalid message")

    def _take_frames(self) -> None:
        received = self._block[: self._filled]
        needed = 0
        while not self._transport.is_closing():
            bytes_max = GREETING_BYTES_MAX if self.peer is None else FRAME_BYTES_MAX
            parts, size = decode_parts(received, self._start, bytes_max)
            if parts is None:
                needed = size
                break
            self._start += size
            kind = bytes(parts[0][: len(SIGN_OF_LIFE)])
            if self.peer is None and self._other is None:
                self._greet(parts[0])
            elif self.peer is None:
                self._take_proof(parts[0])
            elif kind == REFUSAL:
                self._refused_late(decode_greeting(parts[0]))
            elif kind != SIGN_OF_LIFE:
                self._links.user.rows_came(self.peer, decode_rows(*parts))
        self._make_room(needed)

    def _make_room(self, needed: int) -> None:
        """Continue in a new block if the rest of this one cannot hold the frame that has begun."""
        if self._start + needed < len(self._block) and self._filled < len(self._block):
            return
        rest = self._block[self._start : self._filled]
        self._block = memoryview(bytearray(max(_BLOCK_BYTES, needed + 1)))
        self._block[: len(rest)] = rest
        self._start, self._filled = 0, len(rest)

    def _greet(self, header: memoryview) -> None:
        found = decode_greeting(header)
        if isinstance(found, Refusal):
            self._refuse(f"the broker rejected the connection: {found.reason}")
            return
        why = self._links.refusal_of(found, self._expected)
        if why is not None:
            self._transport.write(encode_parts(encode_refusal(why), 0))
            self._refuse(why)
            return
        if self.greeted.done():
            self.close("the attempt to connect has timed out")
            return
        self.version = min(found.newest, VERSION)
        if self.version < PROVEN_SINCE:
            if self._expected is not None:
                self._transport.write(self._who())
            self._join(found)
            return
        self._other = found
        if self._expected is not None:
            self._transport.write(self._who() + self._proof(found))

    def _take_proof(self, header: memoryview) -> None:
        found = self._other
        if found is None or bytes(header[: len(REFUSAL)]) == REFUSAL:
            said = decode_greeting(header)
            self._refuse(
                f"the broker rejected the connection: {said.reason}"
                if isinstance(said, Refusal)
                else "the broker sent a greeting instead of a proof"
            )
            return
        expected = self._links.proof(found, self._nonce, dialled=self._expected is None, own=False)
        if not hmac.compare_digest(bytes(header), expected):
            why = f"broker {found.broker_id} did not prove that it belongs to this cluster"
            self._transport.write(encode_parts(encode_refusal(why), 0))
            self._refuse(why)
            return
        if self.greeted.done():
            self.close("the attempt to connect has timed out")
            return
        if self._expected is None:
            self._transport.write(self._proof(found))
        self._join(found)

    def _join(self, found: Greeting) -> None:
        """Begin to exchange messages with a broker whose greeting was accepted.

        Its proof is right, or its release has no proofs and such releases are permitted.
        """
        self.peer = found.broker_id
        self._frame_bytes_max = min(found.frame_bytes_max, FRAME_BYTES_MAX)
        if self._timer is not None:
            self._timer.cancel()
        self._look_later()
        self._links.greeted(self, found)
        self.greeted.set_result(None)

    def _who(self) -> bytes:
        return encode_parts(self._links.greeting(self._nonce), 0)

    def _proof(self, other: Greeting) -> bytes:
        proof = self._links.proof(other, self._nonce, dialled=self._expected is None, own=True)
        return encode_parts(proof, 0)

    def _look_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._links.look_seconds, self._look)

    def _look(self) -> None:
        """Send a keep-alive; close the link if nothing was received for too long.

        Intervals are counted instead of seconds, because a stalled event loop receives nothing.
        """
        self._quiet = 0 if self._heard else self._quiet + 1
        self._heard = False
        if self._quiet * self._links.look_seconds >= self._links.silent_seconds:
            self.close(f"nothing was received for {self._links.silent_seconds:g} s")
            return
        if not self.waiting_bytes:
            self._transport.write(encode_parts(SIGN_OF_LIFE, 0))
        self._look_later()

    def _refused_late(self, said: Greeting | Refusal) -> None:
        """Handle a rejection by the other side after its greeting."""
        why = (
            f"the broker rejected the connection: {said.reason}"
            if isinstance(said, Refusal)
            else "the broker sent a second greeting"
        )
        self.lost.set_exception(LinkRefused(why))
        self.lost.exception()  # retrieved, so that asyncio does not log it
        self.close(why)

    def _refuse(self, why: str) -> None:
        if not self.greeted.done():
            self.greeted.set_exception(LinkRefused(why))
            self.greeted.exception()
        self._transport.close()
