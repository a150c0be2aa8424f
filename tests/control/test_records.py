"""Coordinators' records: keys are saved by compare-and-set, many in one transaction."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from penstock.base.errors import BugError
from penstock.control import (
    CommittedOffset,
    ControlPlane,
    RecordChange,
    StaleClusterEpoch,
    StaleRecord,
    TooLarge,
)
from penstock.control.operations import coordination

OFFSET = CommittedOffset(topic_id=UUID(int=1), topic="t", partition=0, offset=4)


def change(
    key: str, /, *, at: int = 0, offsets: bool = False, **rows: bytes | None
) -> RecordChange:
    """A change of a key's rows; `own` is the key's own row."""
    named = {"" if member == "own" else member: value for member, value in rows.items()}
    return RecordChange(
        kind="group", key=key, expected_version=at, rows=named, deletes_offsets=offsets
    )


async def stored(control: ControlPlane, *keys: str) -> dict[tuple[str, str], bytes]:
    return {(row.key, row.member): row.value for row in await control.records("group", keys)}


async def save(control: ControlPlane, *changes: RecordChange) -> int:
    """Save what nothing speaks against; the version."""
    saved = await control.save_records(changes)
    assert not saved.refused
    return saved.version


async def test_rows_of_many_keys_are_saved_at_once(control: ControlPlane) -> None:
    version = await save(control, change("g", own=b"\x00g", b=b"1", a=b"2"), change("h", own=b"h"))
    rows = await control.records("group", ["h", "g", "i"])
    assert [(row.key, row.member, row.value) for row in rows] == [
        ("g", "", b"\x00g"),
        ("g", "a", b"2"),
        ("g", "b", b"1"),
        ("h", "", b"h"),
    ]
    assert {row.version for row in rows} == {version}
    assert await control.record_keys("group") == ["g", "h"]
    assert await control.record_keys("transaction") == []
    assert await control.records("transaction", ["g"]) == []
    assert await control.records("group", []) == []


async def test_only_the_rows_that_are_named_change(control: ControlPlane) -> None:
    first = await save(control, change("g", own=b"0", a=b"1", b=b"2"))
    second = await save(control, change("g", at=first, own=b"9", b=None))
    rows = await control.records("group", ["g"])
    assert [(row.member, row.value, row.version) for row in rows] == [
        ("", b"9", second),
        ("a", b"1", first),
    ]


async def test_a_stale_key_is_refused_alone(control: ControlPlane) -> None:
    version = await save(control, change("g", own=b"0"), change("h", own=b"0", m=b"0"))
    await save(control, change("h", at=version, own=b"0", m=b"1"))
    saved = await control.save_records(
        [
            change("g", at=version, own=b"2"),
            change("h", at=version, own=b"2", m=b"2", n=None),
            change("i", own=b"2"),
            change("j", at=9, own=b"2"),
            change("g2", own=b"2"),
        ]
    )
    assert {key: type(error) for key, error in saved.refused.items()} == {
        ("group", "h"): StaleRecord,
        ("group", "j"): StaleRecord,
    }
    assert saved.refused["group", "h"].code == "not_coordinator"
    assert await stored(control, "g", "g2", "h", "i", "j") == {
        ("g", ""): b"2",
        ("g2", ""): b"2",
        ("h", ""): b"0",
        ("h", "m"): b"1",
        ("i", ""): b"2",
    }


async def test_a_row_that_is_too_large_is_refused_alone(
    control: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordination, "RECORD_BYTES_MAX", 5)
    saved = await control.save_records([change("g", own=b"123456"), change("h", own=b"12345")])
    (refusal,) = saved.refused.values()
    assert isinstance(refusal, TooLarge)
    assert "6 bytes, the limit is 5" in str(refusal)
    assert await control.record_keys("group") == ["h"]


async def test_a_change_names_the_row_of_its_key(control: ControlPlane) -> None:
    with pytest.raises(BugError, match="'g' leaves out the key's own row"):
        await control.save_records([change("g", m=b"0")])
    assert await control.record_keys("group") == []


async def test_a_recreated_key_does_not_get_its_old_versions(control: ControlPlane) -> None:
    first = await save(control, change("g", own=b"0"))
    await save(control, change("g", at=first, own=None))
    assert await save(control, change("g", own=b"0")) != first
    assert (await control.save_records([change("g", at=first, own=b"1")])).refused


async def test_offsets_go_with_their_group(control: ControlPlane) -> None:
    for group in ("g", "h", "simple"):
        await control.commit_offsets(group_id=group, offsets=[OFFSET])
    version = await save(control, change("g", own=b"0"), change("h", own=b"0"))
    assert sorted(await control.groups_with_offsets(["g", "i", "h", "\0"])) == ["g", "h"]
    saved = await control.save_records(
        [
            change("g", at=version, offsets=True, own=None),
            change("h", at=version + 1, offsets=True, own=None),
            change("simple", offsets=True),
            change("\0", offsets=True),
        ]
    )
    assert list(saved.refused) == [("group", "h")]
    assert await control.offset_group_ids() == ["h"]
    assert await control.record_keys("group") == ["h"]


async def test_names_may_hold_anything(control: ControlPlane) -> None:
    await save(control, change("g\0", own=b"0"), change("ü", own=b"1"))
    version = await save(control, change("ü2", own=b"1"))
    rows = {"": b"1", "m\0": b"2"}
    await save(control, RecordChange(kind="group", key="ü2", expected_version=version, rows=rows))
    assert await stored(control, "g\0", "ü", "ü2") == {
        ("g\0", ""): b"0",
        ("ü", ""): b"1",
        ("ü2", ""): b"1",
        ("ü2", "m\0"): b"2",
    }


async def test_saves_race_and_none_is_lost(control: ControlPlane) -> None:
    wins: list[int] = []

    async def saves() -> None:
        version = 0
        for _ in range(5):
            saved = await control.save_records([change("g", at=version, own=b"0")])
            if saved.refused:
                (known,) = await control.records("group", ["g"])
                version = known.version
            else:
                version = saved.version
                wins.append(version)

    await asyncio.gather(*(saves() for _ in range(10)))
    assert len(wins) == len(set(wins))
    (last,) = await control.records("group", ["g"])
    assert last.version in wins


async def test_a_coordinator_of_an_old_epoch_writes_nothing(control: ControlPlane) -> None:
    await control.register_broker(broker_id=1, host="h", port=1, rack=None, incarnation=UUID(int=1))
    old = (await control.image()).cluster_epoch
    version = (await control.save_records([change("g", own=b"0")], cluster_epoch=old)).version
    await control.register_broker(broker_id=2, host="h", port=1, rack=None, incarnation=UUID(int=2))
    new = (await control.image()).cluster_epoch
    with pytest.raises(StaleClusterEpoch) as caught:
        await control.save_records(
            [change("h", own=b"0"), change("g", at=version, own=None)], cluster_epoch=old
        )
    assert (caught.value.expected, caught.value.found) == (old, new)
    assert await control.record_keys("group") == ["g"]
    saved = await control.save_records([change("g", at=version, own=b"1")], cluster_epoch=new)
    assert not saved.refused
