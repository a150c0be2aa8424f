"""Writes the source archive and the wheel of this version into `dist/`, as `make dist` does.

The files of git's index are packed into the archive, and the wheel is built from the unpacked
archive. Archives of one commit are equal byte for byte: files are sorted, and have the time of the
commit. The build uses the packages of `.venv` and no network.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from setuptools import build_meta

ROOT = Path(__file__).resolve().parent.parent
PACKED = ("src", "setup.py", "pyproject.toml", "README.md", "LICENSE")
"""Files and folders of the repository that the source archive has."""

COMPLETIONS = {
    "bash": "bash-completion/completions/penstock",
    "zsh": "zsh/site-functions/_penstock",
    "fish": "fish/vendor_completions.d/penstock.fish",
}
"""Where a shell looks for its completion script, below `share` of an installation."""


def commit_seconds(root: Path) -> int:
    """The time of the last commit, in seconds since 1970."""
    words = ["git", "-C", str(root), "log", "-1", "--format=%ct"]
    return int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def packed_files(root: Path) -> list[str]:
    """The files that go into the source archive, sorted; new ones that git would add, too."""
    words = ["git", "-C", str(root), "ls-files", "-z", "-co", "--exclude-standard", "--", *PACKED]
    found = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return sorted({name for name in found.split("\0") if name and (root / name).is_file()})


def copy_files(root: Path, target: Path) -> None:
    """Copy the files of the source archive into a folder."""
    for name in packed_files(root):
        copied = target / name
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / name, copied)


def write_documents(tree: Path) -> None:
    """Write the manual pages and completion scripts of a tree into its folder `share`."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}

    def penstock(*words: str) -> str:
        command = [sys.executable, "-m", "penstock", *words]
        return subprocess.run(
            command, env=environment, cwd=tree, capture_output=True, text=True, check=True
        ).stdout

    penstock("man", "--directory", "share/man/man1")
    for shell, place in COMPLETIONS.items():
        script = tree / "share" / place
        script.parent.mkdir(parents=True)
        script.write_text(penstock("completion", shell))


def source_archive(tree: Path, target: Path, seconds: int) -> Path:
    """Build the source archive of a tree; return its path."""
    here = Path.cwd()
    os.chdir(tree)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            made = target / str(build_meta.build_sdist(str(target)))
    finally:
        os.chdir(here)
    made.write_bytes(normalized(made.read_bytes(), seconds))
    return made


def normalized(archive: bytes, seconds: int) -> bytes:
    """Return a tar.gz archive with sorted files that have one time and no owner."""
    written = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(archive)) as source,
        gzip.GzipFile(fileobj=written, mode="wb", mtime=seconds, filename="") as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as target,
    ):
        for member in sorted(source.getmembers(), key=lambda member: member.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = seconds, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            target.addfile(member, source.extractfile(member) if member.isfile() else None)
    return written.getvalue()


def wheel(archive: Path, target: Path, seconds: int, *, pure: bool = False) -> Path:
    """Build the wheel from a source archive; return its path.

    Args:
        pure: whether the wheel is built without the machine code of the kernels.
    """
    target.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(seconds), "PYTHONHASHSEED": "0"}
    if pure:
        environment["PENSTOCK_WHEEL"] = "pure"
    with tempfile.TemporaryDirectory(prefix="penstock-dist-") as folder:
        with tarfile.open(archive) as source:
            source.extractall(folder, filter="data")
        (tree,) = Path(folder).iterdir()
        words = ["pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps"]
        subprocess.run(
            [sys.executable, "-m", *words, "--no-build-isolation", "--no-index",
             "--wheel-dir", str(Path(folder) / "wheels"), str(tree)],
            env=environment, check=True,
        )  # fmt: skip
        (made,) = (Path(folder) / "wheels").iterdir()
        finished = target / made.name
        shutil.move(made, finished)
        return finished


def build(target: Path, *, pure: bool = False) -> tuple[Path, Path]:
    """Write the source archive and the wheel into a folder; return their paths."""
    seconds = commit_seconds(ROOT)
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="penstock-dist-") as folder:
        copy_files(ROOT, Path(folder))
        write_documents(Path(folder))
        archive = source_archive(Path(folder), target, seconds)
    return archive, wheel(archive, target, seconds, pure=pure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, default=ROOT / "dist", help="folder; default dist/")
    parser.add_argument("--pure", action="store_true", help="leave the kernels' code out")
    options = parser.parse_args()
    for path in build(options.target.resolve(), pure=options.pure):
        print(path)


if __name__ == "__main__":
    main()
