"""Kafka's protocol: the table of API keys, framing, and codecs generated from Kafka's schemas."""

from penstock.wire.kafka.apis import APIS, BY_NAME, Api
from penstock.wire.kafka.decoder import decoder
from penstock.wire.kafka.encoder import encoder
from penstock.wire.kafka.framing import (
    MalformedRequest,
    UnencodableResponse,
    UnsupportedVersion,
    request_frame,
    response_prefix,
)
from penstock.wire.kafka.schema import error_codes, load_entity

__all__ = [
    "APIS",
    "BY_NAME",
    "Api",
    "MalformedRequest",
    "UnencodableResponse",
    "UnsupportedVersion",
    "decoder",
    "encoder",
    "error_codes",
    "load_entity",
    "request_frame",
    "response_prefix",
]
