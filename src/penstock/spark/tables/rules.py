"""Rules of a Delta table that its rows must meet, checked by Spark while it writes the rows.

Rules are columns and nested parts that forbid null, `CHECK` constraints, invariants, generated
columns, and lengths of `varchar` columns. `deltalake` commits files without reading them, so Spark
counts the violations while it writes the files. A batch that breaks a rule is rejected before the
commit, and the error names the rule. If a condition evaluates to null, the row breaks the rule, as
with Delta's own writers. Generated columns that a batch lacks are computed.

Source: the Delta transaction protocol, "CHECK Constraints", "Column Invariants", "Generated
Columns".
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    DataType,
    DateType,
    DecimalType,
    FractionalType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.spark.errors import TableMismatch
from penstock.spark.schema import quoted
from penstock.spark.tables.schemas import schema_of

CONSTRAINT: Final = "delta.constraints."
INVARIANTS: Final = "delta.invariants"
GENERATION: Final = "delta.generationExpression"
_LENGTH: Final = re.compile(r"(?:var)?char\((\d+)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Rule for the rows of a table, in SQL.

    `broken` is an SQL condition that is true for rows that break the rule. `example` is an SQL
    expression whose text shows such a row. `said` describes the rule in messages. `condition` is
    the rule as an SQL condition, if `deltalake` also checks it in merges.
    """

    broken: str
    said: str
    example: str = "''"
    condition: str | None = None


def rules_of(table: DeltaTable | None) -> list[Rule]:
    if table is None:
        return []
    found: list[Rule] = []
    for field in json.loads(table.schema().to_json())["fields"]:
        name, facts = field["name"], field["metadata"]
        broken = _nulls(field["type"], quoted(name))
        if not field["nullable"]:
            broken = " or ".join(filter(None, (f"{quoted(name)} is null", broken)))
        if broken:
            said = f"column {name} or a nested part of it must not be null"
            found.append(Rule(broken=broken, said=said))
        if made := facts.get(GENERATION):
            said = f"column {name} is generated as {made}"
            same = f"{quoted(name)} <=> ({made}\n)"
            found.append(Rule(broken=f"not ({same})", said=said, condition=same))
        if invariant := facts.get(INVARIANTS):
            condition = json.loads(invariant)["expression"]["expression"]
            found.append(_condition(condition, f"column {name} has the invariant {condition}"))
    for key, condition in sorted(table.metadata().configuration.items()):
        if key.startswith(CONSTRAINT) and condition:
            name = key.removeprefix(CONSTRAINT)
            found.append(_condition(condition, f"constraint {name} is {condition}"))
    return [*found, *lengths_of(table)]


def lengths_of(table: DeltaTable | None) -> list[Rule]:
    """Return the length rules of columns that Spark declares as `char` or `varchar`."""
    found: list[Rule] = []
    for field in () if table is None else table.schema().fields:
        kind = str(field.metadata.get("__CHAR_VARCHAR_TYPE_STRING"))
        if length := _LENGTH.fullmatch(kind):
            name = quoted(field.name)
            broken = f"char_length({name}) > {length[1]}"
            said = f"column {field.name} is {kind}"
            found.append(Rule(broken=broken, said=said, example=f"substr({name}, 1, 80)"))
    return found


def generated(batch: DataFrame, table: DeltaTable | None) -> DataFrame:
    """Return a batch with those generated columns of its table that it lacks."""
    given = {name.lower() for name in batch.columns}
    for field in _fields(table):
        made = field.metadata.get(GENERATION)
        if made is not None and field.name.lower() not in given:
            batch = batch.withColumn(field.name, F.expr(made).cast(field.dataType))
    return batch


def completed(batch: DataFrame, table: DeltaTable | None, rules: Sequence[Rule]) -> DataFrame:
    """Return a batch with a null column for each column of the table that the batch lacks.

    The conditions of rules can then name every column. Without rules the batch is unchanged.
    """
    given = set(batch.columns)
    for field in _fields(table) if rules else ():
        if field.name not in given:
            batch = batch.withColumn(field.name, F.lit(None).cast(field.dataType))
    return batch


def _fields(table: DeltaTable | None) -> list[StructField]:
    if table is None:
        return []
    return list(StructType.fromJson(json.loads(table.schema().to_json())))


def check_rules(root: str, batch: DataFrame, rules: Sequence[Rule]) -> None:
    """Check that Spark can evaluate the rules for a batch; no row is read.

    Raises:
        TableMismatch: the message names the rule that Spark cannot evaluate.
    """
    for rule in rules:
        try:
            batch.selectExpr(*observed([rule]))
        except AnalysisException as error:
            raise TableMismatch(
                f"table {root}: {rule.said}, which Spark cannot evaluate: {error.getCondition()}. "
                "Write the rule in Spark's SQL"
            ) from error


def check_merged(root: str, table: DeltaTable, rules: Sequence[Rule]) -> None:
    """Check that `deltalake` can evaluate the conditions that it checks in merges.

    Raises:
        TableMismatch: the message names the rule that `deltalake` cannot evaluate.
    """
    merged = [rule for rule in rules if rule.condition]
    columns = schema_of(StructType(_fields(table))).to_json() if merged else ""
    for rule in merged:
        if why := _not_merged(columns, rule.condition or ""):
            raise TableMismatch(
                f"table {root}: {rule.said}, which deltalake cannot evaluate in an upsert: {why}. "
                "Append to the table instead, or write the rule in DataFusion's SQL"
            )


@lru_cache(256)
def _not_merged(columns: str, condition: str) -> str:
    """Return the reason why `deltalake` rejects a condition over these columns; empty if it
    accepts.
    """
    with tempfile.TemporaryDirectory() as directory:
        probe = DeltaTable.create(directory, Schema.from_json(columns))
        try:
            probe.alter.add_constraint({"probe": condition})
        except DeltaError as error:
            return str(error).splitlines()[0].rpartition("error: ")[2][:200].rstrip(".")
    return ""


def observed(rules: Sequence[Rule]) -> list[str]:
    """Return two SQL aggregates for each rule: number of rows that break it, and an example."""
    facts: list[str] = []
    for number, rule in enumerate(rules):
        broken = f"coalesce(({rule.broken}\n), false)"
        facts.append(f"count_if({broken}) as broken_{number}")
        facts.append(f"min(if({broken}, {rule.example}, null)) as example_{number}")
    return facts


def complaints(rules: Sequence[Rule], found: dict[str, Any]) -> list[str]:
    """Return a sentence for each broken rule, from the values of the aggregates of `observed`."""
    return [
        f"{rule.said}, but {found[f'broken_{number}']} rows of the batch break this rule"
        + (f", such as {found[f'example_{number}']!r}" if found[f"example_{number}"] else "")
        for number, rule in enumerate(rules)
        if found[f"broken_{number}"]
    ]


def _condition(condition: str, said: str) -> Rule:
    # The line break ends a comment with which the condition may end.
    broken = f"not coalesce(({condition}\n), false)"
    return Rule(broken=broken, said=said, condition=condition)


def _nulls(kind: Any, value: str, depth: int = 0) -> str:
    """Return the SQL condition that a value contains a forbidden null; empty if none is forbidden.

    `kind` is the value's type as Delta's JSON schema has it.
    """
    if not isinstance(kind, dict):
        return ""
    item = f"_part{depth}"
    if kind["type"] == "struct":
        parts = [
            part
            for field in kind["fields"]
            for part in _part(
                field["type"], f"{value}.{quoted(field['name'])}", field["nullable"], depth
            )
        ]
        # Spark writes a null struct with null fields; Arrow rejects these in non-nullable fields.
        required = any(not field["nullable"] for field in kind["fields"])
        own = f"{value} is null or" if required else f"{value} is not null and"
        return f"({own} ({' or '.join(parts)}))" if parts else ""
    if kind["type"] == "array":
        parts = _part(kind["elementType"], item, kind["containsNull"], depth + 1)
        return f"exists({value}, {item} -> {' or '.join(parts)})" if parts else ""
    found = []
    for source, part, nullable in (
        ("map_keys", kind["keyType"], True),
        ("map_values", kind["valueType"], kind["valueContainsNull"]),
    ):
        if parts := _part(part, item, nullable, depth + 1):
            found.append(f"exists({source}({value}), {item} -> {' or '.join(parts)})")
    return " or ".join(found)


def _part(kind: Any, value: str, nullable: bool, depth: int) -> list[str]:
    """Return SQL conditions for a forbidden null in a struct field, list item or map entry.

    One is for the value itself unless it is `nullable`, the other for the values inside it.
    """
    own = "" if nullable else f"{value} is null"
    return [part for part in (own, _nulls(kind, value, depth)) if part]


# Partition values as texts, in the table's log and in the names of directories.
#
# The log and the directories use the same text, because some readers, such as Polars, take the
# values from directory names. The text does not depend on the session's time zone: timestamps are
# written in UTC, with the suffix Z. An empty string means null, as in Delta's protocol. In a
# directory name, `NULL_PARTITION` also means null.
#
# Source: the Delta transaction protocol, "Partition Value Serialization"; Spark's
# `ExternalCatalogUtils.escapePathName`.


NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"
NAME_BYTES_MAX: Final = 255
"""Bytes of the longest directory name that file systems accept."""
_ESCAPED: Final = [*range(0x20), 0x7F, *b"\"#%'*/:=?\\{[]^"]
"""Code points that are percent-encoded in directory names."""
_PERCENT: Final = {code: f"%{code:02X}" for code in _ESCAPED}
_SPECIAL: Final = "".join(f"\\u{code:04x}" for code in _ESCAPED[1:])
_DAY_MICROS: Final = 86_400_000_000
_FIRST_MICROS: Final = -62_135_596_800_000_000
_LAST_MICROS: Final = 253_402_300_799_999_999
_FRACTION_DIGITS: Final = 6


def partition_texts(schema: StructType, partition_by: Sequence[str]) -> list[str]:
    """Return SQL expressions for the columns of a batch, with partition columns as texts.

    A partition value that breaks `partition_rules` becomes null; the batch is then rejected.
    """
    columns: list[str] = []
    for field in schema:
        name = quoted(field.name)
        if field.name not in partition_by:
            columns.append(name)
            continue
        text = _text(field.dataType, name)
        broken = _unfit(field.name, field.dataType)
        columns.append(
            f"if({broken[0]}, null, {text}) as {name}" if broken else f"{text} as {name}"
        )
    return columns


def partition_rules(schema: StructType, partition_by: Sequence[str]) -> list[Rule]:
    """Return the rules that partition values must meet so that all readers can read the table.

    Dates are limited because `deltalake` cannot open a table with a partition outside of the years
    1 to 9999.
    """
    found: list[Rule] = []
    for column in partition_by:
        if broken := _unfit(column, schema[column].dataType):
            condition, limit = broken
            text = f"substr(cast({quoted(column)} as string), 1, 80)"
            found.append(
                Rule(
                    broken=condition,
                    example=text,
                    said=f"partition column {column} allows {limit}",
                )
            )
    return found


def merged_rules(schema: StructType, partition_by: Sequence[str]) -> list[Rule]:
    """Return the rules for partition values of upserts, which `deltalake` writes.

    Floating-point values are limited further: `deltalake` puts all digits of a number into the
    directory name, which would become too long.
    """
    found = partition_rules(schema, partition_by)
    for column in partition_by:
        if isinstance(schema[column].dataType, FractionalType):
            name = quoted(column)
            size = f"abs(cast({name} as double))"
            limit = "absolute values from 1e-100 to 1e100, zero, NaN and infinity"
            found.append(
                Rule(
                    broken=f"({size} > 1e100D and {size} < double('inf'))"
                    f" or ({size} > 0 and {size} < 1e-100D)",
                    example=f"cast({name} as string)",
                    said=f"partition column {column} allows {limit}",
                )
            )
    return found


def with_null_texts(batch: DataFrame, partition_by: Sequence[str]) -> DataFrame:
    """Return a batch whose text partition columns have null for '' and for `NULL_PARTITION`."""
    for field in batch.schema:
        if field.name in partition_by and isinstance(field.dataType, StringType):
            batch = batch.withColumn(field.name, F.expr(_text(field.dataType, quoted(field.name))))
    return batch


def _unfit(column: str, kind: DataType) -> tuple[str, str] | None:
    """Return the SQL condition for forbidden partition values, and the limit in words.

    Returns None if every value of the type is allowed.
    """
    name = quoted(column)
    if isinstance(kind, StringType):
        room = NAME_BYTES_MAX - len(f"{column}=".encode())
        plain = f"translate({name}, '{_SPECIAL}', '')"
        return (
            f"3 * octet_length({name}) - 2 * octet_length({plain}) > {room}"
            f" or contains({name}, char(0))",
            f"at most {room} bytes (special characters count as three) and no zero byte",
        )
    if isinstance(kind, (DateType, TimestampNTZType)):
        return f"year({name}) not between 1 and 9999", "the years 1 to 9999"
    if isinstance(kind, TimestampType):
        micros = f"unix_micros({name})"
        return f"{micros} not between {_FIRST_MICROS} and {_LAST_MICROS}", "the years 1 to 9999"
    if isinstance(kind, DecimalType) and kind.scale:
        # `deltalake` writes -1.5 as `-1.-5`, which it cannot read.
        return f"{name} < 0 and {name} % 1 != 0", "no negative values with a fraction"
    return None


def _text(kind: DataType, name: str) -> str:
    if isinstance(kind, TimestampType):
        return _utc(name)
    if isinstance(kind, StringType):
        return f"nullif(nullif({name}, ''), '{NULL_PARTITION}')"
    if isinstance(kind, FractionalType) and not isinstance(kind, DecimalType):
        # Some readers compare texts and would not find -0.0 when they look for 0.0.
        return f"if({name} = 0, '0.0', cast({name} as string))"
    return f"cast({name} as string)"


def _utc(name: str) -> str:
    micros = f"unix_micros({name})"
    of_day = f"pmod({micros}, {_DAY_MICROS})"
    days = f"cast(({micros} - {of_day}) div {_DAY_MICROS} as int)"

    def digits(value: str, count: int) -> str:
        return f"lpad(cast({value} as string), {count}, '0')"

    hours = digits(f"{of_day} div 3600000000", 2)
    minutes = digits(f"{of_day} div 60000000 % 60", 2)
    seconds = digits(f"{of_day} div 1000000 % 60", 2)
    fraction = digits(f"{of_day} % 1000000", _FRACTION_DIGITS)
    day = f"cast(date_from_unix_date({days}) as string)"
    return f"concat({day}, 'T', {hours}, ':', {minutes}, ':', {seconds}, '.', {fraction}, 'Z')"


def partition_values(relative: str, partition_by: Sequence[str]) -> dict[str, str | None]:
    """Return the partition values in the directory names of a path."""
    values: dict[str, str | None] = {}
    for part in relative.split("/"):
        name, equals, text = part.partition("=")
        if equals and unquote(name) in partition_by:
            values[unquote(name)] = None if text == NULL_PARTITION else unquote(text)
    return values


def directories(values: Sequence[tuple[str, str | None]]) -> str:
    """Return the directory path that names these partition values; empty for no values."""
    names = (
        f"{_escaped(name)}={NULL_PARTITION if value is None else _escaped(value)}"
        for name, value in values
    )
    return "/".join(names)


def _escaped(text: str) -> str:
    return text.translate(_PERCENT)


def texts_of(values: pa.ChunkedArray) -> list[str | None]:
    """Convert partition values that `deltalake` parsed to texts as in the table's Delta log."""
    kind = values.type
    texts: list[str | None] = values.cast(pa.string()).to_pylist()
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return [text and text.replace(" ", "T") for text in texts]
    return texts
