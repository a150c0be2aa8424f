"""Made-up host on which every layer holds, from which tests remove something."""

from __future__ import annotations

from penstock.apps.plan.check_host import broker_side
from penstock.broker.configuration.settings import BrokerSettings
from penstock.planner.host_check import (
    CHAIN_WORDS,
    UNLIMITED,
    BrokerSide,
    CheckHostInputs,
    ClockState,
    Configured,
    ControlGroup,
    Datagrams,
    Disk,
    HostFacts,
    Interface,
    Layer,
    Memory,
    ProcessLimits,
    Processors,
    Softirq,
    host_layers,
)

GIB = 1 << 30

SYSCTLS = {
    "net.core.rmem_max": (16 << 20,),
    "net.core.rmem_default": (1 << 20,),
    "net.core.wmem_max": (16 << 20,),
    "net.core.netdev_max_backlog": (10_000,),
    "net.core.somaxconn": (4_096,),
    "net.unix.max_dgram_qlen": (10,),
    "net.ipv4.tcp_rmem": (4_096, 131_072, 32 << 20),
    "net.ipv4.tcp_wmem": (4_096, 16_384, 32 << 20),
    "net.ipv4.udp_mem": (100_000, 200_000, 400_000),
    "vm.max_map_count": (65_530,),
    "vm.dirty_ratio": (20,),
    "vm.dirty_bytes": (0,),
    "vm.dirty_background_ratio": (10,),
    "vm.dirty_background_bytes": (0,),
    "fs.file-max": (2_000_000,),
    "fs.nr_open": (1_048_576,),
}
NIC = Interface(
    name="eth0",
    mtu_bytes=9_001,
    speed_bits=25_000_000_000,
    rx_ring=8_192,
    rx_ring_max=16_384,
    queues=8,
    queues_max=8,
    drops={"rx_overruns": 0, "rx_missed_errors": 0},
    allowances={"pps_allowance_exceeded": 0, "bw_in_allowance_exceeded": 0},
)
GROUP = ControlGroup(
    version="v2",
    memory_max_bytes=16 * GIB,
    memory_used_bytes=GIB,
    kills=0,
    quota_us=UNLIMITED,
    periods=0,
    throttled_periods=0,
    throttled_us=0,
    tasks_max=10_000,
    tasks=12,
)
DISK = Disk(
    directory="/var/lib/penstock",
    file_system="ext4",
    mount_point="/var/lib",
    options=("rw", "noatime"),
    free_bytes=100 * GIB,
    free_inodes=1_000_000,
    syncs=100,
    sync_p50_ms=0.4,
    sync_p99_ms=2.0,
)
HOST = HostFacts(
    kernel="6.8.0",
    sysctls=SYSCTLS,
    interface=NIC,
    softirq=Softirq(processed=1_000_000, dropped=0, squeezed=3),
    datagrams=Datagrams(received=5_000, buffer_errors=0),
    group=GROUP,
    limits=ProcessLimits(
        files=1_048_576, files_hard=1_048_576, locked_bytes=8 << 20, processes=60_000
    ),
    processors=Processors(count=8, cache_bytes=32 << 20, cache_shared_by=8, steal_ratio=0.0),
    memory=Memory(
        total_bytes=32 * GIB,
        available_bytes=24 * GIB,
        swap_bytes=0,
        swap_used_bytes=0,
        huge_pages="madvise",
    ),
    disk=DISK,
    socket_file_system="tmpfs",
    clock=ClockState(source="tsc", synchronised=True, offset_ms=0.2, error_ms=1.5),
)
SIDE: BrokerSide = broker_side(BrokerSettings())
DEFAULTS = Configured(broker=SIDE)


def layers_of(
    facts: HostFacts, inputs: CheckHostInputs | None = None, configured: Configured = DEFAULTS
) -> dict[str, Layer]:
    """Return the layers of a host by name, in order."""
    found = host_layers(facts, configured, inputs or CheckHostInputs(chains=CHAIN_WORDS))
    layers = {layer.rule.name: layer for layer in found}
    assert len(layers) == len(found)
    return layers
