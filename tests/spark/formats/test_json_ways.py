"""JSON values become what Spark and Python's decimals make of them, or are rejected.

Hypothesis makes numbers in all spellings; one job of Spark reads all of them, by `from_json`. Times
are compared with Spark's cast, whole documents with its parser of variants.
"""

from __future__ import annotations

import json
import math
import re
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from penstock.formats import ValueFormat
from penstock.formats.json.decode import JsonReader
from penstock.formats.json.plain import Conversion
from penstock.spark.formats.ddl import read_ddl, record_of
from penstock.spark.formats.decoders import decoder
from tests.formats.drawn import drawn
from tests.formats.json.test_decode import TEXTS, listed

pytestmark = [pytest.mark.spark, pytest.mark.slow]
WIDE = Context(prec=2_000, Emax=10**10, Emin=-(10**10))
INTEGERS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
DECIMALS = [(5, 2), (12, 2), (18, 0), (20, 2), (38, 0), (38, 10), (38, 38)]
REALS = ["double", "float"]
NUMERIC = [*INTEGERS, *(f"decimal({p},{s})" for p, s in DECIMALS), *REALS]
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
HARD = [
    "99999999999999.99e0", "10000000000000001E-2", "12.345", "1.005", "-0.005", "0.00499999",
    "1e18", "9223372036854775807e0", "9.223372036854775807e18", "-9.223372036854775808E+18",
    "92233720368547758070e-1", "9223372036854775808", "1e19", "127e0", "1280e-1", "12800e-2",
    "999.995", "999.994", "9.99995e2", "0e300", "-0", "-0.0", "1e-300", "0." + "0" * 39 + "1",
]  # fmt: skip


def spelled() -> st.SearchStrategy[str]:
    """Numbers in all spellings of JSON, up to 400 digits."""
    digits = st.text("0123456789", max_size=4) | st.text("0123456789", max_size=40)
    digits |= st.text("09", max_size=200)
    whole = st.builds(lambda text: text.lstrip("0") or "0", digits)
    fraction = st.just("") | digits.map(lambda text: f".{text or '0'}")
    power = st.integers(-25, 25) | st.integers(-330, 320)
    exponent = st.just("") | st.builds(
        lambda e, sign, value: f"{e}{sign if value >= 0 else '-'}{abs(value)}",
        st.sampled_from("eE"), st.sampled_from(["", "+", "+0"]), power,
    )  # fmt: skip
    return st.builds("".join, st.tuples(st.sampled_from(["", "", "-"]), whole, fraction, exponent))


def by_decimals(kind: str, text: str, *, exact: bool) -> Any:
    """The value of a number in a column of integers or decimals; None where it does not fit."""
    value = WIDE.create_decimal(text)
    if kind in INTEGERS:
        bound = 2 ** (INTEGERS[kind] - 1)
        fits = value == value.to_integral_value(context=WIDE) and -bound <= value < bound
        return int(value) if fits else None
    precision, scale = map(int, kind[8:-1].split(","))
    if value.adjusted() > 400:
        return Decimal(0) if value == 0 else None
    made = value.quantize(Decimal((0, (1,), -scale)), ROUND_HALF_UP, WIDE)
    fits = abs(made) < Decimal((0, (1,), precision - scale)) and (made == value or not exact)
    return made if fits else None


def read(kind: str, texts: list[str], *, exact: bool = True) -> tuple[list[Any], list[Any]]:
    """Our values, and what is wrong with the others."""
    reader = JsonReader(record=record_of(read_ddl(f"a {kind}")), conversion=Conversion(exact=exact))
    made, errors = reader.read(pa.array([f'{{"a":{text}}}'.encode() for text in texts]))
    made.validate(full=True)
    return [row and row["a"] for row in made.to_pylist()], errors.to_pylist()


def test_numbers_are_decoded_exactly(spark: SparkSession) -> None:
    texts = [*HARD, *drawn(spelled())]
    names = {kind: f"a{number}" for number, kind in enumerate(NUMERIC)}
    values = [
        (number, "{" + ",".join(f'"{name}":{text}' for name in names.values()) + "}")
        for number, text in enumerate(texts)
    ]
    schema = ", ".join(f"{name} {kind}" for kind, name in names.items())
    rows = spark.createDataFrame(values, "n int, j string").orderBy("n")
    table = rows.select(F.from_json("j", schema).alias("v")).select("v.*").toArrow()
    for kind, name in names.items():
        theirs = table.column(name).to_pylist()
        rounded, _ = read(kind, texts, exact=False)
        exact, errors = read(kind, texts)
        assert [value is None for value in exact] == [words is not None for words in errors]
        if kind in REALS:
            # Spark makes infinities of what is too large; ours are rejected.
            wanted = [None if math.isinf(value) else value for value in theirs]
            assert [*map(repr, exact)] == [*map(repr, wanted)]
            assert [*map(repr, rounded)] == [*map(repr, wanted)]
            continue
        assert exact == [by_decimals(kind, text, exact=True) for text in texts]
        assert rounded == [by_decimals(kind, text, exact=False) for text in texts]
        if kind in INTEGERS:  # Spark reads no integer of 1.0 and 1e2
            plain = [n for n, text in enumerate(texts) if text.lstrip("-").isdigit()]
            assert [exact[n] for n in plain] == [theirs[n] for n in plain]
        else:
            assert rounded == theirs


def test_exponents_without_bounds_take_no_memory() -> None:
    texts = ["1e999999999", "1e-999999999", "-1e99999999999999999999", "0e99999999999999999999",
             "1e-99999999999999999999", "5e-000000000000000000001", "1e+400", "9e-400"]  # fmt: skip
    for kind in NUMERIC[:-2]:
        half = None if kind in INTEGERS or kind.endswith(",0)") else Decimal("0.5")
        found, _ = read(kind, texts)
        assert found == [None, None, None, 0, None, half, None, None]
    found, _ = read("decimal(5,2)", texts, exact=False)
    assert found == [None, 0, None, 0, 0, Decimal("0.50"), None, 0]
    found, _ = read("double", texts)
    assert found == [None, 0.0, None, 0.0, 0.0, 0.5, None, 0.0]


def test_what_does_not_fit_is_said_with_column_value_and_type() -> None:
    digits = "has more digits after the point than decimal(12,2)"
    finer = "has a finer fraction of a second than"
    nanos, short = "'2026-01-02T03:04:05.1234567Z'", "'2026-01-02 03:04:05.000000001'"
    remedy = '; decimals = "round" keeps the digits that fit'
    cases = {
        ("decimal(12,2)", "12.345"): f"12.345 {digits}{remedy}",
        ("decimal(12,2)", '"12.345"'): f"'12.345' {digits}{remedy}",
        ("decimal(12,2)", "12345e-3"): f"12345e-3 {digits}{remedy}",
        ("decimal(5,2)", "999.999"): "999.999 is not decimal(5,2)",
        ("decimal(5,2)", "1e3"): "1e3 is not decimal(5,2)",
        ("bigint", "1e400"): "1e400 is not bigint",
        ("double", "1e400"): "1e400 is not double",
        ("timestamp", nanos.replace("'", '"')): f"{nanos} {finer} timestamp{remedy}",
        ("timestamp_ntz", short.replace("'", '"')): f"{short} {finer} timestamp_ntz{remedy}",
    }
    for (kind, text), words in cases.items():
        assert read(kind, [text]) == ([None], [f"field a: {words}"])
    fit = [("decimal(12,2)", "12.3400"), ("timestamp", '"2026-01-02T03:04:05.123456000Z"')]
    for kind, text in fit:
        assert read(kind, [text]) == read(kind, [text], exact=False)
        assert read(kind, [text])[1] == [None]


def moments() -> st.SearchStrategy[str]:
    """Texts that are nearly times, in forms that Spark's cast takes and others."""
    number = st.integers(0, 62)
    part = st.builds(str, number) | st.builds("{:02}".format, number)
    fraction = st.text("0123456789", max_size=12) | st.text("09", max_size=9)
    zones = ["", "Z", "z", "+02:00", "-00:30", "+2", "-0230", "+18:00", "+18:01", " UTC", "GMT+1",
             " PST",
             " Europe/Berlin", "America/New_York", "+01:02:03", " nowhere", "x"]  # fmt: skip
    day = st.builds(
        "{:04}-{:02}-{:02}".format, st.integers(0, 9999), st.integers(1, 12), st.integers(1, 29)
    )
    clock = st.builds(
        lambda mark, *parts: mark + ":".join(parts), st.sampled_from("T T"), part, part, part
    )
    more = st.just("") | st.builds(
        lambda clock, fraction, zone: clock + (fraction and f".{fraction}") + zone,
        clock, fraction, st.sampled_from(zones),
    )  # fmt: skip
    return st.builds("".join, st.tuples(day, more))


def test_times_are_those_of_sparks_cast(spark: SparkSession) -> None:
    texts = [*TEXTS, *MORE, *drawn(moments())]
    rows = spark.createDataFrame(list(enumerate(texts)), "n int, t string").orderBy("n")
    dated = r"^\d{4}-\d{2}-\d{2}"
    kinds = {
        "timestamp": rf"{dated}([Tt ]|$)",
        "timestamp_ntz": rf"{dated}([Tt ]|$)",
        "date": rf"{dated}$",
    }
    columns = [
        F.when(F.col("t").rlike(form), F.col("t").try_cast(kind)).alias(kind)
        for kind, form in kinds.items()
    ]
    table = rows.select(*columns).toArrow().combine_chunks()
    values = pa.array([json.dumps({"a": text}) for text in texts]).cast("binary")
    finer = re.compile(r":\d{1,2}\.\d{6}\d*[1-9]")
    for kind in kinds:
        theirs = [listed(value) for value in table.column(kind)]
        record = record_of(read_ddl(f"a {kind}"))
        for exact in (False, True):
            reader = JsonReader(record=record, conversion=Conversion(exact=exact))
            made, errors = reader.read(values)
            found = [listed(value["a"]) if value.is_valid else None for value in made]
            said = errors.to_pylist()
            for text, ours, wanted, words in zip(texts, found, theirs, said, strict=True):
                if exact and kind != "date" and finer.search(text):
                    wanted = None
                assert ours == wanted, (kind, text, exact)
                assert (words is None) == (wanted is not None), (kind, text, words)


def test_documents_are_json_where_sparks_parser_takes_them(spark: SparkSession) -> None:
    """The parser stops behind the first value: an array has the text, and its hash behind it."""
    texts = [*WHOLE, *(f'{{"a": {token}}}' for token in OTHERS)]
    rows = spark.createDataFrame(list(enumerate(texts)), "n int, t string").orderBy("n")
    whole = F.concat(F.lit("["), "t", F.lit(","), F.xxhash64("t").cast("string"), F.lit("]"))
    held = F.try_variant_get(F.try_parse_json(whole), "$[1]", "bigint").eqNullSafe(F.xxhash64("t"))
    theirs = [row[0] for row in rows.select(held).collect()]
    reader = JsonReader(record=record_of(read_ddl("a struct<b: int>, c variant")))
    _, errors = reader.read(pa.array(texts).cast("binary"))
    for text, right, words in zip(texts, theirs, errors.to_pylist(), strict=True):
        assert (words != "not JSON") == right, text


def test_what_is_left_to_spark_beside_what_the_reader_makes(spark: SparkSession) -> None:
    ddl = (
        "amount decimal(20,2), any variant, bytes binary, name string collate UNICODE_CI,"
        " list array<struct<any: variant, d: decimal(5,2)>>, more map<string, binary>"
    )
    values = [
        '{"amount":99999999999999.99e0,"any":{"b":[1,{"c":"\\u00fc"}]},"bytes":"AAE=","name":"A",'
        '"list":[{"any":null,"d":1.5},{"any":"x"},null],"more":{"k":"/w==","l":null}}',
        '{"any":[]}', '{"any":12.50}', '{"any":null}', "{}", '{"bytes":"*"}', '{"amount":1.005}',
        '{"list":[{"d":1},{"d":1.001}]}', '{"more":{"k":"*"}}', '{"any":{"a":1,"a":2}}',
        '{"any":{"b":"\\ud800"}}', '{"any":' + "[" * 450 + "]" * 450 + "}", None,
    ]  # fmt: skip
    content = [None if value is None else value.encode() for value in values]
    made = decoder(ValueFormat(kind="json", schema=ddl))
    rows = spark.createDataFrame(list(enumerate(content)), "n int, value binary").orderBy("n")
    frame = made.decode(rows)
    assert frame.schema["_value"].dataType == made.schema
    texts: list[Column | str] = [
        F.to_json("_value.any"), F.to_json("_value.list"), "_value.amount", "_value.bytes",
        "_value.more", (F.col("_value.name") == "a").alias("same"), "_error",
    ]  # fmt: skip
    found = [tuple(row) for row in frame.select(*texts).collect()]
    nothing = (None,) * 6
    assert found[0] == (
        '{"b":[1,{"c":"ü"}]}', '[{"any":null,"d":1.50},{"any":"x"},null]',
        Decimal("99999999999999.99"), b"\0\1", {"k": b"\xff", "l": None}, True, None,
    )  # fmt: skip
    assert [row[0] for row in found[1:5]] == ["[]", "12.5", "null", None]
    assert found[5:] == [
        (*nothing, "field bytes: '*' is not binary"),
        (*nothing, "field amount: 1.005 has more digits after the point than decimal(20,2);"
         ' decimals = "round" keeps the digits that fit'),
        (*nothing, "field list[].d: 1.001 has more digits after the point than decimal(5,2);"
         ' decimals = "round" keeps the digits that fit'),
        (*nothing, "field more{}: '*' is not binary"),
        (*nothing, "not JSON"), (*nothing, "not JSON"),
        ("[" * 450 + "]" * 450, *nothing[1:], None), (*nothing, None),
    ]  # fmt: skip
    rounded = decoder(ValueFormat(kind="json", schema=ddl, decimals="round"))
    assert rounded.decode(rows).select("_value.amount").collect()[6][0] == Decimal("1.01")
