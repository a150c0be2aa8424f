"""Sets of partitions, as maps from topic id to partition numbers, and operations on them.

Topics without partitions are omitted, so that equal sets compare equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

Partitions = Mapping[bytes, frozenset[int]]

NOTHING: Final[Partitions] = {}


def both(one: Partitions, other: Partitions) -> Partitions:
    common = {topic: numbers & other[topic] for topic, numbers in one.items() if topic in other}
    return {topic: numbers for topic, numbers in common.items() if numbers}


def fewer(one: Partitions, other: Partitions) -> Partitions:
    left = {
        topic: numbers - other[topic] if topic in other else numbers
        for topic, numbers in one.items()
    }
    return {topic: numbers for topic, numbers in left.items() if numbers}


def merged(one: Partitions, other: Partitions) -> Partitions:
    result = dict(one)
    for topic, numbers in other.items():
        result[topic] = result[topic] | numbers if topic in result else numbers
    return result


def overlap(one: Partitions, other: Partitions) -> bool:
    return any(not numbers.isdisjoint(other.get(topic, ())) for topic, numbers in one.items())


def within(one: Partitions, other: Partitions) -> bool:
    return all(numbers <= other.get(topic, frozenset()) for topic, numbers in one.items())
