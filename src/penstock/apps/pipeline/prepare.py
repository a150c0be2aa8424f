"""Command `penstock pipeline prepare`: speeds up later starts of Spark on this machine.

It runs a small pipeline against a temporary broker, and archives the classes that Java has loaded;
see `penstock.spark.sessions.java`.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
from pathlib import Path
from typing import Final

import click

RECORDS: Final = 100
END_SECONDS: Final = 120.0
PIPELINE: Final = """
name = "prepare"
[run]
trigger = "once"
[source.rows]
topic = "rows"
format = "json"
schema = "n bigint, name string, amount decimal(12,2), at timestamp"
[source.rows.expect]
"not too small" = "n >= 1"
[step.masked]
sql = "select n, sha2(name, 256) as name, amount, at from rows"
[sink.lake]
from = "masked"
table = "lake"
[errors]
dead_letters = "dead"
"""


@click.command("prepare")
def prepare() -> None:
    """Archive the Java classes that Spark loads, and print the path of the archive.

    Later starts of Spark then take half the CPU time. Run the command after an installation, and
    after a new version of Java or PySpark, as a user who may write into the package's folder. It
    needs Java, a minute, and 190 MB of disk space.
    """
    from penstock.spark.sessions import java

    path = java.destination()
    made = path.with_suffix(f".{os.getpid()}")
    try:
        with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
            _run(Path(folder), java.writing(made))
        made.replace(path)
    finally:
        made.unlink(missing_ok=True)
    click.echo(f"Java's classes: {path}")


def _run(folder: Path, options: str) -> None:
    """Run the sample pipeline with the given options of Java, until both have ended."""
    import pyarrow as pa

    from penstock.apps.bench.broker import own_broker
    from penstock.apps.pipeline.spark import job_session
    from penstock.client import Client
    from penstock.spark.pipeline.parsing import load
    from penstock.spark.pipeline.runner import PipelineRunner
    from penstock.spark.sessions import java

    file = folder / "pipeline.toml"
    file.write_text(PIPELINE, encoding="utf-8")
    row = {"name": "a", "amount": "1.00", "at": "2026-01-01T00:00:00Z"}
    values = [json.dumps(row | {"n": n}).encode() for n in range(RECORDS)]
    with (
        own_broker(folder, {"admin.listener": "127.0.0.1:0"}) as (broker, bootstrap),
        Client(bootstrap) as client,
    ):
        for topic in ("rows", "dead"):
            client.create_topic(topic)
        client.write_arrow("rows", pa.table({"value": pa.array(values)}))
        spec = load(file, bootstrap=bootstrap, admin=broker.admin_url)
        settings = {"spark.driver.extraJavaOptions": options}
        with job_session("prepare", master=None, settings=settings) as spark:
            runner = PipelineRunner(spec, spark)
            runner.start()
            try:
                runner.wait(threading.Event())
            finally:
                runner.stop()
    java.end(END_SECONDS)
