"""The admin address that the option `penstock.admin.url` names, and what to say of it."""

from __future__ import annotations

from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS, Clock, Randomness
from penstock.client.admin_http import NO_SECURITY, AdminHttp, AdminSecurity, Answer, Body
from penstock.client.errors import InvalidArgument, NotHttp
from penstock.spark.errors import InvalidOption, NotPenstock


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
            raise InvalidOption("penstock.admin.url", url.rpartition("@")[2], str(error)) from None

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
