"""Calls to the admin address: what is said when the time is over."""

from __future__ import annotations

import itertools
import socket
import threading

import pytest

from penstock.base.system import SYSTEM_CLOCK
from penstock.spark.sink.admin_address import AdminAddress
from penstock.spark.sink.errors import AdminUnavailable


class Scripted:
    """A clock that shows one time after the other, and then stands still."""

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
        address = AdminAddress(f"http://127.0.0.1:{server.getsockname()[1]}", clock=clock)
        with pytest.raises(AdminUnavailable, match=r"without an answer .*; then timed out"):
            address.call("GET", "/", timeout_seconds=60)
        rude.join()
