"""Spark sessions of commands, on this machine or on a cluster."""

from __future__ import annotations

import logging
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.resources import files
from typing import TYPE_CHECKING, ClassVar, Final

import click

from penstock.apps.client.session import current
from penstock.base.errors import PenstockError, UnavailableError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.pipeline.spec import PipelineSpec

QUIET_LOG: Final = "log4j2.properties"
SUBMIT_OPTIONS: Final = "SPARK_SUBMIT_OPTS"
_LOCAL: Final = re.compile(r"local(?:\[(\d+|\*)\])?")
_QUIET: Final = {
    # A session that runs no pipeline needs no web page.
    "spark.ui.enabled": "false",
    # The process ends before Java's optimising compiler pays off, which takes half of the CPU time.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
_RUN: Final = {
    # Interval after which an idle query is reported.
    "spark.sql.streaming.noDataProgressEventInterval": "1000",
    # Spark's default starts a process `readlink` for each file that it renames, sixteen in a batch.
    # The state directory is on this machine, where the renames of this class are as safe.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
_LOG_OPTION: Final = "-Dlog4j2.configurationFile"
_GATEWAY_LOGGER: Final = "py4j"
_PYSPARK_LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


class SparkFailed(PenstockError):
    """Spark failed; the message is the innermost cause."""


class SparkUnavailable(UnavailableError):
    """No Spark session could be started: wrong master, no answer, or a rejected setting."""

    code: ClassVar[str] = "invalid_config"


master_option: Final = click.option(
    "--master", metavar="URL",
    help="Spark master, such as spark://host:7077. Default: all cores of this machine.",
)  # fmt: skip


def parse_settings(texts: tuple[str, ...]) -> dict[str, str]:
    """Parse `--set spark.key=value` options.

    Raises:
        click.UsageError: an option has no `=`, or its key does not begin with `spark.`.
    """
    settings: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip().startswith("spark."):
            raise click.UsageError(f"--set {text}: must read spark.key=value")
        settings[name.strip()] = value.strip()
    return settings


@contextmanager
def running_session(
    spec: PipelineSpec,
    *,
    master: str | None,
    remote: str | None,
    settings: Mapping[str, str],
    loud: bool,
) -> Iterator[SparkSession]:
    """Yield the Spark session of a pipeline, and stop it at the end of the context.

    Args:
        master: a Spark master, as `spark://host:7077`; None uses all cores of this machine.
        remote: a Spark Connect server instead, as `sc://host:port`.
        settings: Spark settings that override those of the file.
        loud: whether Spark writes its own log.

    Raises:
        SparkUnavailable, JavaMissing: no session can be started.
        SparkFailed: Spark failed within the context.
    """
    chosen = {**_RUN, **spec.spark, **settings}
    with _session(spec.name, master=master, remote=remote, settings=chosen, loud=loud) as spark:
        yield spark


@contextmanager
def looking_session(spec: PipelineSpec) -> Iterator[SparkSession]:
    """Yield a small local session, in which a pipeline is checked but not run."""
    settings = {**_QUIET, **spec.spark}
    name = spec.name
    with (
        _session(name, master="local[1]", remote=None, settings=settings, loud=False) as spark,
        current().working(f"Spark checks pipeline {name}"),
    ):
        yield spark


@contextmanager
def job_session(
    application: str, *, master: str | None, settings: Mapping[str, str]
) -> Iterator[SparkSession]:
    """Yield a Spark session for one job, and stop it at the end of the context.

    Raises:
        SparkUnavailable, JavaMissing: no session can be started.
        SparkFailed: Spark failed within the context.
    """
    with _session(application, master=master, remote=None, settings=settings, loud=False) as spark:
        yield spark


@contextmanager
def _session(
    application: str,
    *,
    master: str | None,
    remote: str | None,
    settings: Mapping[str, str],
    loud: bool,
) -> Iterator[SparkSession]:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    from penstock.spark.pipeline.causes import cause_of
    from penstock.spark.sessions.java import stop_accumulators

    spark = _started(application, master=master, remote=remote, settings=settings, loud=loud)
    try:
        yield spark
    except (Py4JError, PySparkException) as error:
        raise SparkFailed(cause_of(error)) from error
    finally:
        stop_accumulators()
        with suppress(Py4JError, OSError):  # Java itself may have failed
            spark.stop()


def _started(
    application: str,
    *,
    master: str | None,
    remote: str | None,
    settings: Mapping[str, str],
    loud: bool,
) -> SparkSession:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from penstock.spark.pipeline.causes import cause_of
    from penstock.spark.sessions.session import session

    if not loud:
        _hush()
    local = _LOCAL.fullmatch(master or "local[*]")
    builder = None
    cores = None
    if remote is not None:
        builder = SparkSession.builder.remote(remote)
    elif local is None:
        builder = SparkSession.builder.master(master or "")
    else:
        cores = None if local[1] == "*" else int(local[1] or 1)
    try:
        with current().working("starting Spark"):
            return session(builder, application=application, cores=cores, settings=dict(settings))
    except PenstockError:
        raise
    except (Py4JError, PySparkException, RuntimeError, ValueError, OSError) as error:
        where = remote or master or "local"
        raise SparkUnavailable(f"no Spark session at {where}: {cause_of(error)}") from error


def _hush() -> None:
    """Suppress log lines of Spark and PySpark about errors that the command reports itself.

    Java must not have started yet.
    """
    from pyspark.logger import PySparkLogger

    for name in _PYSPARK_LOGGERS:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)
    logging.getLogger(_GATEWAY_LOGGER).setLevel(logging.CRITICAL + 1)
    warnings.filterwarnings("ignore", "PySpark does not yet", FutureWarning)
    options = os.environ.get(SUBMIT_OPTIONS, "")
    if _LOG_OPTION not in options:
        file = files("penstock.apps.pipeline") / QUIET_LOG
        os.environ[SUBMIT_OPTIONS] = f"{options} {_LOG_OPTION}={file}".strip()
