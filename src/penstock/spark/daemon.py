"""The parent of Spark's Python workers, with our code already in it.

Spark forks its Python workers from a daemon, and the stock daemon imports nothing first: every
worker then imports PyArrow and our code for itself, and collects garbage over all of it after
every task. Here both are done once before the first fork, and what was imported is frozen, so
that the collector never looks at it again. On two cores this took a trigger over 32 partitions
from 951 to 389 ms.

Set by `penstock.spark.session()` as `spark.python.daemon.module`.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import sys
import traceback
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

CLOSED: Final = 1
"""Any code but 0: the worker waits until its socket is closed, and ends."""

_RAISE_ON_FLUSH: Final = "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE"
"""Spark tells workers of tasks to raise what they cannot flush, and not those of its planner."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT_BLOCK_BYTES: Final = 32 << 20
_KEPT_BYTES: Final = 256 << 20
"""In each worker, of what it has used at the most."""

_LEFT: Final = (BrokenPipeError, ConnectionResetError)
_PRELOADED: Final = (
    "pyspark.worker",
    "penstock.spark.source",
    "penstock.spark.reading",
    "penstock.spark.object_chunks",
    "penstock.spark.sink.staging",
    "penstock.records.columnar.rows",
    "penstock.kernels.record_writing",
)


def preload() -> None:
    """Import what workers need, and take it out of the garbage collector's sight."""
    # A fork must not meet other threads; OpenBLAS would start some when NumPy is imported.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    import pyarrow as pa

    worker_modules = [name for name in sys.argv[1:2] if name.startswith("pyspark")]
    for name in (*_PRELOADED, *worker_modules):
        importlib.import_module(name)
    pa.array([0])  # imports pandas where it is installed; once here instead of in every worker
    gc.collect()
    gc.freeze()


def keep_memory() -> None:
    """Let the C library keep what is freed, for the next batch.

    It gives large blocks back to the system at once, and a page that is taken anew costs more than
    what is written into it: half of the time in which values of 100 B are read.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # of glibc
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _KEPT_BLOCK_BYTES)
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)


def quietly(work: Callable[..., int]) -> Callable[..., int]:
    """A worker that ends without a traceback when Spark has closed its socket.

    Spark does so whenever it has enough rows (`limit`) or stops a query.
    """

    def worker(*arguments: Any) -> int:
        try:
            return work(*arguments)
        except _LEFT:
            return CLOSED

    return worker


def hush_planner() -> None:
    """In a process that plans for Spark: no traceback when Spark has closed its socket.

    A worker of Spark's own daemon, or a process beside a stream, asks a data source for its schema,
    partitions and offsets, whatever daemon is set for the others. Spark leaves it after an idle
    minute or when a query ends, and what it would have answered is told as an error. A data source
    is what of ours runs in them.
    """
    main = sys.modules["__main__"]
    name = getattr(main.__spec__, "name", "")
    if name == "pyspark.daemon":
        os.environ[_RAISE_ON_FLUSH] = "1"
        vars(main)["traceback"] = SimpleNamespace(print_exc=lambda: _tell(*sys.exc_info()))
    elif name == "pyspark.sql.streaming.python_streaming_source_runner":
        sys.excepthook = _tell


def _tell(kind: Any, error: BaseException | None, trace: Any) -> None:
    if not isinstance(error, _LEFT):
        traceback.print_exception(kind, error, trace)


if __name__ == "__main__":
    from pyspark import daemon

    keep_memory()
    preload()
    os.environ[_RAISE_ON_FLUSH] = "1"
    daemon.worker = quietly(daemon.worker)
    daemon.manager()
