"""Reactions of the client to broken connections, missing brokers and invalid responses."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.client import BrokersUnreachable, Client
from penstock.client.connection import Connection
from penstock.client.errors import (
    ClientClosed,
    Disconnected,
    MalformedResponse,
    TimedOut,
    note_attempts,
)
from penstock.testing import Broker
from tests.client.proxy import Proxy

ROWS = 40_000


@contextmanager
def behind(proxy_cuts: list[int | None], *, cut_answers: bool = False) -> Iterator[Proxy]:
    """Broker that advertises the proxy's address."""
    with Proxy(proxy_cuts, cut_answers=cut_answers) as proxy:
        settings = {"advertised.listeners": f"PLAINTEXT://{proxy.address}"}
        with Broker(settings, admin=False) as broker:
            host, _, port = broker.bootstrap.rpartition(":")
            proxy.target = (host, int(port))
            yield proxy


def data() -> pa.Table:
    return pa.table(
        {
            "value": [f"value-{index:06}" for index in range(ROWS)],
            "timestamp": np.arange(ROWS) + 1_700_000_000_000,
        }
    )


@pytest.mark.parametrize("cut_answers", [False, True], ids=["requests cut", "answers cut"])
def test_every_record_is_stored_once_though_connections_break(cut_answers: bool) -> None:
    # Connections are cut ever further into the writes; the last ones are left alone.
    sizes: list[int | None] = []
    sizes += range(700, 2000, 90) if cut_answers else range(30_000, 600_000, 37_000)
    with behind(sizes, cut_answers=cut_answers) as proxy, Client(proxy.address) as client:
        client.create_topic("orders", 1, exist_ok=True)
        report = client.write_arrow("orders", data(), batch_bytes=20_000)
        assert report.records == ROWS
        assert proxy.cuts > 3
        assert report.retries > 0
        found = client.read_arrow("orders", columns=("offset", "value"))
    assert found["value"].to_pylist() == [f"value-{index:06}".encode() for index in range(ROWS)]


def test_reading_continues_after_a_disconnect() -> None:
    sizes: list[int | None] = [None, *range(30_000, 300_000, 30_000)]
    with behind(sizes, cut_answers=True) as proxy, Client(proxy.address) as client:
        with Client(proxy.address) as other:
            other.create_topic("orders", 1)
            other.write_arrow("orders", data(), batch_bytes=20_000)
        batches = client.iter_arrow("orders", columns=("offset",), max_bytes=30_000)
        found = [offset for batch in batches for offset in batch["offset"].to_pylist()]
        assert proxy.cuts > 1
    assert found == list(range(ROWS))


def test_a_restart_of_the_broker_costs_nothing_but_time() -> None:
    with Broker(admin=False) as broker, broker.client() as client:
        client.create_topic("orders", 2)
        client.write_arrow("orders", data())
        broker.restart()
        client.write_arrow("orders", data())
        assert client.read_arrow("orders").num_rows == 2 * ROWS


def test_no_broker_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
    client = Client(f"127.0.0.1:{port}", api_timeout_ms=200)
    with pytest.raises(BrokersUnreachable, match=f"no broker of 127.0.0.1:{port} responds"):
        client.metadata()
    client.close()
    with pytest.raises(ClientClosed):
        client.metadata()


def test_attempts_are_noted_once() -> None:
    error = BrokersUnreachable("no broker answers")
    note_attempts(error, 1)
    assert not hasattr(error, "__notes__")
    note_attempts(error, 18)
    note_attempts(error, 2)
    assert error.__notes__ == ["failed after 18 attempts"]


@contextmanager
def peer(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """Server that treats its first connection as the test requires."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                connection.recv(1 << 16)
                answer(connection)
                connection.recv(1)

        thread = threading.Thread(target=run)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(60)


def connect(port: int, timeout_ms: int = 60_000) -> Connection:
    return Connection(
        "127.0.0.1", port, client_id="test", timeout_ms=timeout_ms, connect_timeout_ms=60_000
    )


@pytest.mark.parametrize(
    ("sent", "expected", "match"),
    [
        (
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            MalformedResponse,
            "Check that this address is a Kafka listener",
        ),
        (b"\0\0\0\3abc", MalformedResponse, "frame of 3 bytes"),
        (b"\xff\xff\xff\xff", MalformedResponse, "frame of -1 bytes"),
        (b"\0\0\0\x08\0\0\0\x63\0\0\0\0", MalformedResponse, "number 99"),
        (b"\0\0\0\x08\0\0\0\1\0\0\0\x7f", MalformedResponse, "ApiVersions"),
        (b"", TimedOut, "did not answer ApiVersions within 300 ms"),
        (b"\0\0\0\x50\0\0", TimedOut, "did not answer"),
    ],
)
def test_nonsense(sent: bytes, expected: type[Exception], match: str) -> None:
    with peer(lambda connection: connection.sendall(sent)) as port:
        connection = connect(port, 300 if expected is TimedOut else 60_000)
        with pytest.raises(expected, match=match):
            connection.negotiate()
        assert connection.broken
        connection.close()


def test_closed_by_the_peer() -> None:
    with peer(lambda connection: connection.shutdown(socket.SHUT_RDWR)) as port:
        connection = connect(port)
        with pytest.raises(Disconnected, match="closed the connection"):
            connection.negotiate()


def test_close_ends_a_long_poll_of_another_thread(
    bootstrap: str, topic: Callable[..., str]
) -> None:
    name = topic()
    client = Client(bootstrap)
    batches = client.iter_arrow(name, end=None, max_wait_ms=20_000)
    errors: list[BaseException] = []
    reading = threading.Event()

    def read() -> None:
        try:
            reading.set()
            next(batches)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    assert reading.wait(60)
    client.close()
    thread.join(60)
    assert not thread.is_alive()
    assert isinstance(errors[0], ClientClosed)


@pytest.fixture
def freezing() -> Iterator[Broker]:
    """Broker in a child process, with a topic of one record; it may be stopped."""
    with Broker(process=True, admin=False) as broker:
        broker.create_topic("orders")
        with broker.client() as client:
            client.write_arrow("orders", pa.table({"value": ["first"]}))
        yield broker
        signalled(broker, signal.SIGCONT)


def signalled(broker: Broker, number: signal.Signals) -> None:
    assert broker.pid is not None
    os.kill(broker.pid, number)


IMPATIENT: dict[str, Any] = {"request_timeout_ms": 200, "delivery_timeout_ms": 600}


def test_a_write_to_a_frozen_broker_ends(freezing: Broker) -> None:
    """The connection stays open without a response."""
    one = pa.table({"value": ["x"]})
    with Client(freezing.bootstrap, **IMPATIENT) as client:
        client.write_arrow("orders", one)
        signalled(freezing, signal.SIGSTOP)
        with pytest.raises(TimedOut, match=r"orders-0 failed after .* within 200 ms"):
            client.write_arrow("orders", one)


def test_a_read_from_a_frozen_broker_is_no_end_of_the_log(freezing: Broker) -> None:
    """Without this check a silent broker looked like an empty log."""
    with Client(freezing.bootstrap, **IMPATIENT) as client:
        batches = client.iter_arrow("orders", end=None, max_wait_ms=50, idle_timeout_ms=60_000)
        assert next(batches).num_rows == 1
        signalled(freezing, signal.SIGSTOP)
        with pytest.raises((TimedOut, BrokersUnreachable), match="within 200 ms"):
            next(batches)


def test_a_client_says_what_it_waits_for(freezing: Broker) -> None:
    """Another thread sees the unanswered call, then the retried failure."""
    looked = threading.Event()
    with Client(freezing.bootstrap, delivery_timeout_ms=60_000) as client:
        assert (client.waits().trouble, client.waits().unanswered) == ("", ())
        batches = client.iter_arrow("orders", end=None)
        next(batches)
        reading = threading.Thread(target=lambda: next(batches, None))
        reading.start()
        signalled(freezing, signal.SIGSTOP)
        while not (asked := client.waits().unanswered):
            looked.wait(0.01)
        assert {(call.where, call.call) for call in asked} == {(freezing.bootstrap, "Fetch")}
        freezing.kill()
        while not client.waits().trouble:
            looked.wait(0.01)
        assert freezing.bootstrap in client.waits().trouble
        freezing.start()
        with freezing.client() as other:
            other.write_arrow("orders", pa.table({"value": ["second"]}))
        reading.join(60)
        assert not reading.is_alive()
        assert client.waits().trouble == ""
