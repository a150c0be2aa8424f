"""Replay of dead letters: records of the dead-letter topic go through their connector again, once.

The group `connect-<name>-replay` has the progress. Dead letters of a source are transformed and
written to their topics in a transaction with the progress. Those of a sink are transformed and
written to the sink under the dead letters' own offsets and under partitions from `PARTITION` on.
So a sink that stores offsets skips dead letters that it has written, and its offsets of the topics
do not change. Records that fail again become new dead letters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.connect.converting import encoded, whole
from penstock.connect.decoding import Decoder
from penstock.connect.errors import ConnectorFailed
from penstock.connect.failures import PREFIX
from penstock.connect.plugins import HEADERS, OFFSET, PARTITION, Records
from penstock.connect.registering import converters
from penstock.connect.running import Delivery, Rejections, Run, Topics, group_of, transformed
from penstock.records.extents import READ_COMMITTED

PARTITION_FIRST: Final = 1_000_000
"""First partition of replayed rows, above those that topics have."""
_COLUMNS: Final = ("key", "value", "headers", "timestamp", "partition", "offset")


@dataclass(frozen=True, slots=True)
class Replayed:
    """Numbers of dead letters that were processed, and of those that failed again."""

    records: int
    rejected: int


def replay(run: Run) -> Replayed:
    """Send the dead letters of a connector through it again; return their numbers.

    Raises:
        ConnectorFailed: the file has no dead-letter topic.
        PenstockError: a row was rejected, a system does not respond, or the connector failed.
    """
    spec, client = run.spec, run.client
    topic = spec.errors.dead_letters
    if not topic:
        raise ConnectorFailed(f"connector {spec.name} has no errors.dead_letters")
    if topic not in {found.name for found in client.list_topics()}:
        return Replayed(0, 0)
    group = f"{group_of(spec.name)}-replay"
    ends = client.list_offsets(topic, "latest", isolation=READ_COMMITTED)
    first = client.list_offsets(topic, "earliest")
    done = client.committed(group)
    start = {
        partition: max(first[partition], done[topic, partition].offset)
        if (topic, partition) in done
        else first[partition]
        for partition in ends
    }
    if all(start[partition] >= end for partition, end in ends.items()):
        return Replayed(0, 0)
    rows = client.read_arrow(
        topic, start=start, end={p: max(end, start[p]) for p, end in ends.items()},
        columns=_COLUMNS, isolation="read_committed",
    )  # fmt: skip
    progress = {(topic, partition): end for partition, end in ends.items()}
    own = list(own_records(rows, spec.name))
    deliver = _to_topics if spec.direction == "source" else _to_sink
    rejected = deliver(run, own, group, progress)
    return Replayed(sum(records.count for records in own), rejected)


def own_records(rows: Any, connector: str) -> Iterator[Records]:
    """Yield the dead letters of a connector by topic, without the headers of the failure."""
    headers = whole(rows.column(HEADERS))
    mine = pc.equal(header(headers, f"{PREFIX}connector.name"), connector.encode())
    rows = rows.filter(pc.fill_null(mine, fill_value=False))
    headers = whole(rows.column(HEADERS))
    topics = header(headers, f"{PREFIX}topic")
    rows = rows.set_column(rows.schema.get_field_index(HEADERS), HEADERS, _plain(headers))
    for topic in pc.unique(topics.drop_null()).to_pylist():
        yield Records(topic.decode(), rows.filter(pc.equal(topics, topic)))


def header(headers: Any, name: str) -> Any:
    """Return the values of a header as a column of bytes; null where a record does not have it."""
    items, parents = pc.list_flatten(headers), pc.list_parent_indices(headers)
    chosen = pc.equal(items.field("key"), name)
    at = pc.index_in(
        pa.array(range(len(headers)), pa.int64()), value_set=parents.filter(chosen).cast(pa.int64())
    )
    return items.field("value").filter(chosen).cast(pa.binary()).take(at)


def _plain(headers: Any) -> Any:
    """Return headers without those of the failure."""
    items, parents = pc.list_flatten(headers), pc.list_parent_indices(headers)
    kept = pc.invert(pc.starts_with(items.field("key"), PREFIX))
    counts = pc.value_counts(parents.filter(kept))
    numbers = pc.index_in(
        pa.array(range(len(headers)), pa.int64()),
        value_set=counts.field("values").cast(pa.int64()),
    )
    sizes = pc.fill_null(counts.field("counts").take(numbers), 0)
    ends = pc.cumulative_sum(sizes).cast(pa.int32())
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    return pa.ListArray.from_arrays(offsets, items.filter(kept), type=headers.type)


def _to_topics(
    run: Run, letters: list[Records], group: str, progress: Mapping[tuple[str, int], int]
) -> int:
    spec, rejections, topics = run.spec, Rejections(run), Topics(run)
    decoder, (key, value) = Decoder(spec.options), converters(spec.options)
    rows: list[tuple[str, Any]] = []
    for records in letters:
        raw = records.with_rows(records.rows.drop_columns([PARTITION, OFFSET]))
        decoded, raw = rejections.decoded(decoder, raw)
        if not raw.count:
            continue
        rows += [
            (after.topic, encoded(after, key, value))
            for after in transformed(run, decoded, rejections, lambda: raw)  # noqa: B023
            if after.count
        ]
    for name in {name for name, _ in rows}:
        topics.ensure(name)
    producer = run.client.transactional(group)
    with producer.transaction() as transaction:
        for name, table in rows:
            transaction.write_arrow(name, table, codec=spec.options.compression)
        for table in rejections.tables:
            transaction.write_arrow(spec.errors.dead_letters, table)
        transaction.send_offsets(group, progress)
    return rejections.count


def _to_sink(
    run: Run, letters: list[Records], group: str, progress: Mapping[tuple[str, int], int]
) -> int:
    sink = run.spec.sink_plugin()(run.spec.settings, run.spec.name)
    before = run.status.status.dead_letters + run.status.status.skipped
    try:
        stored = sink.offsets() or {}
        delivery = Delivery(run, sink)
        for records in letters:
            moved = pc.add(records.rows.column(PARTITION), pa.scalar(PARTITION_FIRST, pa.int32()))
            index = records.rows.schema.get_field_index(PARTITION)
            rows = records.rows.set_column(index, PARTITION, moved)
            following = {
                PARTITION_FIRST + partition: end for (_, partition), end in progress.items()
            }
            for partition in following:
                written = stored.get((records.topic, partition), 0)
                old = pc.and_(
                    pc.equal(rows.column(PARTITION), partition),
                    pc.less(rows.column(OFFSET), written),
                )
                rows = rows.filter(pc.invert(old))
            if rows.num_rows:
                delivery.write(records.with_rows(rows), following)
        sink.flush()
    finally:
        sink.close()
    run.client.commit_offsets(group, progress)
    return run.status.status.dead_letters + run.status.status.skipped - before
