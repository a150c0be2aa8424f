"""Benchmark of small produce requests per second, from many producers.

Every connection has one request in flight, like a producer that waits for its acknowledgement. When
the answer arrives, the connection sends the same request again. The figure therefore covers the
broker's whole path, from the socket to the synced journal and back. One commit of the journal may
contain a request of every connection. Each answer is decoded and checked for errors.
"""

from __future__ import annotations

import selectors
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Final

from penstock.apps.bench.broker import Bed
from penstock.apps.bench.log import PARTITIONS, SMALL_BYTES
from penstock.apps.bench.steps import Figures, Step
from penstock.apps.loads.figures import one_record
from penstock.base.errors import UnavailableError
from penstock.base.system import SYSTEM_CLOCK

if TYPE_CHECKING:
    from penstock.client.metadata import Node

CONNECTIONS: Final = 64
WARM_UP_REQUESTS: Final = 2 * CONNECTIONS

_now = SYSTEM_CLOCK.monotonic


def request_step(bed: Bed, *, where: str) -> Step:
    how = (
        f"answered produce requests a second, each with one record of {SMALL_BYTES} B, acks=all;"
        f" over {CONNECTIONS} connections with one request in flight each, to partitions of"
        f" {where} that one broker leads"
    )
    return Step(
        label="small requests",
        share=0.08,
        run=lambda seconds: _answered(bed, seconds),
        hows={"requests_per_s": how},
    )


def _answered(bed: Bed, seconds: float) -> Figures:
    from penstock.client.connection import Connection
    from penstock.client.produce import Batch, ProduceRequest, produce_call

    with bed.topic(PARTITIONS) as topic, ExitStack() as stack:
        node, led = _led_by_one(bed, topic)
        record = one_record(SMALL_BYTES).data
        crowd = selectors.DefaultSelector()
        stack.callback(crowd.close)
        for number in range(CONNECTIONS):
            connection = Connection(
                node.host,
                node.port,
                client_id="penstock-bench",
                timeout_ms=bed.timeout_ms,
                connect_timeout_ms=bed.timeout_ms,
            )
            stack.enter_context(closing(connection))
            batch = Batch(partition=led[number % len(led)], data=record, record_count=1)
            call = produce_call(
                ProduceRequest(node.node_id, (batch,)),
                topic=topic,
                acks=-1,
                timeout_ms=bed.timeout_ms,
                correlation_id=number,
                client_id=connection.client_id,
            )
            crowd.register(connection, selectors.EVENT_READ, (connection, call))
            connection.send(call)
        _asked_again(crowd, bed.timeout_ms, WARM_UP_REQUESTS, _now())
        began = _now()
        count = _asked_again(crowd, bed.timeout_ms, 0, began + seconds)
        return {"requests_per_s": count / (_now() - began)}


def _led_by_one(bed: Bed, topic: str) -> tuple[Node, list[int]]:
    """Return the leader of partition 0, and the indexes of all partitions that it leads."""
    known = bed.client.metadata([topic])
    partitions = known.topics[topic].partitions
    node = known.nodes.get(partitions[0].leader)
    if node is None:
        raise UnavailableError(f"partition 0 of topic {topic} has no leader")
    return node, [partition.index for partition in partitions if partition.leader == node.node_id]


def _asked_again(
    crowd: selectors.BaseSelector, timeout_ms: int, at_least: int, until: float
) -> int:
    """Receive answers and send each request again; return the number of successful answers.

    Ends at the time `until`, but not before `at_least` answers. Answers with a retriable error are
    not counted, such as those of a broker that does not have the new topic yet.

    Raises:
        PenstockError: a request was rejected, or too few answers arrived within the timeout.
    """
    from penstock.client.errors import broker_error, is_retriable
    from penstock.client.produce import read_acknowledgements

    count, deadline = 0, until + timeout_ms / 1000
    while count < at_least or _now() < until:
        ready = crowd.select(max(0.0, deadline - _now()))
        if not ready or _now() > deadline:
            raise UnavailableError(f"only {count} requests were answered within {timeout_ms} ms")
        for key, _ in ready:
            connection, call = key.data
            for answer in read_acknowledgements(connection.receive()).values():
                if answer.error_code and not is_retriable(answer.error_code):
                    raise broker_error(answer.error_code, "produce of one record", answer.message)
                count += not answer.error_code
            connection.send(call)
    return count
