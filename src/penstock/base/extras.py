"""Packages that a plain installation lacks, and the extras of Penstock that install them.

compile   Numba, which compiles kernels that a wheel does not have for this platform
spark     PySpark, Delta tables and the parser of SQL
plots     Matplotlib
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import ClassVar

from penstock.base.errors import InvalidError


class MissingExtra(InvalidError):
    """Call that needs a package that only an extra of Penstock installs."""

    code: ClassVar[str] = "invalid_request"

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"the Python package {package} is not installed. Install it with: pip install"
            f" 'penstock[{extra}]', or '.[{extra}]' in a clone of Penstock"
        )
        self.package = package
        self.extra = extra


def required(module: str, extra: str) -> ModuleType:
    """Import and return a module that only an extra of Penstock installs, or that needs one.

    Raises:
        MissingExtra: a package of another project is not installed.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = (error.name or module).partition(".")[0]
        if package == "penstock":
            raise
        raise MissingExtra(package, extra) from error


def check_installed(package: str, extra: str) -> None:
    """Check that a package is installed, without importing it.

    Raises:
        MissingExtra: it is not.
    """
    if find_spec(package) is None:
        raise MissingExtra(package, extra)
