"""`make bench`: run the benchmarks, print their tables, keep the results and the page.

make bench                              everything
make bench ARGS="--quick"               shorter runs, for a first look
make bench ARGS="columnar_codec"        one of them

Those of Spark beside its Kafka connector take their scale from the environment: see
`benchmarks/spark_bed.py`.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import sys
from collections.abc import Sequence
from typing import cast

from rich.console import Console
from rich.table import Table

from benchmarks import page
from benchmarks.harness import Report, Row, figure, host, save

ALL = (
    "columnar_codec",
    "log_append",
    "record_validation",
    "columnar_client",
    "broker_peer",
    "spark_source",
    "spark_pipelines",
    "spark_pipelines_1kib",
    "spark_triggers",
    "table_codecs",
    "host_socket",
    "outbox",
    "diskless_fetch",
    "diskless_produce",
    "diskless_brokers",
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


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("benchmarks", nargs="*", metavar="NAME", help=f"of {', '.join(ALL)}")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter runs")
    arguments = parser.parse_args()
    names = cast("list[str]", arguments.benchmarks) or list(ALL)
    if unknown := [name for name in names if name not in ALL]:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are {', '.join(ALL)}")

    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print("Host: " + ", ".join(f"{key} {value}" for key, value in host().items()))
    for name in names:
        module = importlib.import_module(f"benchmarks.{name}")
        found: list[Row] | Report = module.measure(quick=arguments.quick)
        report = found if isinstance(found, Report) else Report(rows=found)
        taken_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        save(name, report, taken_at=taken_at, quick=arguments.quick)
        console.print(table(name, report.rows))
        for row in report.rows:
            if row.note:
                console.print(f"  [dim]{row.name}: {row.note}[/dim]")
    console.print(f"Page: {page.write()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
