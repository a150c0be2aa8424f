"""Made-up trees of /proc and /sys, to read hosts from that this one is not."""

from __future__ import annotations

from pathlib import Path

LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max processes             96365                96365                processes
Max open files            1024                 524288               files
Max locked memory         8388608              unlimited            bytes
"""
MOUNTS_V2 = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
28 27 0:30 / /mnt/with\\040space rw,nosuid - xfs /dev/vdb rw,noquota
41 31 0:38 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate
"""
MOUNTS_V1 = """\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
40 31 0:37 / /sys/fs/cgroup/blkio rw - cgroup cgroup rw,blkio
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
"""
GROUPS_V1 = """\
9:blkio:/docker/abc
8:pids:/docker/abc
4:memory:/docker/abc
1:cpu,cpuacct:/docker/abc
0::/docker/abc
"""
SNMP = """\
Ip: Forwarding DefaultTTL
Ip: 1 64
Udp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors InCsumErrors IgnoredMulti MemErrors
Udp: 1208 0 5 1396 4 0 0 0 1
"""  # noqa: E501
ROUTE = """\
Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT
ens5\t0002000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
ens5\t00000000\t0102000A\t0003\t0\t0\t0\t00000000\t0\t0\t0
"""
MEMORY = """\
MemTotal:       16384000 kB
MemFree:          200000 kB
MemAvailable:    8192000 kB
SwapTotal:       1048576 kB
SwapFree:        1048000 kB
"""

FILES: dict[str, str] = {
    "proc/sys/kernel/osrelease": "6.8.0-test",
    "proc/sys/net/core/rmem_max": "212992",
    "proc/sys/net/core/rmem_default": "212992",
    "proc/sys/net/core/wmem_max": "212992",
    "proc/sys/net/core/netdev_max_backlog": "1000",
    "proc/sys/net/core/somaxconn": "4096",
    "proc/sys/net/unix/max_dgram_qlen": "512",
    "proc/sys/net/ipv4/tcp_rmem": "4096\t131072\t6291456",
    "proc/sys/net/ipv4/tcp_wmem": "4096\t16384\t4194304",
    "proc/sys/net/ipv4/udp_mem": "188000\t250000\t376000",
    "proc/sys/vm/max_map_count": "65530",
    "proc/sys/vm/dirty_ratio": "20",
    "proc/sys/vm/dirty_bytes": "0",
    "proc/sys/vm/dirty_background_ratio": "10",
    "proc/sys/vm/dirty_background_bytes": "0",
    "proc/sys/fs/file-max": "9223372036854775807",
    "proc/sys/fs/nr_open": "1048576",
    "proc/self/limits": LIMITS,
    "proc/self/status": "Name:\tpenstock\nCpus_allowed_list:\t0-2,6\nThreads:\t1\n",
    "proc/self/cgroup": "0::/system.slice/penstock.service\n",
    "proc/self/mountinfo": MOUNTS_V2,
    "proc/self/net/softnet_stat": "0000000a 00000001 00000003 0\n00000010 00000002 00000000 0\n",
    "proc/self/net/snmp": SNMP,
    "proc/self/net/route": ROUTE,
    "proc/meminfo": MEMORY,
    "proc/stat": "cpu  100 0 100 700 0 0 0 100 0 0\ncpu0 50 0 50 350 0 0 0 50 0 0\n",
    "sys/class/net/lo/mtu": "65536",
    "sys/class/net/lo/operstate": "unknown",
    "sys/class/net/ens5/mtu": "9001",
    "sys/class/net/ens5/operstate": "up",
    "sys/class/net/ens5/speed": "25000",
    "sys/class/net/ens5/queues/rx-0/rps_cpus": "0",
    "sys/class/net/ens5/queues/rx-1/rps_cpus": "0",
    "sys/class/net/ens5/queues/tx-0/xps_cpus": "0",
    "sys/class/net/ens5/statistics/rx_over_errors": "0",
    "sys/class/net/ens5/statistics/rx_fifo_errors": "2",
    "sys/class/net/ens5/statistics/rx_missed_errors": "0",
    "sys/devices/system/cpu/cpu0/cache/index0/level": "1",
    "sys/devices/system/cpu/cpu0/cache/index0/size": "32K",
    "sys/devices/system/cpu/cpu0/cache/index0/shared_cpu_list": "0",
    "sys/devices/system/cpu/cpu0/cache/index1/level": "3",
    "sys/devices/system/cpu/cpu0/cache/index1/size": "36M",
    "sys/devices/system/cpu/cpu0/cache/index1/shared_cpu_list": "0-7",
    "sys/devices/system/clocksource/clocksource0/current_clocksource": "kvm-clock",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
    "sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory pids",
    "sys/fs/cgroup/system.slice/memory.max": "1073741824",
    "sys/fs/cgroup/system.slice/cpu.max": "max 100000",
    "sys/fs/cgroup/system.slice/penstock.service/memory.max": "max",
    "sys/fs/cgroup/system.slice/penstock.service/memory.current": "5000000",
    "sys/fs/cgroup/system.slice/penstock.service/memory.events": "low 0\noom 2\noom_kill 1\n",
    "sys/fs/cgroup/system.slice/penstock.service/cpu.max": "50000 100000",
    "sys/fs/cgroup/system.slice/penstock.service/cpu.stat": (
        "usage_usec 9\nnr_periods 40\nnr_throttled 4\nthrottled_usec 250000\n"
    ),
    "sys/fs/cgroup/system.slice/penstock.service/pids.max": "4915",
    "sys/fs/cgroup/system.slice/penstock.service/pids.current": "17",
    "sys/fs/cgroup/system.slice/penstock.service/io.max": "8:16 rbps=max wbps=1048576\n",
}
V1_FILES: dict[str, str] = {
    "proc/self/cgroup": GROUPS_V1,
    "proc/self/mountinfo": MOUNTS_V1,
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
    "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": "536870912",
    "sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes": "1000",
    "sys/fs/cgroup/memory/docker/abc/memory.oom_control": "under_oom 0\noom_kill 3\n",
    "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1",
    "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "150000",
    "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us": "100000",
    "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.stat": (
        "nr_periods 10\nnr_throttled 2\nthrottled_time 7000000\n"
    ),
    "sys/fs/cgroup/pids/docker/abc/pids.max": "max",
    "sys/fs/cgroup/pids/docker/abc/pids.current": "3",
    "sys/fs/cgroup/blkio/docker/abc/blkio.throttle.write_iops_device": "8:0 500\n",
}


def make_tree(
    root: Path, changes: dict[str, str | None] | None = None, *, v1: bool = False
) -> Path:
    """Write a tree below `root`; a change to None leaves the file out."""
    files: dict[str, str | None] = {**FILES, **(changes or {})}
    if v1:
        kept = {name: text for name, text in files.items() if not name.startswith("sys/fs/cgroup")}
        files = {**kept, **V1_FILES}
    for name, text in files.items():
        if text is not None:
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return root
