"""Generated records with odd values, for Kafka Connect and as Arrow rows, and results in one form.

The form of a value is None, a pair of type and value, or a dict of a struct's fields without nulls:
Kafka Connect's maps may lack a field, where a struct has a null.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.connect.plugins import Records
from penstock.records.columnar.schema import HEADERS_TYPE

NULLS: Final = 0.15
DAY_MS: Final = 86_400_000
ARROW: Final[Mapping[str, Any]] = {
    "int8": pa.int8(), "int16": pa.int16(), "int32": pa.int32(), "int64": pa.int64(),
    "float32": pa.float32(), "float64": pa.float64(), "boolean": pa.bool_(),
    "string": pa.string(), "bytes": pa.binary(), "date": pa.date32(), "time": pa.time32("ms"),
    "timestamp": pa.timestamp("ms", "UTC"), "decimal": pa.decimal128(30, 3),
}  # fmt: skip
NAMES: Final = {kind: name for name, kind in ARROW.items()}
NESTED: Final = {
    "struct": [
        ["card", "string"],
        ["amount", "int32"],
        ["deep", {"struct": [["x", "int64"], ["y", "string"], ["z.z", "float64"]]}],
    ]
}
VALUE: Final[Mapping[str, Any]] = {
    "struct": [
        *([kind, kind] for kind in ("int8", "int16", "int32", "int64", "float32", "float64")),
        ["flag", "boolean"], ["text", "string"], ["digits", "string"], ["decimals", "string"],
        ["raw", "bytes"], ["day", "date"], ["clock", "time"], ["at", "timestamp"],
        ["amount", "decimal"], ["tags", {"array": "string"}], ["after", NESTED],
        ["unix", "int64"], ["stamp", "string"], ["a.b", "int32"], ["ß€😀", "string"],
    ]
}  # fmt: skip
TYPED: Final = ("day", "clock", "at", "amount")
"""Fields whose types values without schemas do not have."""
PLAIN: Final[Mapping[str, Any]] = {
    "struct": [field for field in VALUE["struct"] if field[0] not in TYPED]
}
KEY: Final[Mapping[str, Any]] = {"struct": [["id", "int64"], ["region", "string"]]}

_TEXTS: Final = ("", " ", "true", "TRUE", "plain", "ünï\u0301cödé 😀", '\x00\n"\\', "x" * 300)
_DIGITS: Final = (
    "0", "-0", "+7", "007", "127", "128", "-128", "-129", "32767", "32768", "-2147483648",
    "2147483648", "9223372036854775807", "9223372036854775808", "-9223372036854775808",
    "-9223372036854775809", "00000000000000000000000000012", "", " 5", "5 ", "1_000", "abc", "1.0",
    "0x10", "+", "-", "--1", "1e3",
)  # fmt: skip
_DECIMALS: Final = (
    "1", "-1.5", ".5", "5.", "1e10", "1E-10", "1e400", "-1e400", "1e-400", "3.4028236e38", "1e-46",
    "1.17549428e-38", "NaN", "Infinity", "-Infinity", "+Infinity", "nan", "inf", " 1.5\t", "1.5f",
    "2.5D", "", "abc", ".", "e5", "1e", "--1", "0.1", "16777217", "9007199254740993",
    "4.9e-324", "2.2250738585072011e-308", "123456789012345678901234567890",
)  # fmt: skip
_FLOATS: Final = (
    0.0, -0.0, 1.0, -1.5, 0.1, 1e-3, 9.999e-4, 1e7, 9999999.0, 1e10, 1.25e-7, 123456789.125, 1e16,
    1e22, 1e300, 5e-324, 2147483648.0, -2147483649.0, 9.3e18, -9.3e18, 255.9, -129.9,
    float("nan"), float("inf"), float("-inf"),
)  # fmt: skip


def _number(random_: random.Random, bits: int) -> int:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    small, any_ = random_.randint(-9, 9), random_.randint(low, high)
    return random_.choice((low, high, 0, 1, -1, any_, small))


def _float(random_: random.Random, bits: int) -> str:
    found = random_.choice([random_.choice(_FLOATS), random_.uniform(-1e6, 1e6), random_.random()])
    with np.errstate(over="ignore"):
        text = str(np.float32(found) if bits == 32 else found)
    return text.replace("nan", "NaN").replace("inf", "Infinity")


def _stamp(random_: random.Random) -> str:
    """Return a text of the pattern `yyyy-MM-dd HH:mm:ss`, or one that is close to it."""
    fields = [random_.randint(low, high) for low, high in
              ((1600, 9999), (1, 12), (1, 28), (0, 23), (0, 59), (0, 59))]  # fmt: skip
    text = "{:04}-{:02}-{:02} {:02}:{:02}:{:02}".format(*fields)
    return random_.choice(
        [text] * 6
        + [text + " and more", text.replace(" ", "  "), "2024-1-5 3:4:5", "2024-13-45 25:61:61",
           "2024-02-30 00:00:00", "", "abc", text[:10], " " + text, text.replace("-", "/")]
    )  # fmt: skip


def _scalar(random_: random.Random, kind: str, name: str) -> Any:
    if kind.startswith("int"):
        return _number(random_, int(kind[3:]))
    if kind.startswith("float"):
        return _float(random_, int(kind[5:]))
    if kind == "boolean":
        return random_.random() < 0.5
    if kind == "string":
        texts = {"digits": _DIGITS, "decimals": _DECIMALS}.get(name, _TEXTS)
        return _stamp(random_) if name == "stamp" else random_.choice(texts)
    if kind == "bytes":
        return base64.b64encode(random_.randbytes(random_.randint(0, 5))).decode()
    if kind == "date":
        return random_.randint(3, 2_900_000)
    if kind == "time":
        return random_.randint(0, DAY_MS - 1)
    if kind == "timestamp":  # after the first day of 1970, and never at midnight
        return random_.randint(3, 2_900_000) * DAY_MS + random_.randint(1, DAY_MS - 1)
    return str(
        Decimal(random_.choice([0, 5, -1, 10**20, random_.randint(-(10**9), 10**9)])).scaleb(-3)
    )


def generated(random_: random.Random, kind: Any, name: str = "") -> Any:
    """Return a value of a type, in the form that the program in Java reads."""
    if random_.random() < NULLS:
        return None
    if isinstance(kind, str):
        return _scalar(random_, kind, name)
    if "array" in kind:
        return [generated(random_, kind["array"]) for _ in range(random_.randint(0, 3))]
    return {field: generated(random_, inner, field) for field, inner in kind["struct"]}


def records(seed: int, count: int) -> list[dict[str, Any]]:
    """Return records, whose offsets are their indexes."""
    random_ = random.Random(seed)
    return [
        {
            "topic": "shop.orders",
            "partition": random_.randint(0, 9),
            "offset": offset,
            "timestamp": random_.choice([None, 0, random_.randint(0, 4_000_000) * 1_000_000]),
            "key": generated(random_, KEY),
            "value": generated(random_, VALUE),
            "headers": [
                [random_.choice(["trace", "tenant", "ünï"]), random_.choice(_TEXTS)]
                for _ in range(random_.choice([0, 0, 1, 2, 3]))
            ],
        }
        for offset in range(count)
    ]


def arrow_type(kind: Any) -> Any:
    if isinstance(kind, str):
        return ARROW[kind]
    if "array" in kind:
        return pa.list_(arrow_type(kind["array"]))
    return pa.struct([(name, arrow_type(inner)) for name, inner in kind["struct"]])


def column(kind: Any, values: Sequence[Any]) -> Any:
    """Return values as an Arrow column."""
    valid = [value is not None for value in values]
    if isinstance(kind, str):
        return _scalars(kind, values)
    if "array" in kind:
        flat = [item for value in values for item in value or ()]
        ends = np.cumsum([0, *(len(value or ()) for value in values)])
        nulls = pa.array(~np.array(valid, bool))
        return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), column(kind["array"], flat),
                                        mask=nulls)  # fmt: skip
    children = [
        column(inner, [None if value is None else value[name] for value in values])
        for name, inner in kind["struct"]
    ]
    names = [name for name, _ in kind["struct"]]
    return pa.StructArray.from_arrays(children, names, mask=pa.array(~np.array(valid, bool)))


def _scalars(kind: str, values: Sequence[Any]) -> Any:
    convert: Any = {
        "float32": float, "float64": float, "decimal": Decimal, "bytes": base64.b64decode,
    }.get(kind, lambda value: value)  # fmt: skip
    given = [None if value is None else convert(value) for value in values]
    wide = {"date": pa.int32(), "time": pa.int32(), "timestamp": pa.int64()}.get(kind)
    return pa.array(given, wide).cast(ARROW[kind]) if wide else pa.array(given, ARROW[kind])


def rows(found: Sequence[Mapping[str, Any]], kind: Any = VALUE) -> Records:
    """Return records of one topic as the rows of a sink, with values of a type."""
    headers = [
        [{"key": name, "value": text.encode()} for name, text in record["headers"]]
        for record in found
    ]
    table = pa.table(
        {
            "key": column(KEY, [record["key"] for record in found]),
            "value": column(kind, [record["value"] for record in found]),
            "headers": pa.array(headers, HEADERS_TYPE),
            "timestamp": column("timestamp", [record["timestamp"] for record in found]),
            "partition": pa.array([record["partition"] for record in found], pa.int32()),
            "offset": pa.array([record["offset"] for record in found], pa.int64()),
        }
    )
    return Records(found[0]["topic"], table)


def forms(values: Any, *, schemas: bool) -> list[Any]:
    """Return the form of each value of an Arrow column.

    Args:
        schemas: whether dates and times of day are other types than timestamps.
    """
    kind = values.type
    if pa.types.is_null(kind):
        return [None] * len(values)
    if pa.types.is_struct(kind):
        children = [forms(child, schemas=schemas) for child in values.flatten()]
        valid = values.is_valid().to_pylist()
        names = kind.names
        return [
            {name: child[row] for name, child in zip(names, children, strict=True)
             if child[row] is not None}
            if valid[row] else None
            for row in range(len(values))
        ]  # fmt: skip
    if pa.types.is_list(kind):
        return [
            None if not value.is_valid else ("array", forms(value.values, schemas=schemas))
            for value in values
        ]
    name = NAMES.get(kind, "decimal")
    if name in ("date", "time", "timestamp"):
        count = values.cast(pa.int64() if name == "timestamp" else pa.int32()).to_pylist()
        unit = DAY_MS if name == "date" else 1
        shown = name if schemas else "timestamp"
        return [None if value is None else (shown, value * unit) for value in count]
    return [None if value is None else _form(name, value) for value in values.to_pylist()]


def _form(name: str, value: Any) -> tuple[str, Any]:
    if name == "bytes":
        return name, base64.b64encode(value).decode()
    if name.startswith("float"):
        return name, repr(float(np.float32(value) if name == "float32" else value))
    return name, value.normalize() if name == "decimal" else value


def kafka_form(value: Any) -> Any:
    """Return the form of a value that the program in Java wrote."""
    if value is None:
        return None
    name, inner = value
    if name == "struct":
        found = {field: kafka_form(item) for field, item in inner.items()}
        return {field: item for field, item in found.items() if item is not None}
    if name == "array":
        return "array", [kafka_form(item) for item in inner]
    if name.startswith("int"):
        return name, int(inner)
    if name.startswith("float"):
        exact = np.float32(inner) if name == "float32" else float(inner)
        return name, repr(float(exact))
    return name, Decimal(inner).normalize() if name == "decimal" else inner


def by_offset(found: Iterable[Records], *, schemas: bool) -> dict[int, dict[str, Any]]:
    """Return rows by offset, in the form of the program's answers."""
    result: dict[int, dict[str, Any]] = {}
    for entry in found:
        table = entry.rows.combine_chunks()
        columns = {
            name: forms(_array(table.column(name)), schemas=schemas) for name in ("key", "value")
        }
        headers = table.column("headers").to_pylist()
        for row, offset in enumerate(table.column("offset").to_pylist()):
            result[offset] = {
                "topic": entry.topic,
                "key": columns["key"][row],
                "value": columns["value"][row],
                "headers": [
                    (header["key"], None if header["value"] is None else header["value"].decode())
                    for header in headers[row]
                ],
            }
    return result


def _array(chunked: Any) -> Any:
    return chunked.combine_chunks() if chunked.num_chunks != 1 else chunked.chunk(0)


def kafka_records(answers: Sequence[Any]) -> dict[int, dict[str, Any] | str | None]:
    """Return the program's answers by offset: a record, the text of an error, or None."""
    return {
        offset: None if answer is None else answer.get("error") or {
            "topic": answer["topic"],
            "key": kafka_form(answer["key"]),
            "value": kafka_form(answer["value"]),
            "headers": [tuple(header) for header in answer["headers"]],
        }
        for offset, answer in enumerate(answers)
    }  # fmt: skip
