"""Requests to a broker for the topics that request a table, and for the ends of their logs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.spark.errors import InvalidOption
from penstock.spark.tables.location import absolute
from penstock.spark.tables.reconciler import DELTA, WantedTable, location_of

if TYPE_CHECKING:
    from penstock.client import Client, TopicMetadata

FORMAT: Final = "table.format"
LOCATION: Final = "table.location"
COMMIT_INTERVAL: Final = "table.commit.interval.ms"
CODEC: Final = "table.codec"


def wanted_tables(client: Client, root: str) -> dict[str, WantedTable]:
    """Return the topics with `table.format=delta`, by name; one request per topic of the cluster.

    Raises:
        BrokerBusy, TimedOut: as every call of a client.
    """
    found: dict[str, WantedTable] = {}
    for topic in client.list_topics():
        wanted = wanted_table(client, topic, root)
        if wanted is not None:
            found[topic.name] = wanted
    return found


def wanted_table(client: Client, topic: TopicMetadata, root: str) -> WantedTable | None:
    """Return one topic's table; None if it requests none, or was deleted meanwhile."""
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
