"""The choosing core: which runs become segments, and in what order a pass goes about it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from uuid import UUID

import pytest

from penstock.base.errors import BugError
from penstock.control.values.diskless import PartitionKey
from penstock.diskless.consolidation import PAGE_EXTENTS, Choice, Page, Rules, Selection, choose
from penstock.diskless.settings import RUN_EXTENTS_MAX
from penstock.records.extents import Extent

NOW_MS = 1_000_000
RULES = Rules(segment_bytes=1_000, min_extents=3, min_age_ms=500)
KEYS: list[PartitionKey] = [(UUID(int=7), number) for number in range(4)]


def extents(text: str, *, size_bytes: int = 100, start: int = 0) -> list[Extent]:
    """Return an extent of two offsets per letter.

    w and s are old, W and S young, - and f have no time or one in the future; s and S are segments.
    """
    ages = {"w": NOW_MS - 500, "s": NOW_MS - 900, "W": NOW_MS - 499, "S": NOW_MS, "-": -1}
    return [
        Extent(
            number, f"o{number}", "segment" if letter in "sS" else "wal", 32, size_bytes,
            start + 2 * number, start + 2 * number + 2, ages.get(letter, NOW_MS + 10**6), -1, b"",
        )
        for number, letter in enumerate(text)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("", ""),
        ("ss", ""),
        ("ww", ""),  # open, and too few
        ("www", "www"),
        ("ssww", ""),
        ("sswwww", "..wwww"),
        ("wwwW", "www"),
        ("wwW", ""),
        ("WWWW", ""),
        ("Www", "Www"),  # before an old one, so old itself
        ("Ww", ""),
        ("-w-w", "-w-w"),
        ("www--", "www"),
        ("f", ""),
        ("ffff", ""),
        ("ffwf", "ffw"),
        ("ws", "w"),  # closed
        ("swwsw", ".ww"),
        ("Ws", "W"),  # what follows is old
        ("WS", ""),
        ("wWS", ""),
        ("wwwwwwwwww", "wwwwwwwwww"),
        ("wwwwwwwwwww", "wwwwwwwwww"),  # full
        ("wwwwwwwwwWw", "wwwwwwwwwW"),
        ("wwwwwwwwWWW", ""),  # full, when it is old
        ("wwwwwwwwwW", ""),
    ],
)
def test_which_run_of_a_page_is_taken(text: str, taken: str) -> None:
    page = extents(text)
    choice = choose(page, rules=RULES, now_ms=NOW_MS, last=True)
    first = len(taken) - len(taken.lstrip("."))
    assert choice.run == tuple(page[first : len(taken)])
    if taken:
        assert choice.following == choice.done_before == page[len(taken) - 1].next_offset
    else:
        assert choice.following is None
        wal = [extent.base_offset for extent in page if extent.kind == "wal"]
        assert choice.done_before == (wal[0] if wal else 2 * len(text))


def test_every_age_and_number_is_taken_on_demand() -> None:
    rules = Rules(segment_bytes=1_000, min_extents=3, min_age_ms=None)
    for text, taken in (("W", 1), ("ff", 2), ("wW-", 3), ("W" * 12, 10), ("WS", 1)):
        page = extents(text)
        assert choose(page, rules=rules, now_ms=NOW_MS, last=True).run == tuple(page[:taken])


def test_a_large_extent_is_a_segment_of_its_own() -> None:
    page = extents("wwww", size_bytes=1_000)
    assert choose(page, rules=RULES, now_ms=NOW_MS, last=True).run == tuple(page[:1])
    page = extents("wwww", size_bytes=5_000)
    assert choose(page, rules=RULES, now_ms=NOW_MS, last=True).run == tuple(page[:1])
    page = extents("wwww", size_bytes=501)
    assert choose(page, rules=RULES, now_ms=NOW_MS, last=True).run == tuple(page[:1])


def test_gaps_close_a_run() -> None:
    page = [*extents("ww"), *extents("ww", start=100)]
    assert choose(page, rules=RULES, now_ms=NOW_MS, last=True).run == tuple(page[:2])


def test_a_run_that_a_page_cuts_is_asked_for_whole() -> None:
    page = extents("ssww")
    assert choose(page, rules=RULES, now_ms=NOW_MS, last=False) == Choice((), 4, 4)
    assert choose(extents("ss"), rules=RULES, now_ms=NOW_MS, last=False) == Choice((), 4, 4)
    full = extents("w" * PAGE_EXTENTS, size_bytes=0)
    assert len(choose(full, rules=RULES, now_ms=NOW_MS, last=False).run) == RUN_EXTENTS_MAX
    with pytest.raises(BugError):
        choose(extents("ww"), rules=RULES, now_ms=NOW_MS, last=False)


class Log:
    """Partitions whose extents a pass replaces by segments, as the plane would."""

    def __init__(self, rules: Rules = RULES) -> None:
        self.selection = Selection(rules)
        self.partitions: dict[PartitionKey, list[Extent]] = {}
        self.asked: list[Page] = []
        self.made: list[tuple[PartitionKey, int, int]] = []

    def swap(self, key: PartitionKey, run: Sequence[Extent]) -> None:
        there = self.partitions[key]
        place = there.index(run[0])
        assert there[place : place + len(run)] == list(run)
        sealed = run[0]._replace(
            kind="segment",
            next_offset=run[-1].next_offset,
            size_bytes=sum(extent.size_bytes for extent in run),
        )
        there[place : place + len(run)] = [sealed]
        self.made.append((key, run[0].base_offset, run[-1].next_offset))

    def run(self, outcomes: Sequence[str] = (), order: Sequence[int] = (0, 1, 2, 3)) -> None:
        """Run a pass; its runs have these outcomes, then become segments."""
        left = list(outcomes)
        selection = self.selection
        ask = selection.begin(self.partitions, order=lambda key: order[key[1]])
        while ask is not None:
            self.asked.append(ask)
            there = [
                partition
                for partition in self.partitions[ask.key]
                if partition.next_offset > ask.start
            ]
            choice = selection.page(there[: ask.limit], NOW_MS)
            if choice is not None:
                outcome = left.pop(0) if left else "done"
                if outcome == "done":
                    self.swap(ask.key, choice.run)
                getattr(selection, outcome)()
            ask = selection.ask()


def test_a_pass_goes_through_the_partitions_in_its_order() -> None:
    log = Log()
    log.partitions = {key: extents("wwww") for key in KEYS}
    log.run(order=(2, 0, 3, 1))
    assert [key[1] for key, _, _ in log.made] == [1, 3, 0, 2]
    assert all(made[1:] == (0, 8) for made in log.made)
    log.made.clear()
    log.run()
    assert log.made == []
    assert log.selection.ask() is None


def test_a_pass_begins_where_the_last_one_ended() -> None:
    log = Log()
    log.partitions = {KEYS[0]: extents("w" * 25 + "W")}
    log.run()
    assert [made[1:] for made in log.made] == [(0, 20), (20, 40), (40, 50)]
    log.asked.clear()
    log.partitions[KEYS[0]] += extents("wwww", start=52)
    log.run()
    assert log.asked[0].start == 50
    assert [made[1:] for made in log.made][3:] == [(50, 60)]
    assert {partition.kind for partition in log.partitions[KEYS[0]]} == {"segment"}


def test_failed_runs_are_retried_and_later_runs_continue() -> None:
    log = Log()
    log.partitions = {KEYS[0]: extents("w" * 25), KEYS[1]: extents("www")}
    log.run(["done", "failed"])
    assert [made[1:] for made in log.made] == [(0, 20), (40, 50), (0, 6)]
    log.asked.clear()
    log.run()
    assert log.asked[0] == Page(KEYS[0], 20, PAGE_EXTENTS)
    assert log.made[3] == (KEYS[0], 20, 40)


def test_a_lost_race_leaves_the_partition_to_the_others() -> None:
    log = Log()
    log.partitions = {KEYS[0]: extents("w" * 25), KEYS[1]: extents("www")}
    log.run(["lost"])
    assert log.made == [(KEYS[1], 0, 6)]
    log.run()
    assert [made[1:] for made in log.made[1:]] == [(0, 20), (20, 40), (40, 50)]


def test_outcomes_belong_to_a_run_and_a_pass_that_broke_off_is_forgotten() -> None:
    log = Log()
    for outcome in (log.selection.done, log.selection.failed, log.selection.lost):
        with pytest.raises(BugError):
            outcome()
    log.partitions = {KEYS[0]: extents("www")}
    assert log.selection.begin(KEYS[:1], order=lambda key: 0) is not None
    assert log.selection.page(log.partitions[KEYS[0]], NOW_MS) is not None
    log.run()
    assert log.made == [(KEYS[0], 0, 6)]


def test_any_log_is_consolidated_without_loss() -> None:
    """Random logs and outcomes: runs are bounded, adjoin, and in the end all that may be, is."""
    for seed in range(150):
        dice = random.Random(seed)
        log = Log()
        for key in KEYS[: dice.randint(1, 4)]:
            text = "".join(dice.choice("wwwwwwsW-f") for _ in range(dice.randint(0, 60)))
            log.partitions[key] = extents(text, size_bytes=dice.choice((1, 90, 400, 1_500)))
        before = {key: list(there) for key, there in log.partitions.items()}
        log.run([dice.choice(("done", "failed", "lost")) for _ in range(dice.randint(0, 8))])
        for _ in range(2):
            log.run()
        count = len(log.made)
        log.run()
        assert len(log.made) == count, seed
        for key, there in log.partitions.items():
            assert all(extent.next_offset == other.base_offset for extent, other in pairwise(there))
            assert [*there[:1], *there[-1:]] == [] or (
                there[0].base_offset == 0 and there[-1].next_offset == before[key][-1].next_offset
            )
            sizes = [sum(extent.size_bytes for extent in many) for many in (there, before[key])]
            assert sizes[0] == sizes[1]
        for key, base_offset, next_offset in log.made:
            parts = [
                extent for extent in before[key] if base_offset <= extent.base_offset < next_offset
            ]
            assert all(part.kind == "wal" for part in parts)
            assert len(parts) == 1 or sum(part.size_bytes for part in parts) <= 1_000
