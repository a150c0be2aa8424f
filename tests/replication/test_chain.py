"""Divergence of a log's history from a chain, against a log spelled out offset by offset."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.replication.chain import Chain, Link, cut_history, end_within, history_of, parts_at


def links(*pairs: tuple[int, int]) -> Chain:
    return tuple(Link(*pair) for pair in pairs)


@pytest.mark.parametrize(
    ("history", "end", "chain", "expected"),
    [
        (links(), 0, links((1, 0)), 0),
        (links((1, 0)), 7, links((1, 0)), 7),
        (links((1, 0)), 7, links((1, 0), (2, 5)), 5),
        (links((1, 0)), 7, links((1, 0), (2, 9)), 7),
        # The newest start lies above where the chains part: epoch 2 began below what 1 has here.
        (links((1, 0)), 7, links((1, 0), (2, 3), (4, 6)), 3),
        # Epoch 2 was opened, but nothing was written in it.
        (links((1, 0)), 7, links((1, 0), (2, 3), (4, 3)), 3),
        (links((1, 0), (2, 3)), 7, links((1, 0), (2, 3), (4, 5)), 5),
        # An epoch that the chain does not know, as after a database that was set back.
        (links((1, 0), (3, 4)), 9, links((1, 0), (2, 6)), 4),
        (links((3, 0)), 9, links((1, 0)), 0),
        # The log begins within an epoch: backfill or retention took what lies below.
        (links((2, 50)), 70, links((1, 0), (2, 30)), 70),
        (links((2, 50)), 70, links((1, 0), (2, 30), (5, 60)), 60),
        (links(), 50, links((1, 0), (2, 50)), 50),
    ],
)
def test_where_histories_part(history: Chain, end: int, chain: Chain, expected: int) -> None:
    assert parts_at(history, end, chain) == expected


chains = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3)), min_size=1, max_size=6).map(
    lambda steps: tuple(
        Link(sum(s[0] for s in steps[: i + 1]), sum(s[1] for s in steps[1 : i + 1]))
        for i in range(len(steps))
    )
)


def epochs_of(chain: Chain, base: int, end: int) -> list[int]:
    """The epoch of each offset in [base, end)."""
    return [
        next(link.epoch for link in reversed(chain) if link.start <= offset)
        for offset in range(base, end)
    ]


@given(chains, st.integers(1, 6), st.integers(0, 24))
def test_a_log_parts_where_epochs_differ(chain: Chain, known: int, end: int) -> None:
    """A log that was written by a beginning of the chain, and beyond where its last epoch ended."""
    history = history_of(chain[:known], 0, end)
    mine, theirs = epochs_of(chain[:known], 0, end), epochs_of(chain, 0, end)
    same = next((i for i in range(end) if mine[i] != theirs[i]), end)
    assert parts_at(history, end, chain) == same
    assert cut_history(history, same) == history_of(chain, 0, same)


@given(chains, st.integers(0, 20), st.integers(0, 24))
def test_a_history_names_the_epoch_of_every_offset(chain: Chain, base: int, end: int) -> None:
    history = history_of(chain, base, end)
    epochs = epochs_of(chain, base, end)
    if base < end:
        assert history[0].start == base
        assert epochs_of(history, base, end) == epochs
    else:
        assert not history
    for epoch in {link.epoch for link in chain}:
        of_epoch = [base + place for place, found in enumerate(epochs) if found == epoch]
        assert end_within(history, epoch, end) == (of_epoch[-1] + 1 if of_epoch else 0)


@given(chains, st.integers(1, 6), st.integers(0, 24), st.sets(st.integers(0, 23)))
def test_a_compacted_log_parts_where_it_did_before(
    chain: Chain, known: int, end: int, gone: set[int]
) -> None:
    """Compare a log and a chain that lost records or whole epochs; the newest record stays."""
    mine, theirs = epochs_of(chain[:known], 0, end), epochs_of(chain, 0, end)
    same = next((i for i in range(end) if mine[i] != theirs[i]), end)
    left = [at for at in range(end) if at == end - 1 or at >= same or at not in gone]
    history = tuple(
        Link(mine[at], at)
        for place, at in enumerate(left)
        if not place or mine[at] != mine[left[place - 1]]
    )
    assert parts_at(history, end, chain) == same
