"""`penstock host send`: lines to the host's agent, and what became of them."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import click

from penstock.apps.host import socket_option
from penstock.apps.session import State, say
from penstock.base.errors import PenstockError

if TYPE_CHECKING:
    from penstock.host.client.futures import PublishFuture

FRAMES_WAITING_MAX: Final = 64
"""Frames whose answers are outstanding before the oldest is waited for."""

LINE_BYTES_MAX: Final = 8 << 20


@click.command("send", short_help="Send lines to an agent.")
@socket_option
@click.option("--topic", default="", help="Topic of the chunks; the log sink needs one.")
@click.option("--partition", type=click.IntRange(min=0), help="Default: each in turn.")
@click.option(
    "--batch",
    type=click.IntRange(1, 4096),
    default=500,
    show_default=True,
    help="Lines of one frame.",
)
@click.option(
    "--timeout",
    type=float,
    default=30.0,
    show_default=True,
    help="Seconds to wait for an agent, and for the answers at the end.",
)
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE…]")
@click.pass_context
def send(
    context: click.Context,
    path: str,
    topic: str,
    partition: int | None,
    batch: int,
    timeout: float,
    paths: tuple[Path, ...],
) -> None:
    """Send the lines of standard input, or of files, one chunk each.

    Status 0 when all were accepted.
    """
    from penstock.host import HostClient

    topics = (topic,) if topic else ()
    waiting: deque[tuple[int, PublishFuture]] = deque()
    accepted = failed = 0
    error: PenstockError | None = None

    def settle(most: int) -> None:
        nonlocal accepted, failed, error
        while len(waiting) > most:
            count, future = waiting.popleft()
            try:
                future.result(timeout)
                accepted += count
            except PenstockError as wrong:
                error, failed = wrong, failed + count

    with HostClient(path, topics=topics, client_name="penstock host send") as client:
        client.wait_started(timeout)
        for lines in _batches(paths, batch):
            future = client.publish_batch(lines, topic=topic, partition=partition)
            waiting.append((len(lines), future))
            settle(FRAMES_WAITING_MAX)
        settle(0)
    state = context.obj if isinstance(context.obj, State) else State()
    say(state, f"{accepted} accepted, {failed} failed", accepted=accepted, failed=failed)
    if error is not None:
        raise error


def _batches(paths: tuple[Path, ...], size: int) -> Iterator[list[bytes]]:
    for path in paths or (None,):
        if path is None:
            yield from _cut(sys.stdin.buffer, size)
        else:
            with path.open("rb") as file:
                yield from _cut(file, size)


def _cut(file: IO[bytes], size: int) -> Iterator[list[bytes]]:
    lines = (line.rstrip(b"\r\n") for line in iter(lambda: file.readline(LINE_BYTES_MAX), b""))
    while batch := list(islice(lines, size)):
        yield batch
