"""Plan of a topic's keys, from its newest records, which are read for the caller.

It is the plan of `penstock plan keys`, with fewer records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from penstock.apps.console.forms import Form, InvalidField
from penstock.base.extras import check_installed
from penstock.planner.keys.inputs import KeysInputs, partition_counts
from penstock.planner.quantities import read_inputs
from penstock.planner.results import Plan

if TYPE_CHECKING:
    from penstock.apps.console.messages.reading import Chunk, TopicReader
    from penstock.apps.console.messages.rules import Masking
    from penstock.apps.console.requests import CallerRequests
    from penstock.broker.admin.access import Caller
    from penstock.broker.assembly import Assembly
    from penstock.planner.keys.census import Census

TOPIC: Final = "topic"
RECORDS: Final = "records"
RECORDS_DEFAULT: Final = 100_000
RECORDS_MAX: Final = 1_000_000


async def keys_plan(
    broker: Assembly,
    requests: CallerRequests,
    caller: Caller,
    given: Mapping[str, str],
    masking: Masking | None,
) -> Plan:
    """Read the newest committed records of a topic; return the plan of its keys.

    Raises:
        InvalidField: no topic is named, or the number of records is invalid.
        MissingExtra: PyArrow is not installed.
        AuthorisationFailed: the caller may not read the topic.
        Masked: rules mask the topic's keys for the caller.
        NothingToPlan: no record with a key was read.
        PenstockError: the topic does not exist, or a leader does not answer.
    """
    check_installed("client")
    from penstock.apps.console.messages.reading import TopicReader
    from penstock.apps.plan.keys import WHOLE, Range, newest, scope_of
    from penstock.planner.keys.census import Census
    from penstock.planner.keys.plan import plan_keys

    topic = given.get(TOPIC, "")
    if not topic:
        raise InvalidField("name the topic whose keys are to be read")
    text = given.get(RECORDS, str(RECORDS_DEFAULT))
    records = Form({RECORDS: [text]}).number(RECORDS, RECORDS, RECORDS_MAX)
    texts = {name: value for name, value in given.items() if name not in (TOPIC, RECORDS)}
    inputs = read_inputs(KeysInputs, texts)
    reader = TopicReader(broker, requests, caller, topic, committed=True)
    await _check_clear(masking, topic, caller)
    count = len(reader.served.partitions)
    found, failures = await reader.bounds(range(count))
    if failures:
        raise InvalidField(f"{topic} cannot be read: {next(iter(failures.values()))}")
    whole = Range(
        start={index: start for index, (start, _) in found.items()},
        end={index: max(start, end) for index, (start, end) in found.items()},
        sizes={index: max(0, end - start) for index, (start, end) in found.items()},
        text=WHOLE,
    )
    chosen = newest(whole, max(1, records))
    census = Census(count, partition_counts(inputs, count), inputs.tracked_keys)
    for index, offset in chosen.start.items():
        await _count(reader, census, index, offset, chosen.end[index])
    scope = scope_of(topic, chosen, count)
    return await asyncio.to_thread(lambda: plan_keys(scope, census.result(), inputs))


async def _check_clear(masking: Masking | None, topic: str, caller: Caller) -> None:
    """Raise Masked if rules mask the keys of a topic, which the plan shows, for the caller."""
    if masking is None:
        return
    from penstock.apps.console.messages.rules import Masked, why

    rules = await asyncio.to_thread(masking.rules, topic, caller.known.principal)
    if masked := [rule for rule in rules if rule.paths("key")]:
        raise Masked(f"the keys of topic {topic} cannot be planned: {why(masked)}")


async def _count(reader: TopicReader, census: Census, index: int, offset: int, end: int) -> None:
    """Count the records of a partition from `offset` to below `end`."""
    while offset < end:
        chunk = await reader.fetch(index, offset)
        await asyncio.to_thread(_add, census, chunk, end)
        if chunk.following <= offset:
            return
        offset = chunk.following


def _add(census: Census, chunk: Chunk, end: int) -> None:
    import pyarrow as pa

    from penstock.planner.keys.census import COLUMNS

    batch = chunk.decoded([name for name in COLUMNS if name != "partition"], end)
    places = pa.array([chunk.partition] * batch.num_rows, pa.int32())
    census.add(batch.append_column("partition", places))
