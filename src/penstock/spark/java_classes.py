"""Java's classes as they are once loaded, kept in a file that later processes map into memory.

Theory of operation. Spark loads and verifies some 20,000 classes before a query's first batch,
half of what a session's start costs. Java can keep them in a class data sharing archive: it is
written when a process ends that was told to, holds what that process had loaded, and is mapped by
all that are told of it. Java itself refuses an archive of another Java or of other jars, and goes
on without; archives are named by both, so that such are not tried.

    <folder>/<Java and Spark's jars, 16 digits>.jsa

The folder is what PENSTOCK_JAVA_CLASSES names; else `__pycache__/java` of this package, or
~/.cache/penstock/java (XDG_CACHE_HOME) for a package that is read-only. `penstock pipeline prepare`
writes the archive, with a pipeline as the process whose classes are kept.

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
"""Java tells of each class that it cannot keep."""


def with_archive(options: str) -> str:
    """Java's options with the archive, if there is one and they say nothing of it themselves."""
    found = next((path for path in _places() if path.exists()), None)
    if found is None or any(own in options for own in _OWN):
        return options
    return f"-XX:SharedArchiveFile={found} {options}".strip()


def writing(path: Path) -> str:
    """The options of a process whose classes are written to this file when it ends."""
    return f"-XX:ArchiveClassesAtExit={path} {_SILENT}"


def destination() -> Path:
    """Where an archive of this Java and this Spark is to be written.

    Raises:
        OSError: no folder can be written to.
    """
    places = _places()
    place = next((one for one in places if can_write(one.parent)), places[-1])
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


def _places() -> list[Path]:
    found = folders(FOLDER_VARIABLE, Path(__file__).parent, "java")
    return [folder / f"{_classes()}.jsa" for folder in found]


@lru_cache(maxsize=1)
def _classes() -> str:
    """What Java and what jars: an archive is good for these files only."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java") or "java"
    jars = spark_home() / "jars"
    digest = hashlib.sha256()
    for path in (Path(os.path.realpath(java)), *sorted(jars.glob("*.jar"))):
        facts = path.stat() if path.exists() else None
        digest.update(repr((str(path), facts and (facts.st_size, facts.st_mtime_ns))).encode())
    return digest.hexdigest()[:16]
