"""Clients that push metrics: what each is asked for, and which of its requests are taken.

A client asks what is wanted of it, then pushes once per interval; its first push may come at any
time after it asked, so that not all push at once. It is told by UNKNOWN_SUBSCRIPTION_ID that
something else is wanted by now, and asks again. The number of what is wanted follows from it and
from the client's id alone, so a client may go on at any broker.

This is a core: times are ms of a clock that never goes back, ids are arguments.

Source: KIP-714; Kafka's `ClientMetricsManager` and `ClientMetricsInstance`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final
from uuid import UUID

from penstock.base.crc import crc32c
from penstock.base.errors import InvalidError, RetriableError
from penstock.broker.admin_errors import BadRequest
from penstock.broker.telemetry.limits import FORGOTTEN_AFTER_INTERVALS, INSTANCES_MAX
from penstock.broker.telemetry.subscriptions import Attributes, Subscription, wanted_of

CODECS: Final = (4, 3, 1, 2)
"""Compressions that are taken, the best first: zstd, lz4, gzip, snappy."""

_LONG_AGO: Final = float("-inf")


class UnknownSubscription(InvalidError):
    """Something else is wanted of the client by now: it has to ask."""

    code: ClassVar[str] = "unknown_subscription_id"


class UnsupportedCompression(InvalidError):
    """A compression that the broker does not know."""

    code: ClassVar[str] = "unsupported_compression_type"


class TelemetryTooLarge(InvalidError):
    """More bytes of metrics than `telemetry.max.bytes`."""

    code: ClassVar[str] = "telemetry_too_large"


class TooEarly(RetriableError):
    """The interval has not passed yet."""

    code: ClassVar[str] = "throttling_quota_exceeded"


@dataclass(slots=True, kw_only=True)
class Instance:
    """One client, by the id that it was given."""

    instance_id: UUID
    attributes: Attributes
    version: int
    metrics: tuple[str, ...]
    interval_ms: int
    subscription_id: int
    asked_ms: float = _LONG_AGO
    pushed_ms: float = _LONG_AGO
    may_ask: bool = True
    """Whether it may ask before its interval has passed: it was just told to."""
    ended: bool = False

    @property
    def used_ms(self) -> float:
        return max(self.asked_ms, self.pushed_ms)

    @property
    def kept_ms(self) -> float:
        """How long it is known without another request."""
        return self.interval_ms * FORGOTTEN_AFTER_INTERVALS


class Instances:
    """All clients that a broker knows, who asked for nothing for longest first."""

    def __init__(self, telemetry_bytes_max: int) -> None:
        self._bytes_max = telemetry_bytes_max
        self._subscriptions: Sequence[Subscription] = ()
        self._version = 0
        self._known: dict[UUID, Instance] = {}

    def __len__(self) -> int:
        return len(self._known)

    def replace(self, subscriptions: Sequence[Subscription]) -> None:
        """Something else is wanted of clients."""
        self._subscriptions = subscriptions
        self._version += 1

    def ask(self, instance_id: UUID, attributes: Attributes, now_ms: float) -> Instance:
        """What is wanted of a client.

        Raises:
            TooEarly: it asked or pushed within its interval, and was not told to ask.
        """
        instance = self._instance(instance_id, attributes, now_ms)
        if now_ms - instance.used_ms < instance.interval_ms and not instance.may_ask:
            raise TooEarly(
                f"client {instance_id} asked before its interval of {instance.interval_ms} ms"
            )
        instance.asked_ms = now_ms
        instance.may_ask = False
        return instance

    def push(
        self,
        instance_id: UUID,
        attributes: Attributes,
        now_ms: float,
        *,
        subscription_id: int,
        codec: int,
        size_bytes: int,
        ends: bool,
    ) -> Instance:
        """Take a push, whose bytes are not looked at.

        Raises:
            BadRequest: the client said before that it ends.
            TooEarly, UnknownSubscription, UnsupportedCompression, TelemetryTooLarge
        """
        instance = self._instance(instance_id, attributes, now_ms)
        if instance.ended:
            raise BadRequest(f"client {instance_id} pushes after it said that it ends")
        early = instance.asked_ms <= instance.pushed_ms
        if early and now_ms - instance.pushed_ms < instance.interval_ms and not ends:
            raise TooEarly(
                f"client {instance_id} pushed before its interval of {instance.interval_ms} ms"
            )
        instance.pushed_ms = now_ms
        instance.ended = ends
        if subscription_id != instance.subscription_id:
            instance.may_ask = True
            raise UnknownSubscription(
                f"client {instance_id} pushes for subscription {subscription_id}, wanted is"
                f" {instance.subscription_id}"
            )
        if codec != 0 and codec not in CODECS:
            instance.may_ask = True
            raise UnsupportedCompression(f"there is no compression {codec}, only 0 to 4")
        if size_bytes > self._bytes_max:
            raise TelemetryTooLarge(
                f"client {instance_id} pushes {size_bytes} bytes, telemetry.max.bytes is"
                f" {self._bytes_max}"
            )
        return instance

    def _instance(self, instance_id: UUID, attributes: Attributes, now_ms: float) -> Instance:
        known = self._known.pop(instance_id, None)
        if known is None or known.version != self._version:
            known = self._new(instance_id, attributes, known)
        self._known[instance_id] = known
        self._forget(now_ms)
        return known

    def _new(self, instance_id: UUID, attributes: Attributes, before: Instance | None) -> Instance:
        metrics, interval_ms = wanted_of(attributes, self._subscriptions)
        found = Instance(
            instance_id=instance_id,
            attributes=attributes,
            version=self._version,
            metrics=metrics,
            interval_ms=interval_ms,
            subscription_id=subscription_id_of(instance_id, metrics, interval_ms),
        )
        if before is not None:
            found.asked_ms, found.pushed_ms = before.asked_ms, before.pushed_ms
            found.may_ask, found.ended = before.may_ask, before.ended
        return found

    def _forget(self, now_ms: float) -> None:
        """Forget who is first in line, if that one is due, or is one too many; two at the most."""
        for _ in range(2):
            first = next(iter(self._known.values()))
            due = now_ms - first.used_ms > first.kept_ms and first.used_ms != _LONG_AGO
            if not due and len(self._known) <= INSTANCES_MAX:
                return
            del self._known[first.instance_id]
            if not self._known:
                return


def subscription_id_of(instance_id: UUID, metrics: Sequence[str], interval_ms: int) -> int:
    """The number of what is wanted of a client, the same at all brokers; as a signed int32."""
    wanted = json.dumps([instance_id.hex, list(metrics), interval_ms]).encode()
    return crc32c(wanted) - (1 << 31)
