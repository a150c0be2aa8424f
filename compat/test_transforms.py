"""Transforms of connectors give the results of Kafka Connect's own classes, field by field.

Both transform the same generated records, with and without schemas. Kafka Connect's maps may lack a
field, where a struct has a null; the comparison leaves out null fields. `DIFFERENCES` lists all
other differences, and tests both sides of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from compat.conftest import missing
from compat.drivers.remote import Program
from compat.parts import PartMissing, transforms_java
from compat.transforms import records as made
from compat.transforms.cases import Case, cases
from penstock.connect.errors import RowsRejected
from penstock.connect.plugins import Records
from penstock.connect.transforms.steps import PREDICATES, TRANSFORMS, applied, build_transforms
from penstock.base.settings import by_name

SAMPLE, WHOLE = 300, 10_000
SEED = 38


@pytest.fixture(scope="module", name="kafka")
def kafka_connect() -> Iterator[Program]:
    try:
        command = ["java", "-Duser.language=en", "-cp", transforms_java(), "Transforms"]
    except PartMissing as error:
        missing(error)
    program = Program(command, {})
    yield program
    program.kill()


def load(kafka: Program, found: Sequence[Mapping[str, Any]], *, schemas: bool) -> None:
    kind = made.VALUE if schemas else made.PLAIN
    kafka.call("load", records=found, schemas=schemas, key_type=made.KEY, value_type=kind)


def step(name: str, options: Mapping[str, str]) -> Any:
    """Return a transform that is built as from a connector's file."""
    problems: list[str] = []

    def refuse(key: object, message: str, fix: str) -> None:
        problems.append(f"{key}: {message}")

    table = {"type": f"org.apache.kafka.connect.transforms.{name}", **options}
    built = build_transforms({"step": table}, {}, refuse)
    assert not problems
    return built


def transformed(case: Case, rows: Records, *, schemas: bool) -> dict[int, Any]:
    """Return Penstock's results by offset; a rejected row is the text of its reason."""
    transforms = step(case.transform, case.options)
    rejected: dict[int, str] = {}
    try:
        found = applied(transforms, rows)
    except RowsRejected as error:
        rejected = dict(zip(error.rows, error.reasons, strict=True))
        kept = [row for row in range(rows.count) if row not in rejected]
        found = applied(transforms, rows.with_rows(rows.rows.take(pa.array(kept, pa.int64()))))
    return made.by_offset(found, schemas=schemas) | rejected


def shortest(ours: Any, theirs: Any) -> Any:
    """Return Java's text of a float in the shortest form, which JDKs before 19 do not write."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return {name: shortest(ours.get(name), value) for name, value in theirs.items()}
    texts = [form[1] if isinstance(form, tuple) and form[0] == "string" else "" for form in (ours, theirs)]
    if len(texts[0]) < len(texts[1]):
        try:
            same = float(texts[0]) == float(texts[1])
        except ValueError:
            return theirs
        return ours if same else theirs
    return theirs


def differences(kafka: Program, case: Case, rows: Records, *, schemas: bool) -> list[str]:
    name, options = case.transform, case.options
    theirs = made.kafka_records(kafka.call("apply", type=name, options=options))
    ours = transformed(case, rows, schemas=schemas)
    untouched = made.by_offset([rows], schemas=schemas)
    found = []
    for offset, expected in theirs.items():
        actual = ours.get(offset)
        if isinstance(expected, str) and isinstance(actual, str):
            continue
        if name == "MaskField$Value" and actual == untouched[offset] and actual["value"] is None:
            continue  # a difference that is listed
        if name.startswith("Cast") and isinstance(expected, dict) and isinstance(actual, dict):
            expected = {**expected, **{part: shortest(actual[part], expected[part]) for part in ("key", "value")}}
        if actual != expected:
            found.append(f"{case} schemas={schemas} row {offset}:\n  kafka {_only(expected, actual)}\n"
                         f"  ours  {_only(actual, expected)}")
    return found


def _only(value: Any, other: Any) -> Any:
    """Return what differs from another value, for messages."""
    if isinstance(value, dict) and isinstance(other, dict):
        return {name: _only(item, other.get(name)) for name, item in value.items() if item != other.get(name)}
    return value


@pytest.mark.parametrize("schemas", [True, False], ids=["schemas", "schemaless"])
@pytest.mark.parametrize(
    ("count", "sets"),
    [(SAMPLE, 2), pytest.param(WHOLE, 4, marks=[pytest.mark.long, pytest.mark.timeout(1800)])],
)
def test_results_equal(kafka: Program, count: int, sets: int, schemas: bool) -> None:
    records = made.records(SEED, count)
    load(kafka, records, schemas=schemas)
    rows = made.rows(records, made.VALUE if schemas else made.PLAIN)
    tried: set[str] = set()
    for case in cases(SEED, sets):
        if case.schemas in (None, schemas):
            tried.add(case.transform.partition("$")[0])
            assert not differences(kafka, case, rows, schemas=schemas)[:3]
    assert tried >= set(TRANSFORMS) - {"Filter"} - (set() if schemas else {"SetSchemaMetadata"})
