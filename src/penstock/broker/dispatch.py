"""Dispatcher that passes requests to their handlers, and encodes the responses and errors.

The contract of a handler
-------------------------
`broker/table.py` has the table of handlers. Each module of `handlers/` has a class, which
is constructed at the first request of one of its APIs. A handler is a method of this class:

    def handler(self, context: RequestContext, request: Any) -> Answer
    async def handler(self, context: RequestContext, request: Any) -> Answer

- `context` (`broker/net/connection.py`) has `api`, `version`, `client_id`, `client_host`,
  `connection`.
- `request` is kio's dataclass for that API and version, read by `wire/kafka/decoder.py`. Fields
  that the version lacks are absent: `getattr(request, "name", default)`. Durations are `timedelta`
  (`wire.kafka.primitives.milliseconds` converts them to an int). A zero UUID is None.
- `Answer` is a mapping of kio's field names of the *response*, nested like the response:
  `{"throttle_time": 0, "topics": [{"name": "a", "error_code": 3, "partitions": []}]}`.
  One mapping serves all versions: fields that the version lacks are ignored, missing fields take
  the schema's default (`error_code` and `throttle_time`: 0, nullable fields: null). Durations and
  times are ints in ms, error codes ints or kio's ErrorCode, UUIDs are `UUID`, 16 bytes or None.
  A handler may also return `bytes`, the response body encoded for this version. A response with
  records is a list of buffers, which together are the body and begin with the throttle time.
- `broker/requests/access.py` applies the `whole`, `each` and `listed` checks of the table of API
  keys before the handler runs, so `request` contains only permitted elements. For checks with the
  scope `asked` the handler calls `context.rights`.
- Errors: a `PenstockError` fails the whole request. The response then has the error at its top
  level. A response without a top-level error code has it on every topic, partition, group or
  resource of the request (`broker/net/errors.py`). The answer itself contains errors of single
  elements: `error_of(exception)` in `broker/net/errors.py` returns their `(number, message)`. Other
  exceptions are logged and become UNKNOWN_SERVER_ERROR.
- A plain function must not block. An `async` handler may wait. It delays later requests of its
  connection, as in Kafka. It finishes even if the connection is lost (`context.connection.closing`)
  and is cancelled `shutdown.timeout.ms` after the broker begins to stop. Handlers of the APIs in
  `SIDE_BY_SIDE` do not delay later requests, so that their connection keeps reading and detects
  a disconnection. They end without a cancellation when the broker stops.

Produce and Fetch (`HOT`) have codecs of their own, and their handlers have a different signature:

    def handler(self, context, frame: memoryview, offset: int, lease: Lease | None) -> None

They call `context.reply(buffers)` with the whole response frame, during the call or later, or set
`context.no_answer` (acks=0). `frame` is only valid during the call unless they retain `lease`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final

from penstock.base.errors import PenstockError
from penstock.broker.handlers import api_versions
from penstock.broker.handlers.metadata import throttled
from penstock.broker.net.connection import JOIN_BYTES, Connection, RequestContext
from penstock.broker.net.errors import ShuttingDown, error_answer, error_of
from penstock.broker.requests.access import CHANGES, RequestAudit, granted
from penstock.broker.table import Answer, Handler, Handlers
from penstock.security.audit import NO_AUDIT, Audit
from penstock.wire.kafka.apis import API_VERSIONS, APIS, BY_NAME, FETCH, METADATA, PRODUCE, Api
from penstock.wire.kafka.decoder import decoder
from penstock.wire.kafka.encoder import encoder
from penstock.wire.kafka.fetch import throttled as throttled_records
from penstock.wire.kafka.framing import (
    MalformedRequest,
    UnsupportedVersion,
    read_request_header,
    response_prefix,
)

if TYPE_CHECKING:
    from penstock.base.buffers import Lease
    from penstock.base.system import Clock
    from penstock.broker.partitions.registry import PartitionRegistry
    from penstock.broker.quotas.service import Quotas
    from penstock.broker.requests.metrics import RequestMetrics
    from penstock.partitions import GroupCommits
    from penstock.security import Authoriser

logger = logging.getLogger(__name__)

HotHandler = Callable[[RequestContext, memoryview, int, "Lease | None"], None]
HOT: Final = frozenset({PRODUCE, FETCH})
SIDE_BY_SIDE: Final = frozenset({BY_NAME["ShareFetch"].key})


class Dispatcher:
    def __init__(
        self,
        table: Handlers,
        *,
        metrics: RequestMetrics,
        clock: Clock,
        authoriser: Authoriser,
        quotas: Quotas,
        partitions: PartitionRegistry,
        commits: GroupCommits,
        audit: Audit = NO_AUDIT,
    ) -> None:
        """Pass requests to the handlers in `table` after `authoriser` has checked them."""
        self._table = table
        self._rights = authoriser.rights
        self._asks = authoriser.refuses
        self._audit = RequestAudit(audit)
        self._metrics = metrics
        self._quotas = quotas
        self._topics = partitions
        self._monotonic = clock.monotonic
        self._handlers: dict[int, Handler] = {}
        self._hot: dict[int, HotHandler] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._commits = commits

    def timed_request(
        self, connection: Connection, frame: memoryview, lease: Lease | None
    ) -> RequestContext:
        """Handle one frame, and charge its duration to the request quota."""
        began = self._monotonic()
        context = self.request(connection, frame, lease)
        self._quotas.charge(context, self._monotonic() - began)
        return context

    def request(
        self, connection: Connection, frame: memoryview, lease: Lease | None
    ) -> RequestContext:
        """Handle one frame, given without its length.

        Raises:
            MalformedRequest: the request header is invalid, or its API key is unknown.
        """
        if self._commits.gathered:
            self._commits.before_commit()
        header = read_request_header(frame)
        api = APIS.get(header.api_key)
        if api is None:
            raise MalformedRequest(f"API key {header.api_key} is unknown")
        context = RequestContext(
            api=api,
            version=header.api_version,
            correlation_id=header.correlation_id,
            client_id=header.client_id,
            connection=connection,
            started=self._monotonic(),
        )
        if not api.served_from <= context.version <= api.maximum:
            self._refuse_version(context, frame, header.body_offset)
            return context
        connection.opened(context)
        if self._asks:
            context.rights = self._rights(connection.principal, connection.client_host)
        try:
            if api.key in HOT:
                self._handle_hot(context, frame, header.body_offset, lease)
            else:
                self._handle(context, frame, header.body_offset)
        except Exception as error:
            self.fail(context, None, error)
        if context.no_answer:
            connection.dropped(context)
        return context

    def alone(self, context: RequestContext, frame: memoryview, offset: int) -> None:
        """Handle a Produce request that could not be joined with others."""
        try:
            self._handle_hot(context, frame, offset, None)
        except Exception as error:
            self.fail(context, None, error)

    def _handle_hot(
        self, context: RequestContext, frame: memoryview, offset: int, lease: Lease | None
    ) -> None:
        api = context.api
        handler = self._hot.get(api.key) or self._hot_handler(api)
        handler(context, frame, offset, lease)
        if context.refused:
            self._audit.refused(context)

    def _handler(self, api: Api) -> Handler:
        handler = self._handlers[api.key] = self._table.of(api.name)
        return handler

    def _hot_handler(self, api: Api) -> HotHandler:
        table = self._table
        if api.key == PRODUCE:
            handler: HotHandler = table.produce.produce
            table.produce.joining.handle = self.alone
        else:
            handler = table.fetch.fetch
        self._hot[api.key] = handler
        return handler

    def _handle(self, context: RequestContext, frame: memoryview, offset: int) -> None:
        api = context.api
        # Trailing bytes are ignored as in Apache Kafka: librdkafka 2.16 encodes the null array of
        # all topics in four bytes where the compact form has one.
        request, _ = decoder(api.name, context.version, "request")(frame, offset)
        try:
            left = request
            if self._asks and api.checks:
                grant = granted(context, request, self._topic_name)
                if grant is not None:
                    if grant.nothing_left:
                        self.answer(context, grant.complete({}, context.rights))
                        return
                    left, context.granted = grant.request, grant
            answer = (self._handlers.get(api.key) or self._handler(api))(context, left)
            if isinstance(answer, Coroutine):
                self._await(context, request, answer)
            else:
                self._done(context, request, answer)
        except Exception as error:
            self.fail(context, request, error)

    def _await(
        self, context: RequestContext, request: Any, coroutine: Coroutine[Any, Any, Answer]
    ) -> None:
        task = asyncio.get_running_loop().create_task(self._finish(context, request, coroutine))
        if context.api.key in SIDE_BY_SIDE:
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        else:
            context.connection.waits_for(task)

    async def _finish(
        self, context: RequestContext, request: Any, coroutine: Coroutine[Any, Any, Answer]
    ) -> None:
        try:
            timing = self._quotas.timing
            answer = await (self._quotas.timed(context, coroutine) if timing else coroutine)
            self._done(context, request, answer)
        except asyncio.CancelledError:
            self.fail(
                context, request, ShuttingDown("the broker is stopping; retry on another broker")
            )
        except Exception as error:
            self.fail(context, request, error)

    def _done(self, context: RequestContext, request: Any, answer: Answer) -> None:
        if context.api.key in CHANGES:
            left = request if context.granted is None else context.granted.request
            self._audit.changed(context, left, answer)
        self.answer(context, answer)

    def answer(self, context: RequestContext, answer: Answer) -> None:
        api, version = context.api, context.version
        if context.refused:
            self._audit.refused(context)
        if context.granted is not None and isinstance(answer, Mapping):
            answer = context.granted.complete(answer, context.rights)
        if self._quotas.active:
            answer = self._throttled(context, answer)
        if not isinstance(answer, bytes | list):
            answer = encoder(api.name, version, "response")(answer)
        pieces = answer if isinstance(answer, list) else [answer]
        size = sum(map(len, pieces))
        prefix = response_prefix(context.correlation_id, api.response_header_version(version), size)
        context.reply((b"".join((prefix, *pieces)),) if size <= JOIN_BYTES else (prefix, *pieces))
        self._metrics.answered(context, self._monotonic())

    def _throttled(self, context: RequestContext, answer: Answer) -> Answer:
        if isinstance(answer, list):
            throttled_records(answer, self._quotas.fetched(context, sum(map(len, answer))))
            return answer
        if isinstance(answer, Mapping):
            throttle_ms = self._quotas.requested(context, int(answer.get("throttle_time", 0)))
            return {**answer, "throttle_time": throttle_ms} if throttle_ms else answer
        throttle_ms = self._quotas.requested(context, 0)
        is_metadata = throttle_ms and context.api.key == METADATA
        return throttled(context.version, answer, throttle_ms) if is_metadata else answer

    def fail(self, context: RequestContext, request: Any, error: Exception) -> None:
        """Respond with `error` in the format of the API; if that fails, close the connection."""
        if not isinstance(error, PenstockError):
            logger.error(
                "%s v%d from %s failed",
                context.api.name,
                context.version,
                context.connection.client_host,
                exc_info=error,
            )
        number, message = error_of(error)
        self._metrics.failed(context, number)
        if context.api.key in CHANGES:
            self._audit.failed(context, request, error)
        if context.answer is not None:
            return
        context.granted = None
        try:
            answer = error_answer(context.api, context.version, request, number, message)
            self.answer(context, answer)
        except Exception:
            logger.exception(
                "%s v%d: could not encode an error response", context.api.name, context.version
            )
            context.connection.close("an error response could not be encoded")

    def _topic_name(self, topic_id: bytes) -> str | None:
        found = self._topics.topics_by_id.get(topic_id)
        return None if found is None else found.topic.name

    def _refuse_version(self, context: RequestContext, frame: memoryview, offset: int) -> None:
        """Reject a request of an unsupported version, in a version that the client can read.

        That is version 0 for ApiVersions (KIP-511), else the supported version nearest to the
        requested one. Old versions of Produce are rejected in their own format.
        """
        api, asked = context.api, context.version
        error = UnsupportedVersion(
            f"{api.name} version {asked} is not supported, only {api.served_from} to {api.maximum}"
        )
        context.connection.opened(context)
        try:
            if api.key == API_VERSIONS:
                context.version = 0
                number, _ = error_of(error)
                self._metrics.failed(context, number)
                self.answer(context, api_versions.answer_body(0, number))
            elif api.key == PRODUCE and 0 <= asked < api.served_from:
                self._table.produce.refuse_old(context, frame, offset, str(error))
            else:
                context.version = api.maximum if asked > api.maximum else api.served_from
                self.fail(context, None, error)
        except Exception as failure:
            context.version = api.served_from
            self.fail(context, None, failure)
        if context.no_answer:
            context.connection.dropped(context)
