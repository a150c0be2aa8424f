"""Bare Spark programs: the work of the pipeline files beside this one without a table.

    python no_sink.py SINK MEMORY BOOTSTRAP ADMIN TOPIC CHECKPOINT

The source opens the values; Spark leaves rows out, masks customers, makes JSON of the rest where
SINK is `topic`, and discards all of it; where SINK is `files` it writes plain Parquet files. At the
end it prints what Spark reports of its batches.
"""

import json
import sys

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from penstock.spark import session

SCHEMA = "id bigint, customer string, amount decimal(12,2), at timestamp, note string"

sink, memory, bootstrap, admin, topic, checkpoint = sys.argv[1:]


def throw_away(batch: DataFrame, batch_id: int) -> None:
    if sink == "files":
        batch.write.parquet(f"{checkpoint}-files/{batch_id}")
    else:
        batch.write.format("noop").mode("overwrite").save()


spark = session(cores=2, settings={"spark.driver.memory": memory})
options = {
    "bootstrap": bootstrap,
    "penstock.admin.url": admin,
    "subscribe": topic,
    "startingOffsets": "earliest",
    "columns": "partition",
    "valueFormat": "json",
    "valueSchema": StructType.fromDDL(SCHEMA).json(),
    "valueFields": json.dumps(["id", "customer", "amount", "at"]),
}
records = spark.readStream.format("penstock").options(**options).load()
orders = (
    records.select("_value.*")
    .where("amount >= 0")
    .select("id", F.sha2("customer", 256).alias("customer"), "amount", "at")
)
if sink == "topic":
    orders = orders.select(F.to_json(F.struct("*")).alias("value"))
writer = orders.writeStream.foreachBatch(throw_away).trigger(availableNow=True)
query = writer.option("checkpointLocation", checkpoint).start()
query.awaitTermination()
print(json.dumps([json.loads(progress.json) for progress in query.recentProgress]))
