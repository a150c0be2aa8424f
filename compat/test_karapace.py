"""Karapace on Penstock: its registry keeps its state in a topic, its REST proxy moves records.

Karapace is a program on the PATH: 6.2.0 was tried.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from tests.connect.worker_bed import call
from tests.ports import free_port

from compat.conftest import missing
from compat.daemons import Daemon
from compat.parts import PartMissing, program
from compat.security import ADMIN, SASL_SSL, Realm, grant
from compat.servers import QUICK_GROUPS, Addressed, PenstockProcess
from compat.tools import run_tool
from penstock.testing import Broker

pytestmark = pytest.mark.long

GROUP: Final = "schema-registry"
JSON: Final = "application/vnd.schemaregistry.v1+json"
VERSIONS: Final = "/subjects/orders-value/versions"
SESSION_MS: Final = 6_000
FIRST: Final = {
    "type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}],
}  # fmt: skip
SECOND: Final = {
    **FIRST, "fields": [{"name": "id", "type": "long"},
                        {"name": "note", "type": "string", "default": ""}],
}  # fmt: skip
OTHER: Final = {**FIRST, "fields": [{"name": "id", "type": "string"}]}
JSON_SCHEMA: Final = {"type": "object", "properties": {"id": {"type": "integer"}}}


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    """Skip the module before a broker starts, if there is no Karapace."""
    try:
        _python()
    except PartMissing as error:
        missing(error)


def _python() -> str:
    """Return the Python of Karapace's environment."""
    return str(Path(program("karapace_rest_proxy", "6.2.0")).with_name("python"))


def karapace(broker: Addressed, folder: Path, module: str, **settings: str) -> Daemon:
    """Return a Karapace on a broker.

    Args:
        module: `karapace` for the registry, `karapace.kafka_rest_apis` for the REST proxy.
        settings: more settings of Karapace, by their names without prefix.
    """
    port = str(free_port())
    settings = {
        "bootstrap_uri": broker.bootstrap, "host": "127.0.0.1", "port": port,
        "advertised_hostname": "127.0.0.1", "advertised_port": port, "log_level": "INFO",
        "group_id": GROUP, "session_timeout_ms": str(SESSION_MS), "admin_metadata_max_age": "0",
        "waiting_time_before_acting_as_master_ms": "500", **settings,
    }  # fmt: skip
    environment = {f"KARAPACE_{name.upper()}": value for name, value in settings.items()}
    log = folder / f"{module}-{port}.log"
    command = [_python(), "-m", module]
    return Daemon(command, log, f"http://127.0.0.1:{port}", environment)


def registry(broker: Addressed, folder: Path, **settings: str) -> Daemon:
    return karapace(broker, folder, "karapace", karapace_registry="true", **settings)


def wait_for_primary(*registries: Daemon) -> Daemon:
    """Wait until all registries are ready and name the same primary, and return it."""
    primaries: list[Daemon] = []

    def health() -> list[tuple[int, Any]]:
        return [server.call("GET", "/_health") for server in registries]

    def elected() -> bool:
        found = health()
        if any(status != 200 for status, _ in found):
            return False
        states = [body["status"] for _, body in found]
        primaries[:] = [
            server
            for server, state in zip(registries, states, strict=True)
            if state["schema_registry_is_primary"]
        ]
        others = {state["schema_registry_primary_url"] for state in states} - {None}
        available = [server.call("GET", "/master_available") for server in registries]
        return (
            all(state["schema_registry_ready"] for state in states)
            and len(primaries) == 1
            and others <= {primaries[0].url}
            and all(answer == (200, {"master_available": True}) for answer in available)
        )

    registries[0].wait_until(elected, health)
    return primaries[0]


def text(schema: Any, kind: str = "AVRO") -> dict[str, str]:
    return {"schema": json.dumps(schema), "schemaType": kind}


def state(server: Daemon) -> dict[str, Any]:
    """Return all that a registry has: subjects, versions, schemas, levels."""
    _, subjects = server.call("GET", "/subjects?deleted=true")
    found: dict[str, Any] = {
        path: server.call("GET", path) for path in ("/subjects", "/config", "/mode")
    }
    for subject in subjects:
        path = f"/subjects/{subject}/versions"
        status, versions = server.call("GET", f"{path}?deleted=true")
        found[path] = status, versions
        found |= {
            f"{path}/{number}": server.call("GET", f"{path}/{number}?deleted=true")
            for number in versions
        }
        found[f"/config/{subject}"] = server.call("GET", f"/config/{subject}")
    return found


def fill(server: Daemon) -> None:
    """Register, look up, reject and delete schemas of three subjects."""
    assert server.call("POST", VERSIONS, text(FIRST)) == (200, {"id": 1})
    assert server.call("POST", VERSIONS, text(FIRST)) == (200, {"id": 1})
    status, found = server.call("POST", "/subjects/orders-value", text(FIRST))
    assert (status, found["id"], found["version"]) == (200, 1, 1)
    latest = "/compatibility/subjects/orders-value/versions/latest"
    assert server.call("POST", latest, text(OTHER))[1]["is_compatible"] is False
    status, refusal = server.call("POST", VERSIONS, text(OTHER))
    assert (status, refusal["error_code"]) == (409, 409)
    assert server.call("POST", latest, text(SECOND))[1]["is_compatible"] is True
    assert server.call("POST", VERSIONS, text(SECOND)) == (200, {"id": 2})
    level = {"compatibility": "NONE"}
    assert server.call("PUT", "/config/orders-value", level) == (200, level)
    assert server.call("POST", VERSIONS, text(OTHER)) == (200, {"id": 3})
    for subject in ("json-value", "gone-value"):
        path = f"/subjects/{subject}/versions"
        assert server.call("POST", path, text(JSON_SCHEMA, "JSON")) == (200, {"id": 4})
    assert server.call("DELETE", f"{VERSIONS}/2") == (200, 2)
    assert server.call("DELETE", "/subjects/gone-value") == (200, [1])
    assert server.call("DELETE", "/subjects/gone-value?permanent=true") == (200, [1])


def test_the_registry_keeps_its_state_over_kills(tmp_path: Path) -> None:
    with (
        Broker(process=True) as broker,
        broker.client() as client,
        registry(broker, tmp_path) as server,
    ):
        wait_for_primary(server)
        fill(server)
        before = state(server)
        assert before["/subjects"] == (200, ["orders-value", "json-value"])
        assert before[VERSIONS] == (200, [1, 2, 3])
        configs = client.describe_configs("topic", "_schemas")
        assert [e.value for e in configs if e.name == "cleanup.policy"] == ["compact"]
        server.kill()
        broker.kill()
        broker.start()
        server.start()
        wait_for_primary(server)
        assert state(server) == before
        assert server.call("POST", VERSIONS, text(FIRST)) == (200, {"id": 1})
        status, new = server.call("POST", "/subjects/new-value/versions", text("string"))
        assert (status, new) == (200, {"id": 5})


def test_another_instance_becomes_the_primary(tmp_path: Path) -> None:
    with (
        Broker(process=True) as broker,
        registry(broker, tmp_path) as first,
        registry(broker, tmp_path) as second,
    ):
        primary = wait_for_primary(first, second)
        follower = second if primary is first else first
        (row,) = [
            row for row in run_tool(broker.bootstrap, "GroupsCommand", "--list")
            if row["GROUP"] == GROUP
        ]  # fmt: skip
        assert (row["TYPE"], row["PROTOCOL"]) == ("Classic", "sr")
        fill(follower)  # which forwards to the primary
        follower.wait_until(lambda: state(follower) == state(primary))
        before = state(follower)
        primary.kill()
        assert wait_for_primary(follower) is follower
        assert state(follower) == before
        path = "/subjects/new-value/versions"
        assert follower.call("POST", path, text("string")) == (200, {"id": 5})
        primary.start()
        wait_for_primary(first, second)
        primary.wait_until(lambda: state(primary) == state(follower))


def test_schemas_move_to_penstocks_registry(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    configs = {"registry.enable": "true", "registry.listener": address}
    with (
        Broker(configs, process=True) as broker,
        registry(broker, tmp_path) as server,
    ):
        wait_for_primary(server)
        fill(server)
        target = ["--registry", f"http://{address}"]
        for source in (server.url, "topic:_schemas"):
            words = ["schema", "import", source, "--bootstrap", broker.bootstrap, *target]
            command = [sys.executable, "-m", "penstock", *words]
            ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            assert ran.returncode == 0, ran.stderr
        for subject, count in (("orders-value", 3), ("json-value", 1)):
            for number in range(1, count + 1):
                path = f"/subjects/{subject}/versions/{number}?deleted=true"
                _, theirs = server.call("GET", path)
                _, ours = call(f"http://{address}", "GET", path)
                assert (ours["id"], ours["version"]) == (theirs["id"], theirs["version"])
                assert json.loads(ours["schema"]) == json.loads(theirs["schema"])


RIGHTS: Final = [
    ("create", "topic", "_schemas"), ("describe_configs", "topic", "_schemas"),
    ("read", "topic", "_schemas"), ("write", "topic", "_schemas"),
    ("read", "group", GROUP), ("read", "group", "karapace-autogenerated-*"),
]  # fmt: skip
"""Permissions of a registry."""


def test_a_registry_needs_these_permissions(tmp_path: Path) -> None:
    known = Realm(tmp_path)
    known.keystore("broker")
    known.add_users(ADMIN, "karapace")
    configs = {**QUICK_GROUPS, **known.broker_settings()}
    user = known.user("karapace")
    settings = {
        "security_protocol": user.protocol, "ssl_cafile": user.truststore,
        "sasl_mechanism": user.mechanism,
        "sasl_plain_username": user.user, "sasl_plain_password": user.password,
    }  # fmt: skip
    with PenstockProcess(tmp_path / "broker", protocol=SASL_SSL, configs=configs) as broker:
        grant(broker.bootstrap, "karapace", RIGHTS, known.user(ADMIN))
        with registry(broker, tmp_path, **settings) as server:
            wait_for_primary(server)
            fill(server)
            before = state(server)
            server.kill()
            server.start()
            wait_for_primary(server)
            assert state(server) == before


@contextmanager
def proxy(broker: Broker, folder: Path) -> Iterator[Daemon]:
    """Run a registry and a REST proxy that uses it."""
    with ExitStack() as stack:
        schemas = stack.enter_context(registry(broker, folder))
        wait_for_primary(schemas)
        host, port = schemas.url.removeprefix("http://").split(":")
        module = "karapace.kafka_rest_apis"
        settings = {"karapace_rest": "true", "registry_host": host, "registry_port": port}
        server = stack.enter_context(karapace(broker, folder, module, **settings))
        server.wait_until(lambda: server.call("GET", "/topics")[0] == 200)
        yield server


VALUES: Final[dict[str, list[Any]]] = {
    "json": [{"id": 1, "note": "ü"}, [1, None, True], "text", 1.5],
    "binary": [base64.b64encode(value).decode() for value in (bytes(range(256)), b"plain", b"\0")],
    "avro": [{"id": 1, "note": "ü"}, {"id": -(2**63), "note": ""}],
}
RAW: Final = {
    "json": [b'{"id":1,"note":"\xc3\xbc"}', b"[1,null,true]", b'"text"', b"1.5"],
    "binary": [base64.b64decode(value) for value in VALUES["binary"]],
    "avro": [b"\0\0\0\0\1" + b"\2\4\xc3\xbc", b"\0\0\0\0\1" + b"\xff" * 9 + b"\1\0"],
}
"""Values as records have them; those of Avro begin with the id of their schema."""


@pytest.mark.parametrize("kind", VALUES)
def test_the_rest_proxy_produces_and_consumes(tmp_path: Path, kind: str) -> None:
    values = VALUES[kind]
    with (
        Broker(process=True) as broker,
        broker.client() as client,
        proxy(broker, tmp_path) as server,
    ):
        client.create_topic("orders", 2)
        server.wait_until(lambda: "orders" in server.call("GET", "/topics")[1])
        content_type = f"application/vnd.kafka.{kind}.v2+json"
        body: dict[str, Any] = {"records": [{"value": value, "partition": 1} for value in values]}
        if kind == "avro":
            body["value_schema"] = json.dumps(SECOND)
        status, sent = server.call("POST", "/topics/orders", body, content_type=content_type)
        assert status == 200, sent
        assert sent["offsets"] == [
            {"offset": number, "partition": 1} for number in range(len(values))
        ]
        stored = client.read_arrow("orders")
        assert stored["value"].to_pylist() == RAW[kind]
        described = server.call("GET", "/topics/orders/partitions")[1]
        assert [(part["partition"], part["leader"]) for part in described] == [(0, 1), (1, 1)]
        ends = server.call("GET", "/topics/orders/partitions/1/offsets")[1]
        assert ends == {"beginning_offset": 0, "end_offset": len(values)}

        v2 = {"content_type": "application/vnd.kafka.v2+json"}
        consumer = {"name": "c", "format": kind, "auto.offset.reset": "earliest"}
        status, made = server.call("POST", "/consumers/g", consumer, **v2)
        assert (status, made["instance_id"]) == (200, "c"), made
        path = "/consumers/g/instances/c"
        subscribed = server.call("POST", f"{path}/subscription", {"topics": ["orders"]}, **v2)
        assert subscribed[0] in (200, 204), subscribed
        read: list[Any] = []

        def all_read() -> bool:
            status, records = server.call(
                "GET", f"{path}/records?timeout=1000", accept=content_type
            )
            assert status == 200, records
            read.extend((record["offset"], record["value"]) for record in records)
            return len(read) >= len(values)

        server.wait_until(all_read, lambda: read)
        assert read == list(enumerate(values))
        assert server.call("POST", f"{path}/offsets", {}, **v2)[0] in (200, 204)
        assert client.committed("g")["orders", 1].offset == len(values)
        assert server.call("DELETE", path, None, **v2)[0] in (200, 204)
