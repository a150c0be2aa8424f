"""Credentials that commands send to an admin interface without TLS."""

from __future__ import annotations

from pathlib import Path

from penstock.apps.client.admin import ask_admin, hides_causes
from penstock.apps.client.session import State
from penstock.testing import Broker
from tests.broker.security.secured import PASSWORD, users_file

ALICE = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "alice",
    "sasl.password": PASSWORD,
}


def asked(broker: Broker, state: State) -> int:
    return ask_admin(state, broker.admin_url.removeprefix("http://"), "/v1/cluster").status


def test_where_they_are_needed(tmp_path: Path) -> None:
    settings = {
        "authorizer.class.name": "acls",
        "super.users": "User:alice",
        "admin.basic.loopback": "true",
        "sasl.users.file": users_file(tmp_path, "alice"),
    }
    with Broker(settings) as broker:
        assert asked(broker, State()) == 403
        assert asked(broker, State(overrides=ALICE)) == 200
        assert asked(broker, State(overrides={**ALICE, "sasl.password": "wrong"})) == 401


def test_causes_of_failed_checks_are_asked_for_with_credentials(tmp_path: Path) -> None:
    settings = {
        "authorizer.class.name": "acls",
        "super.users": "User:alice",
        "admin.basic.loopback": "true",
        "sasl.users.file": users_file(tmp_path, "alice"),
    }
    with Broker(settings) as broker:
        away = broker.directory / "away"
        (broker.directory / "log").rename(away)
        try:
            hidden = ask_admin(State(), broker.admin_url, "/readyz")
            shown = ask_admin(State(overrides=ALICE), broker.admin_url, "/readyz")
        finally:
            away.rename(broker.directory / "log")
    assert hides_causes(hidden)
    assert not hides_causes(shown)
    assert shown.status == hidden.status == 503
    assert "cannot be written" in str(shown.body)


def test_wrong_credentials_are_ignored_without_authentication() -> None:
    with Broker() as broker:
        assert asked(broker, State(overrides=ALICE)) == 200
