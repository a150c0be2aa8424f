"""Topics that request a table, as a broker reports them, and the status of these tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.base.errors import InvalidError
from penstock.records.extents import READ_COMMITTED
from penstock.spark.errors import InvalidOption
from penstock.spark.tables.location import absolute, open_table
from penstock.spark.tables.positions import check_reaches, check_topic
from penstock.spark.tables.reconciler import DELTA, WantedTable, location_of

if TYPE_CHECKING:
    from penstock.client import Client, TopicMetadata

FORMAT: Final = "table.format"
LOCATION: Final = "table.location"
COMMIT_INTERVAL: Final = "table.commit.interval.ms"
CODEC: Final = "table.codec"


def wanted_tables(client: Client, root: str) -> dict[str, WantedTable]:
    """Return the topics with `table.format=delta`, by name.

    This sends one request for each topic of the cluster.

    Raises:
        BrokerBusy, TimedOut: the brokers did not respond in time.
    """
    found: dict[str, WantedTable] = {}
    for topic in client.list_topics():
        wanted = wanted_table(client, topic, root)
        if wanted is not None:
            found[topic.name] = wanted
    return found


def wanted_table(client: Client, topic: TopicMetadata, root: str) -> WantedTable | None:
    """Return the table that a topic requests; None if it requests none or no longer exists."""
    from penstock.client import UnknownTopic

    try:
        configs = {
            item.name: item.value or "" for item in client.describe_configs("topic", topic.name)
        }
    except UnknownTopic:
        return None
    if configs.get(FORMAT) != DELTA:
        return None
    problem = None
    location = configs[LOCATION]
    try:
        location = absolute(location_of(root, topic.name, location))
    except InvalidOption as error:
        problem = str(error)
    return WantedTable(
        topic=topic.name,
        topic_id=str(topic.topic_id),
        location=location,
        commit_interval_ms=int(configs[COMMIT_INTERVAL]),
        codec=configs.get(CODEC),
        partitions=tuple(sorted(item.index for item in topic.partitions)),
        problem=problem,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatus:
    """Status of one topic's table: version, size and lag.

    `version` is None before the first commit. `ends` has the offset after the table's last record,
    by partition. `lag_records` counts the log's offsets from there on.
    """

    topic: str
    location: str
    version: int | None = None
    rows: int = 0
    files: int = 0
    size_bytes: int = 0
    ends: Mapping[int, int] = field(default_factory=dict)
    lag_records: int = 0
    problem: str | None = None


def table_status(
    client: Client, wanted: WantedTable, storage_options: Mapping[str, str] | None = None
) -> TableStatus:
    """Return the status of a table compared with the log; `problem` says what does not match.

    Raises:
        UnknownTopic: the topic no longer exists.
        deltalake.exceptions.DeltaError: the table cannot be read.
    """
    topic, location = wanted.topic, wanted.location
    if wanted.problem is not None:
        return TableStatus(topic=topic, location=location, problem=wanted.problem)
    log_starts = client.list_offsets(topic, "earliest")
    log_ends = client.list_offsets(topic, "latest", isolation=READ_COMMITTED)
    opened = open_table(location, storage_options)
    if opened is None:
        lag_records = sum(log_ends.values()) - sum(log_starts.values())
        return TableStatus(topic=topic, location=location, lag_records=lag_records)
    actions = pa.table(opened.get_add_actions(flatten=True))
    ends: dict[int, int] = {}
    problem = None
    try:
        ends = check_topic(opened, location, topic, wanted.topic_id, wanted.partitions)
        check_reaches(location, topic, ends, log_starts)
    except InvalidError as error:
        problem = str(error)
    return TableStatus(
        topic=topic,
        location=location,
        version=opened.version(),
        rows=pc.sum(actions["num_records"]).as_py() or 0,
        files=actions.num_rows,
        size_bytes=pc.sum(actions["size_bytes"]).as_py() or 0,
        ends=ends,
        lag_records=sum(
            max(0, end - max(ends.get(partition, 0), log_starts[partition]))
            for partition, end in log_ends.items()
        ),
        problem=problem,
    )
