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

from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructField, StructType

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
    """Return a batch with nulls for the table's columns that it lacks; unchanged without rules."""
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
    """Return SQL conditions that a nested part is a forbidden null, or contains one."""
    own = "" if nullable else f"{value} is null"
    return [part for part in (own, _nulls(kind, value, depth)) if part]
