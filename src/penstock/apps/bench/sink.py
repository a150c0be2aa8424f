"""Receiver of the loopback measurement: a process that reads and discards.

It connects to the given port, once for each run, reads to the end and answers with one byte, so
that the sender knows that everything has arrived. It ends when the port is closed.

    python -m penstock.apps.bench.sink PORT
"""

from __future__ import annotations

import socket
import sys
from contextlib import suppress
from typing import Final

BUFFER_BYTES: Final = 1 << 20


def main(port: int) -> None:
    buffer = bytearray(BUFFER_BYTES)
    with suppress(ConnectionError):
        while True:
            with socket.create_connection(("127.0.0.1", port)) as connection:
                while connection.recv_into(buffer):
                    pass
                connection.sendall(b"+")


if __name__ == "__main__":
    main(int(sys.argv[1]))
