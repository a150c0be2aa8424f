"""Avro's own Java library, which Spark brings, reads the same bytes as our reader and agrees."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors.exceptions.captured import NumberFormatException
from pyspark.sql import SparkSession

from penstock.formats.avro import parse, parse_writer
from penstock.formats.avro_decode import decode, run
from penstock.formats.avro_program import program
from penstock.formats.values import Values
from tests.formats.avro.evolution import evolved
from tests.formats.avro.reference import WIDE, encode, long, records, sized
from tests.formats.drawn import EXAMPLES, drawn
from tests.sampling import sample_rows

pytestmark = [pytest.mark.spark, pytest.mark.slow]


class Library:
    """Readers and writers of generic records in the session's Java."""

    def __init__(self, spark: SparkSession) -> None:
        java: Any = spark.sparkContext._jvm
        self._java = java
        self._avro = java.org.apache.avro

    def schema(self, document: Any) -> Any:
        return self._avro.Schema.Parser().parse(json.dumps(document))

    def read(self, schema: Any, content: bytes, decimals: bool = False, reader: Any = None) -> Any:
        data = self._avro.generic.GenericData()
        if decimals:
            data.addLogicalTypeConversion(self._avro.Conversions.DecimalConversion())
        decoder = self._avro.io.DecoderFactory.get().binaryDecoder(bytearray(content), None)
        made = self._avro.generic.GenericDatumReader(schema, reader or schema, data)
        found = made.read(None, decoder)
        assert decoder.isEnd()
        return found

    def write(self, schema: Any, value: Any) -> bytes:
        out = self._java.java.io.ByteArrayOutputStream()
        encoder = self._avro.io.EncoderFactory.get().blockingBinaryEncoder(out, None)
        self._avro.generic.GenericDatumWriter(schema).write(value, encoder)
        encoder.flush()
        return bytes(out.toByteArray())


def decoded(document: Any, content: list[bytes | None]) -> tuple[list[Any], list[str | None]]:
    found, errors = decode(parse(document), Values.of(pa.array(content, pa.binary())))
    return found.to_pylist(), errors.to_pylist()


def unscaled() -> st.SearchStrategy[bytes]:
    """Bytes of decimals: short, at the edges of 38 digits, with any number of signs in front."""
    edges = [0, 1, 127, 128, 255, 2**63, 2**64, 10**38 - 1, 10**38, 2**127 - 1, 2**127]
    numbers = st.sampled_from([*edges, *(-edge for edge in edges)])
    numbers |= st.integers(-(10**12), 10**12) | st.integers(-(2**130), 2**130)
    made = st.builds(
        lambda number, more: number.to_bytes(number.bit_length() // 8 + more, "big", signed=True),
        numbers, st.integers(1, 20),
    )  # fmt: skip
    return made | st.binary(max_size=20)


@pytest.mark.parametrize(("precision", "scale"), sample_rows([(9, 2), (38, 0), (38, 38)], 3))
def test_decimals(spark: SparkSession, precision: int, scale: int) -> None:
    library = Library(spark)
    kind = {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
    document = {"type": "record", "name": "R", "fields": [{"name": "d", "type": kind}]}
    schema = library.schema(document)
    content: list[bytes | None] = [sized(part) for part in drawn(unscaled())]
    found, errors = decoded(document, content)
    for value, ours, error in zip(content, found, errors, strict=True):
        if value == sized(b""):
            with pytest.raises(NumberFormatException, match="Zero length BigInteger"):
                library.read(schema, value, decimals=True)
            assert error == "field d: is a decimal without bytes"
            continue
        theirs = library.read(schema, value or b"", decimals=True).get("d")
        if theirs.scaleb(scale, WIDE).adjusted() < precision:
            assert (ours, error) == ({"d": theirs}, None)
        else:
            assert (ours, error) == (
                None,
                f"field d: has more digits than decimal({precision},{scale})",
            )


def test_fixed_decimals_wider_than_sixteen_bytes() -> None:
    kind = {"type": "fixed", "name": "F", "size": 32, "logicalType": "decimal", "precision": 38,
            "scale": 18}  # fmt: skip
    document = {"type": "record", "name": "R", "fields": [{"name": "d", "type": kind}]}
    numbers = [5, -5, 10**38 - 1, 1 - 10**38, 10**38, 2**200, -(2**200)]
    found, errors = decoded(
        document, [number.to_bytes(32, "big", signed=True) for number in numbers]
    )
    assert [row and row["d"].scaleb(18, WIDE) for row in found] == [*numbers[:4], None, None, None]
    assert errors[4:] == ["field d: has more digits than decimal(38,18)"] * 3


KINDS = [
    ("int", "date", 1), ("int", "time-millis", 1), ("long", "time-micros", 1),
    ("long", "timestamp-millis", 1_000), ("long", "timestamp-micros", 1),
    ("long", "local-timestamp-millis", 1_000), ("long", "local-timestamp-micros", 1),
    ("long", "timestamp-nanos", 1), ("long", "local-timestamp-nanos", 1), ("long", "unknown", 1),
]  # fmt: skip
LONG = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-1, -2, -86_400_001, 2**53 + 1])
INT = st.integers(-(2**31), 2**31 - 1) | st.sampled_from([-1, -719_163])


@pytest.mark.parametrize(("kind", "logical", "unit"), sample_rows(KINDS, 3))
def test_times_are_the_numbers_that_the_library_reads(
    spark: SparkSession, kind: str, logical: str, unit: int
) -> None:
    """Dates and times of any age; those of milliseconds are kept as microseconds."""
    library = Library(spark)
    fields = [{"name": "t", "type": {"type": kind, "logicalType": logical}}]
    document = {"type": "record", "name": "R", "fields": fields}
    schema = library.schema(document)
    content = [long(number) for number in drawn(INT if kind == "int" else LONG)]
    found, errors = decode(parse(document), Values.of(pa.array(content, pa.binary())))
    numbers = found.field("t").cast(pa.int32() if kind == "int" else pa.int64()).to_pylist()
    for value, ours, valid, error in zip(
        content, numbers, found.is_valid(), errors.to_pylist(), strict=True
    ):
        theirs = library.read(schema, value).get("t") * unit
        if -(2**63) <= theirs < 2**63:
            assert (ours, valid.as_py(), error) == (theirs, True, None)
        else:
            assert (valid.as_py(), error) == (False, "field t: does not fit a timestamp")


def test_what_the_library_writes_is_read(spark: SparkSession) -> None:
    library = Library(spark)
    for document, values in drawn(st.deferred(lambda: records(itertools.count())), EXAMPLES // 4):
        schema = library.schema(document)
        ours: list[bytes | None] = [encode(document, value, 2) for value in drawn(values, 4)]
        theirs: list[bytes | None] = [
            library.write(schema, library.read(schema, content or b"")) for content in ours
        ]
        # The library's maps have each key once, in an order of their own.
        assert in_order(decoded(document, theirs)) == in_order(decoded(document, ours))


STRICTER = (
    "NAME_MISMATCH", "reads record", "has more digits", "text is not UTF-8",
    "LOGICAL_TYPE_MISMATCH",
)  # fmt: skip
"""Values that the library reads although names of records, digits or texts do not fit."""


def test_what_the_library_resolves_is_resolved(spark: SparkSession) -> None:
    """The library reads a value as the reader's, and what it writes of it is read the same."""
    library = Library(spark)
    compared = 0
    for writer, reader, values in drawn(st.deferred(pairs), EXAMPLES // 2):
        made = program(parse_writer(writer), parse(reader))
        ours: list[bytes | None] = [encode(writer, value, 2) for value in drawn(values, 3)]
        found, errors = run(made, Values.of(pa.array(ours, pa.binary())))
        schemas = [library.schema(document) for document in (writer, reader)]
        for content, row, error in zip(ours, found.to_pylist(), errors.to_pylist(), strict=True):
            try:
                theirs = library.read(schemas[0], content or b"", reader=schemas[1])
            except Py4JJavaError:
                # The library compares the namespaces of enums and fixed types too.
                assert error is not None or "'other'" in str(reader)
                continue
            if error is not None:
                assert any(word in error for word in STRICTER), (error, writer, reader)
                continue
            again, wrong = decoded(reader, [library.write(schemas[1], theirs)])
            assert wrong == [None]
            assert in_order(again) == in_order([row])
            compared += 1
    assert compared > EXAMPLES // 4


@st.composite
def pairs(draw: Any) -> Any:
    numbers = itertools.count()
    writer, values = draw(records(numbers))
    reader = draw(evolved(writer, numbers))
    if isinstance(reader, list):
        reader = next(part for part in reader if part != "null")
    # The library reads milliseconds as microseconds if only the reader's schema has these.
    texts = (
        json.dumps(side).replace("timestamp-millis", "timestamp-micros")
        for side in (writer, reader)
    )
    return *map(json.loads, texts), values


def in_order(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: in_order(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        pairs = value and all(isinstance(part, tuple) and len(part) == 2 for part in value)
        parts = [in_order(part) for part in value]
        return sorted(parts, key=repr) if pairs and isinstance(value, list) else parts
    return repr(value)
