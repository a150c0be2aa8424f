"""Client of a Kafka cluster that reads and writes columns, with the administrative calls.

`write_arrow` and `read_arrow` transfer whole tables; `iter_arrow` streams, `subscribe` follows a
topic and keeps its positions; `fetch_raw` returns batches as they are stored. Several threads may
use a client at once: calls share connections through a pool, and every reader and writer has its
own connections while it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from itertools import chain
from typing import Any, Final

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from penstock.base.settings import INT_MAX, LONG_MAX
from penstock.client import limits
from penstock.client.access import AccessCalls
from penstock.client.arguments import (
    optional_whole,
    partition_list,
    position,
    positive,
    read_positions,
    text,
    whole,
)
from penstock.client.decoding import (
    DEFAULT_COLUMNS,
    Isolation,
    decoded,
    isolation_level,
    schema_of,
)
from penstock.client.errors import InvalidArgument, OffsetOutOfRange
from penstock.client.fetch import (
    Cursor,
    FetchCore,
    ReadPosition,
    Run,
    walk_batches,
)
from penstock.client.groups import GroupCalls
from penstock.client.pool import Unanswered
from penstock.client.producers import ProducerIdentities, ProducerIdentity
from penstock.client.queue import Queue, queue_topics
from penstock.client.quotas import QuotaCalls
from penstock.client.reader import Reader, ReadLimits, Subscription, fetch_once, too_large
from penstock.client.replicas import ReplicaCalls
from penstock.client.security import ClientSecurity, read_security
from penstock.client.session import Session
from penstock.client.transaction_admin import TransactionCalls
from penstock.client.transactions import TransactionalProducer
from penstock.client.writer import (
    Progress,
    WriteReport,
    parse_acks,
    write_options,
    write_table,
)
from penstock.records.aborted import AbortedRange, ranges_until

CONNECT_TIMEOUT_MS: Final = 10_000
"""Longest wait for one TCP connection."""
TRANSACTION_TIMEOUT_MS: Final = 60_000
"""Default timeout of an open transaction; Kafka's default."""

Position = str | int | Mapping[int, int]
"""`earliest`, `latest`, milliseconds since the epoch, or an offset per partition."""


class RawFetch(Struct, frozen=True, kw_only=True):
    """Batches in their stored form, without an incomplete last one.

    `next_offset` is the offset of the next fetch. A read_committed reader must skip the batches in
    `aborted`.
    """

    data: bytes
    next_offset: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[AbortedRange, ...] = ()


class Waits(Struct, frozen=True):
    """Snapshot of the calls that a client is waiting for.

    `trouble` is the last retried failure; `unanswered` has the calls to brokers.
    """

    trouble: str
    unanswered: tuple[Unanswered, ...]


class Client(ReplicaCalls, GroupCalls, QuotaCalls, TransactionCalls, AccessCalls):
    """Client of a cluster, for any number of threads.

    Args:
        bootstrap: `host:port`, several separated by commas, or a list of them.
        client_id: the client's name in the broker's logs and quotas.
        request_timeout_ms: longest wait for one response.
        api_timeout_ms: longest time for a call with its retries.
        delivery_timeout_ms: longest time for a batch, or a stalled read, with its retries.
        security: encryption and authentication by Kafka's option names (`client/security.py`):
            security.protocol, sasl.mechanism, sasl.username, …; defaults come from the file
            that PENSTOCK_CLIENT_CONFIG names, if it is set.

    Raises:
        InvalidArgument: an invalid address, or a time below 1 ms. Nothing is connected yet.
        InvalidSetting, UnusableFile: an invalid security option.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        client_id: str = "penstock",
        request_timeout_ms: int = limits.REQUEST_TIMEOUT_MS,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        api_timeout_ms: int = limits.REQUEST_TIMEOUT_MS,
        delivery_timeout_ms: int = limits.DELIVERY_TIMEOUT_MS,
        security: Mapping[str, str] | ClientSecurity | None = None,
    ) -> None:
        for name, value in (
            ("request_timeout_ms", request_timeout_ms),
            ("connect_timeout_ms", connect_timeout_ms),
            ("api_timeout_ms", api_timeout_ms),
            ("delivery_timeout_ms", delivery_timeout_ms),
        ):
            whole(name, value, 1, INT_MAX)
        self._request_timeout_ms = request_timeout_ms
        self._session = Session(
            bootstrap,
            client_id=text("client_id", client_id),
            request_timeout_ms=request_timeout_ms,
            connect_timeout_ms=connect_timeout_ms,
            api_timeout_ms=api_timeout_ms,
            retry=replace(limits.RETRY, timeout_ms=delivery_timeout_ms),
            security=read_security(security),
        )
        self._identities = ProducerIdentities(self._session)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; calls of other threads end with an error."""
        self._session.close()

    def waits(self) -> Waits:
        """Return what this client waits for now; other threads may call it during a long call."""
        return Waits(self._session.trouble, self._session.pool.unanswered())

    def write_arrow(
        self,
        topic: str,
        data: Any,
        *,
        key: str | None = "key",
        value: str = "value",
        timestamp: str | None = "timestamp",
        headers: str | None = "headers",
        partition: int | str | None = None,
        codec: str = "none",
        level: int | None = None,
        acks: str | int = "all",
        idempotent: bool = True,
        max_in_flight: int = limits.IN_FLIGHT_MAX,
        batch_bytes: int = limits.BATCH_BYTES,
        records_per_second: float | None = None,
        progress: Progress | None = None,
    ) -> WriteReport:
        """Write a table; return when every record is acknowledged.

        `data` is anything with Arrow's C stream: a PyArrow table, batch or reader, a Polars or
        pandas frame. A missing column with a default name is skipped; `value` is required. Kafka's
        partitioner places records with a key, and records without one take the partitions in turn;
        `partition` names one partition for all records, or a column.

        Order is kept within a partition. With `idempotent` (acks=all) a record is stored once,
        however often the connection breaks. `progress` is called with the records and bytes
        acknowledged so far.

        Raises:
            InvalidArgument: invalid columns or options.
            PenstockError: the broker rejected the write, or retries were exhausted.
        """
        options = write_options(
            codec=codec,
            level=level,
            acks=acks,
            partition=partition,
            max_in_flight=max_in_flight,
            batch_bytes=batch_bytes,
            records_per_second=records_per_second,
        )
        own = idempotent and options.acks == parse_acks("all")
        identity = self._identities.borrow() if own else ProducerIdentity()
        report = write_table(
            self._session,
            topic,
            data,
            identity,
            options,
            key=key,
            value=value,
            timestamp=timestamp,
            headers=headers,
            partition=partition if isinstance(partition, str) else None,
            progress=progress,
        )
        self._identities.give_back(identity)
        return report

    def transactional(
        self, transactional_id: str, *, timeout_ms: int = TRANSACTION_TIMEOUT_MS
    ) -> TransactionalProducer:
        """Return a transactional producer; its first transaction fences earlier ones of the same
        id.

        `timeout_ms` is how long the broker lets a transaction be open.

        Raises:
            InvalidArgument: an invalid argument; nothing is sent.
        """
        return TransactionalProducer(
            self._session,
            text("transactional_id", transactional_id),
            whole("timeout_ms", timeout_ms, 1, INT_MAX),
        )

    def queue(self, group: str, topics: str | Sequence[str]) -> Queue:
        """Return a queue over topics: a share group member, which joins with its first `take`.

        Raises:
            InvalidArgument: an invalid argument; nothing is sent.
        """
        return Queue(self._session, text("group", group), queue_topics(topics))

    def read_arrow(
        self,
        topic: str,
        *,
        partitions: Sequence[int] | None = None,
        start: Position = "earliest",
        end: Position = "latest",
        columns: Sequence[str] = DEFAULT_COLUMNS,
        max_records: int | None = None,
        isolation: Isolation = "read_uncommitted",
        views: bool = False,
    ) -> Any:
        """Read a range of a topic as one PyArrow table, by partition and offset.

        `start` is inclusive, `end` exclusive; both are `earliest`, `latest`, milliseconds since
        the epoch, or offsets per partition. `latest` is resolved when the call begins. With `views`
        keys and values are not copied: they are `binary_view` columns over the fetched bytes, which
        stay in memory as long as the columns.

        Raises:
            InvalidArgument: an invalid argument; nothing is sent.
            OffsetOutOfRange: the log does not have the start offset.
            UnknownTopic: the cluster has no such topic or partition.
            UnreadableBatch: a stored batch cannot be read.
        """
        by_partition: dict[int, list[Any]] = {}
        for run, batch in self._batches(
            topic, partitions, start, end, columns, max_records, isolation, ReadLimits(), views
        ):
            by_partition.setdefault(run.partition, []).append(batch)
        batches = [batch for index in sorted(by_partition) for batch in by_partition[index]]
        return pa.Table.from_batches(batches, schema=schema_of(columns, views))

    def iter_arrow(
        self,
        topic: str,
        *,
        partitions: Sequence[int] | None = None,
        start: Position = "earliest",
        end: Position | None = "latest",
        columns: Sequence[str] = DEFAULT_COLUMNS,
        max_records: int | None = None,
        isolation: Isolation = "read_uncommitted",
        views: bool = False,
        max_bytes: int = limits.FETCH_BYTES,
        max_wait_ms: int = limits.FETCH_WAIT_MS,
        idle_timeout_ms: float | None = None,
    ) -> Generator[Any]:
        """Yield record batches as they arrive, in order within a partition.

        With `end=None` it follows the log, until `idle_timeout_ms` pass without a record (never
        by default). One or two fetches per broker are in flight while a batch is decoded and
        used, up to `max_bytes` each. `views` is as in `read_arrow`.

        Raises:
            InvalidArgument: an invalid argument; nothing is sent.
            OffsetOutOfRange: the log does not have the start offset.
            LogTruncated: a leader election discarded records that were already returned.
            UnknownTopic: the cluster has no such topic or partition.
            UnreadableBatch: a stored batch cannot be read; earlier ones were returned.
        """
        bounds = _bounds(max_bytes, max_wait_ms, idle_timeout_ms)
        found = self._batches(
            topic, partitions, start, end, columns, max_records, isolation, bounds, views
        )
        return (batch for _, batch in found)

    def subscribe(
        self,
        topic: str,
        *,
        partitions: Sequence[int] | None = None,
        start: Position | Mapping[int, ReadPosition] = "latest",
        columns: Sequence[str] = DEFAULT_COLUMNS,
        isolation: Isolation = "read_uncommitted",
        views: bool = False,
        max_bytes: int = limits.FETCH_BYTES,
        max_wait_ms: int = limits.FETCH_WAIT_MS,
        idle_timeout_ms: float | None = None,
    ) -> Subscription:
        """Follow a topic from `start` on; return its record batches, each of one partition.

        After a leader change it continues with the new leader, without losing or repeating a
        record. Its `positions` are leader epochs and offsets; a `start` of that form continues
        there and detects records that were read before and are no longer in the log. `latest` is
        resolved when this call is made; other arguments are those of `iter_arrow`.

        Raises:
            InvalidArgument: an invalid argument; nothing is sent.
            UnknownTopic: the cluster has no such topic or partition.
        """
        schema = schema_of(columns, views)
        bounds = _bounds(max_bytes, max_wait_ms, idle_timeout_ms)
        offsets, epochs = read_positions("start", start)
        core = self._core(topic, partitions, offsets, None, isolation, bounds)()
        for partition in core.cursors.keys() & epochs.keys():
            core.cursors[partition].epoch = epochs[partition]
        return Subscription(core, self._read(lambda: core, bounds, schema, views, None))

    def fetch_raw(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        max_bytes: int = limits.FETCH_PARTITION_BYTES,
        max_wait_ms: int = 0,
        isolation: Isolation = "read_uncommitted",
    ) -> RawFetch:
        """Fetch stored batches of one partition, from the one that contains `offset`.

        Raises:
            InvalidArgument: an invalid argument; nothing is sent.
            OffsetOutOfRange: the log does not have `offset`.
            MessageTooLarge: the first batch is larger than `max_bytes`, and does not come whole.
        """
        whole("max_bytes", max_bytes, 1, limits.RESPONSE_BYTES_MAX)
        cursor = Cursor(whole("offset", offset, 0, LONG_MAX), None)
        core = FetchCore(
            topic=text("topic", topic),
            cursors={whole("partition", partition, 0, INT_MAX): cursor},
            isolation=isolation_level(isolation),
            max_bytes=max_bytes,
            partition_max_bytes=max_bytes,
            max_wait_ms=whole("max_wait_ms", max_wait_ms, 0, INT_MAX),
        )
        found = self._session.retrying(lambda: fetch_once(self._session, core))
        walked = walk_batches(found.records)
        if len(found.records) and not walked.size_bytes:
            raise too_large(core, partition, offset)
        next_offset = walked.behind.offset
        return RawFetch(
            data=bytes(found.records[: walked.size_bytes]),
            next_offset=offset if next_offset < 0 else next_offset,
            high_watermark=found.high_watermark,
            last_stable_offset=found.last_stable_offset,
            log_start_offset=found.log_start_offset,
            aborted=ranges_until(found.aborted, walked.markers),
        )

    def _batches(
        self,
        topic: str,
        partitions: Sequence[int] | None,
        start: Position,
        end: Position | None,
        columns: Sequence[str],
        max_records: int | None,
        isolation: Isolation,
        bounds: ReadLimits,
        views: bool,
    ) -> Generator[tuple[Run, Any]]:
        schema = schema_of(columns, views)
        left = optional_whole("max_records", max_records, 0, LONG_MAX)
        made = self._core(topic, partitions, start, end, isolation, bounds)
        return self._read(made, bounds, schema, views, left)

    def _core(
        self,
        topic: str,
        partitions: Sequence[int] | None,
        start: Position,
        end: Position | None,
        isolation: Isolation,
        bounds: ReadLimits,
    ) -> Callable[[], FetchCore]:
        text("topic", topic)
        level, chosen = isolation_level(isolation), partition_list(partitions)
        first, last = position("start", start), None if end is None else position("end", end)
        return lambda: FetchCore(
            topic=topic,
            cursors=self._cursors(topic, chosen, first, last, level),
            isolation=level,
            max_bytes=bounds.max_bytes,
            partition_max_bytes=bounds.partition_max_bytes,
            max_wait_ms=bounds.max_wait_ms,
        )

    def _read(
        self,
        made: Callable[[], FetchCore],
        bounds: ReadLimits,
        schema: Any,
        views: bool,
        left: int | None,
    ) -> Generator[tuple[Run, Any]]:
        core = made()
        if left == 0:
            return
        with closing(Reader(self._session, core, bounds).runs()) as answers:
            for answered in chain.from_iterable(answers):
                for run, batch in decoded(core.topic, answered, schema, views):
                    taken = batch if left is None else batch.slice(0, left)
                    if taken.num_rows:
                        yield run, taken
                    if left is not None:
                        left -= taken.num_rows
                    if left == 0:
                        return

    def _cursors(
        self,
        topic: str,
        partitions: Sequence[int] | None,
        start: Position,
        end: Position | None,
        isolation: int,
    ) -> dict[int, Cursor]:
        if partitions is None:
            named = start if isinstance(start, Mapping) else end
            partitions = (
                sorted(named)
                if isinstance(named, Mapping)
                else [item.index for item in self._session.topic(topic).partitions]
            )
        starts = self._offsets(topic, start, partitions, isolation, "start")
        if end is None:
            return {p: Cursor(starts[p], None) for p in partitions}
        ends = self._offsets(topic, end, partitions, isolation, "end")
        self._check_starts(topic, start, starts, isolation)
        return {p: Cursor(starts[p], ends[p]) for p in partitions}

    def _offsets(
        self,
        topic: str,
        position: Position,
        partitions: Sequence[int],
        isolation: int,
        what: str,
    ) -> dict[int, int]:
        if isinstance(position, Mapping):
            missing = [p for p in partitions if p not in position]
            if missing:
                raise InvalidArgument(f"{what}: no offset for {topic}-{missing[0]}")
            self._session.leaders_of(topic, partitions)
            return {p: int(position[p]) for p in partitions}
        found = self.list_offsets(topic, position, partitions=partitions, isolation=isolation)
        if isinstance(position, int) and any(offset < 0 for offset in found.values()):
            latest = self.list_offsets(topic, partitions=partitions, isolation=isolation)
            found = {p: latest[p] if offset < 0 else offset for p, offset in found.items()}
        return found

    def _check_starts(
        self, topic: str, start: Position, starts: Mapping[int, int], isolation: int
    ) -> None:
        """Reject offsets below the log start right away, which an empty range would hide."""
        if not isinstance(start, Mapping):
            return
        earliest = self.list_offsets(
            topic, "earliest", partitions=list(starts), isolation=isolation
        )
        for partition, offset in starts.items():
            if offset < earliest[partition]:
                raise OffsetOutOfRange(
                    f"start of {topic}-{partition}: offset {offset} is below the log, which"
                    f" begins at {earliest[partition]}",
                    partition=partition,
                    offset=offset,
                )


def _bounds(max_bytes: int, max_wait_ms: int, idle_timeout_ms: float | None) -> ReadLimits:
    positive("idle_timeout_ms", idle_timeout_ms)
    whole("max_bytes", max_bytes, 1, limits.RESPONSE_BYTES_MAX)
    return ReadLimits(
        max_bytes=max_bytes,
        partition_max_bytes=min(max_bytes, limits.FETCH_PARTITION_BYTES),
        max_wait_ms=whole("max_wait_ms", max_wait_ms, 0, INT_MAX),
        idle_timeout_ms=idle_timeout_ms,
    )
