"""Command `penstock pipeline run`: runs a pipeline until it ends or is stopped.

On a terminal it shows a table that is updated; otherwise it writes JSON lines to stdout. The first
line has the URL of the status page:

    {"time_ms": …, "pipeline": "orders", "event": "started", "admin": "http://127.0.0.1:41234", …}

With --once and no new records the queries end at once: Spark is not started, and `admin` is null.

SIGINT and SIGTERM stop the queries between two of their steps, with status 0. A second signal ends
the process at once; the next run repeats the batch in progress. A query that fails permanently ends
the run with status 1, and with one line that has the query and the cause.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from dataclasses import asdict, replace
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Final

import click

from penstock import __version__
from penstock.apps.client.session import State
from penstock.apps.pipeline.command import Located, located
from penstock.apps.pipeline.spark import master_option, parse_settings, running_session
from penstock.apps.process.daemon import set_up
from penstock.base.http_listener import parse_address
from penstock.base.system import SYSTEM_CLOCK
from penstock.base.urls import without_credentials

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.client import Client
    from penstock.spark.pipeline.admin import Run
    from penstock.spark.pipeline.progress import Display, States
    from penstock.spark.pipeline.runner import PipelineRunner
    from penstock.spark.pipeline.spec import PipelineSpec

FORCED_STATUS: Final = 1
DEFAULT_LISTEN: Final = "127.0.0.1:0"


@click.command("run", short_help="Run a pipeline.")
@located
@master_option
@click.option(
    "--remote",
    metavar="sc://HOST:PORT",
    help="Spark Connect server to run on, instead of --master.",
)
@click.option(
    "--listen", metavar="HOST:PORT", default=DEFAULT_LISTEN, show_default=True,
    help="Address of the pipeline's status page; port 0 picks a free port.",
)  # fmt: skip
@click.option(
    "--once",
    is_flag=True,
    help="Stop when all records that are available at the start were processed.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="spark.KEY=VALUE",
    help="Spark setting; overrides the file. May be repeated.",
)
@click.option("--debug", is_flag=True, help="Print tracebacks, and Spark's own log.")
def run(
    state: State,
    where: Located,
    master: str | None,
    remote: str | None,
    listen: str,
    once: bool,
    settings: tuple[str, ...],
    debug: bool,
) -> None:
    """Run a pipeline until SIGINT or SIGTERM, or with --once to the end of the available records.

    A run continues where the previous one stopped. The status page has the paths /status, /metrics,
    /livez and /readyz.
    """
    from penstock.spark.pipeline.at_rest import at_rest
    from penstock.spark.pipeline.broker_check import check_topics
    from penstock.spark.pipeline.draft import check_keys
    from penstock.spark.pipeline.queries import ONCE

    if master is not None and remote is not None:
        raise click.UsageError("give --master or --remote, not both")
    address = parse_address(listen, setting="--listen")
    chosen = parse_settings(settings)
    spec = where.load()
    if once:
        spec = replace(spec, run=replace(spec.run, trigger="once"))
    _refuse_a_second(spec)
    check_keys(spec)
    with state.working(f"waiting for brokers at {spec.run.bootstrap}"):
        check_topics(spec, partial(_name_outage, state))
    if spec.run.trigger == ONCE and (states := at_rest(spec)):
        _show_at_rest(spec, states, json_lines=state.json, master=remote or master)
        return
    set_up("text", "warning")
    stop = threading.Event()
    _stop_on_signals(stop)
    loud = debug or state.debug
    with running_session(spec, master=master, remote=remote, settings=chosen, loud=loud) as spark:
        # Spark has put its own handler in place of ours.
        _stop_on_signals(stop)
        _run(spec, spark, address, stop, json_lines=state.json, master=remote or master)


def _name_outage(state: State, client: Client) -> None:
    """Report unavailable dependencies of brokers, for which the command waits before Spark
    starts.
    """
    from penstock.client.replicas import outage

    if causes := outage(client.broker_states()):
        state.notice(f"% {causes}")


def _refuse_a_second(spec: PipelineSpec) -> None:
    """Reject a second run of the pipeline before Spark starts.

    If two commands pass this check at the same time, the runner's lock rejects one of them.
    """
    from penstock.spark.pipeline.runner import PipelineRuns
    from penstock.spark.pipeline.status import live

    found = live(spec)
    if found is not None:
        raise PipelineRuns(
            f"pipeline {spec.name} is already running as process {found['pid']}: {found['admin']}"
        )


def _show_at_rest(
    spec: PipelineSpec, states: States, *, json_lines: bool, master: str | None
) -> None:
    """Show the queries of a run without new records, for which Spark is not started."""
    display = _display(_facts(spec, master), None, json_lines=json_lines)
    display.show(states)
    display.close()


def _facts(spec: PipelineSpec, master: str | None) -> Run:
    from penstock.spark.pipeline.admin import Run

    admin = spec.run.admin_url
    return Run(
        pipeline=spec.name,
        file=str(spec.file),
        bootstrap=spec.run.bootstrap,
        state_directory=str(spec.run.state),
        version=__version__,
        pid=os.getpid(),
        started_ms=SYSTEM_CLOCK.now_ms(),
        master=master or "local[*]",
        broker_admin=admin and without_credentials(admin),
        dead_letter_topic=spec.errors.dead_letters,
    )


def _run(
    spec: PipelineSpec,
    spark: SparkSession,
    address: tuple[str, int],
    stop: threading.Event,
    *,
    json_lines: bool,
    master: str | None,
) -> None:
    from penstock.base.http_page import HttpPage
    from penstock.spark.pipeline.admin import build_app
    from penstock.spark.pipeline.progress import Watcher
    from penstock.spark.pipeline.runner import PipelineRunner

    facts = _facts(spec, master)
    runner = PipelineRunner(spec, spark)
    page = HttpPage(build_app(facts, runner.states), address)
    host, port = page.start()
    admin = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    try:
        with Watcher(runner.states, _display(facts, admin, json_lines=json_lines)):
            _start_and_wait(runner, facts, admin, stop)
    finally:
        page.stop()


def _start_and_wait(runner: PipelineRunner, facts: Run, admin: str, stop: threading.Event) -> None:
    from penstock.spark.pipeline.status import announced

    # Locks the state directory.
    runner.start()
    try:
        with announced(facts, admin):
            runner.wait(stop)
    finally:
        runner.stop()


def _display(facts: Run, admin: str | None, *, json_lines: bool) -> Display:
    from penstock.spark.pipeline.progress import LineDisplay, TableDisplay

    if json_lines or not sys.stdout.isatty():
        head = {"time_ms": facts.started_ms, "pipeline": facts.pipeline, "event": "started"}
        click.echo(json.dumps(head | {"admin": admin} | asdict(facts)))
        return LineDisplay(facts.pipeline, click.echo)
    from rich.console import Console

    click.echo(f"pipeline {facts.pipeline}: {facts.file}, brokers {facts.bootstrap}")
    page = "" if admin is None else f": {admin}/status"
    return TableDisplay(Console(), f"pipeline {facts.pipeline}{page}")


def _stop_on_signals(stop: threading.Event) -> None:
    def on_signal(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            os._exit(FORCED_STATUS)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
