"""Checks of brokers for `penstock doctor`: advertised addresses, readiness and clocks.

Each advertised address is resolved and connected to from this machine, and the broker's API
versions are requested. A broker reports its unavailable dependencies over Kafka's protocol
(`BrokerState`). If admin interfaces are given, they are asked instead. A broker's clock is compared
with this machine's by the Date header of its admin interface.
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

from penstock.apps.checks.findings import SKEW_CURE, SKEW_WARN_SECONDS, Check, Finding
from penstock.apps.client.admin import admin_addresses, ask_admin, hides_causes
from penstock.base.errors import InvalidError, PenstockError
from penstock.base.system import SYSTEM_CLOCK
from penstock.client.errors import (
    BrokerRefused,
    ConnectionRefused,
    EncryptionExpected,
    NotAccepted,
    TimedOut,
)
from penstock.client.replicas import SHORT_CALLS, BrokerState

if TYPE_CHECKING:
    from penstock.apps.client.session import State
    from penstock.client import ClusterMetadata
    from penstock.client.admin_http import Answer
    from penstock.client.protocol import Node


ROUND_TRIP_WARN_MS: Final = 100.0
_SHOW_CAUSES: Final = (
    "the broker shows causes only to principals that may describe the cluster: give the"
    " credentials of one (--profile, -X), over https:// or on the broker's machine"
)
_WILDCARDS: Final = ("", "0.0.0.0", "::")  # noqa: S104  (compared, not bound)


def reach(state: State) -> tuple[ClusterMetadata | None, dict[int, BrokerState], list[Finding]]:
    """Request the cluster's metadata and the states of its brokers; return both, with findings.

    The metadata is None if no bootstrap address answers.
    """
    try:
        with state.client(**SHORT_CALLS) as client:
            begun = SYSTEM_CLOCK.monotonic()
            cluster = client.metadata([])
            elapsed_ms = (SYSTEM_CLOCK.monotonic() - begun) * 1000
            states = client.broker_states()
    except PenstockError as error:
        fix = cure(error, "a broker") or "give the address of a broker with -b HOST:PORT"
        return None, {}, [Finding("broker", "fail", str(error), fix)]
    names = ", ".join(f"{node.node_id} at {node.address}" for node in cluster.nodes.values())
    slow = elapsed_ms > ROUND_TRIP_WARN_MS
    found = Finding(
        "broker", "warn" if slow else "ok",
        f"brokers {names}; first answer after {elapsed_ms:.1f} ms",
        "the network or the broker is slow: check the load of the broker's machine" if slow else "",
    )  # fmt: skip
    return cluster, states, [found, *_shared(cluster)]


def silent(states: Mapping[int, BrokerState]) -> frozenset[int]:
    """Return the registered brokers that do not respond."""
    return frozenset(
        broker_id
        for broker_id, found in states.items()
        if found.error is not None and not isinstance(found.error, BrokerRefused)
    )


def cure(error: PenstockError, broker: str) -> str:
    """Return the fix for the error of an unreachable broker; empty if the error suffices."""
    cause = error.__cause__ if isinstance(error.__cause__, PenstockError) else error
    if isinstance(cause, ConnectionRefused):
        return (
            f"start {broker} with `penstock serve`; its log has the cause of its last stop. If it"
            " is running, give the address at which it listens"
        )
    if isinstance(cause, EncryptionExpected):
        return (
            "the listener requires TLS: give security options with --profile or -X, or in the"
            " file that PENSTOCK_CLIENT_CONFIG names"
        )
    if isinstance(cause, NotAccepted):
        return f"check that the machine of {broker} is running and that no firewall blocks it"
    if isinstance(cause, TimedOut):
        return (
            f"check whether the process of {broker} is stopped or busy: it accepts connections but"
            " does not answer"
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
            "advertised addresses",
            "fail",
            f"brokers {' and '.join(ids)} advertise the same address, {address}",
            "set a different advertised.listeners for each broker",
        )
        for address, ids in by_address.items()
        if len(ids) > 1
    ]


# -- connection to a broker ---------------------------------------------------------------


def _way(state: State, node: Node, asked: BrokerState | None) -> Check:
    name = f"broker {node.node_id} at {node.address}"
    failure = asked.error if asked is not None and silent({node.node_id: asked}) else None
    return Check(name, lambda: [_went(state, node, name, failure)])


def _went(state: State, node: Node, name: str, failure: PenstockError | None) -> Finding:
    """Report whether a broker is reachable at its advertised address.

    `failure` is the error of an earlier request to that address, None if the request succeeded.
    """
    fix = (
        f"set advertised.listeners of broker {node.node_id} to an address that clients can connect"
        " to"
    )
    try:
        found = socket.getaddrinfo(node.host, node.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        cause = f"its advertised host name {node.host} cannot be resolved on this machine: {error}"
        fix = f"{fix}, or add the name to DNS or /etc/hosts"
        return Finding(name, "fail", cause, fix)
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
            return Finding(name, "fail", str(failure), fix)
        cause = f"it answers at a bootstrap address, but not at its advertised address: {failure}"
        if ip_address(str(found[0][4][0]).partition("%")[0]).is_loopback:
            fix += "; with a loopback address every client connects to its own machine"
        return Finding(name, "fail", cause, fix)
    elapsed_ms = (SYSTEM_CLOCK.monotonic() - begun) * 1000
    if missing:
        cause = "requests of this client that it does not support: " + ", ".join(missing)
        return Finding(name, "warn", cause, "upgrade the broker or the client")
    cause = f"connected in {elapsed_ms:.1f} ms; it supports every request of this client"
    return Finding(name, "ok", cause)


def _is_elsewhere(state: State, node: Node, failure: PenstockError) -> bool:
    """Return whether the broker answers at a bootstrap address: its advertised one is then wrong.

    False without a request if `failure` shows that a process listens at the advertised address.
    """
    if isinstance(failure, EncryptionExpected) or type(failure) is TimedOut:
        return False
    with state.client(**SHORT_CALLS) as client:
        return client.is_at_bootstrap(node)


# -- readiness and clock --------------------------------------------------------------------


def _readiness(broker: BrokerState) -> Check:
    """Return the check of a broker's dependencies, by what the broker has reported."""
    name = f"readiness of broker {broker.node.node_id}"
    if broker.error is not None:
        refused = isinstance(broker.error, InvalidError)
        fix = "give its admin interface with --admin HOST:PORT" if refused else ""
        cause = f"not checked: {broker.error}"
        finding = Finding(name, "skip", cause, fix)
    elif broker.unavailable:
        finding = Finding(name, "fail", broker.unavailable, _BRING_BACK)
    else:
        cause = "ready: all of its dependencies are available"
        finding = Finding(name, "ok", cause)
    return Check(name, lambda: [finding])


_BRING_BACK: Final = (
    "repair the named dependencies; the broker needs no restart, unless its storage has failed"
)


def _found_clock(state: State, broker: BrokerState) -> Check:
    """Return the check of a broker's clock, without findings if its admin interface is unknown."""
    name = f"clock of broker {broker.node.node_id}"

    def run() -> Sequence[Finding]:
        address = _admin_address(broker)
        if address is None:
            return ()
        try:
            asked_ms = SYSTEM_CLOCK.now_ms()
            answer = ask_admin(state, address, "/livez")
        except PenstockError as error:
            return [Finding(name, "skip", f"not checked: {_innermost(error)}")]
        return [_clock(address, answer.date, asked_ms, SYSTEM_CLOCK.now_ms())]

    return Check(name, run)


def _innermost(error: PenstockError) -> BaseException:
    return error.__cause__ or error


def _admin_address(broker: BrokerState) -> str | None:
    """Return the address of a broker's admin interface as this machine reaches it; None if
    unknown.
    """
    return _from_here(broker.admin, "https://" if broker.admin_encrypted else "", broker.node)


def known_admins(
    state: State, states: Mapping[int, BrokerState], named: str | None = None
) -> list[str]:
    """Return the addresses of admin interfaces to query.

    The option --admin (`named`), PENSTOCK_ADMIN or the profile names them. Without any of these
    they are the addresses that brokers report and that this machine can reach.
    """
    addresses = admin_addresses(state.setting("admin", named, ""))
    return addresses or list(filter(None, map(_admin_address, states.values())))


def admin_answers(state: State, admins: Sequence[str], path: str) -> list[Mapping[str, Any]]:
    """Return the answers of admin interfaces to GET `path`; failed requests are left out."""
    found = []
    for address in admins:
        with suppress(PenstockError):  # the check of its readiness reports it
            answer = ask_admin(state, address, path)
            if answer.status == HTTPStatus.OK:
                found.append(answer.body)
    return found


def _from_here(listener: str, scheme: str, node: Node) -> str | None:
    """Return an admin listener's address as this machine reaches it.

    None if the listener is off, or on the loopback address of another machine.
    """
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
    """Check a broker's readiness and clock through an admin interface given with --admin."""
    try:
        asked_ms = SYSTEM_CLOCK.now_ms()
        answer = ask_admin(state, address, "/readyz")
        answered_ms = SYSTEM_CLOCK.now_ms()
    except PenstockError as error:
        return [
            Finding(
                f"readiness of {address}",
                "fail",
                f"the admin interface at {address} cannot be queried: {_innermost(error)}",
                "give the address after admin= in the broker's ready line with --admin",
            )
        ]
    clock = _clock(address, answer.date, asked_ms, answered_ms)
    return [_ready(address, answer), clock]


def _clock(address: str, date: str | None, asked_ms: int, answered_ms: int) -> Finding:
    """Compare this machine's clock with the Date header of an HTTP answer."""
    name = f"clock of {address}"
    try:
        theirs_ms = parsedate_to_datetime(date or "").timestamp() * 1000
    except ValueError:
        cause = (
            "its answer has no Date header"
            if date is None
            else f"its Date header is invalid: {date}"
        )
        return Finding(name, "warn", cause)
    skew_seconds = clock_skew_ms(asked_ms, theirs_ms, answered_ms) / 1000
    skewed = skew_seconds > SKEW_WARN_SECONDS
    return Finding(
        name, "warn" if skewed else "ok",
        f"differs from this machine's clock by about {skew_seconds:.0f} s",
        SKEW_CURE if skewed else "",
    )  # fmt: skip


def clock_skew_ms(asked_ms: float, date_ms: float, answered_ms: float) -> float:
    """Return the milliseconds by which two clocks differ at least; 0 if they may agree.

    The other clock's date comes from an HTTP answer. It has whole seconds, and was written at an
    unknown time between request and answer. Only a difference beyond this uncertainty counts.
    """
    return max(asked_ms - (date_ms + 1000), date_ms - answered_ms, 0.0)


def _ready(address: str, answer: Answer) -> Finding:
    """Return the finding of an answer to `/readyz`."""
    name = f"readiness of {address}"
    try:
        checks = [(str(item["name"]), item["cause"]) for item in answer.body["checks"]]
        found_id = int(answer.body["node_id"])
    except (ValueError, KeyError, TypeError):
        cause = f"the answer, with status {answer.status}, is not that of a broker"
        return Finding(
            name, "warn", cause, "give the address of a broker's admin interface with --admin"
        )
    name = f"readiness of broker {found_id}"
    wrong = [f"{check}: {cause}" for check, cause in checks if cause]
    if not wrong:
        names = ", ".join(check for check, _ in checks)
        return Finding(name, "ok", f"ready: {names}")
    return Finding(
        name, "fail", "; ".join(wrong), _SHOW_CAUSES if hides_causes(answer) else _BRING_BACK
    )
