"""Source files of the kernels, their digest, and the machine code that was built from them."""

from __future__ import annotations

import hashlib
import os
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Final

CHECKED: Final = os.environ.get("PENSTOCK_KERNELS_CHECKED") == "1"
"""Whether each index of an array is checked, for tests; needs Numba."""
BUILDING: Final = os.environ.get("PENSTOCK_KERNELS_BUILD") == "1"
"""Whether this process builds the machine code of a wheel: Numba compiles, and caches nothing."""
_HERE: Final = Path(__file__).parent
_OTHERS: Final = ("__init__", "ahead", "compiling", "jit", "sources", "wrapping")


def modules() -> list[str]:
    """Return the names of the modules that have kernels, sorted."""
    return sorted(path.stem for path in _HERE.glob("*.py") if path.stem not in _OTHERS)


@lru_cache(maxsize=1)
def digest() -> str:
    """Return the digest of all sources, because kernels are compiled into each other."""
    made = hashlib.sha256()
    for path in sorted(_HERE.glob("*.py")):
        made.update(path.read_bytes())
    return made.hexdigest()


def _native() -> ModuleType | None:
    if CHECKED or BUILDING:
        return None
    try:
        module = import_module("penstock.kernels._native")
    except ImportError:
        return None
    return module if digest() == module.SOURCES else None


NATIVE: Final = _native()
"""Module of the kernels' machine code; None if Numba compiles them."""
