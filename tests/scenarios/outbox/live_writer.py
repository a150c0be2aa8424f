"""A process that writes batches as fast as it can until a file says stop.

    python -m tests.scenarios.outbox.live_writer ROOT BOOTSTRAP TOPIC NAME STOP

It prints a line per batch that was acknowledged: partition id and batch id. One that failed in a
way that may pass is left out, as it was not acknowledged. Half of the batches go
to hours in the past, whose directories are old and empty again and again; half of those are
written without being published first and sent once more, as a retry would.
"""

from __future__ import annotations

import random
import sys
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.base.errors import RetriableError
from penstock.outbox.settings import OutboxSettings
from penstock.outbox.writer.blocking import Outbox

AT_MS = 1_600_000_000_000
HOUR_MS = 3_600_000
UNDER_WAY = 8


def main(root: str, bootstrap: str, topic: str, name: str, stop: Path) -> None:
    dice = random.Random(name)
    settings = OutboxSettings(root=root, topic=topic, threshold_bytes=-1, durable=False)
    under_way: list[tuple[str, str, Future[Any]]] = []
    with Outbox(settings, bootstrap) as outbox:
        print("ready", flush=True)
        number = 0
        while not stop.exists() or under_way:
            if len(under_way) >= UNDER_WAY or stop.exists():
                partition, batch, future = under_way.pop(0)
                with suppress(RetriableError):
                    future.result()
                    print(partition, batch, flush=True)
                continue
            number += 1
            partition, batch = f"{name}-{number % 3}", f"b{number}"
            at_ms = AT_MS + dice.randrange(3) * HOUR_MS if dice.random() < 0.5 else None
            payload = f"{partition}/{batch}".encode() * dice.choice([1, 1_000])
            if dice.random() < 0.25:
                with suppress(RetriableError):
                    outbox.write(payload, partition_id=partition, batch_id=batch, at_ms=at_ms)
            future = outbox.send_async(payload, partition_id=partition, batch_id=batch, at_ms=at_ms)
            under_way.append((partition, batch, future))


if __name__ == "__main__":
    root, bootstrap, topic, name, stop = sys.argv[1:]
    main(root, bootstrap, topic, name, Path(stop))
