"""Filters of batch reads keep what they keep where nothing can be pushed down."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from penstock.base.settings import LONG_MAX
from tests.spark.conftest import Topic

if TYPE_CHECKING:
    from penstock.testing import Broker

ODD_TIMES_MS = (
    -1, -2, -86_400_000, -86_400_001, -62_135_596_800_000, -62_135_596_800_001,
    -(LONG_MAX // 1_000), -(LONG_MAX // 1_000) - 1, -LONG_MAX, -LONG_MAX - 1,
    0, 1, 999, 1_000, 1_356_998_400_000, 1_356_998_400_001,
    253_402_300_799_999,  # the last of the year 9999
    253_402_300_800_000,
    LONG_MAX // 1_000,  # the last that Spark has
    LONG_MAX // 1_000 + 1,
    LONG_MAX,
)  # fmt: skip
# Spark has these times; it overflows where it shows the first one in a literal.
TIMES_MIN, TIMES_MAX = -(LONG_MAX // 1_000), LONG_MAX // 1_000
RECORDS = 60
LATER = {"message.timestamp.after.max.ms": str(LONG_MAX)}
ZONE = "spark.sql.session.timeZone"
ZONES = ("UTC", "America/New_York", "Asia/Kathmandu", "Pacific/Apia")
FILTERS = 13
EXAMPLES = -(-int(os.environ.get("PENSTOCK_TEST_FILTERS", "104")) // FILTERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """Two topics with records of odd times in no order, and a frame of both."""

    spark: SparkSession
    frame: DataFrame
    names: tuple[str, str]


@pytest.fixture(scope="module")
def filled(broker: Broker, spark: SparkSession) -> Iterator[Filled]:
    dice = random.Random(7)
    given = Topic(broker, spark, partitions=3, **LATER)
    appended = Topic(broker, spark, partitions=2, **{"message.timestamp.type": "LogAppendTime"})
    for topic, partitions in ((given, 3), (appended, 2)):
        for number in range(0, RECORDS, 4):  # batches whose newest record is not the last
            times = [dice.choice(ODD_TIMES_MS) for _ in range(4)]
            records = pa.table(
                {
                    "key": pa.array([None, b"a", b"b", b""]),
                    "value": pa.array([b"%d" % (number + row) for row in range(4)]),
                    "timestamp": pa.array(times),
                }
            )
            topic.client.write_arrow(topic.name, records, partition=dice.randrange(partitions))
    names = given.name, appended.name
    frame = given.batch(subscribe=",".join(names))
    yield Filled(spark=spark, frame=frame, names=names)
    given.client.close()
    appended.client.close()


WHOLE = ("-9223372036854775808L", "-1", "0", "1", "2", "7", "2147483648", "9223372036854775807L")
LITERALS = {
    "offset": (*WHOLE, "9223372036854775808", "2.5", "'3'", "cast(null as bigint)"),
    "partition": (*WHOLE, "3", "1.5", "cast(null as int)"),
    "topic": ("'{0}'", "'{1}'", "'no such topic'", "''", "cast(null as string)"),
    "timestamp": (
        *(f"timestamp_millis({ms}L)" for ms in ODD_TIMES_MS if TIMES_MIN < ms <= TIMES_MAX),
        "timestamp_millis(-1000L)",
        *(f"timestamp_micros({us}L)" for us in (-1, -999, -1_001, 1, 999, 1_001, 999_999)),
        "timestamp'1969-12-31 23:59:59.999'", "timestamp'1970-01-01 00:00:00.0005'",
        "timestamp'1970-01-01 00:00:01Z'", "timestamp'2013-01-01 00:00:00.0009995+00:00'",
        "timestamp_ntz'2013-01-01 00:00:00'", "date'1970-01-01'", "'2013-01-01'", "current_date()",
        "timestamp'0001-01-01 00:00:00'", "timestamp'9999-12-31 23:59:59.999999'",
        "timestamp'-0044-03-15 12:00:00'", "timestamp'+294247-01-10 00:00:00Z'",
        "cast(null as timestamp)",
    ),
    "value": ("X'3130'", "X''", "cast(null as binary)"),
    "key": ("X'61'", "X''", "cast(null as binary)"),
}  # fmt: skip


@st.composite
def conditions(draw: st.DrawFn, depth: int = 2) -> str:
    """A condition in SQL; the topics' names are still to be put in."""
    if depth and draw(st.booleans()):
        word = draw(st.sampled_from(["and", "or", "and not"]))
        return f"({draw(conditions(depth - 1))}) {word} ({draw(conditions(depth - 1))})"
    column = draw(st.sampled_from(["timestamp", *LITERALS]))
    literals = st.sampled_from(LITERALS[column])
    form = draw(st.sampled_from(["compare", "compare", "in", "between", "null", "turned"]))
    if form == "in":
        values = draw(st.lists(literals, min_size=1, max_size=4))
        return f"{column} {draw(st.sampled_from(['in', 'not in']))} ({', '.join(values)})"
    if form == "between":
        return f"{column} between {draw(literals)} and {draw(literals)}"
    if form == "null":
        return f"{column} is {draw(st.sampled_from(['null', 'not null']))}"
    operator = draw(st.sampled_from(["=", "<=>", ">", ">=", "<", "<=", "<>"]))
    pair = (column, draw(literals)) if form == "compare" else (draw(literals), column)
    return f"{pair[0]} {operator} {pair[1]}"


@pytest.mark.spark
@pytest.mark.timeout(3_600)  # of as many examples as are asked for
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)
@given(
    zone=st.sampled_from(ZONES),
    texts=st.lists(conditions(), min_size=FILTERS, max_size=FILTERS),
)
def test_a_filter_keeps_what_its_condition_is_true_of(
    filled: Filled, zone: str, texts: list[str]
) -> None:
    """The oracle is Spark: nothing can be pushed down of conditions that are columns."""
    wheres = [text.format(*filled.names) for text in texts]
    zone_before = filled.spark.conf.get(ZONE)
    filled.spark.conf.set(ZONE, zone)
    try:
        judged = filled.frame.selectExpr(
            "topic", "partition", "offset",
            *(f"coalesce({where}, false) as w{number}" for number, where in enumerate(wheres)),
        ).toArrow()  # fmt: skip
        parts = [
            filled.frame.where(where).selectExpr("topic", "partition", "offset", f"{number} as w")
            for number, where in enumerate(wheres)
        ]
        kept = reduce(DataFrame.unionAll, parts).toArrow()
    finally:
        filled.spark.conf.set(ZONE, str(zone_before))
    places = ["topic", "partition", "offset"]
    for number, where in enumerate(wheres):
        wanted = judged.filter(judged[f"w{number}"]).select(places).to_pylist()
        found = kept.filter(pc.equal(kept["w"], number)).select(places).to_pylist()
        assert sorted(map(str, found)) == sorted(map(str, wanted)), (zone, where)
