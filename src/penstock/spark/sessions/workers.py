"""Checks of the Python workers of a cluster or a Spark Connect server; number of task slots.

If a worker lacks this package, each task fails with a stack trace. A session on a cluster therefore
first runs one small task that imports the package, and reports what is missing. The same task
detects a cluster without free executors, for which Spark would wait endlessly. Executors register
one after the other, so the number of slots is used only after it has not changed for
`SETTLED_SECONDS`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from penstock.base.errors import InvalidError, UnavailableError
from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS, Clock

WAIT_SECONDS_DEFAULT: Final = 120.0
"""Longest time until a first task has run; a cluster first starts a Java process."""
SETTLED_SECONDS: Final = 1.0
SETTLING_SECONDS_MAX: Final = 10.0
POLL_SECONDS: Final = 0.1
RANGE_ROWS: Final = 100_000
"""Rows of a data frame that Spark divides over all slots."""
_WORKER_PYTHON: Final = "PYSPARK_PYTHON"


class WorkersUnready(UnavailableError):
    """Workers that cannot run this package, or a cluster without workers."""


class NotShipped(InvalidError):
    """Python file that cannot be shipped to the workers."""

    code: ClassVar[str] = "invalid_config"


def check_workers(spark: SparkSession, *, wait_seconds: float = WAIT_SECONDS_DEFAULT) -> None:
    """Run one task that imports this package, and compare its version with the driver's.

    Raises:
        WorkersUnready: the workers lack Python or penstock, have another version of one, or ran no
            task within `wait_seconds`.
    """
    tag = f"penstock-{SYSTEM_RANDOMNESS.uuid().hex}"
    mark, unmark, interrupt = _tagging(spark)
    late, ended = threading.Event(), threading.Event()

    def give_up() -> None:
        late.set()
        while not ended.is_set():  # repeated, because a job that has not begun cannot be cancelled
            interrupt(tag)
            ended.wait(POLL_SECONDS)

    timer = threading.Timer(wait_seconds, give_up)
    timer.daemon = True
    mark(tag)
    timer.start()
    try:
        found = _first_version(spark)
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
            f"the workers' Python has penstock {found}, but the driver's has {here}. Install the"
            " same version on both"
        )


def warm_up(spark: SparkSession) -> None:
    """Start the parent process of Python workers now, while the driver plans the first job.

    It imports for a second what workers need. A cluster has started its own for `check_workers`.
    """

    def run() -> None:
        with suppress(Exception):  # the first job reports the same error
            _first_version(spark)

    if (spark.sparkContext.master or "").startswith("local"):
        threading.Thread(target=run, name="warm-up", daemon=True).start()


def _first_version(spark: SparkSession) -> Any:
    """Return the version of this package that one worker imports."""
    versions = spark.range(1, numPartitions=1).mapInArrow(_versions, "version string")
    # `toArrow` would run the job in another thread, without this thread's tag.
    return versions.collect()[0]["version"]


def _tagging(spark: SparkSession) -> tuple[Callable[[str], Any], ...]:
    """Return three functions: tag jobs of this thread, remove the tag, and cancel jobs by tag.

    The last one may be called from another thread.
    """
    if is_connect(spark):
        return spark.addTag, spark.removeTag, spark.interruptTag
    # Tags of the session itself could be used only in the thread that set them.
    context = spark.sparkContext
    return context.addJobTag, context.removeJobTag, context.cancelJobsWithTag


def reason_of(trace: str) -> str:
    """Return a sentence with the cause of the first task's failure, from its stack trace."""
    python = os.environ.get(_WORKER_PYTHON, "python3")
    choose = f"or set {_WORKER_PYTHON} to another Python, at the same path on all machines"
    if "No module named 'penstock" in trace:
        return (
            f"the workers' Python ({python}) has no penstock. Install penstock[spark] for it on"
            f" every worker, {choose}"
        )
    if "No module named 'py" in trace:
        return f"the workers' Python ({python}) lacks pyarrow or pyspark. Install them, {choose}"
    if "Cannot run program" in trace:
        return f"a worker has no Python at {python}. Install it there, {choose}"
    if "PYTHON_VERSION_MISMATCH" in trace:
        return (
            f"the workers' Python ({python}) has another version than the driver's. Use the same"
            f" minor version of Python, {choose}"
        )
    return f"the workers' Python ({python}) failed its first task: {trace.strip()[:2000]}"


def slots(spark: SparkSession) -> int:
    """Return the number of tasks that can run at once now, for the option `parallelism`."""
    return server_slots(spark) if is_connect(spark) else spark.sparkContext.defaultParallelism


def stable_slots(spark: SparkSession, clock: Clock = SYSTEM_CLOCK) -> int:
    """Return the number of tasks that can run at once, after no more executors register.

    The number must not change for `SETTLED_SECONDS`; the wait ends after `SETTLING_SECONDS_MAX`.
    """
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
    """Return the number of tasks that a Spark Connect server can run at once.

    It is the number of partitions into which the server splits a range of rows.
    """
    parts = spark.range(RANGE_ROWS).select(F.spark_partition_id().alias("part"))
    return int(parts.agg(F.max("part").alias("part")).toArrow()["part"][0].as_py()) + 1


def ship(spark: SparkSession, paths: Sequence[str | os.PathLike[str]]) -> None:
    """Make Python files importable on the workers under their names; repeated calls are harmless.

    Spark pickles functions of an imported module by reference, so the workers must be able to
    import the module.

    Args:
        spark: session whose workers get the files.
        paths: files that end with `.py`, `.zip` or `.egg`.

    Raises:
        NotShipped: a path is not such a file, or two files have the same name.
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
            raise NotShipped(f"{given} must be an existing file that ends with .py, .zip or .egg")
        known = names.setdefault(file.name, file)
        if known != file:
            raise NotShipped(
                f"{known} and {file} have the same name, but workers find modules by name. Rename"
                " one of them"
            )
        yield file


def _no_task(wait_seconds: float) -> str:
    return (
        f"no task ran in {wait_seconds:g} s, because the cluster has no executor for this"
        " application. Check that its workers are running, have free cores and memory"
        " (spark.cores.max, spark.executor.memory), and can reach the driver's address"
        " (spark.driver.host)"
    )


def _versions(batches: Iterator[Any]) -> Iterator[Any]:
    import pyarrow as pa

    import penstock.spark.reads.reading
    import penstock.spark.sessions.source  # noqa: F401

    yield from ()
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"version": [metadata.version("penstock")]})
