"""What must be after a crash: recovery, twice, and going on.

What was acknowledged is there with the same bytes, or what was asked for since; nothing else. A
second recovery finds the same, whether the first one's own writes outlived it or not. Then appends
work, and are there after the next power loss; promises have not fallen.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.storage.batches import Harness, batch, stamped

from penstock.base.errors import PenstockError
from penstock.base.ids import TopicPartition
from sim.disk import Disk
from sim.storage.keys import compact, look_at_keys
from sim.storage.logs import Log, Violation, look, look_at_producers, require
from sim.storage.world import TOPIC, Allowed, Bounds, open_store

MUCH_LATER_MS = 1 << 40
LATER = 99
"""The epoch that goes on."""

Found = dict[int, Log]


def recovered(disk: Disk, bounds: Bounds, *, closely: bool = False) -> tuple[Harness, Found]:
    """Open the store and look at all of its logs.

    Raises:
        Violation: it cannot be opened, or what it holds is not of one piece.
    """
    try:
        harness = open_store(disk, bounds)
        logs = harness.store.partitions
        return harness, {where.partition: look(log, closely=closely) for where, log in logs.items()}
    except PenstockError as error:
        raise Violation(f"{type(error).__name__}: {error}") from error


def check(
    image: Disk, allowed: Mapping[int, Allowed], bounds: Bounds, recoveries: set[int]
) -> None:
    """Check what recovery makes of a disk.

    Most crashes come to one of few recovered disks, and what comes after that depends on nothing
    else: it is tried once for each. `recoveries` has their fingerprints.

    Raises:
        Violation: it is not as it must be.
    """
    try:
        harness, found = recovered(image, bounds)
        compare(harness, found, allowed)
        for again in image.after_power_loss(), image.image(image.pending):
            key = hash((again.fingerprint(), tuple(sorted(found.items()))))
            if key not in recoveries:
                recoveries.add(key)
                look_closely(harness)
                _recover_again(again, found, bounds)
    except Violation:
        raise
    except Exception as error:
        raise Violation(f"{type(error).__name__}: {error}") from error


def look_closely(harness: Harness) -> None:
    for log in harness.store.partitions.values():
        look(log)


def _recover_again(again: Disk, found: Found, bounds: Bounds) -> None:
    """A second recovery finds the same, and what is appended then is there after a third one."""
    harness, second = recovered(again, bounds, closely=True)
    require(second == found, f"a second recovery finds {_shown(second)}, the first {_shown(found)}")
    if "compact" in bounds.config.cleanup_policy:
        _compact_all(harness)
        return
    for partition, before in found.items():
        _go_on(harness, partition, before, bounds)
    require(harness.commit() is None, "a commit after recovery failed")
    if bounds.policy != "group":
        harness.store.checkpoint()
    _, third = recovered(again.after_power_loss(), bounds)
    for partition, before in found.items():
        after = third[partition]
        grown = before._replace(batches=(*before.batches, *after.batches[-1:]))
        if bounds.policy == "group":
            grown = grown._replace(promised=max(before.promised, LATER))
        require(
            after == grown and after.end == before.end + 2,
            f"partition {partition} was {before}, and is {after} after an append",
        )


def _compact_all(harness: Harness) -> None:
    """Later, when tombstones may go, nothing comes back."""
    for where in harness.store.partitions:
        look_at_keys(harness.store, where)
        for _ in range(2):
            harness.clock.ms += MUCH_LATER_MS
            compact(harness.store, where, harness.clock.ms)
            look_at_keys(harness.store, where)


def compare(harness: Harness, found: Found, allowed: Mapping[int, Allowed]) -> None:
    """What was found must be allowed, and its producers be those of it."""
    unknown = found.keys() - allowed.keys()
    require(not unknown, f"there are partitions {sorted(unknown)} that nobody made")
    for partition, state in allowed.items():
        log = found.get(partition)
        held = None if log is None else log.held
        match = [each for each in state.logs if (None if each is None else each.held) == held]
        require(
            bool(match),
            f"partition {partition} is {log}; allowed: {' or '.join(map(str, state.logs))}",
        )
        if log is not None:
            where = TopicPartition(TOPIC, partition)
            look_at_producers(harness.store.partitions[where], [log for log in match if log])


def _go_on(harness: Harness, partition: int, before: Log, bounds: Bounds) -> None:
    log = harness.store.partitions[TopicPartition(TOPIC, partition)]
    if bounds.policy == "group":
        log.replica.promise(max(before.promised, LATER))
        log.replica.append(stamped(2, before.end, LATER, fill=255), now_ms=1)
    else:
        log.set_leader_epoch(LATER)
        log.append(memoryview(bytearray(batch(2, fill=255))), now_ms=1)


def _shown(found: Found) -> str:
    return ", ".join(f"{partition}: {log}" for partition, log in sorted(found.items()))
