"""A Spark driver that copies a topic through three sinks, and dies once in the middle.

Each batch of one query goes through Spark's own Kafka sink and through Penstock's, one after the
other; before Spark's checkpoint has batch 1, the process kills itself, once. Another query writes
through the connector's streaming sink. Run again it goes on from the checkpoints, as Spark does.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from penstock.spark import LogSink, session

PER_BATCH = 100


def main() -> None:
    """Arguments: jars, a folder, admin URL, topic; copies go to `<topic>-<sink>`. The connector's
    options for the brokers come by standard input, as JSON.
    """
    jars, folder, admin_url, topic = sys.argv[1:]
    brokers: dict[str, str] = json.load(sys.stdin)
    mark = Path(folder) / "died"
    builder = SparkSession.builder.master("local[2]").config("spark.jars", jars)
    local = {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.sql.shuffle.partitions": "2",
    }
    spark = session(builder, settings=local)
    ours = LogSink(
        application=f"{topic}-ours",
        topic=f"{topic}-ours",
        bootstrap=brokers["kafka.bootstrap.servers"],
        admin_url=admin_url,
    )

    def both(batch: DataFrame, batch_id: int) -> None:
        writer = batch.write.format("kafka").options(**brokers)
        writer.option("topic", f"{topic}-connector").save()
        ours(batch, batch_id)
        if batch_id == 1 and not mark.exists():
            mark.touch()
            os.killpg(0, signal.SIGKILL)

    stream = (
        spark.readStream.format("kafka")
        .options(**brokers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(PER_BATCH))
        .load()
        .select("key", "value")
    )
    streaming = (
        stream.writeStream.format("kafka")
        .options(**brokers)
        .option("topic", f"{topic}-stream")
        .option("checkpointLocation", f"{folder}/stream")
    )
    streaming.trigger(availableNow=True).start().awaitTermination()
    copied = stream.writeStream.foreachBatch(both).option("checkpointLocation", f"{folder}/both")
    copied.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
