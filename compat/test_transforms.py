"""Transforms of connectors give the results of Kafka Connect's own classes, field by field.

Both transform the same generated records, with and without schemas. Kafka Connect's maps may lack a
field, where a struct has a null; the comparison leaves out null fields. `DIFFERENCES` lists all
other differences, and tests both sides of each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from compat.conftest import missing
from compat.drivers.remote import Program
from compat.parts import PartMissing, transforms_java
from compat.transforms import records as made
from compat.transforms.cases import Case, cases
from penstock.base.settings import by_name, parse
from penstock.connect.errors import RowsRejected
from penstock.connect.plugins import Records
from penstock.connect.steps import TRANSFORMS, applied, build_transforms, step_class
from penstock.connect.transforms.transform import ColumnTransform

JAVA_FLOAT: Final = re.compile(r"-?[0-9]\.[0-9]+E-?[0-9]+|-?[0-9]{1,7}\.[0-9]+")
SAMPLE, WHOLE = 150, 10_000
SEED = 38


@pytest.fixture(scope="module", name="kafka")
def kafka_connect() -> Iterator[Program]:
    try:
        command = ["java", "-Duser.language=en", "-cp", transforms_java(), "Transforms"]
    except PartMissing as error:
        missing(error)
    program = Program(command, {})
    yield program
    program.close()


def load(
    kafka: Program, found: Sequence[Mapping[str, Any]], kind: Any, *, schemas: bool
) -> Records:
    """Load records into the program, and return them as rows."""
    kafka.call("load", records=found, schemas=schemas, key_type=made.KEY, value_type=kind)
    return made.rows(found, kind)


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


def same_float(ours: Any, theirs: Any, kind: type[np.floating[Any]]) -> Any:
    """Return our text of a float if Java's has the same form and value, else Java's text.

    JDKs before 19 do not always write the shortest text. Of the smallest numbers, all JDKs write
    two digits.
    """
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return {name: same_float(ours.get(name), value, kind) for name, value in theirs.items()}
    texts = [
        form[1] if isinstance(form, tuple) and form[0] == "string" else ""
        for form in (ours, theirs)
    ]
    if all(JAVA_FLOAT.fullmatch(text) for text in texts):
        with np.errstate(over="ignore"):
            return ours if kind(texts[0]) == kind(texts[1]) else theirs
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
        if isinstance(expected, str) and actual == untouched[offset] and _listed(case, actual):
            continue
        if name.startswith("Cast") and isinstance(expected, dict) and isinstance(actual, dict):
            kind = np.float32 if "float32" in options["spec"] else np.float64
            expected = {
                name: same_float(actual[name], value, kind) for name, value in expected.items()
            }
        if actual != expected:
            found.append(
                f"{case} schemas={schemas} row {offset}:\n  kafka {_only(expected, actual)}\n"
                f"  ours  {_only(actual, expected)}"
            )
    return found


def _listed(case: Case, record: Mapping[str, Any]) -> bool:
    """Return whether `DIFFERENCES` has the reason why a record stayed as it was."""
    if case.transform == "MaskField$Value":
        return record["value"] is None
    return case.transform == "TimestampConverter$Value" and case.options["field"] not in (
        record["value"] or {}
    )


def _only(value: Any, other: Any) -> Any:
    """Return what differs from another value, for messages."""
    if isinstance(value, dict) and isinstance(other, dict):
        return {
            name: _only(item, other.get(name))
            for name, item in value.items()
            if item != other.get(name)
        }
    return value


class Difference(NamedTuple):
    """Result that is not Kafka Connect's, with the reason.

    Attributes:
        kind: type of the field `f`, in a value of this field only.
        value: the field, in the form that the program reads; `...` makes the whole value null.
        kafka: the results in Kafka Connect and in Penstock; an error or a rejection is `REJECTED`.
    """

    transform: str
    options: dict[str, str]
    kind: Any
    value: Any
    kafka: Any
    ours: Any
    reason: str
    schemas: bool = True
    part: str = "value"


REJECTED: Final = "rejected"
_MISSING: Final = (
    "rows have types for a whole batch; a field that no row has is null, as it is without schemas"
)
_TYPED: Final = "columns have types, so times and decimals are also known without schemas"
_AT: Final = 1_700_000_000_123
DIFFERENCES: Final = [
    Difference(
        "MaskField$Value",
        {"fields": "f"},
        "int32",
        ...,
        REJECTED,
        None,
        "a tombstone has nothing to mask; rejecting it would lose a deletion",
    ),
    Difference(
        "MaskField$Value",
        {"fields": "f"},
        "bytes",
        "AAE=",
        REJECTED,
        {"f": ("bytes", "")},
        "bytes have an empty value too",
    ),
    Difference(
        "MaskField$Value",
        {"fields": "f"},
        {"struct": [["x", "int32"]]},
        {"x": 5},
        REJECTED,
        {"f": {}},
        "a struct is masked with a struct of nulls, as maps are without schemas",
    ),
    Difference("ExtractField$Value", {"field": "g"}, "int32", 5, REJECTED, None, _MISSING),
    Difference("ValueToKey", {"fields": "g"}, "int32", 5, REJECTED, {}, _MISSING, part="key"),
    Difference(
        "HeaderFrom$Value",
        {"fields": "g", "headers": "h", "operation": "copy"},
        "int32",
        5,
        REJECTED,
        [("h", None)],
        _MISSING,
        part="headers",
    ),
    Difference(
        "TimestampConverter$Value",
        {"field": "f", "target.type": "Timestamp", "unix.precision": "seconds"},
        "int32",
        5,
        REJECTED,
        {"f": ("timestamp", 5000)},
        "seconds since 1970 are often int32 in databases",
    ),
    Difference(
        "TimestampConverter$Value",
        {"field": "f", "target.type": "Timestamp"},
        "boolean",
        None,
        REJECTED,
        {},
        "a null can be converted from every type",
    ),
    Difference(
        "Cast$Value",
        {"spec": "f:int32"},
        "string",
        "\u0663",
        {"f": ("int32", 3)},
        REJECTED,
        "only ASCII digits are numbers, as in JSON and SQL",
    ),
    Difference(
        "Cast$Value",
        {"spec": "f:float64"},
        "string",
        "0x1p3",
        {"f": ("float64", "8.0")},
        REJECTED,
        "hexadecimal floats are no numbers in JSON and SQL",
    ),
    Difference(
        "Cast$Value",
        {"spec": "f:string"},
        "timestamp",
        -1,
        {"f": ("string", "23:59:59.999Z")},
        {"f": ("string", "1969-12-31T23:59:59.999Z")},
        "Kafka Connect drops the date before 1970-01-02",
    ),
    Difference(
        "Cast$Value",
        {"spec": "f:string"},
        "timestamp",
        1_704_067_200_000,
        {"f": ("string", "2024-01-01")},
        {"f": ("string", "2024-01-01T00:00:00.000Z")},
        "the form of a timestamp does not depend on its value",
    ),
    Difference(
        "TimestampConverter$Value",
        {"field": "f", "target.type": "string", "format": "yyyy-MM-dd"},
        "timestamp",
        -14_831_769_600_000,
        {"f": ("string", "1499-12-23")},
        {"f": ("string", "1500-01-01")},
        "ISO 8601's calendar; Java's is Julian before 1582-10-15",
    ),
    Difference(
        "HeaderFrom$Value",
        {"fields": "f", "headers": "h", "operation": "copy"},
        "bytes",
        "aGk=",
        [("h", "aGk=")],
        [("h", "hi")],
        "headers are bytes, so bytes need no base64",
        part="headers",
    ),
    Difference(
        "Cast$Value",
        {"spec": "f:int64"},
        "timestamp",
        _AT,
        REJECTED,
        {"f": ("int64", _AT)},
        _TYPED,
        schemas=False,
    ),
    Difference(
        "Flatten$Value",
        {},
        "timestamp",
        _AT,
        REJECTED,
        {"f": ("timestamp", _AT)},
        _TYPED,
        schemas=False,
    ),
    Difference(
        "InsertField$Value",
        {"timestamp.field": "f"},
        "int64",
        1,
        {"f": ("int64", _AT)},
        {"f": ("timestamp", _AT)},
        _TYPED,
        schemas=False,
    ),
    Difference(
        "InsertField$Value",
        {"topic.field": "f"},
        "int64",
        1,
        REJECTED,
        {"f": ("string", "t")},
        "the field is replaced, as it is without schemas",
    ),
    Difference(
        "SetSchemaMetadata$Value",
        {"schema.name": "n"},
        "int64",
        1,
        REJECTED,
        {"f": ("int64", 1)},
        "every column has a type, which can have a name",
        schemas=False,
    ),
]


@pytest.mark.parametrize(
    "found", DIFFERENCES, ids=lambda found: f"{found.transform}-{found.reason[:30]}"
)
def test_difference(kafka: Program, found: Difference) -> None:
    value = None if found.value is ... else {"f": found.value}
    record = {
        "topic": "t",
        "partition": 0,
        "offset": 0,
        "timestamp": _AT,
        "key": None,
        "headers": [],
        "value": value,
    }
    rows = load(kafka, [record], {"struct": [["f", found.kind]]}, schemas=found.schemas)
    case = Case(found.transform, found.options)
    [theirs] = made.kafka_records(
        kafka.call("apply", type=found.transform, options=found.options)
    ).values()
    [ours] = transformed(case, rows, schemas=found.schemas).values()
    parts = [
        result[found.part] if isinstance(result, dict) else REJECTED for result in (theirs, ours)
    ]
    assert parts == [found.kafka, found.ours]


@pytest.mark.parametrize("schemas", [True, False], ids=["schemas", "schemaless"])
@pytest.mark.parametrize(
    ("count", "sets"),
    [(SAMPLE, 1), pytest.param(WHOLE, 1, marks=[pytest.mark.long, pytest.mark.timeout(1800)])],
)
def test_results_equal(kafka: Program, count: int, sets: int, schemas: bool) -> None:
    records = made.records(SEED, count)
    rows = load(kafka, records, made.VALUE if schemas else made.PLAIN, schemas=schemas)
    tried: set[str] = set()
    for case in cases(SEED, sets):
        if case.schemas in (None, schemas):
            tried.add(case.transform.partition("$")[0])
            assert not differences(kafka, case, rows, schemas=schemas)[:3]
    assert tried >= set(TRANSFORMS) - {"Filter"} - (set() if schemas else {"SetSchemaMetadata"})


@pytest.mark.parametrize("name", sorted(TRANSFORMS))
def test_options_have_the_names_of_kafka_connect(kafka: Program, name: str) -> None:
    parts = issubclass(step_class(name), ColumnTransform)
    theirs = kafka.call("options", type=f"{name}$Value" if parts else name)
    ours = {info.name: info for info in by_name(step_class(name)).values()}
    assert {option.replace(".", "_") for option in theirs} <= set(ours)
    required = {option.replace(".", "_") for option, default in theirs.items() if default is None}
    assert required == {
        option for option, info in ours.items() if isinstance(info.default, type(MISSING))
    }


@pytest.mark.parametrize(
    ("name", "options"),
    [("TopicNameMatches", {"pattern": pattern}) for pattern in ("shop", "shop.*", r"\w+\.(?=o).*")]
    + [("HasHeaderKey", {"name": name}) for name in ("trace", "ünï", "none")]
    + [("RecordIsTombstone", {})],
)
def test_predicates_equal(kafka: Program, name: str, options: dict[str, str]) -> None:
    rows = load(kafka, made.records(SEED, SAMPLE), made.PLAIN, schemas=False)
    theirs = kafka.call("matches", type=f"predicates.{name}", options=options)
    settings = {
        option: parse(by_name(step_class(name))[option], value) for option, value in options.items()
    }
    flags = step_class(name)(**settings).matches(rows)
    assert theirs == ([flags] * rows.count if isinstance(flags, bool) else flags.tolist())
