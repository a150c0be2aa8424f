"""Spark home with an unpacked Python library, so that Spark's Python processes start faster.

Spark starts a Python process for each stream with `python/lib/pyspark.zip` of its home first on the
path, and Python compiles modules of an archive again at each start, for about a second. In this
home that name is a folder with a link to the installed package; the other entries are links:

    <folder>/<Spark's home, 16 digits>/jars, bin, …                     -> the installed ones
    <folder>/<Spark's home, 16 digits>/python/lib/pyspark.zip/pyspark   -> the installed package

PENSTOCK_SPARK_HOMES names the folder; without it, `base/shared_cache.py` chooses one. A home in
SPARK_HOME is used as it is.
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
    """Return the home for sessions of this machine; create it if it is missing.

    Returns:
        The installed home if the environment names one, if Spark is no package of this Python, and
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
    except OSError:  # another process was faster
        shutil.rmtree(made)
    return place
