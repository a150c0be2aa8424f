"""A broker without its database, store and key server prints no secret of their URLs."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.testing import Broker
from tests.broker.admin.test_admin import failing
from tests.broker.security.secured import PASSWORD, users_file
from tests.ports import free_port
from tests.postgres import postgres_server
from tests.s3 import s3_server

SECONDS = 60.0
SECRET = "planted-secret"
PATHS = ("/health", "/readyz", "/livez", "/metrics", "/v1/cluster", "/v1/diskless/backlogs")
ALICE = {"authorization": "Basic " + b64encode(f"alice:{PASSWORD}".encode()).decode()}


def planted(url: str) -> str:
    """A URL with a secret as user info and one in its query."""
    scheme, rest = url.split("://")
    separator = "&" if "?" in rest else "?"
    user, _, place = rest.rpartition("@")
    return f"{scheme}://{user or 'user'}:{SECRET}@{place}{separator}application_name={SECRET}"


def asked(broker: Broker, path: str, headers: dict[str, str]) -> tuple[int, str]:
    request = urllib.request.Request(broker.admin_url + path, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.long
def test_no_output_has_a_secret_of_a_url(tmp_path: Path) -> None:
    with postgres_server() as database, s3_server() as store:
        options = store.options(planted(store.endpoint).partition("?")[0])
        settings = {
            "control.url": planted(database.schema()),
            "diskless.storage.url": planted(store.fresh_url()),
            "diskless.storage.options": ",".join(f"{key}={options[key]}" for key in options),
            "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
            "sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
            "sasl.oauthbearer.expected.audience": "penstock",
            "sasl.oauthbearer.jwks.endpoint.url": planted(f"https://localhost:{free_port()}/keys"),
            "sasl.users.file": users_file(tmp_path, "alice"),
            "authorizer.class.name": "acls",
            "super.users": "User:alice;User:ANONYMOUS",
            "admin.basic.loopback": "true",
        }
        with Broker(settings, process=True) as broker:
            until(lambda: asked(broker, "/readyz", ALICE)[0] == 200)
            broker.create_topic("orders", configs={"diskless.enable": "true"})
            database.stop()
            store.stop()

            def both_away() -> bool:
                found = failing(json.loads(asked(broker, "/readyz", ALICE)[1]))
                return found.keys() >= {"database", "object store"}

            until(both_away)
            found = failing(json.loads(asked(broker, "/health", ALICE)[1]))
            assert f"127.0.0.1:{database.port}" in found["database"]
            assert f"127.0.0.1:{store.port}" in found["object store"]
            for path in PATHS:
                assert SECRET not in asked(broker, path, ALICE)[1], path
            log = (broker.directory / "broker.log").read_text()
        assert "https://localhost" in log
        assert SECRET not in log
