"""Power lost before every file call: what was acknowledged as durable is there afterwards."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.outbox.layout import BATCH_PREFIX, data_path, hour_directory, temporary_name
from penstock.outbox.writer.files import Tree
from penstock.outbox.writer.payload import as_buffers
from penstock.outbox.writer.safe_write import WritePlan
from tests.scenarios.outbox.model_files import (
    Directory,
    LinkingModelFiles,
    ModelFiles,
    PowerLoss,
    after_power_loss,
    contents,
)

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
    files: ModelFiles, attempt: int, acknowledged: dict[str, bytes], durable: bool = True
) -> None:
    """One process: writes every batch in turn and notes those that it acknowledged."""
    tree = Tree(Path("/"), files)
    for number, batch in enumerate(BATCHES):
        tree.write(plan_of(batch, attempt * 100 + number, durable))
        acknowledged[path_of(batch)] = batch[3]


def images(root: Directory, seed: int) -> Iterator[Directory]:
    """What may be there after a power loss now: the least, and ten others."""
    yield after_power_loss(root)
    for number in range(10):
        yield after_power_loss(root, random.Random(f"{seed}-{number}"))


def check(image: Directory, acknowledged: dict[str, bytes], where: str) -> None:
    found = dict(contents(image))
    for path, payload in acknowledged.items():
        assert found.get(path) == payload, f"{where}: {path} was acknowledged"
    by_path = {path_of(batch): batch[3] for batch in BATCHES}
    for path, content in found.items():
        if path.endswith("/data.bin"):
            assert content == by_path[path], f"{where}: {path} is torn"


def prefixes(kind: type[ModelFiles]) -> range:
    whole = kind()
    write_all(whole, 1, {})
    return range(whole.calls + 1)


@pytest.mark.parametrize("kind", [ModelFiles, LinkingModelFiles])
def test_every_prefix_keeps_what_was_acknowledged(kind: type[ModelFiles]) -> None:
    for lose_at in prefixes(kind):
        files, acknowledged = kind(lose_at=lose_at), dict[str, bytes]()
        with suppress(PowerLoss):
            write_all(files, 1, acknowledged)
        for image in images(files.root, lose_at):
            check(image, acknowledged, f"power lost before call {lose_at}")
            # The machine comes up again, everything is retried, and the power fails again.
            again, retried = kind(image), dict[str, bytes]()
            write_all(again, 2, retried)
            check(after_power_loss(again.root), retried, f"retried after call {lose_at}")


@pytest.mark.parametrize("kind", [ModelFiles, LinkingModelFiles])
@pytest.mark.parametrize("durable_at_first", [True, False])
def test_a_killed_process_and_then_the_power(
    kind: type[ModelFiles], durable_at_first: bool
) -> None:
    """The retry finds what the killed process left and had not synced: at no prefix of it may
    something be acknowledged that a power loss then takes. Also after writes that were never to
    be durable."""
    for kill_at in prefixes(kind):
        first = kind(lose_at=kill_at)
        with suppress(PowerLoss):
            write_all(first, 1, {}, durable=durable_at_first)
        retry, acknowledged = kind(first.root), dict[str, bytes]()
        tree = Tree(Path("/"), retry)
        for number, batch in enumerate(BATCHES):
            tree.write(plan_of(batch, 200 + number, True))
            acknowledged[path_of(batch)] = batch[3]
            for image in images(retry.root, kill_at):
                found = dict(contents(image))
                for path, payload in acknowledged.items():
                    assert found.get(path) == payload, f"killed at {kill_at}, {path} is lost"


def test_the_model_forgets() -> None:
    """What is not durable is lost at the least image: the model can tell the difference."""
    files, acknowledged = ModelFiles(), dict[str, bytes]()
    write_all(files, 1, acknowledged, durable=False)
    assert len(acknowledged) == 4
    assert dict(contents(files.root)) == acknowledged
    assert dict(contents(after_power_loss(files.root))) == {}
    torn = [dict(contents(after_power_loss(files.root, random.Random(seed)))) for seed in range(99)]
    assert any(found and not found.items() <= acknowledged.items() for found in torn)
