"""GetTelemetrySubscriptions and PushTelemetry (KIP-714); `broker/telemetry/` has the logic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from penstock.broker.admin_errors import BadRequest
from penstock.broker.connection import RequestContext
from penstock.broker.telemetry.instances import CODECS

if TYPE_CHECKING:
    from penstock.broker.settings import BrokerSettings
    from penstock.broker.telemetry.service import Telemetry


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
