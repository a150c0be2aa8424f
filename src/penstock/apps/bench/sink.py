"""Reader of the loopback benchmark: a process that receives bytes and discards them.

For each run it connects to the given port of 127.0.0.1 and reads to the end. It then answers with
one byte, for which the sender waits. The process ends when the port is closed.

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
