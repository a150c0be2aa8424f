"""An installed image without a container engine: the wheel, and the packages of the lock file.

The wheel is made from the build's context alone. `command` runs it on the standard library and the
locked packages; what else is installed on this machine is not seen.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path, PurePosixPath
from zipfile import ZipFile

from tests.deploy.files import DEPLOY, LOCK, copy_context

BUILD_SECONDS_MAX = 110
RUN = "from penstock.apps.cli import main; main()"


def locked(path: Path) -> dict[str, set[str]]:
    """The blocks of a lock file by package: version, marker and hashes on one line each."""
    found: dict[str, set[str]] = {}
    for line in re.sub(r"\\\n\s*", " ", path.read_text()).splitlines():
        found.setdefault(line.partition("==")[0], set()).add(line)
    return found


def make_wheel(context: Path) -> Path:
    """The wheel, made from the context as the container file makes it, but without machine code."""
    copy_context(DEPLOY, context)
    words = ["pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "."]
    subprocess.run(
        [sys.executable, "-m", *words, "--wheel-dir", "wheels"],
        cwd=context,
        env={**os.environ, "PENSTOCK_WHEEL": "pure"},  # machine code takes half a minute
        check=True,
        timeout=BUILD_SECONDS_MAX,
    )
    (found,) = (context / "wheels").glob("*.whl")
    return found


def install(wheel: Path, folder: Path) -> None:
    """Fill a folder with the wheel and the locked packages: all that can be imported from it."""
    with ZipFile(wheel) as archive:
        archive.extractall(folder)
    for name, blocks in locked(DEPLOY / LOCK).items():
        found = distribution(name)
        assert any(f"{name}=={found.version} " in block for block in blocks), (
            f"{name} is not locked"
        )
        tops = {PurePosixPath(file).parts[0] for file in found.files or ()} - {"..", "__pycache__"}
        for top in tops:
            if not (folder / top).is_symlink():  # several packages may share a namespace
                (folder / top).symlink_to(Path(str(found.locate_file(top))))


def command(image: Path, *words: str) -> list[str]:
    """A command line that sees the standard library and the image, and no site directory."""
    return _python(image, RUN, *words)


def script(image: Path, program: Path, *words: str) -> list[str]:
    """The same for a program of its own."""
    run = f"import runpy; runpy.run_path({str(program)!r}, run_name='__main__')"
    return _python(image, run, *words)


def _python(image: Path, code: str, *words: str) -> list[str]:
    start = f"import sys; sys.path.insert(0, {str(image)!r}); {code}"
    return [sys.executable, "-I", "-S", "-c", start, *words]
