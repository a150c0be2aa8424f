"""Consumer with a real broker and real files: order, duplicates, dead letters, crashes."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.base.errors import InvalidError
from penstock.base.metrics import render
from penstock.client.errors import BrokerFenced, UnknownTopic
from penstock.outbox.errors import OutboxClosed, PayloadMissing
from penstock.outbox.layout import HOUR_MS
from penstock.outbox.pointer import Pointer, pointer_record
from penstock.outbox.reader.consumer import OutboxConsumer, OutboxMessage
from penstock.outbox.reader.consuming import ConsumerLimits
from penstock.outbox.reader.policy import MountSuspected, PayloadUnreadable, ReadPolicy
from penstock.outbox.reader.reader import OutboxReader
from penstock.testing import Broker
from tests.outbox.shelf import AT_MS, Shelf

QUICK = ReadPolicy(missing_grace_ms=0, pause_first_ms=1, pause_max_ms=2)


def consumer(shelf: Shelf, reader: OutboxReader, **more: Any) -> OutboxConsumer:
    given: dict[str, Any] = {
        "group": "g",
        "dead_letter_topic": shelf.dead,
        "until_end": True,
        "policy": QUICK,
    }
    return OutboxConsumer(shelf.client, shelf.topic, reader, **(given | more))


def drain(shelf: Shelf, **more: Any) -> tuple[list[OutboxMessage], OutboxConsumer]:
    with OutboxReader(shelf.root) as reader, consumer(shelf, reader, **more) as messages:
        return list(messages), messages


def committed(shelf: Shelf, group: str = "g") -> dict[int, int]:
    found = shelf.client.committed(group, [(shelf.topic, 0), (shelf.topic, 1)])
    return {p: at.offset for (_, p), at in found.items()}


def test_files_and_inline_payloads_in_order(shelf: Shelf) -> None:
    pointers = [shelf.file(b"file %d" % number) for number in range(5)]
    shelf.publish(pointers[0], shelf.inline(b"inline 1", batch_id="i1"), *pointers[1:])
    shelf.publish(shelf.inline(b"", batch_id="i2"), partition=1)
    found, counted = drain(shelf)
    first = [m for m in found if m.partition == 0]
    assert [m.payload for m in first] == [
        b"file 0",
        b"inline 1",
        *(b"file %d" % n for n in (1, 2, 3, 4)),
    ]
    assert [m.offset for m in first] == list(range(6))
    assert [m.pointer for m in first] == [pointers[0], None, *pointers[1:]]
    assert first[1].key == ("p", "i1")
    assert (first[1].codec, first[1].event_count, first[1].topic) == ("none", 1, shelf.topic)
    assert [m.payload for m in found if m.partition == 1] == [b""]
    assert counted.counters.messages == 7
    assert counted.counters.inline == 2
    assert committed(shelf) == {0: 6, 1: 1}
    assert drain(shelf)[0] == []


def test_a_crash_before_the_commit_hands_out_again(shelf: Shelf) -> None:
    for number in range(4):
        shelf.add(b"%d" % number)
    with OutboxReader(shelf.root) as reader:
        seen = []

        def process(message: OutboxMessage) -> None:
            seen.append(message.payload)
            if message.offset == 2:
                raise KeyError("processing failed")

        with pytest.raises(KeyError), consumer(shelf, reader) as messages:
            any(map(process, messages))
        assert committed(shelf) == {0: 2}
        never = ConsumerLimits(commit_interval_ms=10**9)  # however long this may be held up
        crashed = iter(consumer(shelf, reader, bounds=never))
        assert [next(crashed).payload, next(crashed).payload] == [b"2", b"3"]
        del crashed  # no close, no commit: as if killed
        assert committed(shelf) == {0: 2}
    assert seen == [b"0", b"1", b"2"]
    assert [m.payload for m in drain(shelf)[0]] == [b"2", b"3"]
    assert committed(shelf) == {0: 4}


def test_commit_takes_the_message_in_hand(shelf: Shelf) -> None:
    for number in range(3):
        shelf.add(b"%d" % number)
    with OutboxReader(shelf.root) as reader, consumer(shelf, reader) as messages:
        for _ in messages:
            messages.commit()
            break
        assert committed(shelf) == {0: 1}
    with OutboxReader(shelf.root) as reader, consumer(shelf, reader) as messages:
        for _ in messages:
            break
    assert committed(shelf) == {0: 1}


def test_duplicates_are_dropped_and_survive_a_restart(shelf: Shelf) -> None:
    one, two = shelf.add(b"one"), shelf.add(b"two")
    shelf.publish(one, one)
    found, first = drain(shelf)
    assert [m.payload for m in found] == [b"one", b"two"]
    assert first.counters.duplicates == 2
    shelf.publish(two, one, partition=1)
    three = shelf.add(b"three")
    shelf.publish(three)
    found, second = drain(shelf)
    assert [m.payload for m in found] == [b"three"]
    assert (second.counters.duplicates, second.counters.remembered) == (3, 4)
    assert drain(shelf, group="other")[1].counters.duplicates == 5


@pytest.mark.parametrize("restarted", [False, True])
def test_a_batch_id_that_comes_with_another_payload_is_no_duplicate(
    shelf: Shelf, restarted: bool
) -> None:
    """Inline records have no file, and other hours have other files, so nothing conflicts."""
    shelf.publish(shelf.inline(b"one", batch_id="i"), shelf.file(b"two", batch_id="f"))
    found = drain(shelf)[0] if restarted else []
    shelf.publish(
        shelf.inline(b"eno", batch_id="i"),
        shelf.inline(b"one", batch_id="i"),
        shelf.file(b"owt", batch_id="f", at_ms=AT_MS + HOUR_MS),
    )
    again, counted = drain(shelf)
    assert [m.payload for m in (*found, *again)] == [b"one", b"two"]
    assert counted.counters.duplicates == 1
    dead = shelf.dead_letters()
    assert [letter["penstock-dead-letter-reason"] for letter in dead] == [b"batch-reused"] * 2
    assert b"use a batch id for one payload only" in dead[0]["penstock-dead-letter-message"]
    assert dead[0]["value"] == b"eno"


def test_without_a_dead_letter_topic_a_reused_batch_id_is_reported(shelf: Shelf) -> None:
    records = [(b"one", "i"), (b"other", "i"), (b"one", "i"), (b"two", "k")]
    shelf.publish(*(shelf.inline(payload, batch_id=name) for payload, name in records))
    said: list[str] = []
    found, consumer = drain(shelf, dead_letter_topic=None, report=said.append)
    assert [message.payload for message in found] == [b"one", b"two"]
    assert (consumer.counters.conflicts, consumer.counters.duplicates) == (1, 1)
    [line] = said
    assert "at offset 1: batch i of p has a payload with CRC32C" in line
    assert drain(shelf, dead_letter_topic=None)[0] == [], "the group is behind all of them"


def test_the_same_batch_id_of_two_partitions_are_two_batches(shelf: Shelf) -> None:
    shelf.add(b"jfk", batch_id="hour-14", partition_id="JFK")
    shelf.add(b"lga", batch_id="hour-14", partition_id="LGA")
    assert [m.payload for m in drain(shelf)[0]] == [b"jfk", b"lga"]


def test_the_window_is_bounded(shelf: Shelf) -> None:
    one, two = shelf.add(b"one"), shelf.add(b"two")
    shelf.publish(one, two, one)
    small = ConsumerLimits(dedup_entries_max=1)
    assert len(drain(shelf, bounds=small)[0]) == 5
    assert len(drain(shelf, bounds=ConsumerLimits(dedup_entries_max=2), group="h")[0]) == 2


def test_old_batches_are_not_remembered_over_a_restart(shelf: Shelf) -> None:
    pointer = shelf.file(b"old")
    shelf.publish(pointer, timestamp=1_000)
    drain(shelf)
    shelf.publish(pointer)
    found, counted = drain(shelf)
    assert [m.payload for m in found] == [b"old"]
    assert counted.counters.remembered == 0


def remove(file: Path) -> None:
    file.unlink()


def tear(file: Path) -> None:
    file.write_bytes(b"torn")


def swap(file: Path) -> None:
    """Return another payload of the same size."""
    file.write_bytes(b"x" * file.stat().st_size)


def make_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


def lead_out(file: Path) -> None:
    file.unlink()
    file.symlink_to("/etc/passwd")


BAD: dict[str, Callable[[Path], None]] = {
    "missing": remove,
    "size-mismatch": tear,
    "checksum-mismatch": swap,
    "not-a-file": make_directory,
    "path-escapes": lead_out,
}


@pytest.mark.parametrize("reason", list(BAD))
def test_bad_files_become_dead_letters(shelf: Shelf, reason: str) -> None:
    shelf.add(b"before")
    bad = shelf.file(b"the bad one")
    shelf.publish(bad, timestamp=5)
    shelf.add(b"after")
    BAD[reason](shelf.path(bad))
    found, counted = drain(shelf)
    assert [m.payload for m in found] == [b"before", b"after"]
    assert committed(shelf) == {0: 3}
    (dead,) = shelf.dead_letters()
    record = pointer_record(bad)
    assert (dead["key"], dead["value"]) == (record.key, record.value)
    assert dict(record.headers).items() <= dead.items()
    assert dead["penstock-dead-letter-reason"] == reason.encode()
    assert dead["penstock-dead-letter-topic"] == shelf.topic.encode()
    assert dead["penstock-dead-letter-partition"] == b"0"
    assert dead["penstock-dead-letter-offset"] == b"1"
    assert bad.file_path in dead["penstock-dead-letter-message"].decode()
    assert counted.counters.dead_letters_by_reason == {reason: 1}
    exposed = render(counted.samples()).decode()
    assert f'penstock_outbox_dead_letters_total{{reason="{reason}"}} 1.0' in exposed
    assert "penstock_outbox_consumed_batches_total 2.0" in exposed
    assert counted.counters.retries == (1 if "mismatch" in reason else 0)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"file_path": "../../etc/passwd"}, b"invalid-pointer"),
        ({"file_path": "/etc/passwd"}, b"invalid-pointer"),
        ({"size_bytes": 1 << 50}, b"too-large"),
        ({"crc32c": 1}, b"checksum-mismatch"),
        ({"batch_id": "x"}, b"invalid-pointer"),
        ({"partition_id": "q"}, b"invalid-pointer"),
    ],
)
def test_pointers_that_lie(shelf: Shelf, fields: dict[str, Any], reason: bytes) -> None:
    shelf.publish(replace(shelf.file(b"payload"), **fields))
    shelf.add(b"after")
    assert [m.payload for m in drain(shelf)[0]] == [b"after"]
    (dead,) = shelf.dead_letters()
    assert dead["penstock-dead-letter-reason"] == reason


def test_records_that_no_outbox_wrote(shelf: Shelf) -> None:
    record = pointer_record(shelf.file())
    strays = [
        replace(record, headers=()),
        replace(record, value=b"{" * 3_000),
        replace(record, value=b'{"a":' * 600 + b"1" + b"}" * 600),
        replace(record, value=b'{"size_bytes":' + b"9" * 3_000 + b"}"),
        replace(shelf.inline(b"x"), headers=(("penstock-outbox", b"inline"),)),
        replace(shelf.inline(b"payload"), value=b"another"),
    ]
    shelf.publish(*strays)
    assert drain(shelf)[0] == []
    dead = shelf.dead_letters()
    assert [letter["value"] for letter in dead] == [stray.value for stray in strays]
    assert dead[-1]["penstock-dead-letter-reason"] == b"checksum-mismatch"


def test_a_repaired_batch_is_read_when_it_is_published_again(shelf: Shelf) -> None:
    pointer = shelf.add(b"payload")
    shelf.path(pointer).unlink()
    assert drain(shelf)[0] == []
    shelf.path(pointer).write_bytes(b"payload")
    shelf.publish(pointer)
    found, counted = drain(shelf)
    assert [m.payload for m in found] == [b"payload"]
    assert counted.counters.remembered == 0


def test_without_a_dead_letter_topic_the_first_bad_payload_stops(shelf: Shelf) -> None:
    shelf.add(b"before")
    shelf.path(shelf.add(b"bad")).unlink()
    found: list[bytes] = []
    with (
        pytest.raises(PayloadMissing) as caught,
        OutboxReader(shelf.root) as reader,
        consumer(shelf, reader, dead_letter_topic=None) as messages,
    ):
        found.extend(message.payload for message in messages)
    assert found == [b"before"]
    assert caught.value.__notes__ == [f"{shelf.topic}-0 at offset 1"]
    assert committed(shelf) == {0: 1}


def test_a_dead_letter_topic_must_be_there(shelf: Shelf) -> None:
    shelf.add()
    with pytest.raises(UnknownTopic):
        drain(shelf, dead_letter_topic="nope")


def test_an_empty_mount_point_does_not_fill_the_dead_letters(shelf: Shelf, tmp_path: Path) -> None:
    for _ in range(30):
        shelf.add()
    empty = tmp_path / "empty"
    empty.mkdir()
    bounds = ConsumerLimits(dead_letters_in_a_row_max=5)
    with pytest.raises(MountSuspected, match="5 records in a row"), OutboxReader(empty) as reader:
        list(consumer(shelf, reader, bounds=bounds))
    assert len(shelf.dead_letters()) == 5


class Flaky(OutboxReader):
    """Reader whose first reads fail as those of an unavailable file server."""

    failures = 0

    def read(self, pointer: Pointer) -> bytes:
        if self.failures:
            self.failures -= 1
            raise PayloadUnreadable(pointer.file_path, errno.ESTALE)
        return super().read(pointer)


def test_a_server_that_comes_back(shelf: Shelf) -> None:
    shelf.add(b"payload")
    with Flaky(shelf.root) as reader, consumer(shelf, reader) as messages:
        reader.failures = QUICK.attempts_max - 1
        assert [m.payload for m in messages] == [b"payload"]
        assert messages.counters.retries == QUICK.attempts_max - 1
    assert shelf.dead_letters() == []


def test_a_server_that_stays_away_stops_the_consumer(shelf: Shelf) -> None:
    shelf.add(b"payload")
    with Flaky(shelf.root) as reader:
        reader.failures = QUICK.attempts_max
        with pytest.raises(PayloadUnreadable, match="ESTALE"):
            list(consumer(shelf, reader))
    assert shelf.dead_letters() == []
    assert committed(shelf) == {}
    assert [m.payload for m in drain(shelf)[0]] == [b"payload"]


class Late(OutboxReader):
    """Reader that finds a file only after some attempts, as with a client's cache."""

    looks = 0

    def read(self, pointer: Pointer) -> bytes:
        self.looks += 1
        if self.looks < 4:
            raise PayloadMissing(pointer.file_path)
        return super().read(pointer)


def test_a_file_that_shows_late_is_waited_for(shelf: Shelf) -> None:
    shelf.add(b"payload")
    policy = replace(QUICK, missing_grace_ms=60_000)
    with Late(shelf.root) as reader, consumer(shelf, reader, policy=policy) as messages:
        assert [m.payload for m in messages] == [b"payload"]
    assert shelf.dead_letters() == []


def test_payloads_may_be_left_to_the_caller(shelf: Shelf) -> None:
    good, bad = shelf.add(b"streamed"), shelf.add(b"broken")
    swap(shelf.path(bad))
    read: list[bytes] = []
    with (
        OutboxReader(shelf.root) as reader,
        consumer(shelf, reader, read_payloads=False) as messages,
    ):
        for message in messages:
            assert message.payload == b""
            assert message.pointer is not None
            try:
                with reader.open(message.pointer) as stream:
                    read.append(b"".join(stream))
            except InvalidError:
                raise
            except Exception as error:
                messages.give_up("my-reason", str(error))
                with pytest.raises(InvalidError, match="requires a current message"):
                    messages.give_up("again", "")
    assert read == [b"streamed"]
    (dead,) = shelf.dead_letters()
    assert dead["penstock-dead-letter-reason"] == b"my-reason"
    assert dead["penstock-dead-letter-offset"] == b"1"
    assert good.batch_id != bad.batch_id
    assert committed(shelf) == {0: 2}


def test_following_and_stopping(shelf: Shelf) -> None:
    shelf.add(b"first")
    got: list[bytes] = []
    two = threading.Event()
    with OutboxReader(shelf.root) as reader, consumer(shelf, reader, until_end=False) as messages:

        def run() -> None:
            for message in messages:
                got.append(message.payload)
                if len(got) == 2:
                    two.set()

        thread = threading.Thread(target=run)
        thread.start()
        shelf.add(b"second")
        assert two.wait(30)
        messages.stop()
        thread.join(30)
        assert not thread.is_alive()
    assert got == [b"first", b"second"]
    assert committed(shelf) == {0: 2}
    with pytest.raises(OutboxClosed):
        next(iter(messages))


def test_commits_while_it_follows(shelf: Shelf) -> None:
    for _ in range(25):
        shelf.add()
    bounds = ConsumerLimits(commit_messages=10, commit_interval_ms=10**9)
    with OutboxReader(shelf.root) as reader:
        running = consumer(shelf, reader, bounds=bounds)
        for before, _ in enumerate(running):
            assert committed(shelf) == ({0: before // 10 * 10} if before >= 10 else {})
    assert committed(shelf) == {0: 25}


def test_records_that_retention_took(shelf: Shelf) -> None:
    for number in range(6):
        shelf.add(b"%d" % number)
    shelf.client.commit_offsets("g", {(shelf.topic, 0): 1})
    shelf.client.delete_records(shelf.topic, {0: 4})
    found, counted = drain(shelf)
    assert [m.payload for m in found] == [b"4", b"5"]
    assert counted.counters.lost_records == 3


def test_some_partitions_and_a_start_at_the_end(shelf: Shelf) -> None:
    shelf.publish(shelf.file(b"zero"), partition=0)
    shelf.publish(shelf.file(b"one"), partition=1)
    assert [m.payload for m in drain(shelf, partitions=[1])[0]] == [b"one"]
    assert committed(shelf) == {1: 1}
    assert drain(shelf, group="late", start="latest")[0] == []


@pytest.mark.interop
def test_a_group_with_members_refuses(shelf: Shelf, outbox_broker: Broker) -> None:
    from confluent_kafka import Consumer

    shelf.add()
    settings = {"bootstrap.servers": outbox_broker.bootstrap, "group.id": "g"}
    member = Consumer(settings | {"enable.auto.commit": False})
    try:
        member.subscribe([shelf.topic])
        while not member.assignment():
            member.poll(0.1)
        with pytest.raises(BrokerFenced):
            drain(shelf)
    finally:
        member.close()
