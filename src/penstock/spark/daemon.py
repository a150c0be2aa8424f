"""The parent of Spark's Python workers, with our code already in it.

Spark forks its Python workers from a daemon, and the stock daemon imports nothing first: every
worker then imports PyArrow and our code for itself, and collects garbage over all of it after
every task. Here both are done once before the first fork, and what was imported is frozen, so
that the collector never looks at it again. On two cores this took a trigger over 32 partitions
from 951 to 389 ms.

Set by `penstock.spark.session()` as `spark.python.daemon.module`.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Callable
from typing import Any, Final

# A fork must not meet other threads; OpenBLAS would start some when NumPy is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

CLOSED: Final = 1
"""Any code but 0: the worker waits until its socket is closed, and ends."""

_PRELOADED: Final = (
    "pyspark.worker",
    "penstock.spark.source",
    "penstock.spark.reading",
    "penstock.spark.object_reading",
    "penstock.spark.sink.staging",
)


def preload() -> None:
    """Import what workers need, and take it out of the garbage collector's sight."""
    import pyarrow as pa

    worker_modules = [name for name in sys.argv[1:2] if name.startswith("pyspark")]
    for name in (*_PRELOADED, *worker_modules):
        importlib.import_module(name)
    pa.array([0])  # imports pandas where it is installed; once here instead of in every worker
    gc.collect()
    gc.freeze()


def quietly(work: Callable[..., int]) -> Callable[..., int]:
    """A worker that ends without a traceback when Spark has closed its socket.

    Spark does so whenever it has enough rows (`limit`) or stops a query.
    """

    def worker(*arguments: Any) -> int:
        try:
            return work(*arguments)
        except BrokenPipeError:
            return CLOSED

    return worker


if __name__ == "__main__":
    from pyspark import daemon

    preload()
    daemon.worker = quietly(daemon.worker)
    daemon.manager()
