"""REST interface of a worker: Kafka Connect's, with metrics and probes.

A connector has one task, since its process does all of its work. Both have the same state: a
connector that has failed, or whose file has problems, is FAILED until it runs again. RETRYING has
the cause in `trace`. Both recover without a request. A process that starts is UNASSIGNED, later
RESTARTING.

Changes are files in the worker's directory. Questions that need the code of a connector are
answered by a process of their own, so that this code cannot disturb the worker.

Source: Apache Kafka 4.3, `org.apache.kafka.connect.runtime.rest.resources`.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

import msgspec
from msgspec import Struct
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock import __version__
from penstock.base.errors import InvalidError, PenstockError
from penstock.base.http_routes import METRICS_TYPE, Routes, json_response
from penstock.base.metrics import render
from penstock.base.pause import pause as wait
from penstock.base.system import SYSTEM_CLOCK
from penstock.client import Client
from penstock.connect import flat_config, offsets
from penstock.connect.connector_file import BOOTSTRAP, NAME_CHARS_MAX
from penstock.connect.flat_config import CLASS, Checked
from penstock.connect.sharing import Sharing
from penstock.connect.worker import (
    LOOK_SECONDS,
    STOP_SECONDS,
    Entry,
    State,
    UnknownConnector,
    Worker,
)
from penstock.connect.worker_metrics import samples

BODY_BYTES_MAX: Final = 1 << 20
API_TIMEOUT_MS: Final = 10_000
LEVELS: Final = ("DEBUG", "INFO", "WARN", "ERROR")
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_LIST_HINT: Final = (
    "\nYou can also find the above list of errors at the endpoint"
    " `/connector-plugins/{connectorType}/config/validate`"
)
_PROVIDE: Final = "Partitions / offsets need to be provided for an alter offsets request"

ROUTES: Final = Routes["Rest", None]()


class Refused(InvalidError):
    """Request that is rejected, with its HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class NewConnector(Struct, forbid_unknown_fields=True):
    """Body of `POST /connectors`."""

    config: dict[str, str | int | float | bool | None]
    name: str = ""
    initial_state: State = "RUNNING"


@dataclass(slots=True)
class Rest:
    """Worker behind the interface, and what the interface keeps in memory.

    Attributes:
        sharing: heartbeats of workers that share connectors; None if the worker shares none.
        worker_id: address of the worker, HOST:PORT.
        resets_ms: times of the requests to forget the active topics, by connector.
    """

    worker: Worker
    worker_id: str
    sharing: Sharing | None = None
    resets_ms: dict[str, int] = field(default_factory=dict)

    def app(self) -> Starlette:
        """Return the ASGI application."""
        routes = [
            Route(route.path, self._endpoint(route.handler, route.status), methods=[route.method])
            for route in ROUTES.declared
        ]
        return Starlette(routes=routes, exception_handlers={HTTPException: _unrouted})

    def _endpoint(
        self, handler: Callable[[Rest, Any], Awaitable[Any]], status: int
    ) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            try:
                found = await handler(self, request)
            except Refused as error:
                return _error(error.status, str(error))
            except UnknownConnector as error:
                return _error(404, f"Connector {error.name} not found")
            except PenstockError as error:
                return _error(500, str(error))
            if isinstance(found, Response):
                return found
            return Response(status_code=status) if found is None else json_response(found, status)

        return endpoint

    # Views of a connector

    def info(self, name: str) -> dict[str, Any]:
        """Return the body of `GET /connectors/{name}`."""
        entry = self.worker.entry(name)
        stopped = entry.target.state == "STOPPED"
        return {
            "name": name,
            "config": config_of(name, entry),
            "tasks": [] if stopped else [{"connector": name, "task": 0}],
            "type": entry.direction,
        }

    def status(self, name: str) -> dict[str, Any]:
        """Return the body of `GET /connectors/{name}/status`."""
        entry = self.worker.entry(name)
        state, cause, worker_id = self._state(name, entry)
        shown = {"state": state, "worker_id": worker_id, "version": __version__}
        if cause:
            shown["trace"] = cause
        tasks = [] if entry.target.state == "STOPPED" else [{"id": 0, **shown}]
        return {"name": name, "connector": shown, "tasks": tasks, "type": entry.direction}

    def _state(self, name: str, entry: Entry) -> tuple[str, str | None, str]:
        if entry.target.state != "RUNNING":
            return entry.target.state, None, self.worker_id
        remote = None if self.sharing is None else self.sharing.elsewhere(name)
        if remote is not None:
            return remote
        found = self.worker.status(name)
        if found.state == "STARTING":
            return ("RESTARTING" if entry.starts > 1 else "UNASSIGNED"), found.cause, self.worker_id
        if found.state == "STOPPED":  # assigned to a worker that has not started it
            return "UNASSIGNED", None, self.worker_id
        return found.state, found.cause, self.worker_id

    # Parts of handlers

    async def check(self, name: str, config: Mapping[str, str]) -> Checked:
        if CLASS not in config:
            raise Refused(400, f"Connector config {_java(config)} contains no connector type")
        directory = str(self.worker.settings.directory)
        found = await self.worker.ask(flat_config.checked, name, config, directory)
        if found.problem:
            raise Refused(
                400,
                "Failed to find any class that implements Connector and which name matches"
                f" {config[CLASS]}: {found.problem}",
            )
        return found

    async def save(self, name: str, config: Mapping[str, str], state: State = "RUNNING") -> None:
        """Check a configuration and write its file."""
        checked = await self.check(name, config)
        if checked.errors:
            raise Refused(400, _listed(checked.errors))
        if not _NAME.fullmatch(name) or len(name) > NAME_CHARS_MAX:
            rule = f"use up to {NAME_CHARS_MAX} letters, digits, ., _ and -"
            raise Refused(400, _listed([f"Invalid value {name} for configuration name: {rule}"]))
        self.worker.put(name, checked.text, state)

    async def modifiable(self, name: str) -> Entry:
        """Return a connector that was stopped, after its process has ended."""
        entry = self.worker.entry(name)
        for _ in range(round(2 * STOP_SECONDS / LOOK_SECONDS)):
            if entry.target.state != "STOPPED" or entry.process is None:
                break
            await wait(LOOK_SECONDS)
        if entry.target.state != "STOPPED" or entry.process is not None:
            raise Refused(
                400,
                "Connectors must be in the STOPPED state before their offsets can be modified. This"
                " can be done for the specified connector by issuing a 'PUT' request to the"
                f" '/connectors/{name}/stop' endpoint",
            )
        return entry

    async def with_client(self, entry: Entry, function: Callable[..., Any], *more: Any) -> Any:
        """Return the result of a blocking function that gets a client first."""
        settings, name = self.worker.settings, entry.file.stem
        place = settings.bootstrap or entry.values.get("run", {}).get("bootstrap", BOOTSTRAP)

        def call() -> Any:
            with Client(
                place, client_id=f"connect-{name}", security=settings.security,
                api_timeout_ms=API_TIMEOUT_MS,
            ) as client:  # fmt: skip
                return function(client, name, entry.direction, *more)

        return await asyncio.to_thread(call)


def config_of(name: str, entry: Entry) -> dict[str, str]:
    """Return the configuration of a connector; only its name if the file is not TOML."""
    try:
        return {**flat_config.config_of(entry.file.read_text()), "name": name}
    except (OSError, ValueError):
        return {"name": name}


async def _body(request: Request, kind: Any) -> Any:
    content = bytearray()
    async for piece in request.stream():
        content += piece
        if len(content) > BODY_BYTES_MAX:
            raise Refused(413, f"the body exceeds {BODY_BYTES_MAX} bytes")
    try:
        return msgspec.json.decode(bytes(content), type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Refused(500, f"the body is invalid: {error}") from error


def _texts(config: Mapping[str, Any]) -> dict[str, str]:
    """Return values as texts; values that are null are left out."""
    return {
        key: value if isinstance(value, str) else str(value).lower()
        for key, value in config.items()
        if value is not None
    }


def _java(config: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{key}={value}" for key, value in config.items()) + "}"


def _listed(errors: list[str]) -> str:
    return (
        f"Connector configuration is invalid and contains the following {len(errors)} error(s):\n"
        + "\n".join(errors)
        + _LIST_HINT
    )


def _error(status: int, message: str) -> Response:
    return json_response({"error_code": status, "message": message}, status)


def _unrouted(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    name = {404: "Not Found", 405: "Method Not Allowed"}.get(status, "")
    return _error(status, f"HTTP {status} {name}")


def _name(request: Request) -> str:
    return str(request.path_params["name"])


# Connectors


@ROUTES.add("GET /", None)
async def root(rest: Rest, request: Request) -> object:
    """Return the version, and the id of the Kafka cluster if the worker shares connectors."""
    cluster = "" if rest.sharing is None else rest.sharing.cluster_id
    return {"version": __version__, "commit": "unknown", "kafka_cluster_id": cluster}


@ROUTES.add("GET /connectors", None, ("expand",))
async def list_connectors(rest: Rest, request: Request) -> object:
    """Return the names of the connectors, or with `expand` their status and info."""
    expand = request.query_params.getlist("expand")
    if not expand:
        return sorted(rest.worker.entries)
    views = {"status": rest.status, "info": rest.info}
    return {
        name: {view: views[view](name) for view in views if view in expand}
        for name in sorted(rest.worker.entries)
    }


@ROUTES.add("POST /connectors", None)
async def create(rest: Rest, request: Request) -> object:
    """Write the file of a new connector."""
    made = await _body(request, NewConnector)
    config = _texts(made.config)
    name = made.name or config.get("name", "")
    if not name:
        raise Refused(
            400, _listed(["Invalid value  for configuration name: String may not be empty"])
        )
    _same_name(config, name)
    if name in rest.worker.entries:
        await rest.check(name, config)
        raise Refused(409, f"Connector {name} already exists")
    await rest.save(name, config, made.initial_state)
    return _created(rest, request, name)


def _same_name(config: dict[str, str], name: str) -> None:
    """Add the name of the path to a configuration, or reject another one."""
    if config.setdefault("name", name) != name:
        raise Refused(
            400,
            f"Connector name configuration ({config['name']}) doesn't match connector name in the"
            f" URL ({name})",
        )


def _created(rest: Rest, request: Request, name: str) -> Response:
    place = f"{request.url.scheme}://{request.url.netloc}/connectors/{quote(name)}"
    return json_response(rest.info(name), 201, {"location": place})


@ROUTES.add("GET /connectors/{name}", None)
async def get_connector(rest: Rest, request: Request) -> object:
    """Return the configuration and the task of a connector."""
    return rest.info(_name(request))


@ROUTES.add("DELETE /connectors/{name}", None, status=204)
async def delete(rest: Rest, request: Request) -> None:
    """Remove the file of a connector, which stops it."""
    rest.worker.delete(_name(request))


@ROUTES.add("GET /connectors/{name}/config", None)
async def get_config(rest: Rest, request: Request) -> object:
    """Return the configuration of a connector."""
    return rest.info(_name(request))["config"]


@ROUTES.add("PUT /connectors/{name}/config", None)
async def put_config(rest: Rest, request: Request) -> object:
    """Create a connector, or change all of its configuration."""
    name = _name(request)
    config = _texts(await _body(request, dict[str, str | int | float | bool | None]))
    _same_name(config, name)
    new = name not in rest.worker.entries
    await rest.save(name, config)
    return _created(rest, request, name) if new else rest.info(name)


@ROUTES.add("PATCH /connectors/{name}/config", None)
async def patch_config(rest: Rest, request: Request) -> object:
    """Change some settings of a connector; null removes a setting."""
    name = _name(request)
    config: dict[str, Any] = rest.info(name)["config"]
    config |= await _body(request, dict[str, str | int | float | bool | None])
    await rest.save(name, _texts(config))
    return rest.info(name)


@ROUTES.add("GET /connectors/{name}/status", None)
async def get_status(rest: Rest, request: Request) -> object:
    """Return the state of a connector and of its task, and the cause of a failure."""
    name = _name(request)
    if name not in rest.worker.entries:
        raise Refused(404, f"No status found for connector {name}")
    return rest.status(name)


@ROUTES.add("POST /connectors/{name}/restart", None, ("includeTasks", "onlyFailed"), status=204)
async def restart(rest: Rest, request: Request) -> object:
    """Start a connector's process again; with `onlyFailed` only if it has failed."""
    name, query = _name(request), request.query_params
    shown = rest.status(name)
    if query.get("onlyFailed") != "true" or shown["connector"]["state"] == "FAILED":
        rest.worker.restart(name)
        for item in (shown["connector"], *shown["tasks"]):
            item["state"] = "RESTARTING"
            item.pop("trace", None)
    return json_response(shown, 202) if query.get("includeTasks") == "true" else None


@ROUTES.add("PUT /connectors/{name}/pause", None, status=202)
async def pause(rest: Rest, request: Request) -> None:
    """Stop a connector's process until `resume`."""
    _aim(rest, _name(request), "PAUSED")


@ROUTES.add("PUT /connectors/{name}/resume", None, status=202)
async def resume(rest: Rest, request: Request) -> None:
    """Start a connector that was paused or stopped."""
    _aim(rest, _name(request), "RUNNING")


@ROUTES.add("PUT /connectors/{name}/stop", None, status=204)
async def stop(rest: Rest, request: Request) -> None:
    """Stop a connector's process, so that its offsets can be changed."""
    _aim(rest, _name(request), "STOPPED")


def _aim(rest: Rest, name: str, state: State) -> None:
    try:
        rest.worker.aim(name, state)
    except UnknownConnector as error:
        raise Refused(404, f"Unknown connector {name}") from error


# Tasks and topics


@ROUTES.add("GET /connectors/{name}/tasks", None)
async def tasks(rest: Rest, request: Request) -> object:
    """Return the task of a connector."""
    info = rest.info(_name(request))
    return [{"id": task, "config": info["config"]} for task in info["tasks"]]


@ROUTES.add("GET /connectors/{name}/tasks/{task}/status", None)
async def task_status(rest: Rest, request: Request) -> object:
    """Return the state of a task."""
    return _task(rest, request, "No status found for task {}")


@ROUTES.add("POST /connectors/{name}/tasks/{task}/restart", None, status=204)
async def restart_task(rest: Rest, request: Request) -> None:
    """Start a connector's process again."""
    _task(rest, request, "Task {} not found")
    rest.worker.restart(_name(request))


def _task(rest: Rest, request: Request, message: str) -> dict[str, Any]:
    name, number = _name(request), request.path_params["task"]
    if name in rest.worker.entries:
        for task in rest.status(name)["tasks"]:
            if str(task["id"]) == number:
                found: dict[str, Any] = task
                return found
    raise Refused(404, message.format(f"{name}-{number}"))


@ROUTES.add("GET /connectors/{name}/topics", None)
async def topics(rest: Rest, request: Request) -> object:
    """Return the topics that a connector has read or written since the last reset."""
    name = _name(request)
    since = rest.resets_ms.get(name, 0)
    found = rest.worker.status(name).topics if name in rest.worker.entries else {}
    return {name: {"topics": sorted(topic for topic, at_ms in found.items() if at_ms > since)}}


@ROUTES.add("PUT /connectors/{name}/topics/reset", None, status=202)
async def reset_topics(rest: Rest, request: Request) -> None:
    """Forget the active topics of a connector."""
    if _name(request) in rest.worker.entries:
        rest.resets_ms[_name(request)] = SYSTEM_CLOCK.now_ms()


# Offsets


@ROUTES.add("GET /connectors/{name}/offsets", None)
async def get_offsets(rest: Rest, request: Request) -> object:
    """Return the positions of a source, or the committed offsets of a sink."""
    entry = rest.worker.entry(_name(request))
    return {"offsets": await rest.with_client(entry, offsets.read_offsets)}


@ROUTES.add("PATCH /connectors/{name}/offsets", None)
async def patch_offsets(rest: Rest, request: Request) -> object:
    """Change positions or offsets of a stopped connector."""
    name = _name(request)
    rest.worker.entry(name)
    given = (await _body(request, dict[str, Any])).get("offsets")
    if not isinstance(given, list) or not all(isinstance(entry, dict) for entry in given):
        given = []
    if not given:
        raise Refused(400, _PROVIDE)
    await _change(rest, name, offsets.alter_offsets, given)
    return {"message": "The offsets for this connector have been altered successfully"}


@ROUTES.add("DELETE /connectors/{name}/offsets", None)
async def delete_offsets(rest: Rest, request: Request) -> object:
    """Remove the positions or offsets of a stopped connector."""
    await _change(rest, _name(request), offsets.reset_offsets, [])
    return {"message": "The offsets for this connector have been reset successfully"}


async def _change(rest: Rest, name: str, function: Callable[..., Any], argument: Any) -> None:
    entry = await rest.modifiable(name)
    directory = str(rest.worker.settings.directory)
    found = await rest.worker.ask(flat_config.found_in, entry.file.read_text(), directory)
    if found.stores_offsets:
        raise Refused(
            400,
            f"Connector {name} stores its offsets in its target, which has to be changed instead:"
            f" see the connector {found.name}",
        )
    try:
        await rest.with_client(entry, function, argument)
    except InvalidError as error:
        raise Refused(400, str(error)) from error


# Plugins and loggers


@ROUTES.add("GET /connector-plugins", None, ("connectorsOnly",))
async def plugins(rest: Rest, request: Request) -> object:
    """Return the connectors that can be used."""
    found = await rest.worker.ask(flat_config.available)
    return [{"class": item.name, "type": item.direction, "version": __version__} for item in found]


@ROUTES.add("GET /connector-plugins/{type:path}/config", None)
async def plugin_config(rest: Rest, request: Request) -> object:
    """Return the definitions of a connector's settings."""
    name, directory = request.path_params["type"], str(rest.worker.settings.directory)
    try:
        return await rest.worker.ask(flat_config.definitions_of, name, directory)
    except InvalidError as error:
        raise Refused(404, f"Unknown plugin {name}.") from error


@ROUTES.add("PUT /connector-plugins/{type:path}/config/validate", None)
async def validate(rest: Rest, request: Request) -> object:
    """Return the definitions and values of a configuration with their errors."""
    name = request.path_params["type"]
    config = _texts(await _body(request, dict[str, str | int | float | bool | None]))
    given = config.get(CLASS, "")
    if given and given != name:
        raise Refused(400, f"Included connector type {given} does not match request type {name}")
    unnamed = "name" not in config
    checked = await rest.check(config.get("name", "unnamed"), config)
    errors = len(checked.errors)
    if unnamed:
        errors += 1
        missing = 'Missing required configuration "name" which has no default value.'
        checked.configs[0]["value"]["errors"].append(missing)
    groups = dict.fromkeys(item["definition"]["group"] for item in checked.configs)
    return {
        "name": given, "error_count": errors, "groups": [group for group in groups if group],
        "configs": checked.configs,
    }  # fmt: skip


@ROUTES.add("GET /admin/loggers", None)
async def loggers(rest: Rest, request: Request) -> object:
    """Return the levels of the loggers of the worker's process that have one of their own."""
    known = {"root": logging.getLogger(), **_loggers()}
    return {name: _level(found) for name, found in sorted(known.items()) if found.level}


@ROUTES.add("GET /admin/loggers/{logger}", None)
async def get_logger(rest: Rest, request: Request) -> object:
    """Return the effective level of a logger."""
    return _level(_logger(request))


@ROUTES.add("PUT /admin/loggers/{logger}", None)
async def put_logger(rest: Rest, request: Request) -> object:
    """Set the level of a logger and of those below it; return their names."""
    level = (await _body(request, dict[str, Any])).get("level")
    if level is None:
        raise Refused(400, "Desired 'level' parameter was not specified in request.")
    if str(level).upper() not in LEVELS:
        raise Refused(404, f"invalid log level '{level}'; use {', '.join(LEVELS)}")
    name = request.path_params["logger"]
    below = [known for known in _loggers() if name == "root" or known.startswith(f"{name}.")]
    for found in (_logger(request), *map(logging.getLogger, below)):
        found.setLevel({"WARN": "WARNING"}.get(level.upper(), level.upper()))
    return sorted([name, *below])


def _loggers() -> dict[str, logging.Logger]:
    known = logging.getLogger().manager.loggerDict
    return {name: found for name, found in known.items() if isinstance(found, logging.Logger)}


def _logger(request: Request) -> logging.Logger:
    name = request.path_params["logger"]
    return logging.getLogger(None if name == "root" else name)


def _level(found: logging.Logger) -> dict[str, Any]:
    name = logging.getLevelName(found.getEffectiveLevel())
    return {"level": "WARN" if name == "WARNING" else name, "last_modified": None}


# Metrics and probes


@ROUTES.add("GET /metrics", None)
async def metrics(rest: Rest, request: Request) -> object:
    """Return the metrics of the connectors in the Prometheus text format."""
    text = render(samples(rest.worker, SYSTEM_CLOCK.now_ms()))
    return Response(text, headers={"content-type": METRICS_TYPE})


@ROUTES.add("GET /livez", None)
async def livez(rest: Rest, request: Request) -> object:
    """Return 200 while the worker's event loop runs."""
    return {"status": "ok"}


@ROUTES.add("GET /health", None)
async def health(rest: Rest, request: Request) -> object:
    """Return 200 while the worker's event loop runs, as Kafka Connect does."""
    message = "Worker has completed startup and is ready to handle requests."
    return {"status": "healthy", "message": message}


@ROUTES.add("GET /readyz", None)
async def readyz(rest: Rest, request: Request) -> object:
    """Return 200 when all connectors run, 503 while some start or retry, or have failed."""
    bad = {}
    for name, entry in sorted(rest.worker.entries.items()):
        state = rest.status(name)["connector"]["state"]
        if entry.target.state == "RUNNING" and state != "RUNNING":
            bad[name] = state
    return json_response({"status": "failing" if bad else "ok", "connectors": bad},
                         503 if bad else 200)  # fmt: skip
