"""The staging directory: uploads that appear whole, bounds, orphans."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.base.crc import crc32c
from penstock.base.settings import load
from penstock.base.system import SYSTEM_RANDOMNESS
from penstock.broker.batch_commits import staging
from penstock.broker.batch_commits.manifest import (
    BlobExists,
    BlobTooLarge,
    InvalidCommit,
    NotFinished,
    StagingFull,
    StagingUnavailable,
)
from penstock.broker.batch_commits.staging import MARKER_FILE, StagingArea
from penstock.broker.configuration.settings import BrokerSettings
from tests.broker.batch_commits.conftest import House, HouseClock
from tests.broker.batch_commits.sink_client import Part
from tests.faulty_files import FaultyFiles


def area_in(directory: Path, **settings: int) -> StagingArea:
    values = {f"sink.staging.{name.replace('_', '.')}": value for name, value in settings.items()}
    loaded = load(BrokerSettings, {"sink.staging.directory": str(directory), **values})
    return StagingArea(loaded, clock=HouseClock(), randomness=SYSTEM_RANDOMNESS)


async def pieces(*data: bytes) -> AsyncIterator[bytes]:
    for piece in data:
        yield piece


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name != MARKER_FILE)


async def test_the_marker_is_new_at_every_start(tmp_path: Path) -> None:
    directory = tmp_path / "deep" / "staging"
    tokens = set()
    for _ in range(3):
        area = area_in(directory)
        await area.start()
        assert (directory / MARKER_FILE).read_text() == area.token
        assert len(area.token) == 32
        tokens.add(area.token)
    assert len(tokens) == 3


async def test_a_directory_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StagingUnavailable, match=r"sink\.staging\.directory = .*file"):
        await area_in(tmp_path / "file").start()


async def test_an_upload_is_whole_and_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = FaultyFiles()
    monkeypatch.setattr(staging, "MACHINE_FILES", files)
    area = area_in(tmp_path)
    await area.start()
    files.calls.clear()
    data = [os.urandom(700_000) for _ in range(4)]
    done = await area.upload("blob-1", pieces(*data))
    assert (done.size_bytes, done.crc32c) == (2_800_000, crc32c(b"".join(data)))
    assert (tmp_path / "blob-1").read_bytes() == b"".join(data)
    order = [name for name in files.calls if name in {"sync_file", "link", "sync_directory"}]
    assert order == ["sync_file", "link", "sync_directory"]
    assert names(tmp_path) == ["blob-1"]
    assert area.staged == (1, 2_800_000)


async def test_a_name_is_taken_once(tmp_path: Path) -> None:
    area = area_in(tmp_path)
    await area.start()
    results = await asyncio.gather(
        *(area.upload("b", pieces(bytes([n]) * 9)) for n in range(8)), return_exceptions=True
    )
    assert sorted(type(result).__name__ for result in results) == ["BlobExists"] * 7 + ["Uploaded"]
    winner = next(n for n, outcome in enumerate(results) if not isinstance(outcome, BaseException))
    assert (tmp_path / "b").read_bytes() == bytes([winner]) * 9
    with pytest.raises(BlobExists):
        await area.upload("b", pieces(b"x"))
    assert names(tmp_path) == ["b"]


@pytest.mark.parametrize("name", ["../x", ".hidden", MARKER_FILE, "a/b", ""])
async def test_a_name_cannot_leave_the_directory(tmp_path: Path, name: str) -> None:
    area = area_in(tmp_path / "staging")
    await area.start()
    with pytest.raises(InvalidCommit, match="blob name"):
        await area.upload(name, pieces(b"x"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["staging"]


async def test_a_blob_has_a_limit(tmp_path: Path) -> None:
    area = area_in(tmp_path, blob_max_bytes=1000)
    await area.start()
    with pytest.raises(BlobTooLarge, match=r"blob\.max\.bytes = 1000"):
        await area.upload("b", pieces(b"x" * 600, b"x" * 401))
    assert names(tmp_path) == []
    assert (await area.upload("b", pieces(b"x" * 1000))).size_bytes == 1000


async def test_all_blobs_have_a_limit(tmp_path: Path) -> None:
    area = area_in(tmp_path, max_bytes=2_000_000)
    await area.start()
    await area.upload("a", pieces(b"x" * 1_500_000))
    with pytest.raises(StagingFull, match=r"sink\.staging\.max\.bytes = 2000000"):
        await area.upload("b", pieces(*[b"x" * 500_000] * 9))
    assert names(tmp_path) == ["a"]
    await area.upload("c", pieces(b"x" * 500_000))
    with pytest.raises(StagingFull):
        await area.check_room()


async def test_a_principal_has_a_limit(tmp_path: Path) -> None:
    area = area_in(tmp_path, principal_max_bytes=1_000_000)
    await area.start()
    await area.upload("a", pieces(b"x" * 1_000_000), "User:ada")
    with pytest.raises(StagingFull, match=r"User:ada has 1000000 bytes .*principal\.max\.bytes"):
        await area.upload("b", pieces(b"x"), "User:ada")
    await area.upload("b", pieces(b"x" * 1_000_000), "User:bob")
    with pytest.raises(BlobExists):
        await area.upload("b", pieces(b"x"), "User:eve")
    (tmp_path / "a").unlink()  # as a commit does
    area._looked = float("-inf")
    await area.upload("c", pieces(b"x" * 10), "User:ada")
    assert names(tmp_path) == ["b", "c"]


async def test_room_on_the_disk_is_left_for_the_log(tmp_path: Path) -> None:
    free_bytes = shutil.disk_usage(tmp_path).free
    area = area_in(tmp_path, free_bytes=2 * free_bytes)
    await area.start()
    with pytest.raises(StagingFull, match=r"sink\.staging\.free\.bytes = .* free some space"):
        await area.upload("a", pieces(b"x"))
    assert names(tmp_path) == []


async def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    area = area_in(tmp_path)
    await area.start()

    files = FaultyFiles()
    files.fail = lambda name, path: errno.ENOSPC if name == "write_at" else None
    with monkeypatch.context() as patched:
        patched.setattr(staging, "MACHINE_FILES", files)
        with pytest.raises(StagingFull, match="is full"):
            await area.upload("b", pieces(b"x" * 10))
    assert names(tmp_path) == []
    assert (await area.upload("b", pieces(b"x" * 10))).size_bytes == 10


async def test_an_upload_that_is_cut_leaves_nothing(tmp_path: Path) -> None:
    area = area_in(tmp_path)
    await area.start()

    async def cut() -> AsyncIterator[bytes]:
        yield b"x" * 2_000_000
        raise ConnectionResetError("gone")

    with pytest.raises(StagingUnavailable, match="gone"):
        await area.upload("b", cut())
    assert names(tmp_path) == []


async def test_uploads_of_the_broker_before_are_removed_at_start(tmp_path: Path) -> None:
    (tmp_path / ".upload-1234").write_bytes(b"x")
    (tmp_path / "blob").write_bytes(b"x")
    (tmp_path / ".workers-own").write_bytes(b"x")
    await area_in(tmp_path).start()
    assert names(tmp_path) == [".workers-own", "blob"]


async def test_orphans_go_by_age_and_blobs_of_open_intents_stay(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.settings = {"sink.staging.orphan.age.ms": 3_600_000}
    await house.start()
    await house.topic("t")
    blob = house.stage("named", [Part("t", 0, ["x"])])
    house.files.refuse = True
    with pytest.raises(NotFinished):
        await house.post(0, [blob])
    for name in ("orphan", ".unfinished"):
        (house.staging / name).write_bytes(b"x")
    area = house.sinks.area
    assert await area.sweep(house.sinks._all_held) == 0
    house.clock.ahead_ms += 3_700_000
    (house.staging / "young").write_bytes(b"x")
    os.utime(house.staging / "young", (house.clock.now_ms() / 1000,) * 2)
    assert await area.sweep(house.sinks._all_held) == 2
    assert names(house.staging) == ["named", "young"]
    await house.crash()
    await house.start()  # sweeps as it starts
    house.files.refuse = True
    await house.until(lambda: house.sinks.counters.redrives > 0)
    await house.sinks.area.sweep(house.sinks._all_held)
    house.files.refuse = False
    await house.settled()
    assert house.values("t") == ["x"]
    await house.until(lambda: names(house.staging) == ["young"])
    await house.stop()
