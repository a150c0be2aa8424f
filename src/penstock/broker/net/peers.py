"""Client connections to other brokers: one pipelined connection to each, without retries."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Generic, TypeVar

from penstock.base.errors import PenstockError
from penstock.client.errors import BrokerBusy, ClientClosed, Disconnected
from penstock.client.pipeline import Pipeline, connect
from penstock.client.security import NO_SECURITY, ClientSecurity

CLIENT_ID: Final = b"penstock-broker"
TIMEOUT_MS: Final = 10_000
"""Timeout of a response, including the time in which the other broker syncs and replicates."""
CONNECT_TIMEOUT_MS: Final = 3_000

Address = tuple[str, int]
T = TypeVar("T")


class _Peer:
    def __init__(self, security: Callable[[], ClientSecurity]) -> None:
        self._security = security
        self.address: Address | None = None
        self.pipeline: Pipeline[asyncio.Future[Any]] | None = None
        self.connecting: asyncio.Task[None] | None = None

    def answered(self, ticket: asyncio.Future[Any], response: Any) -> None:
        if not ticket.done():
            ticket.set_result(response)

    def may_send(self) -> None:
        """Do nothing when the connection can send again, because no caller waits for that.

        Calls on a full connection have failed immediately.
        """

    def lost(self, tickets: list[asyncio.Future[Any]], error: PenstockError) -> None:
        self.pipeline = None
        for ticket in tickets:
            if not ticket.done():
                ticket.set_exception(error)

    async def connected(self, address: Address) -> Pipeline[asyncio.Future[Any]]:
        if address != self.address:
            self.close("its address has changed")
            self.address = address
        if self.pipeline is None:
            if self.connecting is None or self.connecting.done():
                loop = asyncio.get_running_loop()
                self.connecting = loop.create_task(self._connect(address))
            await asyncio.shield(self.connecting)
        if self.pipeline is None:
            raise Disconnected(f"the connection to {address} was lost immediately")
        return self.pipeline

    async def _connect(self, address: Address) -> None:
        self.pipeline = await connect(
            *address,
            self,
            client_id=CLIENT_ID,
            timeout_ms=TIMEOUT_MS,
            connect_timeout_ms=CONNECT_TIMEOUT_MS,
            name="ApiVersions",
            security=self._security(),
        )

    def close(self, reason: str) -> None:
        if self.connecting is not None:
            self.connecting.cancel()
        if self.pipeline is not None:
            self.pipeline.abort(ClientClosed(f"broker connection closed: {reason}"))


class Peers:
    """Connections to other brokers, by broker id. Belongs to the event loop."""

    def __init__(
        self,
        address_of: Callable[[int], Address | None],
        security: Callable[[], ClientSecurity] = lambda: NO_SECURITY,
    ) -> None:
        """Connect on demand to the address and with the security that the functions return."""
        self._address_of = address_of
        self._security = security
        self._peers: dict[int, _Peer] = {}

    async def call(self, broker_id: int, name: str, body: Mapping[str, Any]) -> Any:
        """Send one request to a broker and return its response; raises PenstockError."""
        address = self._address_of(broker_id)
        if address is None:
            raise Disconnected(f"broker {broker_id} is not registered")
        peer = self._peers.setdefault(broker_id, _Peer(self._security))
        pipeline = await peer.connected(address)
        if not pipeline.writable:
            raise BrokerBusy(f"too many calls to broker {broker_id} are in flight; retry later")
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        pipeline.request(name, body, answer)
        return await answer

    async def close(self) -> None:
        """Close all connections and fail the pending calls. Idempotent."""
        peers, self._peers = list(self._peers.values()), {}
        for peer in peers:
            peer.close("the broker is stopping")
        waiting = [peer.connecting for peer in peers if peer.connecting is not None]
        await asyncio.gather(*waiting, return_exceptions=True)
        closing = [peer.pipeline.closed for peer in peers if peer.pipeline is not None]
        if closing:
            await asyncio.wait(closing)


class PeerBatches(Generic[T]):
    """Queue of items for each broker, sent one batch at a time. Belongs to the event loop."""

    def __init__(
        self,
        take: Callable[[list[T]], tuple[list[T], list[T]]],
        send: Callable[[int, list[T]], Awaitable[None]],
    ) -> None:
        """`take` splits the queue into the next batch and the rest; `send` does not raise."""
        self._take = take
        self._send = send
        self._waiting: dict[int, list[T]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def put(self, broker_id: int, item: T) -> None:
        self._waiting.setdefault(broker_id, []).append(item)
        if broker_id not in self._tasks:
            task = asyncio.get_running_loop().create_task(self._run(broker_id))
            self._tasks[broker_id] = task

    async def _run(self, broker_id: int) -> None:
        try:
            while self._waiting.get(broker_id):
                batch, rest = self._take(self._waiting[broker_id])
                self._waiting[broker_id] = rest
                await self._send(broker_id, batch)
        finally:
            self._tasks.pop(broker_id, None)

    async def stop(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
