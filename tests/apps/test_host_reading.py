"""Reading hosts: made-up trees, files that cannot be read, ethtool, and this host itself."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from penstock.apps.host_reading import Reading, Request, Tree, existing, quantile, read_host
from penstock.apps.host_reading.files import cpu_list, mount_of
from penstock.apps.host_reading.host import (
    ask_clock,
    file_system,
    read_clock,
    read_disk,
    read_group,
    read_limits,
    read_memory,
    read_processors,
    read_sysctls,
    sync_times_ms,
)
from penstock.apps.host_reading.network import (
    NoEthtool,
    NoInterface,
    ask_ethtool,
    read_datagrams,
    read_grants,
    read_interface,
    read_softirq,
)
from penstock.planner.host_check import (
    UNLIMITED,
    ClockState,
    ControlGroup,
    Datagrams,
    Memory,
    ProcessLimits,
    Processors,
    Softirq,
)

from .host_tree import LIMITS, MOUNTS_V2, make_tree

RINGS = """\
Ring parameters for ens5:
Pre-set maximums:
RX:             16384
RX Mini:        n/a
TX:             1024
Current hardware settings:
RX:             1024
RX Mini:        n/a
TX:             1024
"""
CHANNELS = """\
Channel parameters for ens5:
Pre-set maximums:
RX:             n/a
Combined:       8
Current hardware settings:
RX:             n/a
Combined:       4
"""
COUNTERS = """\
NIC statistics:
     tx_timeout: 0
     bw_in_allowance_exceeded: 12
     pps_allowance_exceeded: 30
     rx_overruns: 5
     queue_0_rx_cnt: 700
"""


def answered(flag: str, interface: str) -> str:
    assert interface == "ens5"
    return {"-g": RINGS, "-l": CHANNELS, "-S": COUNTERS}[flag]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(root=make_tree(tmp_path / "host"))


def test_kernel_settings_are_read(tree: Tree) -> None:
    found = read_sysctls(tree)
    assert found["net.core.rmem_max"] == (212_992,)
    assert found["net.ipv4.tcp_rmem"] == (4_096, 131_072, 6_291_456)
    assert found["fs.file-max"] == (UNLIMITED,)
    assert len(found) == 16
    assert tree.unread == {}


def test_what_cannot_be_read_is_noted(tmp_path: Path) -> None:
    root = make_tree(
        tmp_path,
        {
            "proc/sys/net/core/rmem_max": None,
            "proc/sys/net/core/wmem_max": None,
            "proc/sys/net/core/somaxconn": "lots",
            "proc/sys/net/ipv4/udp_mem": "1 2 x",
            "proc/self/limits": None,
            "proc/meminfo": None,
            "proc/stat": "cpu",
            "proc/self/net/softnet_stat": "zz",
            "proc/self/net/snmp": "Udp: a\nUdp: 1\n",
            "sys/class/net/ens5/speed": "-1",
        },
    )
    (root / "proc/sys/net/core/wmem_max").mkdir()
    tree = Tree(root=root)
    found = read_sysctls(tree)
    assert "net.core.rmem_max" not in found
    assert read_limits(tree) == ProcessLimits()
    assert read_memory(tree).total_bytes is None
    assert read_processors(tree).steal_ratio is None
    assert read_softirq(tree) is None
    assert read_datagrams(tree) is None
    nic = read_interface(tree, "", answered)
    assert nic is not None
    assert nic.speed_bits is None
    reasons = {
        "net.core.rmem_max": "/proc/sys/net/core/rmem_max: No such file or directory",
        "net.core.wmem_max": "/proc/sys/net/core/wmem_max: Is a directory",
        "net.core.somaxconn": "/proc/sys/net/core/somaxconn: 'lots' is no number",
        "net.ipv4.udp_mem": "/proc/sys/net/ipv4/udp_mem: '1 2 x' is no number",
        "limits": "/proc/self/limits: No such file or directory",
        "meminfo": "/proc/meminfo: No such file or directory",
        "stat": "/proc/stat does not report stolen time",
        "softnet_stat": "/proc/net/softnet_stat has an unknown format",
        "snmp": "/proc/net/snmp has no RcvbufErrors",
        "speed": "the driver does not report the speed of its link",
    }
    assert {name: tree.unread[name] for name in reasons} == reasons


def test_processes_processors_and_memory(tree: Tree) -> None:
    assert read_limits(tree) == ProcessLimits(
        files=1024, files_hard=524_288, locked_bytes=8_388_608, processes=96_365
    )
    assert read_processors(tree) == Processors(
        count=4, cache_bytes=36 << 20, cache_shared_by=8, steal_ratio=0.1
    )
    assert read_memory(tree) == Memory(
        total_bytes=16_384_000 << 10,
        available_bytes=8_192_000 << 10,
        swap_bytes=1_048_576 << 10,
        swap_used_bytes=576 << 10,
        huge_pages="madvise",
    )
    assert read_clock(tree) == ClockState(source="kvm-clock")
    assert tree.unread["adjtimex"] == "only a running host reports it"


def test_unlimited_is_no_number(tmp_path: Path) -> None:
    text = LIMITS.replace("1024                 524288 ", "unlimited            unlimited")
    limits = read_limits(Tree(root=make_tree(tmp_path, {"proc/self/limits": text})))
    assert (limits.files, limits.files_hard) == (UNLIMITED, UNLIMITED)


def test_another_process_can_be_looked_at(tmp_path: Path) -> None:
    text = LIMITS.replace("1024 ", "4096 ")
    changes: dict[str, str | None] = {"proc/17/limits": text}
    tree = Tree(root=make_tree(tmp_path, changes), process="17")
    assert read_limits(tree).files == 4096
    assert read_softirq(tree) is None
    assert tree.unread["softnet_stat"].startswith("/proc/17/net/softnet_stat: No such file")


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0-2,6", [0, 1, 2, 6]), ("5", [5]), ("", []), ("x", []), ("3-1", []), ("0-99999999", [])],
)
def test_lists_of_cpus(text: str, cpus: list[int]) -> None:
    assert cpu_list(text) == cpus


def test_control_groups_of_version_2(tree: Tree) -> None:
    """The memory's limit is the parent's, which is the tighter one."""
    assert read_group(tree) == ControlGroup(
        version="v2",
        memory_max_bytes=1 << 30,
        memory_used_bytes=5_000_000,
        kills=1,
        quota_us=50_000,
        period_us=100_000,
        periods=40,
        throttled_periods=4,
        throttled_us=250_000,
        tasks_max=4915,
        tasks=17,
        io_limits=("io.max 8:16 rbps=max wbps=1048576",),
    )


def test_control_groups_of_version_1_beside_version_2(tmp_path: Path) -> None:
    assert read_group(Tree(root=make_tree(tmp_path, v1=True))) == ControlGroup(
        version="v1",
        memory_max_bytes=512 << 20,
        memory_used_bytes=1000,
        kills=3,
        quota_us=150_000,
        period_us=100_000,
        periods=10,
        throttled_periods=2,
        throttled_us=7_000,
        tasks_max=UNLIMITED,
        tasks=3,
        io_limits=("blkio.throttle.write_iops_device 8:0 500",),
    )


def test_a_container_sees_its_group_as_the_root(tmp_path: Path) -> None:
    mounted = MOUNTS_V2.replace("0:38 / /sys/fs/cgroup", "0:38 /docker/abc /sys/fs/cgroup")
    root = make_tree(
        tmp_path,
        {
            "proc/self/mountinfo": mounted,
            "proc/self/cgroup": "0::/docker/abc/inner\n",
            "sys/fs/cgroup/memory.max": "2000",
            "sys/fs/cgroup/inner/memory.max": "3000",
        },
    )
    group = read_group(Tree(root=root))
    assert group.memory_max_bytes == 2000
    assert group.quota_us == UNLIMITED
    assert group.throttled_periods == 0


def test_no_control_group_is_noted(tmp_path: Path) -> None:
    tree = Tree(root=make_tree(tmp_path, {"proc/self/mountinfo": ""}))
    assert read_group(tree) == ControlGroup()
    assert tree.unread["memory"] == "no control group with the controller memory is mounted"
    bare = Tree(root=make_tree(tmp_path / "bare", {"proc/self/cgroup": None}))
    assert read_group(bare) == ControlGroup()
    assert bare.unread["cpu"] == "/proc/self/cgroup: No such file or directory"


def test_an_interface_with_ethtool(tree: Tree) -> None:
    nic = read_interface(tree, "", answered)
    assert nic is not None
    assert (nic.name, nic.mtu_bytes, nic.speed_bits) == ("ens5", 9001, 25_000_000_000)
    assert (nic.rx_ring, nic.rx_ring_max) == (1024, 16_384)
    assert (nic.queues, nic.queues_max) == (4, 8)
    assert nic.allowances == {"bw_in_allowance_exceeded": 12, "pps_allowance_exceeded": 30}
    assert nic.drops == {
        "rx_over_errors": 0, "rx_fifo_errors": 2, "rx_missed_errors": 0, "rx_overruns": 5,
    }  # fmt: skip
    assert tree.unread == {}


def test_an_interface_without_ethtool(tree: Tree) -> None:
    def missing(flag: str, interface: str) -> str:
        raise NoEthtool("ethtool is not installed")

    nic = read_interface(tree, "ens5", missing)
    assert nic is not None
    assert (nic.queues, nic.queues_max) == (2, None)
    assert (nic.rx_ring, nic.rx_ring_max, nic.allowances) == (None, None, None)
    assert nic.drops == {"rx_over_errors": 0, "rx_fifo_errors": 2, "rx_missed_errors": 0}
    assert set(tree.unread.values()) == {"ethtool is not installed"}


def test_a_driver_without_a_ring(tree: Tree) -> None:
    nic = read_interface(tree, "", lambda flag, interface: RINGS.replace("1024", "n/a"))
    assert nic is not None
    assert (nic.rx_ring, nic.rx_ring_max) == (None, None)
    assert tree.unread["ethtool -g"] == "the driver of ens5 does not report it"


def test_which_interface(tmp_path: Path) -> None:
    tree = Tree(root=make_tree(tmp_path, {"proc/self/net/route": "Iface\n"}))
    nic = read_interface(tree, "", None)
    assert nic is not None
    assert nic.name == "ens5"
    assert "those of another host" in tree.unread["ethtool -g"]
    for wrong in ("eth9", "../../x", "-g"):
        with pytest.raises(NoInterface, match="is not in"):
            read_interface(tree, wrong, None)
    down = {"proc/self/net/route": None, "sys/class/net/ens5/operstate": "down"}
    alone = Tree(root=make_tree(tmp_path / "down", {**down}))
    assert read_interface(alone, "", None) is None
    assert alone.unread["interface"] == "no interface is up besides loopback"


@pytest.fixture
def ethtool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program of that name, to be run for real."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder / "ethtool"


def write_program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_ethtool_is_run(ethtool: Path) -> None:
    ask = partial(ask_ethtool, seconds=60.0)
    write_program(ethtool, 'echo "$1 of $2"')
    assert ask("-g", "ens5") == "-g of ens5\n"
    write_program(ethtool, 'echo "netlink error: Operation not supported" >&2; exit 76')
    with pytest.raises(NoEthtool, match="-g ens5: netlink error: Operation not supported"):
        ask("-g", "ens5")
    write_program(ethtool, "exit 3")
    with pytest.raises(NoEthtool, match="status 3"):
        ask("-g", "ens5")
    write_program(ethtool, "exec sleep 60")
    with pytest.raises(NoEthtool, match="timed out"):
        ask_ethtool("-g", "ens5", seconds=0.1)


def test_ethtool_is_not_there(ethtool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(ethtool.parent))
    with pytest.raises(NoEthtool, match="ethtool is not installed"):
        ask_ethtool("-g", "ens5")


def test_the_kernels_counters(tree: Tree) -> None:
    assert read_softirq(tree) == Softirq(processed=26, dropped=3, squeezed=3)
    assert read_datagrams(tree) == Datagrams(received=1208, buffer_errors=4, memory_errors=1)


def test_mounts(tree: Tree) -> None:
    spaced = mount_of(tree, "/mnt/with space/data")
    assert spaced is not None
    assert (spaced.kind, spaced.point) == ("xfs", "/mnt/with space")
    assert "nosuid" in spaced.options
    other = mount_of(tree, "/mnt/without")
    assert other is not None
    assert (other.kind, other.point, other.super_options) == ("ext4", "/", ("rw", "discard"))


def test_the_file_system_of_a_socket(tree: Tree) -> None:
    assert file_system(tree, "/run/penstock-no-such/host.sock") == "ext4"
    assert file_system(Tree(root=tree.root, process="99"), "/run/host.sock") is None


class Ticking:
    """A clock on which each look takes `step` seconds."""

    def __init__(self, step: float) -> None:
        self._step = step
        self._now = 0.0

    def now_ms(self) -> int:
        return int(self.monotonic() * 1000)

    def monotonic(self) -> float:
        self._now += self._step
        return self._now


def test_syncs_are_timed_for_a_bounded_time(tmp_path: Path) -> None:
    assert sync_times_ms(tmp_path, 7, Ticking(0.001)) == [pytest.approx(1.0)] * 7
    assert len(sync_times_ms(tmp_path, 1000, Ticking(1.0))) == 2
    assert sync_times_ms(tmp_path, 0) == []
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError, match="No such file"):
        sync_times_ms(tmp_path / "missing", 3)


def test_quantiles() -> None:
    ordered = [float(number) for number in range(1, 101)]
    assert (quantile(ordered, 0.5), quantile(ordered, 0.99), quantile(ordered, 1)) == (50, 99, 100)
    assert quantile([3.0], 0.5) == 3.0


def test_a_directory_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    tree = Tree()
    disk = read_disk(tree, tmp_path / "a" / "b", 5)
    assert (disk.syncs, disk.measured_in) == (5, str(tmp_path))
    assert disk.sync_p50_ms
    assert disk.directory == str(tmp_path / "a" / "b")
    assert disk.free_bytes
    assert list(tmp_path.iterdir()) == []
    assert existing(tmp_path / "a" / "b") == tmp_path


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    tree = Tree()
    disk = read_disk(tree, file, 5)
    assert disk.sync_p50_ms is None
    assert "Not a directory" in tree.unread["sync"]
    unasked = Tree()
    assert read_disk(unasked, tmp_path, 0).syncs == 0
    assert unasked.unread["sync"] == "not measured, since 0 rounds were requested"


# this host


def test_this_host_is_read_as_it_is(tmp_path: Path) -> None:
    rounds = 2  # of which the second begins unless the first takes all the time that there is
    facts = read_host(Reading(data_directory=tmp_path, sync_rounds=rounds))
    assert facts.kernel == os.uname().release
    assert facts.sysctl("net.core.rmem_max") == int(Path("/proc/sys/net/core/rmem_max").read_text())
    assert facts.processors.count == len(os.sched_getaffinity(0))
    assert facts.memory.total_bytes == os.sysconf("SC_PHYS_PAGES") * facts.page_bytes
    assert facts.disk is not None
    assert facts.disk.syncs == rounds
    assert facts.disk.sync_p50_ms is not None
    assert facts.disk.sync_p99_ms is not None
    assert 0 < facts.disk.sync_p50_ms <= facts.disk.sync_p99_ms
    assert facts.disk.file_system
    assert facts.limits.files
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["udp", "tcp", "unix"])
@pytest.mark.parametrize(
    ("option", "ceiling"), [("SO_RCVBUF", "rmem_max"), ("SO_SNDBUF", "wmem_max")]
)
def test_the_kernel_grants_twice_the_lesser_of_request_and_ceiling(
    kind: str, option: str, ceiling: str
) -> None:
    """The silent cap, on this host: no error, and no more than the ceiling."""
    cap = int(Path(f"/proc/sys/net/core/{ceiling}").read_text())
    requests = [Request(kind, option, asked) for asked in (cap // 2, cap, 4 * cap)]  # type: ignore[arg-type]
    grants = read_grants(Tree(), requests)
    assert [grant.reported_bytes for grant in grants] == [cap // 2 * 2, 2 * cap, 2 * cap]
    assert [grant.granted_bytes for grant in grants] == [cap // 2, cap, cap]


def test_sockets_are_only_asked_on_this_host(tree: Tree) -> None:
    assert read_grants(tree, [Request("udp", "SO_RCVBUF", 4096)]) == ()


WITHOUT_DESCRIPTORS = """
import resource
from penstock.apps.host_reading import Request, Tree
from penstock.apps.host_reading.network import read_grants
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
tree = Tree()
print(read_grants(tree, [Request("udp", "SO_RCVBUF", 4096)]), tree.unread)
"""


def test_a_socket_that_cannot_be_opened_is_noted() -> None:
    """In a process of its own: what else runs in this one needs its descriptors."""
    command = [sys.executable, "-c", WITHOUT_DESCRIPTORS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "() {'udp SO_RCVBUF': 'Too many open files'}\n", done.stderr


def test_looking_changes_nothing_of_the_host(tmp_path: Path) -> None:
    names = ("rmem_max", "wmem_max", "rmem_default", "wmem_default")
    before = [Path(f"/proc/sys/net/core/{name}").read_text() for name in names]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as fresh:
        size = fresh.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
    requests = (Request("udp", "SO_RCVBUF", 1 << 20), Request("unix", "SO_SNDBUF", 1 << 20))
    read_host(Reading(data_directory=tmp_path, sync_rounds=1, requests=requests))
    assert [Path(f"/proc/sys/net/core/{name}").read_text() for name in names] == before
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as fresh:
        assert fresh.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == size


def test_the_clock_answers() -> None:
    state = ask_clock()
    assert state is not None
    synchronised, offset_ms, error_ms = state
    assert isinstance(synchronised, bool)
    assert abs(offset_ms) < 1000
    assert error_ms >= 0
    tree = Tree()
    clock = read_clock(tree)
    assert clock.synchronised is synchronised
    assert "adjtimex" not in tree.unread
