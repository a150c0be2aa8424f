"""The agent's settings, and the rules between them."""

from __future__ import annotations

import pytest

from penstock.base.errors import InvalidSetting
from penstock.base.settings import describe, load
from penstock.host.server.settings import HostSettings, SinkSettings


def test_defaults_are_valid() -> None:
    settings = HostSettings()
    assert settings.socket_permissions == 0o660
    assert settings.directory_permissions == 0o770
    assert settings.credit == (65_536, 1 << 24, 16 << 20)
    for kind in (HostSettings, SinkSettings):
        values = {info.name: info.default for info in describe(kind)}
        assert load(kind, values) == kind()


@pytest.mark.parametrize("text", ["0660", "660", "0o660"])
def test_modes_are_octal(text: str) -> None:
    assert load(HostSettings, {"host.socket.mode": text}).socket_permissions == 0o660


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("host.socket.mode", "888", "octal"),
        ("host.socket.mode", "rw-rw----", "octal"),
        ("host.socket.directory.mode", "07777", "octal"),
        ("host.ping.interval.ms", "30000", "below host.idle.timeout.ms"),
        ("host.idle.timeout.ms", "5000", "host.ping.interval.ms is 10000, which must be below"),
        ("host.credit.bytes", str(1 << 40), "at most host.credit.total.bytes"),
        ("host.credit.total.bytes", "65536", "host.credit.bytes is 16777216, which must be at mos"),
        ("host.credit.chunks", "100", "at least 4096"),
        ("host.sink", "kafka", "one of null, memory, outbox, log"),
        ("host.connections.max", "0", "at least 1"),
    ],
)
def test_what_is_not_allowed(name: str, value: str, rule: str) -> None:
    with pytest.raises(InvalidSetting, match=rule) as caught:
        load(HostSettings, {name: value})
    assert caught.value.name == name
    assert str(caught.value).startswith(f"setting {name} = ")


def test_a_rule_between_two_settings_that_were_both_given() -> None:
    with pytest.raises(InvalidSetting) as caught:
        load(HostSettings, {"host.credit.total.bytes": 65_536, "host.credit.bytes": 65_537})
    assert caught.value.name == "host.credit.bytes"
