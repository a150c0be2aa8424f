"""Credit out of one total: never too much, never nothing, and more when others leave."""

from __future__ import annotations

import random

import pytest

from penstock.base.errors import BugError
from penstock.host.credits import Credit
from penstock.host.server.connections import STEP_BYTES_MIN, CreditBudget

MIB = 1 << 20
WHOLE = Credit(65_536, 1 << 24, 16 * MIB)


FLOOR = 8 * MIB


def budget(
    total_bytes: int = 512 * MIB, connections_max: int = 1024, floor_bytes: int = FLOOR
) -> CreditBudget:
    return CreditBudget(
        whole=WHOLE,
        total_bytes=total_bytes,
        connections_max=connections_max,
        floor_bytes=floor_bytes,
    )


def test_a_lone_connection_gets_the_whole() -> None:
    assert budget().open("a") == WHOLE


def test_even_the_last_one_can_send_a_frame() -> None:
    shared = budget()
    grants = [shared.open(number) for number in range(1024)]
    assert grants[0] == WHOLE
    assert min(grants) == grants[-1] == shared.floor == Credit(32_768, 1 << 23, FLOOR)
    beyond = sum(grant.payload_bytes - FLOOR for grant in grants)
    assert 64 * MIB < beyond <= 256 * MIB
    with pytest.raises(BugError, match="1024 of at most 1024"):
        shared.open("one more")


def test_a_key_has_one_grant() -> None:
    shared = budget()
    shared.open("a")
    with pytest.raises(BugError):
        shared.open("a")
    shared.close("a")
    shared.close("a")
    assert shared.granted_bytes == 0
    assert shared.open("a") == WHOLE


def test_what_others_leave_is_spread() -> None:
    shared = budget()
    for number in range(1024):
        shared.open(number)
    assert shared.top_up() == []
    for number in range(1022):
        shared.close(number)
    grants = dict(shared.top_up())
    assert set(grants) == {1022, 1023}
    for more in grants.values():
        assert Credit(*(a + b for a, b in zip(more, shared.floor, strict=True))) == WHOLE
    assert shared.top_up() == []
    assert shared.granted_bytes == 2 * WHOLE.payload_bytes


@pytest.mark.parametrize("floor_bytes", [0, 1, 30, 100, 1000])
def test_small_totals(floor_bytes: int) -> None:
    whole = Credit(10, 10, 100)
    shared = CreditBudget(whole=whole, total_bytes=100, connections_max=3, floor_bytes=floor_bytes)
    grants = [shared.open(number) for number in range(3)]
    assert all(min(grant) > 0 and grant <= whole for grant in grants)
    assert all(grant.payload_bytes >= min(floor_bytes, 100) for grant in grants)


@pytest.mark.parametrize("seed", range(50))
def test_any_coming_and_going(seed: int) -> None:
    dice = random.Random(seed)
    floor_bytes = dice.choice((256 << 10, 1 * MIB, 8 * MIB))
    shared = budget(dice.choice((8, 64, 512)) * MIB, 40, floor_bytes)
    held: dict[int, Credit] = {}
    for number in range(400):
        if held and (len(held) == 40 or dice.random() < 0.45):
            shared.close(gone := dice.choice(list(held)))
            del held[gone]
        else:
            held[number] = shared.open(number)
        if dice.random() < 0.2:
            for key, more in shared.top_up():
                assert isinstance(key, int)
                assert min(more) >= 0
                grown = Credit(*(a + b for a, b in zip(held[key], more, strict=True)))
                assert more.payload_bytes >= STEP_BYTES_MIN or grown == WHOLE
                held[key] = grown
        assert shared.granted_bytes == sum(grant.payload_bytes for grant in held.values())
        beyond = shared.granted_bytes - floor_bytes * len(held)
        assert 0 <= beyond <= shared.total_bytes
        assert all(grant <= WHOLE for grant in held.values())
        assert all(grant.payload_bytes >= floor_bytes for grant in held.values())
