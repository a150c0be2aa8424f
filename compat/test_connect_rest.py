"""The REST interface of a worker responds as Kafka Connect's own, key by key.

One script of calls runs against Kafka Connect and against a worker, beside one broker. Values that
name the software, the worker, or the class are replaced. `DIFFERENCES` lists the calls whose
responses differ, with reasons.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from tests.connect.worker_bed import call, wait_until, worker_of
from tests.ports import free_port

from compat.conftest import missing
from compat.connect.standalone import MAIN, STRINGS
from compat.daemons import Daemon, java, properties
from compat.parts import PartMissing, kafka_connect
from penstock.testing import Broker

PACKAGE: Final = "org.apache.kafka.connect.file."
DIFFERENCES: Final[Mapping[str, str]] = {
    "GET /connector-plugins": "each has its own connectors",
    "POST /connectors class": "the message lists the known connectors",
    "POST /connectors json": "the parsers' messages differ",
    "POST /connectors field": "the parsers' messages differ",
    "POST /connectors no-config": "Kafka Connect shows a NullPointerException",
    "POST /connectors state": "the parsers' messages differ",
    "GET /connectors/one/tasks": "Kafka Connect adds the class of the task",
    "GET /connectors/one/offsets": "a source names its positions; Kafka's have maps as names",
    "PATCH /connectors/one/offsets key": "the name of the position differs, and Kafka Connect"
    " shows it as an internal error",
    "PUT /connectors/none/stop": "Kafka Connect shows an internal error instead of 404",
    "POST /connectors/none/restart": "Kafka Connect shows a NullPointerException",
    "PUT /connectors/one/config number": "Kafka Connect reports one problem twice",
    "GET /connectors/bad/status": "the process is both connector and task, so both have failed,"
    " and causes are messages instead of stack traces",
}
"""Calls with different responses, and the reasons."""


class Script:
    """Calls of one interface, and the responses by call."""

    def __init__(self, url: str, directory: Path, prefix: str, suffix: str) -> None:
        self.url, self.directory, self.prefix, self.suffix = url, directory, prefix, suffix
        self.found: dict[str, tuple[int, Any]] = {}
        self.source = {
            "connector.class": f"{prefix}FileStreamSource{suffix}", "tasks.max": "1",
            "file": str(directory / "in.txt"), "topic": f"lines{len(prefix)}",
        }  # fmt: skip
        self.sink = {
            "connector.class": f"{prefix}FileStreamSink{suffix}", "tasks.max": "1",
            "file": str(directory / "out.txt"), "topics": self.source["topic"],
        }  # fmt: skip

    def __call__(self, request: str, body: Any = None, note: str = "") -> None:
        method, _, path = request.partition(" ")
        status, found = call(self.url, method, path, body)
        text = json.dumps(found)
        for config in (self.source, self.sink):
            given = config["connector.class"]
            text = text.replace(given, given.removeprefix(self.prefix).removesuffix(self.suffix))
        text = text.replace(self.source["topic"], "lines")
        self.found[f"{request} {note}".strip()] = (status, _without_software(json.loads(text)))

    def wait(self, path: str, reached: Callable[[Any], bool]) -> None:
        def seen() -> bool:
            status, body = call(self.url, "GET", path)
            return status == 200 and reached(body)

        wait_until(seen, lambda: f"{path}: {call(self.url, 'GET', path)}")

    def wait_for(self, name: str, state: str) -> None:
        self.wait(
            f"/connectors/{name}/status",
            lambda body: (
                body["connector"]["state"] == state
                and all(task["state"] == state for task in body["tasks"])
                and bool(body["tasks"]) == (state != "STOPPED")
            ),
        )


def _without_software(value: Any) -> Any:
    """Replace values that name the software or the worker."""
    if isinstance(value, list):
        return [_without_software(item) for item in value]
    if not isinstance(value, dict):
        return value
    names = {"version", "worker_id", "commit"}
    return {key: "…" if key in names else _without_software(item) for key, item in value.items()}


def run(script: Script) -> dict[str, tuple[int, Any]]:
    _create(script)
    _read(script)
    _control(script)
    _offsets(script)
    _change(script)
    _sink(script)
    return script.found


def _create(script: Script) -> None:
    source = script.source
    script.wait("/", lambda body: bool(body["kafka_cluster_id"]))
    script("GET /")
    script("GET /connectors")
    script("GET /connector-plugins")
    script("POST /connectors", {"name": "one", "config": source})
    script("POST /connectors", {"name": "one", "config": source}, "again")
    script("POST /connectors", {"config": source}, "no-name")
    script("POST /connectors", {"name": "two", "config": {**source, "name": "three"}}, "names")
    script("POST /connectors", {"name": "two", "config": {"connector.class": "none"}}, "class")
    script("POST /connectors", {"name": "two", "config": {}}, "empty")
    script("POST /connectors", {"name": "two"}, "no-config")
    script("POST /connectors", b"{nope", "json")
    script("POST /connectors", {"name": "two", "bogus": 1, "config": source}, "field")
    script("POST /connectors", {"name": "two", "config": source, "initial_state": "BAD"}, "state")
    without = {key: value for key, value in source.items() if key != "topic"}
    script("POST /connectors", {"name": "two", "config": without}, "required")
    stopped = {"name": "four", "config": source, "initial_state": "STOPPED"}
    script("POST /connectors", stopped, "stopped")
    script("GET /connectors/four/status")
    script("DELETE /connectors/four")


def _read(script: Script) -> None:
    script.wait_for("one", "RUNNING")
    script.wait("/connectors/one/offsets", lambda body: bool(body["offsets"]))
    script.wait("/connectors/one/topics", lambda body: bool(body["one"]["topics"]))
    for query in ("", "?expand=status", "?expand=info", "?expand=status&expand=info"):
        script(f"GET /connectors{query}")
    for path in ("", "/config", "/status", "/tasks", "/tasks/0/status", "/tasks/9/status",
                 "/topics", "/offsets", "/nothing"):  # fmt: skip
        script(f"GET /connectors/one{path}")
    for path in ("", "/config", "/status", "/tasks", "/tasks/0/status", "/topics", "/offsets"):
        script(f"GET /connectors/none{path}")
    for request in ("PUT {}/pause", "PUT {}/resume", "PUT {}/stop", "POST {}/restart", "DELETE {}",
                    "DELETE {}/offsets", "PUT {}/topics/reset"):  # fmt: skip
        script(request.format("/connectors/none"))
    script("PATCH /connectors/none/config", {"a": "b"})
    script("GET /nothing")
    script("PUT /connectors", {})
    script("GET /health")


def _control(script: Script) -> None:
    script("PUT /connectors/one/pause")
    script.wait_for("one", "PAUSED")
    script("GET /connectors/one/status", note="paused")
    script("PUT /connectors/one/resume")
    script.wait_for("one", "RUNNING")
    script("POST /connectors/one/restart?includeTasks=true&onlyFailed=true")
    script("POST /connectors/one/restart?includeTasks=true")
    script.wait_for("one", "RUNNING")
    script("POST /connectors/one/restart")
    script.wait_for("one", "RUNNING")
    script("POST /connectors/one/tasks/0/restart")
    script.wait_for("one", "RUNNING")


def _offsets(script: Script) -> None:
    path = "/connectors/one/offsets"
    script(f"DELETE {path}", note="running")
    script(f"PATCH {path}", {"offsets": []}, "running")
    script("PUT /connectors/one/stop")
    script.wait_for("one", "STOPPED")
    script("GET /connectors/one/status", note="stopped")
    script(f"PATCH {path}", {"offsets": []}, "empty")
    script(f"PATCH {path}", {}, "nothing")
    file, position = script.source["file"], {"position": 2}
    key = "filename" if script.prefix == PACKAGE else "position"
    script(f"PATCH {path}", {"offsets": [{"partition": {key: file}, "offset": position}]})
    script(f"PATCH {path}", {"offsets": [{"partition": {"x": file}, "offset": position}]}, "key")
    script(f"DELETE {path}")
    script(f"GET {path}", note="empty")
    script("PUT /connectors/one/topics/reset")
    script("GET /connectors/one/topics", note="empty")


def _change(script: Script) -> None:
    script("PATCH /connectors/one/config", {"tasks.max": None, "batch.size": "100"})
    script("PUT /connectors/one/config", script.source)
    given = script.source["connector.class"]
    script("PUT /connectors/one/config", {"connector.class": given, "tasks.max": "zz"}, "number")
    script("PUT /connectors/three/config", script.source)
    script("GET /connectors/three/config")
    script("GET /connector-plugins/nothere/config")
    script(f"PUT /connector-plugins/{given}/config/validate", {"connector.class": "Other"})
    own = script.found.pop(f"PUT /connector-plugins/{given}/config/validate")
    status, body = own
    script.found["PUT /connector-plugins/source/config/validate"] = (status, body["error_code"])
    script("DELETE /connectors/three")
    script("DELETE /connectors/one")
    script("DELETE /connectors/one", note="again")


def _sink(script: Script) -> None:
    script("POST /connectors", {"name": "sink", "config": script.sink}, "sink")
    script.wait_for("sink", "RUNNING")
    script.wait("/connectors/sink/offsets", lambda body: bool(body["offsets"]))
    for path in ("", "/status", "/topics"):
        script(f"GET /connectors/sink{path}")
    script("PUT /connectors/sink/stop")
    script.wait_for("sink", "STOPPED")
    path, topic = "/connectors/sink/offsets", script.sink["topics"]
    partition, offset = {"kafka_topic": topic, "kafka_partition": 0}, {"kafka_offset": 1}
    script(f"PATCH {path}", {"offsets": [{"partition": partition, "offset": offset}]})
    script(f"GET {path}")
    script(f"PATCH {path}", {"offsets": [{"partition": {"x": topic}, "offset": offset}]}, "key")
    script(f"DELETE {path}")
    script(f"GET {path}", note="empty")
    bad = {**script.sink, "file": "/none/none.txt"}
    script("POST /connectors", {"name": "bad", "config": bad}, "bad")
    script.wait(
        "/connectors/bad/status",
        lambda body: bool(body["tasks"]) and body["tasks"][0]["state"] == "FAILED",
    )
    script("GET /connectors/bad/status")
    for name in ("sink", "bad"):
        script(f"DELETE /connectors/{name}")


@contextmanager
def kafka(bootstrap: str, directory: Path) -> Iterator[str]:
    """Run Kafka Connect; yield its URL."""
    url = f"http://127.0.0.1:{free_port()}"
    settings = {
        "bootstrap.servers": bootstrap, "listeners": url, "plugin.discovery": "service_load",
        "key.converter": STRINGS, "value.converter": STRINGS, "offset.flush.interval.ms": "200",
        "offset.storage.file.filename": str(directory / "offsets"),
    }  # fmt: skip
    file = properties(directory / "worker.properties", settings)
    command = java(kafka_connect(), MAIN, file, options=["-XX:TieredStopAtLevel=1"])
    with Daemon(command, directory / "connect.log", url, {"TZ": "UTC"}) as worker:
        worker.wait_until(lambda: worker.call("GET", "/")[0] == 200, seconds=60.0)
        yield url


@pytest.mark.interop
@pytest.mark.long
def test_one_script_gives_the_same_responses(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("a\nb\nc\n")
    try:
        kafka_connect()
    except PartMissing as error:
        missing(error)
    directory = tmp_path / "connectors"
    directory.mkdir()
    shutil.copy(Path(__file__).parent / "connect" / "file_streams.py", directory / "streams.py")
    with Broker(process=True) as broker:
        with kafka(broker.bootstrap, tmp_path) as url:
            theirs = run(Script(url, tmp_path, PACKAGE, "Connector"))
        with worker_of(directory, broker.bootstrap) as worker:
            ours = run(Script(worker.url, tmp_path, "streams.py:", ""))
    assert list(ours) == list(theirs)
    different = {request for request in ours if ours[request] != theirs[request]}
    shown = {request: (theirs[request], ours[request]) for request in different}
    assert different == set(DIFFERENCES), json.dumps(shown, indent=1)[:6000]
