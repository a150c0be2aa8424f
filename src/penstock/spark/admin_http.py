"""HTTP clients of the brokers' admin addresses (option `penstock.admin.url`)."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS, Clock, Randomness
from penstock.base.urls import without_credentials
from penstock.client import errors
from penstock.client.admin_http import NO_SECURITY, AdminHttp, AdminSecurity, Answer, Body
from penstock.client.errors import AdminUnavailable, InvalidArgument, NotHttp
from penstock.spark.errors import InvalidOption, NotPenstock

ATTEMPT_SECONDS: Final = 10.0
"""Longest wait for a broker's response before the next broker is tried."""


class BrokerAdmin(AdminHttp):
    """HTTP client of one broker's admin address; its errors name the option and the remedy.

    Raises:
        InvalidOption: the address is not an HTTP URL.
    """

    def __init__(
        self,
        url: str,
        *,
        clock: Clock = SYSTEM_CLOCK,
        randomness: Randomness = SYSTEM_RANDOMNESS,
        security: AdminSecurity = NO_SECURITY,
    ) -> None:
        try:
            super().__init__(url, clock=clock, randomness=randomness, security=security)
        except InvalidArgument as error:
            raise InvalidOption(
                "penstock.admin.url", without_credentials(url), str(error)
            ) from None

    def call(
        self, method: str, path: str, body: Body | None = None, *, timeout_seconds: float
    ) -> Answer:
        """Send a request and return the response; retry while the broker is unavailable.

        Raises:
            AdminUnavailable: the broker did not respond within `timeout_seconds`.
            NotPenstock: the server at this address does not speak HTTP.
        """
        try:
            return super().call(method, path, body, timeout_seconds=timeout_seconds)
        except NotHttp as error:
            raise NotPenstock(self.url, "it does not speak HTTP") from error


class BrokerAdmins:
    """Clients of the admin addresses of one cluster's brokers; not thread-safe.

    Raises:
        InvalidOption: an address is not an HTTP URL.
    """

    def __init__(
        self,
        urls: str,
        *,
        clock: Clock = SYSTEM_CLOCK,
        randomness: Randomness = SYSTEM_RANDOMNESS,
        security: AdminSecurity = NO_SECURITY,
    ) -> None:
        self._clock = clock
        self.addresses = [
            BrokerAdmin(url.strip(), clock=clock, randomness=randomness, security=security)
            for url in urls.split(",")
        ]
        """Clients by preference: the broker that answered last comes first."""
        self.in_order = tuple(self.addresses)
        """Clients in the order of the option `penstock.admin.url`."""
        self.unanswered = False
        """Whether a broker may still be executing a request to which it did not respond in time."""

    def close(self) -> None:
        for address in self.addresses:
            address.close()

    def call(
        self,
        method: str,
        path: str,
        body: Body | None = None,
        *,
        timeout_seconds: float,
        among: Sequence[str] = (),
    ) -> Answer:
        """Send an idempotent request to any broker, or to any of the addresses in `among`.

        If a broker is unreachable or not ready (5xx), the next one is tried, until
        `timeout_seconds` have passed.

        Raises:
            AdminUnavailable: no broker responded in time.
            NotPenstock: the server at the only address does not speak HTTP.
        """
        addresses = [at for at in self.addresses if not among or at.url in among]
        if len(addresses) == 1:
            return addresses[0].call(method, path, body, timeout_seconds=timeout_seconds)
        deadline = self._clock.monotonic() + timeout_seconds
        trouble = "no address is configured"
        for attempt in range(errors.ADMIN_ATTEMPTS_MAX):
            for address in addresses:
                left = deadline - self._clock.monotonic()
                if left <= 0:
                    break
                try:
                    answer = address.ask(method, path, body, timeout_seconds=max(1.0, left / 2))
                except AdminUnavailable as error:
                    self.unanswered = True
                    trouble = str(error)
                    continue
                if answer.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                    return answer
                trouble = f"{address.url}: {answer.status} {answer.error}: {answer.message}"
            if not addresses or self._clock.monotonic() >= deadline:
                break
            addresses[0].pause(attempt, deadline)
        raise AdminUnavailable(
            f"no broker completed {method} {path} in {timeout_seconds:g} s. Last error: {trouble}"
        )

    def get(
        self, path: str, *, timeout_seconds: float, leader_seconds: float
    ) -> tuple[BrokerAdmin, Answer]:
        """Return the first successful response to GET, and the client of its broker.

        If a broker is unreachable, not ready (5xx), not the leader (421) or returns 404, the next
        one is tried. If none succeeds, all are tried again: for `timeout_seconds` if no broker
        responds, for `leader_seconds` if some do. Then the last response is returned.

        Raises:
            AdminUnavailable: no broker responded.
        """
        began = self._clock.monotonic()
        for attempt in range(errors.ADMIN_ATTEMPTS_MAX):
            answered, trouble = self._round(path, timeout_seconds)
            if answered and (_can(answered[-1][1]) or self._unknown(answered)):
                break
            deadline = began + (leader_seconds if answered else timeout_seconds)
            if self._clock.monotonic() >= deadline:
                break
            self.addresses[0].pause(attempt, deadline)
        if answered:
            return answered[-1]
        raise trouble or AdminUnavailable("no admin address is configured")

    def _round(
        self, path: str, timeout_seconds: float
    ) -> tuple[list[tuple[BrokerAdmin, Answer]], AdminUnavailable | None]:
        """Send a GET request to each broker once, until `_can` accepts a response.

        That broker is tried first from then on. Returns all responses, each with its broker, and
        the last error of an unavailable broker.
        """
        answered: list[tuple[BrokerAdmin, Answer]] = []
        trouble: AdminUnavailable | None = None
        most = min(timeout_seconds, ATTEMPT_SECONDS) if len(self.addresses) > 1 else timeout_seconds
        for address in list(self.addresses):
            try:
                answer = address.ask("GET", path, timeout_seconds=most)
            except AdminUnavailable as error:
                trouble = error
                continue
            answered.append((address, answer))
            if _can(answer):
                self.addresses.remove(address)
                self.addresses.insert(0, address)
                break
        return answered, trouble

    def _unknown(self, answered: list[tuple[BrokerAdmin, Answer]]) -> bool:
        return len(answered) == len(self.addresses) and all(
            answer.status == HTTPStatus.NOT_FOUND for _, answer in answered
        )


def _can(answer: Answer) -> bool:
    """Return whether the broker that sent this response can serve the request.

    It cannot if it is not ready (5xx), is not the leader (421) or lacks the topic (404); then the
    next broker is tried. Any other rejection is final, because every broker would reject it.
    """
    elsewhere = {HTTPStatus.NOT_FOUND, HTTPStatus.MISDIRECTED_REQUEST}
    return answer.status < HTTPStatus.INTERNAL_SERVER_ERROR and answer.status not in elsewhere
