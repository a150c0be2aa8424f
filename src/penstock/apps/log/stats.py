"""`penstock log stats`: show what stored partitions consist of."""

from __future__ import annotations

import click

from penstock.apps.log.cleanliness import cleanliness_of
from penstock.apps.log.queues import admin_option
from penstock.apps.log.sources import (
    Chosen,
    Range,
    place_options,
    range_options,
    source_of,
)
from penstock.apps.session import show


@click.command("stats", short_help="Count bytes, records, codecs, keys, producers.")
@click.option("--deep", is_flag=True, help="Open records: compression ratio, keys, nulls.")
@range_options
@admin_option
@place_options
def stats(chosen: Chosen, deep: bool, wanted: Range, admin: str | None) -> None:
    """Show statistics of each partition from its batches.

    With --deep records are read: compression, and the number of distinct keys, to about 1 %. JSON
    has more figures than the table.

    For compacted logs `clean to` is the clean offset, from the leader's admin interface or the
    directory's cleaner-offset-checkpoint, and `dirty` the share of bytes of closed segments above
    it.
    """
    from penstock.apps.log.statistics import PartitionStatistics

    rows = []
    with source_of(chosen) as source, source.progress("counting", wanted) as advance:
        known = cleanliness_of(chosen, source, admin)
        for where in source.partitions():
            counted = PartitionStatistics(str(where))
            for batch in source.batches(where, wanted):
                counted.add(batch.header, batch.read() if deep else None)
                advance(batch.header)
            clean = known.get(where)
            offset, ratio = (None, None) if clean is None else clean
            rows.append({**counted.facts(), "clean_offset": offset, "dirty_ratio": ratio})
    columns = [
        "partition", "first_offset", "next_offset", "bytes", "batches", "records",
        "p50=batch_bytes_p50", "max=batch_bytes_max", "codecs", "producers", "first_timestamp",
        "last_timestamp",
    ]  # fmt: skip
    if deep:
        columns += ["ratio=compression_ratio", "keys=distinct_keys_estimate", "null_keys"]
    if known:
        columns += ["clean to=clean_offset", "dirty=dirty_ratio"]
    shown = [{**row, "codecs": sorted(row["bytes_by_codec"])} for row in rows]
    show(chosen.state, shown, columns, all_as_json=rows)
