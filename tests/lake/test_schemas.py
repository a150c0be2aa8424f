"""Schemas: types of every kind are stored without loss, tables evolve, and misfits are refused."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st
from pyiceberg.types import DecimalType, DoubleType, IntegerType, LongType

from penstock.lake.commits import LakeTable, Mark, appended
from penstock.lake.schemas import partition, partition_texts, storable
from penstock.lake.target import LakeMismatch, catalog_properties, table_name
from tests.formats.drawn import drawn
from tests.lake.oracle import assert_files_once, assert_same, assert_stored, stored, target

_WHOLE = {
    kind: st.integers(-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1)
    for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())
}
_MOMENTS = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))
_TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20)


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    return st.integers(-most, most).map(lambda digits: Decimal(f"{digits}e-{scale}"))


VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    **_WHOLE,
    pa.uint8(): st.integers(0, 2**8 - 1),
    pa.uint32(): st.integers(0, 2**32 - 1),
    pa.bool_(): st.booleans(),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.string(): _TEXTS,
    pa.large_string(): _TEXTS,
    pa.binary(): st.binary(max_size=20),
    pa.date32(): st.dates(date(1, 1, 1), date(9999, 12, 31)),
    pa.time64("us"): st.times(),
    pa.timestamp("us"): _MOMENTS,
    pa.timestamp("ms"): _MOMENTS.map(lambda at: at.replace(microsecond=0)),
    pa.timestamp("us", "UTC"): _MOMENTS.map(lambda at: at.replace(tzinfo=UTC)),
    pa.timestamp("us", "Europe/Berlin"): _MOMENTS.map(lambda at: at.replace(tzinfo=UTC)),
    pa.decimal128(38, 10): decimals(38, 10),
    pa.decimal128(9, 2): decimals(9, 2),
    pa.list_(pa.float64()): st.lists(st.none() | st.floats(), max_size=3),
    pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))]): st.fixed_dictionaries(
        {"a": st.none() | _WHOLE[pa.int32()], "b": st.none() | st.lists(_TEXTS, max_size=2)}
    ),
    pa.list_(pa.struct([("a", pa.int64())])): st.lists(
        st.none() | st.fixed_dictionaries({"a": st.none() | _WHOLE[pa.int64()]}), max_size=2
    ),
    pa.map_(pa.string(), pa.struct([("a", pa.int64())])): st.dictionaries(
        _TEXTS, st.fixed_dictionaries({"a": _WHOLE[pa.int64()]}), max_size=2
    ).map(lambda found: list(found.items())),
    pa.map_(pa.string(), pa.int64()): st.dictionaries(
        _TEXTS, st.none() | _WHOLE[pa.int64()], max_size=2
    ).map(lambda found: list(found.items())),
}  # fmt: skip


def rows_of_every_type(count: int = 50) -> pa.Table:
    """Rows with a column of every type, drawn values and nulls."""
    columns = {
        f"c{number}": pa.array(islice(cycle(drawn(st.none() | values, count)), count), kind)
        for number, (kind, values) in enumerate(VALUES.items())
    }
    return pa.table({"id": range(count), **columns})


def test_every_type_is_stored_without_loss(tmp_path: Path) -> None:
    lake = LakeTable(target(tmp_path), application="a")
    rows = rows_of_every_type()
    for batch in range(2):
        write(lake, rows.slice(batch * 25, 25), batch)
    assert_stored(lake, rows)


def write(lake: LakeTable, rows: pa.Table, batch: int) -> None:
    lake.prepare(rows.schema)
    files = lake.writer().write(rows)
    assert lake.commit(Mark(batch=batch), lambda mark: True, appended(files)) is not None


def test_new_columns_and_wider_types_are_added_where_allowed(tmp_path: Path) -> None:
    strict = LakeTable(target(tmp_path), application="a")
    old = pa.table({
        "i": pa.array([1, None], pa.int32()), "f": pa.array([0.5, float("nan")], pa.float32()),
        "d": pa.array([Decimal("1.25"), None], pa.decimal128(5, 2)), "s": [{"a": 1}, {"a": 2}],
    })  # fmt: skip
    write(strict, old, 0)
    new = pa.table({
        "i": pa.array([2**40]), "f": pa.array([1e300]),
        "d": pa.array([Decimal("123456.25")], pa.decimal128(9, 2)),
        "s": [{"a": 3, "b": "inner"}], "added": ["x"], "nothing": pa.nulls(1),
    })  # fmt: skip
    with pytest.raises(LakeMismatch, match="Set add_columns = true"):
        strict.prepare(new.schema)
    with pytest.raises(LakeMismatch, match="Set add_columns = true"):
        strict.check(new.schema)
    lake = LakeTable(target(tmp_path), application="a", add_columns=True)
    write(lake, new, 1)
    write(lake, old, 2)  # narrower rows fit a wider table
    schema = stored(lake).schema()
    assert [field.name for field in schema.fields] == ["i", "f", "d", "s", "added"]
    assert schema.find_field("s.b").optional
    assert [schema.find_type(name) for name in ("i", "f", "d")] == [
        LongType(), DoubleType(), DecimalType(9, 2)
    ]  # fmt: skip
    wide = pa.concat_tables([old, old, new.drop_columns("nothing")], promote_options="permissive")
    assert_same(wide, stored(lake).scan().to_arrow())
    assert_files_once(lake)


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (pa.array(["text"]), "i: long -> string|other types"),
        (pa.array([timedelta(1)]), "duration.*Iceberg does not have"),
        (pa.array([Decimal(1)], pa.decimal256(50, 0)), "decimal256.*Iceberg does not have"),
    ],
)
def test_misfits_are_refused(tmp_path: Path, column: pa.Array, said: str) -> None:
    lake = LakeTable(target(tmp_path), application="a", add_columns=True)
    write(lake, pa.table({"i": pa.array([1], pa.int64())}), 0)
    with pytest.raises(LakeMismatch, match=said):
        lake.prepare(pa.schema([pa.field("i", column.type)]))


def test_values_without_an_equal_value_in_the_table_are_refused(tmp_path: Path) -> None:
    lake = LakeTable(target(tmp_path), application="a")
    write(lake, pa.table({"i": pa.array([1], pa.int32())}), 0)
    assert stored(lake).schema().find_type("i") == IntegerType()
    with pytest.raises(LakeMismatch, match="column i cannot be converted from int64 to int32"):
        lake.writer().write(pa.table({"i": [2**40]}))


def test_types_of_new_tables() -> None:
    rows = pa.schema([
        ("dictionary", pa.dictionary(pa.int8(), pa.string())), ("time", pa.time32("s")),
        ("nothing", pa.null()),
        ("inner", pa.list_(pa.struct([("n", pa.null()), ("x", pa.uint64())]))),
        ("empty", pa.struct([])), ("half", pa.float16()), ("day", pa.date64()),
    ])  # fmt: skip
    assert storable("t", rows) == pa.schema([
        ("dictionary", pa.string()), ("time", pa.time64("us")),
        ("inner", pa.list_(pa.struct([("x", pa.int64())]))), ("half", pa.float32()),
        ("day", pa.date32()),
    ])  # fmt: skip
    with pytest.raises(LakeMismatch, match="two columns a"):
        storable("t", pa.schema([("a", pa.int8()), ("a", pa.int8())]))


PARTITIONS = ("word", "year(at)", "hour(zoned)", "bucket(4, id)", "truncate(2, name)")
ROWS = pa.table({
    "id": [1, 2, 3, 4, None, 6],
    "word": ["a b:", "", None, "a b:", "ä/%", "__HIVE_DEFAULT_PARTITION__"],
    "name": ["abc", "abd", "b", "", None, "abe"],
    "at": [datetime(2025, 10, 26, 1), datetime(1969, 12, 31, 23, 59, 59, 999999), None,
           datetime(1, 1, 1), datetime(9999, 12, 31), datetime(2025, 10, 26, 2)],
    "zoned": pa.array([datetime(2025, 1, 1, hour, tzinfo=UTC) for hour in range(6)],
                      pa.timestamp("us", "UTC")),
    "day": [date(2025, 1, 1)] * 5 + [None],
    "amount": pa.array([Decimal(n).scaleb(-2) for n in (-150, 150, 0, 1, 99, 100)],
                       pa.decimal128(9, 2)),
    "clock": [time(1)] * 6,
})  # fmt: skip


@pytest.mark.parametrize(
    "partition_by",
    [("word",), ("day(at)",), ("month(day)", "word"), PARTITIONS, ("amount", "bucket(3, word)"),
     ("truncate(10, id)",), ("bucket(2, amount)", "bucket(2, zoned)", "day")],
    ids=" ".join,
)  # fmt: skip
def test_partitioned_rows_are_stored_and_pruned(
    tmp_path: Path, partition_by: tuple[str, ...]
) -> None:
    lake = LakeTable(target(tmp_path), application="a", partition_by=partition_by)
    write(lake, ROWS, 0)
    write(lake, ROWS, 1)
    assert_stored(lake, pa.concat_tables([ROWS, ROWS]))
    table = stored(lake)
    assert partition_texts(table.spec(), table.schema()) == partition_by
    for condition in ("id = 3", "word = 'a b:'", "at < '2000-01-01T00:00:00'", "name = 'abd'"):
        found = table.scan(row_filter=condition).to_arrow().num_rows
        assert found == 2 * ROWS.filter(_matching(condition)).num_rows, condition
    other = LakeTable(target(tmp_path), application="b", partition_by=("id",))
    with pytest.raises(LakeMismatch, match="is partitioned by"):
        other.prepare(ROWS.schema)


def _matching(condition: str) -> Any:
    name, sign, value = condition.split(" ", 2)
    text = value.strip("'")
    wanted: Any = int(text) if name == "id" else text
    if name == "at":
        return pa.compute.less(ROWS[name], pa.scalar(datetime.fromisoformat(wanted)))
    assert sign == "="
    return pa.compute.equal(ROWS[name], pa.scalar(wanted))


@pytest.mark.parametrize(
    "text", ["", "day()", "week(at)", "bucket(id)", "day(4, at)", "a(b", "bucket(0, a)"]
)
def test_unknown_partitions_are_refused(text: str) -> None:
    with pytest.raises(LakeMismatch, match="is not a partition"):
        partition(text)


def test_floating_point_partitions_are_refused(tmp_path: Path) -> None:
    lake = LakeTable(target(tmp_path), application="a", partition_by=("f",))
    with pytest.raises(LakeMismatch, match="partition column f has type double"):
        lake.prepare(pa.schema([("f", pa.float64())]))
    with pytest.raises(LakeMismatch, match="partition column f is not in the rows"):
        lake.prepare(pa.schema([("g", pa.float64())]))


def test_settings_of_a_target(tmp_path: Path) -> None:
    assert catalog_properties("prod") == {"name": "prod"}
    assert catalog_properties({"type": "sql", "echo": True}) == {"type": "sql", "echo": "true"}
    wrong: Any
    for wrong in ("", 3, {"a": []}):
        with pytest.raises(ValueError, match="must be the name"):
            catalog_properties(wrong)
    assert table_name(" db.orders ") == "db.orders"
    for wrong in ("orders", "db.", 3):
        with pytest.raises(ValueError, match="must have a namespace"):
            table_name(wrong)
    found = target(tmp_path, uri="sqlite:///c.db", warehouse="lake")
    assert dict(found.catalog)["uri"] == f"sqlite:///{Path('c.db').absolute()}"
    assert dict(found.catalog)["warehouse"] == Path("lake").absolute().as_uri()
