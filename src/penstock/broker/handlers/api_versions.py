"""ApiVersions: what this broker serves, straight from the API table.

The requests of clients' metrics are left out while no subscription asks for any, as Apache Kafka
leaves them out without a receiver: a client that sees them asks for its subscriptions at once.

Source: KIP-35, KIP-511 (version 0 answers what is not understood), KIP-584 (features).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.connection import RequestContext
from penstock.wire.kafka.apis import API_VERSIONS, APIS
from penstock.wire.kafka.encoder import encoder

if TYPE_CHECKING:
    from penstock.broker.telemetry.service import Telemetry

TELEMETRY: Final = frozenset({"GetTelemetrySubscriptions", "PushTelemetry"})
FEATURES: Final = {"group.version": 1, "share.version": 1, "transaction.version": 2}
"""Kafka's features that are finalised here, each at its level: clients choose protocols by them.
group.version 1 is the consumer group protocol of KIP-848, share.version 1 are the share groups of
KIP-932. With transaction.version 2 (KIP-890) the epoch rises at every end of a transaction, and
partitions join it by what is written to them."""

SOFTWARE_FROM: Final = 3
"""The version from which clients say what they are."""

_NAME: Final = APIS[API_VERSIONS].name

ZERO_FEATURES_FROM: Final = 4
"""Older versions cannot be told of features that begin at 0 (KAFKA-17011)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Parts of the broker that this handler uses."""

    telemetry: Telemetry


def api_versions(parts: Parts, context: RequestContext, request: Any) -> bytes:
    """Answer with the table; encoded once per version."""
    if context.version >= SOFTWARE_FROM:
        name, version = request.client_software_name, request.client_software_version
        context.connection.software = name, version
    return answer_body(context.version, 0, telemetry=parts.telemetry.subscribed)


@cache
def answer_body(version: int, error_code: int, *, telemetry: bool = False) -> bytes:
    """The answer's body in one version of ApiVersions."""
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
