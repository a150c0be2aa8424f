"""Facts of the network interface that receives packets, from its driver and from the kernel.

Most of them are in files of /sys and /proc. Only `ethtool` reports ring sizes, the possible number
of queues and the driver's counters. If it is not installed or the driver does not answer, these
values are missing, with a reason.

Source: ethtool(8), proc(5), sysfs; the ENA driver's counters.
"""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Callable, Iterable
from typing import ClassVar, Final, NamedTuple

from penstock.apps.host_reading.files import Tree, numbers, pairs, whole
from penstock.base.errors import InvalidError
from penstock.planner.host_check import (
    BufferOption,
    Datagrams,
    Grant,
    Interface,
    SocketKind,
    Softirq,
)

ETHTOOL_SECONDS: Final = 5.0
OUTPUT_CHARS_MAX: Final = 1 << 20
INTERFACES_MAX: Final = 1024

_NAME: Final = re.compile(r"[A-Za-z0-9][\w.@:-]{0,14}")
_LOSSES: Final = ("rx_over_errors", "rx_fifo_errors", "rx_missed_errors")
_DRIVER_LOSSES: Final = ("rx_overruns", "rx_drops", "rx_no_buffer_count", "rx_out_of_buffer")
_ALLOWANCES: Final = "_allowance_exceeded"

Ask = Callable[[str, str], str]
"""Function that returns the output of `ethtool FLAG INTERFACE`, or raises NoEthtool."""


class NoInterface(InvalidError):
    """The named network interface does not exist."""

    code: ClassVar[str] = "invalid_config"


class NoEthtool(Exception):
    """`ethtool` is not installed or has failed; the message has the reason."""


def ask_ethtool(flag: str, interface: str, *, seconds: float = ETHTOOL_SECONDS) -> str:
    """Return the output of `ethtool FLAG INTERFACE`; `seconds` is the timeout.

    Raises:
        NoEthtool: ethtool is not installed, or has failed.
    """
    command = ["ethtool", flag, interface]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except FileNotFoundError:
        raise NoEthtool("ethtool is not installed") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise NoEthtool(f"ethtool {flag} {interface}: {error}") from None
    if done.returncode:
        said = " ".join(done.stderr.split())[:200] or f"status {done.returncode}"
        raise NoEthtool(f"ethtool {flag} {interface}: {said}")
    return done.stdout[:OUTPUT_CHARS_MAX]


def read_interface(tree: Tree, name: str, ask: Ask | None = ask_ethtool) -> Interface | None:
    """Return the facts of a network interface; without a name, of the default route's interface.

    `ask` is None if the files are those of another host, where ethtool cannot be used.

    Raises:
        NoInterface: the named interface does not exist.
    """
    folder = "/sys/class/net"
    if name and not (_NAME.fullmatch(name) and tree.path(f"{folder}/{name}").exists()):
        raise NoInterface(f"interface {name!r} is not in {tree.path(folder)}")
    chosen = name or _default_interface(tree) or ""
    if not chosen:
        tree.missing("interface", "no interface is up besides loopback")
        return None
    place = f"{folder}/{chosen}"
    answers = _Answers(tree, chosen, ask)
    ring, ring_max = answers.now_and_most("-g", ("RX",))
    queues, queues_max = answers.now_and_most("-l", ("Combined", "RX"))
    counters = answers.counters()
    return Interface(
        name=chosen,
        mtu_bytes=tree.number(f"{place}/mtu", "mtu"),
        speed_bits=_speed(tree, place),
        rx_ring=ring,
        rx_ring_max=ring_max,
        queues=queues or _queues(tree, place),
        queues_max=queues_max,
        drops=_drops(tree, place, counters or {}),
        allowances=None
        if counters is None
        else {key: count for key, count in counters.items() if key.endswith(_ALLOWANCES)},
    )


def _default_interface(tree: Tree) -> str | None:
    """Return the interface of the default route; else the first that is up, except loopback."""
    for line in (tree.text(tree.of_process("net/route")) or "").splitlines()[1:]:
        words = line.split()
        if len(words) > 7 and words[1] == words[7] == "00000000":
            return words[0]
    try:
        names = sorted([path.name for path in tree.path("/sys/class/net").iterdir()])
    except OSError:
        return None
    for name in names[:INTERFACES_MAX]:
        if name != "lo" and tree.text(f"/sys/class/net/{name}/operstate") == "up":
            return name
    return None


def _speed(tree: Tree, place: str) -> int | None:
    megabits = tree.number(f"{place}/speed")
    if megabits is None or megabits <= 0:
        tree.missing("speed", "the driver does not report the speed of its link")
        return None
    return megabits * 1_000_000


def _queues(tree: Tree, place: str) -> int | None:
    try:
        names = [path.name for path in tree.path(f"{place}/queues").iterdir()]
    except OSError as error:
        tree.missing("queues", f"{place}/queues: {error.strerror}")
        return None
    return len([name for name in names if name.startswith("rx-")]) or None


def _drops(tree: Tree, place: str, counters: dict[str, int]) -> dict[str, int] | None:
    found = {name: tree.number(f"{place}/statistics/{name}") for name in _LOSSES}
    known = {name: count for name, count in found.items() if count is not None}
    known |= {name: counters[name] for name in _DRIVER_LOSSES if name in counters}
    if not known:
        tree.missing("statistics", f"{place}/statistics cannot be read")
    return known or None


class _Answers:
    """Answers of ethtool about one interface; reasons for missing answers are stored in the
    tree.
    """

    def __init__(self, tree: Tree, interface: str, ask: Ask | None) -> None:
        self._tree = tree
        self._interface = interface
        self._ask = ask

    def _text(self, flag: str) -> str | None:
        fact = f"ethtool {flag}"
        if self._ask is None:
            self._tree.missing(
                fact, "ethtool cannot be used, since the files are those of another host"
            )
            return None
        try:
            return self._ask(flag, self._interface)
        except NoEthtool as why:
            self._tree.missing(fact, str(why))
            return None

    def now_and_most(self, flag: str, names: tuple[str, ...]) -> tuple[int | None, int | None]:
        """Return the current and the maximum value that ethtool reports, as for a ring size.

        `names` are names that drivers use for it; the first with a value counts.
        """
        text = self._text(flag)
        if text is None:
            return None, None
        upper, _, lower = text.partition("Current hardware settings:")
        most, now = dict(pairs(upper, ":")), dict(pairs(lower, ":"))
        for name in names:
            value = whole(now.get(name, ""))
            if value:
                return value, whole(most.get(name, ""))
        self._tree.missing(f"ethtool {flag}", f"the driver of {self._interface} does not report it")
        return None, None

    def counters(self) -> dict[str, int] | None:
        """Return all counters of the driver; None if ethtool does not report them."""
        text = self._text("-S")
        if text is None:
            return None
        return {
            name: value for name, rest in pairs(text, ":") if (value := whole(rest)) is not None
        }


def read_softirq(tree: Tree) -> Softirq | None:
    """Return the processed, dropped and squeezed packets in softnet_stat, summed over all CPUs."""
    text = tree.text(tree.of_process("net/softnet_stat"), "softnet_stat")
    if text is None:
        return None
    try:
        rows = [[int(word, 16) for word in line.split()[:3]] for line in text.splitlines()]
        processed, dropped, squeezed = (sum(column) for column in zip(*rows, strict=True))
    except ValueError:
        tree.missing("softnet_stat", "/proc/net/softnet_stat has an unknown format")
        return None
    return Softirq(processed=processed, dropped=dropped, squeezed=squeezed)


def read_datagrams(tree: Tree) -> Datagrams | None:
    """Return the UDP counters of /proc/net/snmp, where one line has names and one the numbers."""
    text = tree.text(tree.of_process("net/snmp"), "snmp")
    rows = [line.split()[1:] for line in (text or "").splitlines() if line.startswith("Udp:")]
    if len(rows) != 2:
        tree.missing("snmp", "/proc/net/snmp has no counters of UDP")
        return None
    found = numbers("\n".join([f"{name} {count}" for name, count in zip(*rows, strict=False)]))
    if "RcvbufErrors" not in found:
        tree.missing("snmp", "/proc/net/snmp has no RcvbufErrors")
        return None
    return Datagrams(
        received=found.get("InDatagrams", 0),
        buffer_errors=found["RcvbufErrors"],
        memory_errors=found.get("MemErrors", 0),
    )


# Buffer sizes that the kernel grants. Setting SO_RCVBUF or SO_SNDBUF never fails: a value above the
# kernel's limit is reduced to it without an error. So a socket of each kind sets a size, reads the
# granted size, and is closed. Source: socket(7): the kernel doubles a value, and reports that.

_OPTIONS: Final = {"SO_RCVBUF": socket.SO_RCVBUF, "SO_SNDBUF": socket.SO_SNDBUF}
_FAMILIES: Final = {
    "udp": (socket.AF_INET, socket.SOCK_DGRAM),
    "tcp": (socket.AF_INET, socket.SOCK_STREAM),
    "unix": (socket.AF_UNIX, socket.SOCK_STREAM),
}


class Request(NamedTuple):
    """Size of a socket's buffer that is requested from the kernel."""

    kind: SocketKind
    option: BufferOption
    asked_bytes: int


def read_grants(tree: Tree, requests: Iterable[Request]) -> tuple[Grant, ...]:
    """Request each buffer size and return the granted sizes; failures are left out, with a
    reason.
    """
    if not tree.is_here:
        return ()
    found: list[Grant] = []
    for request in dict.fromkeys(requests):
        try:
            found.append(_granted(request))
        except OSError as error:
            tree.missing(f"{request.kind} {request.option}", error.strerror or str(error))
    return tuple(found)


def _granted(request: Request) -> Grant:
    kind, option, asked_bytes = request
    with socket.socket(*_FAMILIES[kind]) as opened:
        opened.setsockopt(socket.SOL_SOCKET, _OPTIONS[option], asked_bytes)
        reported = opened.getsockopt(socket.SOL_SOCKET, _OPTIONS[option])
    return Grant(kind=kind, option=option, asked_bytes=asked_bytes, reported_bytes=reported)
