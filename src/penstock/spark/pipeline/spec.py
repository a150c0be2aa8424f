"""A pipeline as values: what its file says, checked for shape, with nothing run yet.

    name = "orders"

    [run]
    trigger = "2 seconds"                       # or "now" (no pause), or "once" (to the end)

    [source.orders]
    topic = "orders"
    format = "json"
    schema = "id bigint, customer string, amount decimal(12,2), at timestamp"

    [source.orders.expect]
    "amount is positive" = "amount > 0"         # rows that are not go where errors.on_invalid says

    [step.masked]
    sql = "select id, sha2(customer, 256) as customer, amount, at from orders"

    [sink.lake]
    from = "masked"
    table = "lake/orders"

    [errors]
    dead_letters = "orders.dead"

Names of sources and steps share one space: they are the views that SQL reads. A source's view has
the fields of its value and the column `_record`, a struct of the record it came from (topic,
partition, offset, timestamp, key, value, headers, and attempt, the number of tries before this
one); a step keeps it if it selects it. Sinks drop it.

Relative paths in a file are relative to the file. `parsing.py` makes these values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from penstock.formats import ValueFormat

Otherwise = Literal["warn", "drop", "dead-letter", "park", "retry", "fail"]
OTHERWISE: Final[tuple[Otherwise, ...]] = (
    "warn", "drop", "dead-letter", "park", "retry", "fail",
)  # fmt: skip
TableMode = Literal["append", "upsert", "cdc"]
OutputMode = Literal["append", "update"]

RECORD: Final = "_record"
"""The column with the record that a row came from."""
HOLDING: Final[frozenset[Otherwise]] = frozenset({"park", "retry"})
KEEPING: Final[frozenset[Otherwise]] = frozenset({"dead-letter", "park", "retry"})
"""What needs the record itself, and so the column `_record`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A condition in SQL that rows should meet, and what happens to those that do not.

    A condition that is null is not met. `otherwise` is never left open: parsing fills in the
    pipeline's default.
    """

    name: str
    condition: str
    otherwise: Otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A view of topics, of an outbox, or of a table.

    Exactly one of `topics`, `pattern` and `table` is given; `outbox` is the root whose payloads
    the topics' pointers name. `table` is read as it is when a batch begins. `start` is
    `earliest`, `latest` or a time in ISO 8601, and counts for a query without a checkpoint.
    `time` (a column) and `delay` (an interval) make a watermark. `deduplicate` names columns
    whose combinations are let through once within the watermark's delay.
    """

    name: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    table: str | None = None
    outbox: Path | None = None
    value_format: ValueFormat = field(default_factory=ValueFormat)
    start: str = "earliest"
    time: str | None = None
    delay: str | None = None
    deduplicate: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()

    @property
    def streaming(self) -> bool:
        """Whether it is read from topics."""
        return self.table is None

    @property
    def can_fail(self) -> bool:
        """Whether a record's value may turn out not to be readable."""
        return self.streaming and (self.value_format.kind != "raw" or self.outbox is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonStep:
    """`module.py:function`, called with one frame per input, in order; returns a frame."""

    file: Path
    function: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A view made of other views, by SQL or by Python.

    `inputs` are the views read: given for Python, found in the text for SQL. `output_mode` is
    how a stateful step (windows, joins of streams, deduplication) hands rows on.
    """

    name: str
    sql: str | None = None
    python: PythonStep | None = None
    inputs: tuple[str, ...] = ()
    output_mode: OutputMode = "append"
    time: str | None = None
    delay: str | None = None
    deduplicate: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSink:
    """A Delta table. `upsert` and `cdc` need `keys`; `order_by` says which row of a key is newest.

    `cdc` deletes a key when the condition `delete_when` holds for its newest row.
    """

    table: str
    mode: TableMode = "append"
    keys: tuple[str, ...] = ()
    order_by: str | None = None
    delete_when: str | None = None
    partition_by: tuple[str, ...] = ()
    add_columns: bool = False
    codec: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSink:
    """A topic, exactly once. `key`, `value`, `partition` and `headers` are SQL expressions.

    `value` is by default the whole row as JSON. `ordered` keeps the order of the source's
    records for each key.
    """

    topic: str
    key: str | None = None
    value: str | None = None
    partition: str | None = None
    headers: str | None = None
    ordered: bool = False
    codec: str = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSink:
    """The first rows of each batch on the terminal."""

    rows: int = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink:
    """Where a view goes."""

    name: str
    view: str
    to: TableSink | TopicSink | ConsoleSink


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorPolicy:
    """What happens to records that cannot be decoded, and defaults for rules.

    `dead_letters` is the topic of rejected records. `retry_delays_seconds` are the tiers: a record
    is tried again after each, then dead-lettered. Parked records wait until somebody releases
    them. `keep_order` holds what follows a held record of the same key too. At most `held_max`
    records are held; one more fails the query.
    """

    on_invalid: Otherwise = "dead-letter"
    dead_letters: str | None = None
    retry_delays_seconds: tuple[float, ...] = ()
    keep_order: bool = True
    held_max: int = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How the pipeline runs. `trigger` is `now`, `once` or an interval of Spark's.

    `tick_seconds` is how often a query with held records looks for due ones when nothing new
    arrives. `restarts` counts how often a failed query is started again in a row.
    """

    bootstrap: str
    admin_url: str | None
    state: Path
    trigger: str = "now"
    records_max: int | None = None
    bytes_max: int | None = None
    tick_seconds: float = 5.0
    restarts: int = 3
    fail_on_data_loss: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSpec:
    """A whole pipeline. Mappings keep the order of the file."""

    name: str
    file: Path
    run: RunOptions
    sources: Mapping[str, Source]
    steps: Mapping[str, Step]
    sinks: Mapping[str, Sink]
    errors: ErrorPolicy
    spark: Mapping[str, str] = field(default_factory=dict)
