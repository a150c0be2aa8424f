"""Tables of a pipeline's file and the keys of each.

A key is declared in `spec.py` with its value; this module has alternative keys and parts of values.
The tables serve the checks, the conversion to the spec, and the reference
`docs/reference/pipeline-file.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from penstock.base.settings import SettingInfo, describe, setting
from penstock.formats.value_format import KINDS
from penstock.spark.pipeline import spec
from penstock.spark.pipeline.kinds import PATH, TEXT, TOPIC, choice


@dataclass(frozen=True, slots=True)
class Table:
    """Table of the file; `named` for tables that occur many times, each with a name."""

    heading: str
    meaning: str
    keys: tuple[SettingInfo, ...] = ()
    named: bool = False

    def names(self) -> tuple[str, ...]:
        return tuple(key.name for key in self.keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Name:
    name: str = setting(
        "", "Names the pipeline in its consumer groups, tables' commits and state. Letters, digits,"
        " `.`, `_` and `-`. A pipeline with another name starts without state.",
        kind=TEXT,
        shown="the file's name without its ending; the directory's, for a `pipeline.toml`",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _OneTopic:
    topic: str | None = setting(None, "One topic.", kind=TOPIC)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Format:
    SEPARATOR: ClassVar = "_"

    format: str = setting(
        "raw", "What the bytes of a value are. `raw` passes them on in the column `value`; `text`"
        " is UTF-8.", kind=choice(*KINDS),
    )  # fmt: skip
    schema: str | None = setting(
        None, 'Of `json`, required: Spark\'s DDL (`"id bigint, at timestamp"`), or `infer`, which'
        " reads a sample.", kind=TEXT,
    )  # fmt: skip
    schema_file: str | None = setting(
        None, "Of `json-schema`, `avro` and `protobuf`, required: a `.json`, `.avsc`, `.proto` file"
        " or a compiled descriptor set.", kind=PATH,
    )  # fmt: skip
    message: str | None = setting(
        None, "Of `protobuf`, required: the full name of the message.", kind=TEXT
    )
    framing: str = setting(
        "none", "`confluent` skips the bytes that a schema registry's serialisers write first.",
        kind=choice("none", "confluent"),
    )  # fmt: skip
    unknown_fields: str = setting(
        "ignore", "Of `json` and `json-schema`: whether a field outside the schema is an error.",
        kind=choice("ignore", "reject"),
    )  # fmt: skip
    decimals: str = setting(
        "exact", "Of formats with a schema: how a value is read that has more digits than its"
        " column. `exact` rejects it; `round` rounds decimals half up, and cuts fractions of a"
        " second behind microseconds.", kind=choice("exact", "round"),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Evolve:
    evolve: str | None = setting(
        None, "Of tables: `add` equals `add_columns = true`.",
        kind=choice("none", "add"), shown="`none`",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _SqlFile:
    SEPARATOR: ClassVar = "_"

    sql_file: str | None = setting(None, "The same as `sql`, in a file of its own.", kind=PATH)


FORMAT: Final = tuple(describe(_Format))
_OF_VIEWS: Final = tuple(describe(spec.View))


def _keys(*kinds: type[Any]) -> tuple[SettingInfo, ...]:
    found = {info.name: info for kind in reversed(kinds) for info in describe(kind)}
    ordered = dict.fromkeys(info.name for kind in kinds for info in describe(kind))
    of_views = {info.name for info in _OF_VIEWS}
    return tuple(found[name] for name in ordered if name not in of_views)


TOP: Final = Table("Top level", "", _keys(_Name))
RUN: Final = Table("[run]", "How the pipeline runs.", _keys(spec.RunOptions))
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
    (*_keys(_OneTopic, spec.Source, _Format), *_OF_VIEWS),
    named=True,
)
STEP: Final = Table(
    "[step.NAME]",
    "A view made of other views. Exactly one of `sql`, `sql_file` and `python` defines it. It keeps"
    " `_record` if it selects it; rules that keep records need it. SQL reads the views whose names"
    " replace a table (after FROM and JOIN, and in their lists); names with dots are"
    " tables of a catalog.",
    (*_keys(spec.Step, _SqlFile), *_OF_VIEWS),
    named=True,
)
SINK: Final = Table(
    "[sink.NAME]",
    "Target of a view, written exactly once. Exactly one of `table`, `topic` and `console` names"
    " it. The column `_record` is left out.",
    _keys(spec.Sink, spec.TableSink, _Evolve, spec.TopicSink, spec.ConsoleSink),
    named=True,
)
ERRORS: Final = Table(
    "[errors]",
    "What happens to records that cannot be decoded, and to rows that do not meet a rule.",
    _keys(spec.ErrorPolicy),
)
RULE: Final = Table(
    "Rules",
    "In `[source.NAME.expect]` and `[step.NAME.expect]`, a name and a condition in SQL:"
    ' `"amount is positive" = "amount > 0"`, or a table with these keys. A condition that is null'
    " is not met.",
    _keys(spec.Rule),
)
PROTECT: Final = Table(
    "Protection",
    "In `[source.NAME.protect]` and `[step.NAME.protect]`, a column and what becomes of it:"
    ' `phone = "mask"`, or a table with these keys:'
    " [the guide](../guides/field-protection.md) has examples.",
    _keys(spec.Protection),
)
NAMED: Final[Mapping[str, Table]] = {"source": SOURCE, "step": STEP, "sink": SINK}
SINGLE: Final[Mapping[str, Table]] = {"run": RUN, "spark": SPARK, "errors": ERRORS}
