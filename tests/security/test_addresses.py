"""Limits per address."""

from __future__ import annotations

import pytest

from penstock.security.addresses import (
    ADDRESSES_MAX,
    WAIT_SECONDS_MAX,
    WINDOW_SECONDS,
    AddressBounds,
    AddressLimits,
    counted,
)


def limits(**changes: int) -> AddressLimits:
    bounds = {
        "waiting": 4, "waiting_per_address": 2, "failures_per_address": 3,
        "handshakes": 100, "handshakes_per_address": 10, **changes,
    }  # fmt: skip
    return AddressLimits(AddressBounds(**bounds))


def test_connections_in_all_and_by_address() -> None:
    counts = limits()
    for address in ("a", "a", "b"):
        assert counts.refusal(address, 0) is None
        counts.entered(address)
    assert counts.refusal("a", 0) == "max.unauthenticated.connections.per.ip"
    counts.entered("b")
    assert counts.refusal("c", 0) == "max.unauthenticated.connections"
    for address in ("a", "a", "b", "b"):
        counts.left(address)
    assert counts.refusal("a", 0) is None
    assert counts.waiting == 0
    assert not counts._waiting


def test_failures_within_a_minute() -> None:
    counts = limits()
    for now in (0, 10, 20):
        assert counts.refusal("a", now) is None
        counts.failed("a", now)
    assert counts.refusal("a", 20) == "max.failed.authentications.per.ip"
    assert counts.refusal("b", 20) is None
    assert counts.refusal("a", WINDOW_SECONDS) is None
    counts.failed("a", WINDOW_SECONDS + 1)
    assert counts.refusal("a", WINDOW_SECONDS + 1) is None


def test_handshakes_wait_their_turn() -> None:
    counts = limits()
    delays = [counts.handshake_delay("a", 100.0) for _ in range(60)]
    assert delays[:11] == [0.0] * 11
    assert all(delay is None or delay <= WAIT_SECONDS_MAX for delay in delays)
    assert delays[-1] is None
    assert counts.handshake_delay("b", 100.0) == 0
    assert counts.handshake_delay("a", 110.0) == 0


def test_handshakes_of_all_addresses_begin_one_after_the_other() -> None:
    counts = limits()
    delays = [counts.turn_delay(50.0) for _ in range(400)]
    assert delays[:3] == pytest.approx([0.0, 0.01, 0.02])
    assert max(delay for delay in delays if delay is not None) <= WAIT_SECONDS_MAX
    assert delays[-1] is None
    assert counts.turn_delay(52.0) == pytest.approx(1.01)
    assert counts.turn_delay(60.0) == 0


def test_addresses_are_forgotten_at_a_bound() -> None:
    counts = limits()
    for number in range(ADDRESSES_MAX + 10):
        counts.failed(str(number), 0)
        counts.handshake_delay(str(number), 0)
    assert len(counts._failures) == len(counts._turns) == ADDRESSES_MAX


@pytest.mark.parametrize(
    ("address", "known"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::6", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("", ""),
    ],
)
def test_what_an_address_is_counted_as(address: str, known: str) -> None:
    assert counted(address) == known


def test_a_network_of_ipv6_counts_once() -> None:
    counts = limits()
    one, two, three = "2001:db8::1", "2001:db8::2", "2001:db8::abcd:0:0:3"
    elsewhere = "2001:db8:0:1::1"
    counts.entered(one)
    counts.entered(two)
    assert counts.refusal(three, 0) == "max.unauthenticated.connections.per.ip"
    assert counts.refusal(elsewhere, 0) is None
    counts.left(two)
    counts.left(one)
    assert not counts._waiting
    for address in (one, two, three):
        counts.failed(address, 0)
    assert counts.refusal("2001:db8::4", 0) == "max.failed.authentications.per.ip"
    assert counts.refusal(elsewhere, 0) is None
    delays = [counts.handshake_delay(f"2001:db8::{number}", 100.0) for number in range(60)]
    assert delays[0] == 0
    assert delays[-1] is None
