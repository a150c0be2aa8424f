"""A real S3 server for tests: the Versity gateway over a temporary directory.

Its source is a Go module, declared with the sums of all that it needs in `compat/s3/`, built once
into the cache of foreign parts. Where it cannot be had tests are skipped, or fail where
`PENSTOCK_REQUIRE_INTEROP=1`.
"""

from __future__ import annotations

import itertools
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from compat.parts import PartMissing, s3_gateway

from tests.machine import lacking
from tests.ports import free_port

START_SECONDS = 60.0
ACCESS_KEY = "penstock"
SECRET_KEY = "penstock-secret"
BUCKET = "penstock"


class S3Server:
    """The gateway's process and its one bucket."""

    def __init__(self, program: Path, directory: Path, *, keep_alive: bool = False) -> None:
        self._program = program
        self._keep_alive = keep_alive
        self.directory = directory
        self._prefixes = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def options(self, endpoint: str | None = None) -> dict[str, str]:
        """Return the options that `open_store` needs to reach the server, or a proxy before it."""
        return {
            "aws_endpoint": endpoint or self.endpoint,
            "aws_access_key_id": ACCESS_KEY,
            "aws_secret_access_key": SECRET_KEY,
            "aws_region": "us-east-1",
        }

    def fresh_url(self) -> str:
        """The URL of a store with nothing in it."""
        return f"s3://{BUCKET}/test-{next(self._prefixes)}"

    def start(self) -> None:
        """Start the process and wait until it answers."""
        for name in ("objects", "attributes"):
            (self.directory / name).mkdir(exist_ok=True)
        (self.directory / "objects" / BUCKET).mkdir(exist_ok=True)
        command = [
            str(self._program), "--access", ACCESS_KEY, "--secret", SECRET_KEY,
            "--port", f"127.0.0.1:{self.port}", "--quiet", "--health", "/health",
            f"--keep-alive={str(self._keep_alive).lower()}",
            "posix", "--sidecar", str(self.directory / "attributes"),
            str(self.directory / "objects"),
        ]  # fmt: skip
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise PartMissing(f"the S3 gateway does not start:\n{self.log()}")
            time.sleep(0.02)

    def stop(self) -> None:
        """End the process: at once, as in good order it waits for connections to be closed."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(START_SECONDS)
            self._process = None

    def freeze(self, *, thaw: bool = False) -> None:
        """Have it hold still, connections and all; `thaw` ends that."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT if thaw else signal.SIGSTOP)

    def log(self) -> str:
        """The end of the server's log."""
        return (self.directory / "log").read_text(errors="replace")[-4000:]

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
                return b" 200 " in connection.recv(64)
        except OSError:
            return False


@contextmanager
def s3_server(*, keep_alive: bool = False) -> Iterator[S3Server]:
    """A running server with an empty bucket; gone in the end. It answers one request a connection,
    unless it is to keep them open."""
    with tempfile.TemporaryDirectory(prefix="s3-") as name:
        try:
            server = S3Server(s3_gateway(), Path(name), keep_alive=keep_alive)
            server.start()
        except PartMissing as error:
            lacking(f"there is no S3 server: {error}")
        try:
            yield server
        finally:
            server.stop()
