"""Each kind in Spark: what is decoded, what is said of what is not, and the shape of the frames."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import message_factory
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)
from pyspark.sql.types import StructType

from penstock.formats import InvalidFormat, ValueFormat
from penstock.spark.formats.ddl import infer_json
from penstock.spark.formats.decoders import Decoder, decoder
from tests.formats.avro.reference import encode, long
from tests.formats.protobuf.messages import descriptor

pytestmark = [pytest.mark.spark, pytest.mark.slow]
DDL = (
    "id bigint not null, customer string, amount decimal(5,2), at timestamp, day date, ok boolean,"
    " price double, tags array<string>, inner struct<a: int, b: struct<c: string>>,"
    " more map<string, int>, `a.b` int, any variant"
)


def frame(spark: SparkSession, values: Iterable[bytes | str | None]) -> DataFrame:
    rows = [
        (number, value.encode() if isinstance(value, str) else value)
        for number, value in enumerate(values)
    ]
    return spark.createDataFrame(rows, "n int, value binary").repartition(2)


def decoded(
    spark: SparkSession, made: Decoder, values: Iterable[bytes | str | None]
) -> tuple[list[Any], list[str | None]]:
    found = made.decode(frame(spark, values))
    assert found.columns == ["n", "value", "_value", "_error"]
    assert found.schema["_value"].dataType == made.schema
    rows = found.orderBy("n").collect()
    taken = [
        None if row["_value"] is None else row["_value"].asDict(recursive=True) for row in rows
    ]
    return taken, [row["_error"] for row in rows]


def test_raw_and_text(spark: SparkSession) -> None:
    values = [b"abc", b"\xff", None, b"", "ü".encode()]
    found, errors = decoded(spark, decoder(ValueFormat(kind="raw")), values)
    assert [None if row is None else bytes(row["value"]) for row in found] == values
    assert errors == [None] * 5
    found, errors = decoded(spark, decoder(ValueFormat(kind="text")), values)
    assert found == [{"value": "abc"}, None, None, {"value": ""}, {"value": "ü"}]
    assert errors == [None, "not UTF-8 text", None, None, None]


def test_json_says_what_is_wrong(spark: SparkSession) -> None:
    wrong = {
        "": "not JSON",
        "{": "not JSON",
        '{"id":1} x': "not JSON",
        '{"id":1}{"id":2}': "not JSON",
        '{"id":1},{"id":2}': "not JSON",
        '{"id":1},5]': "not JSON",
        '{"id":1}]': "not JSON",
        '{"id":1,"id":2}': "not JSON",
        "{'id':1}": "not JSON",
        '{"id":NaN}': "not JSON",
        "null": "not a JSON object",
        "5": "not a JSON object",
        '[{"id":1}]': "not a JSON object",
        "{}": "field id: missing",
        '{"ID":1}': "field id: missing",
        '{"id":null}': "field id: null",
        '{"id":"1"}': "field id: '1' is not bigint",
        '{"id":1.5}': "field id: 1.5 is not bigint",
        '{"id":true}': "field id: true is not bigint",
        '{"id":9223372036854775808}': "field id: 9223372036854775808 is not bigint",
        '{"id":1,"customer":5}': "field customer: 5 is not string",
        '{"id":1,"customer":{"x":1}}': 'field customer: {"x":1} is not string',
        '{"id":1,"amount":"abc"}': "field amount: 'abc' is not decimal(5,2)",
        '{"id":1,"amount":1000}': "field amount: 1000 is not decimal(5,2)",
        '{"id":1,"at":"10:00"}': "field at: '10:00' is not timestamp",
        '{"id":1,"at":1700000000}': "field at: 1700000000 is not timestamp",
        '{"id":1,"day":"2026-02-30"}': "field day: '2026-02-30' is not date",
        '{"id":1,"ok":1}': "field ok: 1 is not boolean",
        '{"id":1,"price":1e400}': "field price: 1e400 is not double",
        '{"id":1,"tags":"x"}': "field tags: is not an array",
        '{"id":1,"tags":["x",1]}': "field tags[]: 1 is not string",
        '{"id":1,"inner":[]}': "field inner: is not an object",
        '{"id":1,"inner":{"a":"x"}}': "field inner.a: 'x' is not int",
        '{"id":1,"inner":{"b":{"c":1}}}': "field inner.b.c: 1 is not string",
        '{"id":1,"more":{"k":"v"}}': "field more{}: 'v' is not int",
    }
    found, errors = decoded(spark, decoder(ValueFormat(kind="json", schema=DDL)), wrong)
    assert dict(zip(wrong, errors, strict=True)) == wrong
    assert not any(found)
    found, errors = decoded(
        spark, decoder(ValueFormat(kind="json", schema=DDL)), [b'{"id":1,"customer":"\xff"}', None]
    )
    assert (found, errors) == ([None, None], ["not UTF-8 text", None])


def test_json_becomes_columns(spark: SparkSession) -> None:
    whole = {
        "id": 1, "customer": "ü", "amount": 1.25, "at": "2026-01-02T03:04:05.5Z",
        "day": "2026-01-02", "ok": True, "price": 3, "tags": ["a", None],
        "inner": {"a": 5, "b": {"c": "x"}}, "more": {"k": 1}, "a.b": 7, "any": [1], "else": 0,
    }  # fmt: skip
    made = decoder(ValueFormat(kind="json", schema=DDL))
    found, errors = decoded(
        spark, made, [json.dumps(whole), ' {"id":1e2,"amount":"9.5","tags":null,"inner":{}}\n']
    )
    assert errors == [None, None]
    first, second = found
    assert str(first.pop("any")) is not None
    at = first.pop("at")
    assert at.astimezone(UTC) == datetime(2026, 1, 2, 3, 4, 5, 500_000, UTC)
    assert first == {
        "id": 1, "customer": "ü", "amount": Decimal("1.25"), "day": date(2026, 1, 2), "ok": True,
        "price": 3.0, "tags": ["a", None], "inner": {"a": 5, "b": {"c": "x"}}, "more": {"k": 1},
        "a.b": 7,
    }  # fmt: skip
    assert second["id"] == 100
    assert second["amount"] == Decimal("9.50")
    assert second["inner"] == {"a": None, "b": None}
    assert [name for name, value in second.items() if value is not None] == [
        "id",
        "amount",
        "inner",
    ]


def test_json_unknown_fields_and_framing(spark: SparkSession) -> None:
    made = decoder(
        ValueFormat(
            kind="json", schema="a int, b struct<c: int>", unknown_fields="reject",
            framing="confluent",
        )
    )  # fmt: skip
    head = b"\x00\x00\x00\x00\x09"
    values = [
        head + b'{"a":1,"b":{"c":2}}', head + b'{"a":1,"x":1}', head + b'{"b":{"c":1,"d":2}}',
        b"\x00\x00", b'{"a":1}', None,
    ]  # fmt: skip
    found, errors = decoded(spark, made, values)
    assert found == [{"a": 1, "b": {"c": 2}}, None, None, None, None, None]
    assert errors == [
        None, "field x: is not in the schema", "field b.d: is not in the schema",
        "shorter than the 5 bytes of the confluent framing",
        "does not start with the magic byte 0 of the confluent framing", None,
    ]  # fmt: skip


def test_infer_json(spark: SparkSession) -> None:
    values = ['{"a":1,"b":"x","c":[1.5]}', "nonsense", None, '{"a":2.5,"d":{"e":null},"f g":true}']
    ddl = infer_json(frame(spark, values), rows_max=100)
    assert (
        ddl == "`a` double, `b` string, `c` array<double>, `d` struct<`e`: string>, `f g` boolean"
    )
    _, errors = decoded(spark, decoder(ValueFormat(kind="json", schema=ddl)), values)
    assert errors == [None, "not JSON", None, None]
    with pytest.raises(InvalidFormat, match="no values yet to infer the schema from"):
        infer_json(frame(spark, [None]), rows_max=10)
    with pytest.raises(InvalidFormat, match="none of 1 sampled values"):
        infer_json(frame(spark, ["[1]"]), rows_max=10)


ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": ["null", "string"]},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9,
                                    "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "here", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "none", "type": "null"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "more", "type": {"type": "map", "values": "float"}},
        {"name": "choice", "type": ["string", "int"]},
        {"name": "bytes", "type": "bytes"},
    ],
}  # fmt: skip
AN_ORDER: dict[str, Any] = {
    "id": 5, "customer": (1, "ü"), "amount": Decimal("12.34"), "at": datetime(2026, 1, 1),
    "here": datetime(2026, 1, 1, 5), "day": date(2026, 1, 1), "none": None, "tags": ["a", "b"],
    "more": [("k", 0.5)], "choice": (1, 7), "bytes": b"\x00\x01",
}  # fmt: skip


@pytest.mark.parametrize("framing", ["none", "confluent"])
def test_avro(spark: SparkSession, tmp_path: Path, framing: Any) -> None:
    path = tmp_path / "order.avsc"
    path.write_text(json.dumps(ORDER))
    made = decoder(ValueFormat(kind="avro", schema_file=path, framing=framing))
    head = b"\x00\x00\x00\x00\x09" if framing == "confluent" else b""
    good = head + encode(ORDER, AN_ORDER)
    found, errors = decoded(spark, made, [good, good[:-1], None, good])
    assert errors == [None, "field bytes: ends too early", None, None]
    assert found[0] == found[3]
    assert found[1:3] == [None, None]
    row = found[0]
    assert row.pop("at").astimezone(UTC) == datetime(2026, 1, 1, tzinfo=UTC)
    assert bytes(row.pop("bytes")) == b"\x00\x01"
    assert row == {
        "id": 5, "customer": "ü", "amount": Decimal("12.34"), "here": datetime(2026, 1, 1, 5),
        "day": date(2026, 1, 1), "none": None, "tags": ["a", "b"], "more": {"k": 0.5},
        "choice": {"member0": None, "member1": 7},
    }  # fmt: skip
    if framing == "confluent":
        _, errors = decoded(spark, made, [b"\x01" + good[1:], b"\x00"])
        assert errors == [
            "does not start with the magic byte 0 of the confluent framing",
            "shorter than the 5 bytes of the confluent framing",
        ]


def test_protobuf(spark: SparkSession, tmp_path: Path) -> None:
    of = descriptor(tmp_path, "shop.All")
    message: Any = message_factory.GetMessageClass(of)(
        i64=-1, u64=2**64 - 1, st="ü", co=77, oi=0, inner={"a": 1, "c": [-1, 2]}, ri=[1, 2],
        rm=[{"b": "x"}], mi={"k": 1}, cs="y",
    )  # fmt: skip
    message.at.FromMicroseconds(1_500_000)
    content = message.SerializeToString()
    made = decoder(
        ValueFormat(kind="protobuf", schema_file=tmp_path / "shop.proto", message="shop.All")
    )
    found, errors = decoded(spark, made, [content, content[:-1], None, b""])
    assert errors == [None, "ends too early", None, None]
    row = found[0]
    assert row["at"].astimezone(UTC) == datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)
    assert row["u64"] == Decimal(2**64 - 1)
    assert row["inner"] == {"a": 1, "b": None, "c": [-1, 2], "deep": None}
    assert (row["co"], row["oi"], row["os"], row["cs"], row["ci"]) == ("77", 0, None, "y", None)
    assert (row["mi"], row["ri"], row["took"]) == ({"k": 1}, [1, 2], None)
    assert found[3]["st"] == ""


def test_protobuf_framed_has_message_indexes(spark: SparkSession, tmp_path: Path) -> None:
    of = descriptor(tmp_path, "shop.Some")
    content = message_factory.GetMessageClass(of)(i32=5).SerializeToString()
    head = b"\x00\x00\x00\x00\x09"
    path = tmp_path / "shop.proto"
    third = decoder(
        ValueFormat(
            kind="protobuf", schema_file=path, message="shop.Some", framing="confluent"
        )
    )  # fmt: skip
    values = [
        head + long(1) + long(3) + content,
        head + long(0) + content,
        head + long(1) + long(2) + content,
        head + long(2) + long(3) + long(0) + content,
        head,
    ]
    found, errors = decoded(spark, third, values)
    assert found == [{"i32": 5, "st": "", "rm": []}, None, None, None, None]
    other = "message indexes: the value is of another message"
    assert errors == [None, other, other, other, "message indexes: ends too early"]


def test_a_stream_decodes_as_a_batch_does(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "order.avsc"
    path.write_text(json.dumps(ORDER))
    rows = frame(spark, [encode(ORDER, AN_ORDER), b"x"])
    rows.write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema(rows.schema).parquet(str(tmp_path / "in"))
    made = decoder(ValueFormat(kind="avro", schema_file=path)).decode(stream)
    text = decoder(ValueFormat(kind="json", schema="a int")).decode(stream)
    seen: list[Any] = []

    def keep(batch: DataFrame, _: int) -> None:
        seen.extend(batch.select("n", F.col("_value").isNull(), "_error").orderBy("n").collect())

    for each in (made, text):
        query = each.writeStream.foreachBatch(keep).trigger(availableNow=True).start()
        assert query.awaitTermination(100)
    assert [tuple(row) for row in seen] == [
        (0, False, None), (1, True, "field customer: ends too early"),
        (0, True, "not UTF-8 text"), (1, True, "not JSON"),
    ]  # fmt: skip


def test_the_frame_keeps_its_other_columns(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "order.avsc"
    path.write_text(json.dumps(ORDER))
    rows = frame(spark, [encode(ORDER, AN_ORDER)]).select(
        F.lit("mine").alias("id"),
        F.array(F.struct(F.lit("k").alias("key"), F.lit(b"v").alias("value"))).alias("headers"),
        F.timestamp_micros(F.lit(5)).alias("timestamp"),
        F.col("value").alias("payload"),
    )
    found = decoder(ValueFormat(kind="avro", schema_file=path)).decode(rows, "payload")
    assert [*found.schema.names] == ["id", "headers", "timestamp", "payload", "_value", "_error"]
    assert StructType(found.schema.fields[:4]).simpleString() == rows.schema.simpleString()
    row = found.collect()[0]
    assert row["id"] == "mine"
    assert row["_value"]["id"] == 5
    assert row[:4] == rows.collect()[0][:4]
