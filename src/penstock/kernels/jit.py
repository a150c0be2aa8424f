"""Compiler of kernels at run time by Numba, and the cache of their code.

All processes share the cache. The code is in the first of these folders that is writable, or that
already has it:

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

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from numba import njit, types
from numba.core.caching import CompileResultCacheImpl, FunctionCache, _CacheLocator
from numba.core.compiler_lock import global_compiler_lock
from numba.np import arrayobj

from penstock.base.files import can_write, folders
from penstock.kernels.sources import BUILDING, CHECKED, digest

logger = logging.getLogger(__name__)

Function = TypeVar("Function", bound=Callable[..., Any])

FOLDER_VARIABLE: Final = "PENSTOCK_KERNELS"
_HERE: Final = Path(__file__).parent


def compiled(function: Function, signature: str, *, inlined: bool) -> Function:
    """Return a dispatcher that runs the function for the types of a signature, without the GIL.

    Kernels cannot allocate memory. Otherwise Numba would count references to each array at each
    call, which takes longer than a short kernel.
    """
    if BUILDING:  # errors contain the file's name, which has to be the same in each build
        name = Path(function.__code__.co_filename).name
        function.__code__ = function.__code__.replace(co_filename=name)
    dispatcher: Any = njit(nogil=True, boundscheck=CHECKED, forceinline=inlined, _nrt=False)(
        function
    )
    if not BUILDING:
        dispatcher._cache = _Cache(function)
    with _plain_indexes():
        dispatcher.compile(signature)
    dispatcher.disable_compile()
    return dispatcher  # type: ignore[no-any-return]


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


def stored() -> Path:
    """Return the folder of the cache.

    Raises:
        OSError: it has no code and cannot be written to.
    """
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
def _warn_once(cause: str) -> None:
    logger.warning(
        "compiled kernels cannot be stored in %s (%s): every process compiles them again, which"
        " takes seconds. Run `penstock kernels` once as a user who may write there, or set %s to"
        " another folder",
        folder(), cause, FOLDER_VARIABLE,
    )  # fmt: skip


@lru_cache(maxsize=1)
def _announce() -> None:
    logger.warning("compiling kernels for this machine, which takes about half a minute")


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
        return digest()

    def get_disambiguator(self) -> str:
        return self._name


class _Kept(CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = [_Place]


class _Cache(FunctionCache):  # type: ignore[misc]
    """Numba's cache with files in `folder()`; ignores errors of a folder that is not writable."""

    _impl_class = _Kept

    def load_overload(self, signature: Any, target: Any) -> Any:
        found = None
        with suppress(OSError):
            found = super().load_overload(signature, target)
        if found is None:
            _announce()
        return found

    def save_overload(self, signature: Any, data: Any) -> None:
        try:
            super().save_overload(signature, data)
        except OSError as error:
            _warn_once(str(error.strerror or error))
