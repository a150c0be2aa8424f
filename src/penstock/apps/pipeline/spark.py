"""Spark sessions of the pipeline commands, on this machine or on a cluster."""

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

from penstock.apps.session import current
from penstock.base.errors import PenstockError, UnavailableError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.pipeline.spec import PipelineSpec

QUIET_LOG: Final = "log4j2.properties"
SUBMIT_OPTIONS: Final = "SPARK_SUBMIT_OPTS"
_LOCAL: Final = re.compile(r"local(?:\[(\d+|\*)\])?")
_QUIET: Final = {
    # What runs nothing has nothing to show.
    "spark.ui.enabled": "false",
    # It ends before Java's thorough compiler pays off: half of the processor's time.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
_RUN: Final = {
    # Interval after which an idle query is reported.
    "spark.sql.streaming.noDataProgressEventInterval": "1000",
    # Spark's default starts a process `readlink` for each look at a file that it renames, sixteen
    # in a batch. The state's directory is on this machine, where this one renames as safely.
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
    """No session could be started: no such master, no answer, a setting that Spark rejects."""

    code: ClassVar[str] = "invalid_config"


def parse_settings(texts: tuple[str, ...]) -> dict[str, str]:
    """Parse `--set spark.key=value` options.

    Raises:
        click.UsageError: one has no `=`, or its key is not Spark's.
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
    """Yield the session of a pipeline; stop it at the end.

    Args:
        master: a master of Spark's, as `spark://host:7077`; None uses every core of this machine.
        remote: a Spark Connect address instead, `sc://host:port`.
        settings: override those of the file.
        loud: leave Spark's own log as it is.

    Raises:
        SparkUnavailable, JavaMissing: no session can be started.
        SparkFailed: for errors of Spark within the block.
    """
    chosen = {**_RUN, **spec.spark, **settings}
    with _session(spec.name, master=master, remote=remote, settings=chosen, loud=loud) as spark:
        yield spark


@contextmanager
def looking_session(spec: PipelineSpec) -> Iterator[SparkSession]:
    """Yield a small session on this machine, which runs no pipeline."""
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
    """Yield the session of one job; stop it at the end.

    Raises:
        SparkUnavailable, JavaMissing: no session can be started.
        SparkFailed: for errors of Spark within the block.
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

    spark = _started(application, master=master, remote=remote, settings=settings, loud=loud)
    try:
        yield spark
    except (Py4JError, PySparkException) as error:
        raise SparkFailed(cause_of(error)) from error
    finally:
        with suppress(Py4JError, OSError):  # Java may be what failed
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
    from penstock.spark.spark_session import session

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
    """Suppress errors of Spark and PySpark that we report; Java must not have started."""
    from pyspark.logger import PySparkLogger

    for name in _PYSPARK_LOGGERS:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)
    logging.getLogger(_GATEWAY_LOGGER).setLevel(logging.CRITICAL + 1)
    warnings.filterwarnings("ignore", "PySpark does not yet", FutureWarning)
    options = os.environ.get(SUBMIT_OPTIONS, "")
    if _LOG_OPTION not in options:
        file = files("penstock.apps.pipeline") / QUIET_LOG
        os.environ[SUBMIT_OPTIONS] = f"{options} {_LOG_OPTION}={file}".strip()
