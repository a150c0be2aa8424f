"""Links between clusters with TLS, SASL and ACLs; messages about missing rights."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

from penstock.apps.cli import root
from penstock.client import Client
from penstock.security.acls import AclFilter
from penstock.testing import Broker
from tests.broker.security.secured import PASSWORD, users_file
from tests.client.test_security import at
from tests.security.access import allow
from tests.security.certificates import keystore, truststore

USER = "alice"
TOPIC = "orders"


class Secured:
    """Broker with a listener SASL_SSL, for a user without rights; and the user's options."""

    def __init__(self, directory: Path) -> None:
        settings = {
            "listeners": "SASL_SSL://127.0.0.1:0",
            "authorizer.class.name": "acls",
            "super.users": "User:ANONYMOUS",
            "ssl.keystore.location": keystore(directory),
            "sasl.users.file": users_file(directory, USER),
        }
        self.broker = Broker(settings, admin=False)
        self.options = directory / "client.properties"
        lines = (
            "security.protocol=SASL_SSL", "sasl.mechanism=SCRAM-SHA-512",
            f"sasl.username={USER}", f"sasl.password={PASSWORD}",
            f"ssl.ca.location={truststore(directory)}",
        )  # fmt: skip
        self.options.write_text("\n".join(lines))

    @property
    def address(self) -> str:
        return at(self.broker, "SASL_SSL")

    def grant(self, *rights: tuple[str, str, str]) -> None:
        with self.broker.client() as client:
            client.create_acls([allow(*right, USER) for right in rights])


@pytest.fixture
def sides(tmp_path: Path) -> Iterator[tuple[Secured, Secured]]:
    with ExitStack() as stack:
        made = []
        for name in ("source", "target"):
            directory = tmp_path / name
            directory.mkdir()
            made.append(Secured(directory))
            stack.enter_context(made[-1].broker)
        yield made[0], made[1]


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 20.0
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_rights_are_checked_named_and_enough(
    sides: tuple[Secured, Secured], caplog: pytest.LogCaptureFixture
) -> None:
    source, target = sides
    runner = CliRunner(env={"PENSTOCK_CLIENT_CONFIG": str(target.options)})

    def run(*words: str, status: int = 0) -> str:
        done = runner.invoke(root, ["link", *words, "-b", target.address])
        assert done.exit_code == status, done.output
        return f"{done.output} {done.exception or ''}"

    with source.broker.client() as client:
        client.create_topic(TOPIC)
        client.write_arrow(TOPIC, pa.table({"value": [b"a", b"b"]}))
        client.commit_offsets("readers", {(TOPIC, 0): 1})
    create = ["create", TOPIC, "--source", source.address]
    create += ["--source-config", str(source.options), "--broker-config", str(source.options)]
    said = run(*create, status=1)
    assert "User:alice may not describe-configs, read topic orders of the source" in said
    assert "penstock acl add -b" in said
    source.grant(("read", "topic", TOPIC), ("describe_configs", "topic", TOPIC))
    source.grant(("describe", "group", "readers"))
    said = run(*create, status=1)
    assert "User:alice may not create, describe topic orders of the target" in said
    target.grant(("create", "topic", TOPIC), ("describe", "topic", TOPIC))
    run(*create)
    with target.broker.client() as client:
        wait_until(lambda: client.list_offsets(TOPIC) == {0: 2})
        _revoke_and_grant(source, client, caplog)
    promote = ["promote", TOPIC, "--source-config", str(source.options)]
    target.grant(("read", "topic", TOPIC), ("describe_configs", "topic", TOPIC))
    assert "User:alice may not alter-configs topic orders of the target" in run(*promote, status=1)
    said = run(*promote, "--replication-factor", "2", status=1)
    assert "User:alice may not alter, describe-configs cluster kafka-cluster of the target" in said
    target.grant(("alter_configs", "topic", TOPIC))
    assert "offsets of group readers were not copied" in run(*promote)


def _revoke_and_grant(source: Secured, client: Client, caplog: pytest.LogCaptureFixture) -> None:
    """Check that the link reports a right that is revoked, and continues once it is granted."""
    with source.broker.client() as owner, caplog.at_level(logging.WARNING, "penstock.link"):
        owner.create_acls([allow("read", "topic", TOPIC, USER, permission="deny")])
        owner.write_arrow(TOPIC, pa.table({"value": [b"c"]}))
        wait_until(lambda: "Grant READ at the source" in caplog.text)
        owner.delete_acls(AclFilter(permission="deny"))
        wait_until(lambda: client.list_offsets(TOPIC) == {0: 3})
