"""Interface of connectors: sources, sinks, their settings, and the rows that they exchange.

Rows are PyArrow tables with these columns. Only `value` is required:

    key        any type, or null
    value      any type; usually a struct, or text or bytes that are written as they are
    headers    list<struct<key: string, value: binary>>
    timestamp  timestamp[ms, UTC]: null means the time of the write
    partition  int32: null means that the partitioner chooses
    order      int64, only from sources: rank of the row among the rows of its topic in the batch

Rows of a sink also have the columns `partition` and `offset` of the log. Transforms keep columns
that they do not know.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Generic, TypeVar, dataclass_transform

import numpy as np
import pyarrow as pa

from penstock.base.errors import InvalidError
from penstock.base.settings import setting
from penstock.connect.errors import RowsRejected

KEY: Final = "key"
VALUE: Final = "value"
HEADERS: Final = "headers"
TIMESTAMP: Final = "timestamp"
PARTITION: Final = "partition"
OFFSET: Final = "offset"
ORDER: Final = "order"


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(setting,))
class ConnectorSettings:
    """Base class of a connector's settings; each field is declared by `setting`.

    Subclasses become frozen dataclasses. The keys in a connector's file are the fields' names.
    `__post_init__` may check several settings together; it raises `InvalidSetting`.
    """

    SEPARATOR: ClassVar[str] = "_"

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)


S = TypeVar("S", bound=ConnectorSettings)


@dataclass(frozen=True, slots=True)
class Records:
    """Rows of one topic; see the module for their columns."""

    topic: str
    rows: pa.Table

    @property
    def count(self) -> int:
        return int(self.rows.num_rows)

    def with_rows(self, rows: pa.Table) -> Records:
        return Records(self.topic, rows)

    def without(self, rejected: RowsRejected) -> Records:
        """Return the rows that were not rejected."""
        return self.with_rows(self.rows.filter(pa.array(_kept(self.count, rejected))))


def _kept(count: int, rejected: RowsRejected) -> Any:
    """Return a flag for each of `count` rows (NumPy), which is false if the row was rejected."""
    kept = np.ones(count, np.bool_)
    kept[list(rejected.rows)] = False
    return kept


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceBatch:
    """Rows that a source yields, which become one transaction of the log.

    Attributes:
        records: rows by topic. Several entries may have one topic. Their rows are written in the
            order of their columns `order`; without it, one entry after the other.
        positions: changed positions, by name: JSON values from which `read` continues after the
            batch. None removes a position.
        caught_up: whether the source has read all data that was there when the run began. A run
            with `--once` ends after such a batch.
    """

    records: Sequence[Records] = ()
    positions: Mapping[str, Any] = field(default_factory=dict)
    caught_up: bool = False

    @classmethod
    def of(
        cls, topic: str, rows: Any, positions: Mapping[str, Any], *, caught_up: bool = False
    ) -> SourceBatch:
        """Return a batch of one topic. `rows` is a PyArrow table or record batch."""
        table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        return cls(records=(Records(topic, table),), positions=positions, caught_up=caught_up)

    @property
    def count(self) -> int:
        return sum(records.count for records in self.records)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceContext:
    """Facts that a source may use.

    Attributes:
        connector: name of the connector.
        once: whether the run ends when the source has caught up.
        report: reports a line about a step that takes long or that changed another system.
    """

    connector: str
    once: bool = False
    report: Any = print


class Source(ABC, Generic[S]):
    """Base class of sources. One instance serves one run; all calls are made by one thread."""

    settings_type: ClassVar[type[Any]]

    def __init__(self, settings: S, context: SourceContext) -> None:
        self.settings = settings
        self.context = context

    def problems(self) -> Sequence[str]:
        """Return what keeps the source from running, without changing anything; for `validate`.

        Each entry is `setting: message; remedy`, or a message without a setting.
        """
        return ()

    def plan(self) -> Sequence[str]:
        """Return the steps that a run would take in other systems, one line each."""
        return ()

    def topics(self) -> Sequence[str]:
        """Return the topics to create before the first batch; others are created on first use."""
        return ()

    @abstractmethod
    def read(self, positions: Mapping[str, Any]) -> Iterator[SourceBatch]:
        """Yield batches from the stored positions on; without new data, yield an empty batch.

        The generator must yield at least every 100 ms, so that the runner can commit and stop.

        Raises:
            SourceUnavailable: the system does not respond; the runner starts a new `read` later.
            ConnectorFailed: the source cannot continue.
        """

    def committed(self, positions: Mapping[str, Any]) -> None:
        """Accept that the log has committed a batch with these positions."""

    def facts(self) -> Mapping[str, Any]:
        """Return facts for the status page: JSON values by name."""
        return {}

    def close(self) -> None:
        """Release connections and files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkBatch:
    """Rows that were read from one topic; a retry has the same rows.

    Attributes:
        topic: topic that was read. A sink that stores offsets stores them by this name.
        parts: rows with the columns `partition` and `offset` of that topic. There are several parts
            if transforms give the rows different topics or types, and none if no row is left.
        next_offsets: for each partition, the offset after the batch.
    """

    topic: str
    parts: Sequence[Records]
    next_offsets: Mapping[int, int]

    @property
    def count(self) -> int:
        return sum(part.count for part in self.parts)

    @property
    def partitions(self) -> Any:
        """Partitions of all rows (NumPy), one part after the other."""
        return self._numbers(PARTITION)

    @property
    def offsets(self) -> Any:
        """Offsets of all rows (NumPy), one part after the other."""
        return self._numbers(OFFSET)

    def _numbers(self, name: str) -> Any:
        columns = [part.rows.column(name).to_numpy() for part in self.parts]
        return np.concatenate(columns) if columns else np.zeros(0, np.int64)

    def without(self, rejected: RowsRejected) -> SinkBatch:
        """Return the batch without rejected rows."""
        ends = np.cumsum([part.count for part in self.parts])[:-1]
        masks = np.split(_kept(self.count, rejected), ends)
        parts = [
            part.with_rows(part.rows.filter(pa.array(mask)))
            for part, mask in zip(self.parts, masks, strict=True)
            if mask.any()
        ]
        return dataclasses.replace(self, parts=parts)


class Sink(ABC, Generic[S]):
    """Base class of sinks. One instance serves one run; all calls are made by one thread.

    A sink that stores offsets together with the rows returns them from `offsets`; then each record
    is written once. The runner commits offsets of other sinks after `flush`, so records may be
    written again after a crash.
    """

    settings_type: ClassVar[type[Any]]
    raw: ClassVar[bool] = False
    """Whether `write` needs keys and values as bytes, instead of columns of the value format."""
    resumes: ClassVar[bool] = False
    """Whether an instance is used again after `SinkUnavailable`. It must leave out the rows that it
    has accepted. The runner creates a new instance of other sinks."""

    def __init__(self, settings: S, connector: str) -> None:
        self.settings = settings
        self.connector = connector

    def problems(self) -> Sequence[str]:
        """Return what keeps the sink from running, without changing anything; as for sources."""
        return ()

    def plan(self) -> Sequence[str]:
        """Return the steps that a run would take in other systems, one line each."""
        return ()

    def offsets(self) -> Mapping[tuple[str, int], int] | None:
        """Return the next offset of each partition that the target stores; None if it has none."""
        return None

    @abstractmethod
    def write(self, batch: SinkBatch) -> None:
        """Write rows, or keep them until `flush`.

        Raises:
            RowsRejected: some rows can never be written. The indexes count the rows of all parts.
                The runner calls again without these rows.
            SinkUnavailable: the target does not respond; the runner repeats the call.
        """

    def flush(self) -> None:
        """Return when all rows that `write` has accepted are stored, but for those of `unstored`.

        Raises:
            SinkUnavailable: the target does not respond; the runner repeats the batches.
        """

    def unstored(self) -> Mapping[tuple[str, int], int]:
        """Return the offset of the first row of each partition that `flush` has not stored."""
        return {}

    def facts(self) -> Mapping[str, Any]:
        """Return facts for the status page: JSON values by name."""
        return {}

    def close(self) -> None:
        """Release connections and files; may be called twice.

        After a run without an error, rows of `unstored` are stored.
        """


def records_of(topic: str, columns: Mapping[str, Any]) -> Records:
    """Return rows with the given columns, in the order that the module names.

    Raises:
        InvalidError: there is no column `value`.
    """
    if VALUE not in columns:
        raise InvalidError(f"rows of topic {topic} have no column {VALUE!r}")
    known = (KEY, VALUE, HEADERS, TIMESTAMP, PARTITION, ORDER)
    names = [name for name in known if name in columns]
    return Records(topic, pa.table([columns[name] for name in names], names=names))
