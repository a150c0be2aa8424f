"""The kernels read as the slow reader does, whatever the bytes, and say the same of what is wrong.

The slow reader stands on Python's own JSON and decimals; `tests/spark/formats/test_json_ways.py`
holds both against Spark.
"""

from __future__ import annotations

import json
import pickle
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.formats.json.decode import JsonReader
from penstock.formats.json.json_schema import Check, Field, Items, Leaf, Named, Record, Shape
from penstock.formats.json.plain import Conversion, read_plain
from penstock.formats.json.program import arrow_type, unsupported

TYPES: list[Any] = [
    pa.string(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(),
    pa.float64(), pa.decimal128(5, 2), pa.decimal128(18, 0), pa.decimal128(38, 10),
    pa.decimal128(38, 38), pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.date32(),
    pa.binary(), None,
]  # fmt: skip
TEXTS = [
    "", "a", "ü", "x" * 70, '"', "\\", "\n\x01", "😀", "12.345", "-0.5", "1e3", "+7", "9" * 40,
    "2026-01-02", "2026-01-02T03:04:05Z", "2026-01-02 03:04:05.123456789", "2026-02-30",
    "2024-02-29T23:59:59.5+05:30", "0001-01-01", "9999-12-31T23:59:59", "0000-03-01", "2026-1-2",
    "2026-01-02T03:04", "2026-01-02T3:4:5 Europe/Berlin", "2026-01-02T03:04:05-18:00",
    "1969-12-31T23:59:59.999999Z",
]  # fmt: skip
NUMBERS = [
    "0", "-0", "-0.0", "-0e0", "1", "127", "128", "-129", "32768", "2147483648", "1.0", "10.00",
    "1.5", "1e2", "1.5e1", "9223372036854775807", "9223372036854775808", "-9223372036854775808",
    "-9223372036854775809", "9223372036854775807.0", "1.005", "2.675", "0.1", "123.455", "-123.445",
    "999.995", "16777217", "0.30000000000000004", "179769313486231580793", "1e400", "1e-400",
    "1.7976931348623157e308", "5e-324", "3.4028236e38", "0.000000000000000000000000000001",
    "12345678901234567890123456789.1234567895", "0." + "9" * 38, "0." + "9" * 39, "1" * 39,
    "1" * 1001, "01", "1.", ".5", "-", "+1", "1e", "NaN", "9007199254740993", "123456789012345678",
]  # fmt: skip


def leaf(kind: Any) -> Leaf:
    return Leaf(data_type=kind)


def shapes(depth: int) -> st.SearchStrategy[Shape]:
    made: st.SearchStrategy[Shape] = st.builds(
        Leaf, data_type=st.sampled_from(TYPES), nullable=st.booleans(), text_too=st.booleans()
    )
    if depth:
        inner = shapes(depth - 1)
        made |= st.builds(Items, item=inner, nullable=st.booleans())
        made |= st.builds(Named, value=inner, nullable=st.booleans())
        made |= records(depth - 1)
    return made


def records(depth: int) -> st.SearchStrategy[Record]:
    names = st.lists(st.sampled_from(["a", "b", "ab", "ü", "c d", "long name"]), min_size=1,
                     max_size=4, unique=True)  # fmt: skip
    return names.flatmap(
        lambda chosen: st.builds(
            Record,
            fields=st.tuples(
                *(
                    st.builds(
                        Field, name=st.just(name), shape=shapes(depth), required=st.booleans()
                    )
                    for name in chosen
                )
            ),
            closed=st.booleans(),
            nullable=st.booleans(),
        )
    )


def text_of(dice: random.Random, shape: Shape | None, depth: int = 0) -> str:
    """JSON that mostly is of the shape."""
    roll = dice.random()
    if roll < 0.05:
        return "null"
    if roll < 0.1 or shape is None:
        return anything(dice, depth)
    match shape:
        case Leaf(data_type=kind):
            return leaf_text(dice, kind)
        case Record():
            members = [
                (part.name, text_of(dice, part.shape, depth + 1))
                for part in shape.fields
                if dice.random() < 0.9
            ]
            if dice.random() < 0.3:
                members.append((dice.choice(["z", "a", "extra"]), anything(dice, depth)))
            if dice.random() < 0.2:
                dice.shuffle(members)
            return object_text(dice, members)
        case Items():
            items = (text_of(dice, shape.item, depth + 1) for _ in range(dice.randrange(4)))
            return "[" + ",".join(items) + "]"
        case Named():
            names = [dice.choice(["k", "l", "m", "ü", ""]) for _ in range(dice.randrange(3))]
            return object_text(dice, [(name, text_of(dice, shape.value, 9)) for name in names])


def object_text(dice: random.Random, members: list[tuple[str, str]]) -> str:
    blank = dice.choice(["", "", " ", "\n\t"])
    quoted = (
        f"{json.dumps(name, ensure_ascii=dice.random() < 0.1)}{blank}:{blank}{value}"
        for name, value in members
    )
    return "{" + blank + f",{blank}".join(quoted) + blank + "}"


def anything(dice: random.Random, depth: int) -> str:
    if depth < 3 and dice.random() < 0.3:
        members = [
            (dice.choice("abc"), anything(dice, depth + 1)) for _ in range(dice.randrange(3))
        ]
        return object_text(dice, members)
    if depth < 3 and dice.random() < 0.3:
        return "[" + ", ".join(anything(dice, depth + 1) for _ in range(dice.randrange(3))) + "]"
    return dice.choice([dice.choice(NUMBERS), json.dumps(dice.choice(TEXTS)), "true", "false"])


def leaf_text(dice: random.Random, kind: Any) -> str:
    if kind == pa.bool_():
        return dice.choice(["true", "false"])
    if kind in (pa.string(), pa.binary()):
        return json.dumps(dice.choice(TEXTS), ensure_ascii=dice.random() < 0.5)
    if kind is None:
        return anything(dice, 0)
    if pa.types.is_temporal(kind):
        return json.dumps(dice.choice(TEXTS[13:]))
    if dice.random() < 0.5:
        return dice.choice(NUMBERS)
    if pa.types.is_integer(kind):
        return str(dice.randrange(-(10 ** dice.randrange(1, 20)), 10 ** dice.randrange(1, 20)))
    if dice.random() < 0.3:
        return repr(dice.uniform(-1e6, 1e6) * 10 ** dice.randrange(-9, 9))
    number = f"{dice.randrange(10 ** dice.randrange(1, 20))}.{dice.randrange(10**6)}"
    return f'"{number}"' if pa.types.is_decimal(kind) and dice.random() < 0.3 else number


def mutated(dice: random.Random, content: bytes) -> bytes:
    """The bytes with a few of them changed, cut or doubled."""
    made = bytearray(content)
    for _ in range(dice.randrange(1, 4)):
        at = dice.randrange(len(made) + 1)
        match dice.randrange(4):
            case 0:
                made[at:at] = bytes([dice.choice(b'{}[],:"\\0 e.-\xff\xc3tn\x00')])
            case 1:
                del made[at : at + dice.randrange(1, 4)]
            case 2 if at < len(made):
                made[at] = dice.randrange(256)
            case _:
                made[at:at] = made[at : at + dice.randrange(1, 9)]
    return bytes(made)


def documents(dice: random.Random, record: Record, count: int) -> list[bytes | None]:
    made: list[bytes | None] = []
    for _ in range(count):
        content = text_of(dice, record).encode()
        roll = dice.random()
        made.append(None if roll < 0.03 else mutated(dice, content) if roll < 0.3 else content)
    return made


def listed(scalar: Any) -> Any:
    """A value of an array in Python's types, times as numbers: Python has fewer years."""
    if not scalar.is_valid:
        return None
    if pa.types.is_struct(scalar.type):
        return {name: listed(part) for name, part in scalar.items()}
    if pa.types.is_list(scalar.type) or pa.types.is_map(scalar.type):
        return [listed(part) for part in scalar.values]
    return scalar.value if pa.types.is_temporal(scalar.type) else scalar.as_py()


def meant(shape: Shape, value: Any) -> Any:
    """A listed value with any JSON in it parsed, as the blanks in its text mean nothing."""
    match shape:
        case _ if value is None:
            return None
        case Leaf(data_type=None):
            return json.loads(value, parse_int=str, parse_float=str)
        case Record():
            return {part.name: meant(part.shape, value[part.name]) for part in shape.fields}
        case Items():
            return [meant(shape.item, item) for item in value]
        case Named():
            return [{**entry, "value": meant(shape.value, entry["value"])} for entry in value]
    return value


def same(reader: JsonReader, values: list[bytes | None]) -> None:
    made, errors = reader.read(pa.array(values, pa.binary()))
    made.validate(full=True)
    assert made.type == reader.arrow_type()
    plain = [
        (None, None) if value is None else read_plain(reader.record, value, reader.conversion)
        for value in values
    ]
    wanted = pa.array([value for value, _ in plain], made.type)
    for number, value in enumerate(values):
        assert errors[number].as_py() == plain[number][1], value
        found, right = (meant(reader.record, listed(row[number])) for row in (made, wanted))
        assert repr(found) == repr(right), value


@settings(max_examples=100, deadline=None)
@given(records(2), st.integers(0, 2**32))
def test_the_kernels_read_as_the_slow_reader_does(record: Record, seed: int) -> None:
    dice = random.Random(seed)
    zone = dice.choice(["UTC", "UTC", "Europe/Berlin"])
    conversion = Conversion(zone=zone, exact=dice.random() < 0.5)
    same(JsonReader(record=record, conversion=conversion), documents(dice, record, 20))


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_every_leaf(kind: Any, exact: bool) -> None:
    record = Record(fields=(Field(name="a", shape=leaf(kind)),))
    tokens = [*NUMBERS, *map(json.dumps, TEXTS), "true", "false", "null", "[]", "{}", "tru", ""]
    tokens += [f'"{number}"' for number in NUMBERS]
    reader = JsonReader(record=record, conversion=Conversion(exact=exact))
    same(reader, [f'{{"a":{token}}}'.encode() for token in tokens])


def test_text_cut_anywhere_and_followed_by_others() -> None:
    record = Record(
        fields=(
            Field(name="a", shape=Items(item=leaf(pa.float64()))),
            Field(name="b", shape=Named(value=leaf(pa.string()))),
        )
    )
    whole = (
        b'{"a": [1.5, 2e3, 0.1234567890123456789], "b": {"k": "\\u00fc\\ud83d\\ude00"}, "c": {}}'
    )
    values: list[bytes | None] = [whole[:size] for size in range(len(whole) + 1)]
    same(JsonReader(record=record), values)
    # Each value ends where it ends, not where the next one makes sense of it.
    same(JsonReader(record=record), [whole[:20], whole[20:], whole, None, b""])


def test_room_is_made_for_long_lists_and_many_numbers() -> None:
    record = Record(fields=(Field(name="a", shape=Items(item=Items(item=leaf(pa.float64())))),))
    row = json.dumps({"a": [[1 / 3] * 700, [], [2 / 3] * 900]}).encode()
    values: list[bytes | None] = [row, b'{"a":[[1,2],"x"]}', b"{}", row, row]
    same(JsonReader(record=record), values)


def test_names_escapes_depth_and_surplus() -> None:
    record = Record(fields=(Field(name="a", shape=leaf(pa.int64())),))
    wide = "{" + ",".join(f'"n{number}":1' for number in range(400)) + "}"
    values = [
        '{"\\u0061":1}', '{"a":1,"\\u0061":2}', '{"a":1,"b":{"c":1,"c":2}}', '{"b":1,"b":2}',
        '{"b":[{"c":1},{"c":2}],"a":5}', wide, wide[:-1] + ',"n7":1}', '{"b":"\\ud800"}',
        '{"a":1,"b":' + "[" * 499 + "]" * 499 + "}", '{"a":1,"b":' + "[" * 500 + "]" * 500 + "}",
        '{"b":"' + "[" * 600 + '"}', '{"a":1,"b":' + "1" * 1000 + "}",
        '{"a":1,"b":' + "1" * 1001 + "}", '{"a":1,"b":1.' + "1" * 999 + "}",
        '{"a":1,"b":1.' + "1" * 1000 + "}", "[" * 100_000, '{"a":' * 100_000,
    ]  # fmt: skip
    same(JsonReader(record=record), [value.encode() for value in values])
    made, errors = JsonReader(record=record).read(pa.array([values[8], values[9]], pa.binary()))
    assert (made.to_pylist(), errors.to_pylist()) == ([{"a": 1}, None], [None, "not JSON"])


def test_checks_hold_as_in_the_slow_reader() -> None:
    def number(kind: Any, **checks: Any) -> Leaf:
        made = [Check(keyword=word, bound=bound, words=word) for word, bound in checks.items()]  # type: ignore[arg-type]
        return Leaf(data_type=kind, checks=tuple(made))

    few = (Check(keyword="maxItems", bound=2, words="too many"),)
    item = number(pa.int64(), enum=(1, 2, 3))
    record = Record(
        fields=(
            Field(
                name="i", shape=number(pa.int64(), minimum=0, exclusiveMaximum=1e3, multipleOf=2)
            ),
            Field(name="r", shape=number(pa.float64(), maximum=10.5, multipleOf=0.1)),
            Field(name="s", shape=number(pa.string(), minLength=2, maxLength=4)),
            Field(name="e", shape=number(pa.string(), enum=("x", "yy"))),
            Field(name="l", shape=Items(item=Items(item=item, checks=few))),
            Field(name="m", shape=Named(value=item)),
        )
    )
    tokens = {
        "i": ["0", "-1", "3", "4", "998", "1000", "null"],
        "r": ["0.1", "0.3", "0.25", "10.5", "10.6", "1e1", "0.30000000000000004", "-7.7", "1e300"],
        "s": ['"a"', '"ab"', '"üüüü"', '"abcde"', '"\\u00fc\\u00fc"'],
        "e": ['"x"', '"y"', '"yy"', "null"],
        "l": ["[[1],[2,3]]", "[[1,2,3]]", "[[],[4]]", "[null,[1]]"],
        "m": ['{"a":1}', '{"a":1,"b":9}'],
    }
    values = [f'{{"{name}":{token}}}' for name, held in tokens.items() for token in held]
    dice = random.Random(5)
    for _ in range(200):
        members = (f'"{name}":{dice.choice(held)}' for name, held in tokens.items())
        values.append("{" + ",".join(members) + "}")
    same(JsonReader(record=record), [value.encode() for value in values])


def test_framed_null_sliced_and_pickled() -> None:
    record = Record(fields=(Field(name="a", shape=leaf(pa.decimal128(5, 2))),))
    reader = pickle.loads(pickle.dumps(JsonReader(record=record, framed="confluent")))
    head = b"\x00\xff\x00\x00\x09"
    values = pa.array(
        [b"left out", head + b'{"a":1.5}', None, b"\x00\x00", b'{"a":1}', head + b'{"b":"\xff"}',
         head + '{"a":"2","b":"ü"}'.encode(), head],
        pa.binary(),
    )  # fmt: skip
    made, errors = reader.read(values[1:])
    assert made.to_pylist() == [
        {"a": Decimal("1.50")}, None, None, None, None, {"a": Decimal("2.00")}, None
    ]  # fmt: skip
    assert errors.to_pylist() == [
        None, None, "shorter than the 5 bytes of the confluent framing",
        "does not start with the magic byte 0 of the confluent framing", "not UTF-8 text", None,
        "not JSON",
    ]  # fmt: skip
    made, errors = reader.read(pa.array([], pa.binary()))
    assert (len(made), len(errors), made.type) == (0, 0, arrow_type(record))


def test_what_is_not_supported_is_named() -> None:
    record = Record(
        fields=(
            Field(name="a", shape=Items(item=Leaf())),
            Field(name="b", shape=Record(fields=(Field(name="c", shape=leaf(pa.binary())),))),
            Field(name="d", shape=Leaf(data_type=pa.string(), collation="UNICODE_CI")),
            Field(
                name="e",
                shape=Named(
                    value=Leaf(
                        data_type=pa.string(),
                        checks=(Check(keyword="pattern", bound="x", words="no x"),),
                    )
                ),
            ),
        )
    )
    assert unsupported(record) == [
        "field a[]: any JSON, which becomes a variant",
        "field b.c: type binary",
        "field d: collation UNICODE_CI",
        "field e{}: keyword pattern",
    ]
