"""Parent process of Spark's Python workers, with Penstock's imports preloaded.

Spark forks its Python workers from a daemon that imports nothing, so every worker imports PyArrow
and our code and collects garbage over all of it after every task. This daemon imports both before
the first fork and freezes them: on two cores a trigger over 32 partitions took 389 ms instead of
951. `penstock.spark.session()` sets it as `spark.python.daemon.module`.
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
"""Exit code of a worker whose socket Spark closed; any code but 0."""

_RAISE_ON_FLUSH: Final = "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE"
"""Setting by which Spark's task workers, not its planners, raise errors on flush."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT_BLOCK_BYTES: Final = 32 << 20
_KEPT_BYTES: Final = 256 << 20
"""Most freed bytes that each worker's C library keeps."""

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
    """Import the modules that workers need, and exclude them from garbage collection."""
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
    """Make the C library keep freed memory for the next batch.

    By default it returns large blocks to the system at once, and page faults then take half of the
    time in which values of 100 B are read.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # of glibc
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _KEPT_BLOCK_BYTES)
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)


def quietly(work: Callable[..., int]) -> Callable[..., int]:
    """Run a worker, without a traceback if Spark closes its socket (`limit`, a stopped query)."""

    def worker(*arguments: Any) -> int:
        try:
            return work(*arguments)
        except _LEFT:
            return CLOSED

    return worker


def hush_planner() -> None:
    """Suppress the traceback of a planner process whose socket Spark closed.

    Spark's own daemon or a process beside a stream calls a data source for its schema, partitions
    and offsets. Spark leaves it after an idle minute or when a query ends, and would report an
    error.
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
