"""Declarations of all metrics of the product, found in its modules."""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path

import penstock
from penstock.base.metrics import Metric, Metrics


@cache
def declared_metrics() -> tuple[Metric, ...]:
    """Return every declared metric, in the order of names; imports all modules that declare any."""
    root = Path(penstock.__file__).parent
    found: set[Metric] = set()
    for path in root.rglob("*.py"):
        if "base.metrics import" not in path.read_text(encoding="utf-8"):
            continue
        name = ".".join(path.relative_to(root.parent).with_suffix("").parts)
        for value in vars(importlib.import_module(name)).values():
            if isinstance(value, Metric):
                found.add(value)
            elif isinstance(value, type) and issubclass(value, Metrics):
                found.update(value.metrics.values())
    return tuple(sorted(found, key=lambda metric: (metric.name, metric.doc)))


def by_name() -> dict[str, Metric]:
    return {metric.name: metric for metric in declared_metrics()}
