"""The admin interface of a real broker with TLS, users and ACLs: what clients get from it."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.base.ids import TopicPartition
from penstock.client.admin_http import AdminHttp, AdminSecurity, Answer, Body
from penstock.client.errors import AdminUnavailable, InvalidArgument
from penstock.client.security import admin_security
from penstock.spark.reads.extents import HttpExtents
from penstock.testing import Broker
from tests.broker.batch_commits.sink_client import Part, encode_blob
from tests.broker.security.secured import PASSWORD, users_file
from tests.security.access import allow
from tests.security.certificates import keystore, truststore

SECONDS = 30.0


class Guarded:
    """The broker, and who asks its admin interface."""

    def __init__(self, broker: Broker, directory: Path) -> None:
        self.broker = broker
        self._directory = directory

    def security(self, user: str = "alice", password: str = PASSWORD) -> AdminSecurity:
        return admin_security(
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "PLAIN",
                "sasl.username": user,
                "sasl.password": password,
                "ssl.truststore.location": truststore(self._directory),
            }
        )

    def admin(self, security: AdminSecurity | None = None) -> AdminHttp:
        return AdminHttp(self.broker.admin_url, security=security or self.security())

    def ask(self, method: str, path: str, body: bytes | None = None, **who: str) -> Answer:
        sent = None if body is None else Body(pieces=[body], size_bytes=len(body))
        with self.admin(self.security(**who)) as admin:
            return admin.ask(method, path, sent, timeout_seconds=SECONDS)

    def allow(self, operation: str, resource_type: str, name: str, user: str = "alice") -> None:
        with self.broker.client() as client:
            client.create_acls([allow(operation, resource_type, name, user)])


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    directory = tmp_path_factory.mktemp("tls")
    settings = {
        "authorizer.class.name": "acls",
        "super.users": "User:ANONYMOUS",
        "admin.security.protocol": "SSL",
        "listener.name.admin.ssl.keystore.location": keystore(directory),
        "listener.name.admin.ssl.truststore.location": truststore(directory),
        "listener.name.admin.ssl.client.auth": "requested",
        "sasl.users.file": users_file(directory, "alice", "bob"),
        "audit.log.file": str(directory / "audit.log"),
    }
    with Broker(settings) as broker:
        broker.create_topic("orders")
        broker.create_topic("secrets")
        with broker.client() as client:
            for topic in ("orders", "secrets"):
                client.write_arrow(topic, pa.table({"value": [b"one", b"two"]}))
        guarded = Guarded(broker, directory)
        guarded.allow("read", "topic", "orders")
        guarded.allow("write", "topic", "orders")
        guarded.allow("write", "transactional_id", "q")
        yield guarded


def test_the_certificate_is_verified(guarded: Guarded) -> None:
    with pytest.raises(AdminUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        guarded.admin(AdminSecurity(tls=ssl.create_default_context())).ask(
            "GET", "/livez", timeout_seconds=SECONDS
        )
    with guarded.admin(AdminSecurity(tls=guarded.security().tls)) as admin:
        assert admin.ask("GET", "/livez", timeout_seconds=SECONDS).status == 200


def test_clients_without_tls_are_disconnected(guarded: Guarded) -> None:
    url = guarded.broker.admin_url.replace("https://", "http://")
    with pytest.raises(AdminUnavailable):
        AdminHttp(url).ask("GET", "/livez", timeout_seconds=SECONDS)


def test_credentials_do_not_leave_this_machine_without_tls(guarded: Guarded) -> None:
    with pytest.raises(InvalidArgument, match="credentials are only sent to https://"):
        AdminHttp("http://broker.example:9644", security=guarded.security())
    with pytest.raises(InvalidArgument, match="must not contain a user or a password"):
        AdminHttp(f"https://alice:{PASSWORD}@broker.example:9644")
    assert PASSWORD not in repr(guarded.security())


def test_a_user_reads_the_topic_that_it_may(guarded: Guarded) -> None:
    assert guarded.ask("GET", "/v1/topics/orders").status == 200
    assert guarded.ask("GET", "/v1/topics/secrets").status == 403
    assert guarded.ask("GET", "/v1/topics").status == 403
    wrong = guarded.ask("GET", "/v1/topics/orders", password="wrong")
    assert (wrong.status, wrong.error) == (401, "sasl_authentication_failed")
    assert guarded.ask("GET", "/v1/topics/orders", user="bob").status == 403


def test_a_certificate_has_permissions_too(guarded: Guarded, tmp_path: Path) -> None:
    from penstock.security.tls import TlsFiles, TlsOptions, client_context
    from tests.security.certificates import now_ms

    files = TlsFiles(
        keystore=keystore(guarded._directory, "carol", hosts=()),
        truststore=truststore(guarded._directory),
    )
    context = client_context(files, TlsOptions(), check_host=True, now_ms=now_ms())
    with guarded.admin(AdminSecurity(tls=context)) as admin:
        answer = admin.ask("GET", "/v1/topics/orders", timeout_seconds=SECONDS)
    assert answer.status == 403
    assert "carol" in answer.message


def test_extents_are_for_readers_and_name_no_files(guarded: Guarded) -> None:
    path = "/v1/topics/{}/partitions/0/extents"
    found = guarded.ask("GET", path.format("orders"))
    assert (found.status, found.body["extents"], found.body["high_watermark"]) == (200, [], 2)
    assert guarded.ask("GET", path.format("secrets")).status == 403
    assert guarded.ask("GET", path.format("orders"), user="bob").status == 403
    at = TopicPartition("orders", 0)
    source = HttpExtents(guarded.broker.admin_url, security=guarded.security())
    assert source.extents(at, 0, 2).extents == ()
    source.close()


def test_a_commit_needs_each_topic_by_its_name_and_by_its_id(guarded: Guarded) -> None:
    with guarded.broker.client() as client:
        topics = client.metadata(["orders", "secrets"]).topics
    ids = {name: str(topic.topic_id) for name, topic in topics.items()}

    def commit(batch: int, name: str, topic_id: str, query: str = "q") -> Answer:
        blob, entry = encode_blob(
            f"blob-{batch}", [Part(name, 0, ["a"])], {name: topic_id}, records_per_batch=1
        )
        assert guarded.ask("PUT", f"/v1/staging/blob-{batch}", blob).status == 201
        body = json.dumps({"owner": "one", "blobs": [entry]}).encode()
        return guarded.ask("POST", f"/v1/sinks/{query}/commits/{batch}", body)

    assert commit(1, "orders", ids["orders"]).status == 200
    for number, (name, topic_id) in enumerate(
        [("secrets", ids["secrets"]), ("orders", ids["secrets"]), ("secrets", ids["orders"])], 2
    ):
        refused = commit(number, name, topic_id)
        assert (refused.status, refused.error) == (403, "topic_authorization_failed")
        assert refused.message == "User:alice may not write topic secrets"
    other = commit(9, "orders", ids["orders"], query="another")
    assert (other.status, other.error) == (403, "transactional_id_authorization_failed")
    with guarded.broker.client() as client:
        assert client.list_offsets("secrets", "latest") == {0: 2}


def test_groups_queues_and_sinks_name_the_topics_that_the_asker_may_describe(
    guarded: Guarded,
) -> None:
    both = ["orders", "secrets"]
    root = AdminSecurity(tls=guarded.security().tls)

    def asked(who: AdminSecurity, method: str, path: str, body: bytes = b"") -> Any:
        sent = Body(pieces=[body], size_bytes=len(body)) if body else None
        with guarded.admin(who) as admin:
            answer = admin.ask(method, path, sent, timeout_seconds=SECONDS)
        assert answer.status in (200, 201), answer
        return json.loads(answer.content)

    with guarded.broker.client() as client:
        ids = {name: str(topic.topic_id) for name, topic in client.metadata(both).topics.items()}
        client.commit_offsets("billing", {(name, 0): 1 for name in both})
        client.alter_configs("group", "work", {
            "share.auto.offset.reset": "earliest",
            "errors.deadletterqueue.topic.name": "dlq.secrets",
        })  # fmt: skip
        with client.queue("work", both) as queue:
            for _ in range(100):
                queue.take()
                if len(asked(root, "GET", "/v1/queues/work")["partitions"]) == len(both):
                    break
    parts = [Part(name, 0, ["a"]) for name in both]
    blob, entry = encode_blob("both", parts, ids, records_per_batch=1)
    body = json.dumps({"owner": "one", "blobs": [entry]}).encode()
    asked(root, "PUT", "/v1/staging/both", blob)
    asked(root, "POST", "/v1/sinks/both/commits/1", body)
    for kind, name in (("group", "billing"), ("group", "work"), ("transactional_id", "both")):
        guarded.allow("describe", kind, name)
    views = {"/v1/groups/billing": "offsets", "/v1/queues/work": "partitions"}
    for path, rows in {**views, "/v1/sinks/both": "partitions"}.items():
        found = asked(root, "GET", path)
        assert sorted(row["topic"] for row in found[rows]) == both
        shown = asked(guarded.security(), "GET", path)
        assert [row["topic"] for row in shown[rows]] == ["orders"]
        assert "secrets" not in json.dumps(shown)
        assert "secrets" in json.dumps(found)
    group = asked(guarded.security(), "GET", "/v1/groups/billing")
    assert group["lag_records"] == group["offsets"][0]["lag_records"]


def test_a_principal_without_write_access_stages_nothing(guarded: Guarded) -> None:
    assert guarded.ask("PUT", "/v1/staging/x", b"x" * 100, user="bob").status == 403
    assert guarded.ask("GET", "/v1/staging", user="bob").status == 403


def test_a_new_certificate_is_taken_into_use(guarded: Guarded) -> None:
    server = guarded.broker.server
    assert server is not None
    contexts = server.security_service.tls_of("ADMIN")
    assert contexts is not None
    before = contexts.current.certificate.serial
    keystore(guarded._directory)  # a new one, in the place of the former
    contexts.reload(look_closely=True)
    assert contexts.current.certificate.serial != before
    assert guarded.ask("GET", "/v1/topics/orders").status == 200
