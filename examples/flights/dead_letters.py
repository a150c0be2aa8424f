"""Impossible rows: kept once in a table, then published once to a topic.

Theory of operation. The table is the truth: a batch's dead letters are appended to it in one
commit, and a replay of the batch changes nothing (`DeltaSink`). What is published is read back
from the table, never computed anew. Along with its letters a batch stores where the topic ended
before; so after a crash between table and checkpoint the replay looks at the topic from there
on, sees which letters are there already, by their source, and publishes the others.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from examples.flights.data import DEAD_LETTERS
from examples.flights.rules import SOURCE
from penstock.client import Client
from penstock.spark import DeltaSink

PARTITION: Final = 0  # one partition, so that one offset says where the topic ended


class DeadLetters:
    """Writes a batch's dead letters to the table and to the topic."""

    def __init__(self, table: Path, client: Client, application: str) -> None:
        self._sink = DeltaSink(str(table), application=application)
        self._client = client

    def write(self, rows: DataFrame, batch_id: int) -> int:
        """Take rows with their source, reason and value; returns how many went out."""
        topic_end = self._client.list_offsets(DEAD_LETTERS, "latest")[PARTITION]
        letters = rows.select(
            F.lit(batch_id).cast("bigint").alias("batch"),
            F.lit(topic_end).cast("bigint").alias("topic_end"),
            F.concat_ws("-", *SOURCE).alias("source"),
            *SOURCE,
            "reason",
            F.col("value").cast("string").alias("value"),
        )
        self._sink.write(letters, batch_id)
        return self._publish(batch_id)

    def _publish(self, batch_id: int) -> int:
        table = self._sink.open()
        if table is None:
            return 0
        letters = table.to_pyarrow_table(filters=[("batch", "=", batch_id)])
        if letters.num_rows == 0:
            return 0
        start = {PARTITION: letters["topic_end"][0].as_py()}
        there = self._client.read_arrow(DEAD_LETTERS, start=start, columns=("key",))["key"]
        keys = letters["source"].cast(pa.binary())
        missing = letters.filter(pc.invert(pc.is_in(keys, value_set=there.combine_chunks())))
        if missing.num_rows:
            missing = missing.sort_by([(name, "ascending") for name in SOURCE])
            self._client.write_arrow(DEAD_LETTERS, _records(missing), partition=PARTITION)
        return int(missing.num_rows)


def _records(letters: pa.Table) -> pa.Table:
    values = [
        json.dumps({"reason": letter["reason"], "source": letter["source"], "row": letter["value"]})
        for letter in letters.select(["reason", "source", "value"]).to_pylist()
    ]  # a loop, because dead letters are few
    return pa.table(
        {"key": letters["source"].cast(pa.binary()), "value": pa.array(values).cast(pa.binary())}
    )
