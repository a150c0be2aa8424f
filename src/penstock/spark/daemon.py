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
from typing import Final

# A fork must not meet other threads; OpenBLAS would start some when NumPy is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

_PRELOADED: Final = ("pyspark.worker", "penstock.spark.source", "penstock.spark.reading")


def preload() -> None:
    """Import what workers need, and take it out of the garbage collector's sight."""
    worker_modules = [name for name in sys.argv[1:2] if name.startswith("pyspark")]
    for name in (*_PRELOADED, *worker_modules):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    from pyspark import daemon

    preload()
    daemon.manager()
