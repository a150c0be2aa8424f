"""Kills by order: processes of a pipeline come by a point, and one of them takes the order.

    <folder>/orders/<number>~<delay in ms>~<point>     given by the harness, one kill each
    <folder>/taken/                                    where an order goes that is being followed

An order is taken by renaming it, so exactly one process follows it. The kill is written down
before it happens; nothing after it runs. This module runs in the driver, in Spark's workers and in
the process that plans batches; all of them find the folder in their environment.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Final

from tests.scenarios.spark.points import BY_NAME, Point

FOLDER: Final = "KILLS_FOLDER"
LOG: Final = "KILLS_LOG"
GROUP: Final = "KILLS_GROUP"
BROKER: Final = "KILLS_BROKER"
SEPARATOR: Final = "~"


def order(folder: Path, number: int, point: Point, delay_ms: int) -> Path:
    """Order a kill; returns the order, which is gone once it is taken."""
    path = folder / "orders" / SEPARATOR.join((str(number), str(delay_ms), point.name))
    path.touch()
    return path


def reach(*names: str) -> None:
    """Pass points; with an order for one of them, a process dies now or in a moment."""
    for name in names:
        taken = take(name)
        if taken is not None:
            follow(*taken)


def take(name: str) -> tuple[Point, int] | None:
    """Take an order for a point; the point and the milliseconds to wait."""
    folder = os.environ[FOLDER]
    for found in os.listdir(f"{folder}/orders"):
        _, delay_ms, point = found.split(SEPARATOR)
        if point != name:
            continue
        try:
            os.rename(f"{folder}/orders/{found}", f"{folder}/taken/{found}")
        except FileNotFoundError:
            continue
        return BY_NAME[name], int(delay_ms)
    return None


def follow(point: Point, delay_ms: int) -> None:
    """Kill, at once or after a while in which the caller continues."""
    if not delay_ms:
        end(point)
        return

    def later() -> None:
        time.sleep(delay_ms / 1_000)
        end(point)

    threading.Thread(target=later, daemon=True).start()


def end(point: Point) -> None:
    """Write the kill down, and kill."""
    note(Path(os.environ[LOG]), point)
    if point.dies == "driver":
        os.killpg(int(os.environ[GROUP]), signal.SIGKILL)
    elif point.dies == "executor":
        os.kill(_java_above(), signal.SIGKILL)
    elif point.dies == "broker":
        os.kill(int(Path(os.environ[BROKER]).read_text()), signal.SIGKILL)
    else:
        os.kill(os.getpid(), signal.SIGKILL)


def note(log: Path, point: Point) -> None:
    """Add a kill to the log."""
    line = json.dumps({"at_ms": int(time.time() * 1_000), "point": point.name}) + "\n"
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def _java_above() -> int:
    """The JVM that this worker belongs to: the parent of its parent."""
    process = os.getppid()
    while Path(f"/proc/{process}/comm").read_text().strip() != "java":
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return process
