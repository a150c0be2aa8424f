"""Security findings of `penstock doctor`, from a configuration and its files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.apps.conftest import Run
from tests.security.certificates import keystore, truststore

Examine = Callable[..., dict[str, tuple[str, str]]]
HOST_HTTP = "host agent's HTTP"
TLS = {"listeners": "SASL_SSL://127.0.0.1:9093"}


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Return a directory that all users may enter; those of pytest are closed."""
    with TemporaryDirectory() as made:
        folder = Path(made)
        folder.chmod(0o755)
        yield folder


@pytest.fixture
def examined(bare: Run, tmp_path: Path) -> Examine:
    def examine(**settings: str) -> dict[str, tuple[str, str]]:
        lines = [f'"{name.replace("__", ".")}" = "{value}"' for name, value in settings.items()]
        file = tmp_path / "broker.toml"
        file.write_text("\n".join(lines))
        words = ("doctor", "--local", "--config", str(file), "--data-dir", str(tmp_path / "data"))
        rows = json.loads(bare(*words, "--output", "json").out)
        return {row["check"]: (row["status"], row["cause"]) for row in rows}

    return examine


def test_a_default_broker_is_on_this_machine_alone(examined: Examine) -> None:
    found = examined()
    assert found["listeners"] == ("ok", "PLAINTEXT is PLAINTEXT")
    assert found["admin interface"] == ("ok", "127.0.0.1:9644, PLAINTEXT")
    assert found["ACLs"][0] == "skip"
    assert found["files with secrets"][0] == "ok"


@pytest.mark.parametrize(("days", "status"), [(31.5, "ok"), (29.5, "warn"), (1, "warn")])
def test_certificates_that_end_soon(
    examined: Examine, tmp_path: Path, days: float, status: str
) -> None:
    path = keystore(tmp_path, days=days)
    found = examined(ssl__keystore__location=path, **TLS)["certificate of SASL_SSL"]
    assert found[0] == status
    assert found[1].startswith(f"{path}: certificate of CN=broker expires in ")


def test_a_key_of_another_certificate(examined: Examine, tmp_path: Path) -> None:
    first, second = keystore(tmp_path, "one"), keystore(tmp_path, "two")
    found = examined(ssl__keystore__location=first, ssl__key__location=second, **TLS)
    assert found["certificate of SASL_SSL"] == (
        "fail", f"{second}: the private key does not match the first certificate",
    )  # fmt: skip


def test_no_certificate_at_all(examined: Examine) -> None:
    found = examined(admin__security__protocol="SSL")["certificate of ADMIN"]
    assert found[0] == "fail"
    assert "ssl.keystore.location is not set" in found[1]


def test_the_write_ahead_log_is_named(examined: Examine, bare: Run, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    database, log = (tmp_path / "data" / f"control.sqlite{end}" for end in ("", "-wal"))
    for path in (database, log):
        path.write_bytes(b"")
        path.chmod(0o644)
    database.chmod(0o600)
    found = examined()["files with secrets"]
    assert found == ("fail", f"readable by all users: {log}")
    shown = bare("doctor", "--local", "--data-dir", str(tmp_path / "data")).out
    assert f"chmod o= {log}" in " ".join(shown.split())


def test_a_client_file_counts_by_the_passwords_in_it(
    examined: Examine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, password = tmp_path / "app.properties", tmp_path / "app.password"
    monkeypatch.setenv("PENSTOCK_CLIENT_CONFIG", str(options))
    password.write_text("hidden")
    password.chmod(0o600)
    options.write_text(f"sasl.username=app\nsasl.password=${{file:{password}}}\n")
    assert examined()["files with secrets"][0] == "ok"
    password.chmod(0o644)
    found = examined()["files with secrets"]
    assert found == ("fail", f"readable by all users: {password}")
    options.write_text("sasl.username=app\nsasl.password=hidden\n")
    options.chmod(0o644)
    found = examined()["files with secrets"]
    assert found == ("fail", f"readable by all users: {options}")


def test_keys_that_everybody_may_read(examined: Examine, tmp_path: Path) -> None:
    path, users = Path(keystore(tmp_path)), tmp_path / "users"
    users.write_text("")
    settings = {"ssl__keystore__location": str(path), "sasl__users__file": str(users), **TLS}
    path.chmod(0o600)
    users.chmod(0o640)
    assert examined(**settings)["files with secrets"][0] == "ok"
    path.chmod(0o644)
    found = examined(**settings)["files with secrets"]
    assert found == ("fail", f"readable by all users: {path}")
    tmp_path.chmod(0o700)
    assert examined(**settings)["files with secrets"][0] == "ok"


@pytest.mark.parametrize(
    ("listener", "status", "said"),
    [
        (
            "PLAINTEXT://0.0.0.0:9092",
            "warn",
            "listeners on all addresses without authentication: PLAINTEXT",
        ),
        (
            "PLAINTEXT://:9092",
            "warn",
            "listeners on all addresses without authentication: PLAINTEXT",
        ),
        ("SSL://[::]:9092", "warn", "listeners on all addresses without authentication: SSL"),
        ("SASL_PLAINTEXT://0.0.0.0:9092", "warn", "records unencrypted: SASL_PLAINTEXT"),
        ("SASL_SSL://0.0.0.0:9092", "ok", "SASL_SSL is SASL_SSL"),
        ("PLAINTEXT://10.0.0.1:9092", "ok", "PLAINTEXT is PLAINTEXT"),
    ],
)
def test_listeners_open_to_all(examined: Examine, listener: str, status: str, said: str) -> None:
    found = examined(listeners=listener)["listeners"]
    assert found[0] == status
    assert said in found[1]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"allow__everyone__if__no__acl__found": "true", **TLS}, "allow.everyone.if.no.acl.found"),
        ({"listeners": "PLAINTEXT://127.0.0.1:1"}, "clients of PLAINTEXT are not authenticated"),
        ({"super__users": "User:a; User:ANONYMOUS", **TLS}, "User:ANONYMOUS is a super user"),
        ({**TLS}, ""),
    ],
)
def test_acls_that_do_not_protect(examined: Examine, settings: dict[str, str], said: str) -> None:
    found = examined(authorizer__class__name="acls", **settings)["ACLs"]
    assert found[0] == ("warn" if said else "ok")
    assert said in found[1]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"admin__listener": "0.0.0.0:9644"}, "all clients of 0.0.0.0:9644 may do everything"),
        (
            {"admin__loopback__trusted": "true", "authorizer__class__name": "acls"},
            "all processes of the broker's machine may do everything",
        ),
        (
            {"admin__listener": "10.0.0.1:9644", "authorizer__class__name": "acls"},
            "tokens and answers are sent unencrypted",
        ),
    ],
)
def test_an_admin_interface_that_is_open(
    examined: Examine, settings: dict[str, str], said: str
) -> None:
    status, cause = examined(**settings)["admin interface"]
    assert status == "warn"
    assert said in cause


# Host agent


@pytest.fixture
def examined_agent(bare: Run, tmp_path: Path) -> Examine:
    def examine(**settings: str) -> dict[str, tuple[str, str]]:
        file = tmp_path / "agent.toml"
        lines = [f'"{name.replace("__", ".")}" = "{value}"' for name, value in settings.items()]
        file.write_text("\n".join(lines))
        words = ("doctor", "--local", "--agent-config", str(file), "--output", "json")
        rows = json.loads(bare(*words).out)
        return {row["check"]: (row["status"], row["cause"]) for row in rows}

    return examine


@pytest.mark.parametrize(
    ("settings", "status", "said"),
    [
        ({}, "skip", "none is configured"),
        ({"host__http__listener": "127.0.0.1:8088"}, "ok", "127.0.0.1:8088, PLAINTEXT"),
        ({"host__http__listener": "0.0.0.0:8088"}, "warn", "may publish to every topic"),
        ({"host__http__listener": "[::]:8088"}, "warn", "may publish to every topic"),
        (
            {"host__http__listener": "10.0.0.1:8088", "host__acl__file": "rules.toml"},
            "warn",
            "records and signed tokens are sent unencrypted",
        ),
        (
            {"host__http__sasl__oauthbearer__unsecured__tokens": "true",
             "host__http__listener": "127.0.0.1:8088"},
            "warn",
            "any client can claim any identity",
        ),
        ({"host__sink": "nonsense"}, "fail", "host.sink"),
    ],
)  # fmt: skip
def test_a_host_agents_http_front_that_is_open(
    examined_agent: Examine, settings: dict[str, str], status: str, said: str
) -> None:
    found = examined_agent(**settings)[HOST_HTTP]
    assert found[0] == status
    assert said in found[1]


def test_a_host_agent_with_tls(examined_agent: Examine, tmp_path: Path) -> None:
    settings = {
        "host__http__listener": "0.0.0.0:8088",
        "host__http__security__protocol": "SSL",
        "host__http__ssl__keystore__location": keystore(tmp_path, days=10),
        "host__http__ssl__truststore__location": truststore(tmp_path),
    }
    found = examined_agent(**settings)
    assert found[f"certificate of {HOST_HTTP}"][0] == "warn"
    assert found[HOST_HTTP] == ("warn", "all clients of 0.0.0.0:8088 may publish to every topic")
    found = examined_agent(**settings, host__http__ssl__client__auth="required")
    assert found[HOST_HTTP] == ("ok", "0.0.0.0:8088, SSL")
