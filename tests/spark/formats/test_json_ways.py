"""Readers open JSON as Spark's variants do, with the same words for what is wrong.

Every leaf is given every token, as a number, as a string and as what is no JSON at all, in one job;
then come whole documents. What differs on purpose is at the end, and in docs/decisions.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock.formats.json.decode import JsonReader
from penstock.spark.formats.ddl import read_ddl, record_of
from penstock.spark.formats.decoders import JsonDecoder
from tests.formats.json.test_decode import NUMBERS, TEXTS, listed

pytestmark = [pytest.mark.spark, pytest.mark.slow]
TYPES = [
    "string", "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal(5,2)",
    "decimal(18,0)", "decimal(38,10)", "decimal(38,38)", "timestamp", "timestamp_ntz", "date",
    "array<int>", "map<string, double>", "struct<a: int, b: string>",
]  # fmt: skip
MORE = [
    " 9.5 ", ".5", "5.", "1_0", "0x1", "1d", "Infinity", "NaN", "\u0661", "1e-400", "1e400",
    "0e400", "\u00a05", "\u00005", "\t5\n", "2026-01-02\n", "2026-01-02\r\n", "2026-01-02 ",
    "2026-01-02T",
    "2026-01-02T03", "2026-01-02T03:04:05 UTC", "2026-03-29T02:30:00 Europe/Berlin",
    "2026-10-25T02:30:00 Europe/Berlin", "2026-01-02T03:04:05+2", "2026-01-02T03:04:05+02",
    "2026-01-02T03:04:05+0200", "2026-01-02T03:04:05+2:30", "2026-01-02T03:04:05-0:30",
    "2026-01-02T03:04:05UTC+1", "2026-01-02T03:04:05GMT+01:00", "2026-01-02T03:04:05z",
    "2026-01-02t03:04:05Z", "2026-01-02T24:00:00Z", "2026-01-02T23:59:60Z", "2026-01-02T03:04:05.Z",
    "2026-01-02T03:04:05.1234567890123Z", "2026-01-02T03:04:05+18:00", "2026-01-02T03:04:05+18:01",
    "2026-01-02T03:04:05-00:00", "2026-01-02T03:04:05+01:02:03", "2026-01-02T03:04:05 PST",
    "2026-01-02T03:04:05 EST", "2026-01-02T03:04:05 nowhere",
    "2026-01-02x", "2026-01-02 03:04:05 z",
    "2026-01-02T03:04:05.5 +01:00", "2026-01-02T:04:05", "2026-01-02T03:04:05,5",
    "2026-01-02T03:04:05Z\u2003", "2026-01-02T03:04:05Z\u0000", "2026-01-02\u0085",
]  # fmt: skip
OTHERS = [
    "true", "null", "[]", "{}", "[1, null]", '[1, "x", 2.5]', '{"a": 1, "b": "x"}', '{"a": "x"}',
    '{"z": "q", "b": "p"}', '{"b":1.50,"a":"x\\u00e9\\n","B":1e3,"c":[1.0,"\\u0001\\/"]}', "[[1]]",
    '{"\\ud83d\\ude00": "q", "\\uffee": "p"}', '{"a": 1, "a": 2}', '{"": 1}', '"\\ud800"',
    '"\\udc00\\ud800"', '"\\ud83d\\ude00"', '"\\x"', '"\\u12"', '"\t"', "tru", "", "'a'", "1 2",
    "123456789.5e0", "1e-7", "0.0000001", "1.0e7", "9999999.0e0", "1e-3", "9.99e-4", "-1e22",
    "9.223372036854775807e18", "100000000000000000000.0", "12345678901234567890.5e-18",
    "9999999999999999999999999999.99999999995", "3.4028235677973366e38", '"' + "y" * 61 + '"',
]  # fmt: skip
WHOLE = [
    "", "{", "null", "5", "[{}]", "{} x", "{}{}", "{},{}", "{}]", "{,}", '{"a0":true,}', "{'a0':1}",
    '{"a0" 1}', '{"a0":true "a1":1}', "\ufeff{}", "{}\x00", "\x0c{}", "{}//", " {} \n\r\t",
    '{"x":{"y":1,"y":2}}', '{"x":1,"\\u0078":2}', '{"\\u0061\\u0030":"x"}', '{"x":NaN}',
    '{"x":' + "1" * 1000 + "}", '{"x":' + "1" * 1001 + "}", '{"x":"\x7f\u0085"}', '{"x":1e999999}',
    '{"x":' + "[" * 400 + "]" * 400 + "}", '{"a5":"x","a0":5}', '{"a4":300,"a2":300,"x":{}}',
]  # fmt: skip


def both(
    spark: SparkSession, ddl: str, values: list[bytes | None], *, closed: bool = False
) -> list[str | None]:
    """Read the values in both ways, which must agree; what is wrong with each."""
    record = record_of(read_ddl(ddl), closed=closed)
    rows = spark.createDataFrame(list(enumerate(values)), "n int, value binary").repartition(2)
    table = JsonDecoder(record=record).decode(rows).orderBy("n").toArrow().combine_chunks()
    made, errors = JsonReader(record=record).read(pa.array(values, pa.binary()))
    made.validate(full=True)
    wanted = table.column("_value").chunk(0)
    said: list[str | None] = table.column("_error").to_pylist()
    read = zip(values, errors.to_pylist(), made, said, wanted, strict=True)
    differ = [
        (value, error, words, listed(ours), listed(theirs))
        for value, error, ours, words, theirs in read
        if error != words or repr(ordered(listed(ours))) != repr(ordered(listed(theirs)))
    ]
    assert differ == []
    return said


def ordered(value: Any) -> Any:
    """A variant has its names in order, and so its maps; ours have the order of the text."""
    if isinstance(value, dict):
        return {name: ordered(part) for name, part in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], dict) and "key" in value[0]:
        return sorted(value, key=lambda entry: str(entry["key"]))
    return value


def test_every_leaf_of_every_token(spark: SparkSession) -> None:
    tokens = [*NUMBERS, *map(json.dumps, [*TEXTS, *MORE]), *OTHERS]
    tokens += [f'"{number}"' for number in NUMBERS]
    names = [f"a{number}" for number in range(len(TYPES))]
    ddl = ", ".join(f"{name} {kind}" for name, kind in zip(names, TYPES, strict=True))
    values = [f'{{"{name}": {token}}}'.encode() for name in names for token in tokens]
    values += [document.encode() for document in WHOLE]
    values += [b"\xff", b'{"x":"\xed\xa0\x80"}', b"{}\xff"]
    said = both(spark, ddl, [*values, None])
    assert len(values) > 2_500
    assert 500 < sum(words is None for words in said) < len(said) - 500


def test_required_closed_and_nested(spark: SparkSession) -> None:
    ddl = (
        "a bigint not null,"
        " b struct<c: int not null, d: array<struct<e: int, f: string>>> not null,"
        " `g.h` map<string, array<decimal(5,2)>>"
    )
    values = [
        "{}", '{"a":null}', '{"a":1}', '{"a":1,"b":null}', '{"a":1,"b":{}}', '{"b":{"c":"x"}}',
        '{"a":1,"b":{"c":1}}', '{"a":1,"b":{"c":1,"d":[null,{"e":1},{"f":2,"e":"x"}]}}',
        '{"a":1,"b":{"c":1,"d":[{"e":5,"f":"x"},{}]}}', '{"a":1,"b":{"c":1,"z":1,"y":2}}',
        '{"a":1,"b":{"c":1},"g.h":{"k":[1.005,"2"],"j":null}}',
        '{"a":1,"b":{"c":1},"g.h":{"k":[1],"j":["x"]}}', '{"a":1,"b":{"c":1},"z":0,"y":0}',
        '{"a":1,"b":{"c":1},"g.h":{"k":[1],"k":[2]}}', '{"a":"x","z":1}', '{"A":1}',
        '{"a":1,"b":{"c":1},"\\ud83d\\ude00":1,"\\uffee":2}',
        '{"a":1,"b":{"c":1},"' + "z" * 70 + '":1}',
    ]  # fmt: skip
    for closed in (False, True):
        said = both(spark, ddl, [value.encode() for value in values], closed=closed)
        assert None in said


def test_what_differs_on_purpose(spark: SparkSession) -> None:
    """Nesting is bounded at half of what a variant takes; maps keep the order of the text."""
    deep = b'{"x":' + b"[" * 600 + b"]" * 600 + b"}"
    record = record_of(read_ddl("a map<string, int>"))
    assert JsonReader(record=record).read(pa.array([deep]))[1].to_pylist() == ["not JSON"]
    rows = spark.createDataFrame([(deep,), (b'{"a":{"z":1,"b":2}}',)], "value binary")
    found = JsonDecoder(record=record).decode(rows).toArrow()
    assert found.column("_error").to_pylist() == [None, None]
    assert found.column("_value").to_pylist()[1] == {"a": [("b", 2), ("z", 1)]}
    made, _ = JsonReader(record=record).read(pa.array([b'{"a":{"z":1,"b":2}}']))
    assert made.to_pylist() == [{"a": [("z", 1), ("b", 2)]}]
