"""The places at which something is killed, by name.

A batch of a query goes through these steps, and there is a point in every gap between two of them,
and some in the middle of a step:

    planned -> journal begun -> Parquet written -> table committed -> upsert merged
      -> topic staged, committed -> dead letters staged, committed -> retry store saved, requests
      put aside -> journal finished -> back in Spark -> checkpoint written -> planned …

`dies` says who is killed: the driver with its JVM (the whole process group), a Python worker, the
process that plans batches, the JVM of an executor, or the broker. A point with `delay_ms_max` is
in the middle of something: the kill comes a random time, up to that, after it has begun.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Victim = Literal["driver", "worker", "planner", "broker", "executor"]
Needs = Literal["any", "letters", "holding", "cluster"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Point at which a process dies; `needs` names the pipelines that reach it."""

    name: str
    dies: Victim
    delay_ms_max: int = 0
    needs: Needs = "any"


def _driver(name: str, delay_ms_max: int = 0, needs: Needs = "any") -> Point:
    return Point(name=name, dies="driver", delay_ms_max=delay_ms_max, needs=needs)


ANYWHERE: Final = _driver("driver anywhere")
"""Killed from outside, at a random time."""
PLANNING: Final = _driver("planning the next batch", 20)
RETURNED: Final = _driver("back in Spark, checkpoint under way", 60)
CHECKPOINTED: Final = _driver("checkpoint written")

DRIVER: Final = (
    _driver("journal: before it begins a batch"),
    _driver("journal: batch begun"),
    _driver("table: Parquet being written", 150),
    _driver("table: Parquet written, not committed"),
    _driver("table: commit under way", 15),
    _driver("table: committed"),
    _driver("upsert: before the merge"),
    _driver("upsert: merge under way", 60),
    _driver("upsert: merged"),
    _driver("topic: staged, commit not sent"),
    _driver("topic: commit in flight", 30),
    _driver("topic: commit answered"),
    _driver("dead letters: staged, commit not sent", needs="letters"),
    _driver("dead letters: commit in flight", 30, needs="letters"),
    _driver("dead letters: commit answered", needs="letters"),
    _driver("retry store: before it is saved", needs="holding"),
    _driver("retry store: being saved", 30, needs="holding"),
    _driver("retry store: saved", needs="holding"),
    _driver("retry store: releases being put aside", 10, needs="holding"),
    _driver("journal: before it finishes a batch"),
    _driver("journal: batch finished"),
    RETURNED,
    CHECKPOINTED,
    PLANNING,
)
WORKER: Final = (
    Point(name="worker: reading the source", dies="worker"),
    Point(name="worker: blob not written", dies="worker"),
    Point(name="worker: blob half written", dies="worker"),
    Point(name="worker: blob durable, entry not returned", dies="worker"),
)
PLANNER: Final = (Point(name="planner: asked for the next batch", dies="planner"),)
BROKER: Final = (
    Point(name="broker: commit in flight", dies="broker", delay_ms_max=30),
    Point(name="broker: at any time", dies="broker", delay_ms_max=1_500),
)
EXECUTOR: Final = (
    Point(name="executor: reading the source", dies="executor", needs="cluster"),
    Point(name="executor: blob half written", dies="executor", needs="cluster"),
    Point(name="executor: blob durable", dies="executor", needs="cluster"),
)
ALL: Final = (ANYWHERE, *DRIVER, *WORKER, *PLANNER, *BROKER, *EXECUTOR)
BY_NAME: Final = {point.name: point for point in ALL}
