"""Transforms of connectors beside Kafka Connect's own classes: rows per CPU second.

Both get the same orders of 11 fields. Kafka Connect's classes are called in a loop in one Java
machine, with records in memory; their figure is the better one of maps and structs, and of several
rounds, so it has no compilation and no start in it. Penstock transforms batches of 10,000 rows as
the runner does. Reading and writing records is in neither figure.

Prediction: Kafka Connect copies a map or struct of 11 fields for each record, 0.2 to 0.5 µs, and
casts, formats and parses values one by one: 0.1 µs for a number, 0.5 for a date. Arrow replaces a
column in 20 to 60 µs a batch whatever its rows are, and writes or reads a value in 5 to 60 ns.

A header is a reference to a name and a value in Kafka Connect, but bytes in columns. The last rows
are the limits of headers: one call of the kernel that writes names and values of the result.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping
from typing import Any, Final
from unittest import mock

from compat.drivers.remote import Program
from compat.parts import transforms_java
from compat.transforms.records import KEY, rows

from benchmarks.harness import Row
from penstock.connect.plugins import Records
from penstock.connect.steps import applied, build_transforms
from penstock.kernels import texts

ROWS: Final = 10_000
ROUNDS, ROUNDS_QUICK = 60, 15
SECONDS, SECONDS_QUICK = 1.0, 0.2
AIM: Final = 20.0
HEADERS: Final = ("insert a header", "field to a header")
"""Cases that one kernel limits."""
HEADER_LIMIT: Final = (
    "Kafka Connect takes {theirs:.0f} ns a row, so twenty times leave {left:.1f} ns. The kernel"
    " that writes two names and two values takes {kernel:.1f} ns."
)
VALUE: Final[Mapping[str, Any]] = {
    "struct": [
        ["id", "int64"], ["customer", "string"], ["region", "string"], ["amount", "float64"],
        ["count", "int32"], ["paid", "boolean"], ["card", "string"], ["price", "string"],
        ["created", "string"], ["shipped", "int64"],
        ["address", {"struct": [["city", "string"], ["zip", "string"]]}],
    ]
}  # fmt: skip
FORMAT: Final = "yyyy-MM-dd HH:mm:ss"
CASES: Final[Mapping[str, tuple[str, dict[str, str], float]]] = {
    "mask a field": ("MaskField$Value", {"fields": "card"}, 150.0),
    "drop and rename fields": (
        "ReplaceField$Value", {"exclude": "card,region", "renames": "id:order_id"}, 200.0,
    ),
    "extract a field": ("ExtractField$Value", {"field": "address"}, 300.0),
    "hoist": ("HoistField$Value", {"field": "order"}, 300.0),
    "insert a topic and a text": (
        "InsertField$Value",
        {"topic.field": "topic", "static.field": "source", "static.value": "shop"}, 60.0,
    ),
    "flatten": ("Flatten$Value", {"delimiter": "_"}, 150.0),
    "key of fields": ("ValueToKey", {"fields": "id,region"}, 200.0),
    "cast numbers": ("Cast$Value", {"spec": "amount:float32,count:int64,paid:int8"}, 60.0),
    "cast text to a number": ("Cast$Value", {"spec": "price:float64"}, 8.0),
    "cast a number to text": ("Cast$Value", {"spec": "id:string"}, 20.0),
    "parse a time": (
        "TimestampConverter$Value",
        {"field": "created", "target.type": "Timestamp", "format": FORMAT}, 10.0,
    ),
    "format a time": (
        "TimestampConverter$Value",
        {"field": "shipped", "target.type": "string", "format": FORMAT}, 10.0,
    ),
    "field to a header": (
        "HeaderFrom$Value", {"fields": "region", "headers": "region", "operation": "move"}, 15.0,
    ),
    "insert a header": ("InsertHeader", {"header": "source", "value.literal": "shop"}, 15.0),
    "rename a topic": (
        "RegexRouter", {"regex": "shop\\.(.*)", "replacement": "$1"}, 1000.0,
    ),
    "topic by day": ("TimestampRouter", {}, 10.0),
}  # fmt: skip
"""For each figure: the transform, its options, and the predicted million rows per CPU second."""


def measure(*, quick: bool = False) -> list[Row]:
    """Return million rows per CPU second of each transform, and the ratio to Kafka Connect."""
    orders = _orders(random.Random(7))
    batch = rows(orders, VALUE)
    program = Program(["java", "-Xmx1g", "-cp", transforms_java(), "Transforms"], dict(os.environ))
    try:
        theirs = _kafka_connect(program, orders, ROUNDS_QUICK if quick else ROUNDS)
    finally:
        program.close()
    limit = SECONDS_QUICK if quick else SECONDS
    cases: dict[str, tuple[Callable[[], object], float, float]] = {
        name: (_step(transform, options, batch), predicted, theirs[name])
        for name, (transform, options, predicted) in CASES.items()
    }
    for name in HEADERS:
        step = _step(*CASES[name][:2], batch)
        cases[_kernel(name)] = (_kernel_of(step), 150.0, theirs[name])
    rates = {name: _rate(action, limit) for name, (action, _, _) in cases.items()}
    return [
        Row(
            name=name,
            value=rates[name],
            unit="M rows/CPU s",
            prediction=predicted,
            reference=1e3 / nanoseconds,
            reference_name="Kafka Connect",
            aim_ratio=AIM if name in CASES else None,
            limit=_limit(nanoseconds, rates[_kernel(name)]) if name in HEADERS else "",
            bare=rates.get(_kernel(name)),
        )
        for name, (_, predicted, nanoseconds) in cases.items()
    ]


def _kernel(name: str) -> str:
    return f"{name}: its kernel alone"


def _limit(theirs: float, kernel: float) -> str:
    return HEADER_LIMIT.format(theirs=theirs, left=theirs / AIM, kernel=1e3 / kernel)


def _kafka_connect(program: Program, orders: list[dict[str, Any]], rounds: int) -> dict[str, float]:
    """Return the nanoseconds of CPU that a record costs in each case, the better of two modes."""
    found: dict[str, float] = {}
    for schemas in (True, False):
        program.call("load", records=orders, schemas=schemas, key_type=KEY, value_type=VALUE)
        for name, (transform, options, _) in CASES.items():
            taken = program.call("measure", type=transform, options=options, rounds=rounds)
            found[name] = min(found.get(name, taken), taken)
    return found


def _step(transform: str, options: dict[str, str], batch: Records) -> Callable[[], list[Records]]:
    def refuse(key: object, message: str, fix: str) -> None:
        raise RuntimeError(f"{key}: {message}; {fix}")

    table = {"type": f"org.apache.kafka.connect.transforms.{transform}", **options}
    steps = build_transforms({"step": table}, {}, refuse)
    return lambda: applied(steps, batch)


def _kernel_of(step: Callable[[], list[Records]]) -> Callable[[], object]:
    """Return the call of the kernel in a step that adds a header, into memory in use."""
    kernel = texts.append_headers
    with mock.patch.object(texts, "append_headers", wraps=kernel) as called:
        step()
    arguments = called.call_args.args
    return lambda: kernel(*arguments)


def _rate(action: Callable[[], object], limit: float) -> float:
    """Return million rows per CPU second of this process, the best of ten parts of `limit`."""
    action()
    best = 0.0
    for _ in range(10):
        began, batches = time.process_time(), 0
        while (taken := time.process_time() - began) < limit / 10:
            action()
            batches += 1
        best = max(best, batches * ROWS / taken / 1e6)
    return best


def _orders(random_: random.Random) -> list[dict[str, Any]]:
    return [
        {
            "topic": "shop.orders",
            "partition": 0,
            "offset": offset,
            "timestamp": 1_700_000_000_000 + offset * 20_000,
            "key": {"id": offset, "region": "eu"},
            "headers": [["trace", f"{random_.getrandbits(64):x}"]],
            "value": _order(random_, offset),
        }
        for offset in range(ROWS)
    ]


def _order(random_: random.Random, number: int) -> dict[str, Any]:
    moment = time.gmtime(random_.randrange(1_500_000_000, 1_900_000_000))
    return {
        "id": number + 10**9,
        "customer": f"customer-{random_.randrange(10**6)}",
        "region": random_.choice(["eu-west", "eu-north", "us-east"]),
        "amount": repr(random_.random() * 1000),
        "count": random_.randrange(100),
        "paid": random_.random() < 0.5,
        "card": str(random_.randrange(10**15, 10**16)),
        "price": f"{random_.randrange(10**6) / 100:.2f}",
        "created": time.strftime("%Y-%m-%d %H:%M:%S", moment),
        "shipped": random_.randrange(1_500_000_000_000, 1_900_000_000_000),
        "address": {
            "city": f"city {random_.randrange(5000)}",
            "zip": str(random_.randrange(10**5)),
        },
    }
