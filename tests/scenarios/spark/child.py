"""A driver that runs a pipeline until it is killed: `python -m …spark.child SETTINGS`.

It opens its Spark session, says so by a file `ready`, and waits for a line on its input that says
which pipeline to run; so the next driver gets ready while this one is at work. If the parent
goes away, its input ends and it ends, too.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.scenarios.spark import deadly
from tests.scenarios.spark.deadly import reach
from tests.scenarios.spark.points import CHECKPOINTED, RETURNED

CHECKPOINT_SECONDS: Final = 30.0


def between(
    owner: Any,
    name: str,
    before: tuple[str, ...] = (),
    after: tuple[str, ...] = (),
    only: Callable[..., bool] = lambda *_: True,
) -> None:
    """Make a method come by points; those of `before` may kill while it runs."""
    plain = getattr(owner, name)

    def wrapped(self: Any, *given: Any, **more: Any) -> Any:
        if not only(self, *given):
            return plain(self, *given, **more)
        reach(*before)
        result = plain(self, *given, **more)
        reach(*after)
        return result

    setattr(owner, name, wrapped)


def install_points() -> None:
    """Put the driver's points into the classes that do the work."""
    from penstock.spark.pipeline.batches import BatchJob
    from penstock.spark.pipeline.journal import Journal
    from penstock.spark.pipeline.retry_store import ReleaseBox, RetryStore
    from penstock.spark.sink.commits import Commits
    from penstock.spark.tables import DeltaSink, DeltaUpsert

    between(
        Journal, "begin", ("journal: before it begins a batch",), ("journal: batch begun",)
    )  # fmt: skip
    between(
        Journal, "finish", ("journal: before it finishes a batch",), ("journal: batch finished",)
    )  # fmt: skip
    between(
        DeltaSink, "_stage", ("table: Parquet being written",),
        ("table: Parquet written, not committed",),
    )  # fmt: skip
    between(DeltaSink, "_commit", ("table: commit under way",), ("table: committed",))
    between(
        DeltaUpsert, "commit", ("upsert: before the merge", "upsert: merge under way"),
        ("upsert: merged",),
    )  # fmt: skip
    for what, letters in (("topic", False), ("dead letters", True)):
        between(
            Commits, "commit",
            (f"{what}: staged, commit not sent", f"{what}: commit in flight"),
            (f"{what}: commit answered",),
            lambda self, *_, letters=letters: (
                self._application.endswith("dead-letters") == letters
            ),
        )  # fmt: skip
    between(Commits, "commit", ("broker: commit in flight",))
    between(
        RetryStore, "save", ("retry store: before it is saved", "retry store: being saved"),
        ("retry store: saved",),
    )  # fmt: skip
    between(
        ReleaseBox, "done", ("retry store: releases being put aside",), (),
        lambda self, went, **_: bool(went),
    )  # fmt: skip
    _around_batches(BatchJob)


def _around_batches(job_class: Any) -> None:
    plain = job_class.__call__

    def called(job: Any, batch: Any, batch_id: int) -> None:
        reach("broker: at any time")
        plain(job, batch, batch_id)
        reach(RETURNED.name)
        if deadly.take(CHECKPOINTED.name) is not None:
            written = job.paths.checkpoint(job.plan.name) / "commits" / str(batch_id)
            threading.Thread(target=_when_there, args=(written,), daemon=True).start()

    job_class.__call__ = called


def _when_there(path: Path) -> None:
    deadline = time.monotonic() + CHECKPOINT_SECONDS
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.001)
    deadly.end(CHECKPOINTED)


def plant(bug: str) -> None:
    """Break a sink on purpose: the harness has to notice."""
    if bug == "table forgets batches":
        from penstock.spark.tables import append

        setattr(append, "in_table", lambda *_: False)  # noqa: B010  (a name that it imports)
    elif bug == "topic forgets batches":
        from penstock.spark.sink.log_sink import LogSink

        plain = LogSink.__init__

        def anew(self: Any, *, application: str, **more: Any) -> None:
            if not application.endswith("dead-letters"):
                application = f"{application}-{os.getpid()}"
            plain(self, application=application, **more)

        LogSink.__init__ = anew  # type: ignore[method-assign]
    elif bug:
        raise ValueError(bug)


def end_with_parent() -> None:
    """Die when the input ends."""
    while os.read(0, 1):  # not by `sys.stdin`, whose lock would be held at exit
        pass
    os.killpg(0, signal.SIGKILL)


def end_java() -> None:
    """Wait until the JVM has ended: it may have something to write down."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    assert gateway is not None
    java = gateway.proc
    gateway.shutdown()
    java.stdin.close()
    java.wait()


def main() -> None:
    given = json.loads(sys.argv[1])
    os.environ[deadly.GROUP] = str(os.getpgid(0))
    from pyspark.sql import SparkSession

    from penstock.spark import session
    from penstock.spark.pipeline import runner as runners
    from penstock.spark.pipeline.parsing import load
    from tests.scenarios.spark import hooks

    builder = SparkSession.builder.master(given["master"])
    spark = session(builder, application="kills", settings=given["settings"])
    spark.sparkContext.setLogLevel("ERROR")
    runners.PenstockSource = hooks.Source  # type: ignore[attr-defined]  # which it registers
    install_points()
    plant(given["bug"])
    (Path(os.environ[deadly.FOLDER]) / "ready").touch()
    line = sys.stdin.readline()
    if not line:
        spark.stop()
        return
    threading.Thread(target=end_with_parent, daemon=True).start()
    work = json.loads(line)
    spec = load(Path(work["file"]), bootstrap=work["bootstrap"], admin=work["admin"])
    runner = runners.PipelineRunner(spec, spark)
    runner.start()
    try:
        runner.wait(threading.Event())
    finally:
        runner.stop()
        print(*runner.states(), sep="\n", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
