"""What is usual together: parts that stand in front of, or on, what is recommended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.planner.choosing.judging import Choice
from penstock.planner.choosing.rules.language import (
    HOST_BAKE_OFF,
    MATRIX,
    Test,
    equals,
    from_on,
    yes,
)
from penstock.planner.choosing.workload import Workload, fact_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """It is usual when one of `with_any` is recommended and all tests hold."""

    name: str
    label: str
    with_any: frozenset[str]
    when: tuple[Test, ...]
    how: str
    source: str


_SPLIT: Final = frozenset({"", "log"})
"""With a log, or with nothing: two needs that no single transport serves."""

COMBINATIONS: Final = (
    Combination(
        name="outbox_table_and_broker",
        label="outbox table in front",
        with_any=frozenset({"log", "queue"}),
        when=(equals("database", "transaction"),),
        how="write row and event in one transaction; change data capture carries events on",
        source="log and queue article: outbox pattern; use case event sourcing in payments",
    ),
    Combination(
        name="log_and_stream_processor",
        label="log and stream processor",
        with_any=frozenset({"stream-processor"}),
        when=(yes("stateful"),),
        how="the log carries and keeps, the processor computes and writes results back",
        source="log and queue article: companion patterns; use case real-time analytics",
    ),
    Combination(
        name="file_outbox_and_pointers",
        label="files, and pointers on the log",
        with_any=frozenset({"file-outbox"}),
        when=(),
        how="payloads go to files; the log carries a pointer for each, which groups follow",
        source="filesystem outbox article: payload on a file system, pointer on the bus",
    ),
    Combination(
        name="log_and_file_outbox",
        label="large payloads beside the log",
        with_any=frozenset({"log"}),
        when=(yes("shared_files"), from_on("bytes_per_day", 1e12)),
        how="the outbox writes payloads above a size to files, and the rest into records",
        source="Penstock: outbox, one threshold for inline payloads",
    ),
    Combination(
        name="host_socket_and_log",
        label="host socket in front",
        with_any=frozenset({"log"}),
        when=(yes("same_host"),),
        how="local senders hand chunks to the host's agent, which writes them to the log",
        source=HOST_BAKE_OFF,
    ),
    Combination(
        name="rpc_and_log",
        label="RPC for the answer, log for the event",
        with_any=_SPLIT,
        when=(yes("reply"), from_on("consumers", 2)),
        how="one service answers the call and publishes the event; the others read the log",
        source=MATRIX,
    ),
    Combination(
        name="workflow_and_log",
        label="workflow engine and log",
        with_any=frozenset({"workflow"}),
        when=(from_on("consumers", 2),),
        how="the engine runs the steps and publishes what happened to the log for the others",
        source=MATRIX,
    ),
)


def combinations(workload: Workload, choice: Choice) -> tuple[Combination, ...]:
    """Those that apply to a choice."""
    fact = fact_of(workload)
    taken = set(choice.recommended) or {""}
    return tuple(
        [
            one
            for one in COMBINATIONS
            if taken & one.with_any and all([test.holds(fact) for test in one.when])
        ]
    )
