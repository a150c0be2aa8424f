"""Builds the machine code of the kernels into this clone, as a platform wheel has it.

`make setup` runs it, and runs it again after a change of the kernels. Python loads the module only
if its digest is that of the present sources (`kernels/sources.py`), so an old module is never
used. Without a C compiler and Python's headers, Numba compiles the kernels at their first use.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final

from penstock.kernels import sources

ROOT: Final = Path(__file__).resolve().parents[1]
FOLDER: Final = Path("penstock", "kernels")
NAME: Final = "_native.abi3.so"
BUILT: Final = ROOT / ".cache" / "kernels"


def main() -> None:
    target = ROOT / "src" / FOLDER / NAME
    if sources.NATIVE is not None:
        target.touch()  # newer than the sources, for make
        return
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not shutil.which("cc") or not header.is_file():
        print("No C compiler or no Python.h: Numba compiles the kernels at their first use.")
        return
    print("Building the machine code of the kernels (about half a minute)", flush=True)
    words = ["build_ext", "--build-lib", str(BUILT), "--build-temp", str(BUILT)]
    subprocess.run([sys.executable, "setup.py", "--quiet", *words], cwd=ROOT, check=True)
    # By a rename, because running processes have the old file mapped.
    os.replace(BUILT / FOLDER / NAME, target)


if __name__ == "__main__":
    main()
