"""Spark session that is set up for this source: `spark = penstock.spark.session()`.

    session()                                        this machine, every core
    session(master="spark://host:7077")              a cluster; also yarn, k8s://…
    session(master="sc://host:15002")                a Spark Connect server (`connect_session.py`)
    session(SparkSession.builder.…)                  any of these, by a builder of your own

On a cluster, the workers need penstock in the Python that PYSPARK_PYTHON names (by default the path
of this Python). A first task checks that, and the session then counts the cluster's slots.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from pyspark import SparkContext
from pyspark.sql import SparkSession

from penstock.spark import java
from penstock.spark.connect_session import connect
from penstock.spark.errors import InvalidOption
from penstock.spark.session_settings import LOOPBACK_SETTINGS, SETTINGS, built, facts, listen
from penstock.spark.source import PenstockSource
from penstock.spark.spark_home import spark_home
from penstock.spark.workers import WAIT_SECONDS_DEFAULT, check_workers, stable_slots

_SHUFFLES: Final = "spark.sql.shuffle.partitions"
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""Variable that spark-submit sets; it has already chosen the master."""


def session(
    builder: SparkSession.Builder | None = None,
    *,
    master: str | None = None,
    application: str = "penstock",
    cores: int | None = None,
    settings: Mapping[str, str] | None = None,
    wait_seconds: float = WAIT_SECONDS_DEFAULT,
) -> SparkSession:
    """Return a session with all settings of the source and the sinks.

    Args:
        builder: builder of your own, for example with jars or secrets.
        master: Spark master, or `sc://…`; cannot be combined with a builder. None means this
            machine or, under spark-submit, its master.
        application: application name that Spark shows, unless the builder has one.
        cores: slots of a local session; None uses every core. Ignored with a builder or master.
        settings: Spark settings that take precedence over all others.
        wait_seconds: longest time until a first task has run on a cluster.

    Raises:
        JavaMissing: no `java` is on the path or in JAVA_HOME.
        WorkersUnready: the cluster's workers cannot run this package, or it has no workers.
        ConnectMissing, ServerSetting: as in `connect_session.connect`.
    """
    chosen = _chosen(builder, master, cores) | dict(settings or {})
    chosen.setdefault("spark.app.name", application)
    if is_connect_url(chosen):
        return connect(chosen, wait_seconds=wait_seconds)
    java.require_java()
    master = str(chosen.get("spark.master", ""))
    if master.startswith("local") or (not master and _SUBMITTED not in os.environ):
        return _local(chosen, cores or os.cpu_count() or 1)
    return _on_cluster(chosen, wait_seconds)


def is_connect_url(chosen: Mapping[str, Any]) -> bool:
    return "spark.remote" in chosen or (
        "SPARK_REMOTE" in os.environ and "spark.master" not in chosen
    )


def _chosen(
    builder: SparkSession.Builder | None, master: str | None, cores: int | None
) -> dict[str, Any]:
    if builder is not None and master is not None:
        raise InvalidOption("master", master, "cannot be combined with a builder; set it there")
    if master is not None:
        return {"spark.remote" if master.startswith("sc://") else "spark.master": master}
    if builder is not None:
        return dict(getattr(builder, "_options", {}))
    if _SUBMITTED in os.environ or "SPARK_REMOTE" in os.environ:
        return {}
    slots = cores or os.cpu_count() or 1
    return LOOPBACK_SETTINGS | {"spark.master": f"local[{slots}]", _SHUFFLES: str(slots)}


def _local(chosen: dict[str, Any], slots: int) -> SparkSession:
    # Workers must run this very Python.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    wanted = SETTINGS | chosen
    inherits = SparkContext._gateway is None
    if inherits:  # the Java process starts now and passes this environment to the planners
        os.environ.update(facts(slots), SPARK_HOME=str(spark_home()))
        java.start(wanted)
    spark = built(wanted)
    if not inherits or spark.sparkContext.defaultParallelism != slots:
        _configure(spark, facts(spark.sparkContext.defaultParallelism))
    listen(spark)
    return spark


def _on_cluster(chosen: dict[str, Any], wait_seconds: float) -> SparkSession:
    python = chosen.get("spark.pyspark.python")
    if python:
        os.environ["PYSPARK_PYTHON"] = str(python)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    wanted = SETTINGS | _driver_settings(str(chosen.get("spark.master", ""))) | chosen
    if SparkContext._gateway is None:
        os.environ.update(facts(os.cpu_count() or 1))
        java.start(wanted)
    spark = built(wanted)
    try:
        check_workers(spark, wait_seconds=wait_seconds)
    except BaseException:
        spark.stop()
        raise
    slots = stable_slots(spark)
    if not spark.sparkContext.getConf().contains(_SHUFFLES):
        spark.conf.set(_SHUFFLES, str(slots))
    _configure(spark, facts(slots))
    listen(spark)
    return spark


def _driver_settings(master: str) -> dict[str, str]:
    """Return settings that bind the driver to the loopback address if all masters are there."""
    if not master.startswith("spark://"):
        return {}
    hosts = {urlsplit(f"spark://{host}").hostname for host in master[len("spark://") :].split(",")}
    return LOOPBACK_SETTINGS if hosts <= _LOOPBACK else {}


def _configure(spark: SparkSession, environment: Mapping[str, str]) -> None:
    spark.sparkContext.environment.update(environment)
    spark.dataSource.register(PenstockSource)
