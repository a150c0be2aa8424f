"""Shared admin address of several brokers with TLS: forwards the client's identity."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Iterator
from http.client import HTTPSConnection
from pathlib import Path

import pytest

from penstock.client.admin_http import AdminHttp, AdminSecurity, Answer
from penstock.client.errors import AdminUnavailable
from penstock.client.security import admin_security
from tests.apps.processes.test_serve import READY
from tests.apps.test_serve import LOCAL, TIMEOUT_SECONDS, serving
from tests.broker.security.secured import PASSWORD, users_file
from tests.security.certificates import keystore, truststore

ELSEWHERE = "127.0.0.7"
"""An address of this machine that no broker calls from."""


class Guarded:
    """The admin address, and who asks it."""

    def __init__(self, address: str, directory: Path) -> None:
        self.address = address
        self.directory = directory

    def security(self, **options: str) -> AdminSecurity:
        named = {name.replace("_", "."): value for name, value in options.items()}
        return admin_security({"ssl.truststore.location": truststore(self.directory), **named})

    def alice(self, password: str = PASSWORD) -> AdminSecurity:
        return self.security(
            security_protocol="SASL_SSL", sasl_mechanism="PLAIN", sasl_username="alice",
            sasl_password=password,
        )  # fmt: skip

    def ask(self, security: AdminSecurity, path: str, method: str = "GET") -> Answer:
        with AdminHttp(f"https://{self.address}", security=security) as admin:
            return admin.ask(method, path, timeout_seconds=TIMEOUT_SECONDS)

    def certificate(self) -> str:
        host, _, port = self.address.rpartition(":")
        return ssl.get_server_certificate((host, int(port)))

    def audited(self) -> list[dict[str, str]]:
        lines = [
            json.loads(line)
            for path in sorted(self.directory.glob("audit.log*"))
            for line in path.read_text().splitlines()
        ]
        return [line for line in lines if line["listener"] == "admin.listener"]

    def audited_of(self, operation: str) -> list[dict[str, str]]:
        """Wait for the lines of an operation, which a thread writes behind the answer."""
        end = time.monotonic() + TIMEOUT_SECONDS
        while not (found := [line for line in self.audited() if line["operation"] == operation]):
            assert time.monotonic() < end, f"no line of {operation} in {TIMEOUT_SECONDS} s"
            threading.Event().wait(0.02)
        return found


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    directory = tmp_path_factory.mktemp("processes")
    settings = {
        "authorizer.class.name": "acls",
        "super.users": "User:alice;User:CN=carol",
        "sasl.users.file": users_file(directory, "alice"),
        "admin.security.protocol": "SSL",
        "listener.name.admin.ssl.keystore.location": keystore(directory, "admin"),
        "listener.name.admin.ssl.truststore.location": truststore(directory),
        "listener.name.admin.ssl.client.auth": "requested",
        "audit.log.file": str(directory / "audit.log"),
    }
    words = [word for name, value in settings.items() for word in ("-X", f"{name}={value}")]
    data = directory / "data"
    with serving(data, *LOCAL, "--processes", "2", *words) as (process, line):
        found = READY.fullmatch(line)
        assert found is not None, (line, process.stderr.read() if process.stderr else "")
        yield Guarded(found[2], directory)
        process.terminate()
        assert process.wait(TIMEOUT_SECONDS) == 0


def test_passwords_and_certificates_are_known_to_brokers(guarded: Guarded) -> None:
    carol = guarded.security(ssl_keystore_location=keystore(guarded.directory, "carol", hosts=()))
    for path in ("/v1/cluster", "/brokers/2/v1/cluster", "/metrics"):
        assert guarded.ask(guarded.alice(), path).status == 200
        assert guarded.ask(carol, path).status == 200
        assert guarded.ask(guarded.alice("wrong"), path).status == 401
        assert guarded.ask(guarded.security(), path).status == 403


def test_it_has_no_way_around_tls(guarded: Guarded) -> None:
    with pytest.raises(AdminUnavailable), AdminHttp(f"http://{guarded.address}") as admin:
        admin.ask("GET", "/livez", timeout_seconds=TIMEOUT_SECONDS)
    another = AdminSecurity(tls=ssl.create_default_context())
    with pytest.raises(AdminUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        guarded.ask(another, "/livez")


def test_brokers_get_the_client_address_from_the_front_alone(guarded: Guarded) -> None:
    connection = HTTPSConnection(
        guarded.address, context=guarded.alice().tls, timeout=TIMEOUT_SECONDS,
        source_address=(ELSEWHERE, 0),
    )  # fmt: skip
    forged = {"penstock-front": "00" * 32, "penstock-client": "10.0.0.1 1"}
    connection.request("GET", "/v1/topics/none", headers=forged)
    assert connection.getresponse().status == 403
    connection.close()
    (line,) = guarded.audited_of("GET /v1/topics/none")
    assert (line["event"], line["address"]) == ("denial", ELSEWHERE)


def test_new_certificates_are_taken_into_use_when_asked(guarded: Guarded) -> None:
    before = guarded.certificate()
    path = Path(keystore(guarded.directory, "admin"))
    answer = guarded.ask(guarded.alice(), "/v1/security/reload", "POST")
    assert (answer.status, answer.body["failures"]) == (200, [])
    after = guarded.certificate()
    assert after != before
    path.write_text("nonsense")
    answer = guarded.ask(guarded.alice(), "/v1/security/reload", "POST")
    assert answer.body["failures"] == [f"listener ADMIN: {path} has no certificates in PEM"]
    assert guarded.certificate() == after
    text = guarded.ask(guarded.alice(), "/metrics").content.decode()
    assert 'penstock_tls_certificate_ends_timestamp_seconds{listener="ADMIN"} ' in text
    assert guarded.ask(guarded.security(), "/v1/security/reload", "POST").status == 403
