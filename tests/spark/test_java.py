"""Choice of the archive of Java's classes that is used or written."""

from __future__ import annotations

from pathlib import Path

import pytest

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
    with monkeypatch.context() as patched:
        patched.setenv("JAVA_TOOL_OPTIONS", "-XX:+UseParallelGC")
        assert java.first_options("", 2) == java.COMPILING
    assert java.first_options("", 2) == small
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.driver.extraJavaOptions -XX:+UseShenandoahGC"
    )
    assert java.first_options("", 2) == java.COMPILING
