"""Records that the scenarios produce, and which clients a scenario is for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from compat.drivers import DRIVERS, Record


def clients(*able: str) -> pytest.MarkDecorator:
    """Run for every client that is able to do all of this."""
    names = [name for name, driver in DRIVERS.items() if set(able) <= driver.able]
    return pytest.mark.parametrize("driver", names, indirect=True)


def plain_records(
    count: int, *, partitions: int = 6, start: int = 0, timestamp: int, step_ms: int = 1
) -> list[Record]:
    """Records of text, dealt out over the partitions in turn."""
    return [
        Record(
            value=f"value {number} {'x' * (number % 50)}".encode(),
            key=f"key {number % 7}".encode(),
            headers=(("trace", b"abc"), ("kind", b"plain")),
            timestamp=timestamp + number * step_ms,
            partition=number % partitions,
        )
        for number in range(start, start + count)
    ]


def odd_records(timestamp: int) -> list[Record]:
    """Every shape that a record may have: nulls, empties, binary, many headers, a large value."""
    binary = bytes(range(256))
    shapes: list[tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]] = [
        (None, b"tombstone", ()),
        (b"", b"", ()),
        (b"no key", None, ()),
        (binary, binary, (("binary", binary),)),
        (b"names", b"k", (("größe", "größe".encode()), ("empty", b""))),
        (b"twice", b"k", (("again", b"1"), ("again", b"2"))),
        (b"large" * 100_000, b"k", ()),
        (b"headers", b"k", tuple((f"name{number}", b"v") for number in range(40))),
    ]
    return [
        Record(value=value, key=key, headers=headers, timestamp=timestamp + number, partition=0)
        for number, (value, key, headers) in enumerate(shapes)
    ]


def with_offsets(records: Sequence[Record], offsets: Sequence[int]) -> list[Record]:
    """The records as they should be read back."""
    return [record.at(offset) for record, offset in zip(records, offsets, strict=True)]


def in_order(records: Iterable[Record]) -> list[Record]:
    """By partition and offset."""
    return sorted(records, key=lambda record: (record.partition, record.offset))
