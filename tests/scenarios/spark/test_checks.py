"""The checks find everything that may go wrong, and nothing where all is well."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.scenarios.spark.checks import Row, Written, problems, source_of

SOURCE = {
    (0, 0): ("a", 0, "good"),
    (0, 1): ("a", 1, "bad"),
    (0, 2): ("a", 2, "good"),
    (1, 0): ("b", 3, "park"),
    (1, 1): ("b", -1, "undecodable"),
    (1, 2): ("b", 4, "park"),
}
A0, A2, B0 = (
    Row(place=place, key=SOURCE[place][0], n=SOURCE[place][1]) for place in [(0, 0), (0, 2), (1, 0)]
)
RIGHT = Written(
    source=SOURCE,
    table=(A2, A0, B0),
    upsert=(A2, B0),
    out={0: (A0, A2), 1: (B0,)},
    dead=((0, 1), (1, 1), (1, 2)),
)


def test_nothing_is_wrong() -> None:
    assert problems(RIGHT, final=True) == []
    assert problems(Written(source=SOURCE), final=False) == []


@pytest.mark.parametrize(
    ("wrong", "noticed"),
    [
        (replace(RIGHT, table=(A2, A0, B0, A0)), "table: more than once: 1 ((0, 0))"),
        (replace(RIGHT, out={0: (A0, A0, A2), 1: (B0,)}), "topic: more than once: 1 ((0, 0))"),
        (replace(RIGHT, dead=(*RIGHT.dead, (0, 1))), "dead letters: more than once: 1 ((0, 1))"),
        (replace(RIGHT, out={0: (A2, A0), 1: (B0,)}), "topic: behind a later record of the key"),
        (replace(RIGHT, out={0: (A0,), 1: (A2, B0)}), "topic: key a is in partitions 0 and 1"),
        (replace(RIGHT, dead=(*RIGHT.dead, (0, 0))), "dead letters: of good records: 1 ((0, 0))"),
        (replace(RIGHT, dead=(*RIGHT.dead, (1, 0))), "in the table and dead: 1 ((1, 0))"),
        (replace(RIGHT, dead=(*RIGHT.dead, (1, 0))), "in the topic and dead: 1 ((1, 0))"),
        (
            replace(RIGHT, table=(A2, A0, B0, Row(place=(0, 1), key="a", n=1))),
            "table: not what the source has: 1 ((0, 1))",
        ),
        (
            replace(RIGHT, out={0: (A0, A2), 1: (replace(B0, n=9),)}),
            "topic: not what the source has: 1 ((1, 0))",
        ),
    ],
)
def test_what_can_never_be_is_noticed_at_any_time(wrong: Written, noticed: str) -> None:
    for final in (False, True):
        assert any(found.startswith(noticed) for found in problems(wrong, final=final))


@pytest.mark.parametrize(
    ("wrong", "noticed"),
    [
        (replace(RIGHT, table=(A2, B0)), "table: missing: 1 ((0, 0))"),
        (replace(RIGHT, out={0: (A0,), 1: (B0,)}), "topic: missing: 1 ((0, 2))"),
        (replace(RIGHT, out={0: (A0,), 1: (B0,)}), "topic and table differ: 1 ((0, 2))"),
        (replace(RIGHT, dead=RIGHT.dead[1:]), "dead letters: missing: 1 ((0, 1))"),
        (replace(RIGHT, upsert=(A0, B0)), "upsert table: not the newest: 1 (a)"),
        (replace(RIGHT, upsert=(A2,)), "upsert table: not the newest: 1 (b)"),
    ],
)
def test_what_is_missing_is_noticed_at_the_end(wrong: Written, noticed: str) -> None:
    assert noticed in problems(wrong, final=True)
    assert problems(wrong, final=False) == []


def test_the_source_is_read_from_the_log() -> None:
    records = [
        {"partition": 2, "offset": 7, "key": b"k", "value": b'{"n": 5, "kind": "good"}'},
        {"partition": 2, "offset": 8, "key": b"k", "value": b'{"n": 5, "kind": "good"'},
    ]
    assert source_of(records) == {(2, 7): ("k", 5, "good"), (2, 8): ("k", -1, "undecodable")}
