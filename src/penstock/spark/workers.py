"""Checks of the Python workers of a cluster or a Spark server: their packages and their number.

A worker without our package fails each task with a trace. So a session on a cluster first runs one
small task that imports our modules, and reports what is missing. The same job detects a cluster
without free executors, where Spark waits without end. Executors register one after the other, so
their number is used once it has been stable for a moment.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from penstock.base.errors import InvalidError, UnavailableError
from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS, Clock

WAIT_SECONDS_DEFAULT: Final = 120.0
"""Longest time until a first task has run: a cluster starts a Java process for it."""
SETTLED_SECONDS: Final = 1.0
SETTLING_SECONDS_MAX: Final = 10.0
POLL_SECONDS: Final = 0.1
RANGE_ROWS: Final = 100_000
"""Rows of a range that Spark splits over all slots."""
_WORKER_PYTHON: Final = "PYSPARK_PYTHON"


class WorkersUnready(UnavailableError):
    """Workers that cannot run our code, or none at all."""


class NotShipped(InvalidError):
    """Python file that cannot be shipped to the workers."""

    code: ClassVar[str] = "invalid_config"


def check_workers(spark: SparkSession, *, wait_seconds: float = WAIT_SECONDS_DEFAULT) -> None:
    """Run one task that imports our code.

    Raises:
        WorkersUnready: Python or penstock is missing or has another version; or no task ran in
            `wait_seconds`.
    """
    tag = f"penstock-{SYSTEM_RANDOMNESS.uuid().hex}"
    mark, unmark, interrupt = _tagging(spark)
    late, ended = threading.Event(), threading.Event()

    def give_up() -> None:
        late.set()
        while not ended.is_set():  # what Spark has not begun yet cannot be ended
            interrupt(tag)
            ended.wait(POLL_SECONDS)

    timer = threading.Timer(wait_seconds, give_up)
    timer.daemon = True
    mark(tag)
    timer.start()
    try:
        versions = spark.range(1, numPartitions=1).mapInArrow(_versions, "version string")
        # Not toArrow: its job runs in a thread that has not our tag.
        found = versions.collect()[0]["version"]
    except Exception as error:
        raise WorkersUnready(
            _no_task(wait_seconds) if late.is_set() else reason_of(str(error))
        ) from error
    finally:
        ended.set()
        timer.cancel()
        unmark(tag)
    here = metadata.version("penstock")
    if found != here:
        raise WorkersUnready(
            f"the workers' Python has penstock {found} and the driver's has {here}:"
            " install the same on both"
        )


def _tagging(spark: SparkSession) -> tuple[Callable[[str], Any], ...]:
    """Return how jobs of this thread are tagged, untagged, and ended from another thread."""
    if is_connect(spark):
        return spark.addTag, spark.removeTag, spark.interruptTag
    # A session's own tags are known in the thread that set them only.
    context = spark.sparkContext
    return context.addJobTag, context.removeJobTag, context.cancelJobsWithTag


def reason_of(trace: str) -> str:
    """Return the reason for the failure of a first task, in a sentence."""
    python = os.environ.get(_WORKER_PYTHON, "python3")
    choose = f"or name another with {_WORKER_PYTHON}, at one path on driver and workers"
    if "No module named 'penstock" in trace:
        return (
            f"the workers' Python ({python}) has no penstock: install penstock[spark] for it on"
            f" every worker, {choose}"
        )
    if "No module named 'py" in trace:
        return f"the workers' Python ({python}) lacks pyarrow or pyspark: install them, {choose}"
    if "Cannot run program" in trace:
        return f"a worker has no Python at {python}: install it there, {choose}"
    if "PYTHON_VERSION_MISMATCH" in trace:
        return (
            f"the workers' Python ({python}) has another version than the driver's: use one minor"
            f" version of Python for both, {choose}"
        )
    return f"the workers' Python ({python}) failed its first task: {trace.strip()[:2000]}"


def slots(spark: SparkSession) -> int:
    """Return how many tasks run at once now, for a stream's option `parallelism`."""
    return server_slots(spark) if is_connect(spark) else spark.sparkContext.defaultParallelism


def stable_slots(spark: SparkSession, clock: Clock = SYSTEM_CLOCK) -> int:
    """Return how many tasks run at once, when no more executors register."""
    context = spark.sparkContext
    begin = since = clock.monotonic()
    found = context.defaultParallelism
    while True:
        now = clock.monotonic()
        if now - since >= SETTLED_SECONDS or now - begin >= SETTLING_SECONDS_MAX:
            return found
        threading.Event().wait(POLL_SECONDS)
        if context.defaultParallelism != found:
            found, since = context.defaultParallelism, clock.monotonic()


def server_slots(spark: SparkSession) -> int:
    """Return `stable_slots` of a Spark Connect server, by the partitions of a range."""
    parts = spark.range(RANGE_ROWS).select(F.spark_partition_id().alias("part"))
    return int(parts.agg(F.max("part").alias("part")).toArrow()["part"][0].as_py()) + 1


def ship(spark: SparkSession, paths: Sequence[str | os.PathLike[str]]) -> None:
    """Make Python files importable on the workers by their names; repeating it is harmless.

    Functions of a module that the driver imported reach the workers by reference, so the workers
    must be able to import it.

    Args:
        paths: `.py`, `.zip` or `.egg`.

    Raises:
        NotShipped: a path that is no such file, or two files of one name.
    """
    files = list(_files(paths))
    if is_connect(spark):
        for file in files:
            spark.addArtifacts(str(file), pyfile=True)
        return
    for file in files:
        spark.sparkContext.addPyFile(str(file))


def is_connect(spark: Any) -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect")


def _files(paths: Iterable[str | os.PathLike[str]]) -> Iterator[Path]:
    names: dict[str, Path] = {}
    for given in paths:
        file = Path(given).resolve()
        if file.suffix not in {".py", ".zip", ".egg"} or not file.is_file():
            raise NotShipped(f"{given}: not a Python file (.py, .zip, .egg) that workers can load")
        known = names.setdefault(file.name, file)
        if known != file:
            raise NotShipped(
                f"{known} and {file} have one name: workers find modules by it, rename one"
            )
        yield file


def _no_task(wait_seconds: float) -> str:
    return (
        f"no task ran in {wait_seconds:g} s: the cluster has no executor for this application."
        " Look whether its workers are up and have cores and memory free"
        " (spark.cores.max, spark.executor.memory), and reach the driver's address"
        " (spark.driver.host)"
    )


def _versions(batches: Iterator[Any]) -> Iterator[Any]:
    import pyarrow as pa

    import penstock.spark.reading
    import penstock.spark.source  # noqa: F401

    yield from ()
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"version": [metadata.version("penstock")]})
