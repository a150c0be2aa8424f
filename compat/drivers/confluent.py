"""confluent-kafka: librdkafka under Python, the client that most services use."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from kio.schema.errors import ErrorCode

from compat.drivers.port import (
    EVERYTHING,
    HEARTBEAT_MS,
    SESSION_TIMEOUT_MS,
    WAIT_SECONDS,
    Driver,
    GroupDescription,
    KafkaProblem,
    Member,
    Record,
    ThreadMember,
    Transactional,
)
from compat.security import Security

QUIET = {"log_level": 0, "allow.auto.create.topics": False}


def problem(error: KafkaError) -> KafkaProblem:
    """librdkafka shortens some of Kafka's names; its own errors have negative codes."""
    code = error.code()
    name = ErrorCode(code).name.upper() if code > 0 else error.name()
    return KafkaProblem(name, error.str())


def _options(security: Security) -> dict[str, Any]:
    if not security.token:
        return security.options()
    token = Path(security.token).read_text()
    return {**security.options(), "oauth_cb": lambda _: (token, time.time() + 300)}


def _record(message: Message) -> Record:
    headers = tuple((name, value) for name, value in message.headers() or [])
    return Record(
        value=message.value(),
        key=message.key(),
        headers=headers,
        timestamp=message.timestamp()[1],
        partition=message.partition(),
        offset=message.offset(),
    )


class ConfluentMember(ThreadMember):
    """A subscribed librdkafka consumer."""

    def __init__(self, config: dict[str, Any], topic: str) -> None:
        super().__init__()
        self._consumer = Consumer(config)
        self._topic = topic
        strategy = config.get("partition.assignment.strategy", "cooperative")
        self._cooperative = strategy.startswith("cooperative")
        self._owned: frozenset[int] = frozenset()
        self._thread.start()

    def assignment(self) -> frozenset[int]:
        self.check()
        return self._owned

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._rebalances += 1
        new = frozenset(each.partition for each in partitions)
        if self._cooperative:
            consumer.incremental_assign(partitions)
            self._owned |= new
        else:
            consumer.assign(partitions)
            self._owned = new

    def _taken(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        gone = frozenset(each.partition for each in partitions)
        self._owned -= gone
        if not self._closing.is_set():
            self._rebalances += 1
            self._revoked |= gone

    def _run(self) -> None:
        self._consumer.subscribe([self._topic], on_assign=self._assigned, on_revoke=self._taken)
        try:
            while not self._closing.is_set():
                for message in self._consumer.consume(500, 0.05):
                    if message.error() is None:
                        self._seen.append(_record(message))
                    elif not message.error().retriable():
                        raise KafkaException(message.error())
        finally:
            self._consumer.close()


class Confluent(Driver):
    """librdkafka through confluent-kafka."""

    name = "confluent-kafka"
    version = f"{confluent_kafka.version()}, librdkafka {confluent_kafka.libversion()[0]}"
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    # Metadata is committed with the zero byte that ends it in C, and read up to one: what other
    # clients committed comes with whatever follows it in memory.
    metadata_end = "\0"
    assignors = {"eager": "range", "cooperative": "cooperative-sticky", "server": "uniform"}
    able = EVERYTHING | {"transactions"}
    groups_needed = (("describe", "group", "unused"),)

    def __init__(self, bootstrap: str, security: Security | None = None) -> None:
        super().__init__(bootstrap, security)
        own = {"bootstrap.servers": bootstrap, **_options(self.security)}
        self._common: dict[str, Any] = {**own, **QUIET}
        self._admin = AdminClient({**own, "log_level": 0})

    def close(self) -> None:
        self._admin.__exit__(None, None, None)  # there is no other name for it

    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        codec: str = "none",
        idempotent: bool = False,
    ) -> list[int]:
        producer = Producer(
            {
                **self._common,
                "compression.codec": codec,
                "enable.idempotence": idempotent,
                "max.in.flight": 1,  # order is kept where a leader goes
                "acks": "all",
                "linger.ms": 5,
                "message.timeout.ms": int(WAIT_SECONDS * 1000),
            }
        )
        with producer:
            return _sent(producer, topic, records)

    def consume(
        self, topic: str, starts: Mapping[int, int], count: int, *, committed: bool = False
    ) -> list[Record]:
        seen: list[Record] = []
        with self._consumer("unused", committed=committed) as consumer:
            consumer.assign([TopicPartition(topic, part, start) for part, start in starts.items()])
            deadline = time.monotonic() + WAIT_SECONDS
            while len(seen) < count and time.monotonic() < deadline:
                for message in consumer.consume(count - len(seen), 0.1):
                    if message.error() is not None:
                        raise problem(message.error())
                    seen.append(_record(message))
        return seen

    def _consumer(self, group: str, *, committed: bool = False) -> Consumer:
        level = "read_committed" if committed else "read_uncommitted"
        own = {"group.id": group, "enable.auto.commit": False, "isolation.level": level}
        return Consumer({**self._common, **own})

    def join(
        self, group: str, topic: str, *, kind: str = "eager", instance_id: str | None = None
    ) -> Member:
        config = {
            **self._common,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 200,
            "fetch.wait.max.ms": 100,
        }
        if kind == "server":
            config |= {"group.protocol": "consumer", "group.remote.assignor": self.assignors[kind]}
        else:
            config |= {
                "session.timeout.ms": SESSION_TIMEOUT_MS,
                "heartbeat.interval.ms": HEARTBEAT_MS,
                "partition.assignment.strategy": self.assignors[kind],
            }
        if instance_id is not None:
            config["group.instance.id"] = instance_id
        return ConfluentMember(config, topic)

    def commit(self, group: str, topic: str, offsets: Mapping[int, tuple[int, str]]) -> None:
        wanted = [
            TopicPartition(topic, part, offset, metadata)
            for part, (offset, metadata) in offsets.items()
        ]
        with self._consumer(group) as consumer:
            for each in consumer.commit(offsets=wanted, asynchronous=False):
                if each.error is not None:
                    raise problem(each.error)

    def committed(
        self, group: str, topic: str, partitions: Sequence[int]
    ) -> dict[int, tuple[int, str]]:
        asked = [TopicPartition(topic, part) for part in partitions]
        with self._consumer(group) as consumer:
            found = consumer.committed(asked, timeout=WAIT_SECONDS)
        known = [each for each in found if each.offset >= 0]
        return {each.partition: (each.offset, each.metadata or "") for each in known}

    def offsets_at(self, topic: str, timestamp: int, partitions: Sequence[int]) -> dict[int, int]:
        asked = [TopicPartition(topic, part, timestamp) for part in partitions]
        with self._consumer("unused") as consumer:
            found = consumer.offsets_for_times(asked, timeout=WAIT_SECONDS)
        return {each.partition: each.offset for each in found}

    def bounds(self, topic: str, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        ends = []
        for spec in (OffsetSpec.earliest(), OffsetSpec.latest()):
            asked = {TopicPartition(topic, part): spec for part in partitions}
            answers = self._admin.list_offsets(asked, request_timeout=WAIT_SECONDS)
            ends.append({tp.partition: _result(future).offset for tp, future in answers.items()})
        return {part: (ends[0][part], ends[1][part]) for part in partitions}

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> None:
        wanted = NewTopic(name, partitions, config=dict(configs))
        _only(self._admin.create_topics([wanted]))

    def delete_topic(self, name: str) -> None:
        _only(self._admin.delete_topics([name]))

    def topics(self) -> dict[str, int]:
        listed = self._admin.list_topics(timeout=WAIT_SECONDS).topics
        return {name: len(topic.partitions) for name, topic in listed.items()}

    def create_partitions(self, name: str, total: int) -> None:
        _only(self._admin.create_partitions([NewPartitions(name, total)]))

    def configs(self, name: str) -> dict[str, str]:
        found = _only(self._admin.describe_configs([ConfigResource(ResourceType.TOPIC, name)]))
        return {key: entry.value for key, entry in found.items()}

    def alter_config(self, name: str, key: str, value: str) -> None:
        entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
        _only(self._admin.incremental_alter_configs([resource]))

    def delete_records(self, topic: str, offsets: Mapping[int, int]) -> None:
        wanted = [TopicPartition(topic, part, offset) for part, offset in offsets.items()]
        for future in self._admin.delete_records(wanted).values():
            _result(future)

    def groups(self) -> set[str]:
        return {group.group_id for group in _result(self._admin.list_consumer_groups()).valid}

    def describe_group(self, group: str) -> GroupDescription:
        found = _only(self._admin.describe_consumer_groups([group]))
        return GroupDescription(found.state.name.lower(), len(found.members))

    def delete_group(self, group: str) -> None:
        _only(self._admin.delete_consumer_groups([group]))

    def cluster(self) -> tuple[str, int]:
        found = _result(self._admin.describe_cluster())
        return found.cluster_id, len(found.nodes)

    def transactional(self, transactional_id: str, *, timeout_ms: int = 60_000) -> Transactional:
        own = {"transactional.id": transactional_id, "transaction.timeout.ms": timeout_ms}
        return ConfluentTransactional({**self._common, **own})


class ConfluentTransactional(Transactional):
    """A transactional librdkafka producer."""

    def __init__(self, config: dict[str, Any]) -> None:
        # Once all brokers were down at a time, librdkafka makes new ones (KIP-899), and still sends
        # offsets to a coordinator that it has ended: `FINDINGS.md`.
        own = {"linger.ms": 5, "metadata.recovery.strategy": "none"}
        # without `with`, whose end flushes, which a producer with a fatal error cannot
        self._producer = Producer({**config, **own})
        self._call(self._producer.init_transactions, WAIT_SECONDS)

    def begin(self) -> None:
        self._call(self._producer.begin_transaction)

    def send(self, topic: str, records: Sequence[Record]) -> list[int]:
        return _sent(self._producer, topic, records)

    def send_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        wanted = [TopicPartition(topic, part, offset) for part, offset in offsets.items()]
        with Consumer({**QUIET, "group.id": group}) as consumer:  # needs no broker for this
            metadata = consumer.consumer_group_metadata()
        self._call(self._producer.send_offsets_to_transaction, wanted, metadata, WAIT_SECONDS)

    def end(self, *, commit: bool) -> None:
        producer = self._producer
        self._call(
            producer.commit_transaction if commit else producer.abort_transaction, WAIT_SECONDS
        )

    def close(self) -> None:
        del self._producer

    @staticmethod
    def _call(call: Any, *arguments: Any) -> None:
        try:
            call(*arguments)
        except KafkaException as error:
            raise problem(error.args[0]) from error


def _sent(producer: Producer, topic: str, records: Sequence[Record]) -> list[int]:
    """The offsets of records, once all are delivered."""
    offsets = [-1] * len(records)
    failures: list[KafkaError] = []

    def delivered(index: int, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failures.append(error)
        else:
            offsets[index] = message.offset()

    for index, record in enumerate(records):
        producer.produce(
            topic,
            value=record.value,
            key=record.key,
            headers=list(record.headers),
            timestamp=record.timestamp,
            partition=record.partition,
            on_delivery=partial(delivered, index),
        )
    left = producer.flush(WAIT_SECONDS)
    if failures:
        raise problem(failures[0])
    if left:
        raise TimeoutError(f"{left} records were not delivered within {WAIT_SECONDS} s")
    return offsets


def _result(future: Any) -> Any:
    try:
        return future.result(WAIT_SECONDS)
    except KafkaException as error:
        raise problem(error.args[0]) from error


def _only(futures: Mapping[Any, Any]) -> Any:
    (future,) = futures.values()
    return _result(future)
