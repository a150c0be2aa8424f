"""Requests of commands to the admin interfaces of brokers.

An address is HOST:PORT, or a URL if it has TLS. Over https:// each request has the credentials
of the client's options of security. Without TLS they are sent to this machine alone, and only
after the interface has rejected a request without them, or has hidden the causes of failed checks.
"""

from __future__ import annotations

from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.apps.session import State
    from penstock.client.admin_http import Answer

ADMIN_TIMEOUT_SECONDS: Final = 5.0
"""More than a broker takes for its readiness."""


def admin_addresses(text: str) -> list[str]:
    """Split a list of addresses at commas."""
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
    """Return the answer of an admin interface; `repeated` retries while the broker is away.

    Raises:
        InvalidError: the address is invalid, the options of security are wrong, or credentials are
            needed that must not be sent there.
        AdminUnavailable: there is no answer.
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
    """Return whether a health answer names failed checks without their causes."""
    from penstock.broker.admin.health import FAILING

    checks = answer.body.get("checks", ())
    return any([isinstance(check, dict) and check.get("cause") == FAILING for check in checks])
