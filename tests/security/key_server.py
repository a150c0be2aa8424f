"""A server of keys of tokens, over real TLS, that says what a test has it say."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.security.certificates import keystore

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"


@contextmanager
def answering(
    directory: Path,
    pieces: Callable[[], Iterator[bytes]],
    context: ssl.SSLContext | None = None,
) -> Iterator[str]:
    """A server that says the same to everybody; its URL."""
    if context is None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(keystore(directory))
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            while True:
                accepted, _ = listening.accept()
                with suppress(OSError), context.wrap_socket(accepted, server_side=True) as opened:
                    opened.recv(4096)
                    for piece in pieces():
                        opened.sendall(piece)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"https://localhost:{listening.getsockname()[1]}/keys"
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(30)
