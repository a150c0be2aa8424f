"""Listener addresses as Kafka writes them: `PLAINTEXT://host:port`, IPv6 hosts in brackets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.base.errors import InvalidSetting

_SETTING = "listeners"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """One address; port 0 asks for a free one, an empty host for every interface."""

    name: str
    host: str
    port: int


def parse_listeners(texts: Iterable[str]) -> list[Listener]:
    """Read listener addresses.

    Raises:
        InvalidSetting: no protocol, a protocol that is not served, or no port.
    """
    return [_parse(text) for text in texts]


def _parse(text: str) -> Listener:
    name, separator, address = text.partition("://")
    if not separator:
        raise InvalidSetting(_SETTING, text, "must read PROTOCOL://host:port")
    if name.upper() != "PLAINTEXT":
        raise InvalidSetting(_SETTING, text, "only PLAINTEXT is served")
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdecimal() or int(port) > 65_535:
        raise InvalidSetting(_SETTING, text, "must end in a port from 0 to 65535")
    return Listener(
        name=name.upper(), host=host.removeprefix("[").removesuffix("]"), port=int(port)
    )
