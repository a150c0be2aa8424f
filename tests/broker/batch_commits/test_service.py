"""Commits on a real store: once and in order, through failures."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.broker.batch_commits import pieces as pieces_module
from penstock.broker.batch_commits import roll_forward as roll_forward_module
from penstock.broker.batch_commits import service as service_module
from penstock.broker.batch_commits.manifest import (
    CommitUnderWay,
    InconsistentTopicId,
    InvalidCommit,
    NotFinished,
    SinkOwnerChanged,
    UnknownSink,
)
from penstock.broker.batch_commits.roll_forward import RollForward
from penstock.broker.net.errors import (
    InternalTopic,
    NotEnoughReplicas,
    UnknownTopicOrPartition,
)
from penstock.control import SinkCommit
from penstock.control.values.errors import ControlUnavailable
from penstock.control.values.topics import SEQUENCES
from penstock.storage import StorageSettings
from tests.broker.batch_commits.conftest import House
from tests.broker.batch_commits.sink_client import Part
from tests.broker.registered import Registered, framed, give
from tests.faulty_files import FaultyFiles


def values(batch: int, partition: int = 0, count: int = 100) -> list[str]:
    return [f"{batch}/{partition}/{n}" for n in range(count)]


def staged(house: House, batch: int, partitions: int = 3, count: int = 100) -> list[dict[str, Any]]:
    """Stage two blobs, each with half of every partition."""
    half = count // 2
    return [
        house.stage(
            f"b{batch}-{number}",
            [Part("t", p, values(batch, p, count)[cut]) for p in range(partitions)],
        )
        for number, cut in enumerate((slice(0, half), slice(half, None)))
    ]


def whole(batches: int, partition: int = 0, count: int = 100) -> list[str]:
    return [value for batch in range(batches) for value in values(batch, partition, count)]


async def row_of(house: House, query: str = "q") -> SinkCommit:
    row = await house.control.sink_commit(query)
    assert row is not None
    return row


async def test_batches_are_appended_once(house: House) -> None:
    await house.topic("t", 3)
    for batch in range(3):
        blobs = staged(house, batch)
        done = await house.post(batch, blobs)
        assert (done.outcome, done.records) == ("appended", 300)
        assert [(target.base_offset, target.next_offset) for target in done.targets] == [
            (100 * batch, 100 * batch + 100)
        ] * 3
        assert house.staged() == []
        again = await house.post(batch, blobs)
        assert (again.outcome, again.records) == ("replayed", 300)
    assert (await house.post(1, staged(house, 1))).outcome == "replayed"
    assert house.staged() == []  # the blobs of an attempt that came late are removed too
    for partition in range(3):
        assert house.values("t", partition) == whole(3, partition)
    row = await row_of(house)
    assert (row.state, row.batch_id, row.manifest, row.owner) == ("done", 2, b"", "o")
    assert len({target.producer_id for target in row.targets}) == 3
    assert [target.next_sequence for target in row.targets] == [300] * 3
    assert house.store.kept_producers == set()


async def test_a_batch_without_rows_is_recorded(house: House) -> None:
    assert (await house.post(7, [])).outcome == "appended"
    assert (await house.post(7, [])).outcome == "replayed"
    assert (await row_of(house)).state == "done"


async def test_queries_do_not_see_each_other(house: House) -> None:
    await house.topic("t")
    for query in ("a", "b/c"):
        blob = house.stage(f"x-{query[0]}", [Part("t", 0, values(0))])
        assert (await house.post(0, [blob], query=query)).outcome == "appended"
    assert house.values("t") == values(0) * 2


async def test_two_drivers_post_one_batch_at_once(house: House) -> None:
    await house.topic("t", 3)
    one = [house.stage(f"one-{p}", [Part("t", p, values(0, p))]) for p in range(3)]
    two = [house.stage(f"two-{p}", [Part("t", p, values(0, p))]) for p in range(3)]
    answers = await asyncio.gather(*(house.post(0, blobs) for blobs in (one, two, one, two)))
    assert sorted(answer.outcome for answer in answers) == ["appended"] + ["replayed"] * 3
    assert [house.values("t", p) for p in range(3)] == [values(0, p) for p in range(3)]
    assert house.staged() == []


async def test_a_post_continues_without_its_client(house: House) -> None:
    await house.topic("t", 3)
    begun = asyncio.Event()
    house.control.on_save = lambda record: begun.set()
    post = asyncio.create_task(house.post(0, staged(house, 0)))
    await begun.wait()
    assert not post.done()
    post.cancel()
    with pytest.raises(asyncio.CancelledError):
        await post
    await house.settled()
    assert house.values("t", 1) == values(0, 1)


async def test_another_owner_is_refused(house: House) -> None:
    await house.topic("t")
    await house.post(3, [house.stage("a", [Part("t", 0, values(0))])], owner="first")
    for batch in (2, 3, 4):
        with pytest.raises(SinkOwnerChanged, match=r"owner 'first'.*DELETE /v1/sinks/q$"):
            await house.post(batch, [house.stage("b", [Part("t", 0, ["x"])])], owner="second")
    assert (await house.post(4, [], owner=None)).outcome == "appended"
    assert (await row_of(house)).owner == "first"
    assert house.values("t") == values(0)
    assert (await house.sinks.forget("q")).batch_id == 4
    with pytest.raises(UnknownSink):
        await house.sinks.forget("q")
    blob = house.stage("b", [Part("t", 0, ["x"])])
    assert (await house.post(0, [blob], owner="second")).outcome == "appended"
    assert house.values("t") == [*values(0), "x"]


async def test_more_batches_than_a_partition_remembers_are_skipped_exactly(house: House) -> None:
    """Fail after each of many single-batch pieces: more than five batches precede a retry."""
    await house.topic("t", 1, {"segment.bytes": "4096"})
    blob = house.stage("b", [Part("t", 0, [f"{n}-{'x' * 200}" for n in range(200)])])
    house.control.faults = ["", "before"]
    with pytest.raises(NotFinished, match="away"):
        await house.post(0, [blob])
    await house.settled()
    assert house.values("t") == [f"{n}-{'x' * 200}" for n in range(200)]


@pytest.mark.parametrize("fault", ["before", "after"])
@pytest.mark.parametrize("place", [0, 1])
async def test_the_control_plane_fails(house: House, fault: str, place: int) -> None:
    await house.topic("t", 3)
    house.control.faults = [""] * place + [fault]
    with pytest.raises(NotFinished, match="away"):
        await house.post(0, staged(house, 0))
    assert set(house.staged()) <= {"b0-0", "b0-1"}
    await house.settled()
    if place or fault == "after":
        assert (await row_of(house)).state == "done"
        assert (await house.post(0, [])).outcome == "replayed"
    else:
        assert await house.control.sink_commit("q") is None
        assert house.staged() == ["b0-0", "b0-1"]
        assert (await house.post(0, staged(house, 0))).outcome == "appended"
    assert [house.values("t", p) for p in range(3)] == [values(0, p) for p in range(3)]
    assert house.store.kept_producers == set()


@pytest.mark.parametrize("room", [0, 3_000, 200_000, 700_000])
async def test_a_full_disk_in_the_middle(house: House, room: int) -> None:
    await house.topic("t", 3)
    big = [f"{n}-{'x' * 4000}" for n in range(100)]
    blobs = [house.stage(f"b{p}", [Part("t", p, big)]) for p in range(3)]
    house.files.room = room
    with pytest.raises(NotFinished, match="recorded but not finished"):
        await house.post(0, blobs)
    assert house.staged() == ["b0", "b1", "b2"]
    with pytest.raises(CommitUnderWay, match="has not finished batch 0"):
        await house.sinks.forget("q")
    redrives = house.sinks.counters.redrives
    await house.until(lambda: house.sinks.counters.redrives > redrives)
    assert house.sinks.prepared_commits == 1
    house.files.room = None
    await house.settled()
    assert [house.values("t", p) for p in range(3)] == [big] * 3
    await house.until(lambda: house.staged() == [])
    assert (await house.post(0, [])).outcome == "replayed"


async def test_an_open_intent_comes_before_the_next_batch(house: House) -> None:
    await house.topic("t", 3)
    first, second = staged(house, 0), staged(house, 1)
    house.files.refuse = True
    with pytest.raises(NotFinished):
        await house.post(0, first)
    with pytest.raises(NotFinished, match="batch 0"):
        await house.post(1, second)
    house.files.refuse = False
    assert (await house.post(1, second)).outcome == "appended"
    assert [house.values("t", p) for p in range(3)] == [whole(2, p) for p in range(3)]


class Killed(Exception):
    """End of the process."""


class Steps:
    """Counts the steps of a commit, and ends the process at one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = -1
        for owner, name in (
            (RollForward, "_append_now"),
            (RollForward, "_flush"),
            (service_module, "remove_blobs"),
            (service_module, "check_blobs"),
            (service_module, "encode_manifest"),
            (roll_forward_module, "decode_manifest"),
            (pieces_module.PieceReader, "read"),
        ):
            monkeypatch.setattr(owner, name, self.wrapped(getattr(owner, name)))

    def wrapped(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            self.step()
            return call(*arguments, **named)

        return counted

    def step(self) -> None:
        if self.left == 0:
            raise Killed
        self.left -= 1


@pytest.mark.timeout(600)
async def test_killed_at_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends between any two steps of a commit, and again during the retry."""
    steps = Steps(monkeypatch)
    monkeypatch.setattr(pieces_module, "PIECE_BYTES_MAX", 500)
    killed = 0
    for at in range(1000):
        house = House(tmp_path / str(at))
        house.storage = StorageSettings(journal_file_bytes=1 << 20)
        house.control.on_save = lambda record: steps.step()
        await house.start()
        await house.topic("t", 2)
        assert (await house.post(0, staged(house, 0, 2))).outcome == "appended"
        blobs = staged(house, 1, 2)
        steps.left = at
        try:
            await house.post(1, blobs)
        except Killed:
            killed += 1
            done = False
        else:
            done = True
        await house.crash()
        steps.left = at // 2  # the next process does not get far either
        await house.start()
        await house.until(lambda: steps.left <= 0 or house.sinks.prepared_commits == 0)  # noqa: B023
        await house.crash()
        steps.left = -1
        await house.start()
        await house.settled()
        row = await row_of(house)
        assert row.state == "done"
        answer = await house.post(1, staged(house, 1, 2))
        assert answer.outcome == ("replayed" if row.batch_id == 1 else "appended")
        assert [house.values("t", p) for p in range(2)] == [whole(2, p) for p in range(2)]
        await house.stop()
        if done:
            break
    assert done
    assert killed > 20


async def test_sequences_wrap(house: House) -> None:
    await house.topic("t")
    await house.post(0, [house.stage("a", [Part("t", 0, values(0))])])
    row = await row_of(house)
    target = replace(row.targets[0], producer_id=99, base_sequence=SEQUENCES - 55, records=0)
    wrapped = replace(row, batch_id=1, targets=(target,))
    await house.control.save_sink_commit(wrapped, expected_version=row.version)
    blob = house.stage("b", [Part("t", 0, values(2))])
    house.control.faults = ["", "before"]
    with pytest.raises(NotFinished):
        await house.post(2, [blob])
    await house.settled()
    assert house.values("t") == [*values(0), *values(2)]
    (target,) = (await row_of(house)).targets
    assert (target.producer_id, target.next_sequence) == (99, 45)


async def test_a_topic_that_is_deleted_after_the_intent_is_left_out(house: House) -> None:
    await house.topic("t")
    await house.topic("gone", 2)
    blob = house.stage(
        "a", [Part("gone", 1, values(0)), Part("t", 0, values(0)), Part("gone", 0, values(1))]
    )
    house.files.refuse = True
    with pytest.raises(NotFinished):
        await house.post(0, [blob])
    await house.delete_topic("gone")
    house.files.refuse = False
    await house.settled()
    assert house.values("t") == values(0)
    assert house.sinks.counters.skipped >= 2
    assert (await house.post(0, [])).outcome == "replayed"
    assert (await house.post(1, [house.stage("b", [Part("t", 0, ["x"])])])).outcome == "appended"
    assert [target.topic for target in (await row_of(house)).targets] == ["t"]


async def test_internal_topics_are_not_written(house: House) -> None:
    await house.topic("t", internal=True)
    blob = house.stage("a", [Part("t", 0, values(0))])
    with pytest.raises(InternalTopic, match="topic 't' is internal"):
        await house.post(0, [blob])
    assert house.values("t") == []


async def test_a_recreated_topic_is_detected(house: House) -> None:
    await house.topic("t")
    blob = house.stage("a", [Part("t", 0, values(0))])
    await house.delete_topic("t")
    with pytest.raises(UnknownTopicOrPartition, match="topic 't' does not exist"):
        await house.post(0, [blob])
    await house.topic("t")
    with pytest.raises(InconsistentTopicId, match="recreated"):
        await house.post(0, [blob])
    assert await house.control.sink_commit("q") is None
    assert house.staged() == ["a"]


async def test_a_partition_that_is_not_there_is_refused(house: House) -> None:
    await house.topic("t")
    blob = house.stage("a", [Part("t", 0, values(0))])
    blob["sections"][0]["partition"] = 1
    with pytest.raises(InvalidCommit, match="partitions 0 to 0, not 1"):
        await house.post(0, [blob])


async def test_producers_of_open_intents_do_not_expire(tmp_path: Path) -> None:
    """Appended records are still recognised after a downtime longer than the expiry."""
    house = House(tmp_path)
    house.storage = StorageSettings(
        producer_id_expiration_ms=3_600_000, log_retention_check_interval_ms=1
    )
    await house.start()
    await house.topic("t", 1, {"retention.ms": "-1"})
    await house.post(0, [house.stage("a", [Part("t", 0, values(0))])], query="other")
    house.control.faults = ["", "before"]
    with pytest.raises(NotFinished):
        await house.post(0, [house.stage("b", [Part("t", 0, values(1))])])
    house.control.faults = ["before"] * 1000
    await house.stop()
    house.clock.ahead_ms = 30 * 86_400_000
    await house.start()
    assert house.sinks.prepared_commits == 1
    log = house.broker.partitions.with_log("t", 0).log
    log.load()
    assert len(log.producers()) == 2
    house.clock.ahead_ms += 10
    house.store.housekeeping(house.clock.now_ms())
    (target,) = (await row_of(house)).targets
    assert [entry.producer_id for entry in log.producers()] == [target.producer_id]
    house.control.faults = []
    await house.settled()
    assert house.values("t") == [*values(0), *values(1)]
    house.clock.ahead_ms += 10_000_000
    house.store.housekeeping(house.clock.now_ms())
    assert log.producers() == []
    # The next batch goes on with its sequences although nobody remembers them.
    await house.post(1, [house.stage("c", [Part("t", 0, values(2))])])
    assert house.values("t") == [*values(0), *values(1), *values(2)]
    await house.stop()


@pytest.mark.parametrize("open_intent", [False, True])
async def test_a_log_that_lost_its_end_gets_a_new_producer(house: House, open_intent: bool) -> None:
    """The row has more than the log, as other values of `log.flush.policy` allow."""
    await house.topic("t")
    await house.post(0, [house.stage("a", [Part("t", 0, values(0))])])
    row = await row_of(house)
    (target,) = row.targets
    ahead = replace(
        row, batch_id=1, targets=(replace(target, base_sequence=150, records=0, base_offset=-1),)
    )
    await house.control.save_sink_commit(ahead, expected_version=row.version)
    blob = house.stage("b", [Part("t", 0, values(2))])
    if open_intent:
        original = house.control.on_save
        known = house.broker.partitions.with_log("t", 0).log.producer_states
        producers = dict(known._producers)
        known._producers.clear()  # at the intent nothing is known, at the drive the old end is

        def restore(record: SinkCommit) -> None:
            known._producers.update(producers)
            house.control.on_save = original

        house.control.on_save = restore
    await house.post(2, [blob])
    assert house.values("t") == [*values(0), *values(2)]
    (renewed,) = (await row_of(house)).targets
    assert renewed.producer_id != target.producer_id
    assert renewed.next_sequence == 100
    assert house.sinks.counters.renewed == int(open_intent)


async def test_limits_that_shrink_after_the_intent_do_not_stop_it(house: House) -> None:
    await house.topic("t")
    blob = house.stage("a", [Part("t", 0, [f"{n}-{'x' * 300}" for n in range(50)])])
    house.files.refuse = True
    with pytest.raises(NotFinished):
        await house.post(0, [blob])
    topic_id = house.broker.partitions.topics["t"].topic.topic_id
    configs = {"max.message.bytes": "100", "message.timestamp.before.max.ms": "1000000000000"}
    await house.control.set_topic_configs(topic_id=topic_id, configs=configs, expected=None)
    await house.broker.cluster.refresh()
    house.files.refuse = False
    await house.settled()
    assert len(house.values("t")) == 50
    with pytest.raises(InvalidCommit, match=r"max\.message\.bytes = 100"):
        await house.post(1, [house.stage("b", [Part("t", 0, ["x" * 300])])])


async def test_blobs_are_durable_before_the_intent(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    await house.topic("t", 2)
    order: list[str] = []

    def synced(number: int, name: str, arguments: tuple[Any, ...], result: Any) -> None:
        if name.startswith("sync_"):
            order.append(os.path.basename(os.readlink(f"/proc/self/fd/{arguments[0]}")))

    monkeypatch.setattr(pieces_module, "MACHINE_FILES", FaultyFiles(after=synced))
    house.control.on_save = lambda record: order.append(record.state)
    await house.post(0, staged(house, 0, 2))
    assert [name for name in order if name in ("b0-0", "b0-1", "staging", "intent", "done")] == [
        "b0-0",
        "b0-1",
        "staging",
        "intent",
        "done",
    ]


BREAKS: list[tuple[str, Callable[[Path], object], str]] = [
    ("missing", lambda path: path.unlink(), "is not staged"),
    ("truncated", lambda path: os.truncate(path, path.stat().st_size - 1), "bytes"),
    ("longer", lambda path: path.write_bytes(path.read_bytes() + b"x"), "bytes"),
    ("flipped", lambda path: flip(path, 200), "checksum"),
    ("another magic", lambda path: flip(path, 16), "magic"),
    ("another length", lambda path: flip(path, 8), "are left in its section"),
    ("another count", lambda path: flip(path, 60), "records"),
    ("a link", lambda path: relink(path), "is a symbolic link"),
    ("a directory", lambda path: become(path, Path.mkdir), "not a plain file"),
    ("a pipe", lambda path: become(path, os.mkfifo), "not a plain file"),
]


def become(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x41
    path.write_bytes(data)


def relink(path: Path) -> None:
    path.rename(path.parent / ".real")
    path.symlink_to(".real")


@pytest.mark.parametrize(("broken", "said"), [b[1:] for b in BREAKS], ids=[b[0] for b in BREAKS])
async def test_a_blob_that_differs_from_its_manifest_is_refused(
    house: House, broken: Callable[[Path], object], said: str
) -> None:
    await house.topic("t", 2)
    good = house.stage("good", [Part("t", 0, values(0))])
    bad = house.stage("bad", [Part("t", 1, values(1))])
    broken(house.staging / "bad")
    with pytest.raises(InvalidCommit, match=said):
        await house.post(0, [good, bad])
    assert await house.control.sink_commit("q") is None
    assert house.values("t", 0) == house.values("t", 1) == []
    assert house.sinks.prepared_commits == 0
    assert house.store.kept_producers == set()


@pytest.mark.parametrize("records", [99, 101])
async def test_records_are_counted(house: House, records: int) -> None:
    await house.topic("t")
    blob = house.stage("a", [Part("t", 0, values(0))])
    blob["sections"][0]["records"] = records
    with pytest.raises(InvalidCommit, match=f"100 records, {records} were declared"):
        await house.post(0, [blob])


async def test_a_section_that_ends_inside_a_batch_is_refused(house: House) -> None:
    await house.topic("t")
    blob = house.stage("a", [Part("t", 0, values(0))])
    (section,) = blob["sections"]
    cut = section["size_bytes"] - 100
    blob["sections"] = [
        {**section, "size_bytes": cut, "records": 90},
        {**section, "position": cut, "size_bytes": 100, "records": 10},
    ]
    with pytest.raises(InvalidCommit, match="are left in its section"):
        await house.post(0, [blob])


async def test_a_blob_damaged_after_the_intent_is_reported_and_can_be_abandoned(
    house: House,
) -> None:
    await house.topic("t")
    blob = house.stage("a", [Part("t", 0, values(0))])
    house.files.refuse = True
    with pytest.raises(NotFinished):
        await house.post(0, [blob])
    flip(house.staging / "a", 200)
    house.files.refuse = False
    with pytest.raises(NotFinished, match="checksum"):
        await house.post(0, [blob])
    assert house.values("t") == []
    await house.sinks.forget("q", abandon=True)
    assert house.sinks.prepared_commits == 0
    assert (await house.post(0, [house.stage("b", [Part("t", 0, ["x"])])])).outcome == "appended"


async def test_only_so_many_commits_are_in_the_works(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.settings = {"sink.commits.max": 2}
    await house.start()
    await house.topic("t")
    most = 0

    def count(record: SinkCommit) -> None:
        nonlocal most
        most = max(most, house.sinks.prepared_commits)

    house.control.on_save = count
    house.control.gate.clear()
    posts = [
        asyncio.create_task(
            house.post(0, [house.stage(f"b{n}", [Part("t", 0, values(n))])], query=f"q{n}")
        )
        for n in range(12)
    ]
    await house.until(lambda: most == 2)
    house.control.gate.set()
    answers = await asyncio.gather(*posts)
    assert {answer.outcome for answer in answers} == {"appended"}
    assert most == 2
    assert sorted(house.values("t")) == sorted(v for n in range(12) for v in values(n))
    await house.stop()


async def test_others_append_in_between(house: House) -> None:
    """A large commit does not block the loop: other records come between its own."""
    await house.topic("t", 1, {"segment.bytes": str(256 << 10)})
    big = [f"{n}-{'x' * 5000}" for n in range(2000)]
    blob = house.stage("b", [Part("t", 0, big)], records_per_batch=20)
    post = asyncio.create_task(house.post(0, [blob]))
    other, _ = encode(house, ["other"])
    log = house.broker.partitions.with_log("t", 0).log
    appended = 0
    while not post.done():
        if log.log_end_offset and appended < 5:
            log.append(memoryview(bytearray(other)), now_ms=house.clock.now_ms())
            appended += 1
        await asyncio.sleep(0)
    await post
    found = house.values("t")
    assert [value for value in found if value != "other"] == big
    assert found.count("other") == appended > 0
    assert found.index("other") < len(big)


def encode(house: House, some: list[str]) -> tuple[bytes, Any]:
    from tests.broker.batch_commits.sink_client import encode_blob

    return encode_blob("x", [Part("t", 0, some)], house.topic_ids, records_per_batch=10)


@pytest.mark.parametrize("codec", [0, 4])
async def test_sections_need_ids_of_registered_schemas(house: House, codec: int) -> None:
    registered = Registered(5)
    registered.later = {7}
    give(house.broker, registered)
    await house.topic("t", 1, {"schema.validation.value": "true"})
    good, later = framed(5).decode(), framed(7).decode()
    blob = house.stage("good", [Part("t", 0, [good] * 25 + [later])], codec=codec)
    assert (await house.post(0, [blob])).records == 26
    assert registered.refreshes == 1
    for bad, reason in (("plain", "has no schema id in its value"), (framed(9).decode(), "9")):
        blob = house.stage("bad", [Part("t", 0, [good] * 15 + [bad])], codec=codec)
        with pytest.raises(InvalidCommit, match=f"topic 't': record 5 of 6.*{reason}"):
            await house.post(1, [blob])
    registered.fails = ControlUnavailable("the database is away")
    with pytest.raises(NotEnoughReplicas, match="could not be read"):
        await house.post(1, [blob])
    assert house.values("t") == [good] * 25 + [later]
