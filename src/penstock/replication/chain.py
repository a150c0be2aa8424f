"""Chain of leader epochs, and the point at which a log diverges from it.

A chain has a link (epoch, start offset) for every epoch that was opened, in rising order. An epoch
ends where the next one starts; the last one is open. An epoch without records starts where the next
one does. The chain in the control plane only grows, so any two copies of it share their beginning.

A log's *history* has the same form: a link for each run of batches of one epoch. Before a replica
accepts records of an epoch, it finds where its history diverges from the chain and truncates there.
The records above were written by a leader whose epoch was sealed below them.

A run may begin above the start of its link, and a link may have no run, because the log begins
within the epoch or compaction removed the records. Neither is a divergence: such a replica has
truncated its log by the same chain before.

Source: KIP-101 and KIP-279 (leader epochs in place of the high watermark).
"""

from __future__ import annotations

from typing import NamedTuple


class Link(NamedTuple):
    """Epoch, and the first offset that belongs to it."""

    epoch: int
    start: int


Chain = tuple[Link, ...]


def parts_at(history: Chain, end: int, chain: Chain) -> int:
    """Return the offset below which a log agrees with the chain; `end`, its end, if all of it does.

    The newest run whose epoch is in the chain determines the offset.
    """
    after = len(chain)
    for place in range(len(history) - 1, -1, -1):
        epoch, start = history[place]
        while after and chain[after - 1].epoch > epoch:
            after -= 1
        if after and chain[after - 1].epoch == epoch and chain[after - 1].start <= start:
            return min(end, chain[after].start) if after < len(chain) else end
        end = start
    return end


def history_of(chain: Chain, base: int, end: int) -> Chain:
    """Return the history of a log that holds [base, end) and agrees with the chain."""
    runs = []
    for place, (epoch, start) in enumerate(chain):
        stop = chain[place + 1].start if place + 1 < len(chain) else end
        first = max(base, start)
        if first < min(stop, end):
            runs.append(Link(epoch, first))
    return tuple(runs)


def cut_history(history: Chain, end: int) -> Chain:
    """Return the history of a log after its truncation to `end`."""
    return tuple(link for link in history if link.start < end)


def history_from(history: Chain, base: int, end: int) -> Chain:
    """Return the history of a log that ends at `end`, after deletion of offsets below `base`."""
    stops = [*[link.start for link in history[1:]], end]
    runs = zip(history, stops, strict=True) if history else ()
    return tuple([Link(epoch, max(start, base)) for (epoch, start), stop in runs if stop > base])


def end_within(history: Chain, epoch: int, end: int) -> int:
    """Return the end of an epoch in a log that ends at `end`; 0 if the log has nothing of it."""
    for place in range(len(history) - 1, -1, -1):
        if history[place].epoch == epoch:
            return end if end > history[place].start else 0
        end = min(end, history[place].start)
    return 0
