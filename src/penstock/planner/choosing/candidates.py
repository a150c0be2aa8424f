"""What may be chosen, and what of it Penstock has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Layer = Literal["transport", "computation", "coordination"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One technology. `part` is what of Penstock serves it; `present` is whether there is one."""

    id: str
    label: str
    layer: Layer
    examples: str
    part: str
    present: bool


_ALL: Final = (
    Candidate(
        id="rpc",
        label="synchronous RPC",
        layer="transport",
        examples="gRPC, HTTP",
        part="none, and none is planned: call the service itself",
        present=False,
    ),
    Candidate(
        id="host-socket",
        label="host socket",
        layer="transport",
        examples="Unix domain socket to an agent",
        part="host ingest: `penstock host serve`, penstock.host",
        present=True,
    ),
    Candidate(
        id="file-outbox",
        label="file outbox",
        layer="transport",
        examples="payload on a shared file system, pointer on the log",
        part="the filesystem outbox: penstock.outbox, with its pointers on Penstock's log",
        present=True,
    ),
    Candidate(
        id="db-outbox",
        label="outbox table",
        layer="transport",
        examples="a table read with SKIP LOCKED, or by change data capture",
        part="not there yet: a connector that reads outbox tables is planned; Debezium can write"
        " to Penstock's log as to any Kafka",
        present=False,
    ),
    Candidate(
        id="queue",
        label="queue",
        layer="transport",
        examples="RabbitMQ, SQS",
        part="none: acknowledgement of single messages (share groups) is not served",
        present=False,
    ),
    Candidate(
        id="log",
        label="distributed log",
        layer="transport",
        examples="Penstock, Kafka, Pulsar, Kinesis",
        part="the log: `penstock serve`, local or diskless topics, any Kafka client",
        present=True,
    ),
    Candidate(
        id="workflow",
        label="workflow engine",
        layer="coordination",
        examples="Temporal, Cadence",
        part="none, and none is planned",
        present=False,
    ),
    Candidate(
        id="stream-processor",
        label="stream processor",
        layer="computation",
        examples="Spark Structured Streaming, Flink, Kafka Streams",
        part="Spark pipelines: `penstock pipeline`, penstock.spark",
        present=True,
    ),
)

CANDIDATES: Final[Mapping[str, Candidate]] = {one.id: one for one in _ALL}
"""By id. Of transports that fit equally well the earlier one is taken: it is the cheaper to run."""
