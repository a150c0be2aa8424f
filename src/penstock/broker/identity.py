"""Who this broker is to its clients."""

from __future__ import annotations


class Identity:
    """The broker's id, and the address that clients are told; it is known once it listens."""

    __slots__ = ("advertised", "node_id")

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.advertised: tuple[str, int] = ("", 0)
