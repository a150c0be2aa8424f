"""Tables in and out through a broker: produce → durable → fetch, by columns.

Prediction, per million records of 100 B (about 107 MB of batches), in CPU seconds. Client: encode
0.03, send over loopback 0.02, joining and picking of columns 0.04. Broker: receive 0.03, CRC 0.005,
write journal and segment 0.04 to 0.10, sync 0.05. Reading: broker pread and send 0.05, client
receive 0.02, decode 0.04, or 0.03 to views. Client and broker are two processes on two cores, so a
million records take the longer of the two: 0.15 s to write, 0.06 s to read, 4.8 M records/s there
and back where nothing else runs.

The reference is the raw limit of the same run: the same bytes over a loopback TCP connection to
another process, which writes and syncs them to a file, and back again. That file is written over in
every run, so that its pages are in memory already. A log keeps what it is given: beside it stands
the bare log, which does no more than a durable log must. It takes the checksum of what it receives,
writes it over a journal and into a new file, syncs the journal, and sends the new file back. What
it takes more than the raw limit is the kernel's copy into pages that are new.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from benchmarks.harness import Row, figure, seconds
from penstock.apps.loads.figures import interleaved
from penstock.base.crc import crc32c
from penstock.client import Client
from penstock.testing import Broker

RECORD_BYTES = 100
PARTITIONS = 4


def table(records: int, *, keyed: bool) -> pa.Table:
    """`records` values of 100 B; keys of 8 B that spread over the partitions."""
    values = pa.array([b"v" * RECORD_BYTES] * 1000, pa.binary())
    columns = {"value": pa.chunked_array([values] * (records // 1000))}
    if keyed:
        keys = pa.array([b"%08d" % number for number in range(1000)], pa.binary())
        columns["key"] = pa.chunked_array([keys] * (records // 1000))
    return pa.table(columns)


class RawLimit:
    """A thread's peer in another process that stores what it is sent, and sends it back."""

    def __init__(self, folder: Path, payload: bytes, *, log: bool = False) -> None:
        self._payload = payload
        self._log = log
        self._path = folder / ("journal" if log else "raw")
        self._segment = folder / "segment"

    def run(self) -> float:
        """Seconds to send, store durably and read back the payload."""
        listener = socket.create_server(("127.0.0.1", 0))
        child = os.fork()
        if child == 0:
            self._serve(listener)
            os._exit(0)
        try:
            return seconds(lambda: self._exchange(listener.getsockname()))
        finally:
            listener.close()
            os.waitpid(child, 0)

    def _exchange(self, address: tuple[str, int]) -> None:
        with socket.create_connection(address) as connection:
            connection.sendall(self._payload)
            connection.recv(1)
            buffer = bytearray(1 << 20)
            left = len(self._payload)
            while left:
                left -= connection.recv_into(buffer)

    def _serve(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        buffer = memoryview(bytearray(1 << 20))
        descriptor = kept = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        if self._log:
            self._segment.unlink(missing_ok=True)
            kept = os.open(self._segment, os.O_RDWR | os.O_CREAT, 0o600)
        left = len(self._payload)
        while left:
            piece = buffer[: connection.recv_into(buffer)]
            if self._log:
                crc32c(piece)
                os.write(kept, piece)
            os.write(descriptor, piece)
            left -= len(piece)
        os.fdatasync(descriptor)
        connection.sendall(b"+")
        position = 0
        while position < len(self._payload):
            count = os.preadv(kept, [buffer], position)
            connection.sendall(buffer[:count])
            position += count
        connection.recv(1)
        connection.close()


@contextmanager
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        yield Path(folder)


def measure(*, quick: bool = False) -> list[Row]:
    """Rows for write, read, and both, of plain and keyed tables."""
    records = 1_000_000 if quick else 4_000_000
    runs = 3 if quick else 5
    rows: list[Row] = []
    with scratch() as folder, Broker(process=True) as broker, broker.client() as client:
        payload = b"v" * (RECORD_BYTES + 7) * records
        limits = {"raw": RawLimit(folder, payload), "log": RawLimit(folder, payload, log=True)}
        for kind in ("values", "keyed"):
            data = table(records, keyed=kind == "keyed")
            figures = _round(client, data, kind, limits, runs)
            limit = records / figures["raw"] / 1e6
            predictions = {"write": 6.5, "read": 14.0, "read as views": 16.0, "both": 4.5}
            for step, prediction in predictions.items():
                rows.append(
                    Row(
                        name=f"{kind}: {step}",
                        value=records / figures[step] / 1e6,
                        unit="M records/s",
                        prediction=prediction,
                        reference=limit if step == "both" else None,
                        reference_name="raw TCP + write + sync" if step == "both" else "",
                        note=(
                            f"{figures['log'] / figures[step]:.2f} of the bare log,"
                            f" {figure(records / figures['log'] / 1e6)} M records/s"
                            if step == "both"
                            else ""
                        ),
                    )
                )
    return rows


def _round(
    client: Client, data: pa.Table, kind: str, limits: dict[str, RawLimit], runs: int
) -> dict[str, float]:
    count = 0
    times: dict[str, float] = {}

    def both() -> float:
        nonlocal count
        count += 1
        topic = f"{kind}-{count}"
        client.create_topic(topic, partitions=PARTITIONS)
        times["write"] = seconds(lambda: client.write_arrow(topic, data))
        times["read"] = seconds(lambda: _read(client, topic, data.num_rows))
        times["read as views"] = seconds(lambda: _read(client, topic, data.num_rows, views=True))
        client.delete_topic(topic)
        return times["write"] + times["read"]

    return interleaved(
        {
            **{name: limit.run for name, limit in limits.items()},
            "both": both,
            "write": lambda: times["write"],
            "read": lambda: times["read"],
            "read as views": lambda: times["read as views"],
        },
        runs=runs,
    )


def _read(client: Client, topic: str, expected: int, *, views: bool = False) -> None:
    batches = client.iter_arrow(topic, columns=("value",), views=views)
    found = sum(batch.num_rows for batch in batches)
    if found != expected:
        raise RuntimeError(f"{topic}: {found} records came back of {expected}")
