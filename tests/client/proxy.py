"""TCP proxy that cuts connections, for tests of the client's reaction."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable


class Proxy:
    """Proxy to `target`; `cut_after` bytes towards the broker end a connection.

    Each connection takes the next number of `cut_after`; after the last one, or for None,
    connections are not cut. With `cut_answers` the bytes from the broker count.
    """

    def __init__(
        self,
        cut_after: list[int | None] | None = None,
        *,
        cut_answers: bool = False,
    ) -> None:
        self.cuts = 0
        self.target = ("", 0)
        self._limits = list(cut_after or [])
        self._passing = threading.Event()
        self._passing.set()
        self._broken = False
        self._cut_answers = cut_answers
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Proxy:
        return self

    def hold(self) -> None:
        """Pass nothing more on, in either direction, as a link that loses all packets."""
        self._passing.clear()

    def resume(self) -> None:
        """Pass on what was held, and what comes from now on."""
        self._passing.set()

    def cut(self) -> None:
        """End all connections, and each new one, until `mend`."""
        self._broken = True
        for item in list(self._sockets):
            _end(item)

    def mend(self) -> None:
        self._broken = False

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all connections, and refuse new ones. Idempotent."""
        self._passing.set()
        _end(self._listener)
        self._listener.close()
        for item in list(self._sockets):
            _end(item)
        for thread in list(self._threads):
            thread.join(10)
        for item in list(self._sockets):
            item.close()

    def _start(self, run: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=run, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                broker = socket.create_connection(self.target)
            except OSError:
                client.close()
                continue
            self._sockets |= {client, broker}
            limit = self._limits.pop(0) if self._limits else None
            forward, back = (None, limit) if self._cut_answers else (limit, None)
            if self._broken:
                _end(broker)
            self._start(self._pass, client, broker, forward, back)

    def _pass(
        self, client: socket.socket, broker: socket.socket, forward: int | None, back: int | None
    ) -> None:
        answers = threading.Thread(target=self._pump, args=(broker, client, back), daemon=True)
        answers.start()
        self._pump(client, broker, forward)
        answers.join()
        self._sockets -= {client, broker}
        client.close()
        broker.close()
        self._threads.remove(threading.current_thread())

    def _pump(self, source: socket.socket, target: socket.socket, limit: int | None) -> None:
        left = limit
        try:
            while data := source.recv(1 << 16 if left is None else min(1 << 16, left)):
                self._passing.wait()
                target.sendall(data)
                if left is not None:
                    left -= len(data)
                    if left <= 0:
                        self.cuts += 1
                        return
        except OSError:
            pass
        finally:
            _end(source)
            _end(target)


def _end(item: socket.socket) -> None:
    with contextlib.suppress(OSError):
        item.shutdown(socket.SHUT_RDWR)
