"""Mirror between clusters with TLS, SASL and ACLs: missing rights, and ACLs that follow."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from penstock.apps.cli import root
from penstock.link.rights import MissingRights
from penstock.mirror import running as mirror_running
from penstock.security.acls import CLUSTER, AclBinding, AclFilter
from penstock.testing import Broker
from tests.broker.security.secured import PASSWORD, users_file
from tests.mirror.bed import Address, mirror, mirror_file, rows, running, wait_for
from tests.security.certificates import keystore, truststore
from tests.security.exchanges import key_set, signing_key, token

KEY = signing_key("EC")
RIGHT = re.compile(
    r"run penstock acl add -b \S+ --principal \S+ --(\S+)(?: (?!-)(\S+))?"
    r"((?: --operation [\w-]+)+)"
)


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, Broker]]:
    """Two brokers with SASL_SSL and an authorizer; the plaintext listener is for administrators."""
    made = tmp_path_factory.mktemp("secured")
    (made / "jwks.json").write_bytes(key_set(k1=KEY))
    settings = {
        "listeners": "SASL_SSL://127.0.0.1:0",
        "ssl.keystore.location": keystore(made),
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,OAUTHBEARER",
        "sasl.users.file": users_file(made, "mirror"),
        "sasl.oauthbearer.jwks.endpoint.url": (made / "jwks.json").as_uri(),
        "authorizer.class.name": "acls",
        "super.users": "User:ANONYMOUS",
    }
    with Broker(settings, admin=False) as source, Broker(settings, admin=False) as target:
        yield source, target


def secured(broker: Broker) -> Address:
    assert broker.server is not None
    host, port = broker.server.bound["SASL_SSL"]
    return Address(f"{host}:{port}")


def secured_file(folder: Path, source: Broker, target: Broker) -> Path:
    """Mirror that authenticates by a password at the source, and by a token at the target."""
    (folder / "token").write_text(
        token(KEY, {"sub": "copier", "exp": time.time() + 600}, algorithm="ES256")
    )
    common = {
        "security.protocol": "SASL_SSL", "ssl.truststore.location": truststore(folder)
    }  # fmt: skip
    options = {
        "source": {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "mirror",
                   "sasl.password": PASSWORD},
        "target": {"sasl.mechanism": "OAUTHBEARER",
                   "sasl.oauthbearer.token.endpoint.url": (folder / "token").as_uri()},
    }  # fmt: skip
    for name, own in options.items():
        lines = [f"{key}={value}" for key, value in (common | own).items()]
        (folder / f"{name}.properties").write_text("\n".join(lines))
    keys = [f'client_config = "{name}.properties"' for name in options]
    return mirror_file(folder, "secured", secured(source), secured(target), "identity", *keys)


def allow(kind: str, name: str, operation: str, user: str) -> AclBinding:
    return AclBinding(
        resource_type=kind, name=name, pattern_type="literal", principal=user, host="*",
        operation=operation, permission="allow",
    )  # fmt: skip


def granted(line: str, users: dict[str, str]) -> list[AclBinding]:
    """Return the ACLs that the command in a reported problem adds."""
    found = RIGHT.search(line)
    assert found is not None, line
    flag, name, words = found.groups()
    side = "source" if "of the source" in line else "target"
    kind = flag.replace("-", "_")
    return [
        allow(kind, name or CLUSTER, word.replace("-", "_"), users[side])
        for word in re.findall(r"--operation (\S+)", words)
    ]


def cli(*words: str) -> Any:
    return CliRunner().invoke(root, words)


def test_missing_rights_are_reported_at_once_and_acls_follow(
    tmp_path: Path, clusters: tuple[Broker, Broker]
) -> None:
    source, target = clusters
    file = secured_file(tmp_path, source, target)
    users = {"source": "User:mirror", "target": "User:copier"}
    with source.client() as left, target.client() as right:
        left.create_topic("orders", 2)
        left.write_arrow("orders", pa.table({"value": [b"v"] * 10}))
        left.commit_offsets("g", {("orders", 0): 0})
        reports = [cli("mirror", verb, str(file)) for verb in ("validate", "plan")]
        assert [report.exit_code for report in reports] == [1, 1]
        with pytest.raises(MissingRights, match="User:mirror may not describe cluster") as missing:
            mirror(file)
        lines = str(missing.value).split("; ")
        for line in lines:
            assert all(line.partition(": run")[0] in report.output for report in reports), line
            client = left if "of the source" in line else right
            client.create_acls(granted(line, users))
        assert cli("mirror", "validate", str(file)).exit_code == 0
        reader = allow("topic", "orders", "read", "User:reader")
        left.create_acls([reader])
        assert mirror(file).records == 10
        assert len(rows(right, "orders")) == 10
        assert reader in right.list_acls()
        assert allow("topic", "orders", "read", "User:mirror") in right.list_acls()
        right.delete_acls(AclFilter(principal="User:reader"))
        mirror(file)  # what was removed in the target stays removed
        assert reader not in right.list_acls()
        right.create_acls([reader])
        left.delete_acls(AclFilter(principal="User:reader"))
        denied = allow("topic", "orders", "read", "User:late")
        left.create_acls([denied])
        mirror(file)
        assert reader not in right.list_acls()
        assert denied in right.list_acls()


def test_a_right_that_is_withdrawn_stops_its_topic_by_name(
    tmp_path: Path, clusters: tuple[Broker, Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror_running, "REJECTED_SECONDS", 2.0)
    source, target = clusters
    with source.client() as left, target.client() as right:
        left.create_topic("b.orders", 1)
        for client, user in ((left, "User:mirror"), (right, "User:copier")):
            kinds = (
                ("topic", "*"),
                ("group", "*"),
                ("transactional_id", "*"),
                ("cluster", CLUSTER),
            )
            client.create_acls([allow(kind, name, "all", user) for kind, name in kinds])
        denied = replace(allow("topic", "b.orders", "write", "User:copier"), permission="deny")
        with running(secured_file(tmp_path, source, target)) as watch:
            wait_for(lambda: "b.orders" in {topic.name for topic in right.list_topics()})
            right.create_acls([denied])
            left.write_arrow("b.orders", pa.table({"value": [b"later"]}))
            wait_for(lambda: watch.stopped.keys() == {("b.orders", 0)}, 10.0)
            cause = str(watch.status.status.cause)
            assert "b.orders-0" in cause
            assert "TOPIC_AUTHORIZATION_FAILED" in cause
            right.delete_acls(AclFilter(permission="deny"))
            wait_for(lambda: len(rows(right, "b.orders")) == 1)
            wait_for(lambda: not watch.stopped)
