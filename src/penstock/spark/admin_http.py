"""The admin addresses that the option `penstock.admin.url` names, with commas between several.

Which broker can answer changes: brokers die and come back, and leadership moves. `BrokerAdmins`
finds the one that can.
"""

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
"""Longest wait for one of several brokers before the next is asked."""


class BrokerAdmin(AdminHttp):
    """`AdminHttp` of an option.

    Raises:
        InvalidOption: the option is no URL of HTTP.
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
        """As `AdminHttp.call`.

        Raises:
            AdminUnavailable: the time is over.
            NotPenstock: something that does not speak HTTP answers.
        """
        try:
            return super().call(method, path, body, timeout_seconds=timeout_seconds)
        except NotHttp as error:
            raise NotPenstock(self.url, "it does not speak HTTP") from error


class BrokerAdmins:
    """Admin addresses of the brokers of one cluster, for one thread.

    Raises:
        InvalidOption: one is no URL of HTTP.
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
        """The one that could answer last comes first."""
        self.in_order = tuple(self.addresses)
        """As they are given."""
        self.unanswered = False
        """Whether a call at one of several addresses may still be carried out."""

    def close(self) -> None:
        """Drop the connections."""
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
        """Make a call that may be repeated, at any broker or at one of those with `among`.

        The next broker is called where one is away or not ready (5xx); all are called again until
        the time is over.

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
        """Return the answer of the first broker that can give one, and its address.

        The next broker is asked where one is away, not ready (5xx), not the leader (421) or does
        not know what is asked for (404). All are asked again until one can answer: for
        `timeout_seconds` while none is there, for `leader_seconds` while some are. Then the last
        answer is returned.

        Raises:
            AdminUnavailable: none of them is there.
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
        """Ask each broker once, up to the first that can answer; the last answer is its."""
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
        """Whether every broker says that there is no such thing."""
        return len(answered) == len(self.addresses) and all(
            answer.status == HTTPStatus.NOT_FOUND for _, answer in answered
        )


def _can(answer: Answer) -> bool:
    """Whether the broker could answer, be it with a refusal."""
    elsewhere = {HTTPStatus.NOT_FOUND, HTTPStatus.MISDIRECTED_REQUEST}
    return answer.status < HTTPStatus.INTERNAL_SERVER_ERROR and answer.status not in elsewhere
