"""Options of transforms that the comparison tries, drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final, NamedTuple

from compat.transforms.records import TYPED

NUMBERS: Final = (
    "int8",
    "int16",
    "int32",
    "int64",
    "float32",
    "float64",
    "flag",
    "digits",
    "decimals",
    "text",
)
TARGETS: Final = ("int8", "int16", "int32", "int64", "float32", "float64", "boolean", "string")
FIELDS: Final = (*NUMBERS, "unix", "stamp", "a.b", "ß€😀", "after", "tags")
STAMP: Final = "yyyy-MM-dd HH:mm:ss"
FORMATS: Final = (
    STAMP,
    "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'",
    "yyyyMMdd",
    "yyMMdd",
    "d.M.y",
    "EEE, d MMM yyyy HH:mm:ss Z",
    "EEEE MMMM dd",
    "hh:mm:ss a",
    "K a",
    "k",
    "D",
    "u",
    "''yyyy''",
    "HH'h'",
    "S",
    "SSSSSS",
    "MMM",
    "XXX",
    "z",
    "yyyyy",
    "yyy",
    "X",
)
PARSED: Final = (STAMP, "yyyy-M-d H:m:s", "yyyy-MM-dd", "yyyy", "y", "yy-MM-dd", "yyyy-MM-dd HH:mm")


class Case(NamedTuple):
    """Transform with its options in Kafka Connect's names.

    Attributes:
        schemas: whether the case has sense with schemas, without them, or both if None.
    """

    transform: str
    options: dict[str, str]
    schemas: bool | None = None


def cases(seed: int, count: int) -> Iterator[Case]:
    """Yield every transform with `count` sets of options."""
    random_ = random.Random(seed)
    for _ in range(count):
        for part in (_casts, _times, _masks_and_names, _shapes, _headers, _keys_and_topics):
            yield from part(random_)


def _masks_and_names(random_: random.Random) -> Iterator[Case]:
    few = random_.sample([field for field in FIELDS if field != "after"], 3)
    yield Case("MaskField$Value", {"fields": ",".join(few)})
    yield Case("MaskField$Value", {"fields": "after,tags"}, False)
    numbers = random_.sample(NUMBERS[:6], 2)
    yield Case(
        "MaskField$Value",
        {
            "fields": ",".join(numbers),
            "replacement": random_.choice(["7", "-1.9", "1e3", "300"]),
        },
    )
    yield Case("MaskField$Value", {"fields": "text,digits", "replacement": "*** ß"})
    yield Case("MaskField$Value", {"fields": "text", "replacement": "x"})
    yield Case("MaskField$Value", {"fields": ",".join(random_.sample(TYPED, 2))}, True)
    yield Case(
        "ReplaceField$Value",
        {
            "exclude": ",".join(random_.sample(FIELDS, 3)),
            "include": ",".join(random_.sample(FIELDS, 6)),
            "renames": f"{few[0]}:renamed,{few[1]}:{few[1]}2",
        },
    )
    yield Case("ReplaceField$Value", {"exclude": ",".join(few)})
    yield Case("ReplaceField$Key", {"renames": "id:region,region:id"})


def _shapes(random_: random.Random) -> Iterator[Case]:
    part = random_.choice(["Key", "Value"])
    yield Case("ExtractField$Value", {"field": random_.choice(FIELDS)})
    yield Case(
        "ExtractField$Value",
        {
            "field": random_.choice(
                ["after.card", "after.deep", "after.deep.x", "after.deep.`z.z`", "`a.b`"]
            ),
            "field.syntax.version": "V2",
        },
    )
    yield Case("ExtractField$Key", {"field": random_.choice(["id", "region"])})
    yield Case(f"HoistField${part}", {"field": random_.choice(["h", "a.b", "ünï"])})
    yield Case("Flatten$Value", {"delimiter": random_.choice([".", "_", "::"])})
    yield Case("Flatten$Key", {})
    names = random_.sample(["topic.field", "partition.field", "offset.field"], 2)
    yield Case(
        f"InsertField${part}",
        {name: f"i{number}{random_.choice(['', '?', '!'])}" for number, name in enumerate(names)}
        | {"static.field": "s", "static.value": random_.choice(["v", "7", "ß"])},
    )
    yield Case("InsertField$Value", {"timestamp.field": "moment"}, True)


def _headers(random_: random.Random) -> Iterator[Case]:
    yield Case(
        "HeaderFrom$Value",
        {
            "fields": ",".join(
                chosen := random_.sample(["int8", "int64", "flag", "text", "digits", "stamp"], 2)
            ),
            "headers": ",".join(f"h-{name}" for name in chosen),
            "operation": random_.choice(["move", "copy"]),
        },
    )
    yield Case("HeaderFrom$Key", {"fields": "id", "headers": "trace", "operation": "move"})
    yield Case("InsertHeader", {"header": "trace", "value.literal": random_.choice(["x", "ß y"])})
    yield Case("DropHeaders", {"headers": random_.choice(["trace", "trace,ünï", "none"])})


def _keys_and_topics(random_: random.Random) -> Iterator[Case]:
    yield Case("ValueToKey", {"fields": ",".join(random_.sample(FIELDS, 2))})
    yield Case("ValueToKey", {"fields": "after.card", "field.syntax.version": "V2"})
    yield Case(
        "RegexRouter",
        dict(
            zip(
                ("regex", "replacement"),
                random_.choice(
                    [
                        (r"shop\.(.*)", "$1"),
                        (r"(\w+)\.(?<rest>.*)", r"${rest}-$1\$"),
                        ("shop", "x"),
                        ("shop|shop.*", "y"),
                        (r"([a-z]+)\W(\w+)", "$2$1$10"),
                        (".*", "$0"),
                    ]
                ),
                strict=True,
            )
        ),
    )
    yield Case(
        "TimestampRouter",
        {
            "topic.format": random_.choice(["${topic}-${timestamp}", "${timestamp}.x"]),
            "timestamp.format": random_.choice(["yyyyMMdd", "yyyy-MM", "EEE"]),
        },
    )
    yield Case("SetSchemaMetadata$Value", {"schema.name": "n", "schema.version": "7"}, True)


def _casts(random_: random.Random) -> Iterator[Case]:
    for field in random_.sample(NUMBERS, 3):
        yield Case("Cast$Value", {"spec": f"{field}:{random_.choice(TARGETS)}"})
    yield Case("Cast$Value", {"spec": f"{random_.choice(TYPED)}:{random_.choice(TARGETS)}"}, True)
    yield Case(
        "Cast$Value", {"spec": f"{random_.choice(('raw', 'tags', 'after', 'float64'))}:string"}
    )
    pair = [f"{field}:{random_.choice(TARGETS)}" for field in random_.sample(NUMBERS[:7], 2)]
    yield Case("Cast$Value", {"spec": ",".join(pair)})
    yield Case("Cast$Key", {"spec": f"id:{random_.choice(TARGETS)}"})
    yield Case("Cast$Key", {"spec": random_.choice(TARGETS)})


def _times(random_: random.Random) -> Iterator[Case]:
    target = random_.choice(["string", "unix", "Date", "Time", "Timestamp"])
    precision = random_.choice(["seconds", "milliseconds", "microseconds", "nanoseconds"])
    yield Case(
        "TimestampConverter$Value",
        {
            "field": "stamp",
            "target.type": target,
            "format": random_.choice(PARSED),
            "unix.precision": precision,
        },
    )
    yield Case(
        "TimestampConverter$Value",
        {"field": "at", "target.type": "string", "format": random_.choice(FORMATS)},
        True,
    )
    for field, schemas in ((random_.choice(["at", "day", "clock"]), True),
                           (random_.choice(["text", "flag", "tags"]), None)):  # fmt: skip
        yield Case(
            "TimestampConverter$Value",
            {"field": field, "target.type": target, "format": STAMP, "unix.precision": precision},
            schemas,
        )
    other = random_.choice(["unix", "Timestamp", "Time"])
    yield Case(
        "TimestampConverter$Value",
        {"field": "unix", "target.type": other, "unix.precision": precision},
    )
