"""The session: what it sets, and what it says when Java is missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.spark import JavaMissing, require_java
from penstock.spark.spark_session import SETTINGS


def test_missing_java_is_said_clearly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(JavaMissing, match="version 17 or newer"):
        require_java()
    java = tmp_path / "home" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.touch(mode=0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    require_java()


@pytest.mark.spark
def test_the_session_has_what_the_source_wants(spark: SparkSession) -> None:
    for name, value in SETTINGS.items():
        assert spark.conf.get(name) == value
    assert spark.sparkContext.defaultParallelism == 2
    from penstock.spark import session

    assert session() is spark


@pytest.mark.spark
def test_workers_come_from_our_daemon(spark: SparkSession) -> None:
    def loaded(batches):  # type: ignore[no-untyped-def]
        import gc
        import sys

        import pyarrow as pa

        ready = "penstock.spark.reading" in sys.modules and gc.get_freeze_count() > 1_000
        yield pa.RecordBatch.from_pydict({"ready": [ready]})
        yield from ()

    rows = spark.range(1, numPartitions=1).mapInArrow(loaded, "ready boolean").collect()
    assert [row.ready for row in rows] == [True]
