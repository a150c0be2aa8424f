"""Choice of the archive of Java's classes that is used or written."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.spark import java_classes


def test_an_archive_is_used_when_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_JAVA_CLASSES", str(tmp_path / "java"))
    assert java_classes.with_archive("") == ""
    path = java_classes.destination()
    assert path.parent == tmp_path / "java"
    path.write_bytes(b"")
    found = f"-XX:SharedArchiveFile={path}"
    assert java_classes.with_archive("") == found
    assert java_classes.with_archive("-Xlog:gc") == f"{found} -Xlog:gc"
    for own in ("-Xshare:off", java_classes.writing(path)):
        assert java_classes.with_archive(own) == own


def test_another_java_has_another_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_JAVA_CLASSES", str(tmp_path))
    java_classes._classes.cache_clear()
    one = java_classes.destination()
    assert java_classes.destination() == one
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    java_classes._classes.cache_clear()
    assert java_classes.destination() != one
    java_classes._classes.cache_clear()
