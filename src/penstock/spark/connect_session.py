"""Spark Connect session: a client of a Spark server that runs elsewhere.

    penstock.spark.session(master="sc://spark.internal:15002")
    penstock.spark.session(SparkSession.builder.remote("local[2]"))    a server in this process

The client starts no Java process. It sends data frames as plans and Python functions as pickles, so
the server's Python needs the same version of penstock; the session checks this.

Some settings of the server's processes can be set only when the server starts. If the caller passes
one, it is rejected by name; this package's own defaults among them are skipped. The data source is
registered as a class that carries its configuration.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping, MutableMapping
from typing import Any, ClassVar, Final

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from penstock.base.errors import InvalidError, UnavailableError
from penstock.base.urls import without_credentials
from penstock.spark.java import require_java
from penstock.spark.session_settings import (
    LOOPBACK_SETTINGS,
    SETTINGS,
    built,
    facts,
    listen,
)
from penstock.spark.source import PenstockSource
from penstock.spark.workers import check_workers, server_slots

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
    """Return a client session with every setting that a client can set.

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
