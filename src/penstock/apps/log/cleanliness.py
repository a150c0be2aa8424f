"""Cleanliness of compacted logs, reported by their leaders or read from the files of a
directory."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from penstock.apps.log.sources import BrokerSource, FileSource
from penstock.base.ids import TopicPartition
from penstock.base.settings import LONG_MAX

if TYPE_CHECKING:
    from penstock.apps.log.sources import Chosen, Source
    from penstock.client import Client
    from penstock.storage.inspection.directories import PartitionFiles


class Cleanliness(NamedTuple):
    """Clean offset of a log, and the share of bytes of closed segments above it."""

    clean_offset: int
    dirty_ratio: float


def cleanliness_of(
    chosen: Chosen, source: Source, admin: str | None
) -> Mapping[TopicPartition, Cleanliness]:
    """Return the cleanliness of a source's compacted logs; in files, of logs that were ever
    compacted.

    Unreachable admin interfaces and object stores have none.

    Raises:
        CorruptFile: a directory's checkpoint is damaged.
    """
    if isinstance(source, FileSource):
        found = [(where, files) for where in source.partitions() for files in source.files(where)]
        known = ((where, _of_files(files)) for where, files in found)
        return {where: one for where, one in known if one is not None}
    if isinstance(source, BrokerSource):
        with chosen.state.client() as client:
            return _of_leaders(chosen, client, admin)
    return {}


def _of_leaders(
    chosen: Chosen, client: Client, admin: str | None
) -> dict[TopicPartition, Cleanliness]:
    from penstock.apps.doctor.brokers import admin_answers, known_admins

    topic = client.describe_topic(chosen.topic or "")
    leaders = {partition.index: partition.leader for partition in topic.partitions}
    addresses = known_admins(chosen.state, client.broker_states(), admin)
    answers = admin_answers(chosen.state, addresses, "/v1/compaction")
    return {
        TopicPartition(topic.name, row["partition"]): Cleanliness(
            row["clean_offset"], row["dirty_ratio"]
        )
        for answer in answers
        for row in answer["partitions"]
        if row["topic"] == topic.name and leaders.get(row["partition"]) == answer["node_id"]
    }


def _of_files(files: PartitionFiles) -> Cleanliness | None:
    """Return the cleanliness that a cleaner without a lag would see; None if it never ran on the
    log."""
    from penstock.storage.compaction.choosing import Closed, cleanable
    from penstock.storage.compaction.offsets import decode_clean_offsets
    from penstock.storage.names import CLEAN_OFFSETS_FILE, LOG
    from penstock.storage.segment import Segment

    directory = Path(files.path)
    try:
        data = (directory.parent / CLEAN_OFFSETS_FILE).read_bytes()
        clean_offset = decode_clean_offsets(data).get(files.where)
        if clean_offset is None:
            return None
        closed = [
            Closed(Segment(files.path, base, Path(files.file(base, LOG)).stat().st_size), end, int)
            for base, end in pairwise(files.segments)
        ]
    except FileNotFoundError:
        return None  # a broker is running, which has removed it meanwhile
    found = cleanable(
        closed, clean_offset=clean_offset, log_start_offset=0, bound=LONG_MAX, now_ms=0,
        min_lag_ms=0, max_lag_ms=LONG_MAX, first_timestamp=lambda _: -1,
    )  # fmt: skip
    return Cleanliness(clean_offset, round(found.dirty_ratio, 4))
