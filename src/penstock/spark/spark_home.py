"""Spark home with an unpacked Python library, so that Spark's Python processes start faster.

Spark starts a Python process for each stream, with `python/lib/pyspark.zip` of its home first on
the module path. Python does not cache compiled modules of a zip archive and compiles them at each
start, for about a second. In this home, `pyspark.zip` is a directory that links to the installed
package, and all other entries are links:

    <folder>/<digest of the installed home, 16 digits>/
        jars, bin, …                     -> the installed ones
        python/lib/pyspark.zip/pyspark   -> the installed package

PENSTOCK_SPARK_HOMES sets the folder. Otherwise it is `__pycache__/spark` of this package or, if the
package is read-only, ~/.cache/penstock/spark (XDG_CACHE_HOME). A home that SPARK_HOME names is used
unchanged.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from functools import lru_cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

import pyspark
from pyspark.find_spark_home import _find_spark_home

from penstock.base.shared_cache import can_write, folders

FOLDER_VARIABLE: Final = "PENSTOCK_SPARK_HOMES"
HOME_VARIABLE: Final = "SPARK_HOME"
_ARCHIVE: Final = "pyspark.zip"
_LINKED: Final = ("bin", "conf", "data", "jars", "licenses", "sbin")


def spark_home() -> Path:
    """Return the Spark home for sessions of this machine; create it if it is missing.

    Returns:
        The installed home if SPARK_HOME is set, if Spark is not installed as a Python package, or
            if no folder is writable.
    """
    installed = Path(_find_spark_home())
    package = Path(pyspark.__file__).parent
    if HOME_VARIABLE in os.environ or installed != package:
        return installed
    return _unpacked(package) or installed


@lru_cache(maxsize=1)
def _unpacked(package: Path) -> Path | None:
    name = hashlib.sha256(f"{package} {pyspark.__version__}".encode()).hexdigest()[:16]
    candidates = [
        folder / name for folder in folders(FOLDER_VARIABLE, Path(__file__).parent, "spark")
    ]
    found = next((place for place in candidates if place.exists()), None)
    if found is not None:
        return found
    place = next((place for place in candidates if can_write(place.parent)), None)
    if place is None:
        return None
    made = Path(mkdtemp(dir=place.parent))
    for name in _LINKED:
        if (package / name).exists():
            (made / name).symlink_to(package / name)
    library = made / "python" / "lib"
    (library / _ARCHIVE).mkdir(parents=True)
    (library / _ARCHIVE / package.name).symlink_to(package)
    for archive in (package / "python" / "lib").iterdir():
        if archive.name != _ARCHIVE:
            (library / archive.name).symlink_to(archive)
    try:
        made.rename(place)
    except OSError:  # another process created it first
        shutil.rmtree(made)
    return place
