"""Power lost before every file call: what was acknowledged as durable is there afterwards."""

from __future__ import annotations

import errno
import os
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sim.disk import Disk

from penstock.outbox.layout import BATCH_PREFIX, data_path, hour_directory, temporary_name
from penstock.outbox.writer.safe_write import Tree, WritePlan, as_buffers
from tests.faulty_files import Before, FaultyFiles, PowerLoss

HOUR_MS = 3_600_000
BATCHES = [
    ("p", "a", 0, b"first in all of its directories"),
    ("p", "b", 0, b"second of its hour"),
    ("p", "c", HOUR_MS, b"in another hour"),
    ("q", "d", HOUR_MS, b""),
    ("p", "b", 0, b"second of its hour"),
]


def path_of(batch: tuple[str, str, int, bytes]) -> str:
    return data_path(batch[0], batch[1], batch[2])


def plan_of(batch: tuple[str, str, int, bytes], attempt: int, durable: bool) -> WritePlan:
    partition, name, at_ms, payload = batch
    buffers, size_bytes = as_buffers([payload[:5], payload[5:]])
    return WritePlan(
        hour_directory=hour_directory(partition, at_ms),
        batch_name=f"{BATCH_PREFIX}{name}",
        temporary_name=temporary_name("t", attempt),
        buffers=buffers,
        size_bytes=size_bytes,
        durable=durable,
    )


def write_all(
    files: FaultyFiles, attempt: int, acknowledged: dict[str, bytes], durable: bool = True
) -> None:
    """Write every batch in turn, and record those that were acknowledged."""
    tree = Tree(Path("/"), files)
    for number, batch in enumerate(BATCHES):
        tree.write(plan_of(batch, attempt * 100 + number, durable))
        acknowledged[path_of(batch)] = batch[3]


def check(image: Disk, acknowledged: dict[str, bytes], where: str) -> None:
    found = image.contents()
    for path, payload in acknowledged.items():
        assert found.get(path) == payload, f"{where}: {path} was acknowledged"
    by_path = {path_of(batch): batch[3] for batch in BATCHES}
    for path, content in found.items():
        if path.endswith("/data.bin"):
            assert content == by_path[path], f"{where}: {path} is torn"


def without_rename(number: int, name: str, arguments: tuple[Any, ...]) -> None:
    """Model NFS, which has no rename that does not replace."""
    if name == "rename_new":
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


def prefixes(before: Before | None) -> range:
    whole = FaultyFiles(before, files=Disk())
    write_all(whole, 1, {})
    return range(len(whole.calls) + 1)


@pytest.mark.parametrize("before", [None, without_rename])
def test_every_prefix_keeps_what_was_acknowledged(before: Before | None) -> None:
    for lose_at in prefixes(before):
        disk, acknowledged = Disk(), dict[str, bytes]()
        with suppress(PowerLoss):
            write_all(FaultyFiles(before, files=disk, lose_at=lose_at), 1, acknowledged)
        for image in disk.images(str(lose_at)):
            check(image, acknowledged, f"power lost before call {lose_at}")
            # The machine comes up again, everything is retried, and the power fails again.
            retried: dict[str, bytes] = {}
            write_all(FaultyFiles(before, files=image), 2, retried)
            check(image.after_power_loss(), retried, f"retried after call {lose_at}")


@pytest.mark.parametrize("before", [None, without_rename])
@pytest.mark.parametrize("durable_at_first", [True, False])
def test_a_killed_process_and_then_the_power(before: Before | None, durable_at_first: bool) -> None:
    """The retry finds what the killed process left and had not synced: at no prefix of it may
    something be acknowledged that a power loss then takes. Also after writes that were never to
    be durable."""
    for kill_at in prefixes(before):
        disk, acknowledged = Disk(), dict[str, bytes]()
        with suppress(PowerLoss):
            first = FaultyFiles(before, files=disk, lose_at=kill_at)
            write_all(first, 1, {}, durable=durable_at_first)
        tree = Tree(Path("/"), FaultyFiles(before, files=disk))
        for number, batch in enumerate(BATCHES):
            tree.write(plan_of(batch, 200 + number, True))
            acknowledged[path_of(batch)] = batch[3]
            for image in disk.images(str(kill_at)):
                found = image.contents()
                for path, payload in acknowledged.items():
                    assert found.get(path) == payload, f"killed at {kill_at}, {path} is lost"


def test_the_model_forgets() -> None:
    """The smallest image loses what is not durable: the model detects the difference."""
    disk, acknowledged = Disk(), dict[str, bytes]()
    write_all(FaultyFiles(files=disk), 1, acknowledged, durable=False)
    assert len(acknowledged) == 4
    assert disk.contents() == acknowledged
    assert disk.after_power_loss().contents() == {}
    torn = [disk.after_power_loss(random.Random(seed)).contents() for seed in range(99)]
    assert any(found and not found.items() <= acknowledged.items() for found in torn)
