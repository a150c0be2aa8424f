"""A Spark session set up for this source: `spark = penstock.spark.session()`.

Each setting is there for a measured reason (see the comments); one that the builder sets itself
is left alone. The source's own facts (parallelism, whether filters are pushed down) travel by
environment, because Spark hands a Python source its options and nothing else.
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import Any, Final

from pyspark import SparkContext
from pyspark.sql import SparkSession

from penstock.base.errors import UnavailableError
from penstock.spark.listener import GroupCommitListener
from penstock.spark.source import PUSHDOWN_VARIABLE, PenstockSource

PARALLELISM_VARIABLE: Final = "PENSTOCK_SPARK_PARALLELISM"
_PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"

SETTINGS: Final = {
    # Workers: no loopback TCP, our code pre-imported, never a new process per task.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": "penstock.spark.daemon",
    "spark.python.worker.reuse": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    _PUSHDOWN: "true",
    # Tables: what Delta readers agree on.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
}
_LOCAL_SETTINGS: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
}


class JavaMissing(UnavailableError):
    """Spark needs a Java runtime, and there is none."""


def session(
    builder: SparkSession.Builder | None = None,
    *,
    application: str = "penstock",
    cores: int | None = None,
    settings: dict[str, str] | None = None,
) -> SparkSession:
    """A session with everything set that the source and the sinks want.

    Args:
        builder: a builder of your own (master, jars, secrets); None runs on this machine.
        application: the name shown by Spark; for a builder that has none.
        cores: slots of a local session; None takes every core. Ignored with a builder.
        settings: Spark settings that win over ours.

    Raises:
        JavaMissing: no `java` on the path and no JAVA_HOME.
    """
    require_java()
    slots = cores or os.cpu_count() or 1
    wanted = {**SETTINGS, "spark.app.name": application}
    if builder is None:
        builder = SparkSession.builder.master(f"local[{slots}]")
        wanted |= _LOCAL_SETTINGS | {"spark.sql.shuffle.partitions": str(slots)}
    chosen: dict[str, Any] = getattr(builder, "_options", {})
    wanted = {name: value for name, value in wanted.items() if name not in chosen}
    for name, value in (wanted | (settings or {})).items():
        builder = builder.config(name, value)
    if str(chosen.get("spark.master", "local")).startswith("local"):
        # Workers must run this very Python; on a cluster its own setting names one.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    pushdown = str({**wanted, **chosen, **(settings or {})}.get(_PUSHDOWN, "false")).lower()
    facts = {PUSHDOWN_VARIABLE: str(int(pushdown == "true"))}
    inherits = SparkContext._active_spark_context is None
    if inherits:  # the Java process is yet to start, and hands our environment to the planners
        os.environ.update(facts | {PARALLELISM_VARIABLE: str(slots)})
    spark = builder.getOrCreate()
    if not inherits or spark.sparkContext.defaultParallelism != slots:
        facts[PARALLELISM_VARIABLE] = str(spark.sparkContext.defaultParallelism)
        spark.sparkContext.environment.update(facts)
        spark.dataSource.register(PenstockSource)
    _listen(spark)
    return spark


def require_java() -> None:
    """Say clearly that Java is missing, before Spark says it at length.

    Raises:
        JavaMissing: no `java` on the path and no JAVA_HOME.
    """
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") or (home and os.access(os.path.join(home, "bin", "java"), os.X_OK)):
        return
    raise JavaMissing(
        "Spark needs a Java runtime, version 17 or newer, and there is no `java` on the path: "
        "install one (Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME"
    )


def _listen(spark: SparkSession) -> None:
    # One listener a session: getOrCreate may hand out the same session again.
    if not hasattr(spark, "_penstock_listener"):
        listener = GroupCommitListener()
        spark.streams.addListener(listener)
        spark._penstock_listener = listener  # type: ignore[attr-defined]
