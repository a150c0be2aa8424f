"""Class data sharing archive: Java's loaded classes in a file that later processes map.

Spark loads and verifies some 20,000 classes before a query's first batch, half of a session's start
time. Java writes the archive when a process ends, and later processes map it. Java ignores an
archive of another Java or other jars; archives are named by both.

    <folder>/<Java and Spark's jars, 16 digits>.jsa

The folder is PENSTOCK_JAVA_CLASSES; else `__pycache__/java` of this package, or
~/.cache/penstock/java (XDG_CACHE_HOME) for a read-only package. `penstock pipeline prepare` runs a
pipeline to write the archive.

Source: "Class Data Sharing" in the manual of the `java` command, JEP 350.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from functools import lru_cache
from pathlib import Path
from typing import Final

from penstock.base.shared_cache import can_write, folders
from penstock.spark.spark_home import spark_home

FOLDER_VARIABLE: Final = "PENSTOCK_JAVA_CLASSES"
_OWN: Final = ("-Xshare", "-XX:SharedArchiveFile", "-XX:ArchiveClassesAtExit")
_SILENT: Final = "-Xlog:disable -Xlog:all=error:stderr"
"""Option that suppresses Java's line for each class that it cannot archive."""


def with_archive(options: str) -> str:
    """Return Java's options with the archive, if it exists and they name none themselves."""
    found = next((path for path in _candidates() if path.exists()), None)
    if found is None or any(own in options for own in _OWN):
        return options
    return f"-XX:SharedArchiveFile={found} {options}".strip()


def writing(path: Path) -> str:
    """Return the options of a process that writes its classes to this file when it ends."""
    return f"-XX:ArchiveClassesAtExit={path} {_SILENT}"


def destination() -> Path:
    """Return the path to which to write an archive of this Java and this Spark.

    Raises:
        OSError: no folder is writable.
    """
    candidates = _candidates()
    place = next((path for path in candidates if can_write(path.parent)), candidates[-1])
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


def _candidates() -> list[Path]:
    found = folders(FOLDER_VARIABLE, Path(__file__).parent, "java")
    return [folder / f"{_classes()}.jsa" for folder in found]


@lru_cache(maxsize=1)
def _classes() -> str:
    """Return the name of an archive of this Java and these jars."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java") or "java"
    jars = spark_home() / "jars"
    digest = hashlib.sha256()
    for path in (Path(os.path.realpath(java)), *sorted(jars.glob("*.jar"))):
        facts = path.stat() if path.exists() else None
        digest.update(repr((str(path), facts and (facts.st_size, facts.st_mtime_ns))).encode())
    return digest.hexdigest()[:16]
