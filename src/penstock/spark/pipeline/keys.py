"""Every key of a pipeline's file: its kind, its default and what it means.

One table for three readers: the check of names and types, the values that the spec is made of,
and the reference `docs/reference/pipeline-file.md`, which `page` renders.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.formats.value_format import KINDS
from penstock.spark.pipeline import kinds
from penstock.spark.pipeline.kinds import Kind, one_of
from penstock.spark.pipeline.spec import OTHERWISE

BOOTSTRAP: Final = "127.0.0.1:9092"
ADMIN: Final = "http://127.0.0.1:9644"

TEXT: Final = Kind("text", kinds.text)
PATH: Final = Kind("path", kinds.text)
PLACE: Final = Kind("path or URI", kinds.text)
COLUMN: Final = Kind("column", kinds.text)
COLUMNS: Final = Kind("column or list of columns", kinds.texts)
VIEW: Final = Kind("view", kinds.text)
VIEWS: Final = Kind("view or list of views", kinds.texts)
SQL: Final = Kind("SQL", kinds.text)
FLAG: Final = Kind("true or false", kinds.flag)
COUNT: Final = Kind("whole number", kinds.count)
COUNT_OR_NONE: Final = Kind("whole number", kinds.count_or_none)
SIZE: Final = Kind("size", kinds.size)
INTERVAL: Final = Kind("interval", kinds.seconds)
TOPIC: Final = Kind("topic", kinds.topic)
EXPECT: Final = Kind("table of rules", lambda value: value)
"""Rules are tables of names that the file chooses; `rules_of` reads them."""


def _choice(*words: str) -> Kind:
    return Kind(", ".join(f"`{word}`" for word in words), one_of(*words))


OTHERWISE_KIND: Final = _choice(*OTHERWISE)


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a table. `default` is Markdown, as `meaning` is."""

    name: str
    kind: Kind
    default: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the file; `named` for those of which there are many, each with a name."""

    heading: str
    meaning: str
    keys: tuple[Key, ...]
    named: bool = False

    def names(self) -> tuple[str, ...]:
        return tuple(key.name for key in self.keys)


_WATERMARK: Final = (
    Key(
        "time",
        COLUMN,
        "–",
        "The column with the time of the event. Makes a watermark, with `delay`.",
    ),
    Key(
        "delay",
        Kind("interval", kinds.delay),
        "–",
        "How late rows may come, behind the newest `time` seen, and still be counted.",
    ),
    Key(
        "deduplicate",
        COLUMNS,
        "–",
        "Columns; of rows that agree in all of them within the watermark's `delay` one is let"
        " through. Needs `time`.",
    ),
    Key("expect", EXPECT, "–", "Rules that rows should meet: see [Rules](#rules)."),
)

TOP: Final = Table(
    "Top level",
    "",
    (
        Key(
            "name",
            TEXT,
            "the file's name without its ending; the directory's, for a `pipeline.toml`",
            "Names the pipeline in its consumer groups, tables' commits and state. Letters, digits,"
            " `.`, `_` and `-`. A pipeline with another name is another pipeline: it starts anew.",
        ),
    ),
)
RUN: Final = Table(
    "[run]",
    "How the pipeline runs.",
    (
        Key(
            "bootstrap",
            Kind("`host:port`, with commas between several", kinds.servers),
            f"`{BOOTSTRAP}`",
            "The brokers. A flag wins over the environment (`PENSTOCK_BOOTSTRAP`), that over the"
            " file.",
        ),
        Key(
            "admin",
            Kind("URL", kinds.url),
            f"`{ADMIN}`",
            "The broker's admin address. A flag wins over the environment (`PENSTOCK_ADMIN_URL`),"
            " that over the file.",
        ),
        Key(
            "state",
            PATH,
            "`.penstock/<name>`",
            "The directory of checkpoints, held records and the journal. A flag wins over the"
            " file. Without it the pipeline starts anew.",
        ),
        Key(
            "trigger",
            Kind("`now`, `once` or interval", kinds.trigger),
            "`now`",
            "When a batch begins: as soon as the last one ended, or at each interval. `once` reads"
            " what is there when the run starts, and ends.",
        ),
        Key("max_records", COUNT, "no limit", "Most records of a batch."),
        Key("max_bytes", SIZE, "no limit", "Most stored bytes of a batch."),
        Key(
            "tick",
            INTERVAL,
            "`5 seconds`",
            "How often held records are looked at when nothing new arrives.",
        ),
        Key(
            "restarts",
            COUNT_OR_NONE,
            "`3`",
            "How often in a row a query that failed is started again.",
        ),
        Key(
            "fail_on_data_loss",
            FLAG,
            "`true`",
            "Whether records that were deleted before they were read stop the pipeline.",
        ),
    ),
)
SPARK: Final = Table(
    "[spark]",
    "Settings of Spark's session, as text, numbers, true or false. `spark.` may be left out, and"
    ' names may be written with quotes (`"spark.sql.shuffle.partitions" = 4`) or without'
    " (`sql.shuffle.partitions = 4`).",
    (),
)
SOURCE: Final = Table(
    "[source.NAME]",
    "A view of the records of topics, or of a table. Exactly one of `topic`, `topics`, `pattern`"
    " and `table` says of which. The view has the fields of the value, and `_record`, a struct of"
    " the record they came from (`topic`, `partition`, `offset`, `timestamp`, `key`, `value`,"
    " `headers`, and `attempt`, the number of tries before this one). A table's rows have no"
    " `_record`.",
    (
        Key("topic", TOPIC, "–", "One topic."),
        Key("topics", Kind("list of topics", kinds.topics), "–", "Several topics."),
        Key(
            "pattern",
            Kind("regular expression", kinds.pattern),
            "–",
            "All topics whose whole name matches, also those that come later.",
        ),
        Key(
            "table",
            PLACE,
            "–",
            "A Delta table; read as it is when a batch begins.",
        ),
        Key(
            "outbox",
            PATH,
            "–",
            "The root of an outbox: the topic's records point to payloads in files below it.",
        ),
        Key(
            "format",
            _choice(*KINDS),
            "`raw`",
            "What the bytes of a value are. `raw` passes them on in the column `value`; `text` is"
            " UTF-8.",
        ),
        Key(
            "schema",
            TEXT,
            "–",
            'Of `json`, required: Spark\'s DDL (`"id bigint, at timestamp"`), or `infer`, which'
            " reads a sample.",
        ),
        Key(
            "schema_file",
            PATH,
            "–",
            "Of `json-schema`, `avro` and `protobuf`, required: a `.json`, `.avsc`, `.proto` file"
            " or a compiled descriptor set.",
        ),
        Key("message", TEXT, "–", "Of `protobuf`, required: the full name of the message."),
        Key(
            "framing",
            _choice("none", "confluent"),
            "`none`",
            "`confluent` skips the bytes that a schema registry's serialisers write first.",
        ),
        Key(
            "unknown_fields",
            _choice("ignore", "reject"),
            "`ignore`",
            "Of `json` and `json-schema`: whether a field outside the schema is an error.",
        ),
        Key(
            "start",
            Kind("`earliest`, `latest` or time", kinds.start),
            "`earliest`",
            "Where a pipeline without state begins; a time is in ISO 8601 with its zone.",
        ),
        *_WATERMARK,
    ),
    named=True,
)
STEP: Final = Table(
    "[step.NAME]",
    "A view made of other views. Exactly one of `sql`, `sql_file` and `python` says how. It keeps"
    " `_record` if it selects it; rules that keep records need it. SQL reads the views whose names"
    " stand in the place of a table (after FROM and JOIN, and in their lists); names with dots are"
    " tables of a catalog.",
    (
        Key("sql", SQL, "–", "A SELECT of Spark SQL over sources and steps, by their names."),
        Key("sql_file", PATH, "–", "The same, in a file of its own."),
        Key(
            "python",
            Kind("`file.py:function`", kinds.function),
            "–",
            "A function that is called with one DataFrame for each of `inputs`, in their order,"
            " and returns a DataFrame.",
        ),
        Key("inputs", VIEWS, "–", "Of `python`, required: the views it is given."),
        Key(
            "output",
            _choice("append", "update"),
            "`append`",
            "Of steps with state (windows, joins of streams): `append` hands rows on when they are"
            " final, `update` whenever they change.",
        ),
        *_WATERMARK,
    ),
    named=True,
)
SINK: Final = Table(
    "[sink.NAME]",
    "Where a view goes, exactly once. Exactly one of `table`, `topic` and `console` says to what."
    " The column `_record` is left out.",
    (
        Key("from", VIEW, "–", "Required: the source or step that is written."),
        Key("table", PLACE, "–", "A Delta table."),
        Key("topic", TOPIC, "–", "A topic."),
        Key(
            "console",
            Kind("true or number of rows", kinds.rows),
            "–",
            "The first rows of each batch on the terminal; `true` shows 20.",
        ),
        Key(
            "mode",
            _choice("append", "upsert", "cdc"),
            "`append`",
            "Of tables. `upsert` keeps the newest row per key; `cdc` also deletes.",
        ),
        Key("keys", COLUMNS, "–", "Of tables, required for `upsert` and `cdc`: the key's columns."),
        Key(
            "order_by",
            COLUMN,
            "–",
            "Of `upsert` and `cdc`: the column whose greatest value marks a key's newest row.",
        ),
        Key(
            "delete_when",
            SQL,
            "–",
            "Of `cdc`, required: a condition in SQL; a key is deleted when its newest row meets"
            " it.",
        ),
        Key(
            "partition_by", COLUMNS, "–", "Of tables with `append`: the columns of its partitions."
        ),
        Key(
            "add_columns",
            FLAG,
            "`false`",
            "Of tables with `append`: whether columns that the table lacks are added to it.",
        ),
        Key("key", SQL, "null", "Of topics: an expression for the record's key."),
        Key("value", SQL, "the row as JSON", "Of topics: an expression for the record's value."),
        Key("partition", SQL, "by the key", "Of topics: an expression for the partition."),
        Key("headers", SQL, "none", "Of topics: an expression for the headers."),
        Key(
            "ordered",
            FLAG,
            "`false`",
            "Of topics: whether records of one `key` keep the order of the source's.",
        ),
        Key(
            "codec",
            _choice("none", "gzip", "snappy", "lz4", "zstd"),
            "`none`; of tables `snappy`",
            "The compression of a topic's batches, or of a table's files.",
        ),
    ),
    named=True,
)
ERRORS: Final = Table(
    "[errors]",
    "What happens to records that cannot be decoded, and to rows that do not meet a rule.",
    (
        Key(
            "on_invalid",
            OTHERWISE_KIND,
            "`dead-letter`",
            "What happens to records that cannot be decoded, and where a rule does not say.",
        ),
        Key(
            "dead_letters",
            TOPIC,
            "–",
            "The topic of rejected records. Required where something is rejected to it.",
        ),
        Key(
            "retry_delays",
            Kind("list of intervals", kinds.growing_seconds),
            "–",
            "Required for `retry`: a record is tried again after each, then dead-lettered.",
        ),
        Key(
            "keep_order",
            FLAG,
            "`true`",
            "Whether what follows a held record of the same key is held too.",
        ),
        Key("held_max", COUNT, "`100000`", "Most records that are held; one more fails the query."),
    ),
)
RULE: Final = Table(
    "Rules",
    "In `[source.NAME.expect]` and `[step.NAME.expect]`, a name and a condition in SQL:"
    ' `"amount is positive" = "amount > 0"`, or a table with these keys. A condition that is null'
    " is not met.",
    (
        Key("that", SQL, "–", "Required: the condition."),
        Key("otherwise", OTHERWISE_KIND, "`errors.on_invalid`", "What happens to other rows."),
    ),
)
NAMED: Final[Mapping[str, Table]] = {"source": SOURCE, "step": STEP, "sink": SINK}
SINGLE: Final[Mapping[str, Table]] = {"run": RUN, "spark": SPARK, "errors": ERRORS}

_HEAD: Final = """\
# The pipeline file

Generated by `scripts/reference.py` from the declarations in the code; do not edit.

A pipeline is one TOML file, or a directory with a `pipeline.toml`. Paths are relative to the
file. Names of sources and steps are the views that SQL reads: letters, digits and `_`, each name
once. `penstock pipeline validate` says what is wrong with a file, all of it, with lines.

An *interval* is a number and a unit (`2 seconds`, `500 ms`, `1 minute 30 seconds`, `1 day`); a
*size* is bytes or a number and a unit (`64 MiB`).

```toml
name = "orders"

[source.orders]
topic = "orders"
format = "json"
schema = "id bigint, customer string, amount decimal(12,2), at timestamp"

[source.orders.expect]
"amount is positive" = "amount > 0"

[step.masked]
sql = "select id, sha2(customer, 256) as customer, amount, at from orders"

[sink.lake]
from = "masked"
table = "lake/orders"

[errors]
dead_letters = "orders.dead"
```

"""
_OTHERWISE: Final = """\
| otherwise | what happens to the row |
|---|---|
| `warn` | it is counted and goes on |
| `drop` | it is counted and goes no further |
| `dead-letter` | its record goes to `errors.dead_letters`, with the reason |
| `park` | its record is held until somebody releases it |
| `retry` | its record is held and tried again after each of `errors.retry_delays` |
| `fail` | the query fails |
"""


def page() -> str:
    """The text of `docs/reference/pipeline-file.md`."""
    parts = [_HEAD + _rows(TOP)]
    for table in (RUN, SOURCE, STEP, RULE, SINK, ERRORS, SPARK):
        title = f"`{table.heading}`" if table.heading.startswith("[") else table.heading
        parts.append(f"## {title}\n\n{table.meaning}\n")
        if table.keys:
            parts.append(_rows(table))
    return "\n".join([*parts, "## Otherwise\n", _OTHERWISE])


def _rows(table: Table) -> str:
    lines = ["| key | value | default | meaning |", "|---|---|---|---|"]
    lines += [
        f"| `{key.name}` | {key.kind.words} | {key.default} | {key.meaning} |" for key in table.keys
    ]
    return "\n".join(lines) + "\n"
