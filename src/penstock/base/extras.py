"""Packages that a plain installation lacks, and the extras of Penstock that install them."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import ClassVar, Final

from penstock.base.errors import InvalidError

PACKAGES: Final = {
    "client": ("pyarrow",),
    "compile": ("numba",),
    "connect": ("psycopg2", "sqlalchemy"),
    "iceberg": ("pyiceberg",),
    "spark": ("pyspark", "deltalake", "pandas", "sqlglot"),
    "plots": ("matplotlib",),
}
"""Packages that each extra installs, as in `pyproject.toml`."""


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


def missing_extra(error: ModuleNotFoundError) -> MissingExtra | None:
    """Return the error that names the extra with a missing package; None if no extra has it."""
    package = (error.name or "").partition(".")[0]
    extras = (extra for extra, packages in PACKAGES.items() if package in packages)
    extra = next(extras, None)
    return None if extra is None else MissingExtra(package, extra)


def check_installed(extra: str) -> None:
    """Check that the packages of an extra are installed, without importing them.

    Raises:
        MissingExtra: one of them is not.
    """
    for package in PACKAGES[extra]:
        if find_spec(package) is None:
            raise MissingExtra(package, extra)
