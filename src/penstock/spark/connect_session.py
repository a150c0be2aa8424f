"""A session of Spark Connect: a client of a Spark server that runs elsewhere.

    penstock.spark.session(master="sc://spark.internal:15002")
    penstock.spark.session(SparkSession.builder.remote("local[2]"))    a server in this process

Theory of operation. The client has no SparkContext and starts no Java: data frames are sent to the
server as plans, and Python functions, `foreachBatch` among them, as pickles that the server's own
Python runs. So it is the server that needs penstock, at the same version, and a session says so
if it is not there. What concerns the server's processes, such as the daemon of its Python workers,
can be set at their start only: such a setting of the caller's is refused by name, ours are left
out.

The source's facts cannot travel by the server's environment. They go with the class that is
registered: one made for this session, which sets them before it is used.
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
"""Of a server in this process: nothing but this machine can reach it."""
_CLIENTS_OWN: Final = ("spark.remote", "spark.master", "spark.app.name", "spark.api.mode")
_NEEDED: Final = {
    "grpc": "grpcio",
    "grpc_status": "grpcio-status",
    "google.rpc.error_details_pb2": "googleapis-common-protos",
    "pandas": "pandas",
    "zstandard": "zstandard",
}


class ConnectMissing(UnavailableError):
    """Spark Connect needs Python packages that are not there."""


class ServerSetting(InvalidError):
    """A setting that only the start of the Spark server can make."""

    code: ClassVar[str] = "invalid_config"


def connect(chosen: Mapping[str, Any], *, wait_seconds: float) -> SparkSession:
    """A client session with everything set that a client can set.

    Args:
        chosen: settings, `spark.remote` among them or in the environment.

    Raises:
        ConnectMissing: Python packages that Spark Connect needs.
        ServerSetting: a setting that the server does not take.
        WorkersUnready: the server's Python has no penstock, or another.
    """
    require_packages()
    url = str(chosen.get("spark.remote") or os.environ["SPARK_REMOTE"])
    given = dict(chosen)
    if not url.startswith("sc://"):  # a server in this process takes every setting
        require_java()
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        given = {**SETTINGS, **LOCAL_SERVER, **given}
    with warnings.catch_warnings():
        # Spark tries to set everything, and warns; what was refused is told below.
        warnings.filterwarnings("ignore", message="Failed to set ", category=UserWarning)
        spark = built(given)
    if url.startswith("sc://"):
        _set(spark, chosen, url)
    check_workers(spark, wait_seconds=wait_seconds)
    spark.dataSource.register(_source_with(facts(server_slots(spark))))
    listen(spark)
    return spark


def require_packages() -> None:
    """Say which Python packages of Spark Connect are missing.

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


def _source_with(told: Mapping[str, str]) -> type[DataSource]:
    kept = dict(told)

    # Not importable, so it is pickled with what it closes over.
    class Source(PenstockSource):
        def __init__(self, options: MutableMapping[str, str]) -> None:
            os.environ.update(kept)
            super().__init__(options)

    return Source
