"""The image of the container file, as far as it can be checked without a container engine.

The context is what the ignore file lets through; the wheel is made from that context; the installed
wheel runs on the packages of the image's lock file and on nothing else.
"""

from __future__ import annotations

import re
import subprocess
from importlib.metadata import requires
from pathlib import Path, PurePosixPath
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

from tests.deploy.files import (
    CONTAINER,
    DEPLOY,
    IGNORED,
    LOCK,
    ROOT,
    Mistake,
    context_files,
    instructions,
    patterns,
    plant,
)
from tests.deploy.image import RUN, command, locked

SERVE_SECONDS_MAX = 60


def missing_from_context(deployment: Path) -> list[str]:
    """Return paths copied without being sent, or sent without being copied."""
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
    assert missing_from_context(DEPLOY) == []


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
    sent = {str(path) for path in context_files(DEPLOY)}
    assert "src/penstock/apps/cli.py" in sent
    assert not [path for path in sent if "__pycache__" in path or ".egg-info" in path]
    assert patterns(DEPLOY / IGNORED)[0] == "*"


def test_the_lock_is_part_of_the_development_lock() -> None:
    run, development = locked(DEPLOY / LOCK), locked(ROOT / "requirements" / "dev.txt")
    assert {name: development.get(name) for name in run} == run
    assert all("--hash=sha256:" in line for lines in run.values() for line in lines)


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def needed(package: str, extra: str) -> set[str]:
    """The packages that `package` with an extra needs to run here, with all they need."""
    found: set[str] = set()
    waiting = [package]
    while waiting:
        needing = waiting.pop()
        environment = {"extra": extra if needing == package else ""}
        for text in requires(needing) or ():
            requirement = Requirement(text)
            name, marker = normal(requirement.name), requirement.marker
            if name in found or not (marker is None or marker.evaluate(environment)):
                continue
            found.add(name)
            waiting.append(name)
    return found


def test_the_lock_has_what_running_needs_and_no_more() -> None:
    found = needed("penstock", extra="compile") | needed("penstock", extra="client")
    assert found == set(locked(DEPLOY / LOCK))


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
