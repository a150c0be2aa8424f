"""`make bench`: run the benchmarks, print their tables and the table of aims, write the results.

make bench                              everything
make bench ARGS="--quick"               shorter runs, for a first look
make bench ARGS="columnar_codec"        one of them
make bench ARGS="--changed"             list the recorded results whose code has changed since
make bench-record                       run, and keep the results

Results go to `.cache/bench`, which is not part of the repository; `make bench-record` writes them
to `benchmarks/results`, to be committed, and the tables of figures in README.md and
docs/comparison.md with them. If a benchmark fails, its cause is printed, its traceback goes to
`.cache/bench/NAME.failure.txt`, the others still run, and the exit status is 1.

Those of Spark beside its Kafka connector take their scale from the environment: see
`benchmarks/spark_bed.py`.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks import figures, page
from benchmarks.aims import COLUMNS, aims, limits
from benchmarks.harness import (
    RECORDED,
    SCRATCH,
    Report,
    Result,
    Row,
    figure,
    host,
    load_all,
    memory_in_use,
    save,
)
from benchmarks.measured import MEASURES, changed, releases, sources

ALL = (
    "columnar_codec",
    "value_formats",
    "log_append",
    "compaction",
    "upkeep",
    "partitions",
    "recovery",
    "tiering",
    "metadata_refresh",
    "authorisation",
    "coordinator_saves",
    "share_saves",
    "group_targets",
    "record_validation",
    "schema_validation",
    "columnar_client",
    "broker_peer",
    "log_peers",
    "curves",
    "transactions",
    "groups",
    "pipelines",
    "pipelines_20m",
    "spark_pipelines",
    "spark_pipelines_1kib",
    "spark_triggers",
    "table_codecs",
    "field_protection",
    "transforms",
    "mirror",
    "change_capture",
    "connect_sql",
    "connect_files",
    "iceberg",
    "host_socket",
    "outbox",
    "diskless_fetch",
    "diskless_produce",
    "diskless_brokers",
    "signed_reads",
    "cluster",
    "cluster_failover",
    "cluster_messages",
    "processes",
    "quotas",
    "tls",
    "floods",
    "bombs",
    "access_changes",
    "registry",
    "registry_hostile",
    "console",
    "metrics_scrape",
    "tracing",
)


def table(benchmark: str, rows: Sequence[Row]) -> Table:
    """A benchmark's rows as they are printed."""
    result = Table(title=benchmark, title_justify="left")
    for column in ("what", "measured", "unit", "predicted", "against", "reference", "× better"):
        result.add_column(column, justify="left" if column in {"what", "against"} else "right")
    for row in rows:
        result.add_row(
            row.name,
            figure(row.value),
            row.unit,
            figure(row.prediction),
            row.reference_name,
            figure(row.reference),
            figure(row.ratio),
        )
    return result


def table_of_aims(results: Sequence[Result]) -> Table:
    """Aims of all rows, as they are printed."""
    result = Table(title="aims", title_justify="left")
    for column in COLUMNS:
        result.add_column(column)
    for cells in aims(results):
        result.add_row(*(escape(cell.strip("*")) for cell in cells))
    return result


def run(
    names: Sequence[str],
    *,
    quick: bool,
    console: Console,
    results: Path,
    failures: Path,
    package: str = "benchmarks",
) -> list[str]:
    """Run benchmarks one after the other; return the names of those that failed.

    Args:
        results: the folder of results and of their page.
        failures: the folder of tracebacks.
        package: the package of the modules.
    """
    broken: list[str] = []
    ran: list[Result] = []
    for name in names:
        failure = failures / f"{name}.failure.txt"
        failure.unlink(missing_ok=True)
        try:
            found = importlib.import_module(f"{package}.{name}").measure(quick=quick)
            report = found if isinstance(found, Report) else Report(rows=found)
            result = Result(
                benchmark=name,
                taken_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                quick=quick,
                host=host(),
                release=releases()[0],
                sources=sources(name) if name in MEASURES else {},
                rows=report.rows,
                charts=report.charts,
            )
            save(results, result)
            ran.append(result)
        except Exception as error:
            broken.append(name)
            failures.mkdir(parents=True, exist_ok=True)
            failure.write_text(traceback.format_exc())
            cause = escape(f"{type(error).__name__}: {error}")
            console.print(f"[red]{name} broke:[/red] {cause} (traceback: {failure})")
            continue
        console.print(table(name, report.rows))
        for row in report.rows:
            if row.note:
                console.print(f"  [dim]{row.name}: {row.note}[/dim]")
    if ran:
        console.print(f"Page: {page.write(results)}")
        if any(aims(ran)):
            console.print(table_of_aims(ran))
        for name, limit in limits(ran):
            console.print(f"  [dim]{escape(name)}: {escape(limit)}[/dim]")
    return broken


def print_changed(console: Console) -> None:
    """List benchmarks without recorded results, and those whose code has changed since."""
    results = {result.benchmark: result for result in load_all(RECORDED)}
    for name in ALL:
        if name not in results:
            console.print(f"{name}: not recorded")
        elif parts := changed(results[name], sources(name)):
            console.print(f"{name}: {results[name].taken_at[:10]}, changed: {', '.join(parts)}")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("benchmarks", nargs="*", metavar="NAME", help=f"of {', '.join(ALL)}")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter runs")
    parser.add_argument(
        "--record", action="store_true", help="keep the results in benchmarks/results"
    )
    parser.add_argument(
        "--changed", action="store_true", help="list recorded results whose code has changed since"
    )
    arguments = parser.parse_args()
    names = cast("list[str]", arguments.benchmarks) or list(ALL)
    if unknown := [name for name in names if name not in ALL]:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are {', '.join(ALL)}")

    console = Console(width=None if sys.stdout.isatty() else 140)
    if arguments.changed:
        print_changed(console)
        return 0
    console.print("Host: " + ", ".join(f"{key} {value}" for key, value in host().items()))
    with memory_in_use() as paid:
        console.print(f"Memory: the page cache was filled, {figure(paid)} s per GiB")
        broken = run(
            names,
            quick=arguments.quick,
            console=console,
            results=RECORDED if arguments.record else SCRATCH,
            failures=SCRATCH,
        )
    if arguments.record:
        figures.write()
    if broken:
        console.print(f"{len(broken)} of {len(names)} benchmarks broke: {', '.join(broken)}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
