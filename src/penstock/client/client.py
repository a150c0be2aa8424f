"""Client of a Kafka cluster: reads and writes of Arrow columns, and the administrative calls.

`write_arrow` and `read_arrow` transfer whole tables. `iter_arrow` streams a range of a topic.
`subscribe` follows a topic and keeps its positions. `fetch_raw` returns batches as they are stored.
Several threads may use a client at once. Single calls share connections through a pool. Each reader
and writer has its own connections while it runs.

Tables and queues need PyArrow, which the extra `client` installs. These calls raise `MissingExtra`
without it; all other calls work.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from penstock.base.extras import check_installed
from penstock.base.settings import INT_MAX, LONG_MAX
from penstock.client import errors
from penstock.client.access import AccessCalls, QuotaCalls
from penstock.client.arguments import (
    DEFAULT_COLUMNS,
    Isolation,
    isolation_level,
    optional_whole,
    partition_list,
    position,
    positive,
    read_positions,
    text,
    whole,
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
from penstock.client.producers import ProducerIdentities, ProducerIdentity
from penstock.client.reader import Reader, ReadLimits, Subscription, fetch_once, too_large
from penstock.client.replicas import ReplicaCalls
from penstock.client.security import ClientSecurity, read_security
from penstock.client.session import Session, Unanswered
from penstock.client.transactions import TransactionalProducer, TransactionCalls
from penstock.records.transactions import AbortedRange, ranges_until

if TYPE_CHECKING:
    from penstock.client.decoding import RegistryReader
    from penstock.client.encoding import ValueSchema
    from penstock.client.queue import Queue
    from penstock.client.schemas import SchemaClient
    from penstock.client.writer import Progress, WriteReport

CONNECT_TIMEOUT_MS: Final = 10_000
"""Maximum time in milliseconds for opening one TCP connection."""
TRANSACTION_TIMEOUT_MS: Final = 60_000
"""Default timeout of an open transaction in milliseconds, as in Kafka."""

Decoding: TypeAlias = "str | SchemaClient | RegistryReader | None"
Position = str | int | Mapping[int, int]
"""`earliest`, `latest`, milliseconds since the epoch, or an offset per partition."""


class RawFetch(Struct, frozen=True, kw_only=True):
    """Batches of one partition in their stored form; an incomplete last batch is cut off.

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
    """Snapshot of a client's unanswered calls, to explain why a long call takes long.

    `trouble` is the last failure that is being retried. `unanswered` has the oldest unanswered call
    of each connection.
    """

    trouble: str
    unanswered: tuple[Unanswered, ...]


class Client(ReplicaCalls, GroupCalls, QuotaCalls, TransactionCalls, AccessCalls):
    """Client of a cluster; any number of threads may use it.

    Args:
        bootstrap: `host:port`, several separated by commas, or a list of them.
        client_id: the client's name in the broker's logs and quotas.
        request_timeout_ms: maximum time for one response.
        api_timeout_ms: maximum time for a call with its retries.
        delivery_timeout_ms: maximum time for a batch, or a stalled read, with its retries.
        security: encryption and authentication by Kafka's option names (`client/security.py`):
            security.protocol, sasl.mechanism, sasl.username, …; defaults come from the file
            that PENSTOCK_CLIENT_CONFIG names, if it is set.

    Raises:
        InvalidArgument: an address is invalid, or a time is below 1 ms; nothing is connected.
        InvalidSetting, UnusableFile: a security option is invalid.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        client_id: str = "penstock",
        request_timeout_ms: int = errors.REQUEST_TIMEOUT_MS,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        api_timeout_ms: int = errors.REQUEST_TIMEOUT_MS,
        delivery_timeout_ms: int = errors.DELIVERY_TIMEOUT_MS,
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
            retry=replace(errors.RETRY, timeout_ms=delivery_timeout_ms),
            security=read_security(security),
        )
        self._identities = ProducerIdentities(self._session)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; pending calls of other threads raise an error."""
        self._session.close()

    def waits(self) -> Waits:
        """Return the calls that this client waits for now; another thread may ask during a long
        call.
        """
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
        max_in_flight: int = errors.IN_FLIGHT_MAX,
        batch_bytes: int = errors.BATCH_BYTES,
        records_per_second: float | None = None,
        progress: Progress | None = None,
        schema: ValueSchema | None = None,
    ) -> WriteReport:
        """Write a table; return when every record is acknowledged.

        `data` is any object with Arrow's C stream interface: a PyArrow table, batch or reader, a
        Polars or pandas frame. `value` is required; other columns with default names are optional.
        Kafka's partitioner chooses the partition of a record with a key. Records without a key are
        spread over the partitions. `partition` is one partition for all records, or the name of a
        column of partitions.

        Order is kept within a partition. With `idempotent` (acks=all) a record is stored once, even
        if connections break. `progress` receives the acknowledged numbers of records and bytes.

        With `schema`, the column `value` is a struct, and is written as Avro with the id of the
        registered schema. Without such a column, all columns without another role are the value.

        Raises:
            InvalidArgument: columns or options are invalid.
            PenstockError: the broker rejected the write, or retries were exhausted.
        """
        check_installed("client")
        from penstock.client.writer import parse_acks, write_options, write_table

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
            self._session, topic, data, identity, options, key=key, value=value,
            timestamp=timestamp, headers=headers,
            partition=partition if isinstance(partition, str) else None,
            progress=progress, schema=schema,
        )  # fmt: skip
        self._identities.give_back(identity)
        return report

    def transactional(
        self, transactional_id: str, *, timeout_ms: int = TRANSACTION_TIMEOUT_MS
    ) -> TransactionalProducer:
        """Return a transactional producer; its first transaction fences earlier producers of the
        id.

        `timeout_ms` is the maximum time for which the broker keeps a transaction open.

        Raises:
            InvalidArgument: an argument is invalid; nothing is sent.
        """
        return TransactionalProducer(
            self._session,
            text("transactional_id", transactional_id),
            whole("timeout_ms", timeout_ms, 1, INT_MAX),
        )

    def queue(self, group: str, topics: str | Sequence[str]) -> Queue:
        """Return a queue over topics: a member of a share group, which joins with its first `take`.

        Raises:
            InvalidArgument: an argument is invalid; nothing is sent.
        """
        check_installed("client")
        from penstock.client.queue import Queue, queue_topics

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
        decode: Decoding = None,
    ) -> Any:
        """Read a range of a topic as one PyArrow table, sorted by partition and offset.

        `start` is inclusive, `end` exclusive. Both are `earliest`, `latest`, milliseconds since the
        epoch, or offsets per partition. `latest` is resolved when the call begins. With `views`,
        keys and values are not copied: they are `binary_view` columns over the fetched bytes. These
        bytes stay in memory as long as the columns.

        With `decode`, the URL or client of a schema registry, `value` is a struct with the columns
        of the newest schema of the topic's values. Each value is decoded by the schema that it was
        written with. `value_error` has the reasons of values that cannot be decoded. For another
        reader's schema, `decode` is a `RegistryReader`.

        Raises:
            InvalidArgument: an argument is invalid; nothing is sent.
            OffsetOutOfRange: the start offset is outside the log.
            UnknownTopic: the cluster has no such topic or partition.
            UnreadableBatch: a stored batch cannot be read.
            RegistryRefused: the registry rejects the request, or has no schema of the topic.
            AdminUnavailable: the registry does not answer.
        """
        check_installed("client")
        import pyarrow as pa

        from penstock.client.columns import schema_of

        if decode is not None:
            from penstock.client.decoding import decoded_table

            def read(wanted: Sequence[str]) -> Any:
                return self.read_arrow(
                    topic, partitions=partitions, start=start, end=end, columns=wanted,
                    max_records=max_records, isolation=isolation,
                )  # fmt: skip

            return decoded_table(read, columns, decode, topic, views=views)
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
        max_bytes: int = errors.FETCH_BYTES,
        max_wait_ms: int = errors.FETCH_WAIT_MS,
        idle_timeout_ms: float | None = None,
    ) -> Generator[Any]:
        """Yield record batches as they arrive, in order within a partition.

        With `end=None` it follows the log until no record arrives for `idle_timeout_ms`; None means
        no limit. While a batch is decoded and used, one or two fetches per broker are in flight, of
        up to `max_bytes` each. `views` is as in `read_arrow`.

        Raises:
            InvalidArgument: an argument is invalid; nothing is sent.
            OffsetOutOfRange: the start offset is outside the log.
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
        max_bytes: int = errors.FETCH_BYTES,
        max_wait_ms: int = errors.FETCH_WAIT_MS,
        idle_timeout_ms: float | None = None,
    ) -> Subscription:
        """Follow a topic from `start` on; return an iterator of record batches, each of one
        partition.

        After a leader change the iterator continues with the new leader, and neither loses nor
        repeats a record. Its `positions` are leader epochs and offsets. They can be the `start` of
        a later subscription, which then also detects that records before them are no longer in the
        log. `latest` is resolved when this call is made. Other arguments are those of `iter_arrow`.

        Raises:
            InvalidArgument: an argument is invalid; nothing is sent.
            UnknownTopic: the cluster has no such topic or partition.
        """
        check_installed("client")
        from penstock.client.columns import schema_of

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
        max_bytes: int = errors.FETCH_PARTITION_BYTES,
        max_wait_ms: int = 0,
        isolation: Isolation = "read_uncommitted",
    ) -> RawFetch:
        """Fetch stored batches of one partition, beginning with the batch that contains `offset`.

        Raises:
            InvalidArgument: an argument is invalid; nothing is sent.
            OffsetOutOfRange: `offset` is outside the log.
            MessageTooLarge: the first batch exceeds `max_bytes`, and was not sent whole.
        """
        whole("max_bytes", max_bytes, 1, errors.RESPONSE_BYTES_MAX)
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

    def iter_runs(
        self,
        topic: str,
        start: Mapping[int, int],
        end: Mapping[int, int] | None = None,
        *,
        max_bytes: int = errors.FETCH_BYTES,
    ) -> Generator[Sequence[Run]]:
        """Yield the stored batches of a topic with `read_committed`, without decoding them.

        `start` and `end` are offsets by partition; without `end` the log is followed. The last
        batch of a partition may have records at or after its end.

        Raises:
            OffsetOutOfRange: an offset is outside the log.
            PenstockError: the broker rejected the request, or retries were exhausted.
        """
        bounds = _bounds(max_bytes, errors.FETCH_WAIT_MS, None)
        made = self._core(topic, None, start, end, "read_committed", bounds)
        return Reader(self._session, made(), bounds).runs()

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
        check_installed("client")
        from penstock.client.columns import schema_of

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
        from penstock.client.columns import decoded

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
                raise InvalidArgument(f"{what}: has no offset for {topic}-{missing[0]}")
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
        """Reject start offsets below the log start offset.

        A fetch would fail with OffsetOutOfRange. But if the range of the read is empty, nothing is
        fetched.
        """
        if not isinstance(start, Mapping):
            return
        earliest = self.list_offsets(
            topic, "earliest", partitions=list(starts), isolation=isolation
        )
        for partition, offset in starts.items():
            if offset < earliest[partition]:
                raise OffsetOutOfRange(
                    f"start of {topic}-{partition}: offset {offset} is below the log start"
                    f" offset {earliest[partition]}",
                    partition=partition,
                    offset=offset,
                )


def _bounds(max_bytes: int, max_wait_ms: int, idle_timeout_ms: float | None) -> ReadLimits:
    positive("idle_timeout_ms", idle_timeout_ms)
    whole("max_bytes", max_bytes, 1, errors.RESPONSE_BYTES_MAX)
    return ReadLimits(
        max_bytes=max_bytes,
        partition_max_bytes=min(max_bytes, errors.FETCH_PARTITION_BYTES),
        max_wait_ms=whole("max_wait_ms", max_wait_ms, 0, INT_MAX),
        idle_timeout_ms=idle_timeout_ms,
    )
