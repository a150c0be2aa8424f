"""Errors that name the extra of a package that is not installed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from penstock.base.extras import (
    PACKAGES,
    MissingExtra,
    check_installed,
    missing_extra,
    required,
)

BLOCK = """
import sys
sys.modules.update(dict.fromkeys({packages!r}))
from penstock.apps.cli import main
main({words!r})
"""


def without(packages: set[str], *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process where some packages cannot be imported."""
    blocked = packages | {"penstock.kernels._native"}  # machine code would need no compiler
    code = BLOCK.format(packages=blocked, words=list(words))
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("package", "extra", "words"),
    [
        ("pyarrow", "client", ("produce", "orders")),
        ("pyarrow", "client", ("consume", "orders")),
        ("numba", "compile", ("kernels",)),
        ("llvmlite", "compile", ("kernels",)),
        ("pyspark", "spark", ("pipeline", "status", "none.toml")),
        ("deltalake", "spark", ("pipeline", "validate", "none.toml")),
        ("pandas", "spark", ("pipeline", "plan", "none.toml")),
        ("sqlglot", "spark", ("pipeline", "plan", "none.toml")),
    ],
)
def test_a_command_names_the_extra(package: str, extra: str, words: tuple[str, ...]) -> None:
    done = without({package}, *words)
    assert done.returncode == 1
    assert f"package {package} is not installed" in done.stderr
    assert f"pip install 'penstock[{extra}]'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_doctor_names_a_package_that_pipelines_lack() -> None:
    done = without({"pandas"}, "doctor", "--local", "--output", "json")
    (finding,) = (item for item in json.loads(done.stdout) if item["check"] == "Spark")
    assert (finding["status"], finding["cause"]) == ("warn", "pandas is not installed")


def test_extras_are_those_of_the_project() -> None:
    path = Path(__file__).resolve().parents[2] / "pyproject.toml"
    extras = tomllib.loads(path.read_text())["project"]["optional-dependencies"]
    for extra, packages in PACKAGES.items():
        names = {re.split(r"[^\w-]", item)[0] for item in extras[extra]} - {"penstock"}
        assert {name.removesuffix("-binary") for name in names} == {*packages}
    assert "penstock[client]" in extras["spark"]


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("penstock.client", "ValueSchema"),
        ("penstock.outbox", "OutboxConsumer"),
        ("penstock.security.data", "FieldEncoder"),
        ("penstock.records.columnar", "decode_batches"),
    ],
)
def test_a_public_name_that_needs_pyarrow_names_the_extra(module: str, name: str) -> None:
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from penstock.base.extras import MissingExtra\n"
        f"import {module} as module\n"
        f"try: module.{name}\n"
        "except MissingExtra as error: print(error.package, error.extra)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["pyarrow", "client"]


def test_a_missing_package_of_no_extra_stays_an_error() -> None:
    assert missing_extra(ModuleNotFoundError(name="no_such_package")) is None
    error = missing_extra(ModuleNotFoundError(name="pyarrow.compute"))
    assert error is not None
    assert (error.package, error.extra) == ("pyarrow", "client")


def test_a_module_that_is_there_is_returned() -> None:
    assert required("json.decoder", "plots").__name__ == "json.decoder"
    check_installed("spark")


def test_a_package_that_is_missing_is_named() -> None:
    with pytest.raises(MissingExtra, match="package no_such_package is not") as raised:
        required("no_such_package.part", "plots")
    assert (raised.value.package, raised.value.extra) == ("no_such_package", "plots")


def test_an_error_of_our_own_module_stays_as_it_is() -> None:
    with pytest.raises(ModuleNotFoundError) as raised:
        required("penstock.no_such_module", "plots")
    assert not isinstance(raised.value, MissingExtra)
