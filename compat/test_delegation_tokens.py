"""Delegation tokens by Apache Kafka's own command line, and its Java client that logs in by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from compat.command_line import COMMAND_LINE, Ran
from compat.conftest import missing
from compat.parts import PartMissing
from compat.security import SASL_SSL, Realm, Security
from compat.servers import PenstockProcess

OWNER, RENEWER = "alice", "bob"
KEY = {"delegation.token.secret.key": "of all brokers"}
COLUMNS = (
    "TOKENID",
    "HMAC",
    "OWNER",
    "REQUESTER",
    "RENEWERS",
    "ISSUEDATE",
    "EXPIRYDATE",
    "MAXDATE",
)


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Realm:
    made = Realm(tmp_path_factory.mktemp("realm"))
    made.keystore("broker")
    made.add_users(OWNER, RENEWER, "admin")
    return made


@pytest.fixture(scope="module")
def bootstrap(realm: Realm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    configs = {**realm.broker_settings(), **KEY}
    place: Path = tmp_path_factory.mktemp("broker")
    with PenstockProcess(place, protocol=SASL_SSL, configs=configs) as broker:
        yield broker.bootstrap


def run(bootstrap: str, tool: str, who: Security, *arguments: str) -> Ran:
    try:
        return COMMAND_LINE.run(bootstrap, f"org.apache.kafka.tools.{tool}", *arguments, who=who)
    except PartMissing as error:
        missing(error)


def tokens(bootstrap: str, who: Security, *arguments: str) -> list[dict[str, str]]:
    """Return the rows that kafka-delegation-tokens.sh prints."""
    ran = run(bootstrap, "DelegationTokenCommand", who, *arguments)
    assert ran.status == 0, ran
    lines = [line.split() for line in ran.out.splitlines()]
    start = next(n for n, words in enumerate(lines) if words[:1] == ["TOKENID"])
    return [dict(zip(COLUMNS, words, strict=False)) for words in lines[start + 1 :] if words]


def test_a_token_is_created_renewed_used_and_expired(bootstrap: str, realm: Realm) -> None:
    owner, renewer = realm.user(OWNER), realm.user(RENEWER)
    (created,) = tokens(
        bootstrap, owner, "--create", "--max-life-time-period", "3600000",
        "--renewer-principal", f"User:{RENEWER}",
    )  # fmt: skip
    assert created["OWNER"] == created["REQUESTER"] == f"User:{OWNER}"
    asked = ("--describe", "--owner-principal", f"User:{OWNER}")
    (described,) = tokens(bootstrap, renewer, *asked)
    assert described["TOKENID"] == created["TOKENID"]
    renewal = ("--renew", "--renew-time-period", "-1", "--hmac", created["HMAC"])
    assert run(bootstrap, "DelegationTokenCommand", renewer, *renewal).status == 0
    job = replace(owner, user=created["TOKENID"], password=created["HMAC"], delegation=True)
    # the job is its owner, who may do nothing but see own groups; the login is what counts
    listed = run(bootstrap, "GroupsCommand", job, "--list")
    assert listed.status == 0, listed
    refused = run(bootstrap, "DelegationTokenCommand", job, *asked)
    assert "Delegation Token requests are not allowed" in refused.errors + refused.out, refused
    expiry = ("--expire", "--expiry-time-period", "-1", "--hmac", created["HMAC"])
    assert run(bootstrap, "DelegationTokenCommand", owner, *expiry).status == 0
    assert tokens(bootstrap, owner, *asked) == []
    late = run(bootstrap, "GroupsCommand", job, "--list")
    assert late.status != 0
    assert "Failed to find brokers" in late.out, late
