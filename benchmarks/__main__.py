"""`make bench`: run the benchmarks, print their tables, write the results and a page of them.

make bench                              everything
make bench ARGS="--quick"               shorter runs, for a first look
make bench ARGS="columnar_codec"        one of them
make bench-record                       the same, and the results are kept

Results go to `.cache/bench`, which is not part of the repository; `make bench-record` writes them
to `benchmarks/results`, to be committed. A benchmark that breaks is named with its cause, its
traceback goes to `.cache/bench/NAME.failure.txt`, the others go on, and the exit status is 1.

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

from benchmarks import page
from benchmarks.harness import RECORDED, SCRATCH, Report, Row, figure, host, memory_in_use, save

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
    "transactions",
    "groups",
    "pipelines",
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


def run(
    names: Sequence[str],
    *,
    quick: bool,
    console: Console,
    results: Path,
    failures: Path,
    package: str = "benchmarks",
) -> list[str]:
    """Run benchmarks one after the other, whatever becomes of each; the names of those that broke.

    Args:
        results: where figures and the page go.
        failures: where a broken one's traceback goes; one that ran has none there.
        package: where the modules are.
    """
    broken: list[str] = []
    for name in names:
        failure = failures / f"{name}.failure.txt"
        failure.unlink(missing_ok=True)
        try:
            found = importlib.import_module(f"{package}.{name}").measure(quick=quick)
            report = found if isinstance(found, Report) else Report(rows=found)
            taken_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            save(results, name, report, taken_at=taken_at, quick=quick)
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
    if len(broken) < len(names):
        console.print(f"Page: {page.write(results)}")
    return broken


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("benchmarks", nargs="*", metavar="NAME", help=f"of {', '.join(ALL)}")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter runs")
    parser.add_argument(
        "--record", action="store_true", help="keep the results in benchmarks/results"
    )
    arguments = parser.parse_args()
    names = cast("list[str]", arguments.benchmarks) or list(ALL)
    if unknown := [name for name in names if name not in ALL]:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are {', '.join(ALL)}")

    console = Console(width=None if sys.stdout.isatty() else 140)
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
    if broken:
        console.print(f"{len(broken)} of {len(names)} benchmarks broke: {', '.join(broken)}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
