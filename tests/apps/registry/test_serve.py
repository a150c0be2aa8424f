"""`penstock registry serve`: a registry without a broker, alone and beside others."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.client.errors import AdminUnavailable
from penstock.client.schemas import RegistryRefused, SchemaClient, StoredSchema
from penstock.client.security import admin_security
from penstock.control.access import change_acls
from penstock.control.postgres import PostgresControlPlane
from penstock.security.acls import AclBinding
from tests.apps.test_serve import TIMEOUT_SECONDS, environment
from tests.broker.security.secured import PASSWORD, users_file
from tests.security.certificates import keystore, truststore

READY = re.compile(r"penstock ready registry=(127\.0\.0\.1:\d+)\n")
ORDER = StoredSchema(schema='"string"')


@contextmanager
def serving(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A registry's process, and its address."""
    command = [sys.executable, "-m", "penstock", "registry", "serve", "--listener", "127.0.0.1:0"]
    with subprocess.Popen(
        [*command, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as process:
        try:
            assert process.stdout is not None
            found = READY.fullmatch(process.stdout.readline())
            assert found is not None, process.stderr and process.stderr.read()
            yield process, found[1]
        finally:
            process.kill()


def failed(*words: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "penstock", "registry", "serve", *words]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, env=environment(),
        check=False,
    )  # fmt: skip
    assert done.stdout == ""
    return done.returncode, done.stderr


def eventually(check: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, "it did not happen in time"
        threading.Event().wait(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_schemas_outlive_the_process(tmp_path: Path, number: signal.Signals) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text(f'log.dirs = "{tmp_path / "data"}"\nlog.retention.ms = 1000\n')
    with serving("--config", str(file)) as (process, address):
        with SchemaClient(f"http://{address}") as client:
            assert client.register("orders-value", ORDER) == 1
        process.send_signal(number)
        assert process.wait(TIMEOUT_SECONDS) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
    with serving("--config", str(file)) as (_, address), SchemaClient(f"http://{address}") as again:
        assert again.schema(1).schema == ORDER.schema


def test_a_database_has_one_process(tmp_path: Path) -> None:
    with serving("--data-dir", str(tmp_path)):
        status, text = failed("--data-dir", str(tmp_path), "--listener", "127.0.0.1:0")
        assert (status, text.count("\n")) == (1, 1)
        assert "stop the broker that uses it" in text
        assert "registry.enable=true" in text


def test_mistakes_are_explained(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        taken = f"127.0.0.1:{holder.getsockname()[1]}"
        status, text = failed("--data-dir", str(tmp_path), "--listener", taken)
    assert (status, text.count("\n")) == (1, 1)
    assert f"cannot listen on {taken}" in text
    (tmp_path / "file").write_text("")
    status, text = failed("--data-dir", str(tmp_path / "file"))
    assert (status, "log.dirs" in text) == (1, True)
    status, text = failed("-X", "registry.listner=127.0.0.1:1")
    assert (status, "registry.listener" in text) == (1, True)
    status, text = failed("--control-url", "mysql://host/name")
    assert (status, "flag --control-url" in text) == (1, True)


def test_registries_share_a_database_and_follow_its_acls(postgres_url: str, tmp_path: Path) -> None:
    words = (
        "--control-url", postgres_url, "--data-dir", str(tmp_path),
        "-X", "authorizer.class.name=acls",
    )  # fmt: skip
    with (
        serving(*words) as (_, first),
        serving(*words) as (_, second),
        SchemaClient(f"http://{first}") as one,
        SchemaClient(f"http://{second}") as other,
    ):
        with pytest.raises(RegistryRefused) as error:
            one.register("orders-value", ORDER)
        assert error.value.status == 401
        asyncio.run(_allow(postgres_url, "write", "describe"))

        def registered() -> bool:
            try:
                return one.register("orders-value", ORDER) == 1
            except RegistryRefused:
                return False

        eventually(registered)
        eventually(lambda: other.subjects() == ["orders-value"])
        assert other.schema(1).schema == ORDER.schema
        with pytest.raises(RegistryRefused):
            other.register("payments-value", ORDER)


async def _allow(url: str, *operations: str) -> None:
    control = PostgresControlPlane(url)
    await control.start()
    try:
        bindings = [
            AclBinding(
                resource_type="topic",
                name="orders",
                pattern_type="literal",
                principal="User:ANONYMOUS",
                host="*",
                operation=operation,
                permission="allow",
            )
            for operation in operations
        ]
        await change_acls(control, lambda _: (bindings, ()))
    finally:
        await control.close()


def test_tls_users_and_audit(tmp_path: Path) -> None:
    settings = {
        "authorizer.class.name": "acls",
        "super.users": "User:alice",
        "sasl.users.file": users_file(tmp_path, "alice"),
        "registry.security.protocol": "SSL",
        "listener.name.registry.ssl.keystore.location": keystore(tmp_path, "registry"),
        "audit.log.file": str(tmp_path / "audit.log"),
    }
    words = [word for item in settings.items() for word in ("-X", "=".join(item))]
    options = {
        "ssl.truststore.location": truststore(tmp_path),
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
    }
    with serving("--data-dir", str(tmp_path / "data"), *words) as (process, address):
        right = admin_security({**options, "sasl.password": PASSWORD})
        wrong = admin_security({**options, "sasl.password": "wrong"})
        with SchemaClient(f"https://{address}", security=right) as client:
            assert client.register("orders-value", ORDER) == 1
        with SchemaClient(f"https://{address}", security=wrong) as client:
            with pytest.raises(RegistryRefused) as error:
                client.subjects()
            assert error.value.status == 401
        with (
            pytest.raises(AdminUnavailable),
            SchemaClient(f"http://{address}", timeout_seconds=0.5) as client,
        ):
            client.subjects()
        process.terminate()
        assert process.wait(TIMEOUT_SECONDS) == 0
    lines = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
    assert {"registry"} == {line["process"] for line in lines}
    assert {"success", "failure"} <= {line["outcome"] for line in lines}
    (change,) = [line for line in lines if line["event"] == "change"]
    assert (change["principal"], change["resources"]) == ("User:alice", ["orders-value"])
