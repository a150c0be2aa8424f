"""Tables of transforms in a connector's file: their problems, their predicates, and their order.

`compat/test_transforms.py` compares the results of each transform with Kafka Connect's.
"""

from __future__ import annotations

import datetime
import tomllib
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base.document import Key, dotted
from penstock.connect.errors import RowsRejected
from penstock.connect.plugins import Records
from penstock.connect.steps import TRANSFORMS, Transform, applied, build_transforms
from penstock.connect.transforms.casting import cast
from penstock.records.columnar.schema import HEADERS_TYPE

HEADERS_LIST = st.none() | st.lists(
    st.fixed_dictionaries(
        {"key": st.text(max_size=9), "value": st.none() | st.binary(max_size=20)}
    ),
    max_size=3,
)
KAFKA = "org.apache.kafka.connect.transforms."


def problems(text: str) -> list[str]:
    found: list[str] = []
    _built(text, found)
    return found


def steps(text: str) -> tuple[Transform, ...]:
    found: list[str] = []
    built = _built(text, found)
    assert not found
    return built


def _built(text: str, found: list[str]) -> tuple[Transform, ...]:
    values = tomllib.loads(text)

    def refuse(key: Key, message: str, fix: str) -> None:
        found.append(f"{dotted(key)}: {message}")

    return build_transforms(values.get("transform", {}), values.get("predicate", {}), refuse)


def rows(*values: Any, topic: str = "shop.orders", **columns: Any) -> Records:
    return Records(topic, pa.table({"value": pa.array(values), **columns}))


def values(found: list[Records]) -> list[list[Any]]:
    return [records.rows.column("value").to_pylist() for records in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("transform.a = 5", "transform.a: must be a table"),
        ("[transform.a]", "transform.a.type: is required"),
        ("transform.a.type = 'MaskFeild'",
         "transform.a.type: there is no transform 'MaskFeild'; did you mean MaskField?"),
        (f"transform.a.type = '{KAFKA}MaskField$Values'",
         f"transform.a.type: there is no transform '{KAFKA}MaskField$Values'; did you mean"
         " MaskField?"),
        ("transform.a.type = 'MaskField'", "transform.a.fields: is required"),
        ("transform.a = {type = 'MaskField', fields = []}",
         "transform.a.fields: must name at least one field"),
        ("transform.a = {type = 'MaskField', fields = ['`a']}",
         "transform.a.fields: backtick 1 of '`a' has no second one before a dot"),
        ("transform.a = {type = 'Flatten', delimeter = '_'}",
         "transform.a.delimeter: there is no setting of this name; did you mean delimiter?"),
        ("transform.a = {type = 'Flatten', of = 'headers'}",
         "transform.a.of: must be key or value, or a struct in it such as value.after"),
        (f"transform.a = {{type = '{KAFKA}Flatten$Key', of = 'value'}}",
         f"transform.a.of: contradicts {KAFKA}Flatten$Key"),
        ("transform.a = {type = 'Cast', spec = 'a:int99'}",
         "transform.a.spec: type 'int99' of 'a:int99' is not one of int8, int16, int32, int64,"
         " float32, float64, boolean, string"),
        ("transform.a = {type = 'Cast', spec = 'int8,a:int8'}",
         "transform.a.spec: must be fields with types such as amount:float64, or one type"),
        ("transform.a = {type = 'ReplaceField', renames = 'a'}",
         "transform.a.renames: 'a' is not a pair of names such as old:new"),
        ("transform.a = {type = 'RegexRouter', regex = '(', replacement = 'x'}",
         "transform.a.regex: '(' is not a regular expression: missing ), unterminated subpattern"
         " at position 0"),
        ("transform.a = {type = 'RegexRouter', regex = '(a)', replacement = '$2'}",
         "transform.a.replacement: replacement: '$2' is no group of the regex"),
        ("transform.a = {type = 'HeaderFrom', fields = 'a', headers = 'b,c', operation = 'move'}",
         "transform.a.headers: headers: must have as many names as fields"),
        ("transform.a = {type = 'HeaderFrom', fields = 'a', headers = 'b', operation = 'drop'}",
         "transform.a.operation: must be one of move, copy"),
        ("transform.a = {type = 'InsertField', static = {field = 'a'}}",
         "transform.a.static.field: static_field: needs static_value, and the other way round"),
        ("transform.a = {type = 'TimestampConverter', field = 'a', target_type = 'string'}",
         "transform.a: format: is required if target_type is string"),
        ("transform.a = {type = 'TimestampRouter', timestamp_format = 'YYYY'}",
         "transform.a.timestamp_format: letter Y is not supported; use y, M, L, d, D, H, k, h, K,"
         " m, s, S, u, a, E, z, Z, X"),
        ("transform.a = {type = 'TimestampRouter', timestamp_format = \"yyyy'T\"}",
         "transform.a.timestamp_format: quote 5 of \"yyyy'T\" has no second one"),
        ("transform.a.type = 'Filter'", "transform.a.predicate: is required for Filter"),
        ("transform.a = {type = 'Flatten', negate = true}",
         "transform.a.negate: needs a predicate"),
        ("transform.a = {type = 'Flatten', predicate = 'p'}",
         "transform.a.predicate: there is no predicate 'p'"),
        ("predicate.p = {type = 'TopicNameMatch', pattern = 'a'}",
         "predicate.p.type: there is no predicate 'TopicNameMatch'; did you mean"
         " TopicNameMatches?"),
        ("predicate.p = {type = 'TopicNameMatches', pattern = '['}",
         "predicate.p.pattern: '[' is not a regular expression: unterminated character set at"
         " position 0"),
    ],
)  # fmt: skip
def test_each_problem_is_reported_with_its_key(text: str, expected: str) -> None:
    assert problems(text) == [expected]


def test_all_problems_are_reported_together() -> None:
    text = "transform.a.type = 'MaskField'\ntransform.b = {type = 'Cast', spec = 'x', more = 1}"
    assert [problem.split(":")[0] for problem in problems(text)] == [
        "transform.a.fields", "transform.b.spec", "transform.b.more",
    ]  # fmt: skip


def test_a_file_of_kafka_connect_is_read() -> None:
    [inserted, masked] = steps(f"""
        [transform.a]
        type = "{KAFKA}InsertField$Key"
        static.field = "source"
        "static.value" = "shop"
        [transform.b]
        type = "{KAFKA}MaskField$Value"
        fields = "a, b"
        replacement = 7
    """)
    key = pa.array([{"id": 1}, None])
    records = Records("t", pa.table({"key": key, "value": pa.array([{"a": "x", "b": 5}, None])}))
    [found] = applied([inserted, masked], records)
    assert found.rows.to_pylist() == [
        {"key": {"id": 1, "source": "shop"}, "value": {"a": "7", "b": 7}},
        {"key": None, "value": None},
    ]


ENVELOPE = {"before": None, "after": {"id": 1, "card": "4111", "at": {"ms": 0}}, "op": "c"}


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("{type = 'MaskField', fields = 'after.card'}", {"after": {"card": ""}}),
        ("{type = 'Cast', spec = 'after.id:string'}", {"after": {"id": "1"}}),
        ("{type = 'TimestampConverter', field = 'after.at.ms', target_type = 'Date'}",
         {"after": {"at": {"ms": datetime.date(1970, 1, 1)}}}),
        ("{type = 'InsertField', static_field = 'after.at.s', static_value = 'x'}",
         {"after": {"at": {"s": "x"}}}),
        ("{type = 'ReplaceField', renames = 'after.card:number'}",
         {"after": {"card": None, "number": "4111"}}),
        ("{type = 'Flatten', of = 'value.after', delimiter = '_'}",
         {"after": {"at": None, "at_ms": 0}}),
        ("{type = 'HoistField', of = 'value.after.at', field = 'time'}",
         {"after": {"at": {"ms": None, "time": {"ms": 0}}}}),
        ("{type = 'ExtractField', of = 'value.after', field = 'at.ms'}", {"after": 0}),
        ("{type = 'Flatten', of = 'value.before'}", {}),
    ],
)  # fmt: skip
def test_fields_inside_of_an_envelope(table: str, expected: dict[str, Any]) -> None:
    before = pa.array([ENVELOPE, None, {**ENVELOPE, "after": None}])
    [found] = applied(steps(f"transform.a = {table}"), Records("t", pa.table({"value": before})))
    [first, second, third] = found.rows.column("value").to_pylist()
    assert first == _updated(ENVELOPE, expected)
    assert second is None
    if "HoistField" not in table:
        assert third["after"] is None


def _updated(value: Any, change: Any) -> Any:
    """Return nested dicts with a change, in which None removes a field."""
    if not isinstance(change, dict):
        return change
    merged = {**value, **{name: _updated(value.get(name) or {}, inner)
                          for name, inner in change.items()}}  # fmt: skip
    return {
        name: inner for name, inner in merged.items() if name not in change or inner is not None
    }


def test_fields_can_be_dropped_and_kept_at_depth() -> None:
    text = "transform.a = {type = 'ReplaceField', include = 'after.at,op', exclude = 'op'}"
    [found] = applied(steps(text), rows(ENVELOPE))
    assert found.rows.column("value").to_pylist() == [{"after": {"at": {"ms": 0}}}]


@pytest.mark.parametrize(
    ("version", "expected"), [("", "whole"), ("V1", "whole"), ("V2", "nested")]
)
def test_dots_in_names(version: str, expected: str) -> None:
    options = f"field = 'a.b', field_syntax_version = '{version}'"
    text = f"transform.a = {{type = 'ExtractField', {options}}}"
    assert values(applied(steps(text), rows({"a.b": "whole", "a": {"b": "nested"}}))) == [
        [expected]
    ]


def test_rejected_rows_have_the_indexes_of_the_input() -> None:
    text = """
        [transform.a]
        type = "Filter"
        predicate = "tombstone"
        [transform.b]
        type = "Cast"
        spec = "n:int32,m:int8"
        [transform.c]
        type = "TimestampConverter"
        field = "at"
        format = "yyyy-MM-dd"
        target_type = "Date"
        [predicate.tombstone]
        type = "RecordIsTombstone"
    """
    good = {"n": "1", "m": "2", "at": "2024-01-31"}
    given = [None, {**good, "n": "x"}, good, {**good, "m": "300"}, {**good, "at": "?"}, None]
    with pytest.raises(RowsRejected) as raised:
        applied(steps(text), rows(*given))
    assert raised.value.rows == (1, 3, 4)
    assert raised.value.reasons == (
        "n: 'x' is not an int32", "m: '300' is out of range of int8",
        "at: '?' does not match the date format 'yyyy-MM-dd'",
    )  # fmt: skip
    [found] = applied(steps(text), rows(*given[:1], *given[2:3], *given[5:]))
    assert found.rows.column_names == ["value"]
    assert found.count == 1


def test_rows_of_a_predicate_keep_their_order() -> None:
    text = """
        [transform.a]
        type = "InsertField"
        static_field = "mark"
        static_value = "yes"
        predicate = "traced"
        negate = {negate}
        [predicate.traced]
        type = "HasHeaderKey"
        name = "trace"
    """
    names: list[list[str] | None] = [[], ["trace"], None, ["other", "trace"]]
    entries = [
        None if row is None else [{"key": name, "value": b""} for name in row] for row in names
    ]
    records = rows(
        {"id": 0}, {"id": 1}, {"id": 2}, {"id": 3}, headers=pa.array(entries, HEADERS_TYPE)
    )
    for negate, marked in (("false", {1, 3}), ("true", {0, 2})):
        found = applied(steps(text.replace("{negate}", negate)), records)
        expected = [{"id": row, "mark": "yes" if row in marked else None} for row in range(4)]
        assert values(found) == [expected]


def test_rows_of_other_types_become_runs() -> None:
    text = """
        transform.a = {type = "ExtractField", field = "id", predicate = "traced"}
        predicate.traced = {type = "HasHeaderKey", name = "trace"}
    """
    traced = [[{"key": "trace", "value": b""}], []]
    flags = pa.array([traced[row] for row in (1, 0, 0, 1)], HEADERS_TYPE)
    records = rows({"id": 0}, {"id": 1}, {"id": 2}, {"id": 3}, headers=flags)
    found = applied(steps(text), records)
    assert values(found) == [[{"id": 0}], [1, 2], [{"id": 3}]]


def test_filter_and_topic_predicate() -> None:
    text = """
        transform.a = {type = "Filter", predicate = "orders", negate = true}
        predicate.orders = {type = "TopicNameMatches", pattern = 'shop\\.(?<what>o.*)'}
    """
    assert values(applied(steps(text), rows(1))) == [[1]]
    assert applied(steps(text), rows(1, topic="shop.items")) == []


def test_topics_by_time() -> None:
    moments = pa.array([0, 86_400_000, 5], pa.timestamp("ms", "UTC"))
    found = applied(steps("transform.a.type = 'TimestampRouter'"), rows(1, 2, 3, timestamp=moments))
    assert [records.topic for records in found] == ["shop.orders-19700101", "shop.orders-19700102"]
    assert values(found) == [[1, 3], [2]]
    with pytest.raises(RowsRejected, match="row 0: the row has no timestamp"):
        applied(steps("transform.a.type = 'TimestampRouter'"), rows(1))


def test_sliced_and_chunked_rows() -> None:
    value = pa.array([{"a": str(row), "b": None if row % 3 else row} for row in range(20)])
    headers = pa.array(
        [[{"key": "h", "value": b"x"}] * (row % 3) for row in range(20)], HEADERS_TYPE
    )
    whole = pa.table({"value": value, "headers": headers})
    parts = pa.concat_tables([whole.slice(3, 5), whole.slice(8, 0), whole.slice(8, 9)])
    text = """
        transform.a = {type = "Cast", spec = "a:int64,b:string"}
        transform.b = {type = "InsertHeader", header = "n", value_literal = "1"}
        transform.c = {type = "DropHeaders", headers = "h"}
        transform.d = {type = "HeaderFrom", fields = "a", headers = "a", operation = "move"}
    """
    [found] = applied(steps(text), Records("t", parts))
    assert found.rows.to_pylist() == [
        {"value": {"b": None if row % 3 else str(row)},
         "headers": [{"key": "n", "value": b"1"}, {"key": "a", "value": str(row).encode()}]}
        for row in range(3, 17)
    ]  # fmt: skip


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(HEADERS_LIST, st.none() | st.binary(max_size=20)), max_size=12), st.data()
)
def test_headers_are_appended(content: list[tuple[Any, bytes | None]], data: st.DataObject) -> None:
    value = pa.array([{"a": field} for _, field in content], pa.struct([("a", pa.binary())]))
    headers = pa.array([row for row, _ in content], HEADERS_TYPE)
    first = data.draw(st.integers(0, len(content)))
    table = pa.table({"value": value, "headers": headers}).slice(first)
    text = """
        transform.a = {type = "HeaderFrom", fields = "a", headers = "é", operation = "copy"}
        transform.b = {type = "InsertHeader", header = "n", value_literal = "a text of 22 bytes."}
    """
    added = {"key": "n", "value": b"a text of 22 bytes."}
    found = [row for part in applied(steps(text), Records("t", table)) for row in
             part.rows.column("headers").to_pylist()]  # fmt: skip
    assert found == [
        [*(row or []), {"key": "é", "value": field}, added] for row, field in content[first:]
    ]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.from_regex(r"\A-?([0-9]{1,18}\.?|[0-9]{0,9}\.[0-9]{1,9})\Z") | st.none()))
def test_texts_become_doubles(texts: list[str | None]) -> None:
    found = cast(pa.array(["0", *texts], pa.string())[1:], "float64").to_pylist()
    expected = [None if text is None else float(text) for text in texts]
    assert list(map(repr, found)) == list(map(repr, expected))


@pytest.mark.parametrize("text", ["", "-", ".", "1.2.3", "1-", "+", "٣", "1 2"])
def test_texts_that_are_no_numbers(text: str) -> None:
    with pytest.raises(RowsRejected) as raised:
        cast(pa.array(["1", None, text, "2.5"]), "float64")
    assert raised.value.rows == (2,)


@settings(deadline=None)
@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1)))
def test_integers_become_texts(numbers: list[int | None]) -> None:
    found = cast(pa.array([7, *numbers], pa.int64())[1:], "string")
    assert found.to_pylist() == [None if number is None else str(number) for number in numbers]
    assert found.type == pa.string()


def test_values_that_are_no_structs_are_rejected() -> None:
    records = Records("t", pa.table({"value": pa.array(["x", None])}))
    for table in ("{type = 'MaskField', fields = 'a'}", "{type = 'Flatten'}"):
        with pytest.raises(
            RowsRejected, match="row 0: a value of type string has no fields; set"
        ) as raised:
            applied(steps(f"transform.a = {table}"), records)
        assert raised.value.rows == (0,)


def test_schema_names_are_metadata_that_other_transforms_keep() -> None:
    text = """
        transform.a = {type = "SetSchemaMetadata", schema_name = "shop.Order", schema_version = 2}
        transform.b = {type = "Flatten"}
    """
    [found] = applied(steps(text), rows({"a": 1}))
    metadata = found.rows.schema.field("value").metadata
    assert metadata == {b"connect.name": b"shop.Order", b"connect.version": b"2"}


@pytest.mark.parametrize("name", sorted(TRANSFORMS))
def test_no_rows(name: str) -> None:
    options = {
        "Cast": "spec = 'a:int8'", "ExtractField": "field = 'a'", "HoistField": "field = 'a'",
        "MaskField": "fields = 'a'", "ValueToKey": "fields = 'a'", "DropHeaders": "headers = 'a'",
        "HeaderFrom": "fields = 'a'\nheaders = 'h'\noperation = 'move'",
        "InsertField": "topic_field = 't'", "InsertHeader": "header = 'h'\nvalue_literal = 'v'",
        "RegexRouter": "regex = 'x'\nreplacement = 'y'", "SetSchemaMetadata": "schema_name = 'n'",
        "TimestampConverter": "field = 'a'\ntarget_type = 'unix'",
        "Filter": "predicate = 'p'\n[predicate.p]\ntype = 'RecordIsTombstone'",
    }.get(name, "")  # fmt: skip
    built = steps(f"[transform.a]\ntype = '{name}'\n{options}")
    for kind in (pa.struct([("a", pa.string())]), pa.null(), pa.string()):
        for records in applied(built, Records("t", pa.table({"value": pa.array([], kind)}))):
            assert records.count == 0
