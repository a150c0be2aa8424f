"""Core of a share group member: builds its requests and processes responses, without I/O.

    heartbeat ─▶ epoch, partitions ─▶ a share session with each broker that leads some of them
                                         fetch: added and removed partitions, limits
                                         acknowledge: results by ranges of offsets

| response                                   | action of the member                           |
|--------------------------------------------|------------------------------------------------|
| unknown member, fenced epoch               | joins again; its records stay locked           |
| unknown session, wrong epoch, no connection| opens the session again                        |
| another broker leads                       | refreshes its metadata                         |

Times are monotonic milliseconds.

Source: KIP-932, KIP-1206 (no more records than requested), KIP-1222 (renew).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, ClassVar, Final, NamedTuple
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct, field

from penstock.client.errors import BrokerRefused, InvalidArgument, broker_error, code_name
from penstock.client.protocol import TopicAndPartition, TopicMetadata
from penstock.records import columnar

LEAVE: Final = -1
INITIAL: Final = 0
FINAL: Final = -1
RECORD_LIMIT: Final = 1
UNASSIGNED_MS: Final = 500.0
"""Heartbeat interval in milliseconds of a member to which no partition is assigned."""
_EPOCH_MAX: Final = 2**31 - 1
_REJOIN: Final = frozenset({"unknown_member_id", "fenced_member_epoch"})
SESSION_ERRORS: Final = frozenset(
    {"share_session_not_found", "invalid_share_session_epoch", "share_session_limit_reached"}
)


class AckRange(NamedTuple):
    """Acknowledgement of all offsets from `first` to `last`, with one `Kind`."""

    first: int
    last: int
    kind: int


class Acquired(NamedTuple):
    """Range of acquired offsets, with the number of times they have been delivered."""

    first: int
    last: int
    deliveries: int


class _Session(Struct):
    """Share session with a broker: the epoch of its next request, and its partitions."""

    epoch: int = INITIAL
    partitions: set[TopicAndPartition] = field(default_factory=set)


class ShareMember:
    """State machine of a share group member: membership, leaders and share sessions."""

    def __init__(self, group: str, member_id: str, topics: Sequence[str]) -> None:
        self.group = group
        self.member_id = member_id
        self.topics = tuple(topics)
        self.epoch = 0
        self.assigned: set[TopicAndPartition] = set()
        self._assignment: tuple[tuple[UUID, tuple[int, ...]], ...] = ()
        self._ids: dict[str, UUID] = {}
        self._leaders: dict[TopicAndPartition, int] = {}
        self._sessions: dict[int, _Session] = {}
        self._due_ms = float("-inf")
        self._turn = 0

    # The group

    def due_in_ms(self, now_ms: float) -> float:
        """Return the milliseconds until the next heartbeat; 0 or less means now."""
        return self._due_ms - now_ms

    def heartbeat(self, *, leave: bool = False) -> dict[str, Any]:
        """Return the body of the next heartbeat; the first one includes the topics."""
        joins = self.epoch == 0 and not leave
        return {
            "group_id": self.group,
            "member_id": self.member_id,
            "member_epoch": LEAVE if leave else self.epoch,
            "rack_id": None,
            "subscribed_topic_names": self.topics if joins else None,
        }

    def heartbeat_answered(self, answer: Any, now_ms: float) -> bool:
        """Process the response to a heartbeat; return whether the assignment changed.

        Raises:
            PenstockError: the coordinator returned an error. After an unknown member id or a fenced
                epoch the member joins again instead.
        """
        code = int(answer.error_code)
        if code:
            if code_name(code) in _REJOIN:
                self.epoch, self._due_ms = 0, now_ms
                return False
            raise broker_error(code, f"share group {self.group!r}", answer.error_message)
        self.epoch = int(answer.member_epoch)
        interval_ms = answer.heartbeat_interval.total_seconds() * 1000
        changed = False
        if answer.assignment is not None:
            found = tuple(
                (topic_partition.topic_id, tuple(map(int, topic_partition.partitions)))
                for topic_partition in answer.assignment.topic_partitions
            )
            changed, self._assignment = found != self._assignment, found
        self._due_ms = now_ms + (
            interval_ms if self._assignment else min(interval_ms, UNASSIGNED_MS)
        )
        return changed

    # Leaders

    def learn(self, topics: Iterable[TopicMetadata]) -> None:
        self._leaders.clear()
        for topic in topics:
            if topic.topic_id is not None:
                self._ids[topic.name] = topic.topic_id
            for partition in topic.partitions:
                self._leaders[topic.name, partition.index] = partition.leader
        names = {topic_id: name for name, topic_id in self._ids.items()}
        self.assigned = {
            (names[topic_id], index)
            for topic_id, indexes in self._assignment
            if topic_id in names
            for index in indexes
        }

    def leader(self, partition: TopicAndPartition) -> int:
        return self._leaders.get(partition, -1)

    def nodes(self) -> list[int]:
        nodes = sorted({self.leader(partition) for partition in self.assigned} - {-1})
        self._turn += 1
        start = self._turn % len(nodes) if nodes else 0
        return nodes[start:] + nodes[:start]

    @property
    def leaderless(self) -> bool:
        return any(self.leader(partition) < 0 for partition in self.assigned)

    # Sessions

    def opened(self, node: int) -> bool:
        return node in self._sessions and self._sessions[node].epoch != INITIAL

    def sessions(self) -> list[int]:
        return [node for node in self._sessions if self.opened(node)]

    def fetch(
        self, node: int, *, max_records: int, max_wait_ms: int, max_bytes: int
    ) -> dict[str, Any]:
        """Return the body of the next ShareFetch request to a broker.

        With `max_records` 0 it acquires nothing, and only opens the share session.
        """
        session = self._sessions.setdefault(node, _Session())
        mine = {partition for partition in self.assigned if self.leader(partition) == node}
        come, gone = mine - session.partitions, session.partitions - mine
        session.partitions = mine
        return {
            **self._head(session),
            "max_wait": max_wait_ms,
            "min_bytes": 1,
            "max_bytes": max_bytes,
            "max_records": max_records,
            "batch_size": max(max_records, 1),
            "share_acquire_mode": RECORD_LIMIT,
            "is_renew_ack": False,
            "topics": self._topics({partition: () for partition in come}),
            "forgotten_topics_data": [
                {"topic_id": topic_id, "partitions": indexes}
                for topic_id, indexes in self._by_topic(gone).items()
            ],
        }

    def acknowledge(
        self,
        node: int,
        ranges: Mapping[TopicAndPartition, Sequence[AckRange]],
        *,
        renews: bool,
        last: bool = False,
    ) -> dict[str, Any]:
        """Return the body of a ShareAcknowledge request; the broker's share session must be open.

        `renews` states that acknowledgements extend locks. `last` closes the share session.
        """
        session = self._sessions[node]
        head = self._head(session)
        if last:
            head["share_session_epoch"] = FINAL
        return {**head, "is_renew_ack": renews, "topics": self._topics(ranges)}

    def answered(self, node: int) -> None:
        """Advance the epoch of a broker's session after a response."""
        session = self._sessions[node]
        session.epoch = 1 if session.epoch >= _EPOCH_MAX else session.epoch + 1

    def lost(self, node: int) -> None:
        self._sessions.pop(node, None)

    def name(self, topic_id: UUID) -> str:
        return next((name for name, known in self._ids.items() if known == topic_id), "")

    def _head(self, session: _Session) -> dict[str, Any]:
        return {
            "group_id": self.group,
            "member_id": self.member_id,
            "share_session_epoch": session.epoch,
        }

    def _by_topic(self, partitions: Iterable[TopicAndPartition]) -> dict[UUID, list[int]]:
        found: dict[UUID, list[int]] = {}
        for topic, index in sorted(partitions):
            found.setdefault(self._ids[topic], []).append(index)
        return found

    def _topics(
        self, ranges: Mapping[TopicAndPartition, Sequence[AckRange]]
    ) -> list[dict[str, Any]]:
        topics: dict[UUID, list[dict[str, Any]]] = {}
        for (topic, index), acks in sorted(ranges.items()):
            batches = [
                {
                    "first_offset": ack.first,
                    "last_offset": ack.last,
                    "acknowledge_types": (ack.kind,),
                }
                for ack in acks
            ]
            topics.setdefault(self._ids[topic], []).append(
                {"partition_index": index, "acknowledgement_batches": batches}
            )
        return [
            {"topic_id": topic_id, "partitions": partitions}
            for topic_id, partitions in topics.items()
        ]


# Acquired records of a share group member, as columns; acknowledgements select rows by masks.
#
# `ranges_of` converts a mask to offset ranges per partition, so equal acknowledgements of adjacent
# records take few bytes. An acquired offset may have no record, because compaction removed it. Such
# offsets are sent as gaps, with the first acknowledgement for their partition.


Flags = npt.NDArray[np.bool_]
Offsets = npt.NDArray[np.int64]

SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        *columnar.RECORD_SCHEMA,
        ("deliveries", pa.int16()),
    ]
)
"""Columns of `Taken.table`."""


class Kind(IntEnum):
    """Kind of an acknowledgement; `GAP` is for offsets without a record."""

    GAP = 0
    ACK = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class LocksLost(BrokerRefused):
    """Acknowledgements were rejected: locks have expired, or other members hold the records.

    `rows` flags the rejected rows; other rows were accepted. The group delivers rejected records
    again. After a broken connection, some of the flagged rows may have been accepted.
    """

    code: ClassVar[str] = "invalid_record_state"

    def __init__(self, message: str, rows: Flags) -> None:
        super().__init__(message)
        self.rows = rows


class Piece(Struct, frozen=True, kw_only=True):
    """Acquired records of one partition, and the acquired offsets without a record."""

    partition: TopicAndPartition
    batch: Any
    gaps: tuple[AckRange, ...] = ()


def piece_of(partition: TopicAndPartition, data: Any, acquired: Sequence[Acquired]) -> Piece:
    """Decode fetched batches; return only the records that this member has acquired.

    Brokers send whole batches, which may also hold records of other members.

    Raises:
        CorruptBatch, RecordTooLarge, UnsupportedCodec: the batches cannot be decoded.
    """
    first, end = acquired[0].first, acquired[-1].last + 1
    batch = columnar.decode_batches(data, start_offset=first, end_offset=end)
    offsets = batch.column("offset").to_numpy()
    firsts = np.array([run.first for run in acquired], np.int64)
    lasts = np.array([run.last for run in acquired], np.int64)
    counts = np.array([run.deliveries for run in acquired], np.int16)
    run_of = np.searchsorted(firsts, offsets, side="right") - 1
    keep = (run_of >= 0) & (offsets <= lasts[run_of])
    batch, offsets = batch.filter(pa.array(keep)), offsets[keep]
    size = len(offsets)
    columns = [
        pa.repeat(pa.scalar(partition[0]), size),
        pa.repeat(pa.scalar(partition[1], pa.int32()), size),
        *batch.columns,
        pa.array(counts[run_of[keep]]),
    ]
    whole = int((lasts - firsts + 1).sum()) == size
    return Piece(
        partition=partition,
        batch=pa.RecordBatch.from_arrays(columns, schema=SCHEMA),
        gaps=() if whole else tuple(_gaps(offsets, acquired)),
    )


def _gaps(offsets: Offsets, acquired: Sequence[Acquired]) -> Iterator[AckRange]:
    for run in acquired:
        low, high = np.searchsorted(offsets, (run.first, run.last + 1))
        there = np.concatenate(([run.first - 1], offsets[low:high], [run.last + 1]))
        for at in np.flatnonzero(np.diff(there) > 1).tolist():
            yield AckRange(int(there[at]) + 1, int(there[at + 1]) - 1, Kind.GAP)


def ranges_of(numbers: Any, offsets: Offsets, rows: Flags, kind: Kind) -> dict[int, list[AckRange]]:
    """Convert the selected rows of a table to offset ranges, by number of the `Piece`.

    `numbers` and `offsets` have the piece number and the offset of each row, in ascending order.
    """
    at = np.flatnonzero(rows)
    if not at.size:
        return {}
    cut = (np.diff(numbers[at]) != 0) | (np.diff(offsets[at]) != 1)
    begins = at[np.concatenate(([0], np.flatnonzero(cut) + 1))]
    ends = at[np.concatenate((np.flatnonzero(cut), [at.size - 1]))]
    found: dict[int, list[AckRange]] = {}
    for number, first, last in zip(
        numbers[begins].tolist(), offsets[begins].tolist(), offsets[ends].tolist(), strict=True
    ):
        found.setdefault(number, []).append(AckRange(first, last, kind))
    return found


SendAcks = Callable[
    [Mapping[TopicAndPartition, Sequence[AckRange]]], Mapping[TopicAndPartition, str]
]
"""Function that sends acknowledgements and returns the rejected partitions with their reasons."""

RowSelection = Any
"""Selection of rows: flags per row (NumPy, Arrow or a list), row numbers, or None for open rows."""


class Taken:
    """Acquired records, which the member holds until it acknowledges them or their locks expire.

    `table` is sorted by partition and offset. Its columns are `topic`, `partition`, `offset`,
    `timestamp` (ms), `key`, `value`, `headers` and `deliveries` (1 for the first delivery).
    `lock_ms` is the duration of the locks from the acquisition on.
    """

    def __init__(self, pieces: Sequence[Piece], send_acks: SendAcks, *, lock_ms: int) -> None:
        self.table = pa.Table.from_batches([piece.batch for piece in pieces], schema=SCHEMA)
        self.lock_ms = lock_ms
        self._send_acks = send_acks
        self._pieces = pieces
        self._gaps = {piece.partition: piece.gaps for piece in pieces if piece.gaps}
        sizes = [piece.batch.num_rows for piece in pieces]
        self._piece_numbers = np.repeat(np.arange(len(pieces)), sizes)
        self._offsets: Offsets = self.table.column("offset").to_numpy()
        self.open: Flags = np.ones(len(self._offsets), np.bool_)
        """Flags of the rows that have no final acknowledgement."""

    def __len__(self) -> int:
        return len(self._offsets)

    def __iter__(self) -> Iterator[Record]:
        for row, values in enumerate(self.table.to_pylist()):
            yield Record(self, row, **values)

    def ack(self, rows: RowSelection = None) -> None:
        """Accept records as processed; return when the broker has stored the acknowledgement.

        Raises:
            InvalidArgument: row numbers are invalid, or rows were acknowledged before.
            LocksLost: the broker rejected some acknowledgements.
            PenstockError: no broker responded; it is unknown whether the acknowledgement is stored.
        """
        self._acknowledge(rows, Kind.ACK)

    def release(self, rows: RowSelection = None) -> None:
        """Return records to the group, which delivers them again with a higher delivery count;
        raise as `ack`.
        """
        self._acknowledge(rows, Kind.RELEASE)

    def reject(self, rows: RowSelection = None) -> None:
        """Reject records; a dead-letter topic, if configured, gets copies; raise as `ack`."""
        self._acknowledge(rows, Kind.REJECT)

    def renew(self, rows: RowSelection = None) -> None:
        """Extend the locks of records by another `lock_ms`; raise as `ack`."""
        self._acknowledge(rows, Kind.RENEW)

    def _acknowledge(self, rows: RowSelection, kind: Kind) -> None:
        selected = self._selected(rows)
        found = ranges_of(self._piece_numbers, self._offsets, selected, kind)
        ranges = {self._pieces[number].partition: runs for number, runs in found.items()}
        if kind != Kind.RENEW:
            for partition in ranges:
                ranges[partition] = sorted([*ranges[partition], *self._gaps.pop(partition, ())])
            self.open &= ~selected
        refused = self._send_acks(ranges) if ranges else {}
        if refused:
            numbers = [at for at, piece in enumerate(self._pieces) if piece.partition in refused]
            lost = selected & np.isin(self._piece_numbers, numbers)
            self.open &= ~lost
            reasons = "; ".join(f"{topic}-{at}: {why}" for (topic, at), why in refused.items())
            raise LocksLost(
                f"{int(lost.sum())} records are no longer acquired by this member: {reasons}", lost
            )

    def _selected(self, rows: RowSelection) -> Flags:
        if rows is None:
            return self.open.copy()
        given = np.asarray(rows)
        selected = np.zeros(len(self), np.bool_)
        if given.dtype == np.bool_:
            if given.shape != selected.shape:
                raise InvalidArgument(
                    f"rows has {len(given)} flags: must be one flag for each of the {len(self)}"
                    " records"
                )
            selected |= given
        elif given.size:
            if given.dtype.kind not in "iu" or given.min() < 0 or given.max() >= len(self):
                raise InvalidArgument(
                    f"rows: must be flags, or row numbers from 0 to {len(self) - 1}"
                )
            selected[given] = True
        closed = int((selected & ~self.open).sum())
        if closed:
            raise InvalidArgument(
                f"rows: {closed} of the selected rows were acknowledged before, or their locks"
                " were lost"
            )
        return selected


class Record(Struct, frozen=True):
    """Acquired record, with methods that acknowledge only this record.

    Each method sends a request. The methods of `Taken` acknowledge many records with one request.
    """

    _taken: Taken
    _row: int
    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Mapping[str, Any]]
    deliveries: int

    def ack(self) -> None:
        self._taken.ack([self._row])

    def release(self) -> None:
        self._taken.release([self._row])

    def reject(self) -> None:
        self._taken.reject([self._row])

    def renew(self) -> None:
        self._taken.renew([self._row])
