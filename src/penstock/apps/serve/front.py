"""Shared admin address of several brokers: forwards requests to them, and merges their answers.

| path                                   | is answered by                                        |
|----------------------------------------|-------------------------------------------------------|
| `/brokers/<node.id>/…`                 | that broker                                           |
| `/health`, `/readyz`, `/livez`         | all brokers; healthy if all are                       |
| `/metrics`                             | all brokers, with a label `broker`                    |
| `/v1/groups`                           | all brokers, since each of them coordinates groups    |
| `/v1/security/reload`                  | all brokers, and this address                         |
| `/`, `/console…`                       | the first broker that can be connected to             |
| `/v1/staging…`, `/v1/sinks…`           | the first broker, which has the staged blobs          |
| other paths, GET and HEAD              | the first broker that has the answer, as the leader   |
| other paths, other methods             | the first broker that can be connected to             |

The address has the certificate of the admin listener, and reloads it when the file changes. Each
forwarded request carries the client's identity (`security/listeners/http_authentication.py`).

Each request to a broker has its own connection. An answer is kept in memory, up to
`ADMIN_ANSWER_BYTES_MAX`. The body of a request is streamed to the broker, which limits its size.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import h11
import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.apps.serve.passing import ConsolePasser, Exchange
from penstock.base.http_listener import HttpListener
from penstock.base.http_routes import error_response, json_response
from penstock.base.metrics import Metrics, Sample, gauges, render
from penstock.base.settings import whole_number
from penstock.base.system import SYSTEM_CLOCK
from penstock.broker.admin.access import CONSOLE, HOSTS
from penstock.broker.http_security import names_of
from penstock.broker.net.listeners import ADMIN, Address, admin_listener
from penstock.client.errors import ADMIN_ANSWER_BYTES_MAX
from penstock.security.http_credentials import READS, NotForHere, check_meant
from penstock.security.listeners.files import ListenerFiles
from penstock.security.listeners.forwarding import forwarded
from penstock.security.listeners.listener_group import ListenerGroup

if TYPE_CHECKING:
    from penstock.broker.configuration.settings import BrokerSettings
    from penstock.broker.net.security_settings import Security


Bodies = Mapping[int, Any]
"""Bodies of answers by node.id; None for a broker that did not answer."""


class ProcessMetrics(Metrics, prefix="penstock_process_"):
    """Metrics that the shared admin address adds to those of its brokers."""

    up: dict[str, int] = gauges(
        "up",
        "With several processes: 1 if the broker answered this scrape, else 0.",
        "broker",
    )


def health(answers: Bodies, *, vital: bool) -> dict[str, Any]:
    """Merge the brokers' health answers into one; the name of each check begins with its broker.

    A broker that does not answer counts as a failed check. With `vital`, which is for `/livez`, it
    does not, because its parent restarts it.
    """
    checks: list[dict[str, Any]] = []
    for broker, body in answers.items():
        if body is None:
            cause = "the broker does not answer; its parent process restarts it if it has ended"
            checks.append({"name": f"broker {broker}", "ok": vital, "cause": cause})
            continue
        named = body.get("checks", ())
        checks += [{**check, "name": f"broker {broker}: {check['name']}"} for check in named]
    good = all([check["ok"] for check in checks])
    status = "ok" if good else "failing"
    return {"node_id": min(answers), "status": status, "checks": checks}


def groups(answers: Bodies) -> dict[str, Any]:
    found = [group for body in answers.values() if body for group in body.get("groups", ())]
    return {"groups": sorted(found, key=lambda group: str(group["group_id"]))}


def failures(answers: Bodies) -> list[str]:
    """Return sentences about files that brokers could not load, and brokers that do not answer."""
    found = []
    for broker, body in answers.items():
        told = ["it does not answer"] if body is None else body.get("failures", ())
        found += [f"broker {broker}: {sentence}" for sentence in told]
    return found


def metrics(answers: Mapping[int, bytes | None], own: Iterable[Sample] = ()) -> bytes:
    """Merge the metrics of brokers, with the label `broker` on every sample.

    `own` are samples of the front itself, which get no such label.

    All samples of a metric follow its HELP and TYPE lines, as the exposition format requires.
    """
    heads: dict[bytes, list[bytes]] = {}
    samples: dict[bytes, list[bytes]] = {}
    processes = ProcessMetrics()
    processes.up = {str(broker): text is not None for broker, text in answers.items()}
    texts = [(b"", render([*processes.samples(), *own]))]
    texts += [(b'broker="%d"' % broker, text or b"") for broker, text in answers.items()]
    for label, text in texts:
        family = b""
        for line in text.splitlines():
            if line.startswith(b"# "):
                family = line.split(b" ", 3)[2]
                known = heads.setdefault(family, [])
                if line not in known:
                    known.append(line)
            elif line:
                samples.setdefault(family, []).append(_labelled(line, label) if label else line)
    lines = list[bytes]()
    for family, found in samples.items():
        lines += heads.get(family, ())
        lines += found
    return b"\n".join(lines) + b"\n"


def _labelled(line: bytes, label: bytes) -> bytes:
    name, brace, rest = line.partition(b"{")
    if brace:
        return b"%b{%b,%b" % (name, label, rest)
    name, _, value = line.partition(b" ")
    return b"%b{%b} %b" % (name, label, value)


HEALTH_SECONDS: Final = 5.0
"""Longest wait for each broker, if a request is sent to all brokers."""
ANSWER_SECONDS: Final = 120.0
"""Longest wait for the answer to a request that is sent to one broker."""
_ASK_ANOTHER: Final = frozenset(
    {HTTPStatus.NOT_FOUND, HTTPStatus.MISDIRECTED_REQUEST, HTTPStatus.SERVICE_UNAVAILABLE}
)
_REFUSALS: Final = range(HTTPStatus.BAD_REQUEST, HTTPStatus.INTERNAL_SERVER_ERROR)
_KEPT_HEADERS: Final = frozenset(
    {b"accept", b"authorization", b"content-type", b"content-length", b"date"}
)
_BODIES: Final = frozenset({"content-length", "transfer-encoding"})
_METHODS: Final = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH"]
_TROUBLE: Final = (OSError, TimeoutError, h11.ProtocolError)
Headers = list[tuple[bytes, bytes]]


class Answer(NamedTuple):
    """HTTP answer of a broker, with the headers that are returned to the client."""

    status: int
    headers: Headers
    content: bytes

    @property
    def good(self) -> bool:
        return self.status < HTTPStatus.MULTIPLE_CHOICES


Answers = Mapping[int, Answer | None]
"""Answers by node.id; None for a broker that did not answer in time."""


class Front:
    """Server of the shared admin address; belongs to the event loop that starts it."""

    def __init__(
        self,
        settings: BrokerSettings,
        security: Security,
        brokers: Mapping[int, Address],
        secret: bytes,
    ) -> None:
        """Create a front of the admin interfaces in `brokers`, by node.id.

        `secret` shows the brokers that a request was forwarded by this front.
        """
        self._brokers = dict(sorted(brokers.items()))
        self._settings = settings
        self._security = security
        self._secret = secret
        self._console = ConsolePasser(self._brokers, secret).passed
        own = admin_listener(settings.admin_listener, settings.admin_security_protocol)
        self._hosts = names_of(settings, own.host)
        self._listener = HttpListener()
        self._listener_group = ListenerGroup[ListenerFiles](
            security.settings.bounds, SYSTEM_CLOCK.monotonic
        )

    async def start(self, address: Address) -> None:
        """Start listening at an address.

        Raises:
            InvalidError: a file of certificates cannot be used.
            OSError: the address cannot be bound.
        """
        await self._listener_group.open(ADMIN, self._files)
        routes = [
            Route("/brokers/{broker}/{rest:path}", self._one, methods=_METHODS),
            Route("/health", self._health(vital=False)),
            Route("/readyz", self._health(vital=False)),
            Route("/livez", self._health(vital=True)),
            Route("/metrics", self._merging(self._metrics)),
            Route("/v1/groups", self._merging(_groups)),
            Route("/v1/security/reload", self._merging(self._reloaded, "POST"), methods=["POST"]),
            Route("/v1/staging{rest:path}", self._first, methods=_METHODS),
            Route("/v1/sinks{rest:path}", self._first, methods=_METHODS),
            Route("/", self._console, methods=_METHODS),
            Route(CONSOLE, self._console, methods=_METHODS),
            Route(f"{CONSOLE}/{{rest:path}}", self._console, methods=_METHODS),
            Route("/{rest:path}", self._any, methods=_METHODS),
        ]
        await self._listener.start(
            self._meant(Starlette(routes=routes)),
            address,
            connections_max=self._settings.admin_max_connections,
            bind=self._listener_group.http(ADMIN),
        )

    def _files(self) -> ListenerFiles:
        own = admin_listener(self._settings.admin_listener, self._settings.admin_security_protocol)
        settings = self._security.of(own.name, own.protocol)
        return ListenerFiles(
            own.name, settings, SYSTEM_CLOCK, has_tls=own.has_tls, has_tokens=False
        )

    def _meant(self, app: Starlette) -> Any:
        """Wrap an application: reject changes whose Host or Origin header names another listener.

        The brokers cannot check this, because they do not receive the client's Host header.
        """

        async def checked(scope: Any, receive: Any, send: Any) -> None:
            request = Request(scope)
            try:
                if request.method not in READS:
                    check_meant(request.headers, self._hosts, HOSTS)
            except NotForHere as error:
                refusal = error_response(HTTPStatus.BAD_REQUEST, error.code, str(error))
                refusal.headers["connection"] = "close"
                await refusal(scope, receive, send)
                return
            await app(scope, receive, send)

        return checked

    async def stop(self) -> None:
        await self._listener.stop()
        await self._listener_group.close()

    # All brokers

    def _health(self, *, vital: bool) -> Callable[[Request], Any]:
        async def merged(answers: Answers) -> Response:
            report = health(_bodies(answers), vital=vital)
            dates = [
                value.decode()
                for answer in answers.values()
                if answer is not None
                for name, value in answer.headers
                if name == b"date"
            ]
            status = HTTPStatus.OK if report["status"] == "ok" else HTTPStatus.SERVICE_UNAVAILABLE
            return json_response(report, status, {"date": dates[0]} if dates else None)

        return self._merging(merged)

    async def _metrics(self, answers: Answers) -> Response:
        found = {broker: one for broker, one in answers.items() if one is not None and one.good}
        texts = {broker: found[broker].content if broker in found else None for broker in answers}
        own = list(self._listener_group.samples())
        text = await asyncio.to_thread(metrics, texts, own)
        kinds = [
            dict(entry.headers).get(b"content-type", b"text/plain") for entry in found.values()
        ]
        kind = kinds[0].decode() if kinds else "text/plain"
        return Response(text, headers={"content-type": kind})

    async def _reloaded(self, answers: Answers) -> Response:
        told = [*await self._listener_group.reload(), *failures(_bodies(answers))]
        return json_response({"node_id": min(answers), "failures": told})

    def _merging(
        self, merged: Callable[[Answers], Awaitable[Response]], method: str = "GET"
    ) -> Callable[..., Any]:
        """Return an endpoint that merges the answers of all brokers, or returns the first
        rejection.
        """

        async def endpoint(request: Request) -> Response:
            answers = await self._all(request, method)
            refused = [
                answer
                for answer in answers.values()
                if answer is not None and answer.status in _REFUSALS
            ]
            return _response(refused[0]) if refused else await merged(answers)

        return endpoint

    async def _all(self, request: Request, method: str) -> Answers:
        """Send a request to all brokers and return their answers."""

        headers = self._passed_on(request, {b"authorization"})

        async def asked(address: Address) -> Answer | None:
            try:
                return await exchange(address, method, _target(request), headers, HEALTH_SECONDS)
            except _TROUBLE:
                return None

        answers = await asyncio.gather(*[asked(entry) for entry in self._brokers.values()])
        return dict(zip(self._brokers, answers, strict=True))

    def _passed_on(self, request: Request, kept: Collection[bytes]) -> Headers:
        """Return the headers of a forwarded request: the `kept` ones and the client's identity."""
        headers = [header for header in request.headers.raw if header[0] in kept]
        return [*headers, *forwarded(request.scope, self._secret)]

    # One broker

    async def _one(self, request: Request) -> Response:
        name = request.path_params["broker"]
        broker = whole_number(name)
        if broker is None or broker not in self._brokers:
            known = ", ".join(map(str, self._brokers))
            return error_response(
                HTTPStatus.NOT_FOUND,
                "resource_not_found",
                f"broker {name[:32]} does not run here; running: {known}",
            )
        target = _target(request).split("/", 3)[3]
        return await self._asked([broker], request, f"/{target}")

    async def _first(self, request: Request) -> Response:
        return await self._asked([min(self._brokers)], request, _target(request))

    async def _any(self, request: Request) -> Response:
        return await self._asked(list(self._brokers), request, _target(request))

    async def _asked(self, brokers: list[int], request: Request, target: str) -> Response:
        """Forward a request to one broker after the other, until one has a usable answer.

        A read is repeated at the next broker after any failure, and if a broker does not have the
        resource. A change is repeated only after a refused connection. Without a usable answer, the
        first rejection or status 503 is returned.
        """
        headers = self._passed_on(request, _KEPT_HEADERS)
        reads = request.method in ("GET", "HEAD")
        has_body = not reads and not {*request.headers}.isdisjoint(_BODIES)
        found: Answer | None = None
        trouble = ""
        for broker in brokers:
            body = request.stream() if has_body else None
            try:
                answer = await exchange(
                    self._brokers[broker], request.method, target, headers, ANSWER_SECONDS, body
                )
            except ConnectionRefusedError as error:
                trouble = f"broker {broker}: {error}"
            except _TROUBLE as error:
                trouble = f"broker {broker}: {str(error) or type(error).__name__}"
                if not reads:
                    break
            except ClientDisconnect:
                break
            else:
                if found is None or found.status == HTTPStatus.MISDIRECTED_REQUEST:
                    found = answer
                if not reads or answer.status not in _ASK_ANOTHER:
                    found = answer
                    break
        if found is not None:
            return _response(found)
        return error_response(HTTPStatus.SERVICE_UNAVAILABLE, "broker_not_available", trouble)


async def _groups(answers: Answers) -> Response:
    return json_response(groups(_bodies(answers)))


def _bodies(answers: Answers) -> dict[int, Any]:
    """Return the decoded JSON bodies by node.id; None for a broker that did not answer."""
    return {
        broker: None if one is None else msgspec.json.decode(one.content)
        for broker, one in answers.items()
    }


async def exchange(
    address: Address,
    method: str,
    target: str,
    headers: Headers,
    seconds: float,
    body: AsyncIterator[bytes] | None = None,
) -> Answer:
    """Send one request over a new connection, and return the answer.

    Raises:
        OSError, TimeoutError, h11.ProtocolError: no answer within `seconds`, or one that is not
            HTTP.
    """
    own = [(b"host", b"localhost"), (b"connection", b"close"), *headers]
    if body is not None and not any([name == b"content-length" for name, _ in headers]):
        own.append((b"transfer-encoding", b"chunked"))
    head = h11.Request(method=method, target=target, headers=own)
    async with asyncio.timeout(seconds):
        sent = await Exchange.sent(address, head, body)
        try:
            return await _received(sent)
        finally:
            sent.close()


async def _received(sent: Exchange) -> Answer:
    status, kept, content = 0, list[tuple[bytes, bytes]](), bytearray()
    while True:
        event = await sent.next()
        if isinstance(event, h11.Response):
            status = event.status_code
            kept = [header for header in event.headers if header[0] in _KEPT_HEADERS]
        elif isinstance(event, h11.Data):
            content += event.data
            if len(content) > ADMIN_ANSWER_BYTES_MAX:
                raise OSError(f"its response is larger than {ADMIN_ANSWER_BYTES_MAX} bytes")
        elif isinstance(event, h11.EndOfMessage):
            return Answer(status, kept, bytes(content))


def _target(request: Request) -> str:
    path: str = request.scope["raw_path"].decode("latin-1")
    query: str = request.scope["query_string"].decode("latin-1")
    return f"{path}?{query}" if query else path


def _response(answer: Answer) -> Response:
    headers = {name.decode(): value.decode("latin-1") for name, value in answer.headers}
    return Response(answer.content, answer.status, headers=headers)
