"""Batches as Kafka transactions: all or none is read, and each is appended once, through kills."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.batch_commits.roll_forward import RollForward
from penstock.broker.batch_commits.service import SinkService
from penstock.broker.batch_commits.transaction import SinkTransaction, transactional_id_of
from penstock.client import Client
from penstock.testing import Broker
from tests.broker.batch_commits.sink_client import Part, SinkClient, client_of

pytestmark = pytest.mark.timeout(300)

TOPICS = ("first", "second")
PARTITIONS = 2
QUERY = "app/q"
POLLS_MAX = 20_000
LOOKS_MAX = 500


def parts(batch: int, count: int = 30) -> list[Part]:
    return [
        Part(topic, p, [f"{batch}/{n}" for n in range(count)])
        for topic in TOPICS
        for p in range(PARTITIONS)
    ]


class Sink:
    """A broker with two topics, and a driver's calls."""

    def __init__(self, broker: Broker, *, diskless: bool) -> None:
        self.broker = broker
        self.topics = Client(broker.bootstrap)
        for name in TOPICS:
            configs = {"diskless.enable": str(diskless and name == TOPICS[1]).lower()}
            self.topics.create_topic(name, partitions=PARTITIONS, configs=configs)
        self.driver = client_of(broker, *TOPICS)

    def post(self, batch: int, *, transactional: bool = True, **more: Any) -> Any:
        blob = self.driver.stage(f"blob-{batch}-{len(self.staged)}", parts(batch), **more)
        return self.driver.post(QUERY, batch, [blob], transactional=transactional)

    @property
    def staged(self) -> list[Path]:
        return list((self.broker.directory / "staging").iterdir())

    def batches(
        self, isolation: Any = "read_committed", topics: Sequence[str] = TOPICS
    ) -> dict[tuple[str, int], list[str]]:
        """Read every value of each partition as consumers do."""
        return {
            (topic, p): [
                value.decode()
                for value in self.topics.read_arrow(
                    topic, partitions=[p], columns=("value",), isolation=isolation
                )["value"].to_pylist()
            ]
            for topic in topics
            for p in range(PARTITIONS)
        }

    def expect(self, *batches: int, topics: Sequence[str] = TOPICS) -> None:
        """Wait for exactly these batches in every partition, in order and once.

        Markers follow the response to a commit.
        """
        values = tuple([f"{batch}/{n}" for batch in batches for n in range(30)])
        for _ in range(LOOKS_MAX):
            found = set(map(tuple, self.batches(topics=topics).values()))
            if found == {values}:
                break
        assert found == {values}

    def until_done(self) -> None:
        assert any(self.driver.sink(QUERY)["state"] == "done" for _ in range(POLLS_MAX))


@pytest.fixture(params=[False, True], ids=["local", "one of them diskless"])
def sink(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Sink]:
    settings = {"diskless.storage.url": (tmp_path / "store").as_uri()}
    with Broker(settings=settings) as broker:
        made = Sink(broker, diskless=request.param)
        yield made
        made.topics.close()


def test_batches_are_there_once_with_and_without_a_transaction(sink: Sink) -> None:
    for batch in range(4):
        answer = sink.post(batch, transactional=batch != 2)
        assert answer.status == 200, answer
        assert answer.body["outcome"] == "appended"
        assert answer.body["records"] == 30 * PARTITIONS * len(TOPICS)
        assert sink.post(batch).body["outcome"] == "replayed"
    sink.expect(0, 1, 2, 3)
    assert len(sink.staged) == 1, "nothing is left but the directory's marker"
    offsets = sink.topics.committed(transactional_id_of(QUERY))
    assert {key: len({committed.offset}) for key, committed in offsets.items()} == {
        (topic, 0): 1 for topic in TOPICS
    }


def test_nothing_is_seen_before_all_of_it_counts(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, go_on = threading.Event(), threading.Event()
    commit = SinkTransaction.commit

    async def held(self: SinkTransaction, topics: Any) -> None:
        written.set()
        while not go_on.is_set():
            await asyncio.sleep(0.001)
        await commit(self, topics)

    monkeypatch.setattr(SinkTransaction, "commit", held)
    posted = threading.Thread(target=sink.post, args=(0,))
    posted.start()
    assert written.wait(60)
    assert set(map(len, sink.batches("read_uncommitted").values())) == {30}
    assert set(map(len, sink.batches().values())) == {0}
    go_on.set()
    posted.join()
    sink.expect(0)


STEPS: tuple[tuple[type, str], ...] = (
    (SinkTransaction, "begin"),
    (SinkTransaction, "is_committed"),
    (RollForward, "_append_all"),
    (RollForward, "_append_replicated"),
    (SinkTransaction, "commit"),
    (SinkService, "_save"),
)


class Dying:
    """Ends the attempt before or after one step, as the end of the process would."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.step, self.after, self.times = "", False, 0
        for owner, name in STEPS:
            monkeypatch.setattr(owner, name, self._wrapped(name, getattr(owner, name)))

    def _wrapped(self, name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        def now(*arguments: Any) -> Any:
            if self._dies(name):
                if self.after:
                    plain(*arguments)
                raise OSError("killed")
            return plain(*arguments)

        async def later(*arguments: Any) -> Any:
            if self._dies(name):
                if self.after:
                    await plain(*arguments)
                raise OSError("killed")
            return await plain(*arguments)

        return later if inspect.iscoroutinefunction(plain) else now

    def _dies(self, name: str) -> bool:
        if name != self.step:
            return False
        self.times += 1
        return self.times == (2 if name == "_save" else 1)  # the first row is the intent


def test_killed_at_every_step(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    async def left_open(self: SinkTransaction) -> None:
        """Leave the transaction open, as a killed process does."""

    monkeypatch.setattr(SinkTransaction, "abort", left_open)
    dying = Dying(monkeypatch)
    cases = [(name, after) for _, name in STEPS for after in (False, True)]
    for batch, (dying.step, dying.after) in enumerate(cases):
        dying.times = 0
        answer = sink.post(batch)
        assert answer.status == 503, (dying.step, answer)
        sink.until_done()
        assert sink.post(batch).body["outcome"] == "replayed"
        sink.expect(*range(batch + 1))


def test_a_timed_out_transaction_is_repeated(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker was paused, and the coordinator aborted its transaction."""
    commit, fenced = SinkTransaction.commit, threading.Event()

    async def late(self: SinkTransaction, topics: Any) -> None:
        if not fenced.is_set():
            fenced.set()
            other = sink.topics.transactional(self.transactional_id)
            await asyncio.to_thread(other.begin)
        await commit(self, topics)

    monkeypatch.setattr(SinkTransaction, "commit", late)
    assert sink.post(0).status == 503
    sink.until_done()
    sink.expect(0)


def test_a_restarted_application_is_not_taken_for_its_predecessor(sink: Sink) -> None:
    """The log still has its offsets, with the same batch numbers."""
    assert sink.post(0).status == 200
    assert sink.driver.request("DELETE", "/v1/sinks/app%2Fq").status == 200
    assert sink.post(0).body["outcome"] == "appended"
    sink.expect(0, 0)


@pytest.mark.long
def test_a_topic_that_goes_after_the_intent_is_left_out(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, deleted = SinkTransaction.begin, threading.Event()

    async def without(self: SinkTransaction) -> None:
        if not deleted.is_set():
            deleted.set()
            await asyncio.to_thread(sink.topics.delete_topic, "first")
        await begin(self)

    monkeypatch.setattr(SinkTransaction, "begin", without)
    sink.post(0)
    sink.until_done()
    sink.expect(0, topics=["second"])


def test_diskless_topics(sink: Sink) -> None:
    """Alone they are committed at one instant; with other topics by the transaction."""
    sink.topics.create_topic("remote", configs={"diskless.enable": "true"})
    driver = client_of(sink.broker, "first", "remote")
    remote, local = Part("remote", 0, ["a", "b"]), Part("first", 0, ["c"])
    alone, both = driver.stage("alone", [remote]), driver.stage("both", [remote, local])
    assert driver.post(QUERY, 0, [alone], transactional=True).body["records"] == 2
    assert sink.topics.committed(transactional_id_of(QUERY)) == {}
    assert driver.post(QUERY, 1, [both], transactional=True).body["records"] == 3
    assert set(sink.topics.committed(transactional_id_of(QUERY))) == {("first", 0), ("remote", 0)}
    for _ in range(LOOKS_MAX):
        seen = sink.topics.read_arrow("remote", columns=("value",), isolation="read_committed")
        if seen.num_rows == 4:
            break
    assert seen["value"].to_pylist() == [b"a", b"b"] * 2


@pytest.mark.long
def test_a_broker_that_is_killed_in_the_middle(tmp_path: Path) -> None:
    """kill -9 at any time, while a reader of committed records sees whole batches only."""
    count, moments = 2_000, 8
    interrupted = 0
    with Broker(process=True) as broker:
        broker.create_topic("t", PARTITIONS)
        driver = client_of(broker, "t")
        for batch in range(moments):
            values = [f"{batch}/{n}/{'x' * 500}" for n in range(count)]
            blob = driver.stage(
                f"blob-{batch}", [Part("t", p, values) for p in range(PARTITIONS)],
                records_per_batch=20,
            )  # fmt: skip
            post = threading.Thread(target=_post, args=(driver, batch, blob))
            post.start()
            wanted = written(broker) + batch * count * PARTITIONS // moments
            for _ in range(POLLS_MAX):
                if (driver.sink(QUERY) or {}).get("batch") == batch and written(broker) >= wanted:
                    break
            broker.kill()
            post.join()
            broker.start()
            interrupted += (driver.sink(QUERY) or {}).get("state") == "intent"
            if (driver.sink(QUERY) or {}).get("batch") == batch:
                assert any(driver.sink(QUERY)["state"] == "done" for _ in range(POLLS_MAX))
            _post(driver, batch, blob)
            with Client(broker.bootstrap) as client:
                for p in range(PARTITIONS):
                    seen = client.read_arrow(
                        "t", partitions=[p], columns=("value",), isolation="read_committed"
                    )
                    numbers = [value.decode()[:-501] for value in seen["value"].to_pylist()]
                    assert numbers == [f"{b}/{n}" for b in range(batch + 1) for n in range(count)]
    assert interrupted, "no kill came in the middle of a commit"


def written(broker: Broker) -> int:
    with Client(broker.bootstrap) as client:
        return sum(client.list_offsets("t", "latest").values())


def _post(driver: SinkClient, batch: int, blob: Any) -> None:
    try:
        driver.post(QUERY, batch, [blob], transactional=True)
    except (OSError, ValueError):
        return
