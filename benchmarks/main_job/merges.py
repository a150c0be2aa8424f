"""What is left of `upsert.toml` when the rows are there already: the table's own part.

    python -m benchmarks.main_job.merges RECORDS

Makes the newest row of each order in each batch of 2 M records, as `upsert.toml` has them, and
merges these into a table by the `deltalake` package. Prints CPU seconds of the merges alone.
"""

import sys
import tempfile
import time

import duckdb
from benchmarks.pipelines import orders
from deltalake import DeltaTable, write_deltalake

BATCH = 2_000_000
NEWEST = """
select id, sha256(customer) as customer, amount, "at"
from (select unnest(from_json(decode(value), '{"id":"bigint","customer":"varchar",
      "amount":"decimal(12,2)","at":"timestamptz"}')) from made)
where amount >= 0 qualify row_number() over (partition by id order by "at" desc) = 1
"""

records = int(sys.argv[1])
used = 0.0
with tempfile.TemporaryDirectory(prefix="penstock-bench-") as out, duckdb.connect() as database:
    for start in range(0, records, BATCH):
        database.register("made", orders(start, min(records, start + BATCH), total=records))
        rows = database.sql(NEWEST).to_arrow_table()
        before = time.process_time()
        if start == 0:
            write_deltalake(out, rows)
        else:
            # As the pipeline does: without streaming, files without these keys are skipped.
            merge = DeltaTable(out).merge(
                rows, "target.id = source.id", source_alias="source", target_alias="target",
                streamed_exec=False,
            )  # fmt: skip
            merge = merge.when_matched_update_all("source.at >= target.at")
            merge.when_not_matched_insert_all().execute()
        used += time.process_time() - before
        print(f"{start + BATCH:,} records, {used * 1e6 / (start + BATCH):.2f} CPU s/M", flush=True)
