"""Requests of commands to the admin HTTP interfaces of brokers.

An address is HOST:PORT, or a URL if the interface has TLS. Over https:// each request has the
credentials of the client's security options. Without TLS, credentials are sent only to this
machine, and only in a second request. That request follows if the first one was rejected for
missing credentials, or if its answer omitted the causes of failed health checks.
"""

from __future__ import annotations

from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.apps.client.session import State
    from penstock.client.admin_http import Answer


ADMIN_TIMEOUT_SECONDS: Final = 5.0
"""Longest wait for an answer; a broker needs less to determine its readiness."""


def admin_addresses(text: str) -> list[str]:
    """Return the addresses of a list that is separated by commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def admin_url(address: str) -> str:
    return address if "://" in address else f"http://{address}"


def ask_admin(
    state: State,
    address: str,
    path: str,
    method: str = "GET",
    *,
    timeout_seconds: float = ADMIN_TIMEOUT_SECONDS,
    repeated: bool = False,
) -> Answer:
    """Send a request to an admin interface and return the answer.

    With `repeated` it is retried while the broker is unavailable, for at most `timeout_seconds`.

    Raises:
        InvalidError: the address or a security option is invalid, or the interface requires
            credentials that must not be sent to it without TLS.
        AdminUnavailable: the interface does not answer.
    """
    from penstock.client.admin_http import NO_SECURITY, AdminHttp, AdminSecurity
    from penstock.client.errors import InvalidArgument
    from penstock.client.security import admin_security

    url, security = admin_url(address), admin_security(state.security() or {})

    def asked(security: AdminSecurity) -> Answer:
        with AdminHttp(url, security=security) as admin:
            ask = admin.call if repeated else admin.ask
            return ask(method, path, timeout_seconds=timeout_seconds)

    if url.startswith("https:"):
        return asked(security)
    answer = asked(NO_SECURITY)
    if security.authorization is None:
        return answer
    if answer.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return asked(security)
    if hides_causes(answer):
        with suppress(InvalidArgument):  # its address may be that of another machine
            return asked(security)
    return answer


def hides_causes(answer: Answer) -> bool:
    """Return whether a health answer names failed checks but omits their causes."""
    from penstock.broker.admin.health import FAILING

    checks = answer.body.get("checks", ())
    return any([isinstance(check, dict) and check.get("cause") == FAILING for check in checks])
