"""Warnings are limited to a line per address, kind and minute, in bounded memory."""

from __future__ import annotations

from penstock.broker.net.connection import WARNED_ADDRESSES_MAX, WARNING_SECONDS, AddressWarnings


def test_the_first_is_due_and_the_next_says_how_many_were_not() -> None:
    warnings = AddressWarnings()
    assert warnings.left_out("a", "tls", 5.0) == 0
    for second in range(40):
        assert warnings.left_out("a", "tls", 6.0 + second) is None
    assert warnings.left_out("a", "tls", 5.0 + WARNING_SECONDS) == 40
    assert warnings.left_out("a", "tls", 6.0 + WARNING_SECONDS) is None
    assert warnings.left_out("a", "tls", 5.0 + 2 * WARNING_SECONDS) == 1


def test_warnings_are_limited_per_address_and_kind() -> None:
    warnings = AddressWarnings()
    for host, kind in (("a", "tls"), ("b", "tls"), ("a", "length")):
        assert warnings.left_out(host, kind, 0.0) == 0
        assert warnings.left_out(host, kind, 0.0) is None


def test_the_address_of_the_oldest_warning_is_forgotten_first() -> None:
    warnings = AddressWarnings()
    for number in range(WARNED_ADDRESSES_MAX):
        assert warnings.left_out(str(number), "tls", 0.0) == 0
    assert warnings.left_out("one more", "tls", 0.0) == 0
    assert warnings.left_out("1", "tls", 0.0) is None
    assert warnings.left_out("0", "tls", 0.0) == 0
