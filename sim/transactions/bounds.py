"""How much is explored."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What may happen, and how often.

    `version` is that of transactions; `clients` begin with the same id, each at any time;
    `transactions` is how many one client ends. `group`: offsets of a group belong to transactions.
    `crashes` of the coordinator, `failures` of saves (known or in doubt), `ticks` of its deadlines.
    `returns`: a client may begin anew as whom it was (KIP-360).
    `epoch`: the first client's, so that producer ids run out of epochs.
    """

    version: int = 2
    clients: int = 1
    transactions: int = 1
    partitions: int = 1
    group: bool = False
    crashes: int = 0
    failures: int = 0
    ticks: int = 0
    returns: bool = False
    epoch: int = 0


QUICK = (
    Bounds(partitions=2, crashes=1),
    Bounds(transactions=2, crashes=1),
    Bounds(version=1, transactions=2, crashes=1),
    Bounds(clients=2),
    Bounds(group=True, crashes=1, failures=1),
    Bounds(transactions=2, epoch=32_766, crashes=1),
    Bounds(returns=True, ticks=2),
    Bounds(returns=True, ticks=2, epoch=32_766),
    Bounds(clients=2, group=True),
)
FULL = (
    *QUICK,
    Bounds(returns=True, ticks=2, crashes=1),
    Bounds(clients=2, crashes=1),
    Bounds(version=1, clients=2, crashes=1),
    Bounds(clients=2, failures=1, ticks=1),
    Bounds(partitions=2, transactions=2, crashes=1),
    Bounds(version=1, partitions=2, transactions=2, crashes=1),
    Bounds(clients=2, partitions=2, crashes=1, failures=1),
    Bounds(version=1, clients=2, partitions=2, crashes=1, failures=1),
    Bounds(clients=2, transactions=2, crashes=1, ticks=1),
    Bounds(transactions=2, partitions=2, group=True, crashes=2, failures=1),
    Bounds(clients=2, group=True, crashes=1, failures=1, ticks=2),
    Bounds(clients=2, epoch=32_766, returns=True, crashes=1, ticks=1),
)
