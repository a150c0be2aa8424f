"""Parent process of Spark's Python workers, with Penstock's modules already imported.

By default Spark forks its Python workers from a daemon that imports nothing. Every worker then
imports PyArrow and this package, and its garbage collector scans all of it after every task. This
daemon imports both before the first fork and excludes them from garbage collection. On two cores, a
trigger over 32 partitions took 389 ms instead of 951. `penstock.spark.session()` configures the
daemon as `spark.python.daemon.module`.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
import traceback
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

from penstock.base.system import keep_memory

CLOSED: Final = 1
"""Exit code of a worker whose socket Spark closed; Spark requires a code other than 0."""

_RAISE_ON_FLUSH: Final = "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE"
"""Variable that makes a worker raise errors of flushing; Spark sets it for task workers only."""

_LEFT: Final = (BrokenPipeError, ConnectionResetError)
_PRELOADED: Final = (
    "pyspark.worker",
    "penstock.spark.sessions.source",
    "penstock.spark.reads.reading",
    "penstock.spark.reads.object_chunks",
    "penstock.spark.sink.staging",
    "penstock.records.columnar.rows",
    "penstock.kernels.record_writing",
)


def preload() -> None:
    """Import the modules that workers need, and exclude them from garbage collection."""
    # Forking is unsafe with other threads; OpenBLAS would start some when NumPy is imported.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    import pyarrow as pa

    worker_modules = [name for name in sys.argv[1:2] if name.startswith("pyspark")]
    for name in (*_PRELOADED, *worker_modules):
        importlib.import_module(name)
    pa.array([0])  # imports pandas where it is installed; once here instead of in every worker
    gc.collect()
    gc.freeze()


def quietly(work: Callable[..., int]) -> Callable[..., int]:
    """Return a worker function that exits without a traceback if Spark closes its socket.

    Spark does so after `limit`, or when a query is stopped.
    """

    def worker(*arguments: Any) -> int:
        try:
            return work(*arguments)
        except _LEFT:
            return CLOSED

    return worker


def hush_planner() -> None:
    """Suppress the traceback of a planner process whose socket Spark closed.

    A planner process calls a data source for its schema, partitions and offsets. Spark closes its
    socket after an idle minute or when a query ends, and the process would print an error.
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
