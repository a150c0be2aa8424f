"""Content of the container image, checked without a container engine."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path, PurePosixPath
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

from tests.deploy.files import (
    CONTAINER,
    HOST,
    IGNORED,
    LOCK,
    ROOT,
    Mistake,
    context_files,
    copy_context,
    instructions,
    patterns,
    plant,
)
from tests.deploy.image import RUN, command, locked

SERVE_SECONDS_MAX = 60
STEP_SECONDS_MAX = 300
"""A step installs packages, which a busy machine also has to fetch."""


def missing_from_context(deployment: Path) -> list[str]:
    copied = {
        PurePosixPath(source)
        for line in instructions(deployment / CONTAINER)
        if line.name == "COPY"
        for source in line.copied
    }
    sent = context_files(deployment)
    lost = [path for path in copied if not any(path in (file, *file.parents) for file in sent)]
    idle = [file for file in sent if not copied & {file, *file.parents}]
    return [f"not sent: {path}" for path in lost] + [f"not copied: {path}" for path in idle]


def test_what_is_copied_is_there() -> None:
    assert missing_from_context(HOST) == []


@pytest.mark.parametrize(
    "mistake",
    [
        Mistake(file=CONTAINER, old="COPY src ", new="COPY source ", complaint="sent: source"),
        Mistake(file=CONTAINER, old="build.txt .", new="prod.txt .", complaint="prod.txt"),
        Mistake(file=IGNORED, old="!src\n", new="", complaint="not sent: src"),
        Mistake(file=IGNORED, old="!README.md", new="!docs", complaint="not copied: docs"),
    ],
    ids=str,
)
def test_a_lost_file_is_found(mistake: Mistake, tmp_path: Path) -> None:
    assert mistake.complaint in "\n".join(missing_from_context(plant(mistake, tmp_path)))


def test_nothing_needless_is_sent() -> None:
    sent = {str(path) for path in context_files(HOST)}
    assert "src/penstock/apps/cli.py" in sent
    assert not [path for path in sent if "__pycache__" in path or ".egg-info" in path]
    assert patterns(HOST / IGNORED)[0] == "*"


def test_the_lock_is_part_of_the_development_lock() -> None:
    run, development = locked(HOST / LOCK), locked(ROOT / "requirements" / "dev.txt")
    assert {name: development.get(name) for name in run} == run
    assert all("--hash=sha256:" in line for lines in run.values() for line in lines)


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def needed(package: str) -> set[str]:
    """The packages that `package` needs to run here, with all they need."""
    found: set[str] = set()
    waiting = [package]
    while waiting:
        for text in requires(waiting.pop()) or ():
            requirement = Requirement(text)
            name = normal(requirement.name)
            if name in found or not (requirement.marker is None or requirement.marker.evaluate()):
                continue
            found.add(name)
            waiting.append(name)
    return found


def test_the_lock_has_what_running_needs_and_no_more() -> None:
    assert needed("penstock") == set(locked(HOST / LOCK))


def test_the_wheel_holds_the_packages(wheel: Path) -> None:
    source = ROOT / "src"
    kept = {".py", ".sql", ".typed"}
    wanted = {
        str(path.relative_to(source))
        for package in ("penstock", "pyspark_penstock")
        for path in (source / package).rglob("*")
        if path.suffix in kept and "__pycache__" not in path.parts
    }
    assert len(wanted) > 100
    with ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (points,) = (name for name in names if name.endswith("/entry_points.txt"))
        assert "penstock = penstock.apps.cli:main" in archive.read(points).decode()
    assert wanted - names == set()


def test_the_entry_point_works(image: Path) -> None:
    done = subprocess.run(
        command(image, "--version"),
        capture_output=True,
        text=True,
        check=True,
        timeout=SERVE_SECONDS_MAX,
    )
    assert done.stdout.startswith("penstock, version")


def test_packages_outside_the_lock_are_not_seen(image: Path) -> None:
    words = command(image)
    words[words.index("-c") + 1] = words[words.index("-c") + 1].replace(RUN, "import pytest")
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=SERVE_SECONDS_MAX
    )
    assert "No module named 'pytest'" in done.stderr


def serve_and_stop(command: list[str], folder: Path) -> int:
    """Start a broker, wait for its ready line, end it; its status."""
    words = ["serve", "--data-dir", str(folder / "data"), "--listener", "127.0.0.1:0"]
    with subprocess.Popen(
        [*command, *words, "--admin", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True
    ) as broker:
        try:
            assert broker.stdout is not None
            assert broker.stdout.readline().startswith("penstock ready kafka=127.0.0.1:")
            broker.send_signal(signal.SIGTERM)
            return broker.wait(SERVE_SECONDS_MAX)
        finally:
            broker.kill()


def test_a_broker_runs_from_the_image(image: Path, tmp_path: Path) -> None:
    assert serve_and_stop(command(image), tmp_path) == 0


@pytest.mark.slow
@pytest.mark.interop
@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_build_works_step_by_step(tmp_path: Path) -> None:
    """The build stage's instructions, carried out in a folder instead of a container.

    A fresh environment stands for the base image; packages come from the index by their hashes.
    """
    context, base, root = tmp_path / "context", tmp_path / "base", tmp_path / "root"
    copy_context(HOST, context)
    subprocess.run([sys.executable, "-m", "venv", base], check=True)
    environment = {**os.environ, "PATH": f"{base}/bin:{os.environ['PATH']}"}
    environment.pop("PYTHONPATH", None)
    working = root
    for line in (
        instruction for instruction in instructions(HOST / CONTAINER) if instruction.stage == 0
    ):
        words = line.words.replace("/opt/penstock", f"{root}/opt/penstock")
        if line.name == "WORKDIR":
            working = root / line.words.lstrip("/")
            working.mkdir(parents=True)
        elif line.name == "ENV":
            environment |= dict(pair.split("=", 1) for pair in shlex.split(words))
        elif line.name == "COPY":
            copy(context, line.copied, working / shlex.split(words)[-1])
        elif line.name == "RUN":
            (root / "opt").mkdir(exist_ok=True)
            run_step(words, working, environment)
    python = root / "opt/penstock/bin/python"
    checked = [sys.executable, "-m", "pip", "--python", str(python), "check"]
    subprocess.run(checked, check=True, timeout=STEP_SECONDS_MAX)
    assert subprocess.run([python, "-c", "import pip"], capture_output=True).returncode == 1
    assert serve_and_stop([str(root / "opt/penstock/bin/penstock")], tmp_path) == 0


def copy(context: Path, sources: list[str], target: Path) -> None:
    for source in sources:
        path = context / source
        if path.is_dir():
            shutil.copytree(path, target, dirs_exist_ok=True)
        else:
            shutil.copy(path, target)


def run_step(words: str, folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(
        ["sh", "-c", words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=STEP_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
