"""Command `penstock bench`: measures a host and writes a calibration, which plans read.

A measurement takes about a minute by default. Each of its rounds runs every step once, and the
median of the rounds is reported. Everything that a measurement creates is removed at its end, also
after a failure or an interrupt.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.apps.client.session import (
    Number,
    State,
    client_options,
    parse_pairs,
    path_option,
    write_json,
    write_table,
)
from penstock.apps.process.configuration import DEFAULT_DIRECTORY
from penstock.base.errors import InvalidError
from penstock.base.extras import check_installed
from penstock.base.system import SYSTEM_CLOCK
from penstock.planner.calibration import Calibration, Measured, calibration_document

if TYPE_CHECKING:
    from penstock.apps.bench.target import Locations

SECONDS: Final = 60.0
QUICK_SECONDS: Final = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Result of `penstock bench`: the measured broker, the calibration, and notes about it."""

    subject: str
    calibration: Calibration
    notes: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """Return the JSON document of the result: the calibration, with ratios and notes."""
        from penstock.apps.bench.steps import ratios

        return calibration_document(self.calibration) | {
            "subject": self.subject,
            "ratios": ratios(self.calibration.measured),
            "notes": list(self.notes),
        }


@click.command("bench", short_help="Measure this host, for `penstock plan capacity`.")
@path_option(
    "--data-dir",
    f"Directory whose disk is measured, with 2 GiB of free space. [default: {DEFAULT_DIRECTORY} if"
    " it exists, else .]",
)
@click.option(
    "--quick",
    is_flag=True,
    help=f"Measure for about {QUICK_SECONDS:g} seconds only. Figures vary more from run to run.",
)
@click.option(
    "--seconds", type=Number(1, 3600),
    help="Approximate duration in seconds. Figures of longer measurements vary less. [default:"
        f" {SECONDS:g}]",
)  # fmt: skip
@click.option(
    "--store",
    metavar="URL",
    help="Object store to measure, as s3://bucket/prefix or file:///directory. Default: a"
    " temporary directory; with -b none.",
)
@click.option(
    "--store-option",
    "options",
    multiple=True,
    metavar="KEY=VALUE",
    help="Option of the object store, such as aws_region=eu-central-1. May be repeated.",
)
@click.option(
    "--control",
    metavar="URL",
    help="PostgreSQL database whose commits are measured, as postgresql://user@host/name."
    " Default: a temporary SQLite file; with -b none.",
)
@path_option(
    "--write path",
    "Write the calibration to this file, for `penstock plan capacity --calibration`.",
)
@click.option("--explain", is_flag=True, help="Show how each figure was measured.")
@client_options
def bench(
    state: State,
    data_dir: Path | None,
    quick: bool,
    seconds: float | None,
    store: str | None,
    options: tuple[str, ...],
    control: str | None,
    path: Path | None,
    explain: bool,
) -> None:
    """Measure this host: loopback, disk, a broker, an object store, and commits of metadata.

    By default a temporary broker is measured, with a directory as the object store and SQLite as
    the database. All are below --data-dir, and are removed afterwards. With -b HOST:PORT a running
    broker is measured at full load, with topics that are deleted afterwards.

    `penstock plan capacity --calibration FILE` reads the output of --write.
    """
    check_installed("client")
    from penstock.apps.bench.target import Locations

    if quick and seconds is not None:
        raise click.UsageError("give --quick or --seconds, not both")
    if options and not store:
        raise click.UsageError("--store-option requires --store")
    default = Path(DEFAULT_DIRECTORY)
    locations = Locations(
        data_dir=data_dir or (default if default.is_dir() else Path()),
        bootstrap=state.bootstrap or state.overrides.get("bootstrap.servers", ""),
        store=store or "",
        store_options=parse_pairs(options, "--store-option"),
        control=control or "",
    )
    if path is not None:
        _check_writable(path)
    result = _measured(state, locations, seconds or (QUICK_SECONDS if quick else SECONDS))
    if path is not None:
        _write_file(path, result.document())
    if state.json:
        write_json(result.document())
    else:
        _write_tables(result, path, explain=explain)


def _measured(state: State, locations: Locations, seconds: float) -> Result:
    from penstock.apps.bench.machine import host_facts, usable_cores
    from penstock.apps.bench.steps import measure, runs_of
    from penstock.apps.bench.target import scratch, target
    from penstock.apps.process.daemon import interruptible

    runs = runs_of(seconds)
    with (
        interruptible(),
        scratch(locations.data_dir) as directory,
        target(state, locations, directory) as found,
        _progress(runs * len(found.steps)) as begin,
    ):
        host = host_facts(directory)
        measured = measure(found.steps, seconds=seconds, runs=runs, begin=begin)
    if found.here:
        cores = usable_cores()
        how = (
            "cores that this process may use: the smaller of its CPU affinity and its cgroup's"
            " quota"
        )
        measured["cores"] = Measured(value=cores, unit="cores", how=how)
    if host["filesystem"] in ("tmpfs", "ramfs") and "sync_p50_ms" in measured:
        found.notes.append(
            f"{locations.data_dir} is on a file system in memory: the figures do not describe a"
            " disk"
        )
    taken_at = datetime.fromtimestamp(SYSTEM_CLOCK.now_ms() // 1000, UTC).isoformat()
    calibration = Calibration(taken_at=taken_at, host=host, measured=measured)
    return Result(subject=found.subject, calibration=calibration, notes=tuple(found.notes))


@contextmanager
def _progress(total: int) -> Iterator[Callable[[str], None]]:
    """Show a progress bar if stderr is a terminal.

    Yields the function that is called with a step's label before the step runs.
    """
    if not sys.stderr.isatty():
        yield lambda label: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        begun = 0

        def begin(label: str) -> None:
            nonlocal begun
            bar.update(task, completed=begun, description=label)
            begun += 1

        yield begin


def _check_writable(path: Path) -> None:
    """Reject a file that cannot be written, before the measurement begins.

    Raises:
        InvalidError: it is a directory, or its directory is not writable.
    """
    if path.is_dir():
        raise InvalidError(f"--write {path}: is a directory")
    try:
        with tempfile.NamedTemporaryFile(dir=path.absolute().parent):
            pass
    except OSError as error:
        raise InvalidError(f"--write {path}: {error.strerror}") from None


def _write_file(path: Path, document: dict[str, Any]) -> None:
    """Write a document as JSON to a temporary file, and rename that to `path`."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(json.dumps(document, indent=1) + "\n")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _write_tables(result: Result, path: Path | None, *, explain: bool) -> None:
    calibration = result.calibration
    columns = ["figure", "value", "compared with the bare host", *(["how"] if explain else [])]
    rows = []
    for name, one in calibration.measured.items():
        row = [name, f"{one.value:g} {one.unit}", _beside(name, calibration)]
        how = f"{one.how}; median of {one.runs} runs" if one.runs > 1 else one.how
        rows.append([*row, how] if explain else row)
    facts = calibration.host
    title = (
        f"{result.subject}, {calibration.taken_at}: {facts['processor']},"
        f" {facts['cores']:g} cores, {facts['memory_bytes'] / 2**30:.1f} GiB"
    )
    write_table(columns, rows, title=title)
    for note in result.notes:
        click.echo(note)
    if path is not None:
        click.echo(f"written: {path}")


def _beside(name: str, calibration: Calibration) -> str:
    from penstock.apps.bench.steps import RATIOS, ratios

    found = ratios(calibration.measured)
    return ", ".join(
        [
            f"{found[ratio.name]:.2f} × {ratio.limit.removesuffix('_mb_per_s').removesuffix('_ms')}"
            for ratio in RATIOS
            if ratio.figure == name and ratio.name in found
        ]
    )
