"""Secrets are put wherever a user can put one; then everything that comes out is searched for them.

Broker and host agent run as processes that log all that they can; clients, the command line and
plain HTTP use good secrets and bad ones. Searched are: what the processes say, the audit log, its
topic, metrics, every answer of HTTP, DescribeConfigs, command lines, the text of configurations.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from penstock.apps.host.wiring import configure_host
from penstock.apps.process.configuration import configure
from penstock.client import Client
from penstock.client.security import admin_security, client_security
from penstock.security.credentials import SCRAM_SHA_512, derive
from tests.broker.security.secured import users_file
from tests.ports import free_port
from tests.security.certificates import keystore, truststore

MARK = "Pl4nted"
"""Every secret has it, so that one search finds them all."""
KEY = f"{MARK}-of-the-key"
ALICE = f"{MARK}-of-alice"
BOB = f"{MARK}-of-bob"
WRONG = f"{MARK}-and-wrong"
STORE = f"{MARK}-of-the-store"
TOKEN = f"{MARK}-token-of-the-agent"
URL = f"{MARK}-in-a-url"
FAILURE = '"event":"authentication","outcome":"failure"'
ADMIN_PATHS = ("/v1/cluster", "/v1/topics", "/metrics", "/health", "/v1/staging", "/v1/groups")


class Place:
    """A directory with processes, and all that they have said."""

    def __init__(self, directory: Path, held: ExitStack) -> None:
        self.directory = directory
        self._held = held
        self.kafka, self.admin, self.front = free_port(), free_port(), free_port()
        self.texts: dict[str, str] = {}

    def start(self, name: str, ready: str, *words: str) -> None:
        """Start a command that serves, and wait until it is ready."""
        log = self._held.enter_context((self.directory / f"{name}.log").open("w+"))
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock", *words, "--log-level", "debug"],
            stdout=subprocess.PIPE, stderr=log, text=True, cwd=self.directory,
        )  # fmt: skip
        self._held.callback(self._end, name, process, log)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith(ready), Path(log.name).read_text()[-2000:]
        self.texts[f"{name} ready"] = line

    def _end(self, name: str, process: subprocess.Popen[str], log: object) -> None:
        self.texts[f"{name} command"] = Path(f"/proc/{process.pid}/cmdline").read_text()
        process.terminate()
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        self.texts[f"{name} said"] = said + (self.directory / f"{name}.log").read_text()

    def run(self, *words: str, config: str = "alice.properties", stdin: str = "") -> None:
        """Run a command to its end, whatever that is."""
        environment = dict(os.environ) | {
            "PENSTOCK_CLIENT_CONFIG": str(self.directory / config),
            "PENSTOCK_BOOTSTRAP": f"127.0.0.1:{self.kafka}",
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock", "--debug", *words], env=environment, text=True,
            cwd=self.directory, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        command = Path(f"/proc/{process.pid}/cmdline").read_text()
        said, _ = process.communicate(stdin, timeout=60)
        self.texts[f"penstock {' '.join(words)} by {config}"] = command + said

    def ask(self, url: str, authorization: str, method: str = "GET") -> None:
        """Send an HTTP request, and keep any response."""
        import ssl

        context = ssl.create_default_context(cafile=truststore(self.directory))
        request = Request(url, method=method, headers={"Authorization": authorization})
        try:
            with urlopen(request, context=context, timeout=60) as answer:
                text = answer.read().decode() + str(answer.headers)
        except HTTPError as error:
            text = error.read().decode() + str(error.headers)
        self.texts[f"{method} {url} {len(self.texts)}"] = text


def properties(directory: Path, user: str, password: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": user,
        "sasl.password": password,
        "ssl.truststore.location": truststore(directory),
    }


@contextmanager
def place(directory: Path) -> Iterator[Place]:
    with ExitStack() as held:
        found = Place(directory, held)
        (directory / "broker.toml").write_text(
            f"""
"listeners" = "SASL_SSL://127.0.0.1:{found.kafka}"
"admin.listener" = "127.0.0.1:{found.admin}"
"admin.security.protocol" = "SSL"
"authorizer.class.name" = "acls"
"super.users" = "User:alice"
"sasl.enabled.mechanisms" = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"
"ssl.keystore.location" = "{keystore(directory, password=KEY)}"
"ssl.key.password" = "{KEY}"
"ssl.truststore.location" = "{truststore(directory)}"
"listener.name.admin.ssl.key.password" = "{KEY}"
"sasl.users.file" = "{users_file(directory, "alice", password=ALICE)}"
"diskless.storage.options" = ["aws_secret_access_key={STORE}"]
"audit.log.file" = "{directory / "audit.log"}"
"audit.topic" = "__audit"
"log.dirs" = "{directory / "data"}"
"""
        )
        digest = hashlib.sha256(TOKEN.encode()).hexdigest()
        kept = derive(SCRAM_SHA_512, BOB, salt=b"0123456789", iterations=4096).text()
        (directory / "rules.toml").write_text(
            f'[[rule]]\ntoken_sha256 = "{digest}"\nprincipal = "User:eye"\nobserves = true\n'
            f'[[rule]]\nuser = "bob"\npassword = "{kept}"\nprincipal = "User:bob"\n'
        )
        (directory / "agent.toml").write_text(
            f'"host.socket.path" = "{directory}/s"\n"host.sink" = "memory"\n'
            f'"host.http.listener" = "127.0.0.1:{found.front}"\n'
            f'"host.acl.file" = "{directory}/rules.toml"\n'
        )
        for name, user, password in (
            ("alice", "alice", ALICE), ("wrong", "alice", WRONG), ("nobody", "nobody", BOB),
        ):  # fmt: skip
            pairs = properties(directory, user, password).items()
            text = "\n".join(f"{key}={value}" for key, value in pairs)
            (directory / f"{name}.properties").write_text(text)
        (directory / "bob.password").write_text(BOB + "\n")
        found.start("broker", "penstock ready", "serve", "--config", "broker.toml")
        found.start("agent", "penstock host ready", "host", "serve", "--config", "agent.toml")
        yield found


def basic(user: str, password: str) -> str:
    return "Basic " + b64encode(f"{user}:{password}".encode()).decode()


def audited(client: Client) -> str:
    """The audit topic, as soon as failures are in it."""
    text = ""
    while FAILURE not in text:
        text = repr(client.read_arrow("__audit")["value"].to_pylist())
    return text


@pytest.mark.timeout(300)
def test_no_secret_comes_out_anywhere(tmp_path: Path) -> None:
    with place(tmp_path) as found:
        found.run("topic", "create", "orders")
        found.run("user", "add", "bob", "--password-file", "bob.password")
        found.run("user", "passwd", "bob", "--password-file", "-", stdin=WRONG + "\n")
        found.run("user", "list")
        found.run("config", "describe", "--broker", "1")
        found.run("doctor", "--config", "broker.toml")
        for config in ("wrong.properties", "nobody.properties"):
            found.run("topic", "list", config=config)
        for path in ADMIN_PATHS:
            bad = (basic("alice", WRONG), f"Bearer {MARK}.a.token", f"Basic {URL}")
            for credentials in (basic("alice", ALICE), *bad):
                found.ask(f"https://127.0.0.1:{found.admin}{path}", credentials)
        for path in ("/metrics", "/v1/status", "/v1/ingest"):
            for credentials in (f"Bearer {TOKEN}", f"Bearer {WRONG}", basic("bob", BOB)):
                method = "POST" if "ingest" in path else "GET"
                found.ask(f"http://127.0.0.1:{found.front}{path}", credentials, method)
        with Client(
            f"127.0.0.1:{found.kafka}", security=properties(tmp_path, "alice", ALICE)
        ) as client:
            entries = client.describe_configs("broker", 1)
            found.texts["audit topic"] = audited(client)
        found.texts["DescribeConfigs"] = repr(entries)
    broker = configure(file=tmp_path / "broker.toml", environment={}, flags={})
    agent = configure_host(file=tmp_path / "agent.toml", environment={}, flags={})
    found.texts["configurations"] = f"{broker!r} {broker} {agent!r}"
    options = properties(tmp_path, "alice", ALICE)
    found.texts["clients"] = f"{client_security(options)!r} {admin_security(options)!r}"
    found.texts["audit"] = (tmp_path / "audit.log").read_text()

    assert FAILURE in found.texts["audit"]
    assert "INFO" in found.texts["broker said"]
    encoded = [b64encode(text.encode()).decode().rstrip("=")[4:-4] for text in (ALICE, BOB, TOKEN)]
    leaks = [
        (name, text[max(0, text.find(secret) - 80) :][:200])
        for name, text in found.texts.items()
        for secret in (MARK, *encoded)
        if secret in text
    ]
    assert leaks == []
    assert len(found.texts) > 40
