"""Rows written by columns are the rows that a plain JSON reader reads, without their nulls."""

from __future__ import annotations

import base64
import json
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.formats.json.writing import json_rows

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.sampled_from(
    ['"', "\\", "\x00\x1f\n", '\\"é', "\x7f\u2028"]
)
LEAVES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.string(), TEXTS),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float64(), st.floats(allow_nan=False, allow_infinity=False)),
    (pa.bool_(), st.booleans()),
    (pa.binary(), st.binary(max_size=7)),
]
Drawn = tuple[pa.DataType, st.SearchStrategy[Any]]


def struct_of(fields: dict[str, Drawn]) -> Drawn:
    kind = pa.struct([pa.field(name, kind) for name, (kind, _) in fields.items()])
    return kind, st.fixed_dictionaries({name: st.none() | one for name, (_, one) in fields.items()})


def deeper(inner: st.SearchStrategy[Drawn]) -> st.SearchStrategy[Drawn]:
    lists = inner.map(lambda one: (pa.list_(one[0]), st.lists(st.none() | one[1], max_size=3)))
    maps = inner.map(
        lambda one: (
            pa.map_(pa.string(), one[0]),
            st.dictionaries(TEXTS, st.none() | one[1], max_size=3).map(
                lambda some: [*some.items()]
            ),
        )
    )
    return lists | maps | st.dictionaries(TEXTS, inner, min_size=1, max_size=3).map(struct_of)


STRUCTS = st.dictionaries(
    TEXTS, st.recursive(st.sampled_from(LEAVES), deeper, max_leaves=4), min_size=1, max_size=4
).map(struct_of)


def plain(kind: pa.DataType, value: Any, *, nulls: bool = False) -> Any:
    """The value as a JSON reader gives it: structs without fields that are null, bytes as base64.

    With `nulls`, structs have all fields.
    """
    if value is None or pa.types.is_floating(kind):
        return value
    if pa.types.is_binary(kind):
        return base64.b64encode(value).decode()
    if pa.types.is_struct(kind):
        there = [field for field in kind if nulls or value[field.name] is not None]
        return {f.name: plain(f.type, value[f.name], nulls=nulls) for f in there}
    if pa.types.is_map(kind):
        return {key: plain(kind.item_type, item, nulls=nulls) for key, item in value}
    if pa.types.is_list(kind):
        return [plain(kind.value_type, item, nulls=nulls) for item in value]
    return value


@given(st.data(), st.booleans(), st.sampled_from([1, 1, 20]))
def test_a_plain_reader_reads_the_rows(data: st.DataObject, nulls: bool, times: int) -> None:
    kind, values = data.draw(STRUCTS)
    rows = data.draw(st.lists(st.none() | values, max_size=5)) * times
    array = pa.array(rows, kind)
    first = data.draw(st.integers(0, len(rows)))
    for part, wanted in ((array, rows), (array.slice(first), rows[first:])):
        texts = json_rows(part, nulls=nulls).to_pylist()
        found = [None if text is None else json.loads(text) for text in texts]
        expected = [plain(kind, row, nulls=nulls) for row in wanted]
        assert found == expected
        assert repr(found) == repr(expected)  # 1.0 is not 1


def test_text_that_is_no_utf8_gets_the_replacement_character() -> None:
    texts = pa.array([b"a\xff\n", None, b"\xc3", b"\xa9", "é".encode()], pa.binary())
    values = pa.StringArray.from_buffers(len(texts), *texts.buffers()[1:], texts.buffers()[0])
    found = json_rows(pa.StructArray.from_arrays([values], ["x"])).to_pylist()
    assert [json.loads(text).get("x") for text in found] == [
        "a\ufffd\n",
        None,
        "\ufffd",
        "\ufffd",
        "é",
    ]
