"""What it costs to ask whether a principal may do what its request asks.

10,000 bindings of 500 principals, literal and prefixed. What is measured is what the dispatcher
does for one request: find the rights of the connection's principal, and ask for what the table of
API keys says; beside it one decision that was never made before.

Prediction: two looks into dictionaries of tuples, 0.3 µs; a request of ten topics asks ten times:
some 8 µs; a decision that is new looks at some 20 prefixes, 10 µs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from tests.security.access import allow

from benchmarks.harness import Row
from penstock.broker.requests.access import granted
from penstock.security import AclAuthoriser, Principal
from penstock.security.acls import AclBinding
from penstock.wire.kafka.apis import BY_NAME
from penstock.wire.kafka.decoder import decoder
from penstock.wire.kafka.encoder import encoder

PRINCIPALS = 500
BINDINGS_EACH = 20
HOST = "10.0.0.1"
BUDGET_US = 2.0


def bindings() -> list[AclBinding]:
    """Each principal reads ten topics by name and writes ten kinds by prefix."""
    return [
        allow(
            "write" if number % 2 else "read",
            "topic",
            f"p{principal}-{'x' * number}",
            f"u{principal}",
            pattern_type="prefixed" if number % 2 else "literal",
        )
        for principal in range(PRINCIPALS)
        for number in range(BINDINGS_EACH)
    ]


def request_of(topics: int) -> Any:
    """A request to add partitions, as it is decoded."""
    version = BY_NAME["CreatePartitions"].maximum
    named = [
        {"name": f"p7-x-{number}", "count": 9, "assignments": None} for number in range(topics)
    ]
    body = {"topics": named, "timeout": 1000, "validate_only": True}
    frame = encoder("CreatePartitions", version, "request")(body)
    request, _ = decoder("CreatePartitions", version, "request")(frame, 0)
    return request


def median_us(act: Callable[[], object], count: int) -> float:
    """Microseconds of one call."""
    times = []
    for _ in range(15):
        began = time.perf_counter()
        for _ in range(count):
            act()
        times.append((time.perf_counter() - began) / count * 1e6)
    return sorted(times)[len(times) // 2]


def measure(quick: bool) -> list[Row]:
    authoriser = AclAuthoriser(super_users=["User:root"])
    authoriser.replace(bindings())
    principal = Principal("User", "u7")
    count = 2_000 if quick else 20_000

    def hot() -> object:
        return authoriser.rights(principal, HOST).allows("write", "topic", "p7-x-orders")

    def table(name: str, request: Any) -> Callable[[], object]:
        context = cast("Any", SimpleNamespace(
            api=BY_NAME[name], version=BY_NAME[name].maximum, rights=None,
            refusal=lambda *named: None,
        ))  # fmt: skip

        def ask() -> object:
            context.rights = authoriser.rights(principal, HOST)
            return granted(context, request, lambda topic_id: None)

        return ask

    fresh = iter(range(10_000_000))

    def cold() -> object:
        name = f"p7-x-{next(fresh)}"
        return authoriser.rights(principal, HOST).allows("write", "topic", name)

    one, ten = request_of(1), request_of(10)
    authoriser.replace([
        *bindings(),
        allow("alter", "topic", "p7-", "u7", pattern_type="prefixed"),
    ])  # fmt: skip
    figures = (
        ("cached authorization (Produce, Fetch)", hot, 0.3),
        ("authorization of CreatePartitions, one topic", table("CreatePartitions", one), 1.5),
        ("authorization of CreatePartitions, ten topics", table("CreatePartitions", ten), 8.0),
        ("authorization of a topic, not cached", cold, 10.0),
    )
    return [
        Row(
            name=name,
            value=median_us(act, count),
            unit="µs",
            prediction=prediction,
            reference=BUDGET_US,
            reference_name="budget of a request",
            lower_is_better=True,
        )
        for name, act, prediction in figures
    ]
