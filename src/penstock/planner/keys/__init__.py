"""Key plan: how a topic's keys load its partitions, and what salting or more partitions change.

    batches (Arrow) ──> Census ──> KeyCounts ──> skew, hot keys ──┐
                          ├── loads by partition count ───────────┼──> Plan
                          └── salted loads ───────────────────────┘

`inputs.py` declares the inputs. `census.py` counts records of Arrow batches with bounded memory.
Counts are exact up to a number of distinct keys. Beyond it they come from a Misra-Gries summary and
HyperLogLog. `plan.py` computes the skew and the effect of salting, and makes the plan. There is no
Python loop over records.

Source: the log and queue article (hot partition, scaling axes); Kafka: the default partitioner.
"""
