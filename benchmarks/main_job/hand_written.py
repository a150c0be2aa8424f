"""The pipeline files beside this one, as one writes them by hand with Spark's Kafka connector.

    spark-submit hand_written.py SINK TRIGGER BOOTSTRAP TOPIC OUT CHECKPOINT

SINK is `table` (one append, by Delta's connector), `small` (many small ones), `upsert`, `topic`, or
`count`: no table, but a file with the number of rows in the place of its commit.
TRIGGER is `once` or `now`. Delta's connector for this Spark is not there yet, and that of the Spark
before can write a table but not read what is in one: where a table is added to or merged into, it
is by the `deltalake` package. At the end it prints what Spark says of its batches.
"""

import json
import sys
from pathlib import Path

from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.window import Window

SCHEMA = "id bigint, customer string, amount decimal(12,2), at timestamp, note string"

sink, trigger, bootstrap, topic, out, checkpoint = sys.argv[1:]


def append(batch: DataFrame, batch_id: int) -> None:
    writer = batch.write.format("delta").mode("append")
    writer.option("txnAppId", "orders").option("txnVersion", batch_id).save(out)


def append_small(batch: DataFrame, batch_id: int) -> None:
    there = DeltaTable.is_deltatable(out)
    last = DeltaTable(out).transaction_version("orders") if there else None
    if last is None or last < batch_id:
        done = CommitProperties(app_transactions=[Transaction("orders", batch_id)])
        write_deltalake(out, batch.toArrow(), mode="append", commit_properties=done)


def count(batch: DataFrame, batch_id: int) -> None:
    log = Path(out, "_delta_log")
    log.mkdir(parents=True, exist_ok=True)
    draft = log / f"{batch_id}.draft"
    draft.write_text(json.dumps({"add": {"stats": json.dumps({"numRecords": batch.count()})}}))
    draft.rename(log / f"{batch_id:020}.json")


def upsert(batch: DataFrame, batch_id: int) -> None:
    newest_first = Window.partitionBy("id").orderBy(F.desc("at"))
    numbered = batch.withColumn("number", F.row_number().over(newest_first))
    rows = numbered.where("number = 1").drop("number").toArrow()
    if not DeltaTable.is_deltatable(out):
        write_deltalake(out, rows)
        return
    merge = DeltaTable(out).merge(
        rows, "target.id = source.id", source_alias="source", target_alias="target"
    )
    merge.when_matched_update_all("source.at >= target.at").when_not_matched_insert_all().execute()


spark = SparkSession.builder.appName("orders").getOrCreate()
records = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("subscribe", topic)
    .option("startingOffsets", "earliest")
)
if sink == "upsert":  # the driver has the newest rows of a batch in memory
    records = records.option("maxOffsetsPerTrigger", 2_000_000)
orders = (
    records.load()
    .select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("order"))
    .select("order.*")
    .where("amount >= 0")
    .select("id", F.sha2("customer", 256).alias("customer"), "amount", "at")
)
if sink == "topic":
    writer = orders.select(F.to_json(F.struct("*")).alias("value")).writeStream.format("kafka")
    writer = writer.option("kafka.bootstrap.servers", bootstrap).option("topic", out)
else:
    write = {"table": append, "small": append_small, "upsert": upsert, "count": count}[sink]
    writer = orders.writeStream.foreachBatch(write)
if trigger == "once":
    writer = writer.trigger(availableNow=True)
query = writer.option("checkpointLocation", checkpoint).start()
query.awaitTermination()
print(json.dumps([json.loads(progress.json) for progress in query.recentProgress]))
