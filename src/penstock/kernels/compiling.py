"""Decorators of kernels, which choose between built machine code and compilation by Numba.

A platform wheel has a module `_native` with the machine code of all kernels (`ahead.py` builds it);
`make setup` builds it into a clone. Then Numba is not imported, and need not be installed. Without
that module, or if it was built from other sources, Numba compiles the kernels at their first use
and caches their code (`jit.py`).
Importing this module raises MissingExtra if Numba is needed and is not installed.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from penstock.base.extras import required
from penstock.kernels.sources import NATIVE, modules

Function = TypeVar("Function", bound=Callable[..., Any])
if NATIVE is None:
    required("numba", "compile")


def kernel(signature: str, *, inlined: bool = False) -> Callable[[Function], Function]:
    """Return a decorator that turns a function into a kernel for the types of a signature.

    `signature` is Numba's, as `int64(uint8[::1], int64)`. The function may call other kernels of
    this package; an `inlined` kernel becomes part of each caller. Kernels cannot allocate memory.
    """

    def chosen(function: Function) -> Function:
        if NATIVE is not None:
            return getattr(NATIVE, symbol(function), function)
        from penstock.kernels.jit import compiled

        return compiled(function, signature, inlined=inlined)

    return chosen


def intrinsic(function: Callable[..., Any]) -> Any:
    """Return a function that generates machine code for kernels, as Numba's `intrinsic`."""
    if NATIVE is not None:
        return function
    from numba import extending

    return extending.intrinsic(function)


def symbol(function: Callable[..., Any]) -> str:
    """Return the name of a kernel in the module of compiled kernels."""
    return f"{function.__module__.rpartition('.')[2]}_{function.__name__}"


def compile_all() -> Path:
    """Compile every kernel that is not compiled yet; return where the code is.

    Raises:
        OSError: the folder of compiled kernels cannot be written to.
    """
    for name in modules():
        import_module(f"{__package__}.{name}")
    if NATIVE is not None:
        return Path(str(NATIVE.__file__))
    from penstock.kernels.jit import stored

    return stored()
