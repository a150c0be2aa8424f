"""Positions as JSON: one text for one position."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.ids import TopicPartition
from penstock.spark.errors import InvalidOption
from penstock.spark.reads.positions import Position, Positions, from_json

PLACES = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from(["a", "b", "c.d"]), st.integers(0, 120)),
    st.builds(Position, offset=st.integers(0, 2**62), leader_epoch=st.integers(-1, 2**31 - 1)),
    min_size=1,
)


def positions(places: dict[TopicPartition, Position], group: str | None = None) -> Positions:
    ids = {at.topic: f"id-{at.topic}" for at in places}
    return Positions(topic_ids=ids, partitions=places, bootstrap="h:1", group_id=group)


@given(PLACES, st.one_of(st.none(), st.just("g")))
def test_round_trip(places: dict[TopicPartition, Position], group: str | None) -> None:
    before = positions(places, group)
    assert from_json(json.loads(json.dumps(before.to_json()))) == before


@given(PLACES, st.integers())
def test_one_text_whatever_the_order(places: dict[TopicPartition, Position], seed: int) -> None:
    items = list(places.items())
    random.Random(seed).shuffle(items)
    assert json.dumps(positions(dict(items)).to_json()) == json.dumps(positions(places).to_json())


def test_partitions_are_in_numeric_order() -> None:
    place = Position(offset=1, leader_epoch=0)
    body = positions({TopicPartition("a", number): place for number in (10, 9, 2)}).to_json()
    assert list(body["topics"]["a"]["partitions"]) == ["2", "9", "10"]


def test_epochs_do_not_make_a_new_position() -> None:
    at = TopicPartition("a", 0)
    old = positions({at: Position(offset=5, leader_epoch=1)})
    assert old.same_offsets(positions({at: Position(offset=5, leader_epoch=2)}))
    assert not old.same_offsets(positions({at: Position(offset=6, leader_epoch=1)}))


@pytest.mark.parametrize("body", [{}, {"topics": 1}, {"topics": {"a": {}}}, {"t": {"0": 5}}])
def test_another_sources_checkpoint_is_refused(body: dict[str, object]) -> None:
    with pytest.raises(InvalidOption, match="must be a checkpoint of the penstock source"):
        from_json(body)
