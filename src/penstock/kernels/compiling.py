"""Cache of compiled kernels, shared by all processes.

The code is in the first of these folders that is writable, or that already has it:

    PENSTOCK_KERNELS                       if it is set
    `__pycache__/kernels` of this package  made by `make setup` or `penstock kernels`
    ~/.cache/penstock/kernels              (XDG_CACHE_HOME) for a package that is read-only

The code is valid for one version of this package's sources, of Python and of Numba, and for one
type of processor. Files are renamed into place, so processes may share a folder. If no folder is
usable, every process compiles the kernels again, and logs a warning.

With PENSTOCK_KERNELS_CHECKED=1, for tests, every index of an array is checked: an index outside of
the array raises IndexError. A negative index is outside too. Kernels do not support Python's
negative indexes, which would cost a fifth of the time of kernels that read records and messages.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from numba import njit, types
from numba.core.caching import CompileResultCacheImpl, FunctionCache, _CacheLocator
from numba.core.compiler_lock import global_compiler_lock
from numba.np import arrayobj

from penstock.base.files import can_write, folders

logger = logging.getLogger(__name__)

Function = TypeVar("Function", bound=Callable[..., Any])

FOLDER_VARIABLE: Final = "PENSTOCK_KERNELS"
CHECKED: Final = os.environ.get("PENSTOCK_KERNELS_CHECKED") == "1"
_HERE: Final = Path(__file__).parent


def kernel(signature: str, *, inlined: bool = False) -> Callable[[Function], Function]:
    """Return a decorator that compiles a function for the types of a signature.

    `signature` is Numba's, as `int64(uint8[::1], int64)`. The function may call other kernels of
    this package; an `inlined` kernel becomes part of each caller. Kernels cannot allocate memory.
    Otherwise Numba would count references to each array at each call, which takes longer than a
    short kernel.
    """

    def compiled(function: Function) -> Function:
        dispatcher: Any = njit(nogil=True, boundscheck=CHECKED, forceinline=inlined, _nrt=False)(
            function
        )
        dispatcher._cache = _Cache(function)
        with _plain_indexes():
            dispatcher.compile(signature)
        dispatcher.disable_compile()
        return dispatcher  # type: ignore[no-any-return]

    return compiled


@contextmanager
def _plain_indexes() -> Iterator[None]:
    """Make Numba compile indexes without support for negative ones.

    Numba's lock is held, so that other threads compile as usual.
    """
    with global_compiler_lock:
        usual = arrayobj.fix_integer_index
        arrayobj.fix_integer_index = _index
        try:
            yield
        finally:
            arrayobj.fix_integer_index = usual


def _index(context: Any, builder: Any, kind: Any, value: Any, size: Any) -> Any:
    return context.cast(builder, value, kind, types.intp if kind.signed else types.uintp)


def compile_all() -> Path:
    """Compile every kernel that is not cached yet; return the folder of the cache.

    Raises:
        OSError: the folder cannot be written to.
    """
    for path in sorted(_HERE.glob("*.py")):
        if path.stem != "__init__":
            import_module(f"{__package__}.{path.stem}")
    if not _has_code(folder()) and not can_write(folder()):
        raise PermissionError(f"compiled kernels cannot be stored in {folder()}: not writable")
    return folder()


@lru_cache(maxsize=1)
def folder() -> Path:
    candidates = folders(FOLDER_VARIABLE, _HERE, "kernels")
    if CHECKED:
        candidates = tuple(place / "checked" for place in candidates)
    return next(
        (place for place in candidates if _has_code(place) or can_write(place)), candidates[-1]
    )


def _has_code(path: Path) -> bool:
    return path.is_dir() and any(path.glob("*.nbi"))


@lru_cache(maxsize=1)
def _sources() -> str:
    """Return the digest of all kernels' sources, because kernels are compiled into each other."""
    digest = hashlib.sha256()
    for path in sorted(_HERE.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


@lru_cache(maxsize=1)
def _warn_once(cause: str) -> None:
    logger.warning(
        "compiled kernels cannot be stored in %s (%s): every process compiles them again, which"
        " takes seconds. Run `penstock kernels` once as a user who may write there, or set %s to"
        " another folder",
        folder(), cause, FOLDER_VARIABLE,
    )  # fmt: skip


class _Place(_CacheLocator):  # type: ignore[misc]
    def __init__(self, function: Callable[..., Any], file: str) -> None:
        self._py_file = file
        self._name = Path(file).stem

    @classmethod
    def from_function(cls, function: Callable[..., Any], file: str) -> Self:
        return cls(function, file)

    def get_cache_path(self) -> str:
        return str(folder())

    def get_source_stamp(self) -> str:
        return _sources()

    def get_disambiguator(self) -> str:
        return self._name


class _Kept(CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = [_Place]


class _Cache(FunctionCache):  # type: ignore[misc]
    """Numba's cache with files in `folder()`; ignores errors of a folder that is not writable."""

    _impl_class = _Kept

    def load_overload(self, signature: Any, target: Any) -> Any:
        try:
            return super().load_overload(signature, target)
        except OSError:
            return None

    def save_overload(self, signature: Any, data: Any) -> None:
        try:
            super().save_overload(signature, data)
        except OSError as error:
            _warn_once(str(error.strerror or error))
