"""Broker checks: connections to every advertised address, readiness, clock.

Each advertised address is resolved, connected to and asked for its API versions from here. Brokers
report their unavailable dependencies (`BrokerState`) over Kafka's protocol, or over the admin
interfaces that are given, whose Date header is compared with this clock.
"""

from __future__ import annotations

import socket
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from email.utils import parsedate_to_datetime
from functools import partial
from http import HTTPStatus
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final

from penstock.apps.admin import admin_addresses, ask_admin, hides_causes
from penstock.apps.doctor.findings import SKEW_CURE, SKEW_WARN_SECONDS, Check, Finding
from penstock.base.errors import InvalidError, PenstockError
from penstock.base.system import SYSTEM_CLOCK
from penstock.client.errors import (
    BrokerRefused,
    ConnectionRefused,
    EncryptionExpected,
    NotAccepted,
    TimedOut,
)
from penstock.client.replicas import SHORT_CALLS

if TYPE_CHECKING:
    from penstock.apps.session import State
    from penstock.client import ClusterMetadata
    from penstock.client.admin_http import Answer
    from penstock.client.metadata import Node
    from penstock.client.replicas import BrokerState

ROUND_TRIP_WARN_MS: Final = 100.0
_SHOW_CAUSES: Final = (
    "the broker shows causes only to principals that may describe the cluster: give the options"
    " of one (--profile, -X), over https:// or on the broker's machine"
)
_WILDCARDS: Final = ("", "0.0.0.0", "::")  # noqa: S104  (compared, not bound)


def reach(state: State) -> tuple[ClusterMetadata | None, dict[int, BrokerState], list[Finding]]:
    """Request the cluster's metadata and its brokers' states from the bootstrap addresses.

    The cluster is None if no address answers.
    """
    try:
        with state.client(**SHORT_CALLS) as client:
            begun = SYSTEM_CLOCK.monotonic()
            cluster = client.metadata([])
            elapsed_ms = (SYSTEM_CLOCK.monotonic() - begun) * 1000
            states = client.broker_states()
    except PenstockError as error:
        fix = cure(error, "a broker") or "name a broker with -b HOST:PORT"
        return None, {}, [Finding(check="broker", status="fail", cause=str(error), fix=fix)]
    names = ", ".join(f"{node.node_id} at {node.address}" for node in cluster.nodes.values())
    slow = elapsed_ms > ROUND_TRIP_WARN_MS
    found = Finding(
        check="broker",
        status="warn" if slow else "ok",
        cause=f"brokers {names}; first answer after {elapsed_ms:.1f} ms",
        fix="the network or the broker is slow: look at its load" if slow else "",
    )
    return cluster, states, [found, *_shared(cluster)]


def cure(error: PenstockError, broker: str) -> str:
    """Return the fix for an unreachable broker; empty if the error says it."""
    cause = error.__cause__ if isinstance(error.__cause__, PenstockError) else error
    if isinstance(cause, ConnectionRefused):
        return (
            f"start {broker} (`penstock serve`); its log has the cause of the stop. If it runs,"
            " name the address at which it listens"
        )
    if isinstance(cause, EncryptionExpected):
        return "name a file with the client's options of security (PENSTOCK_CLIENT_CONFIG)"
    if isinstance(cause, NotAccepted):
        return f"check that the machine of {broker} runs and that no firewall blocks it"
    if isinstance(cause, TimedOut):
        return (
            f"check whether the process of {broker} is stopped or busy: it accepts connections"
            " and does not answer"
        )
    return ""


def broker_checks(
    state: State,
    cluster: ClusterMetadata | None,
    states: Mapping[int, BrokerState],
    admins: Sequence[str],
) -> list[Check]:
    nodes = [] if cluster is None else list(cluster.nodes.values())
    checks = [_way(state, node, states.get(node.node_id)) for node in nodes]
    if admins:
        return checks + [
            Check(f"readiness of {address}", partial(_admin, state, address)) for address in admins
        ]
    for broker_state in states.values():
        checks += [_readiness(broker_state), _found_clock(state, broker_state)]
    return checks


def _shared(cluster: ClusterMetadata) -> list[Finding]:
    """Report brokers that advertise the same address."""
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


def _way(state: State, node: Node, asked: BrokerState | None) -> Check:
    name = f"broker {node.node_id} at {node.address}"
    failure = None if asked is None or isinstance(asked.error, BrokerRefused) else asked.error
    return Check(name, lambda: [_went(state, node, name, failure)])


def _went(state: State, node: Node, name: str, failure: PenstockError | None) -> Finding:
    """Report whether an advertised address is reachable; `failure` is that of an earlier call."""
    fix = f"set advertised.listeners of broker {node.node_id} to an address that clients reach"
    try:
        found = socket.getaddrinfo(node.host, node.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        cause = f"its advertised name {node.host} does not resolve here: {error}"
        fix = f"{fix}, or let clients resolve that name (DNS, /etc/hosts)"
        return Finding(check=name, status="fail", cause=cause, fix=fix)
    begun = SYSTEM_CLOCK.monotonic()
    missing: list[str] = []
    if failure is None:
        try:
            with state.client(**SHORT_CALLS) as client:
                missing = client.unsupported_calls(node)
        except PenstockError as error:
            failure = error
    if failure is not None:
        if not _is_elsewhere(state, node, failure):
            fix = cure(failure, f"broker {node.node_id}")
            return Finding(check=name, status="fail", cause=str(failure), fix=fix)
        cause = f"it runs, and its advertised address does not lead to it: {failure}"
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


def _is_elsewhere(state: State, node: Node, failure: PenstockError) -> bool:
    """Return whether a broker answers at a bootstrap address but not at its advertised one."""
    if isinstance(failure, EncryptionExpected) or type(failure) is TimedOut:
        return False
    with state.client(**SHORT_CALLS) as client:
        return client.is_at_bootstrap(node)


# -- readiness and clock --------------------------------------------------------------------


def _readiness(broker: BrokerState) -> Check:
    """Return the check of a broker's reported dependencies."""
    name = f"readiness of broker {broker.node.node_id}"
    if broker.error is not None:
        refused = isinstance(broker.error, InvalidError)
        fix = "name its admin interface with --admin" if refused else ""
        cause = f"not checked: {broker.error}"
        finding = Finding(check=name, status="skip", cause=cause, fix=fix)
    elif broker.unavailable:
        finding = Finding(check=name, status="fail", cause=broker.unavailable, fix=_BRING_BACK)
    else:
        cause = "ready: it can use everything that it needs"
        finding = Finding(check=name, status="ok", cause=cause)
    return Check(name, lambda: [finding])


_BRING_BACK: Final = (
    "restore the named parts: the broker needs no restart, unless storage has failed"
)


def _found_clock(state: State, broker: BrokerState) -> Check:
    """Return the clock check of a broker whose admin interface is reachable from here."""
    name = f"clock of broker {broker.node.node_id}"

    def run() -> Sequence[Finding]:
        address = _admin_address(broker)
        if address is None:
            return ()
        try:
            asked_ms = SYSTEM_CLOCK.now_ms()
            answer = ask_admin(state, address, "/livez")
        except PenstockError as error:
            return [Finding(check=name, status="skip", cause=f"not checked: {_innermost(error)}")]
        return [_clock(address, answer.date, asked_ms, SYSTEM_CLOCK.now_ms())]

    return Check(name, run)


def _innermost(error: PenstockError) -> BaseException:
    return error.__cause__ or error


def _admin_address(broker: BrokerState) -> str | None:
    """Return a broker's admin address as reachable from here; None if unknown."""
    return _from_here(broker.admin, "https://" if broker.admin_encrypted else "", broker.node)


def known_admins(
    state: State, states: Mapping[int, BrokerState], named: str | None = None
) -> list[str]:
    """Return the given admin interfaces, else all that are reachable from here."""
    addresses = admin_addresses(state.setting("admin", named, ""))
    return addresses or list(filter(None, map(_admin_address, states.values())))


def admin_answers(state: State, admins: Sequence[str], path: str) -> list[Mapping[str, Any]]:
    """Return the answers of admin interfaces at a path, without failed ones."""
    found = []
    for address in admins:
        with suppress(PenstockError):  # the check of its readiness reports it
            answer = ask_admin(state, address, path)
            if answer.status == HTTPStatus.OK:
                found.append(answer.body)
    return found


def _from_here(listener: str, scheme: str, node: Node) -> str | None:
    """Return the address of a broker's admin listener from here; None if it is off or out of
    reach."""
    host, _, port = listener.rpartition(":")
    if port in ("", "0"):
        return None
    host = host.removeprefix("[").removesuffix("]")
    if host in _WILDCARDS:
        return f"{scheme}{node.host}:{port}"
    loopback = host == "localhost" or host.startswith("127.") or host == "::1"
    return scheme + listener if not loopback or _is_here(node.host) else None


def _is_here(host: str) -> bool:
    """Return whether an address belongs to this machine."""
    try:
        for family, kind, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with socket.socket(family, kind) as one:
                one.bind(address)
                return True
    except OSError:
        return False
    return False


def _admin(state: State, address: str) -> list[Finding]:
    """Check readiness and clock through a given admin interface."""
    try:
        asked_ms = SYSTEM_CLOCK.now_ms()
        answer = ask_admin(state, address, "/readyz")
        answered_ms = SYSTEM_CLOCK.now_ms()
    except PenstockError as error:
        return [
            Finding(
                check=f"readiness of {address}",
                status="fail",
                cause=f"the admin interface at {address} cannot be asked: {_innermost(error)}",
                fix="name the one of the broker's ready line with --admin",
            )
        ]
    clock = _clock(address, answer.date, asked_ms, answered_ms)
    return [_ready(address, answer), clock]


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
    """Return the certain difference between a clock and ours, from the date in its HTTP answer.

    The date has whole seconds, and was written between request and answer: only a difference
    beyond that counts, however long the answer took.
    """
    return max(asked_ms - (date_ms + 1000), date_ms - answered_ms, 0.0)


def _ready(address: str, answer: Answer) -> Finding:
    """Return the finding of a `/readyz` answer."""
    name = f"readiness of {address}"
    try:
        checks = [(str(item["name"]), item["cause"]) for item in answer.body["checks"]]
        found_id = int(answer.body["node_id"])
    except (ValueError, KeyError, TypeError):
        cause = f"status {answer.status}, and no answer as a broker gives it"
        return Finding(check=name, status="warn", cause=cause, fix="name a broker's admin address")
    name = f"readiness of broker {found_id}"
    wrong = [f"{check}: {cause}" for check, cause in checks if cause]
    if not wrong:
        names = ", ".join(check for check, _ in checks)
        return Finding(check=name, status="ok", cause=f"ready: {names}")
    return Finding(
        check=name,
        status="fail",
        cause="; ".join(wrong),
        fix=_SHOW_CAUSES if hides_causes(answer) else _BRING_BACK,
    )
