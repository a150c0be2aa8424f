"""`spark_pipelines` with values of 1 KiB, where bytes decide more than records do."""

from __future__ import annotations

from benchmarks.harness import Row
from benchmarks.spark_pipelines import measure_size

VALUE_BYTES = 1024


def measure(*, quick: bool = False) -> list[Row]:
    """Every part with values of 1 KiB."""
    return measure_size(VALUE_BYTES, quick=quick)
