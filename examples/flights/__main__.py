"""`make demo`: socket, outbox, log, pipeline, crashes, proof, findings; in that order.

`make demo-cluster` is the same with three brokers, which die one after the other (`cluster`).
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Protocol

from rich.console import Console

from examples.flights import data, proof, report
from examples.flights.cluster import three_brokers
from examples.flights.processes import AgentProcess, BrokerProcess, Process, start_pipeline
from examples.flights.producer import Producer, create_topics, send_weather
from examples.flights.watch import Watch
from penstock.client import Client
from penstock.spark import JavaMissing, require_java

LOOK_SECONDS: Final = 0.02
SHOW_SECONDS: Final = 0.25
CRASH_AFTER_BATCHES: Final = 3
AGENT_DIES_AT: Final = 0.3
TABLE_LOG: Final = "tables/flights/_delta_log"
CHECKPOINT_COMMITS: Final = "checkpoints/rows/commits"


def main() -> int:
    arguments = _arguments()
    console = Console(width=None if sys.stdout.isatty() else 120)
    try:
        require_java()
    except JavaMissing as error:
        console.print(f"[red]{error}[/red]")
        return 2
    folder: Path = arguments.output.resolve()
    for name in ("log", "outbox", "tables", "checkpoints", "stop", "weather-snapshot.json"):
        _remove(folder / name)
    folder.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all below is ended too
    with ExitStack() as stack:
        console.print("Reading the year 2013 …")
        flights, weather = data.flight_records(), data.weather_files()
        scene: Scene
        if arguments.cluster:
            scene = stack.enter_context(three_brokers(folder))
        else:
            scene = one = OneBroker(folder, crash=not arguments.no_crash)
            stack.callback(one.process.end)
        console.print(f"Brokers serve {scene.bootstrap}, admin pages {scene.admin_url}")
        client = stack.enter_context(Client(scene.bootstrap, api_timeout_ms=data.CALL_TIMEOUT_MS))
        create_topics(client)
        seconds = send_weather(weather, folder / "outbox", scene.bootstrap)
        lines = sum(file.line_count for file in weather)
        console.print(
            f"{lines:,} hourly weather reports in {len(weather):,} files went into the outbox,"
            f" each synced and its pointer on the log, in {seconds:.1f} s"
        )
        agent = AgentProcess(folder, scene.bootstrap)
        stack.callback(agent.end)
        console.print(f"The host's agent takes flights at {agent.socket}")
        producer = Producer(agent.socket, flights, arguments.rate or scene.rate)
        stack.callback(producer.end)
        with Watch(console, producer) as watch:
            crashes = scene.crashes(agent, producer, watch)
            stack.callback(crashes.end)
            _run(folder, scene, producer, watch, crashes)
        held = _prove(folder, client, console, crashes)
        plots = [report.show(folder, console), *crashes.plots(folder, console)]
        _next_steps(console, folder, plots, time.monotonic() - begin, one=not arguments.cluster)
        if arguments.keep:
            console.input("The brokers keep running; press Enter to end them. ")
    return 0 if held else 1


class Crashes(Protocol):
    """What is killed while the demo runs, and what there is to be said of it."""

    driver_due: bool
    """Whether the Spark driver is to be killed."""

    @property
    def ready(self) -> bool:
        """Whether flights may come."""

    @property
    def pending(self) -> bool:
        """Whether the demo has to wait for one."""

    def look(self) -> None:
        """Called again and again."""

    def end(self) -> None:
        """Kill no more."""

    def claims(self) -> list[proof.Claim]:
        """More that must hold."""

    def plots(self, folder: Path, console: Console) -> list[Path]:
        """More to be looked at."""


class Scene(Protocol):
    """The brokers of the demo."""

    @property
    def rate(self) -> int | None:
        """Flights a second, if nobody asks for another rate."""

    @property
    def bootstrap(self) -> str: ...

    @property
    def admin_url(self) -> str: ...

    def crashes(self, agent: AgentProcess, producer: Producer, watch: Watch) -> Crashes: ...


class OneBroker(BrokerProcess):
    """One broker that goes on, while the agent and the Spark driver die."""

    rate = None

    def __init__(self, folder: Path, *, crash: bool) -> None:
        super().__init__(folder)
        self._crash = crash

    def crashes(self, agent: AgentProcess, producer: Producer, watch: Watch) -> Crashes:
        """The agent once, and the Spark driver once."""
        return ClientCrashes(agent, producer, watch, wanted=self._crash)


class ClientCrashes:
    """What is killed while the demo runs: the agent once, and the Spark driver once."""

    ready = True

    def __init__(
        self, agent: AgentProcess, producer: Producer, watch: Watch, *, wanted: bool
    ) -> None:
        self.driver_due = self._agent_due = wanted
        self._agent = agent
        self._producer = producer
        self._watch = watch

    @property
    def pending(self) -> bool:
        return self.driver_due

    def end(self) -> None:
        self.driver_due = self._agent_due = False

    def claims(self) -> list[proof.Claim]:
        return []

    def plots(self, folder: Path, console: Console) -> list[Path]:
        return []

    def look(self) -> None:
        """Kill the agent in the middle of the flights."""
        producer = self._producer
        if self._agent_due and producer.sent > producer.total * AGENT_DIES_AT:
            self._agent_due = False
            pid = self._agent.kill()
            self._watch.say(
                f"[bold red]kill -9 {pid}[/bold red]: the host's agent died with"
                f" {producer.sent:,} flights accepted. Another one has its socket; the producer"
                " sends again what it had no answer for."
            )


def _run(folder: Path, scene: Scene, producer: Producer, watch: Watch, crashes: Crashes) -> None:
    watch.starting()
    pipeline = start_pipeline(folder, scene, watch.line)
    try:
        while pipeline.status is None:
            if producer.error is not None:
                raise SystemExit(f"Producing failed: {producer.error}")
            if not producer.started and crashes.ready:
                producer.start()
            crashes.look()
            if crashes.driver_due and _batches(folder / TABLE_LOG) > CRASH_AFTER_BATCHES:
                _crash(folder, pipeline, watch)
                watch.starting()
                pipeline = start_pipeline(folder, scene, watch.line)
                crashes.driver_due = False
            elif producer.done and not crashes.pending:
                (folder / "stop").touch()
            watch.show()
            pipeline.wait(LOOK_SECONDS if crashes.driver_due else SHOW_SECONDS)
        if pipeline.status != 0:
            pipeline.end()  # its last line has come by then
            cause = watch.failure or f"its process ended with status {pipeline.status}"
            raise SystemExit(f"The pipeline failed: {cause}\nMore is in {pipeline.log}")
    finally:
        if pipeline.status is None:
            pipeline.kill()
        pipeline.end()


def _crash(folder: Path, pipeline: Process, watch: Watch) -> None:
    pid = pipeline.pid
    pipeline.kill()
    table, checkpoint = _batches(folder / TABLE_LOG), _batches(folder / CHECKPOINT_COMMITS)
    watch.say(
        f"[bold red]kill -9 {pid}[/bold red]: the Spark driver died with {table} batches of flights"
        f" in the table and {checkpoint} in its checkpoint. Starting it again: batch {checkpoint}"
        f" will be {'replayed' if table > checkpoint else 'next'}."
    )


def _batches(folder: Path) -> int:
    # Commits of a Delta table and of a checkpoint alike: files named by a number.
    if not folder.is_dir():
        return 0
    return sum(path.name.removesuffix(".json").isdecimal() for path in folder.iterdir())


def _prove(folder: Path, client: Client, console: Console, crashes: Crashes) -> bool:
    console.print("\n[bold]Proof[/bold] (by topic, partition, offset and line)")
    claims = [*proof.claims(folder, client, data.read(data.FLIGHTS)), *crashes.claims()]
    for claim in claims:
        mark = "[green]holds[/green]" if claim.holds else "[bold red]FAILS[/bold red]"
        console.print(f"  {mark}  {claim.text}")
    console.print("  Nothing was injected: every impossible row is in the published data.\n")
    return all(claim.holds for claim in claims)


def _next_steps(
    console: Console, folder: Path, plots: list[Path], seconds: float, *, one: bool
) -> None:
    found = commands(_short(folder)) if one else []
    lines = [
        f"\nDone in {seconds:.0f} s. Plots: {', '.join(str(_short(plot)) for plot in plots)}",
        f"Tables: {_short(folder / 'tables')} (flights, weather, dead_letters, delays)",
        *(["Try next:"] if found else []),
        *(f"  {command}  # {meaning}" for command, meaning in found),
    ]
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True, markup=False)


def commands(folder: Path) -> list[tuple[str, str]]:
    """What to try next, as it works from the project root, and what it shows."""
    polars = (
        f"import polars as pl; t = pl.read_delta('{folder}/tables/delays'); "
        "print(t.group_by('carrier').agg(pl.sum('dep_delay_minutes')).sort('dep_delay_minutes'))"
    )
    return [
        (
            f".venv/bin/penstock serve --data-dir {shlex.quote(str(folder / 'log'))}",
            "the same log again; the next three ask it from another terminal",
        ),
        (
            f".venv/bin/penstock consume -t {data.DEAD_LETTERS} -o beginning -e",
            "why rows were refused",
        ),
        (".venv/bin/penstock group describe demo-rows", "how far the pipeline came"),
        (
            f".venv/bin/penstock outbox audit --root {shlex.quote(str(folder / 'outbox'))}"
            f" -t {data.WEATHER} --checksums",
            "whether every pointer has its file, and every file its pointer",
        ),
        (f'.venv/bin/python -c "{polars}"', "minutes of delay by airline"),
        (
            'make demo ARGS="--rate 20000 --keep"',
            "the flights as a live stream; at the end the broker stays up to look at",
        ),
    ]


def _short(path: Path) -> Path:
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--rate", type=int, help="flights a second; at full speed if left out")
    parser.add_argument("--no-crash", action="store_true", help="do not kill the Spark driver")
    parser.add_argument("--cluster", action="store_true", help="three brokers, which are killed")
    parser.add_argument("--keep", action="store_true", help="keep the brokers up at the end")
    parser.add_argument(
        "--output", type=Path, default=Path("demo-output"), help="folder for log, tables and plot"
    )
    arguments = parser.parse_args()
    if arguments.rate is not None and arguments.rate <= 0:
        parser.error("--rate must be positive")
    return arguments


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
