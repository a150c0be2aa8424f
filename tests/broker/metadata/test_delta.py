"""The delta of two images names exactly the topics and brokers that changed."""

from __future__ import annotations

import dataclasses
import random
from uuid import UUID

import pytest

from penstock.broker.metadata import delta_of
from penstock.control import MetadataImage
from penstock.control.rules import metadata
from penstock.control.values.errors import CHANGES_KNOWN_MAX

EMPTY = MetadataImage(version=1, cluster_id="c")


def changed_at_random(image: MetadataImage, dice: random.Random) -> MetadataImage:
    """An image after one change by the rules."""
    name = f"t{dice.randrange(6)}"
    topic = image.topics.get(name)
    if topic is None:
        unique = UUID(int=dice.getrandbits(128))
        return metadata.create_topic(
            image, name=name, topic_id=unique, partitions=[[1]], configs={}, internal=False
        )[0]
    kind = dice.randrange(4)
    if kind == 0:
        return metadata.delete_topic(image, topic.topic_id)[0]
    if kind == 1:
        count = len(topic.partitions)
        return metadata.create_partitions(
            image, topic_id=topic.topic_id, expected_count=count, new=[[1]]
        )[0]
    if kind == 2:
        return metadata.set_broker_configs(image, broker="", configs={}, expected=None)
    configs = {"retention.ms": str(dice.randrange(3))}
    return metadata.set_topic_configs(
        image, topic_id=topic.topic_id, configs=configs, expected=None
    )[0]


def read_again(image: MetadataImage) -> MetadataImage:
    """The image as it comes from a database: nothing is known of how it came about."""
    return dataclasses.replace(image, origin=object(), newest=())


@pytest.mark.parametrize("steps", [0, 1, 2, 7, CHANGES_KNOWN_MAX + 5])
@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_a_delta_leads_from_one_image_to_the_other(seed: int, steps: int, read: bool) -> None:
    dice = random.Random(seed)
    before = EMPTY
    for _ in range(20):
        before = changed_at_random(before, dice)
    after = before
    for _ in range(steps):
        after = changed_at_random(after, dice)
    delta = delta_of(before, read_again(after) if read else after)
    old, new = dict(before.topics), dict(after.topics)
    assert not delta.whole
    assert {topic.name: topic for topic in delta.changed} == {
        name: topic for name, topic in new.items() if old.get(name) != topic
    }
    assert {topic.name: topic for topic in delta.gone} == {
        name: topic
        for name, topic in old.items()
        if name not in new or new[name].topic_id != topic.topic_id
    }
    assert len(delta.changed) == len({topic.name for topic in delta.changed})


def test_rules_say_which_topics_they_changed() -> None:
    made, _ = metadata.create_topic(
        EMPTY, name="a", topic_id=UUID(int=1), partitions=[[1]], configs={}, internal=False
    )
    more, _ = metadata.create_topic(
        made, name="b", topic_id=UUID(int=2), partitions=[[1]], configs={}, internal=False
    )
    gone, _ = metadata.delete_topic(more, UUID(int=1))
    assert list(gone.changed_since(EMPTY) or ()) == ["a", "b"]
    assert list(gone.changed_since(more) or ()) == ["a"]
    assert list(gone.changed_since(gone) or ()) == []
    assert gone.changed_since(read_again(made)) is None


def test_nothing_known_is_everything_changed() -> None:
    made, topic = metadata.create_topic(
        EMPTY, name="a", topic_id=UUID(int=1), partitions=[[1]], configs={}, internal=False
    )
    delta = delta_of(None, made)
    assert (delta.whole, delta.changed, delta.gone) == (True, (topic,), ())
