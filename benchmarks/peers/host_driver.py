"""A producer over a blocking socket: the sans-IO core with as little shell as there can be."""

from __future__ import annotations

import time
from collections.abc import Sequence

from benchmarks.peers.unix_socket import connect
from penstock.host.client_machine import ClientMachine, ClientState, ClientTerms
from penstock.host.errors import NoCredit
from penstock.host.publication import Publication, batch, single
from penstock.host.ring import Ring, send_with_ring
from penstock.wire.frames import decode

PIECES_MAX = 1000
ACK_BYTES = 64 << 10


class Driver:
    """Publishes, and reads answers when it has to wait."""

    def __init__(self, path: str, *, ring_bytes: int = 0, checksum: bool = False) -> None:
        self.bytes_in = 0
        self._machine = ClientMachine(ClientTerms(checksum=checksum, ring_bytes=ring_bytes))
        self._sock = connect(path)
        self._memory = bytearray()
        self._ring = Ring.create(ring_bytes) if ring_bytes else None
        self._machine.connected(_now_ms(), ring=ring_bytes > 0)
        if self._ring is not None:
            send_with_ring(self._sock, b"".join(self._machine.take_output()), self._ring.fd)
        self._send()
        while self._machine.state is not ClientState.STARTED:
            self._receive()

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()
        if self._ring is not None:
            self._ring.close()

    def publish_batch(self, payloads: Sequence[bytes]) -> Publication:
        """Send one DATA_BATCH, waiting for credit as long as it takes."""
        return self._publish(batch(payloads))

    def send(self, payload: bytes) -> None:
        """Send one DATA and wait for its end."""
        self._publish(single(payload))
        self.flush()

    def flush(self) -> None:
        """Wait for the end of everything."""
        while self._machine.in_flight:
            self._receive()

    def _publish(self, publication: Publication) -> Publication:
        while True:
            try:
                self._machine.publish(publication, _now_ms())
            except NoCredit:
                self._receive()
            else:
                break
        if self._ring is not None and publication.ring_position >= 0:
            self._ring.write(publication.ring_position, publication.payload)
        self._send()
        return publication

    def _send(self) -> None:
        pieces = self._machine.take_output()
        while pieces:
            sent = self._sock.sendmsg(pieces[:PIECES_MAX])
            index = 0
            while index < len(pieces) and sent >= len(pieces[index]):
                sent -= len(pieces[index])
                index += 1
            del pieces[:index]
            if sent:
                pieces[0] = memoryview(pieces[0])[sent:]

    def _receive(self) -> None:
        data = self._sock.recv(ACK_BYTES)
        if not data:
            raise ConnectionError("the agent is gone")
        self.bytes_in += len(data)
        memory = self._memory + data
        start = 0
        while True:
            frame, size = decode(memory, start, 1 << 20)
            if frame is None:
                break
            start += size
            for event in self._machine.receive(frame, _now_ms()):
                error = getattr(event, "error", None)
                if error is not None:
                    raise error
        self._memory = memory[start:]


def _now_ms() -> float:
    return time.monotonic() * 1000
