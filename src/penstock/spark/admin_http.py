"""HTTP clients of the brokers' admin addresses, which the option `penstock.admin.url` names."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS, Clock, Randomness
from penstock.base.urls import without_credentials
from penstock.client import limits
from penstock.client.admin_http import NO_SECURITY, AdminHttp, AdminSecurity, Answer, Body
from penstock.client.errors import AdminUnavailable, InvalidArgument, NotHttp
from penstock.spark.errors import InvalidOption, NotPenstock

ATTEMPT_SECONDS: Final = 10.0
"""Longest wait for one of several brokers before the next one is called."""


class BrokerAdmin(AdminHttp):
    """`AdminHttp` client of one admin address.

    Raises:
        InvalidOption: the option is not an HTTP URL.
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
        """Call the admin address.

        Raises:
            AdminUnavailable: the time is over.
            NotPenstock: something that does not speak HTTP answers.
        """
        try:
            return super().call(method, path, body, timeout_seconds=timeout_seconds)
        except NotHttp as error:
            raise NotPenstock(self.url, "it does not speak HTTP") from error


class BrokerAdmins:
    """Clients of the admin addresses of one cluster's brokers, for one thread.

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
        """Addresses, beginning with the one that answered last."""
        self.in_order = tuple(self.addresses)
        """Addresses in the order of the option."""
        self.unanswered = False
        """Whether a call at one of several addresses may still be carried out."""

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
        """Make a repeatable call at any broker, or at one of `among`.

        The next broker is called if one is unreachable or not ready (5xx), until the time is over.

        Raises:
            AdminUnavailable: the time is over.
            NotPenstock: something that does not speak HTTP answers at the only address.
        """
        addresses = [at for at in self.addresses if not among or at.url in among]
        if len(addresses) == 1:
            return addresses[0].call(method, path, body, timeout_seconds=timeout_seconds)
        deadline = self._clock.monotonic() + timeout_seconds
        trouble = "there is no such address"
        for attempt in range(limits.ADMIN_ATTEMPTS_MAX):
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
            f"no admin address did {method} {path} in {timeout_seconds:g} s; at last: {trouble}"
        )

    def get(
        self, path: str, *, timeout_seconds: float, leader_seconds: float
    ) -> tuple[BrokerAdmin, Answer]:
        """Return the first successful response and the address of its broker.

        The next broker is called if one is unreachable, not ready (5xx), not the leader (421) or
        returns 404. All are called again for `timeout_seconds` while none responds, and for
        `leader_seconds` while some do. Then the last response is returned.

        Raises:
            AdminUnavailable: no broker responded.
        """
        began = self._clock.monotonic()
        for attempt in range(limits.ADMIN_ATTEMPTS_MAX):
            answered, trouble = self._round(path, timeout_seconds)
            if answered and (_can(answered[-1][1]) or self._unknown(answered)):
                break
            deadline = began + (leader_seconds if answered else timeout_seconds)
            if self._clock.monotonic() >= deadline:
                break
            self.addresses[0].pause(attempt, deadline)
        if answered:
            return answered[-1]
        raise trouble or AdminUnavailable("there is no admin address")

    def _round(
        self, path: str, timeout_seconds: float
    ) -> tuple[list[tuple[BrokerAdmin, Answer]], AdminUnavailable | None]:
        """Call each broker once, up to the first success; return the last response."""
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
    """Whether the broker could process the request, even if it rejected it."""
    elsewhere = {HTTPStatus.NOT_FOUND, HTTPStatus.MISDIRECTED_REQUEST}
    return answer.status < HTTPStatus.INTERNAL_SERVER_ERROR and answer.status not in elsewhere
