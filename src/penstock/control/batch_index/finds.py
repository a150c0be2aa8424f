"""Extent lookup: one lock-free statement that reads a partition and its extents in one state.

It never waits for other transactions. If the first extents of a partition are too few, a second
statement reads more of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Final

from penstock.control.batch_index import extents, index_rules, partitions
from penstock.control.batch_index.rules import EMPTY, TopicOf
from penstock.control.batch_index.values import FindRequest, Found, PartitionKey, Watermarks
from penstock.control.drivers.statements import Call, Operation
from penstock.control.limits import FIND_EXTENTS_MAX
from penstock.control.metadata.images import Images, StampedImage
from penstock.records.idempotence import ProducerState, described

_FIRST: Final = 16
"""Extents of each partition that the first statement reads."""

_TOTAL: Final = 2 * FIND_EXTENTS_MAX
"""Extents of all partitions together that the second statement reads."""


def find(
    images: Images, requests: Sequence[FindRequest], newest: StampedImage | None = None
) -> Operation[list[Found] | None]:
    answers: list[Found] = []
    for request, rows in zip(requests, (yield _scan(requests, _FIRST)), strict=True):
        first = next(rows, None)
        newest = newest or images.known(first and extents.stamp_of(first))
        if newest is None:
            return None
        answers.append(_found(request, first, rows, newest.topic))
    short = [
        place
        for place, answer in enumerate(answers)
        if len(answer.extents) == _FIRST and not _enough(answer, requests[place])
    ]
    if short and newest is not None:
        again = [requests[place] for place in short]
        limit = max(_FIRST, min(FIND_EXTENTS_MAX, _TOTAL // len(short)))
        for place, rows in zip(short, (yield _scan(again, limit)), strict=True):
            answers[place] = _found(requests[place], next(rows, None), rows, newest.topic)
    return answers


def _scan(requests: Sequence[FindRequest], limit: int) -> Call:
    return extents.find([request[:3] for request in requests], limit)


def _found(request: FindRequest, first: Any, rows: Iterator[Any], topic_of: TopicOf) -> Found:
    row = extents.partition_of(first)
    answer = index_rules.found_without_extents(request, topic_of, row)
    if answer is None:
        there = chain((first,), rows) if extents.has_extent(first) else ()
        answer = index_rules.found(request, row, map(extents.extent_of, there))
    return answer


def _enough(answer: Found, request: FindRequest) -> bool:
    first, *rest = answer.extents
    size_bytes = index_rules.bytes_from(first, request.offset)
    return size_bytes + sum([extent.size_bytes for extent in rest]) >= request.max_bytes


def watermarks(keys: Sequence[PartitionKey]) -> Operation[list[Watermarks]]:
    found = yield from partitions.read(set(keys))
    return [found.get(key, EMPTY).watermarks for key in keys]


def producers(key: PartitionKey) -> Operation[list[ProducerState]]:
    known = yield from partitions.producers_of(key)
    return [described(producer_id, state) for producer_id, state in known]
