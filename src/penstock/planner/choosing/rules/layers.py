"""Rules of what stands on a transport: the workflow engine and the stream processor."""

from __future__ import annotations

from typing import Final

from penstock.planner.choosing.rules.figures import SEVERAL, tests
from penstock.planner.choosing.rules.language import (
    JUDGEMENT,
    MATRIX,
    Rule,
    below,
    from_on,
    no,
    rows,
    up_to,
    yes,
)

_WORKFLOW: Final = rows(
    "workflow",
    ("for", "steps", tests(from_on("steps", 2)),
     "it remembers how far a process came, retries steps, and undoes them", MATRIX),
    ("for", "waits", tests(yes("waits")),
     "timers and people for days or weeks are what it is made for", MATRIX),
    ("against", "one step", tests(up_to("steps", 1), no("waits")),
     "there is no process to remember", MATRIX),
    ("against", "simple fan-out", tests(SEVERAL, up_to("steps", 1), no("waits")),
     "telling several consumers of one event needs no engine", MATRIX),
    ("against", "sub-second steps", tests(below("latency_ms", 1000.0)),
     "every step is stored before the next begins", MATRIX),
)  # fmt: skip

_PROCESSOR: Final = rows(
    "stream-processor",
    ("for", "stateful computation", tests(yes("stateful")),
     "windows, joins and aggregates with state that survives a crash", MATRIX),
    ("against", "stateless", tests(no("stateful")),
     "to carry messages the transport is enough, to change them one by one a consumer", MATRIX),
    ("note", "micro-batches", tests(yes("stateful"), below("latency_ms", 1000.0)),
     "Spark pipelines work in micro-batches: measure yours, or put Flink or Kafka Streams on the"
     " same log", JUDGEMENT),
)  # fmt: skip

LAYER_RULES: Final[tuple[Rule, ...]] = (*_WORKFLOW, *_PROCESSOR)
