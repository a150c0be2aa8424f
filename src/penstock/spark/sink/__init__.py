"""Exactly-once sink to the log: `LogSink` for `foreachBatch`, and `format("penstock")`.

Import each class from its own module; Spark's workers need only some of the modules.
"""
