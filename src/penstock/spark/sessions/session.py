"""Spark session that is set up for this source: `spark = penstock.spark.session()`.

    session()                                        this machine, every core
    session(master="spark://host:7077")              a cluster; also yarn, k8s://…
    session(master="sc://host:15002")                a Spark Connect server
    session(SparkSession.builder.…)                  any of these, with a builder of your own

On a cluster, the workers need penstock in the Python that PYSPARK_PYTHON names (by default the path
of this Python). A first task checks that, and the session then counts the cluster's slots.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping, MutableMapping
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from penstock.base.errors import InvalidError, UnavailableError
from penstock.base.urls import without_credentials
from penstock.spark.errors import InvalidOption
from penstock.spark.reads.listener import GroupCommitListener
from penstock.spark.sessions import java
from penstock.spark.sessions.java import require_java, spark_home
from penstock.spark.sessions.source import PenstockSource
from penstock.spark.sessions.workers import (
    WAIT_SECONDS_DEFAULT,
    check_workers,
    server_slots,
    stable_slots,
)

# Settings for every Spark session: local, on a cluster, or with Spark Connect.
#
# Settings of the caller take precedence. The source's parallelism is passed in an environment
# variable, because Spark passes only its options to a Python source.


PARALLELISM_VARIABLE: Final = "PENSTOCK_SPARK_PARALLELISM"

SETTINGS: Final = {
    # Workers: no loopback TCP, our code pre-imported, never a new process per task.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": "penstock.spark.reads.daemon",
    "spark.python.worker.reuse": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Tables: forms that all Delta readers support.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
}
LOOPBACK_SETTINGS: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
}


def listen(spark: SparkSession) -> None:
    """Add the listener that commits consumer group offsets, once per session."""
    if "_penstock_listener" not in vars(spark):
        listener = GroupCommitListener()
        spark.streams.addListener(listener)
        spark._penstock_listener = listener  # type: ignore[attr-defined]


def facts(slots: int) -> dict[str, str]:
    return {PARALLELISM_VARIABLE: str(slots)}


def built(chosen: Mapping[str, Any]) -> SparkSession:
    builder = SparkSession.builder
    for name, value in chosen.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


# Spark Connect session: a client of a Spark server that runs elsewhere.
#
#     penstock.spark.session(master="sc://spark.internal:15002")
#     penstock.spark.session(SparkSession.builder.remote("local[2]"))    a server in this process
#
# The client starts no Java process. It sends data frames as plans and Python functions as pickles,
# so the server's Python needs the same version of penstock; the session checks this.
#
# Some settings of the server's processes can be set only when the server starts. If the caller
# passes one, it is rejected by name; this package's own defaults among them are skipped. The data
# source is registered as a class that carries its configuration.


LOCAL_SERVER: Final = {"spark.connect.grpc.binding.address": "127.0.0.1", **LOOPBACK_SETTINGS}
"""Settings of a server in this process, which only this machine can reach."""
_CLIENTS_OWN: Final = ("spark.remote", "spark.master", "spark.app.name", "spark.api.mode")
_NEEDED: Final = {
    "grpc": "grpcio",
    "grpc_status": "grpcio-status",
    "google.rpc.error_details_pb2": "googleapis-common-protos",
    "pandas": "pandas",
    "zstandard": "zstandard",
}


class ConnectMissing(UnavailableError):
    """Missing Python packages of Spark Connect."""


class ServerSetting(InvalidError):
    """Setting that has to be set when the Spark server starts."""

    code: ClassVar[str] = "invalid_config"


def connect(chosen: Mapping[str, Any], *, wait_seconds: float) -> SparkSession:
    """Return a session of a Spark Connect server, with the settings that a client can set.

    Args:
        chosen: the caller's settings. `spark.remote`, or else the variable SPARK_REMOTE, is the
            server.
        wait_seconds: longest time until a first task has run.

    Raises:
        ConnectMissing: Python packages of Spark Connect are missing.
        ServerSetting: a setting can be set only when the server starts.
        WorkersUnready: the server's Python has no penstock, or another version.
    """
    require_packages()
    url = str(chosen.get("spark.remote") or os.environ["SPARK_REMOTE"])
    given = dict(chosen)
    if not url.startswith("sc://"):  # a server in this process takes every setting
        require_java()
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        given = {**SETTINGS, **LOCAL_SERVER, **given}
    with warnings.catch_warnings():
        # Spark warns about each setting that it cannot set; `_set` reports these instead.
        warnings.filterwarnings("ignore", message="Failed to set ", category=UserWarning)
        spark = built(given)
    if url.startswith("sc://"):
        _set(spark, chosen, url)
    check_workers(spark, wait_seconds=wait_seconds)
    spark.dataSource.register(_source_with(facts(server_slots(spark))))
    listen(spark)
    return spark


def require_packages() -> None:
    """Check that the Python packages of Spark Connect are installed.

    Raises:
        ConnectMissing: packages are missing; the message has the command to install them.
    """
    missing: list[str] = []
    for module, package in _NEEDED.items():
        try:
            __import__(module)
        except ImportError:
            missing.append(package)
    if missing:
        raise ConnectMissing(
            f"Python packages of Spark Connect are missing: {', '.join(missing)}. Install them: "
            "pip install 'pyspark[connect]'"
        )


def _set(spark: SparkSession, chosen: Mapping[str, Any], url: str) -> None:
    server = without_credentials(url).partition(";")[0]  # parameters may have a token
    for name, value in chosen.items():
        if name in _CLIENTS_OWN or spark.conf.isModifiable(name):
            continue
        if spark.conf.get(name, None) != str(value):
            spark.stop()
            raise ServerSetting(
                f"setting {name} = {value!r} can be set only when the Spark server {server} starts."
                f" Start the server with --conf {name}={value}, or omit the setting"
            )
    for name, value in SETTINGS.items():
        if name not in chosen and spark.conf.isModifiable(name):
            spark.conf.set(name, value)


def _source_with(environment: Mapping[str, str]) -> type[DataSource]:
    kept = dict(environment)

    # A local class cannot be imported, so pickle includes it with the variables it closes over.
    class Source(PenstockSource):
        def __init__(self, options: MutableMapping[str, str]) -> None:
            os.environ.update(kept)
            super().__init__(options)

    return Source


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
        ConnectMissing, ServerSetting: as in `connect`.
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
        java.start(wanted, slots=slots)
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
    """Return Spark settings that bind the driver to the loopback address.

    They are returned only if all standalone masters in the URL have loopback addresses.
    """
    if not master.startswith("spark://"):
        return {}
    hosts = {urlsplit(f"spark://{host}").hostname for host in master[len("spark://") :].split(",")}
    return LOOPBACK_SETTINGS if hosts <= _LOOPBACK else {}


def _configure(spark: SparkSession, environment: Mapping[str, str]) -> None:
    spark.sparkContext.environment.update(environment)
    spark.dataSource.register(PenstockSource)
