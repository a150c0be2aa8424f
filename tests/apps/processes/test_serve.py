"""`penstock serve --processes 2` under a Kafka client: children and the parent are killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.client.admin_http import AdminHttp
from tests.apps.test_serve import LOCAL, TIMEOUT_SECONDS, refused, serving

READY = re.compile(r"penstock ready kafka=([0-9.:]+),([0-9.:]+) admin=(127\.0\.0\.1:\d+)\n")
PARTITIONS = 4
QUICK = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, "log_level": 0}


def until(held: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not held():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.02)


@contextmanager
def two(directory: Path) -> Iterator[tuple[subprocess.Popen[str], str, AdminHttp]]:
    """Two brokers over a directory: the parent's process, their addresses, the admin address."""
    with serving(directory, *LOCAL, "--processes", "2") as (process, line):
        found = READY.fullmatch(line)
        assert found is not None, (line, process.stderr.read() if process.stderr else "")
        with AdminHttp(f"http://{found[3]}") as admin:
            yield process, f"{found[1]},{found[2]}", admin


def children(process: subprocess.Popen[str]) -> list[int]:
    """The processes below the parent: the front and the brokers, in the order of their starts."""
    text = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [int(word) for word in text.split()]


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def create(bootstrap: str, **copies: int) -> None:
    topics = [NewTopic(name, PARTITIONS, factor) for name, factor in copies.items()]
    client = AdminClient({"bootstrap.servers": bootstrap})
    for made in client.create_topics(topics).values():
        made.result(TIMEOUT_SECONDS)


class Sending(threading.Thread):
    """Numbers to all partitions of topics in turn, with all acknowledgements, until `end`."""

    def __init__(self, bootstrap: str, *topics: str) -> None:
        super().__init__(daemon=True)
        self.acknowledged: dict[tuple[str, int], list[int]] = {
            (topic, partition): [] for topic in topics for partition in range(PARTITIONS)
        }
        self.errors: list[str] = []
        self._over = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "retry.backoff.ms": 20,
                **QUICK,
            }
        )
        self.start()

    def run(self) -> None:
        number = 0
        while not self._over.is_set():
            for (topic, partition), numbers in self.acknowledged.items():

                def answered(
                    error: KafkaError | None,
                    message: Message,
                    numbers: list[int] = numbers,
                ) -> None:
                    if error is None:
                        numbers.append(int(message.value()))
                    elif not self._over.is_set():
                        self.errors.append(str(error))

                self._producer.produce(
                    topic, b"%d" % number, partition=partition, on_delivery=answered
                )
                number += 1
            while not self._over.is_set() and len(self._producer) > 200:
                self._producer.poll(0.01)
            self._producer.poll(0.002)
        self._producer.purge()
        self._producer.poll(0.1)

    def end(self) -> None:
        self._over.set()
        self.join(TIMEOUT_SECONDS)

    def more(self, count: int = 50) -> None:
        """Wait until each partition has so many more."""
        wanted = {key: len(numbers) + count for key, numbers in self.acknowledged.items()}
        until(
            lambda: all(len(self.acknowledged[key]) >= least for key, least in wanted.items()),
            "acknowledgements of all partitions",
        )


def stored(bootstrap: str, topics: list[tuple[str, int]]) -> dict[tuple[str, int], list[int]]:
    """The numbers in partitions, in order."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", **QUICK})
    found: dict[tuple[str, int], list[int]] = {}
    for topic, partition in topics:
        at = TopicPartition(topic, partition, 0)
        _, end = consumer.get_watermark_offsets(at, TIMEOUT_SECONDS)
        consumer.assign([at])
        numbers: list[int] = []
        while len(numbers) < end:
            numbers += [
                int(message.value() or b"")
                for message in consumer.consume(1_000, 0.1)
                if message.error() is None
            ]
        found[topic, partition] = numbers
    consumer.close()
    return found


def leaders(bootstrap: str, topic: str) -> set[int]:
    found = AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, TIMEOUT_SECONDS)
    return {one.leader for one in found.topics[topic].partitions.values()}


@pytest.mark.timeout(240)
def test_whoever_is_killed_nothing_acknowledged_is_missing(tmp_path: Path) -> None:
    with two(tmp_path) as (parent, bootstrap, admin):
        create(bootstrap, spread=1, copied=2)
        assert leaders(bootstrap, "spread") == {1, 2}
        sending = Sending(bootstrap, "spread", "copied")
        sending.more()

        before = children(parent)
        os.kill(before[2], signal.SIGKILL)
        until(lambda: len({*children(parent)} - {*before}) == 1, "another process")
        sending.more()
        until(
            lambda: admin.ask("GET", "/readyz", timeout_seconds=10).status == 200, "all are ready"
        )
        os.kill(children(parent)[0], signal.SIGKILL)  # the front
        until(lambda: len(children(parent)) == 3 and before[0] not in children(parent), "a front")
        text = admin.call("GET", "/metrics", timeout_seconds=TIMEOUT_SECONDS).content.decode()
        for broker in (1, 2):
            assert f'penstock_process_up{{broker="{broker}"}} 1.0' in text
            body = admin.call("GET", f"/brokers/{broker}/v1/cluster", timeout_seconds=10).body
            assert body["node_id"] == broker
        path = "/v1/topics/spread/partitions/{}/extents?start=0&end=1"
        for partition in range(PARTITIONS):  # whoever leads answers
            assert admin.call("GET", path.format(partition), timeout_seconds=10).status == 200

        left = children(parent)
        parent.kill()
        until(lambda: not any(runs(pid) for pid in left), "the children stop by themselves")
        sending.end()
        assert sending.errors == []

    with two(tmp_path) as (parent, bootstrap, _):
        found = stored(bootstrap, list(sending.acknowledged))
        for key, numbers in sending.acknowledged.items():
            assert max(Counter(found[key]).values()) == 1, key
            assert found[key] == sorted(found[key]), key
            assert not {*numbers} - {*found[key]}, key
        status, said = refused("--data-dir", str(tmp_path), *LOCAL, "--processes", "2")
        assert status == 1
        assert f"process {parent.pid} runs brokers over it" in said
        parent.terminate()
        assert parent.wait(TIMEOUT_SECONDS) == 0

    status, said = refused("--data-dir", str(tmp_path), *LOCAL)
    assert status == 1
    assert "lie with brokers 2, which would not run: start it with --processes 2" in said


def test_a_directory_goes_from_one_process_to_two_and_back(tmp_path: Path) -> None:
    with serving(tmp_path, *LOCAL) as (process, line):
        alone = line.split("kafka=")[1].split(" ")[0]
        create(alone, early=1)
        sending = Sending(alone, "early")
        sending.more(1)
        sending.end()
        process.terminate()
        assert process.wait(TIMEOUT_SECONDS) == 0
    with two(tmp_path) as (parent, bootstrap, _):
        found = stored(bootstrap, list(sending.acknowledged))
        assert all({*numbers} <= {*found[key]} for key, numbers in sending.acknowledged.items())
        status, said = refused("--data-dir", str(tmp_path), *LOCAL)
        assert status == 1
        assert "stop the broker that has it, or choose another directory" in said
        parent.send_signal(signal.SIGINT)
        assert parent.wait(TIMEOUT_SECONDS) == 0
    with serving(tmp_path, *LOCAL) as (_, line):
        assert stored(line.split("kafka=")[1].split(" ")[0], list(found)) == found


def test_a_broker_that_cannot_start_stops_all(tmp_path: Path) -> None:
    (tmp_path / "log-2").write_text("")
    status, said = refused("--data-dir", str(tmp_path), *LOCAL, "--processes", "2")
    assert status == 1
    assert "penstock: broker 2: data directory" in said
    assert "broker 2 ended before all were ready" in said
