"""`penstock tls`: certificates that brokers take, what is wrong with files, and a reload."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.client import Client
from penstock.testing import Broker
from tests.apps.conftest import Run
from tests.broker.security.secured import PASSWORD, users_file


def test_certificates_for_development(bare: Run, tmp_path: Path) -> None:
    ca = tmp_path / "ca"
    made = bare("tls", "dev-ca", str(ca), "--client", "alice", "--output", "json")
    assert made.status == 0, made.err
    paths = json.loads(made.out)
    assert paths == {name: str(ca / f"{name}.pem") for name in ("ca", "broker", "alice")}
    for name in ("broker.pem", "alice.pem", "ca-key.pem"):
        assert (ca / name).stat().st_mode & 0o777 == 0o600
    checked = json.loads(bare("tls", "check", paths["alice"], "--output", "json").out)
    assert checked["subject"] == "CN=alice"
    assert checked["certificates"] == 2
    assert not checked["readable_by_others"]

    authority = (ca / "ca.pem").read_bytes()
    assert bare("tls", "dev-ca", str(ca), "--host", "example.org").status == 0
    assert (ca / "ca.pem").read_bytes() == authority
    refused = bare("tls", "dev-ca", str(ca), "--client", "../x")
    assert refused.status == 2
    assert "must be a file name without directories" in refused.err


def test_what_is_wrong_with_a_file(bare: Run, tmp_path: Path) -> None:
    bare("tls", "dev-ca", str(tmp_path))
    wrong = bare("tls", "check", str(tmp_path / "ca.pem"))
    assert wrong.status == 2
    assert "the private key in PEM is missing or invalid" in wrong.err
    assert bare("tls", "check", str(tmp_path / "nowhere.pem")).status == 2


def test_a_reload_without_rights_is_refused(bare: Run, tmp_path: Path) -> None:
    settings = {"authorizer.class.name": "acls", "super.users": "User:admin"}
    with Broker(settings) as broker:
        refused = bare("tls", "reload", "--admin", broker.admin_url)
    assert (refused.status, refused.out) == (1, "")
    assert refused.err.startswith(f"penstock: {broker.admin_url}: ")


def test_a_broker_takes_new_files_and_keeps_good_ones(
    bare: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare("tls", "dev-ca", str(tmp_path))
    settings = {
        "listeners": "SASL_SSL://127.0.0.1:0",
        "ssl.keystore.location": str(tmp_path / "broker.pem"),
        "sasl.users.file": users_file(tmp_path, "alice"),
    }
    with Broker(settings) as broker:
        assert broker.server is not None
        host, port = broker.server.bound["SASL_SSL"]
        config = tmp_path / "client.properties"
        config.write_text(
            f"security.protocol=SASL_SSL\nssl.ca.location={tmp_path / 'ca.pem'}\n"
            f"sasl.username=alice\nsasl.password={PASSWORD}\n"
        )
        monkeypatch.setenv("PENSTOCK_CLIENT_CONFIG", str(config))
        listed = bare("topic", "list", "-b", f"{host}:{port}")
        assert listed.status == 0, listed.err
        bare("tls", "dev-ca", str(tmp_path))
        assert bare("tls", "reload", "--admin", broker.admin_url).status == 0
        (tmp_path / "broker.pem").write_bytes(b"none")
        failed = bare("tls", "reload", "--admin", broker.admin_url)
        assert failed.status == 1
        assert "no certificates in PEM" in failed.out
        with Client(f"{host}:{port}", api_timeout_ms=5_000) as client:
            client.metadata(())
        wrong = bare("topic", "list", "-b", f"{host}:{port}", "-X", "sasl.password=x")
        assert wrong.status == 1
        assert "rejected the authentication" in wrong.err
