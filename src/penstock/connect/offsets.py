"""Positions and offsets of connectors, read and changed as in Kafka Connect's REST interface.

A source's partition is `{"position": NAME}`, and its offset the position, or `{"value": POSITION}`
if the position is not an object. A sink's partition is `{"kafka_topic": TOPIC, "kafka_partition":
PARTITION}`, and its offset `{"kafka_offset": OFFSET}`. The calls block, and use brokers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.base.errors import InvalidError
from penstock.client import Client
from penstock.connect.connector_file import Direction

Offsets = Sequence[Mapping[str, Any]]

KEYS = (
    "The partition for a sink connector offset must contain the keys 'kafka_topic' and"
    " 'kafka_partition'"
)


def read_offsets(client: Client, name: str, direction: Direction) -> list[dict[str, Any]]:
    """Return the stored positions of a source, or the committed offsets of a sink."""
    if direction == "sink":
        return [
            {
                "partition": {"kafka_topic": topic, "kafka_partition": partition},
                "offset": {"kafka_offset": committed.offset},
            }
            for (topic, partition), committed in _committed(client, name).items()
        ]
    from penstock.connect import positions

    return [
        {"partition": {"position": key}, "offset": _offset(value)}
        for key, value in positions.existing(client, name).items()
    ]


def _offset(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {"value": value}


def _committed(client: Client, name: str) -> Mapping[tuple[str, int], Any]:
    from penstock.connect.running import group_of

    return client.committed(group_of(name))


def alter_offsets(client: Client, name: str, direction: Direction, offsets: Offsets) -> None:
    """Store positions or offsets; an offset that is null removes the stored value.

    Raises:
        InvalidError: an entry has another form.
    """
    given = [(entry.get("partition") or {}, entry.get("offset")) for entry in offsets]
    if direction == "sink":
        _alter_group(client, name, given)
        return
    from penstock.connect import positions

    if any(set(partition) != {"position"} for partition, _ in given):
        raise InvalidError("Partition objects should contain the key 'position' alone")
    changed = {
        str(partition["position"]): offset["value"]
        if isinstance(offset, dict) and set(offset) == {"value"}
        else offset
        for partition, offset in given
    }
    positions.load(client, name, -1)  # makes the topic
    client.write_arrow(positions.positions_topic(name), positions.rows_of(changed))


def _alter_group(client: Client, name: str, given: Sequence[tuple[Any, Any]]) -> None:
    from penstock.connect.running import group_of

    committed: dict[tuple[str, int], int] = {}
    removed: list[tuple[str, int]] = []
    for partition, offset in given:
        if set(partition) != {"kafka_topic", "kafka_partition"}:
            raise InvalidError(KEYS)
        place = (str(partition["kafka_topic"]), _whole(partition["kafka_partition"]))
        if offset is None:
            removed.append(place)
        elif set(offset) != {"kafka_offset"}:
            raise InvalidError("The offset for a sink connector should either be null or contain"
                               " the key 'kafka_offset'")  # fmt: skip
        else:
            committed[place] = _whole(offset["kafka_offset"])
    if committed:
        client.commit_offsets(group_of(name), committed)
    if removed:
        client.delete_offsets(group_of(name), removed)


def _whole(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError) as error:
        raise InvalidError(f"Failed to parse {value!r}: it is no whole number") from error


def reset_offsets(
    client: Client, name: str, direction: Direction, tables: Sequence[str]
) -> list[str]:
    """Remove stored positions or offsets; return their names.

    Args:
        tables: names of a source's positions or of the tables that they belong to, or topics of a
            sink; empty means all.
    """
    if direction == "source":
        from penstock.connect import positions

        if positions.positions_topic(name) not in {found.name for found in client.list_topics()}:
            return []
        return positions.forget(client, name, tables)
    from penstock.connect.running import group_of

    places = [place for place in _committed(client, name) if not tables or place[0] in tables]
    if places:
        client.delete_offsets(group_of(name), places)
    return [f"{topic}-{partition}" for topic, partition in places]
