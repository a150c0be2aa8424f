"""The guide on securing a broker: each of its commands runs as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.ports import free_port

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "securing-a-broker.md"
PENSTOCK = f"{sys.executable} -m penstock"
COMMANDS_MAX = 10


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", GUIDE.read_text(), re.M | re.S)


class Shell:
    """Runs commands of the guide in a directory; `export` and `serve` are ours to perform."""

    def __init__(self, directory: Path, ports: dict[str, str]) -> None:
        self.directory = directory
        self._ports = ports
        self._environment = {
            name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")
        }
        self.server: subprocess.Popen[str] | None = None

    def text(self, text: str) -> str:
        for port, free in self._ports.items():
            text = text.replace(port, free)
        return text

    def run(self, command: str, *, status: int = 0) -> str:
        command = self.text(command)
        if command.startswith("export "):
            pairs = [word.split("=", 1) for word in command.split()[1:]]
            self._environment |= {name: value for name, value in pairs}
            return ""
        if command.startswith("penstock serve"):
            words = command.replace("penstock", PENSTOCK, 1).split()
            self.server = subprocess.Popen(
                words, cwd=self.directory, env=self._environment, stdout=subprocess.PIPE, text=True
            )
            assert self.server.stdout is not None
            assert self.server.stdout.readline().startswith("penstock ready kafka=127.0.0.1:")
            return ""
        defined = f'penstock() {{ {PENSTOCK} "$@"; }}\n{command}'
        ran = subprocess.run(
            ["bash", "-c", defined], cwd=self.directory, env=self._environment,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert ran.returncode == status, (command, ran.stdout, ran.stderr)
        return ran.stdout + ran.stderr

    def stop(self) -> None:
        if self.server is not None:
            self.server.terminate()
            assert self.server.wait(30) == 0
            assert self.server.stdout is not None
            self.server.stdout.close()


def test_every_command_of_the_guide_runs(tmp_path: Path) -> None:
    shell = Shell(tmp_path, {"19093": str(free_port()), "19644": str(free_port())})
    (tmp_path / "broker.toml").write_text(shell.text(blocks("toml")[0]))
    for user, properties in zip(("admin", "app"), blocks("properties"), strict=True):
        (tmp_path / f"{user}.properties").write_text(properties)
    commands = [
        line.removeprefix("$ ") for block in blocks("console") for line in block.splitlines()
    ]
    assert sum(command.startswith("penstock") for command in commands) <= COMMANDS_MAX
    try:
        said = {command: shell.run(command) for command in commands}
        assert "orders" in said["penstock topic list"]
        doctor = said["penstock doctor --local --config broker.toml"]
        assert "ACLs are enforced, and all clients are authenticated" in doctor
        assert "warn" not in [line.split()[0] for line in doctor.splitlines() if "ACLs" in line]
        refused = shell.run("penstock topic create payments", status=1)  # who is app now
        assert refused in GUIDE.read_text()
        client = shell.text(blocks("python")[0])
        (tmp_path / "client.py").write_text(client)
        assert shell.run(f"{sys.executable} client.py").split() == ["order-1", "order-2"]
        shell.run("penstock acl list", status=1)
        stored = "no damage found by 1 broker"
        assert stored not in " ".join(shell.run("penstock doctor").split())
        shell.run("penstock tls reload --admin https://127.0.0.1:19644", status=1)
        shell.run("export PENSTOCK_CLIENT_CONFIG=admin.properties")
        assert stored in " ".join(shell.run("penstock doctor").split())
        shell.run("penstock tls reload --admin https://127.0.0.1:19644")
    finally:
        shell.stop()
    audit = (tmp_path / "audit.log").read_text()
    assert '"event":"change","outcome":"success","principal":"User:admin"' in audit
    assert '"event":"denial","outcome":"denied","principal":"User:app"' in audit
    for user in ("admin", "app"):
        assert (tmp_path / f"{user}.password").read_text().strip() not in audit
