"""Sample of the suite that an ordinary run takes: each rule by one client, which take turns.

All clients are used, as they take turns rule by rule and case by case. The other combinations have
the marker `long`, and `make test-long` runs them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

import pytest

from compat.drivers import DRIVERS

BY_ALL: Final = {"test_reads_every_codec_that_others_wrote"}
"""Rules that an ordinary run tries by each client."""
CLIENTS: Final = {*DRIVERS, "penstock"}

Case = tuple[tuple[str, str], ...]


def mark_the_rest(items: Iterable[pytest.Item]) -> None:
    """Mark all but the sample as long."""
    rules: dict[tuple[str, str], dict[Case, list[pytest.Item]]] = defaultdict(dict)
    for item in items:
        if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
            continue
        parameters: dict[str, str] = {
            name: str(value) for name, value in item.callspec.params.items()
        }
        case = tuple((name, value) for name, value in parameters.items() if value not in CLIENTS)
        if len(case) < len(parameters) and item.originalname not in BY_ALL:
            rule = rules[str(item.path), item.originalname]
            rule.setdefault(case, []).append(item)
    for turn, cases in enumerate(rules.values()):
        for number, tests in enumerate(cases.values()):
            chosen = tests[(turn + number) % len(tests)]
            for test in tests:
                if test is not chosen:
                    test.add_marker(pytest.mark.long)
