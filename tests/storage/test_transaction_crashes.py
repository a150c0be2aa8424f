"""Power lost between any two file calls of a log with transactions.

Whatever of the log's bytes is there afterwards, it knows what they say: which transactions are open
and which were aborted. What must be there, `test_replica_crashes.py` looks at.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from tests.faulty_files import FaultyFiles
from tests.sampling import sample
from tests.storage.batches import abandon
from tests.storage.transactions import Transactional, check, end_of, history_of

STEPS = 70


def run(place: Transactional, dice: random.Random) -> None:
    """Transactions of some producers, cuts, checkpoints and restarts."""
    for _ in range(STEPS):
        producer_id = dice.randrange(4)
        step = dice.choice(["put"] * 6 + ["end"] * 5 + ["checkpoint", "write", "cut", "restart"])
        if step == "put":
            place.put(producer_id, dice.randint(1, 4), commit=dice.random() < 0.7)
        elif step == "end":
            place.end(producer_id, commit=dice.random() < 0.4, durable=dice.random() < 0.7)
        else:
            assert place.harness.commit() is None
            if step == "checkpoint":
                place.harness.store.checkpoint()
            elif step == "write":
                place.log.state.write_segments()
            elif step == "cut":
                place.cut(max(0, place.log.log_end_offset - dice.randint(1, 9)))
            elif dice.random() < 0.5:
                place.harness.reopen()
            else:
                place.harness.crash()
    assert place.harness.commit() is None
    place.check()


def crash_at(tmp_path: Path, seed: int, step: int) -> None:
    root = tmp_path / "root"
    root.mkdir()
    files = FaultyFiles(root=root)
    dice = random.Random(seed)
    place = Transactional(root, files=files, log_checkpoint_bytes=4096)
    run(place, dice)
    abandon(place.harness.store)
    disk = files.disk_after(0)
    first = dice.randrange(step)
    seen = set[int]()
    for count, operation in enumerate(files.operations, 1):
        disk.apply(operation)
        if count % step != first:
            continue
        directory = tmp_path / f"after-{count}"
        disk.after_power_loss(dice if dice.random() < 0.7 else None).put(directory)
        again = Transactional(directory)
        for _ in range(2):
            again.history = history_of(again.log)
            check(again.log, again.history)
            again.harness.crash()
        seen.add(end_of(again.history))
        again.put(9)
        again.end(9, commit=False)
        again.harness.crash()
        check(again.log, again.history)
        again.harness.store.close()
        shutil.rmtree(directory)
    assert len(seen) > 3


@pytest.mark.parametrize("seed", sample(range(4), 4))
def test_recovery_finds_every_transaction(tmp_path: Path, seed: int) -> None:
    crash_at(tmp_path, seed, 25)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(100, 106))
def test_recovery_finds_every_transaction_everywhere(tmp_path: Path, seed: int) -> None:
    crash_at(tmp_path, seed, 2)
