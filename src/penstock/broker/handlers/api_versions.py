"""ApiVersions, and the telemetry APIs GetTelemetrySubscriptions and PushTelemetry (KIP-714).

ApiVersions returns the supported APIs and versions, from the table of API keys.

The telemetry APIs are omitted while no subscription to client metrics exists, because clients send
telemetry requests as soon as a broker supports them.

Source: KIP-35, KIP-511 (version 0 answers unsupported versions), KIP-584 (features).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from penstock.broker.net.connection import RequestContext
from penstock.broker.net.errors import BadRequest
from penstock.broker.telemetry.subscriptions import CODECS
from penstock.wire.kafka.apis import API_VERSIONS, APIS
from penstock.wire.kafka.encoder import encoder

if TYPE_CHECKING:
    from penstock.broker.configuration.settings import BrokerSettings
    from penstock.broker.telemetry.service import Telemetry


TELEMETRY: Final = frozenset({"GetTelemetrySubscriptions", "PushTelemetry"})
FEATURES: Final = {"group.version": 1, "share.version": 1, "transaction.version": 2}
"""Finalised features of Kafka and their levels. Clients choose protocols by them. group.version 1
is the consumer group protocol of KIP-848, share.version 1 the share groups of KIP-932.
transaction.version 2 is KIP-890: the producer epoch rises at the end of every transaction, and the
broker adds a partition to the transaction at the first write to it."""

SOFTWARE_FROM: Final = 3
"""First version whose request has the name and version of the client's software."""

_NAME: Final = APIS[API_VERSIONS].name

ZERO_FEATURES_FROM: Final = 4
"""First version that can represent features with the minimum version 0 (KAFKA-17011)."""


class ApiVersions(Struct, frozen=True, kw_only=True):
    telemetry: Telemetry

    def api_versions(self, context: RequestContext, request: Any) -> bytes:
        """Return the encoded table of API keys, and store the client's software name."""
        if context.version >= SOFTWARE_FROM:
            name, version = request.client_software_name, request.client_software_version
            context.connection.software = name, version
        return answer_body(context.version, 0, telemetry=self.telemetry.subscribed)


@cache
def answer_body(version: int, error_code: int, *, telemetry: bool = False) -> bytes:
    keys = [
        {"api_key": api.key, "min_version": api.minimum, "max_version": api.maximum}
        for api in APIS.values()
        if telemetry or api.name not in TELEMETRY
    ]
    return encoder(_NAME, version, "response")(
        {
            "error_code": error_code,
            "api_keys": keys,
            "supported_features": [
                {"name": name, "min_version": 0, "max_version": level}
                for name, level in FEATURES.items()
                if version >= ZERO_FEATURES_FROM
            ],
            "finalized_features_epoch": 0,
            "finalized_features": [
                {"name": name, "min_version_level": level, "max_version_level": level}
                for name, level in FEATURES.items()
            ],
        }
    )


class ClientTelemetry(Struct, frozen=True, kw_only=True):
    settings: BrokerSettings
    telemetry: Telemetry

    def get_telemetry_subscriptions(self, context: RequestContext, request: Any) -> dict[str, Any]:
        instance = self.telemetry.ask(context, request.client_instance_id)
        return {
            "client_instance_id": instance.instance_id,
            "subscription_id": instance.subscription_id,
            "accepted_compression_types": CODECS,
            "push_interval": instance.interval_ms,
            "telemetry_max_bytes": self.settings.telemetry_max_bytes,
            "delta_temporality": True,
            "requested_metrics": instance.metrics,
        }

    def push_telemetry(self, context: RequestContext, request: Any) -> dict[str, Any]:
        if request.client_instance_id is None:
            raise BadRequest(
                "PushTelemetry has no client instance id: send GetTelemetrySubscriptions first"
            )
        self.telemetry.push(
            context,
            request.client_instance_id,
            bytes(request.metrics),
            subscription_id=request.subscription_id,
            codec=request.compression_type,
            ends=request.terminating,
        )
        return {}
