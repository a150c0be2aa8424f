"""Least CPU of a server that reads batches from files, verifies their checksums and sends them.

It has no protocol: it reads each partition's file into one buffer that it reuses, checks the
checksum of the bytes and sends them to a socket, in the order in which a fetch returns them.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import socket
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.peers.load import GIGABYTE, Shape
from penstock.base.crc import crc32c

READ_BYTES: Final = 1 << 20
SENT_BYTES_MIN: Final = 400_000_000
"""The files are sent again until so many bytes were sent."""


def read_and_send(shape: Shape) -> float:
    """Return the CPU seconds per gigabyte of the records of `shape`."""
    size = shape.records * shape.value_bytes // shape.partitions
    rounds = -(-SENT_BYTES_MIN // (size * shape.partitions))
    context = multiprocessing.get_context("spawn")
    with TemporaryDirectory(prefix="penstock-bench-") as directory:
        for number in range(shape.partitions):
            Path(directory, str(number)).write_bytes(bytes(range(256)) * (size // 256 + 1))
        with socket.create_server(("127.0.0.1", 0)) as listening:
            ours, theirs = context.Pipe()
            port = listening.getsockname()[1]
            arguments = (port, directory, shape.partitions, size, rounds, theirs)
            server = context.Process(target=_serve, args=arguments, daemon=True)
            server.start()
            connection, _ = listening.accept()
            with connection:
                buffer = bytearray(READ_BYTES)
                while connection.recv_into(buffer):
                    pass
            seconds: float = ours.recv()
            server.join()
    return seconds / (size * shape.partitions * rounds / GIGABYTE)


def _serve(
    port: int, directory: str, partitions: int, size: int, rounds: int, results: Connection
) -> None:
    files = [os.open(f"{directory}/{number}", os.O_RDONLY) for number in range(partitions)]
    buffer = memoryview(bytearray(READ_BYTES))
    with socket.create_connection(("127.0.0.1", port)) as connection:
        before = resource.getrusage(resource.RUSAGE_SELF)
        for _ in range(rounds):
            for file in files:
                position = 0
                while position < size:
                    part = buffer[: min(READ_BYTES, size - position)]
                    count = os.preadv(file, [part], position)
                    crc32c(part[:count])
                    connection.sendall(part[:count])
                    position += count
        after = resource.getrusage(resource.RUSAGE_SELF)
    results.send(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
