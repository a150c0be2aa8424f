"""Spark Connect session: a client of a Spark server that runs elsewhere.

    penstock.spark.session(master="sc://spark.internal:15002")
    penstock.spark.session(SparkSession.builder.remote("local[2]"))    a server in this process

The client starts no Java. It sends data frames as plans and Python functions as pickles, so the
server's Python needs the same version of penstock; a session checks that. Settings of the server's
processes can only be set when the server starts: the caller's are rejected by name, ours omitted.
The source's configuration travels with the registered class, made for this session.
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
"""Address of a server in this process, reachable from this machine only."""
_CLIENTS_OWN: Final = ("spark.remote", "spark.master", "spark.app.name", "spark.api.mode")
_NEEDED: Final = {
    "grpc": "grpcio",
    "grpc_status": "grpcio-status",
    "google.rpc.error_details_pb2": "googleapis-common-protos",
    "pandas": "pandas",
    "zstandard": "zstandard",
}


class ConnectMissing(UnavailableError):
    """Python packages of Spark Connect are not installed."""


class ServerSetting(InvalidError):
    """Setting that can only be set when the Spark server starts."""

    code: ClassVar[str] = "invalid_config"


def connect(chosen: Mapping[str, Any], *, wait_seconds: float) -> SparkSession:
    """Return a client session with every setting that a client can set.

    Args:
        chosen: settings, `spark.remote` among them or in the environment.

    Raises:
        ConnectMissing: Python packages of Spark Connect are missing.
        ServerSetting: the server does not accept a setting.
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
        # Spark tries to set everything, and warns; rejected settings are reported below.
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
        ConnectMissing: with the command that installs them.
    """
    missing: list[str] = []
    for module, package in _NEEDED.items():
        try:
            __import__(module)
        except ImportError:
            missing.append(package)
    if missing:
        raise ConnectMissing(
            f"Spark Connect needs the Python packages {', '.join(missing)}: "
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
                f"setting {name} = {value!r} belongs to the Spark server {server}, which runs"
                f" already: start the server with --conf {name}={value}, or leave it out here"
            )
    for name, value in SETTINGS.items():
        if name not in chosen and spark.conf.isModifiable(name):
            spark.conf.set(name, value)


def _source_with(environment: Mapping[str, str]) -> type[DataSource]:
    kept = dict(environment)

    # Not importable, so it is pickled with what it closes over.
    class Source(PenstockSource):
        def __init__(self, options: MutableMapping[str, str]) -> None:
            os.environ.update(kept)
            super().__init__(options)

    return Source
