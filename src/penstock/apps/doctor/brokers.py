"""Brokers as a client meets them: the way to every advertised address, readiness, clock.

A client connects where a bootstrap address leads, and from then on only to the addresses that
brokers advertise: each of them is resolved, connected to and asked for its versions, from here.

Readiness is asked of the admin interface: the ones that are named, else the one that each broker
says it has (`admin.listener`), where that can be reached from here. Its answer's date is compared
with this clock.
"""

from __future__ import annotations

import socket
from collections import defaultdict
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final

from penstock.apps.admin import ask_admin, hides_causes
from penstock.apps.doctor.findings import SKEW_CURE, SKEW_WARN_SECONDS, Check, Finding, look
from penstock.base.errors import PenstockError
from penstock.base.system import SYSTEM_CLOCK

if TYPE_CHECKING:
    from penstock.apps.session import State
    from penstock.client import ClusterMetadata
    from penstock.client.admin_http import Answer
    from penstock.client.metadata import Node

CALL_MS: Final = 2_000
ROUND_TRIP_WARN_MS: Final = 100.0
_SHOW_CAUSES: Final = (
    "the broker shows causes only to principals that may describe the cluster: give the options"
    " of one (--profile, -X), over https:// or on the broker's machine"
)
_WILDCARDS: Final = ("", "0.0.0.0", "::")  # noqa: S104  (compared, not bound)


def reach(state: State) -> tuple[ClusterMetadata | None, list[Finding]]:
    """Ask the bootstrap addresses for the cluster; None where none of them answers."""
    answers: list[ClusterMetadata] = []

    def ask() -> list[Finding]:
        with state.client(**_QUICK) as client:
            begun = SYSTEM_CLOCK.monotonic()
            cluster = client.metadata([])
            elapsed_ms = (SYSTEM_CLOCK.monotonic() - begun) * 1000
        answers.append(cluster)
        names = ", ".join(f"{node.node_id} at {node.address}" for node in cluster.nodes.values())
        slow = elapsed_ms > ROUND_TRIP_WARN_MS
        return [
            Finding(
                check="broker",
                status="warn" if slow else "ok",
                cause=f"brokers {names}; first answer after {elapsed_ms:.1f} ms",
                fix="the network or the broker is slow: look at its load" if slow else "",
            ),
            *_shared(cluster),
        ]

    def unreached() -> list[Finding]:
        try:
            return ask()
        except PenstockError as error:
            fix = "start one with `penstock serve`, or name it with -b HOST:PORT"
            return [Finding(check="broker", status="fail", cause=str(error), fix=fix)]

    findings = look([Check("broker", unreached)])
    return (answers[0] if answers else None), findings


def broker_checks(
    state: State, cluster: ClusterMetadata | None, admins: Sequence[str]
) -> list[Check]:
    """The way to each broker of a cluster, and the readiness of those that can be asked."""
    nodes = [] if cluster is None else list(cluster.nodes.values())
    checks = [_way(state, node) for node in nodes]
    if admins:
        return checks + [_asked(state, address) for address in admins]
    return checks + [_found(state, node) for node in nodes]


_QUICK: Final[dict[str, Any]] = {
    "api_timeout_ms": CALL_MS, "connect_timeout_ms": CALL_MS, "request_timeout_ms": CALL_MS
}  # fmt: skip


def _shared(cluster: ClusterMetadata) -> list[Finding]:
    """Brokers that advertise one address: clients reach one of them, whichever they want."""
    by_address: dict[str, list[str]] = defaultdict(list)
    for node in cluster.nodes.values():
        by_address[node.address].append(str(node.node_id))
    return [
        Finding(
            check="advertised addresses",
            status="fail",
            cause=f"brokers {' and '.join(ids)} advertise the same address, {address}",
            fix="give each broker an advertised.listeners of its own",
        )
        for address, ids in by_address.items()
        if len(ids) > 1
    ]


# -- the way to a broker --------------------------------------------------------------------


def _way(state: State, node: Node) -> Check:
    name = f"broker {node.node_id} at {node.address}"
    return Check(name, lambda: [_went(state, node, name)])


def _went(state: State, node: Node, name: str) -> Finding:
    fix = f"set advertised.listeners of broker {node.node_id} to an address that clients reach"
    try:
        found = socket.getaddrinfo(node.host, node.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        cause = f"its advertised name {node.host} does not resolve here: {error}"
        fix = f"{fix}, or let clients resolve that name (DNS, /etc/hosts)"
        return Finding(check=name, status="fail", cause=cause, fix=fix)
    begun = SYSTEM_CLOCK.monotonic()
    try:
        with state.client(**_QUICK) as client:
            missing = client.unsupported_calls(node)
    except PenstockError as error:
        addresses = ", ".join(dict.fromkeys(str(item[4][0]) for item in found))
        cause = f"its advertised address ({addresses}) cannot be reached from here: {error}"
        if ip_address(str(found[0][4][0]).partition("%")[0]).is_loopback:
            fix += "; a loopback address leads every machine to itself"
        return Finding(check=name, status="fail", cause=cause, fix=fix)
    elapsed_ms = (SYSTEM_CLOCK.monotonic() - begun) * 1000
    if missing:
        cause = "calls that it does not serve: " + ", ".join(missing)
        return Finding(
            check=name, status="warn", cause=cause, fix="upgrade the broker or the client"
        )
    cause = f"reached in {elapsed_ms:.1f} ms; knows every call of this client"
    return Finding(check=name, status="ok", cause=cause)


# -- readiness and clock --------------------------------------------------------------------


def _asked(state: State, address: str) -> Check:
    return Check(f"readiness of {address}", lambda: _admin(state, address))


def _found(state: State, node: Node) -> Check:
    """The readiness of a broker by the admin interface that it says it has."""
    name = f"readiness of broker {node.node_id}"

    def run() -> Sequence[Finding]:
        fix = "name its admin interface with --admin, or ask on the broker's machine"
        try:
            listener, scheme = _listener(state, node)
        except PenstockError as error:
            return [Finding(check=name, status="skip", cause=f"not known: {error}", fix=fix)]
        address = _from_here(listener, scheme, node)
        if address is not None:
            return _admin(state, address, node.node_id)
        cause = f"not known: admin.listener = {listener!r} cannot be asked from here"
        return [Finding(check=name, status="skip", cause=cause, fix=fix)]

    return Check(name, run)


def _listener(state: State, node: Node) -> tuple[str, str]:
    """A broker's admin listener, and what an address of it begins with."""
    with state.client(**_QUICK) as client:
        entries = client.describe_configs("broker", node.node_id)
    values = {entry.name: entry.value or "" for entry in entries}
    encrypted = values.get("admin.security.protocol") == "SSL"
    return values.get("admin.listener", ""), "https://" if encrypted else ""


def admin_address(state: State, node: Node) -> str | None:
    """Where the admin interface of a broker can be asked from here; None if that is not known."""
    try:
        return _from_here(*_listener(state, node), node)
    except PenstockError:
        return None


def admin_answers(
    state: State, cluster: ClusterMetadata, admins: Sequence[str], path: str
) -> list[Mapping[str, Any]]:
    """What the admin interfaces answer at a path, those that are named, else all that are known."""
    nodes = cluster.nodes.values()
    known: Sequence[str | None] = admins or [admin_address(state, node) for node in nodes]
    found = []
    for address in filter(None, known):
        try:
            answer = ask_admin(state, address, path)
        except PenstockError:
            continue  # its readiness tells
        if answer.status == HTTPStatus.OK:
            found.append(answer.body)
    return found


def _from_here(listener: str, scheme: str, node: Node) -> str | None:
    """Where a broker's admin listener is for us; None where it is turned off, or not for us."""
    host, _, port = listener.rpartition(":")
    if port in ("", "0"):
        return None
    host = host.removeprefix("[").removesuffix("]")
    if host in _WILDCARDS:
        return f"{scheme}{node.host}:{port}"
    loopback = host == "localhost" or host.startswith("127.") or host == "::1"
    return scheme + listener if not loopback or _is_here(node.host) else None


def _is_here(host: str) -> bool:
    """Whether an address is one of this machine's."""
    try:
        for family, kind, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with socket.socket(family, kind) as one:
                one.bind(address)
                return True
    except OSError:
        return False
    return False


def _admin(state: State, address: str, node_id: int | None = None) -> list[Finding]:
    """Ask an admin interface whether its broker is ready, and what its clock says.

    `node_id` is the broker that it should be, None where a user named the address.
    """
    try:
        asked_ms = SYSTEM_CLOCK.now_ms()
        answer = ask_admin(state, address, "/readyz")
        answered_ms = SYSTEM_CLOCK.now_ms()
    except PenstockError as error:
        said = error.__cause__ or error
        return [
            Finding(
                check=f"readiness of {address}",
                status="fail" if node_id is None else "warn",
                cause=f"not known: the admin interface at {address} cannot be asked: {said}",
                fix="name the one of the broker's ready line with --admin",
            )
        ]
    clock = _clock(address, answer.date, asked_ms, answered_ms)
    return [_ready(address, answer, node_id), clock]


def _clock(address: str, date: str | None, asked_ms: int, answered_ms: int) -> Finding:
    """Compare this clock with the date of an HTTP answer."""
    name = f"clock of {address}"
    try:
        theirs_ms = parsedate_to_datetime(date or "").timestamp() * 1000
    except ValueError:
        cause = "it answers without a date" if date is None else f"its date is none: {date}"
        return Finding(check=name, status="warn", cause=cause)
    skew_seconds = clock_skew_ms(asked_ms, theirs_ms, answered_ms) / 1000
    skewed = skew_seconds > SKEW_WARN_SECONDS
    return Finding(
        check=name,
        status="warn" if skewed else "ok",
        cause=f"differs by about {skew_seconds:.0f} s",
        fix=SKEW_CURE if skewed else "",
    )


def clock_skew_ms(asked_ms: float, date_ms: float, answered_ms: float) -> float:
    """How far a clock certainly is from ours, that wrote a date into its answer to us.

    The date has whole seconds, and was written at some time between request and answer: only what
    lies outside of that is a difference of clocks, however long the answer took.
    """
    return max(asked_ms - (date_ms + 1000), date_ms - answered_ms, 0.0)


def _ready(address: str, answer: Answer, node_id: int | None) -> Finding:
    """What an answer of `/readyz` says."""
    name = f"readiness of {address}"
    try:
        checks = [(str(item["name"]), item["cause"]) for item in answer.body["checks"]]
        found_id = int(answer.body["node_id"])
    except (ValueError, KeyError, TypeError):
        cause = f"status {answer.status}, and no answer as a broker gives it"
        return Finding(check=name, status="warn", cause=cause, fix="name a broker's admin address")
    name = f"readiness of broker {found_id}"
    if node_id is not None and node_id != found_id:
        cause = f"the admin interface at {address} is that of broker {found_id}, not {node_id}"
        fix = f"name that of broker {node_id} with --admin"
        name = f"readiness of broker {node_id}"
        return Finding(check=name, status="skip", cause=cause, fix=fix)
    wrong = [f"{check}: {cause}" for check, cause in checks if cause]
    if not wrong:
        names = ", ".join(check for check, _ in checks)
        return Finding(check=name, status="ok", cause=f"ready: {names}")
    return Finding(
        check=name,
        status="fail",
        cause="; ".join(wrong),
        fix=_SHOW_CAUSES
        if hides_causes(answer)
        else "bring back what is named: the broker needs no restart, unless storage has failed",
    )
