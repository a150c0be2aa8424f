"""Reading of all facts of a host."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from penstock.apps.host_reading.disks import file_system, read_disk
from penstock.apps.host_reading.files import Tree
from penstock.apps.host_reading.groups import read_group
from penstock.apps.host_reading.kernel import (
    page_bytes,
    read_clock,
    read_limits,
    read_memory,
    read_processors,
    read_sysctls,
)
from penstock.apps.host_reading.network import (
    Ask,
    Request,
    ask_ethtool,
    read_datagrams,
    read_grants,
    read_interface,
    read_softirq,
)
from penstock.planner.host_check import HostFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Scope of a reading: `process` is a process id, or `self`."""

    data_directory: Path
    root: Path = Path("/")
    process: str = "self"
    interface: str = ""
    socket_path: str = ""
    sync_rounds: int = 100
    requests: tuple[Request, ...] = ()


def read_host(reading: Reading, ask: Ask = ask_ethtool) -> HostFacts:
    """Read all facts of a host; only the file for timing syncs is written.

    Raises:
        NoInterface: the named interface does not exist.
    """
    tree = Tree(root=reading.root, process=reading.process)
    requests: Iterable[Request] = reading.requests
    return HostFacts(
        kernel=tree.text("/proc/sys/kernel/osrelease", "kernel"),
        page_bytes=page_bytes(),
        sysctls=read_sysctls(tree),
        interface=read_interface(tree, reading.interface, ask if tree.is_here else None),
        softirq=read_softirq(tree),
        datagrams=read_datagrams(tree),
        group=read_group(tree),
        limits=read_limits(tree),
        processors=read_processors(tree),
        memory=read_memory(tree),
        disk=read_disk(tree, reading.data_directory, reading.sync_rounds),
        socket_file_system=file_system(tree, reading.socket_path) if reading.socket_path else None,
        clock=read_clock(tree),
        grants=read_grants(tree, requests),
        unread=tree.unread,
    )
