"""Calls to the admin address: kept connections, bounds, final errors."""

from __future__ import annotations

import itertools
import socket
import threading

import pytest

from penstock.base.system import SYSTEM_CLOCK
from penstock.client import errors
from penstock.client.admin_http import AdminHttp
from penstock.client.errors import AdminUnavailable, InvalidArgument


class Scripted:
    """Clock that returns the given times, and then stays at the last one."""

    def __init__(self, *times: float) -> None:
        self._times = itertools.chain(times, itertools.repeat(times[-1]))

    def monotonic(self) -> float:
        return next(self._times)

    def now_ms(self) -> int:
        return SYSTEM_CLOCK.now_ms()


def test_an_attempt_that_is_cut_off_does_not_hide_what_was_wrong() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            """The first who comes is sent away; the next one waits for ever."""
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)

        rude = threading.Thread(target=hang_up)
        rude.start()
        # The second attempt begins a moment before the end.
        clock = Scripted(0.0, 0.0, 0.0, 59.9, 60.0)
        address = AdminHttp(f"http://127.0.0.1:{server.getsockname()[1]}", clock=clock)
        with pytest.raises(AdminUnavailable, match=r"without a response.*; then timed out"):
            address.call("GET", "/", timeout_seconds=60)
        rude.join()


def test_a_kept_connection_that_was_closed_is_replaced() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer_and_close() -> None:
            for number in range(2):
                connection, _ = server.accept()
                with connection:
                    connection.recv(1 << 16)
                    body = b'{"number": %d}' % number
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n" + body)

        forgetful = threading.Thread(target=answer_and_close)
        forgetful.start()
        with AdminHttp(f"http://127.0.0.1:{server.getsockname()[1]}") as address:
            answers = [address.ask("GET", "/", timeout_seconds=60) for _ in range(2)]
        forgetful.join()
    assert [answer.body for answer in answers] == [{"number": 0}, {"number": 1}]


BODY = b'{"number": 7}'
FRAMINGS = {
    "length": b"Content-Length: 13\r\n\r\n" + BODY,
    "chunks": b"Transfer-Encoding: chunked\r\n\r\n6\r\n" + BODY[:6] + b"\r\n7\r\n" + BODY[6:]
    + b"\r\n0\r\n\r\n",
}  # fmt: skip


@pytest.mark.parametrize("framing", FRAMINGS)
def test_a_response_that_a_dying_server_cuts_off_is_requested_again(framing: str) -> None:
    """Wherever it is cut after the status line."""
    status, rest = b"HTTP/1.1 200 OK\r\n", FRAMINGS[framing]
    # With the last chunk, the response is complete for its reader.
    cuts = range(rest.index(b"0\r\n\r\n") if framing == "chunks" else len(rest))
    with socket.create_server(("127.0.0.1", 0)) as server:

        def die_and_return() -> None:
            for cut in cuts:
                for end in (cut, len(rest)):
                    connection, _ = server.accept()
                    with connection:
                        connection.recv(1 << 16)
                        connection.sendall(status + rest[:end])

        dying = threading.Thread(target=die_and_return)
        dying.start()
        for _ in cuts:
            with AdminHttp(f"http://127.0.0.1:{server.getsockname()[1]}") as address:
                assert address.call("GET", "/", timeout_seconds=60).body == {"number": 7}
        dying.join()


def test_of_a_long_answer_no_more_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "ADMIN_ANSWER_BYTES_MAX", 10)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def talk() -> None:
            for _ in range(2):
                connection, _ = server.accept()
                with connection:
                    connection.recv(1 << 16)
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n" + b"x" * 20)
                    connection.recv(1)

        talker = threading.Thread(target=talk)
        talker.start()
        with AdminHttp(f"http://127.0.0.1:{server.getsockname()[1]}") as address:
            for _ in range(2):  # the rest is not taken for the next answer
                answer = address.ask("GET", "/", timeout_seconds=60)
                assert (answer.status, answer.content, answer.body) == (200, b"x" * 10, {})
        talker.join()


def test_no_server_listens() -> None:
    with pytest.raises(AdminUnavailable, match="cannot be reached"):
        AdminHttp("http://127.0.0.1:9").ask("GET", "/", timeout_seconds=60)


@pytest.mark.parametrize(
    "url", ["", "localhost:9644", "ftp://h", "http://", "http://h:x", "http://["]
)
def test_no_urls(url: str) -> None:
    with pytest.raises(InvalidArgument, match="must have the form"):
        AdminHttp(url)
