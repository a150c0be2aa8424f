"""Tasks read diskless topics by signed URLs from a real broker with ACLs, over a real S3 server."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.base.ids import TopicPartition
from penstock.base.system import SYSTEM_CLOCK
from penstock.client.admin_http import AdminSecurity
from penstock.client.security import admin_security
from penstock.objects import UrlSigner, signer_of
from penstock.records.extents import SignedRange
from penstock.spark.errors import ExtentsUnavailable
from penstock.spark.options import parse
from penstock.spark.reads import object_chunks
from penstock.spark.reads.chunks import Slice, Task
from penstock.spark.reads.extents import HttpExtents
from penstock.spark.reads.positions import from_json
from penstock.spark.reads.stream import PenstockStreamReader
from tests.broker.security.secured import PASSWORD, users_file
from tests.security.access import allow
from tests.security.certificates import keystore, truststore
from tests.spark.test_object_chunks import Diskless, Unasked, rows

if TYPE_CHECKING:
    from penstock.testing import Broker
    from tests.s3 import S3Server

HOUR_MS = 3_600_000


class Cluster:
    """The broker, its store, and who asks its admin interface."""

    def __init__(self, broker: Broker, s3: S3Server, url: str, directory: Path) -> None:
        self.broker = broker
        self.s3 = s3
        self.url = url
        self._directory = directory

    def security(self, user: str) -> AdminSecurity:
        return admin_security(
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "PLAIN",
                "sasl.username": user,
                "sasl.password": PASSWORD,
                "ssl.truststore.location": truststore(self._directory),
            }
        )

    @property
    def signer(self) -> UrlSigner:
        return signer_of(self.url, self.s3.options(), {})


class Signed(Diskless):
    """A diskless topic that alice may read, and that tasks have no credentials for."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster.broker)
        self.cluster = cluster
        self.client.create_acls([allow("read", "topic", self.name, "alice")])

    def source(self, user: str = "alice") -> HttpExtents:
        return HttpExtents(self.broker.admin_url, security=self.cluster.security(user))

    def slices(self) -> list[Slice]:
        return [item for task in self.tasks() for item in task.slices]

    def ended(self) -> list[Slice]:
        """The slices with URLs that held an hour ago."""
        past_ms = SYSTEM_CLOCK.now_ms() - HOUR_MS
        signing = self.cluster.signer.signing(now_ms=past_ms, lifetime_ms=60_000)

        def before(item: Slice) -> SignedRange:
            assert item.signed is not None
            key = item.extents[0].key.partition("@")[0]
            url = signing.url(key, item.signed.start, item.signed.size_bytes)
            return replace(item.signed, url=url, expires_ms=signing.expires_ms)

        return [replace(item, signed=before(item)) for item in self.slices()]


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def cluster(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    from penstock.testing import Broker

    directory, url = tmp_path_factory.mktemp("tls"), s3.fresh_url()
    with Broker(settings(s3, directory, url)) as broker:
        yield Cluster(broker, s3, url, directory)


def settings(s3: S3Server, directory: Path, url: str, **more: str) -> dict[str, object]:
    """A broker's, with ACLs and a store in S3."""
    options = directory / "options"
    options.write_text("".join(f"{name}={value}\n" for name, value in s3.options().items()))
    return {
        "authorizer.class.name": "acls",
        "super.users": "User:ANONYMOUS",
        "admin.security.protocol": "SSL",
        "listener.name.admin.ssl.keystore.location": keystore(directory),
        "sasl.users.file": users_file(directory, "alice", "bob"),
        "diskless.storage.url": url,
        "diskless.storage.options.file": str(options),
        "diskless.commit.interval.ms": 5,
        **{name.replace("_", "."): value for name, value in more.items()},
    }


@pytest.fixture
def topic(cluster: Cluster) -> Iterator[Signed]:
    made = Signed(cluster)
    for first in range(0, 1_200, 300):
        made.write(300, first=first)
    yield made
    made.client.close()


def test_tasks_read_without_credentials_and_no_broker_serves_them(topic: Signed) -> None:
    tasks = topic.tasks()
    assert all(item.signed is not None for task in tasks for item in task.slices)
    assert rows(topic.read(tasks, Unasked())) == topic.consumed()
    again = pickle.loads(pickle.dumps(tasks))
    assert rows(topic.read(again, Unasked())) == topic.consumed()
    assert "X-Amz" not in repr([task.slices for task in tasks]) + str(tasks)


def test_ranges_begin_and_end_with_the_batches_that_are_wanted(topic: Signed) -> None:
    at = TopicPartition(topic.name, 0)
    ends = topic.client.list_offsets(topic.name, "latest")
    with closing(topic.source()) as source:
        whole = source.extents(at, 0, ends[0])
        part = source.extents(at, 0, 1)
    assert len(part.signed) == 1
    assert part.size_bytes < whole.size_bytes
    (one,) = part.extents
    assert one.size_bytes == part.signed[one.key].size_bytes
    expected = [row for row in topic.consumed() if row[1] >= 17]
    assert rows(topic.read(topic.tasks(start=17), Unasked())) == expected


def test_windows_do_not_cut_ranges(topic: Signed, monkeypatch: pytest.MonkeyPatch) -> None:
    for window_bytes in (1, 9_000):
        monkeypatch.setattr(object_chunks, "WINDOW_BYTES", window_bytes)
        assert rows(topic.read(topic.tasks(), Unasked())) == topic.consumed()


@pytest.mark.parametrize(
    ("user", "said"),
    [("bob", "403 topic_authorization_failed"), ("mallory", "401 sasl_authentication_failed")],
)
def test_principals_without_read_access_get_no_urls(topic: Signed, user: str, said: str) -> None:
    with closing(topic.source(user)) as source, pytest.raises(ExtentsUnavailable, match=said):
        source.extents(TopicPartition(topic.name, 0), 0, 1)


def test_expired_urls_are_renewed(topic: Signed) -> None:
    ended = [Task(topic.ended())]
    assert rows(topic.read(ended, Unasked(), extents=topic.source)) == topic.consumed()
    mixed = [Task([*topic.ended()[:3], *topic.slices()[3:]])]
    assert rows(topic.read(mixed, Unasked(), extents=topic.source)) == topic.consumed()


def test_without_new_urls_the_broker_is_read(
    topic: Signed, caplog: pytest.LogCaptureFixture
) -> None:

    def away() -> HttpExtents:
        return HttpExtents("http://127.0.0.1:9", timeout_seconds=0.1)

    for extents in (lambda: None, away):
        caplog.clear()
        with caplog.at_level(logging.DEBUG):
            found = topic.read([Task(topic.ended())], extents=extents)
        assert rows(found) == topic.consumed()
        assert "reading from the broker: cannot read from the store" in caplog.text
        assert "status 403" in caplog.text
        assert "X-Amz" not in caplog.text
        with pytest.raises(AssertionError, match="the broker was asked"):
            topic.read([Task(topic.ended())], Unasked(), extents=extents)


def test_objects_that_went_meanwhile_are_fetched_from_the_broker(topic: Signed) -> None:
    topic.consumed()
    tasks = topic.tasks()
    prefix = topic.cluster.url.removeprefix("s3://")
    key = tasks[0].slices[0].extents[0].key.partition("@")[0]
    (topic.cluster.s3.directory / "objects" / prefix / key).unlink()
    assert rows(topic.read(tasks)) == topic.consumed()
    with pytest.raises(AssertionError, match="the broker was asked"):
        topic.read(tasks, Unasked())


@pytest.mark.parametrize(
    ("word", "named", "signed"),
    [("auto", True, True), ("true", True, True), ("false", False, False)],
)
def test_what_is_named_is_a_setting(
    s3: S3Server, tmp_path: Path, word: str, named: bool, signed: bool
) -> None:
    from penstock.testing import Broker

    url = s3.fresh_url()
    more = {"extents_direct_files_enable": word, "extents_url_lifetime_ms": "60000"}
    with Broker(settings(s3, tmp_path, url, **more)) as broker:
        topic = Signed(Cluster(broker, s3, url, tmp_path))
        topic.write(300)
        now_ms = SYSTEM_CLOCK.now_ms()
        slices = topic.slices()
        assert [bool(item.extents) for item in slices] == [named] * len(slices)
        assert [item.signed is not None for item in slices] == [named] * len(slices)
        assert all(0 < item.signed.expires_ms - now_ms < 65_000 for item in slices if item.signed)
        assert rows(topic.read(topic.tasks())) == topic.consumed()
        topic.client.close()


@pytest.mark.parametrize(("word", "named"), [("auto", False), ("true", True)])
def test_a_directory_has_no_urls(tmp_path: Path, word: str, named: bool) -> None:
    from penstock.testing import Broker

    acls = {"authorizer.class.name": "acls", "super.users": "User:ANONYMOUS"}
    with Broker({**acls, "extents.direct.files.enable": word}) as broker:
        topic = Diskless(broker)
        topic.write(300)
        slices = [item for task in topic.tasks() for item in task.slices]
        assert [(bool(item.extents), item.signed) for item in slices] == [(named, None)] * len(
            slices
        )
        assert rows(topic.read(topic.tasks())) == topic.consumed()
        topic.client.close()


def test_the_answer_as_it_is_sent(topic: Signed) -> None:
    """For readers of other kinds: a URL for each extent, and when all of them end."""
    from penstock.client.admin_http import AdminHttp

    path = f"/v1/topics/{topic.name}/partitions/0/extents"
    security = topic.cluster.security("alice")
    with AdminHttp(topic.broker.admin_url, security=security) as admin:
        answer = admin.ask("GET", path, timeout_seconds=30).body
    assert answer["extents"] == []
    assert answer["store"] == topic.cluster.url
    assert answer["urls_expire_ms"] > SYSTEM_CLOCK.now_ms()
    for extent in answer["objects"]:
        assert f"/{extent['key']}?" in extent["url"]
        assert "X-Amz-SignedHeaders=host%3Brange" in extent["url"]
    assert topic.cluster.s3.options()["aws_secret_access_key"] not in json.dumps(answer)


def test_byte_limits_of_streams_hold_where_nothing_is_named() -> None:
    from penstock.testing import Broker

    with Broker({"extents.direct.files.enable": "false"}) as broker:
        topic = Diskless(broker)
        topic.write(300)
        options = {
            "bootstrap": broker.bootstrap,
            "penstock.admin.url": broker.admin_url,
            "subscribe": topic.name,
            "startingOffsets": "earliest",
            "maxBytesPerTrigger": "25600",
        }
        reader = PenstockStreamReader(parse(options))
        end = from_json(reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit()))
        reader.stop()
        assert 90 <= sum(partition.offset for partition in end.partitions.values()) <= 100
        topic.client.close()
