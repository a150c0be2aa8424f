"""A broker notices that the database was set back: the rule, and copies of real files."""

from __future__ import annotations

import shutil
from pathlib import Path
from uuid import UUID

import pytest

from penstock.control import (
    Broker,
    DatabaseSetBack,
    EpochClaim,
    Reservation,
    SeenDatabase,
    SqliteControlPlane,
)
from penstock.control.rules.epochs import look, set_back
from penstock.control.values.topics import MetadataImage
from tests.control.replicated import PROCESSES, create, furnish

A, B = UUID(int=1), UUID(int=2)
SEEN = SeenDatabase("c", version=7, cluster_epoch=3, broker_epoch=2, incarnation=A)


def image(cluster_id: str = "c", version: int = 7, cluster_epoch: int = 3) -> MetadataImage:
    return MetadataImage(version=version, cluster_id=cluster_id, cluster_epoch=cluster_epoch)


def broker(epoch: int = 2, incarnation: UUID = A) -> Broker:
    return Broker(broker_id=1, host="h", port=1, rack=None, incarnation=incarnation, epoch=epoch)


def test_a_continued_database_is_recorded() -> None:
    assert look(None, image(), broker()) == SEEN
    assert look(SEEN, image(), broker()) == SEEN
    newer = look(SEEN, image(version=9, cluster_epoch=4), broker(3, B))
    assert newer == SeenDatabase("c", 9, 4, 3, B)


@pytest.mark.parametrize(
    ("found", "own", "reason"),
    [
        (image(cluster_id="d", version=99), broker(), "cluster 'd'"),
        (image(version=6), broker(), "version is 6, but was 7"),
        (image(version=99, cluster_epoch=2), broker(), "cluster epoch is 2, but was 3"),
        (image(version=99, cluster_epoch=99), broker(1, B), "epoch of broker 1 is 1, but was 2"),
        (image(version=99, cluster_epoch=99), broker(2, B), "epoch 2 of broker 1 twice"),
    ],
)
def test_what_goes_backwards_is_refused(found: MetadataImage, own: Broker, reason: str) -> None:
    with pytest.raises(DatabaseSetBack, match=reason):
        look(SEEN, found, own)


def test_promised_epochs_without_a_reservation_are_reported() -> None:
    reserved = {
        (A, number): Reservation(highest, 1, None, 0) for number, highest in enumerate((5, 5, 5))
    }
    promised = {(A, 0): 4, (A, 1): 5, (A, 2): 6, (B, 0): 9}
    assert set_back(promised, reserved) == [(A, 2)]


async def test_a_copy_that_is_put_back_is_noticed(tmp_path: Path) -> None:
    """Even where others have gone on with the copy beyond all that was seen."""
    path, copy = tmp_path / "metadata.sqlite", tmp_path / "copy"
    plane = SqliteControlPlane(path)
    await plane.start()
    [key] = await furnish(plane, 1)
    seen = look(None, await plane.image(), await start_again(plane, PROCESSES[1]))
    await plane.close()
    shutil.copy(path, copy)
    await plane.start()
    seen = look(seen, await plane.image(), await start_again(plane, A))
    await start_again(plane, A)
    assert await claim_as(plane, key, A) == 1
    await plane.close()

    shutil.copy(copy, path)
    await plane.start()
    found = await plane.highest_reserved([key])
    assert set_back({key: 1}, found) == [key]
    for number in range(20):
        await create(plane, f"t{number}", UUID(int=500 + number))
        await plane.register_broker(
            broker_id=2, host="h", port=9, rack=None, incarnation=UUID(int=600 + number)
        )
    again = await start_again(plane, B)
    later = await plane.image()
    assert later.version > seen.version
    assert later.cluster_epoch > seen.cluster_epoch
    with pytest.raises(DatabaseSetBack, match="twice"):
        look(seen, later, again)
    await plane.close()


async def start_again(plane: SqliteControlPlane, incarnation: UUID) -> Broker:
    return await plane.register_broker(
        broker_id=1, host="h", port=9, rack=None, incarnation=incarnation
    )


async def claim_as(plane: SqliteControlPlane, key: tuple[UUID, int], incarnation: UUID) -> int:
    got = await plane.claim_epochs([EpochClaim(*key, 0)], broker_id=1, incarnation=incarnation)
    return got.chains[key].reservation.reserved
