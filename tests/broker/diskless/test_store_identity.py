"""Identity of the object store: real processes on PostgreSQL, S3 and directories."""

from __future__ import annotations

import asyncio
import re
import shutil
from asyncio import to_thread
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import asyncpg
import pytest

from penstock.base.pause import pause
from penstock.broker.admin.health import Health
from penstock.broker.server import BrokerServer
from penstock.diskless.errors import StoreMismatch
from penstock.diskless.identity import KEY
from penstock.diskless.topics import service as service_module
from penstock.objects import MemoryStore, StoreUnavailable, open_store
from tests.apps.test_serve import refused
from tests.broker.diskless.conftest import Cluster
from tests.broker.diskless.serving import SETTINGS, Serving
from tests.broker.diskless.test_records import _creation
from tests.broker.handlers.conftest import readiness_of
from tests.broker.wire_client import WireClient, batch
from tests.diskless.faults import FaultyStore
from tests.proxy import Fault, FaultProxy, first
from tests.s3 import S3Server

INCONSISTENT = 104
STORAGE_ERROR = 56
UUID_TEXT = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
Serve = Callable[..., Awaitable[Serving]]


async def health(broker: BrokerServer) -> Health:
    readiness = readiness_of(broker)
    try:
        return await readiness.look()
    finally:
        await readiness.stop()


@pytest.fixture
async def serve(postgres_url: str, tmp_path: Path) -> AsyncIterator[Serve]:
    """Start a numbered broker on the database, with the store of a URL."""
    async with AsyncExitStack() as stack:

        async def serve(number: int, url: str, **settings: str) -> Serving:
            directory = tmp_path / f"broker-{number}"
            directory.mkdir(exist_ok=True)
            broker = Serving(directory, settings_of(number, postgres_url, url, **settings))
            stack.push_async_callback(broker.kill)
            await broker.start()
            return broker

        yield serve


def settings_of(number: int, control: str, url: str, **settings: str) -> dict[str, str]:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return {
        **SETTINGS,
        "node.id": str(number),
        "control.url": control,
        "diskless.storage.url": url,
        "log.diskless.enable": "true",
        **named,
    }


async def not_started(directory: Path, settings: dict[str, str]) -> str:
    """Return the one line that a broker prints when it does not start."""
    words = [word for pair in settings.items() for word in ("-X", "=".join(pair))]
    words += ["-X", f"log.dirs={directory}", "-X", "listeners=PLAINTEXT://127.0.0.1:0"]
    status, said = await to_thread(refused, *words)
    assert status == 1, said
    assert said.startswith("penstock: ")
    assert said.count("\n") == 1, said
    return said


async def produced(broker: Serving, topic: str = "t", *, create: bool = False) -> WireClient:
    """Return a client that has written one record."""
    client = await broker.connect()
    if create:
        assert (await client.create(topic)).topics[0].error_code == 0
    assert (await client.produce(topic, batch(b"v"))).error_code == 0
    return client


async def high_watermark(url: str) -> int:
    connection = await asyncpg.connect(url)
    found: int = await connection.fetchval("SELECT max(high_watermark) FROM diskless_partitions")
    await connection.close()
    return found


async def registered(url: str) -> list[int]:
    connection = await asyncpg.connect(url)
    rows = await connection.fetch("SELECT broker_id FROM brokers WHERE registered ORDER BY 1")
    await connection.close()
    return [row[0] for row in rows]


@pytest.mark.parametrize("filled", [False, pytest.param(True, marks=pytest.mark.long)])
async def test_a_second_broker_with_another_url_does_not_start(
    serve: Serve, postgres_url: str, tmp_path: Path, filled: bool
) -> None:
    right, wrong = (tmp_path / "right").as_uri(), (tmp_path / "wrong").as_uri()
    first = await serve(1, right)
    if filled:
        await (await produced(first, create=True)).close()
    said = await not_started(tmp_path / "second", settings_of(2, postgres_url, wrong))
    assert right in said
    assert wrong in said
    assert UUID_TEXT.search(said)
    assert not (tmp_path / "wrong" / KEY).exists()
    assert await registered(postgres_url) == [1]
    second = await serve(2, right)
    await (await produced(second, create=not filled)).close()


@pytest.mark.long
async def test_both_identities_are_named_where_another_store_has_one(
    serve: Serve, postgres_url: str, tmp_path: Path
) -> None:
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    await (await serve(1, right.as_uri())).stop()
    wrong.mkdir()
    own = (right / KEY).read_text()
    other = UUID_TEXT.sub("0" * 8 + "-0000" * 3 + "-" + "1" * 12, own)
    (wrong / KEY).write_text(other)
    said = await not_started(tmp_path, settings_of(1, postgres_url, wrong.as_uri()))
    assert set(UUID_TEXT.findall(said)) == set(UUID_TEXT.findall(own + other))


@pytest.mark.long
async def test_another_prefix_of_the_bucket_is_another_store(
    serve: Serve, s3: S3Server, postgres_url: str, tmp_path: Path
) -> None:
    url, other = s3.fresh_url(), s3.fresh_url()
    options = ",".join(f"{name}={value}" for name, value in s3.options().items())
    first = await serve(1, url, diskless_storage_options=options)
    await (await produced(first, create=True)).close()
    settings = settings_of(2, postgres_url, other, diskless_storage_options=options)
    said = await not_started(tmp_path / "second", settings)
    assert f"{url} at {s3.endpoint}" in said
    assert f"{other} at {s3.endpoint}" in said
    assert "penstock-secret" not in said


@pytest.mark.long
async def test_an_emptied_bucket_is_refused_until_it_is_restored(
    serve: Serve, s3: S3Server, postgres_url: str, tmp_path: Path
) -> None:
    url = s3.fresh_url()
    options = ",".join(f"{name}={value}" for name, value in s3.options().items())
    first = await serve(1, url, diskless_storage_options=options)
    await (await produced(first, create=True)).close()
    await first.stop()
    store = open_store(url, options=s3.options())
    infos = [info async for info in store.list("")]
    kept = {info.key: await store.get(info.key, 0, info.size_bytes) for info in infos}
    await store.delete(list(kept))
    settings = settings_of(1, postgres_url, url, diskless_storage_options=options)
    said = await not_started(tmp_path, settings)
    assert "has no identity" in said
    assert url in said
    for key, content in kept.items():
        await store.put(key, [content])
    await store.close()
    again = await serve(1, url, diskless_storage_options=options)
    client = await again.connect()
    assert (await client.fetch("t", 0, max_wait=30_000, min_bytes=1)).records
    await client.close()


@pytest.mark.long
async def test_an_emptied_directory_of_one_broker_is_refused(tmp_path: Path) -> None:
    """SQLite, with the objects beside the log: no setting names either."""
    broker = Serving(tmp_path, {"admin.listener": "", "log.diskless.enable": "true"})
    await broker.start()
    await (await produced(broker, create=True)).close()
    await broker.stop()
    await broker.start()
    await broker.stop()
    shutil.rmtree(tmp_path / "objects")
    said = await not_started(tmp_path, {"admin.listener": ""})
    assert (tmp_path / "objects").as_uri() in said


@pytest.mark.long
async def test_a_used_store_is_refused_to_a_new_database(serve: Serve, tmp_path: Path) -> None:
    objects = tmp_path / "objects"
    await (await serve(1, objects.as_uri())).stop()
    before = (objects / KEY).read_text()
    said = await not_started(
        tmp_path / "new", {"admin.listener": "", "diskless.storage.url": objects.as_uri()}
    )
    assert "restore a copy of it" in said
    assert UUID_TEXT.findall(before)[0] in said
    assert (objects / KEY).read_text() == before


@pytest.mark.long
async def test_brokers_that_start_at_once_on_nothing_agree(serve: Serve, tmp_path: Path) -> None:
    url = (tmp_path / "objects").as_uri()
    brokers = await asyncio.gather(*(serve(number, url) for number in (1, 2, 3)))
    await (await produced(brokers[0], create=True)).close()
    for broker in brokers:
        client = await broker.connect()
        assert await client.find("t") == 0, "another broker has made it"
        found = await client.fetch("t", 0, max_wait=30_000, min_bytes=1)
        assert (found.error_code, bool(found.records)) == (0, True)
        await client.close()


@pytest.mark.long
async def test_an_installation_from_before_opens_with_its_own_store_alone(
    serve: Serve, postgres_url: str, tmp_path: Path
) -> None:
    objects = tmp_path / "objects"
    broker = await serve(1, objects.as_uri())
    await (await produced(broker, create=True)).close()
    await broker.stop()
    (objects / KEY).unlink()
    connection = await asyncpg.connect(postgres_url)
    await connection.execute("DELETE FROM diskless_store")  # the table of before is empty
    await connection.close()

    elsewhere = (tmp_path / "elsewhere").as_uri()
    said = await not_started(tmp_path / "second", settings_of(2, postgres_url, elsewhere))
    assert "none of the objects that cluster" in said
    again = await serve(1, objects.as_uri())
    client = await again.connect()
    assert (await client.fetch("t", 0, max_wait=30_000, min_bytes=1)).records
    await client.close()
    assert (objects / KEY).exists()


async def test_a_store_that_is_replaced_behind_its_address_gets_nothing(
    serve: Serve, s3: S3Server, postgres_url: str
) -> None:
    """The first request fails, as when a server is replaced, which has other content."""
    url = s3.fresh_url()
    async with FaultProxy("127.0.0.1", s3.port) as proxy:
        through = s3.options(proxy.endpoint)
        options = ",".join(f"{name}={value}" for name, value in through.items())
        # what looks by itself every so often does not in this test
        rarely = {"diskless_sweep_interval_ms": "3600000", "diskless_mark_interval_ms": "3600000"}
        broker = await serve(1, url, diskless_storage_options=options, **rarely)
        client = await produced(broker, create=True)
        gets = proxy.count("GET", containing=KEY)
        for _ in range(3):
            assert (await client.produce("t", batch(b"v"))).error_code == 0
        assert proxy.count("GET", containing=KEY) == gets

        store = open_store(url, options=s3.options())
        infos = [info async for info in store.list("")]
        kept = {info.key: await store.get(info.key, 0, info.size_bytes) for info in infos}
        await store.delete(list(kept))
        proxy.plan = first(1, Fault(reset=True), method="PUT")
        refused = await client.produce("t", batch(b"lost"))
        assert refused.error_code == INCONSISTENT
        assert "has no identity" in refused.error_message
        assert [info.key async for info in store.list("wal/")] == []
        assert await high_watermark(postgres_url) == 4

        for key, content in kept.items():
            await store.put(key, [content])
        assert (await client.produce("t", batch(b"v"))).base_offset == 4
        await store.close()
        await client.close()


# In one process


async def taken_away(store: MemoryStore) -> dict[str, bytes]:
    """Empty a store; return its content."""
    infos = [info async for info in store.list("")]
    kept = {info.key: bytes(await store.get(info.key, 0, info.size_bytes)) for info in infos}
    await store.delete(list(kept))
    return kept


async def put_back(store: MemoryStore, kept: dict[str, bytes]) -> None:
    for key, content in kept.items():
        await store.put(key, [content])


async def test_a_broker_that_is_refused_was_never_registered(cluster: Cluster) -> None:
    store = cluster.objects = MemoryStore()
    client = await cluster.connect(await cluster.start())
    await client.call("CreateTopics", 7, _creation("t"))
    await client.produce("t", batch(b"v"))
    await taken_away(store)
    version = (await cluster.control.image()).version
    with pytest.raises(StoreMismatch, match="has no identity"):
        await cluster.start()
    image = await cluster.control.image()
    assert (image.version, [broker.broker_id for broker in image.brokers]) == (version, [1])


async def test_a_running_broker_is_not_ready_while_its_store_is_another(cluster: Cluster) -> None:
    store = cluster.objects = MemoryStore()
    broker = await cluster.start(diskless_mark_interval_ms=10)
    client = await cluster.connect(broker)
    service = broker.diskless
    assert service is not None
    await client.call("CreateTopics", 7, _creation("t"))
    assert (await client.produce("t", batch(b"v"))).error_code == 0
    assert (await health(broker)).good
    kept = await taken_away(store)
    async with asyncio.timeout(60):
        while service.mismatch is None:
            await asyncio.sleep(0.005)
    causes = {check.name: check.cause for check in (await health(broker)).checks if check.cause}
    assert set(causes) == {"diskless", "object store"}
    assert all("has no identity" in cause for cause in causes.values())
    assert readiness_of(broker).alive().good
    refused = await client.produce("t", batch(b"lost"))
    assert refused.error_code == INCONSISTENT
    await put_back(store, kept)
    async with asyncio.timeout(60):
        while service.mismatch is not None:
            await asyncio.sleep(0.005)
    assert (await health(broker)).good
    assert (await client.produce("t", batch(b"v"))).base_offset == 1


async def test_a_store_that_was_away_at_the_start_is_looked_at_before_the_first_write(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = asyncio.Event()

    async def paused(seconds: float) -> None:
        if seconds == service_module.ACTIVATION_SECONDS:
            await go_on.wait()
        await pause(min(seconds, 0.01))

    first_client = await cluster.connect(await cluster.start())
    await first_client.call("CreateTopics", 7, _creation("t"))
    assert (await first_client.produce("t", batch(b"v"))).error_code == 0
    right = cluster.objects

    class Away(MemoryStore):
        async def get(self, key: str, start: int, size_bytes: int) -> memoryview:
            raise StoreUnavailable("the bucket does not answer")

    turned = cluster.objects = FaultyStore(Away())
    monkeypatch.setattr(service_module, "pause", paused)
    broker = await cluster.start()
    client = await cluster.connect(broker)
    service = broker.diskless
    assert service is not None
    assert "the bucket does not answer" in service.failure
    assert service.mismatch is None
    refused = await client.produce("t", batch(b"lost"))
    assert (refused.error_code, refused.base_offset) == (STORAGE_ERROR, -1)

    wrong = turned.inner = MemoryStore()
    go_on.set()
    async with asyncio.timeout(60):
        while service.mismatch is None:
            await asyncio.sleep(0.005)
    assert not (await health(broker)).good
    assert (await client.produce("t", batch(b"lost"))).error_code == INCONSISTENT
    assert len(wrong) == 0

    turned.inner = right
    async with asyncio.timeout(60):
        while service.failure:
            await asyncio.sleep(0.005)
    assert (await client.produce("t", batch(b"v"))).base_offset == 1
