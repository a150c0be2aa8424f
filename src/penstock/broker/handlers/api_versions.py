"""ApiVersions: what this broker serves, straight from the API table.

Source: KIP-35, KIP-511 (version 0 answers what is not understood), KIP-584.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from penstock.broker.connection import RequestContext
from penstock.wire.kafka.apis import API_VERSIONS, APIS
from penstock.wire.kafka.encoder import encoder

_NAME = APIS[API_VERSIONS].name


def api_versions(context: RequestContext, request: Any) -> bytes:
    """Answer with the table; encoded once per version."""
    return answer_body(context.version, 0)


@cache
def answer_body(version: int, error_code: int) -> bytes:
    """The answer's body in one version of ApiVersions."""
    keys = [
        {"api_key": api.key, "min_version": api.minimum, "max_version": api.maximum}
        for api in APIS.values()
    ]
    return encoder(_NAME, version, "response")({"error_code": error_code, "api_keys": keys})
