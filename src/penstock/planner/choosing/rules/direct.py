"""Rules of what has no storage between the two sides: the host socket and RPC."""

from __future__ import annotations

from typing import Final

from penstock.planner.choosing.rules.figures import (
    AS_CALL,
    FEW_HOPS,
    FROM_MS,
    RATE,
    SEVERAL,
    SOCKET_RATE_MIN,
    SUB_MS,
    tests,
)
from penstock.planner.choosing.rules.language import (
    HOST_BAKE_OFF,
    HOST_IPC,
    JUDGEMENT,
    MATRIX,
    THRESHOLDS,
    Rule,
    above,
    below,
    equals,
    no,
    rows,
    up_to,
    yes,
)

_ROUND_TRIP_MS: Final = 0.05
_SHARED_MEMORY_MS: Final = 0.001
_PATTERN: Final = "log and queue article: outbox pattern, dual writes"

_SOCKET: Final = rows(
    "host-socket",
    ("for", "same host", tests(yes("same_host")),
     "the kernel copies bytes from one process to the other: no network, no load balancer",
     HOST_BAKE_OFF),
    ("for", "latency", tests(yes("same_host"), AS_CALL),
     "a round trip takes tens of microseconds", "host IPC article: life of a chunk"),
    ("against", "other hosts", tests(no("same_host")),
     "a Unix socket ends at the kernel, and needs a directory that both sides see", HOST_IPC),
    ("against", "absent consumers", tests(yes("consumer_down")),
     "nothing is stored: what is in flight is lost on disconnect, what comes later is refused",
     "host IPC article: delivery; Penstock: host ingest, LostOnDisconnect"),
    ("against", "fan-out", tests(SEVERAL),
     "a connection has one other side: let the agent write to a log", MATRIX),
    ("against", "replay", tests(yes("replay")),
     "nothing is stored", MATRIX),
    ("against", "stateful computation", tests(yes("stateful")),
     "a processor that restarts cannot read again", MATRIX),
    ("against", "replies", tests(yes("reply")),
     "it acknowledges, and does not answer: run RPC over a Unix socket", HOST_BAKE_OFF),
    ("against", "sub-microsecond", tests(below("latency_ms", _SHARED_MEMORY_MS)),
     "two copies in the kernel take longer: shared memory (Aeron) does it", HOST_IPC),
    ("caveat", "tens of microseconds", tests(below("latency_ms", _ROUND_TRIP_MS)),
     "about what a round trip takes: measure with `penstock host bench`, with a ring as well",
     "host IPC article: life of a chunk"),
    ("caveat", "tiny rate", tests(up_to(RATE, SOCKET_RATE_MIN)),
     "for ten messages a second a protocol is more work than it saves: call HTTP", HOST_IPC),
    ("caveat", "bursts", tests(yes("bursts")),
     "credits push back on senders once the agent's window is full",
     "host IPC article: credits in three dimensions"),
    ("caveat", "per-message semantics", tests(yes("semantics")),
     "a channel is first in, first out", HOST_BAKE_OFF),
    ("note", "languages", tests(yes("same_host")),
     "Penstock's clients are for Python; others speak its documented protocol, or post to the"
     " agent's HTTP front", HOST_IPC),
    ("note", "transaction", tests(equals("database", "transaction")),
     "writing to both can lose or invent messages: put an outbox table in front", _PATTERN),
)  # fmt: skip

_RPC: Final = rows(
    "rpc",
    ("for", "replies", tests(yes("reply")),
     "the caller gets the value, or the error, of its call", THRESHOLDS),
    ("for", "latency", tests(AS_CALL, yes("reply")),
     "no hop over a broker, which adds tens of milliseconds", MATRIX),
    ("against", "fire and forget", tests(no("reply"), FROM_MS),
     "nobody waits for the answer: a queue takes the message and frees the sender", THRESHOLDS),
    ("caveat", "no answer wanted", tests(no("reply"), SUB_MS),
     "nothing that stores messages is this fast; what the receiver has not taken is lost", MATRIX),
    ("against", "absent consumers", tests(yes("consumer_down")),
     "a call fails when the other side is down", THRESHOLDS),
    ("against", "fan-out", tests(SEVERAL),
     "the sender would call, and wait for, each of them", MATRIX),
    ("against", "bursts", tests(yes("bursts")),
     "callers feel every spike: nothing absorbs it", MATRIX),
    ("against", "replay", tests(yes("replay")),
     "nothing is stored", MATRIX),
    ("against", "stateful computation", tests(yes("stateful")),
     "a processor that restarts cannot read again", MATRIX),
    ("against", "tens of microseconds", tests(below("latency_ms", _ROUND_TRIP_MS)),
     "framing and two passes through network stacks take longer", JUDGEMENT),
    ("caveat", "many hops", tests(above("hops", FEW_HOPS)),
     "delays and failures of all hops add up; the matrix says few hops, three is our reading",
     MATRIX),
    ("caveat", "per-message semantics", tests(yes("semantics")),
     "a call has a deadline, and neither priority nor routing", MATRIX),
    ("note", "same host", tests(yes("same_host")),
     "let it listen on a Unix socket: no ports, no load balancer", HOST_BAKE_OFF),
    ("note", "transaction", tests(equals("database", "transaction")),
     "a call cannot be rolled back: give it an idempotency key", _PATTERN),
)  # fmt: skip

DIRECT_RULES: Final[tuple[Rule, ...]] = (*_SOCKET, *_RPC)
