"""ApiVersions, UpdateFeatures, and the telemetry APIs GetTelemetrySubscriptions and PushTelemetry.

ApiVersions returns the supported APIs and versions, from the table of API keys. From version 5 on
the request names the cluster and the broker that the client intends to reach. If an address now
belongs to another broker or cluster, the client gets REBOOTSTRAP_REQUIRED.

UpdateFeatures accepts the current level of a feature and rejects every other level, because the
levels of a Penstock version are fixed.

The telemetry APIs are omitted while no subscription to client metrics exists, because clients send
telemetry requests as soon as a broker supports them.

Source: KIP-35, KIP-511 (version 0 answers unsupported versions), KIP-584 (features), KIP-714
(telemetry), KIP-1242 (cluster and broker); Kafka's `FeatureControlManager`.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Final

from msgspec import Struct

from penstock.base.errors import InvalidError
from penstock.broker.net.connection import RequestContext
from penstock.broker.net.errors import BadRequest, error_fields, error_number
from penstock.broker.telemetry.subscriptions import CODECS
from penstock.wire.kafka.apis import API_VERSIONS, APIS
from penstock.wire.kafka.encoder import encoder

if TYPE_CHECKING:
    from penstock.broker.configuration.settings import BrokerSettings
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.telemetry.service import Telemetry


TELEMETRY: Final = frozenset({"GetTelemetrySubscriptions", "PushTelemetry"})
FEATURES: Final = {
    "group.version": 1,
    "share.version": 2,
    "streams.version": 1,
    "transaction.version": 2,
}
"""Finalised features of Kafka and their levels. Clients choose protocols by them. group.version 1
is the consumer group protocol of KIP-848, share.version 2 the share groups of KIP-932 with the
dead-letter topics of KIP-1191.
transaction.version 2 is KIP-890: the producer epoch rises at the end of every transaction, and the
broker adds a partition to the transaction at the first write to it."""

WITHOUT_RESULTS_FROM: Final = 2
"""First version of UpdateFeatures whose response has one error for all features."""
SOFTWARE_FROM: Final = 3
"""First version whose request has the name and version of the client's software."""

INTENDED_FROM: Final = 5
"""First version whose request has the intended cluster and broker."""
MISROUTED: Final = "rebootstrap_required"

_NAME: Final = APIS[API_VERSIONS].name

ZERO_FEATURES_FROM: Final = 4
"""First version that can represent features with the minimum version 0 (KAFKA-17011)."""


class ApiVersions(Struct, frozen=True, kw_only=True):
    node_id: int
    cluster: ClusterMetadata
    telemetry: Telemetry

    def api_versions(self, context: RequestContext, request: Any) -> bytes:
        """Return the encoded table of API keys, and store the client's software name."""
        if context.version >= SOFTWARE_FROM:
            name, version = request.client_software_name, request.client_software_version
            context.connection.software = name, version
        if context.version >= INTENDED_FROM and self._is_misrouted(request):
            return encoder(_NAME, context.version, "response")(
                {"error_code": error_number(MISROUTED), "api_keys": ()}
            )
        return answer_body(context.version, 0, telemetry=self.telemetry.subscribed)

    def _is_misrouted(self, request: Any) -> bool:
        """Return whether the client intended another broker; raises BadRequest."""
        if (request.cluster_id is None) != (request.node_id == -1):
            raise BadRequest("the request must name both the cluster and the broker, or neither")
        if request.node_id not in (-1, self.node_id):
            return True
        image = self.cluster.loaded
        return image is not None and request.cluster_id not in (None, image.cluster_id)


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


class InvalidUpdateVersion(InvalidError):
    """Level of a feature that this version of Penstock does not have."""

    code: ClassVar[str] = "invalid_update_version"


class Features(Struct, frozen=True, kw_only=True):
    node_id: int

    def update_features(self, context: RequestContext, request: Any) -> dict[str, Any]:
        """Reject every change of a feature's level, with the reason."""
        refusals = {update.feature: self._refusal(update) for update in request.feature_updates}
        failures = {feature: error for feature, error in refusals.items() if error is not None}
        if failures and context.version >= WITHOUT_RESULTS_FROM:
            return error_fields(InvalidUpdateVersion(" ".join(map(str, failures.values()))))
        return {
            "results": [
                {"feature": feature, **({} if error is None else error_fields(error))}
                for feature, error in refusals.items()
            ]
        }

    def _refusal(self, update: Any) -> InvalidUpdateVersion | None:
        name, level = update.feature, update.max_version_level
        current = FEATURES.get(name, 0)
        if level == current:
            return None
        if name not in FEATURES:
            reason = f"Broker {self.node_id} does not support this feature."
        elif level > current or level < 0:
            reason = f"Broker {self.node_id} only supports versions 0-{current}."
        else:
            reason = (
                f"The level is fixed at {current} in this version of Penstock. Keep it, and"
                " disable the feature by the broker's settings."
            )
        return InvalidUpdateVersion(
            f"Invalid update version {level} for feature {name!r:.200}. {reason}"
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
