"""Specification of a pipeline: the checked content of its file, and the declaration of its keys.

    name = "orders"

    [run]
    trigger = "2 seconds"                       # or "now" (no pause), or "once" (to the end)

    [source.orders]
    topic = "orders"
    format = "json"
    schema = "id bigint, customer string, amount decimal(12,2), at timestamp"

    [source.orders.expect]
    "amount is positive" = "amount > 0"         # errors.on_invalid is the action for other rows

    [step.masked]
    sql = "select id, sha2(customer, 256) as customer, amount, at from orders"

    [sink.lake]
    from = "masked"
    table = "lake/orders"

    [errors]
    dead_letters = "orders.dead"

Sources and steps are views that SQL reads by their names, so a source and a step must not share a
name. A source's view has the fields of its value and the column `_record`, a struct of its record:
topic, partition, offset, timestamp, key, value, headers, and attempt (the number of earlier tries).
A step's view has `_record` only if the step selects it. Sinks drop it. Relative paths start at the
file's directory. The field with a key's value declares the key: name, kind, default and text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from penstock.base.settings import SettingInfo, by_name, describe, setting
from penstock.formats import ValueFormat
from penstock.formats.value_format import KINDS as FORMATS
from penstock.formats.value_format import NEWEST
from penstock.security.data.masks import (
    DEFAULT_LENGTH,
    FIXED,
    KEPT_MAX,
    LENGTHS_MAX,
    Mask,
    TokenForm,
)
from penstock.security.data.masks import KINDS as MASKS
from penstock.spark.pipeline import kinds

Otherwise = Literal["warn", "drop", "dead-letter", "park", "retry", "fail"]
OTHERWISE: Final = kinds.choice("warn", "drop", "dead-letter", "park", "retry", "fail")
TableMode = Literal["append", "upsert", "cdc"]
OutputMode = Literal["append", "update"]
BOOTSTRAP: Final = "127.0.0.1:9092"
ADMIN: Final = "http://127.0.0.1:9644"
LAKE_TRIGGER: Final = "5 seconds"
"""Default trigger of pipelines that write Iceberg tables, each of whose commits is a snapshot."""

REGISTRY_VARIABLE: Final = "PENSTOCK_REGISTRY"
"""Environment variable with the address of the schema registry."""

RECORD: Final = "_record"
"""Column with the record that a row came from."""
ERROR: Final = "_penstock_error"
"""Column of decoded records with the decoding error; null if there is none."""
RECORD_FIELDS: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
"""Fields of `_record` that are columns of the record."""
HOLDING: Final[frozenset[Otherwise]] = frozenset({"park", "retry"})
KEEPING: Final[frozenset[Otherwise]] = frozenset({"dead-letter", "park", "retry"})
"""Actions that need the record itself, and so the column `_record`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Condition in SQL that rows should meet, and the action for those that do not.

    A null condition is not met. Parsing sets `otherwise` to the pipeline's default if it is
    missing.
    """

    name: str
    condition: str = setting(MISSING, "Required: the condition.", name="that", kind=kinds.SQL)
    otherwise: Otherwise = setting(
        MISSING, "The action for other rows.", kind=OTHERWISE, shown="`errors.on_invalid`"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Protection:
    """Protection or decryption of one column.

    `subject` is an expression over the row: the owner of the encryption key.
    """

    column: str
    by: Literal["mask", "tokenize", "encrypt", "decrypt"] = setting(
        MISSING, "Required: the protection. `decrypt` is only for sources of topics.",
        kind=kinds.choice("mask", "tokenize", "encrypt", "decrypt"),
    )  # fmt: skip
    kind: str = setting(
        "all", "For `mask`: the part that stays readable. `all` shows a fixed text, `keep` the"
        " `first` and `last` characters, `email` the first character and the domain, `card` the"
        " last four digits, `phone` the last two. Other forms of values are masked entirely.",
        kind=kinds.choice(*MASKS),
    )  # fmt: skip
    first: int = setting(
        0, "For the mask `keep`: characters shown at the front.", kind=kinds.whole(0, KEPT_MAX)
    )
    last: int = setting(
        0, "For the mask `keep`: characters shown at the end.", kind=kinds.whole(0, KEPT_MAX)
    )
    text: str = setting(
        FIXED, "For other masks: the text that replaces an entire value.", kind=kinds.TEXT
    )
    field: str | None = setting(
        None, "For `tokenize`: the name of the key. Columns to be joined need the same name.",
        kind=kinds.TEXT, shown="the column's name",
    )  # fmt: skip
    form: str = setting(
        "hex", "For `tokenize`: the characters of tokens.", kind=kinds.choice(*LENGTHS_MAX)
    )
    length: int = setting(
        DEFAULT_LENGTH, "For `tokenize`: the number of characters of a token, at least 8.",
        kind=kinds.COUNT,
    )  # fmt: skip
    subject: str = setting(
        "", "For `encrypt` and `decrypt`, required: an expression for the owner of the key.",
        kind=kinds.SQL, shown="–",
    )  # fmt: skip
    gives: Literal["text", "bytes"] = setting(
        "text", "For `decrypt`: the column's original type.", kind=kinds.choice("text", "bytes")
    )

    @property
    def needs_keys(self) -> bool:
        return self.by != "mask"

    @property
    def mask(self) -> Mask:
        """Mask with this kind and these numbers.

        Raises:
            InvalidMask: a number is out of bounds.
        """
        return Mask(kind=self.kind, first=self.first, last=self.last, text=self.text)

    @property
    def token_form(self) -> TokenForm:
        """Form of the tokens.

        Raises:
            InvalidTokenForm: the form does not allow the length.
        """
        return TokenForm(form=self.form, length=self.length)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Common fields of sources and steps.

    `time` (a column) and `delay` (an interval) define a watermark. Of rows that are equal in the
    columns `deduplicate`, one passes within the watermark's delay.
    """

    name: str
    time: str | None = setting(
        None, "The column with the event time. Defines a watermark, together with `delay`.",
        kind=kinds.COLUMN,
    )  # fmt: skip
    delay: str | None = setting(
        None, "How far the `time` of a row may be behind the newest one before the row is late.",
        kind=kinds.DELAY,
    )  # fmt: skip
    deduplicate: tuple[str, ...] = setting(
        (), "Columns. Of rows that are equal in all of them, one passes within the watermark's"
        " `delay`. Needs `time`.", kind=kinds.COLUMNS,
    )  # fmt: skip
    rules: tuple[Rule, ...] = setting(
        (), "Rules that rows should meet: see [Rules](#rules).", name="expect", kind=kinds.RULES
    )
    protections: tuple[Protection, ...] = setting(
        (), "Columns that are masked, tokenised, encrypted or decrypted: see"
        " [Protection](#protection).", name="protect", kind=kinds.PROTECTIONS,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Source(View):
    """View of topics, of an outbox, or of a table.

    Exactly one of `topics`, `pattern` and `table` is given. `outbox` is the root of the payloads
    that the topics' pointers name. `table` is read in its version at the start of each batch.
    `start` applies to a query without a checkpoint.
    """

    topics: tuple[str, ...] = setting((), "Several topics.", kind=kinds.TOPICS)
    pattern: str | None = setting(
        None, "All topics whose whole name matches, including later topics.", kind=kinds.PATTERN
    )
    table: str | None = setting(
        None, "A Delta table, read in its version at the start of each batch.", kind=kinds.PLACE
    )
    outbox: Path | None = setting(
        None, "The root of an outbox: the topic's records name payloads in files below it.",
        kind=kinds.PATH,
    )  # fmt: skip
    value_format: ValueFormat = field(default_factory=ValueFormat)
    start: str = setting(
        "earliest", "The start of a pipeline without state. A time is in ISO 8601 with its zone.",
        kind=kinds.START,
    )  # fmt: skip

    @property
    def streaming(self) -> bool:
        return self.table is None

    @property
    def can_fail(self) -> bool:
        """Whether a record's value may turn out to be undecodable."""
        return self.streaming and (
            self.value_format.kind != "raw" or self.outbox is not None or self.decrypts
        )

    @property
    def decrypts(self) -> bool:
        return any(protection.by == "decrypt" for protection in self.protections)


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonStep:
    """Python function that gets one data frame per input, in order, and returns a data frame."""

    file: Path
    function: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(View):
    """View made of other views, by SQL or by Python.

    `inputs` are the views that it reads: for Python as listed in the file, for SQL as found in the
    query.
    `output_mode` applies to stateful steps (windows, joins of streams, deduplication).
    """

    sql: str | None = setting(
        None, "A SELECT of Spark SQL over sources and steps, by their names.", kind=kinds.SQL
    )
    python: PythonStep | None = setting(
        None, "A function that is called with one DataFrame for each of `inputs`, in their order,"
        " and returns a DataFrame.", kind=kinds.FUNCTION,
    )  # fmt: skip
    inputs: tuple[str, ...] = setting(
        (), "For `python`, required: the views that the function gets.", kind=kinds.VIEWS
    )
    output_mode: OutputMode = setting(
        "append", "For stateful steps (windows, joins of streams): `append` emits a row when it is"
        " final, `update` whenever it changes.", name="output",
        kind=kinds.choice("append", "update"),
    )  # fmt: skip


def _codec(default: str | None) -> Any:
    return setting(
        default, "The compression of a topic's batches, or of a table's files.",
        kind=kinds.choice("none", "gzip", "snappy", "lz4", "zstd"),
        shown="`none`; for Delta tables `snappy`, for Iceberg tables `zstd`",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSink:
    """Delta table. `upsert` and `cdc` need `keys`; `order_by` orders the rows of a key.

    `cdc` deletes a key when the condition `delete_when` holds for its newest row. Without
    `delete_when` it applies change events, in the order of the database.
    """

    SEPARATOR: ClassVar = "_"

    table: str = setting(MISSING, "A Delta table.", kind=kinds.PLACE)
    mode: TableMode = setting(
        "append", "For tables: `upsert` keeps the newest row of a key; `cdc` also deletes keys.",
        kind=kinds.choice("append", "upsert", "cdc"),
    )  # fmt: skip
    keys: tuple[str, ...] = setting(
        (), "For `upsert` and `cdc`, required: the columns of the key.", kind=kinds.COLUMNS
    )
    order_by: str | None = setting(
        None, "For `upsert` and `cdc`: the column whose greatest value marks a key's newest row.",
        kind=kinds.COLUMN,
    )  # fmt: skip
    delete_when: str | None = setting(
        None, "For `cdc`, required unless the view has change events (`format` or `envelope` is"
        " `debezium`): a condition in SQL. A key is deleted if its newest row meets it.",
        kind=kinds.SQL, shown="–",
    )  # fmt: skip
    history: bool = setting(
        False, "For `cdc` of change events: whether the table keeps all versions of a row, with"
        " `__START_AT` and `__END_AT`, which is null in the current version.", kind=kinds.FLAG,
    )  # fmt: skip
    partition_by: tuple[str, ...] = setting(
        (),
        "For tables with `append`, and for Iceberg tables: the columns to partition by. Iceberg has"
        " also `day(at)`, `bucket(16, id)` and others.",
        kind=kinds.COLUMNS,
    )
    add_columns: bool = setting(
        False, "For tables: whether columns that the table lacks are added to it.",
        kind=kinds.FLAG,
    )  # fmt: skip
    codec: str | None = _codec(None)

    @property
    def applies_changes(self) -> bool:
        """Whether the sink applies change events, in the order of the database."""
        return self.mode == "cdc" and self.delete_when is None


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergSink(TableSink):
    """Iceberg table of a catalogue; `table` is its name."""

    table: str = setting(MISSING, "An Iceberg table.", name="iceberg", kind=kinds.LAKE_TABLE)
    catalog: Mapping[str, str] | None = setting(
        None, "For Iceberg tables: the catalogue, by its properties as pyiceberg names them"
        " (`type`, `uri`, `warehouse`), or by its name in pyiceberg's own configuration.",
        kind=kinds.CATALOG, shown="`default`",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSink:
    """Topic to which rows are written exactly once."""

    topic: str = setting(MISSING, "A topic.", kind=kinds.TOPIC)
    key: str | None = setting(
        None, "For topics: an expression for the record's key.", kind=kinds.SQL, shown="null"
    )
    value: str | None = setting(
        None, "For topics: an expression for the record's value.", kind=kinds.SQL,
        shown="the row as JSON",
    )  # fmt: skip
    partition: str | None = setting(
        None, "For topics: an expression for the partition.", kind=kinds.SQL, shown="by the key"
    )
    headers: str | None = setting(
        None, "For topics: an expression for the headers.", kind=kinds.SQL, shown="none"
    )
    transactional: bool = setting(
        False, "For topics: whether each batch is a transaction, for `read_committed` consumers.",
        kind=kinds.FLAG,
    )  # fmt: skip
    ordered: bool = setting(
        False, "For topics: whether records of one `key` keep the order of the source's records.",
        kind=kinds.FLAG,
    )  # fmt: skip
    codec: str = _codec("none")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSink:
    """Terminal, which shows the first rows of each batch."""

    rows: int = setting(
        20, "The first rows of each batch on the terminal; `true` shows 20.", name="console",
        kind=kinds.ROWS, shown="–",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink:
    """Sink: a view and the target that its rows are written to."""

    name: str
    view: str = setting(
        MISSING, "Required: the source or step that is written.", name="from", kind=kinds.VIEW
    )
    to: TableSink | TopicSink | ConsoleSink


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorPolicy:
    """Actions for undecodable records and late rows, and the default action of rules.

    Parked records wait until an operator releases them.
    """

    SEPARATOR: ClassVar = "_"

    on_invalid: Otherwise = setting(
        "dead-letter", "The action for records that cannot be decoded, and for rules without"
        " `otherwise`.", kind=OTHERWISE,
    )  # fmt: skip
    dead_letters: str | None = setting(
        None, "The dead-letter topic. Required if an action may be `dead-letter` or `retry`.",
        kind=kinds.TOPIC,
    )  # fmt: skip
    retry_delays_seconds: tuple[float, ...] = setting(
        (), "Required for `retry`: the delay before each try. Then the record is dead-lettered.",
        name="retry_delays", kind=kinds.GROWING,
    )  # fmt: skip
    on_late: Literal["dead-letter", "drop"] = setting(
        "dead-letter", "The action for rows behind the watermark of a stateful step, or without its"
        " time. They are counted. Without `dead_letters` they are dropped.",
        kind=kinds.choice("dead-letter", "drop"),
    )  # fmt: skip
    keep_order: bool = setting(
        True, "Whether later records with the key of a held record are held too.", kind=kinds.FLAG
    )
    held_max: int = setting(
        100_000, "Most held records of a query; with more the query fails.", kind=kinds.COUNT
    )

    @property
    def late_dead_letters(self) -> bool:
        return self.dead_letters is not None and self.on_late == "dead-letter"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of a run. `trigger` is `now`, `once` or an interval in Spark's form."""

    SEPARATOR: ClassVar = "_"

    bootstrap: str = setting(
        MISSING, "The brokers. A flag overrides the file, which overrides the environment"
        " (`PENSTOCK_BOOTSTRAP`).", kind=kinds.SERVERS, shown=f"`{BOOTSTRAP}`",
    )  # fmt: skip
    admin_url: str | None = setting(
        MISSING, "The broker's admin address. A flag overrides the file, which overrides the"
        " environment (`PENSTOCK_ADMIN_URL`).", name="admin", kind=kinds.URL,
        shown=f"`{ADMIN}`",
    )  # fmt: skip
    state: Path = setting(
        MISSING, "The directory of checkpoints, held records and the journal. A flag overrides the"
        " file. If the directory is deleted, the pipeline starts without state.",
        kind=kinds.PATH, shown="`.penstock/<name>`",
    )  # fmt: skip
    keys: Path | None = setting(
        None, "The directory of the keyring, for tokens and encrypted columns."
        " `penstock keys init` creates one. Spark's workers open it too.", kind=kinds.PATH,
    )  # fmt: skip
    master_key: str | None = setting(
        None, "Location of the keyring's master key: a file, or `env:NAME` for a variable of the"
        " environment.", kind=kinds.MASTER_KEY, shown="`master.key` in `keys`",
    )  # fmt: skip
    trigger: str = setting(
        "now", "When a batch begins: as soon as the last one ended, or at each interval. `once`"
        " reads the records that exist when the run starts, and ends.", kind=kinds.TRIGGER,
        shown="`now`; with Iceberg tables `5 seconds`",
    )  # fmt: skip
    records_max: int | None = setting(
        None, "Most records of a batch.", name="max_records", kind=kinds.COUNT, shown="no limit"
    )
    bytes_max: int | None = setting(
        None, "Most stored bytes of a batch.", name="max_bytes", kind=kinds.SIZE, shown="no limit"
    )
    tick_seconds: float = setting(
        5.0, "Has no effect: a batch begins when the retry of a held record is due.", name="tick",
        kind=kinds.INTERVAL, shown="`5 seconds`",
    )  # fmt: skip
    restarts: int = setting(
        3, "Most restarts of a query without a finished batch in between.", kind=kinds.COUNT_OR_NONE
    )
    fail_on_data_loss: bool = setting(
        True, "Whether records that were deleted before they were read stop the pipeline.",
        kind=kinds.FLAG,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSpec:
    """Content of a pipeline's file after all checks. Mappings keep the order of the file."""

    name: str = setting(
        MISSING, "The pipeline's name in consumer groups, commits and state. It may have letters,"
        " digits, `.`, `_` and `-`. A pipeline with another name starts without state.",
        kind=kinds.TEXT,
        shown="the file's name without its ending; for `pipeline.toml`, the directory's name",
    )  # fmt: skip
    file: Path
    run: RunOptions
    sources: Mapping[str, Source]
    steps: Mapping[str, Step]
    sinks: Mapping[str, Sink]
    errors: ErrorPolicy
    spark: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class OneTopic:
    """Key `topic`, which sets `Source.topics` to one topic."""

    topics: tuple[str, ...] = setting((), "One topic.", name="topic", kind=kinds.ONE_TOPIC)


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatKeys:
    """Keys of a source that set the fields of its `ValueFormat`."""

    SEPARATOR: ClassVar = "_"

    kind: str = setting(
        "raw", "The format of values. `raw` gives their bytes in the column `value`; `text` is"
        " UTF-8; `registry` reads each value with its own schema of a schema registry; `debezium`"
        " reads change events, JSON without a schema, into the table's columns and `_change`.",
        name="format", kind=kinds.choice(*FORMATS),
    )  # fmt: skip
    schema: str | None = setting(
        None, 'For `json`, required: Spark\'s DDL (`"id bigint, at timestamp"`), or `infer`, which'
        " reads a sample. For `debezium`, required: the DDL of the table's columns.",
        kind=kinds.TEXT,
    )  # fmt: skip
    schema_file: str | None = setting(
        None, "For `json-schema`, `avro` and `protobuf`, required: a `.json`, `.avsc` or `.proto`"
        " file, or a compiled descriptor set.", kind=kinds.PATH,
    )  # fmt: skip
    message: str | None = setting(
        None, "For `protobuf`, required: the full name of the message. For `registry`: the message,"
        " if the reader's Protobuf schema has several.", kind=kinds.TEXT,
    )  # fmt: skip
    framing: str = setting(
        "none", "`confluent` skips the header that a schema registry's serialisers write."
        " Records need one of `ids`.", kind=kinds.choice("none", "confluent"),
    )  # fmt: skip
    ids: tuple[int, ...] = setting(
        (), "For `framing = \"confluent\"`: the ids of schemas whose values `schema_file` reads."
        " Records with another id cannot be decoded.", kind=kinds.IDS,
        shown="that of the first record",
    )  # fmt: skip
    registry: str | None = setting(
        None, "For `registry`, required: the schema registry. The file overrides the"
        " environment (`PENSTOCK_REGISTRY`).", kind=kinds.REGISTRY, shown="`PENSTOCK_REGISTRY`",
    )  # fmt: skip
    registry_config: str | None = setting(
        None, "For `registry`: a file with the security options of its client: `sasl.username`,"
        " `sasl.password`, `ssl.truststore.location` and others.", kind=kinds.PATH,
        shown="`PENSTOCK_CLIENT_CONFIG`",
    )  # fmt: skip
    subject: str | None = setting(
        None, "For `registry`: the subject of the reader's schema. Required for several topics.",
        kind=kinds.TEXT, shown="`<topic>-value`",
    )  # fmt: skip
    reader: str = setting(
        NEWEST, "For `registry`: the schema that defines the columns, and that values are read as."
        " `latest` is the newest version when the pipeline starts.", kind=kinds.READER,
    )  # fmt: skip
    envelope: str | None = setting(
        None, "For `registry`: `debezium` reads change events in Avro into the table's columns and"
        " `_change`.", kind=kinds.choice("debezium"), shown="–",
    )  # fmt: skip
    unknown_fields: str = setting(
        "ignore", "For `json`, `json-schema` and `debezium`: whether a field outside the schema is"
        " an error.",
        kind=kinds.choice("ignore", "reject"),
    )  # fmt: skip
    decimals: str = setting(
        "exact", "For formats with a schema: how to read a value with more digits than its column."
        " `exact` rejects it; `round` rounds decimals half up, and cuts times to microseconds.",
        kind=kinds.choice("exact", "round"),
    )  # fmt: skip
    decimal_handling: str = setting(
        "precise", "For `debezium`: the form of decimals in strings, as in Debezium's"
        " `decimal.handling.mode`. `precise` means base64 of the unscaled bytes, `string` digits.",
        kind=kinds.choice("precise", "string"),
    )  # fmt: skip
    milliseconds: tuple[str, ...] = setting(
        (), "For `debezium`: timestamp columns whose numbers are milliseconds, such as"
        " `timestamp(3)`. The numbers of others are microseconds.", kind=kinds.COLUMNS,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Evolve:
    """Key `evolve`, another form of `TableSink.add_columns`."""

    add_columns: bool = setting(
        False, "For tables: `add` equals `add_columns = true`.", name="evolve", kind=kinds.EVOLVE,
        shown="`none`",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlFile:
    """Key `sql_file`, which sets a step's SQL."""

    sql: Path | None = setting(
        None, "A file with the SELECT, instead of `sql`.", name="sql_file", kind=kinds.PATH
    )


@dataclass(frozen=True, slots=True)
class Table:
    """Declaration of a table of the file, or of the entries (rules, protections) below a view.

    `example` shows an entry. An entry that is not a table is the value of the first key. `missing`
    is the problem and the fix of an entry without that key.
    """

    heading: str
    meaning: str
    keys: tuple[SettingInfo, ...] = ()
    example: str = ""
    missing: tuple[str, str] = ("", "")


_OF_VIEWS: Final = by_name(View)


def _keys(*parts: type[Any]) -> tuple[SettingInfo, ...]:
    found: dict[str, SettingInfo] = {}
    for info in (info for part in parts for info in describe(part)):
        found.setdefault(info.name, info)
    return tuple(info for name, info in found.items() if name not in _OF_VIEWS)


TOP: Final = Table("Top level", "", _keys(PipelineSpec))
RUN: Final = Table("[run]", "Options of each run.", _keys(RunOptions))
SPARK: Final = Table(
    "[spark]",
    "Settings of Spark's session, as text, numbers, true or false. `spark.` may be left out, and"
    ' names may be written with quotes (`"spark.sql.shuffle.partitions" = 4`) or without'
    " (`sql.shuffle.partitions = 4`).",
)
SOURCE: Final = Table(
    "[source.NAME]",
    "A view of the records of topics, or of a table. Exactly one of `topic`, `topics`, `pattern`"
    " and `table` is given. The view has the fields of the value, and `_record`, a struct of"
    " the record they came from (`topic`, `partition`, `offset`, `timestamp`, `key`, `value`,"
    " `headers`, and `attempt`, the number of tries before this one). A table's rows have no"
    " `_record`.",
    (*_keys(OneTopic, Source, FormatKeys), *_OF_VIEWS.values()),
)
STEP: Final = Table(
    "[step.NAME]",
    "A view made of other views. Exactly one of `sql`, `sql_file` and `python` defines it. It has"
    " `_record` only if it selects it; `dead-letter`, `park` and `retry` need it. SQL reads a view"
    " where its name is used as a table (after FROM and JOIN, and in their lists); names with dots"
    " are tables of a catalog.",
    (*_keys(Step, SqlFile), *_OF_VIEWS.values()),
)
SINK: Final = Table(
    "[sink.NAME]",
    "Target of a view, written exactly once. Exactly one of `table`, `iceberg`, `topic` and"
    " `console` names it. The column `_record` is left out.",
    _keys(Sink, TableSink, Evolve, IcebergSink, TopicSink, ConsoleSink),
)
ERRORS: Final = Table(
    "[errors]",
    "Actions for records that cannot be decoded, and for rows that do not meet a rule.",
    _keys(ErrorPolicy),
)
RULE: Final = Table(
    "Rules",
    "In `[source.NAME.expect]` and `[step.NAME.expect]`, a name and a condition in SQL:"
    ' `"amount is positive" = "amount > 0"`, or a table with these keys. A condition that is null'
    " is not met.",
    _keys(Rule),
    '"amount is positive" = "amount > 0"',
    ("has no condition", 'write {that = "amount > 0", otherwise = "drop"}'),
)
PROTECT: Final = Table(
    "Protection",
    "In `[source.NAME.protect]` and `[step.NAME.protect]`, a column and its protection:"
    ' `phone = "mask"`, or a table with these keys:'
    " [the guide](../guides/field-protection.md) has examples.",
    _keys(Protection),
    'phone = "mask"',
    ("has no protection", 'add by = "mask"'),
)
ENTRIES: Final[Mapping[str, Table]] = {"expect": RULE, "protect": PROTECT}
NAMED: Final[Mapping[str, Table]] = {"source": SOURCE, "step": STEP, "sink": SINK}
SINGLE: Final[Mapping[str, Table]] = {"run": RUN, "spark": SPARK, "errors": ERRORS}
