"""The image of the container file, built without a container engine, and run without root.

The base image is a Debian root with Python, made by mmdebstrap and named like the container file's
base image. buildah builds on it, with the storage driver vfs and in a changed root. bubblewrap runs
the result as the image's user in name spaces of its own, without capabilities, with a read-only
root, and with the image's first process as process 1.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.deploy.files import CONTAINER, DEPLOY, IGNORED, ROOT, instructions
from tests.deploy.linters import need_root
from tests.machine import system_tool

BUILD_SECONDS_MAX: Final = 1500
SECONDS_MAX: Final = 60
TAG: Final = "localhost/penstock-test"
PACKAGES: Final = (
    "python3",
    "python3-dev",
    "python3-venv",
    "python3-pip",
    "python-is-python3",
    "ca-certificates",
)
RELEASE: Final = "bookworm"
MACHINE_FILES: Final = ("/etc/ssl/certs", "/etc/pip.conf")
"""Certificates and settings with which this machine reaches its package indexes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltImage:
    """Image whose files are in a directory; `config` is its configuration in Docker's format."""

    root: Path
    config: dict[str, Any]
    first_processes: dict[int, int] = field(default_factory=dict)
    """Process 1 of each running container, by the process id of bubblewrap."""

    def data_directory(self, folder: Path) -> Path:
        """Create the directory of a volume, with the owner that the image gives it."""
        folder.mkdir(exist_ok=True)
        for parent in (folder, *folder.parents[:-1]):
            parent.chmod(parent.stat().st_mode | 0o001)
        data = folder / "data"
        data.mkdir()
        os.chown(data, *self._user())
        return data

    @contextmanager
    def running(
        self, data: Path, environment: Mapping[str, str]
    ) -> Iterator[subprocess.Popen[str]]:
        """Run the image's command; kill it at the end of the context if it still runs."""
        read, write = os.pipe()
        words = [*self.config["Entrypoint"], *self.config["Cmd"]]
        command = self._confined(data, words, environment, "--info-fd", str(write))
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, pass_fds=[write]
        ) as process:
            os.close(write)
            with os.fdopen(read) as info:
                self.first_processes[process.pid] = json.load(info)["child-pid"]
            try:
                yield process
            finally:
                process.kill()

    def stop(self, process: subprocess.Popen[str]) -> int:
        """Send the image's stop signal to process 1, as engines do; return the exit status."""
        number = signal.Signals[self.config["StopSignal"]]
        os.kill(self.first_processes[process.pid], number)
        return process.wait(SECONDS_MAX)

    def shell(self, data: Path, script: str) -> str:
        """Return what a shell script prints in a container."""
        words = [*self.config["Entrypoint"][:-1], "sh", "-c", f"exec 2>&1; {script}"]
        done = subprocess.run(
            self._confined(data, words, {}),
            stdout=subprocess.PIPE,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        return done.stdout

    def _user(self) -> tuple[int, int]:
        user, group = self.config["User"].split(":")
        return int(user), int(group)

    def _confined(
        self, data: Path, words: list[str], environment: Mapping[str, str], *options: str
    ) -> list[str]:
        user, group = self._user()
        own = dict(pair.split("=", 1) for pair in self.config["Env"])
        variables = [
            word
            for name, value in {**own, **environment}.items()
            for word in ("--setenv", name, value)
        ]
        (volume,) = self.config["Volumes"]
        return [
            *("setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups"),
            *("--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"),
            *(system_tool("bwrap", "bubblewrap"), "--ro-bind", str(self.root), "/"),
            *("--bind", str(data), volume, "--tmpfs", "/tmp"),
            *("--proc", "/proc", "--dev", "/dev", "--unshare-all", "--share-net"),
            *("--uid", str(user), "--gid", str(group), "--cap-drop", "ALL"),
            *("--as-pid-1", "--die-with-parent", "--clearenv", *variables, *options),
            *words,
        ]


@contextmanager
def build(folder: Path) -> Iterator[BuiltImage]:
    """Build the image below `folder`; remove it at the end of the context."""
    need_root("change its root")
    store = folder / "store"
    buildah = [
        *(system_tool("buildah", "buildah"), "--storage-driver", "vfs"),
        *("--root", str(store), "--runroot", str(folder / "run")),
    ]
    base = instructions(DEPLOY / CONTAINER)[0].words.split()[0]
    make_base(buildah, base, folder / "base.tar")
    machine = [path for path in MACHINE_FILES if Path(path).exists()]
    mounts = [word for path in machine for word in ("--volume", f"{path}:{path}:ro")]
    call(
        *(*buildah, "build", "--isolation", "chroot", "--network", "host", "--pull=never"),
        *("--format", "docker", "--tag", TAG, *mounts),
        *("--ignorefile", str(DEPLOY / IGNORED)),
        *("--file", str(DEPLOY / CONTAINER), str(ROOT)),
    )
    config = json.loads(call(*buildah, "inspect", "--type", "image", TAG))["Docker"]["config"]
    working = call(*buildah, "from", "--pull=never", TAG).strip()
    root = Path(call(*buildah, "mount", working).strip())
    for parent in root.parents[:-1]:  # another user than root runs the image
        parent.chmod(parent.stat().st_mode | 0o001)
    try:
        yield BuiltImage(root=root, config=config)
    finally:
        call(*buildah, "umount", working)
        shutil.rmtree(folder)


def make_base(buildah: list[str], name: str, archive: Path) -> None:
    """Make the base image: Debian with Python, which packages may be installed into by pip."""
    hook = '--customize-hook=rm "$1"/usr/lib/python3*/EXTERNALLY-MANAGED'
    debian_root(archive, PACKAGES, hook)
    working = call(*buildah, "from", "scratch").strip()
    call(*buildah, "add", "--quiet", working, str(archive), "/")
    call(*buildah, "commit", "--quiet", "--rm", working, f"localhost/{name}")
    archive.unlink()


def debian_root(target: Path, packages: Sequence[str], *options: str) -> None:
    """Install Debian with packages into a directory, or into an archive `*.tar`."""
    dump = call("apt-config", "dump").splitlines()
    settings = [line for line in dump if re.match("Acquire::(Check-|https?::)", line)]
    folder = Path("/etc/apt")
    sources = [*folder.glob("sources.list"), *folder.glob("sources.list.d/debian*")]
    call(
        *(system_tool("mmdebstrap", "mmdebstrap"), "--variant=apt", "--components=main"),
        *(f"--include={','.join(packages)}", *(f"--aptopt={line}" for line in settings)),
        *(*options, RELEASE, str(target), *map(str, sources)),
    )


def call(*words: str) -> str:
    """Return the output of a command; its errors fail the test."""
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=BUILD_SECONDS_MAX, check=False
    )
    end = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
    assert done.returncode == 0, f"{shlex.join(words)}\n{end}"
    return done.stdout
