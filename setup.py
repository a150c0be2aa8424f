"""Build of the extension module that has the kernels' machine code, for platform wheels.

Everything else is declared in `pyproject.toml`. For an editable installation `scripts/kernels.py`
builds the module. A wheel that is built without Numba, or with PENSTOCK_WHEEL=pure in the
environment, has no such module: Numba compiles the kernels when they are first used, and has to be
installed with `penstock[compile]`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
NATIVE = "penstock.kernels._native"
EDITABLE = ("editable_wheel", "develop")


class BuildKernels(build_ext):
    """Compiler of the kernels: `penstock.kernels.ahead` in its own process, then C."""

    def build_extension(self, ext: Extension) -> None:
        folder = Path(self.build_temp).resolve() / "kernels"
        folder.mkdir(parents=True, exist_ok=True)
        # pip passes the build requirements to processes by PYTHONPATH.
        search = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(search), "PYTHONHASHSEED": "0"}
        subprocess.run(
            [sys.executable, "-m", "penstock.kernels.ahead", str(folder)],
            cwd=folder, env=environment, check=True,
        )  # fmt: skip
        ext.sources = [os.path.relpath(folder / "native.c")]
        ext.extra_objects = [str(folder / "kernels.o")]
        super().build_extension(ext)


class TaggedWheel(bdist_wheel):
    """Wheel for all versions of Python from 3.11 on, if it has the extension module."""

    def finalize_options(self) -> None:
        if self.distribution.has_ext_modules():
            self.py_limited_api = "cp311"
        super().finalize_options()


def extensions() -> list[Extension]:
    if os.environ.get("PENSTOCK_WHEEL") == "pure" or not find_spec("numba"):
        return []
    if any(command in sys.argv for command in EDITABLE):
        return []
    flags = ["-O2", "-g0"]
    return [Extension(NATIVE, [], py_limited_api=True, extra_compile_args=flags)]


def documents() -> list[tuple[str, list[str]]]:
    """The manual pages and completion scripts that `scripts/dist.py` writes, by folder."""
    folders = sorted({path.parent for path in ROOT.glob("share/**/*") if path.is_file()})
    return [
        (
            str(folder.relative_to(ROOT)),
            sorted(str(path.relative_to(ROOT)) for path in folder.iterdir() if path.is_file()),
        )
        for folder in folders
    ]


setup(
    data_files=documents(),
    ext_modules=extensions(),
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": TaggedWheel},
)
