"""Topic names: Kafka's rules, and errors that name the reason."""

from __future__ import annotations

import pytest

from penstock.base.errors import InvalidError, InvalidTopicName
from penstock.base.ids import TOPIC_NAME_CHARS_MAX, TopicPartition, validate_topic_name


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * TOPIC_NAME_CHARS_MAX, "...", "__offsets"])
def test_allowed_names(name: str) -> None:
    assert validate_topic_name(name) == name


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "empty"),
        (".", "'.' or '..'"),
        ("..", "'.' or '..'"),
        ("x" * 250, "at most 249 characters, not 250"),
        ("a/b", "ASCII letters"),
        ("a\x00", "ASCII letters"),
        ("naïve", "ASCII letters"),
        ("a\n", "ASCII letters"),
    ],
)
def test_refused_names(name: str, reason: str) -> None:
    with pytest.raises(InvalidTopicName, match=reason) as caught:
        validate_topic_name(name)
    assert isinstance(caught.value, InvalidError)
    assert caught.value.code == "invalid_topic_exception"


def test_a_partition_reads_as_its_directory_does() -> None:
    assert str(TopicPartition("flights", 3)) == "flights-3"
