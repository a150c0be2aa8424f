"""A network of our own: each broker in a namespace, and links that can be cut in one direction.

The process that asks for it is in a new network namespace, the hub, with PostgreSQL and all
clients; a pair of virtual devices joins it to that of each broker, and it forwards between them. A
cut is a rule in the hub that drops what comes from one address and goes to another: nobody is told,
as when a switch fails, so that connections stay open until timers or somebody's patience end.

Needs root, or namespaces of users, and `ip` of iproute2. Source: ip-rule(8), network_namespaces(7).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

INSIDE = "PENSTOCK_FAULTS_NETWORK"
DATABASE = "10.99.0.1"
_UNSHARE = ("unshare", "--net")
_AS_USER = ("--map-current-user", "--keep-caps")


def enter(arguments: Sequence[str]) -> bool:
    """Become the same program in a namespace of its own; false where that is not to be had."""
    if os.environ.get(INSIDE):
        return True
    command = [*_UNSHARE, *(() if os.geteuid() == 0 else _AS_USER)]
    probe = "ip link set lo up && echo 1 > /proc/sys/net/ipv4/ip_forward"
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return False
    if subprocess.run([*command, "sh", "-c", probe], capture_output=True).returncode:
        return False
    inside = {**os.environ, INSIDE: "1"}
    return os.execvpe(command[0], [*command, sys.executable, *arguments], inside)


def address(node: int) -> str:
    """Of a broker."""
    return f"10.99.{node}.2"


def hub(node: int) -> str:
    """Of the clients, as a broker knows them."""
    return f"10.99.{node}.1"


class Network:
    """See the module's text; brokers are numbered from 1."""

    def __init__(self, brokers: int) -> None:
        self._holders: dict[int, subprocess.Popen[bytes]] = {}
        self._brokers = brokers
        self._cuts: set[tuple[str, str]] = set()

    def __enter__(self) -> Self:
        _run("ip link set lo up")
        _run(f"ip addr add {DATABASE}/32 dev lo")
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        # What comes to the hub itself is looked at by cuts, too.
        _run("ip rule add pref 1000 lookup local")
        _run("ip rule del pref 0")
        for node in range(1, self._brokers + 1):
            self._join(node)
        return self

    def __exit__(self, *_: object) -> None:
        for holder in self._holders.values():
            holder.kill()
            holder.wait()

    def _join(self, node: int) -> None:
        holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo; exec sleep infinity"], stdout=subprocess.PIPE
        )
        self._holders[node] = holder
        assert holder.stdout is not None
        holder.stdout.readline()  # it is in its namespace
        _run(f"ip link add hub{node} type veth peer name broker netns {holder.pid}")
        _run(f"ip addr add {hub(node)}/30 dev hub{node}")
        _run(f"ip link set hub{node} up")
        for line in (
            "ip link set lo up",
            f"ip addr add {address(node)}/30 dev broker",
            "ip link set broker up",
            f"ip route add default via {hub(node)}",
        ):
            _run(" ".join([*self.program(node), line]))

    def program(self, node: int) -> list[str]:
        """What a command begins with that runs where a broker is."""
        return ["nsenter", "-t", str(self._holders[node].pid), "-n", "--"]

    def cut(self, source: str, target: str) -> None:
        """Drop what one address sends to the other."""
        if (source, target) not in self._cuts:
            self._cuts.add((source, target))
            _run(f"ip rule add pref 10 from {source} to {target} blackhole")

    def heal(self, *pairs: tuple[str, str]) -> None:
        """End these cuts."""
        for source, target in pairs:
            if (source, target) in self._cuts:
                self._cuts.discard((source, target))
                _run(f"ip rule del pref 10 from {source} to {target} blackhole")


def _run(line: str) -> None:
    done = subprocess.run(line.split(), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{line}: {done.stderr.strip()}")
