"""The chain of epochs, and where a log's own history parts from it.

A chain has a link (epoch, start offset) for every epoch that was opened, both in rising order; an
epoch ends where the next one starts, and the last one is open. An epoch in which nothing was
written starts where the next one does. The chain that the control plane holds only grows, so any
two that were read from it have the same beginning.

A log's *history* has the same form: a link for every run of batches of one epoch, empty ones left
out. Before a replica takes anything of an epoch it looks where its history parts from the chain,
and cuts its log there: what lies above was written by a leader whose epoch was sealed below it.

A run may begin later than its link, and links may have no run: the log begins within the epoch, or
what lay in between was compacted away, here or where it came from. A replica that took anything of
an epoch had cut its log by the same chain before, so nothing else lies in between.

Source: KIP-101 and KIP-279 (leader epochs in place of the high watermark).
"""

from __future__ import annotations

from typing import NamedTuple


class Link(NamedTuple):
    """An epoch, and the first offset that belongs to it."""

    epoch: int
    start: int


Chain = tuple[Link, ...]


def parts_at(history: Chain, end: int, chain: Chain) -> int:
    """The offset below which a log that ends at `end` is as the chain says; `end` if all of it is.

    Looks back to the newest run whose epoch the chain has.
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
    """The history of a log that holds [base, end) as the chain says."""
    runs = []
    for place, (epoch, start) in enumerate(chain):
        stop = chain[place + 1].start if place + 1 < len(chain) else end
        first = max(base, start)
        if first < min(stop, end):
            runs.append(Link(epoch, first))
    return tuple(runs)


def cut_history(history: Chain, end: int) -> Chain:
    """The history of a log after everything from `end` on was cut off."""
    return tuple(link for link in history if link.start < end)


def history_from(history: Chain, base: int, end: int) -> Chain:
    """The history of a log that ends at `end`, after everything below `base` was deleted."""
    stops = [*[link.start for link in history[1:]], end]
    runs = zip(history, stops, strict=True) if history else ()
    return tuple([Link(epoch, max(start, base)) for (epoch, start), stop in runs if stop > base])


def end_within(history: Chain, epoch: int, end: int) -> int:
    """Where a log that ends at `end` ends within an epoch; 0 if it has nothing of it."""
    for place in range(len(history) - 1, -1, -1):
        if history[place].epoch == epoch:
            return end if end > history[place].start else 0
        end = min(end, history[place].start)
    return 0
