"""Rows of the schema registry, in every form of the control plane."""

from __future__ import annotations

import asyncio

import pytest

from penstock.control import ControlPlane
from penstock.control.operations import registry
from penstock.control.values.errors import TooLarge
from penstock.control.values.registry import RegistryRow, StaleRegistry


def row(key: str, value: bytes | None = b"{}", kind: str = "schema") -> RegistryRow:
    return RegistryRow(kind, key, value)


async def all_rows(control: ControlPlane, version: int = 0) -> tuple[int, list[RegistryRow]]:
    found: list[RegistryRow] = []
    after = None
    while True:
        page = await control.registry_rows(version, after)
        found += [stored for _, stored in page.rows]
        if not page.more:
            return page.version, found
        version, last = page.rows[-1]
        after = (last.kind, last.key)


async def test_written_rows_are_read_in_the_order_of_their_changes(control: ControlPlane) -> None:
    assert await control.registry_version() == 0
    assert await all_rows(control) == (0, [])
    assert await control.write_registry_rows([row("b"), row("ü")], expected=0) == 1
    assert await control.write_registry_rows([row("a", b"\x00\xff")], expected=1) == 2
    assert await control.registry_version() == 2
    assert await all_rows(control) == (2, [row("b"), row("ü"), row("a", b"\x00\xff")])
    assert await all_rows(control, 1) == (2, [row("a", b"\x00\xff")])


async def test_a_deleted_row_is_read_as_a_change(control: ControlPlane) -> None:
    await control.write_registry_rows([row("a"), row("b")], expected=0)
    await control.write_registry_rows([row("a", None)], expected=1)
    assert await all_rows(control, 1) == (2, [row("a", None)])
    assert await all_rows(control) == (2, [row("b"), row("a", None)])


async def test_a_write_at_another_version_changes_nothing(control: ControlPlane) -> None:
    await control.write_registry_rows([row("a")], expected=0)
    with pytest.raises(StaleRegistry, match="at version 1, but the change expected 0"):
        await control.write_registry_rows([row("b")], expected=0)
    assert await all_rows(control) == (1, [row("a")])


async def test_one_of_concurrent_writes_at_one_version_succeeds(control: ControlPlane) -> None:
    results = await asyncio.gather(
        *[control.write_registry_rows([row(str(writer))], expected=0) for writer in range(8)],
        return_exceptions=True,
    )
    assert sorted(type(result).__name__ for result in results) == ["StaleRegistry"] * 7 + ["int"]
    assert (await all_rows(control))[1] == [row(str(results.index(1)))]


async def test_many_rows_are_read_in_pages(
    control: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "REGISTRY_ROWS_PER_READ", 3)
    await control.write_registry_rows([row(f"{n}", kind="version") for n in range(7)], expected=0)
    await control.write_registry_rows([row("0", b"new", kind="version")], expected=1)
    version, found = await all_rows(control)
    assert version == 2
    assert [stored.key for stored in found] == ["1", "2", "3", "4", "5", "6", "0"]


async def test_too_many_rows_are_rejected(
    control: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "REGISTRY_ROWS_PER_WRITE_MAX", 2)
    with pytest.raises(TooLarge, match="3 registry rows exceeds the limit of 2"):
        await control.write_registry_rows([row("a"), row("b"), row("c")], expected=0)
    assert await control.registry_version() == 0
