"""Calls a handler as the dispatcher does: through the bytes of one version, both ways."""

import inspect
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

from penstock.base.errors import PenstockError
from penstock.broker.net.connection import RequestContext
from penstock.broker.net.errors import error_answer, error_of
from penstock.broker.server import BrokerServer
from penstock.broker.table import Handlers
from penstock.wire.kafka.apis import BY_NAME
from penstock.wire.kafka.decoder import decoder
from penstock.wire.kafka.encoder import encoder

PEER = {"client_host": "127.0.0.1", "listener": "PLAINTEXT", "closing": False}


def versions(api_name: str) -> range:
    """Every version of an API that the broker serves."""
    api = BY_NAME[api_name]
    return range(api.served_from, api.maximum + 1)


async def call(
    broker: BrokerServer,
    api_name: str,
    version: int,
    request: Mapping[str, Any],
    client_id: str | None = "tests",
) -> Any:
    """Send one request; returns kio's dataclass of the response."""
    api = BY_NAME[api_name]
    context = RequestContext(
        api=api,
        version=version,
        correlation_id=1,
        client_id=client_id,
        connection=cast("Any", SimpleNamespace(**PEER)),
        started=0.0,
    )
    sent = encoder(api_name, version, "request")(request)
    entity, end = decoder(api_name, version, "request")(sent, 0)
    assert end == len(sent)
    try:
        answer: Any = Handlers(broker.assembly).of(api_name)(context, entity)
        if inspect.iscoroutine(answer):
            answer = await answer
    except PenstockError as error:
        number, message = error_of(error)
        answer = error_answer(api, version, entity, number, message)
    body = answer if isinstance(answer, bytes) else encoder(api_name, version, "response")(answer)
    response, end = decoder(api_name, version, "response")(body, 0)
    assert end == len(body)
    return response


def names(response_error: Any) -> str:
    """An error code's name."""
    return str(response_error.name)
