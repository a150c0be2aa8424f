"""Sets of partitions, by the id of their topic; never with an empty set, so that equal is equal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

Partitions = Mapping[bytes, frozenset[int]]

NOTHING: Final[Partitions] = {}


def both(one: Partitions, other: Partitions) -> Partitions:
    """Partitions that are in both."""
    common = {topic: numbers & other[topic] for topic, numbers in one.items() if topic in other}
    return {topic: numbers for topic, numbers in common.items() if numbers}


def fewer(one: Partitions, other: Partitions) -> Partitions:
    """Partitions of the first that are not in the other."""
    left = {
        topic: numbers - other[topic] if topic in other else numbers
        for topic, numbers in one.items()
    }
    return {topic: numbers for topic, numbers in left.items() if numbers}


def merged(one: Partitions, other: Partitions) -> Partitions:
    """Partitions of either."""
    result = dict(one)
    for topic, numbers in other.items():
        result[topic] = result[topic] | numbers if topic in result else numbers
    return result


def overlap(one: Partitions, other: Partitions) -> bool:
    """Whether some partition is in both."""
    return any(not numbers.isdisjoint(other.get(topic, ())) for topic, numbers in one.items())


def within(one: Partitions, other: Partitions) -> bool:
    """Whether all partitions of the first are in the other."""
    return all(numbers <= other.get(topic, frozenset()) for topic, numbers in one.items())
