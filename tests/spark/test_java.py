"""Choice of the archive of Java's classes that is used or written."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark import SparkContext
from pyspark.accumulators import AccumulatorUnixServer, UpdateRequestHandler

from penstock.spark.sessions import java


def test_an_archive_is_used_when_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_JAVA_CLASSES", str(tmp_path / "java"))
    assert java.with_archive("") == ""
    path = java.destination()
    assert path.parent == tmp_path / "java"
    path.write_bytes(b"")
    found = f"-XX:SharedArchiveFile={path}"
    assert java.with_archive("") == found
    assert java.with_archive("-Xlog:gc") == f"{found} -Xlog:gc"
    for own in ("-Xshare:off", java.writing(path)):
        assert java.with_archive(own) == own


def test_another_java_has_another_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_JAVA_CLASSES", str(tmp_path))
    java._classes.cache_clear()
    one = java.destination()
    assert java.destination() == one
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    java._classes.cache_clear()
    assert java.destination() != one
    java._classes.cache_clear()


def test_small_sessions_collect_garbage_with_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    for name in java._OPTION_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    small = f"{java.COMPILING} {java.SERIAL}"
    assert java.first_options("-Xlog:gc", 2) == small
    assert java.first_options("", 64) == java.first_options("", None) == java.COMPILING
    assert java.first_options("-Xss4m -XX:+UseZGC", 2) == java.COMPILING
    for name in ("JAVA_TOOL_OPTIONS", "PYSPARK_SUBMIT_ARGS"):
        with monkeypatch.context() as patched:
            patched.setenv(name, "-XX:+UseParallelGC")
            assert java.first_options("", 2) == java.COMPILING
    assert java.first_options("", 2) == small
    for name in ("spark-defaults.conf", "java-opts"):
        file = tmp_path / name
        file.write_text("spark.driver.extraJavaOptions -XX:+UseShenandoahGC")
        assert java.first_options("", 2) == java.COMPILING
        file.unlink()


def test_the_server_of_accumulators_stops_in_the_background(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "updates"
    server = AccumulatorUnixServer(str(path), UpdateRequestHandler)
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    context = SimpleNamespace(_accumulatorServer=server)
    monkeypatch.setattr(SparkContext, "_active_spark_context", context)
    java.stop_accumulators()
    assert context._accumulatorServer is None, "SparkContext.stop() would wait for it"
    assert not path.exists()
    for thread in threading.enumerate():
        if thread.name == "accumulators":
            thread.join(30)
    assert not serving.is_alive()
    assert server.socket.fileno() == -1
