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
it takes more than the raw limit is the kernel's copy into pages that are new. The last limit is the
bare log with a table before it, which is encoded into batches, by the partitions of its keys where
it has keys, and decoded from what comes back: who writes and reads columns cannot leave that out.
"""

from __future__ import annotations

import os
import resource
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pyarrow as pa

from benchmarks.harness import Row, figure, seconds
from penstock.apps.loads.figures import cpu_seconds, interleaved
from penstock.base.crc import crc32c
from penstock.client import Client
from penstock.client.errors import BATCH_BYTES
from penstock.client.partitioning import spread
from penstock.records.columnar import decode_batches, encode_batches, read_input
from penstock.testing import Broker

RECORD_BYTES = 100
PARTITIONS = 4
ROWS_AT_A_TIME = 70_000
BATCHES_AT_A_TIME = 8
"""What a client sends and is sent at a time: 8 MB, in batches of 1 MB."""
PREDICTED = {"write": 6.5, "read": 14.0, "read as views": 16.0, "both": 4.5}


def table(records: int, *, keyed: bool, chunk_rows: int = 100_000) -> pa.Table:
    """`records` values of 100 B in equal chunks; keys of 8 B that spread over the partitions."""
    values = pa.array([b"v" * RECORD_BYTES] * chunk_rows, pa.binary())
    columns = {"value": pa.chunked_array([values] * (records // chunk_rows))}
    if keyed:
        keys = pa.array([b"%08d" % number for number in range(chunk_rows)], pa.binary())
        columns["key"] = pa.chunked_array([keys] * (records // chunk_rows))
    return pa.table(columns)


class RawLimit:
    """A thread's peer in another process that stores what it is sent, and sends it back."""

    def __init__(self, folder: Path, payload: bytes, *, log: bool = False) -> None:
        self._payload = payload
        self._size_bytes = len(payload)
        self._log = log
        self._path = folder / ("journal" if log else "raw")
        self._segment = folder / "segment"

    def run(self) -> None:
        """Send, store durably and read back the payload."""
        listener = socket.create_server(("127.0.0.1", 0))
        child = os.fork()
        if child == 0:
            self._serve(listener)
            os._exit(0)
        try:
            self._exchange(listener.getsockname())
        finally:
            listener.close()
            os.waitpid(child, 0)

    def _exchange(self, address: tuple[str, int]) -> None:
        with socket.create_connection(address) as connection:
            connection.sendall(self._payload)
            connection.recv(1)
            buffer = bytearray(1 << 20)
            left = self._size_bytes
            while left:
                left -= connection.recv_into(buffer)

    def _serve(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        buffer = memoryview(bytearray(1 << 20))
        descriptor = kept = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        if self._log:
            self._segment.unlink(missing_ok=True)
            kept = os.open(self._segment, os.O_RDWR | os.O_CREAT, 0o600)
        left = self._size_bytes
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
        while position < self._size_bytes:
            count = os.preadv(kept, [buffer], position)
            connection.sendall(buffer[:count])
            position += count
        connection.recv(1)
        connection.close()


class ColumnsLimit(RawLimit):
    """The bare log's peer that encodes a table, and decodes what comes back."""

    def __init__(self, folder: Path, data: pa.Table) -> None:
        super().__init__(folder, b"", log=True)
        self._data = data
        self._sizes = [len(batch) for batch in self._encoded()]
        self._size_bytes = sum(self._sizes)

    def _encoded(self) -> Iterator[bytes | memoryview]:
        for begin in range(0, self._data.num_rows, ROWS_AT_A_TIME):
            (chunk,) = self._data.slice(begin, ROWS_AT_A_TIME).combine_chunks().to_batches()
            parts = [(0, read_input(chunk, 0))]
            if "key" in chunk.schema.names:
                parts = list(spread(chunk, parts[0][1], topic="", count=PARTITIONS, unkeyed=0))
            for _, part in parts:
                for batch in encode_batches(part, now_ms=0, max_batch_bytes=BATCH_BYTES):
                    yield batch.data

    def _exchange(self, address: tuple[str, int]) -> None:
        with socket.create_connection(address) as connection:
            for batch in self._encoded():
                connection.sendall(batch)
            connection.recv(1)
            for begin in range(0, len(self._sizes), BATCHES_AT_A_TIME):
                size = sum(self._sizes[begin : begin + BATCHES_AT_A_TIME])
                answer = memoryview(bytearray(size))
                filled = 0
                while filled < size:
                    filled += connection.recv_into(answer[filled:])
                decode_batches(answer, columns=("value",))


@contextmanager
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        yield Path(folder)


def measure(*, quick: bool = False) -> list[Row]:
    """Rows for write, read, and both, of plain and keyed tables, and of one in small chunks."""
    records = 1_000_000 if quick else 4_000_000
    rows: list[Row] = []
    with scratch() as folder, Broker(process=True) as broker, broker.client() as client:
        payload = b"v" * (RECORD_BYTES + 7) * records
        raw = {"raw": RawLimit(folder, payload), "log": RawLimit(folder, payload, log=True)}
        shapes = {
            "values": table(records, keyed=False),
            "keyed": table(records, keyed=True),
            "values in chunks of 1,000": table(records, keyed=False, chunk_rows=1000),
        }
        for kind, data in shapes.items():
            limits = raw | {"columns": ColumnsLimit(folder, data)}
            rounds = Rounds(client, broker.pid, kind, data, limits)
            rows += rounds.rows(3 if quick else 5)
    return rows


class Rounds:
    """One table written and read again and again, between runs of the limits."""

    def __init__(
        self,
        client: Client,
        broker: int | None,
        kind: str,
        data: pa.Table,
        limits: dict[str, RawLimit],
    ) -> None:
        self._client = client
        self._broker = broker
        self._kind = kind
        self._data = data
        self._limits = limits
        self._count = 0
        self._spent: dict[str, float] = {}

    def rows(self, runs: int) -> Iterator[Row]:
        """What each step took, and of the processors' time, by this process and by its peer."""
        records = self._data.num_rows
        contenders = {"round": self._round}
        for step in (*self._limits, *PREDICTED):
            for part in ("", " here", " there"):
                contenders[step + part] = partial(self._take, step + part)
        figures = interleaved(contenders, runs=runs)
        millions = records / 1e6
        for step, prediction in PREDICTED.items():
            here, there = (figures[f"{step} {part}"] / millions for part in ("here", "there"))
            note = f"{here:.3f} CPU s a million records in the client, {there:.3f} in the broker"
            if step == "both":
                for limit, name in (("log", "the bare log"), ("columns", "with columns")):
                    cpu = (figures[f"{limit} here"] + figures[f"{limit} there"]) / millions
                    note += (
                        f"; {name} {figure(millions / figures[limit])} M records/s, {cpu:.3f} CPU"
                        f" s: {figures[limit] / figures[step]:.2f} of it,"
                        f" {cpu / (here + there):.2f} by CPU"
                    )
            yield Row(
                name=f"{self._kind}: {step}",
                value=millions / figures[step],
                unit="M records/s",
                prediction=prediction,
                reference=millions / figures["raw"] if step == "both" else None,
                reference_name="raw TCP + write + sync" if step == "both" else "",
                note=note,
            )

    def _take(self, what: str) -> float:
        return self._spent[what]

    def _round(self) -> float:
        for name, limit in self._limits.items():
            self._measure(name, limit.run)
        self._count += 1
        topic = f"{self._kind[:6]}-{self._count}"
        client, expected = self._client, self._data.num_rows
        client.create_topic(topic, partitions=PARTITIONS)
        self._measure("write", lambda: client.write_arrow(topic, self._data))
        self._measure("read", lambda: _read(client, topic, expected))
        self._measure("read as views", lambda: _read(client, topic, expected, views=True))
        client.delete_topic(topic)
        for part in ("", " here", " there"):
            self._spent[f"both{part}"] = self._spent[f"write{part}"] + self._spent[f"read{part}"]
        return self._spent["both"]

    def _measure(self, name: str, action: Callable[[], object]) -> None:
        here, there = self._cpu_seconds()
        self._spent[name] = seconds(action)
        here_then, there_then = self._cpu_seconds()
        self._spent[f"{name} here"] = here_then - here
        self._spent[f"{name} there"] = there_then - there

    def _cpu_seconds(self) -> tuple[float, float]:
        """Of this process; of the broker and of children that have ended."""
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        broker = None if self._broker is None else cpu_seconds(self._broker)
        return time.process_time(), (broker or 0.0) + ended.ru_utime + ended.ru_stime


def _read(client: Client, topic: str, expected: int, *, views: bool = False) -> None:
    batches = client.iter_arrow(topic, columns=("value",), views=views)
    found = sum(batch.num_rows for batch in batches)
    if found != expected:
        raise RuntimeError(f"{topic}: {found} records came back of {expected}")
