"""Exactly-once sink to the log: `LogSink` for `foreachBatch`, and `format("penstock")`.

Modules are imported by their own names: Spark's workers need only some of them.
"""
