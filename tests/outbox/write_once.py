"""Process that writes batches below a root and reports each result, as JSON.

    python -m tests.outbox.write_once ROOT BATCH SIZE [COUNT]

It retries as the writer does; batch `BATCH` again finds the files of an earlier process.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence

from penstock.base.errors import PenstockError
from penstock.outbox.settings import OutboxSettings
from penstock.outbox.writer.writer import OutboxWriter


def payload_of(batch: str, size: int) -> list[bytes]:
    """Return the batch's content: deterministic, in 1,500 buffers."""
    unit = f"{batch}:".encode()
    content = (unit * (size // len(unit) + 1))[:size]
    step = max(1, size // 1500)
    return [content[at : at + step] for at in range(0, size, step)]


async def write(root: str, batch: str, size: int, count: int) -> list[dict[str, object]]:
    said: list[dict[str, object]] = []
    settings = OutboxSettings(root=root, attempts_max=2, backoff_first_ms=1, io_threads=1)
    async with OutboxWriter(settings) as writer:
        for number in range(count):
            name = batch if count == 1 else f"{batch}-{number}"
            try:
                result = await writer.write(
                    payload_of(name, size), partition_id="p", batch_id=name, at_ms=0
                )
            except PenstockError as error:
                kinds = [kind.__name__ for kind in type(error).__mro__]
                said.append({"batch": name, "error": kinds, "message": str(error)})
            else:
                said.append(
                    {
                        "batch": name,
                        "attempts": result.attempts,
                        "existing": result.idempotent_existing_write,
                        "crc32c": result.pointer.crc32c,
                    }
                )
    return said


def main(arguments: Sequence[str]) -> None:
    root, batch, size, *count = arguments
    number = int(count[0]) if count else 1
    print(json.dumps(asyncio.run(write(root, batch, int(size), number))))


if __name__ == "__main__":
    main(sys.argv[1:])
