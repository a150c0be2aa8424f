"""Command `penstock host send`: sends lines to the host's agent, and reports how many it accepted.

During a long wait and after a failure, the agent is probed (`probe.py`) for the cause.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, ClassVar, Final

import click

from penstock.apps.client.session import BadInput, Number, current, default_option, say
from penstock.apps.host.command import socket_option
from penstock.base.errors import PenstockError, UnavailableError
from penstock.host.errors import NotConnected, PublishTimedOut

if TYPE_CHECKING:
    from penstock.host import HostClient
    from penstock.host.client.futures import PublishFuture

FRAMES_WAITING_MAX: Final = 64
"""Most frames without an answer; then the command waits for the answer to the oldest."""

LINE_BYTES_MAX: Final = 8 << 20

_START: Final = "start an agent with `penstock host serve`, or give its socket with --socket PATH"

TIMEOUT_SECONDS_MAX: Final = 86_400

NOTICE_SECONDS: Final = 1.0
REPEAT_SECONDS: Final = 0.5
"""Seconds of a wait until the agent is probed for the cause: `NOTICE_SECONDS` for the first time,
then `REPEAT_SECONDS`. With the probe the cause is on stderr within 2 s.
"""


class AgentUnavailable(UnavailableError):
    """No agent accepts this producer; `fix` is the remedy."""

    code: ClassVar[str] = "broker_not_available"

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.fix = fix


@click.command("send", short_help="Send lines to an agent.")
@socket_option
@click.option(
    "--topic", default="", help="Topic to send chunks to; required if the agent has the log sink."
)
@click.option(
    "--partition",
    type=click.IntRange(min=0),
    help="Partition to send chunks to. Default: all partitions in turn.",
)
@default_option("--batch", 500, "Number of lines in one frame.", click.IntRange(1, 4096))
@default_option(
    "--timeout", 30.0, "Seconds to wait for an agent, and for each frame to be accepted.",
    Number(0, TIMEOUT_SECONDS_MAX),
)  # fmt: skip
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE…]")
def send(
    path: str,
    topic: str,
    partition: int | None,
    batch: int,
    timeout: float,
    paths: tuple[Path, ...],
) -> None:
    """Send the lines of standard input, or of files, to the agent; each line is one chunk.

    Exits with status 0 if all lines were accepted.
    """
    from penstock.host import HostClient

    topics = (topic,) if topic else ()
    waiting: deque[tuple[int, PublishFuture]] = deque()
    accepted = failed = 0
    error: PenstockError | None = None
    notice = ""

    def await_frames(most: int) -> None:
        nonlocal accepted, failed, error, notice
        while len(waiting) > most:
            count, future = waiting.popleft()
            try:
                while not _ended(future, REPEAT_SECONDS if notice else NOTICE_SECONDS):
                    before, notice = notice, _why(path)
                    if notice != before:
                        click.echo(f"% waiting for {notice}", err=True)
                future.result()
                accepted += count
            except PenstockError as wrong:
                error, failed = wrong, failed + count

    timeout_ms = max(1, round(timeout * 1000))
    with HostClient(
        path,
        topics=topics,
        client_name="penstock host send",
        delivery_timeout_ms=timeout_ms,
        publish_timeout_ms=timeout_ms,
    ) as client:
        _start(client, path, timeout)
        for lines in _batches(paths, batch):
            future = client.publish_batch(lines, topic=topic, partition=partition)
            waiting.append((len(lines), future))
            await_frames(FRAMES_WAITING_MAX)
        await_frames(0)
    say(current(), f"{accepted} accepted, {failed} failed", accepted=accepted, failed=failed)
    if error is not None:
        if isinstance(error, PublishTimedOut) and not error.reason:
            error.add_note(_why(path))
        raise error


def _start(client: HostClient, path: str, timeout: float) -> None:
    """Wait until an agent accepts this producer.

    Raises:
        AgentUnavailable: no agent accepts it within `timeout` seconds; has the cause.
        HandshakeRefused: the agent rejects this producer; has the reason.
    """
    from penstock.apps.host.probe import NotHealthy, probe

    if timeout > NOTICE_SECONDS:
        try:
            client.wait_started(NOTICE_SECONDS)
            return
        except NotConnected:
            click.echo(f"% waiting for an agent: {_why(path)}", err=True)
    try:
        client.wait_started(max(0.0, timeout - NOTICE_SECONDS))
    except NotConnected as error:
        try:
            probe(path)
        except NotHealthy as unhealthy:
            raise AgentUnavailable(str(unhealthy), "" if unhealthy.there else _START) from None
        raise AgentUnavailable(f"{error}; {_why(path)}") from None


def _ended(future: PublishFuture, seconds: float) -> bool:
    try:
        future.exception(seconds)
    except TimeoutError:
        return False
    return True


def _why(path: str) -> str:
    """Return the agent's state and its reason as text that completes the line `waiting for …`."""
    from penstock.apps.host.probe import BLOCKED, NotHealthy, probe

    try:
        probed = probe(path)
    except NotHealthy as error:
        return str(error)
    if probed.state == BLOCKED:
        return f"the agent at {path}, whose sink does not accept data: {probed.reason}"
    if probed.state != "serving":
        return f"the agent at {path}, which is {probed.state}: {probed.reason}"
    return f"the agent at {path}, which is serving"


def _batches(paths: tuple[Path, ...], size: int) -> Iterator[list[bytes]]:
    for path in paths or (None,):
        if path is None:
            yield from cut(sys.stdin.buffer, size)
        else:
            with path.open("rb") as file:
                yield from cut(file, size)


def cut(file: IO[bytes], size: int) -> Iterator[list[bytes]]:
    """Yield the lines of a file without their ends, `size` lines at a time, including empty lines.

    Raises:
        BadInput: a line is longer than a chunk may be.
    """
    lines = iter(lambda: file.readline(LINE_BYTES_MAX + 1), b"")
    while batch := list(islice(map(_without_end, lines), size)):
        yield batch


def _without_end(line: bytes) -> bytes:
    if len(line) > LINE_BYTES_MAX:
        raise BadInput(
            f"a line is longer than {LINE_BYTES_MAX} bytes, the limit of a chunk; split it"
        )
    return line.removesuffix(b"\n").removesuffix(b"\r")
