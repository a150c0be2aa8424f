"""kafka-python 3: pure Python, synchronous over its own event loop."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import kafka
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka import errors as kafka_errors
from kafka.admin import ConfigResource, OffsetSpec
from kafka.codec import has_snappy
from kafka.consumer.subscription_state import ConsumerRebalanceListener
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.structs import OffsetAndMetadata
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

WAIT_MS = int(WAIT_SECONDS * 1000)
ASSIGNORS = {"range": RangePartitionAssignor, "cooperative-sticky": CooperativeStickyAssignor}


class _Token(AbstractTokenProvider):  # type: ignore[misc]
    """A token that is in a file."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def token(self) -> str:
        return self._path.read_text()


def _options(security: Security) -> dict[str, Any]:
    own = {"sasl_oauth_token_provider": _Token(security.token)} if security.token else {}
    return {**security.python(), **own}


def _record(message: Any) -> Record:
    return Record(
        value=message.value,
        key=message.key,
        headers=tuple(message.headers),
        timestamp=message.timestamp,
        partition=message.partition,
        offset=message.offset,
    )


def problem(error: Exception) -> Exception:
    """The client's error under Kafka's name, where it has one."""
    number = getattr(error, "errno", None)
    if not isinstance(number, int) or number == 0:
        return error
    return KafkaProblem(ErrorCode(number).name.upper(), str(error))


class KafkaPythonMember(ThreadMember, ConsumerRebalanceListener):  # type: ignore[misc]
    """A subscribed kafka-python consumer."""

    def __init__(self, config: dict[str, Any], topic: str) -> None:
        super().__init__()
        self._config = config
        self._topic = topic
        self._owned: frozenset[int] = frozenset()
        self._thread.start()

    def assignment(self) -> frozenset[int]:
        self.check()
        return self._owned

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._rebalances += 1

    def on_partitions_revoked(self, revoked: Any) -> None:
        gone = frozenset(each.partition for each in revoked)
        if gone and not self._closing.is_set():
            self._rebalances += 1
            self._revoked |= gone

    def on_partitions_lost(self, lost: Any) -> None:
        self.on_partitions_revoked(lost)

    def _run(self) -> None:
        consumer = KafkaConsumer(**self._config)
        try:
            # Where the group answers before the topic's metadata is there, a leader of this client
            # may assign nothing and never look again, or take the metadata that comes later for a
            # change and join anew. So it learns of the topic after subscribing, before joining.
            consumer.subscribe([self._topic], listener=self)
            consumer.topics()
            while not self._closing.is_set():
                try:
                    polled = consumer.poll(timeout_ms=50)
                except kafka_errors.UnknownBrokerIdError:  # its coordinator is being restarted
                    continue
                for messages in polled.values():
                    self._seen.extend(_record(message) for message in messages)
                self._owned = frozenset(each.partition for each in consumer.assignment())
        finally:
            consumer.close(timeout_ms=WAIT_MS)


class KafkaPython(Driver):
    """kafka-python."""

    name = "kafka-python"
    version = kafka.__version__
    # snappy needs a package of its own
    codecs = ("none", "gzip", *(["snappy"] if has_snappy() else []), "lz4", "zstd")
    reads = codecs
    assignors = {"eager": "range", "cooperative": "cooperative-sticky"}
    able = EVERYTHING | {"log_dirs", "config_topics", "transactions"}

    def __init__(self, bootstrap: str, security: Security | None = None) -> None:
        super().__init__(bootstrap, security)
        self._common = {"bootstrap_servers": bootstrap, **_options(self.security)}
        self._made: KafkaAdminClient | None = None

    @property
    def _admin(self) -> KafkaAdminClient:
        if self._made is None:
            self._made = KafkaAdminClient(**self._common)
        return self._made

    def close(self) -> None:
        if self._made is not None:
            self._made.close()

    def _consumer(self, **config: Any) -> KafkaConsumer:
        return KafkaConsumer(
            **self._common,
            enable_auto_commit=False,
            allow_auto_create_topics=False,
            fetch_max_wait_ms=100,
            **config,
        )

    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        codec: str = "none",
        idempotent: bool = False,
    ) -> list[int]:
        producer = KafkaProducer(
            **self._common,
            acks="all",
            compression_type=None if codec == "none" else codec,
            enable_idempotence=idempotent,
            max_in_flight_requests_per_connection=1,  # order is kept where a leader goes
            allow_auto_create_topics=False,
            linger_ms=5,
            max_block_ms=WAIT_MS,
        )
        try:
            return _sent(producer, topic, records)
        except kafka_errors.KafkaError as error:
            raise problem(error) from error
        finally:
            producer.close(timeout=WAIT_SECONDS)

    def consume(
        self, topic: str, starts: Mapping[int, int], count: int, *, committed: bool = False
    ) -> list[Record]:
        seen: list[Record] = []
        level = "read_committed" if committed else "read_uncommitted"
        with closing(self._consumer(isolation_level=level)) as consumer:
            consumer.assign([TopicPartition(topic, part) for part in starts])
            for part, start in starts.items():
                consumer.seek(TopicPartition(topic, part), start)
            deadline = time.monotonic() + WAIT_SECONDS
            while len(seen) < count and time.monotonic() < deadline:
                for messages in consumer.poll(timeout_ms=100).values():
                    seen.extend(_record(message) for message in messages)
        return seen

    def join(
        self, group: str, topic: str, *, kind: str = "eager", instance_id: str | None = None
    ) -> Member:
        config = {
            **self._common,
            "group_id": group,
            "group_instance_id": instance_id,
            "auto_offset_reset": "earliest",
            "auto_commit_interval_ms": 200,
            "session_timeout_ms": SESSION_TIMEOUT_MS,
            "heartbeat_interval_ms": HEARTBEAT_MS,
            "partition_assignment_strategy": (ASSIGNORS[self.assignors[kind]],),
            "fetch_max_wait_ms": 100,
        }
        return KafkaPythonMember(config, topic)

    def commit(self, group: str, topic: str, offsets: Mapping[int, tuple[int, str]]) -> None:
        wanted = {
            TopicPartition(topic, part): OffsetAndMetadata(offset, metadata, -1)
            for part, (offset, metadata) in offsets.items()
        }
        with closing(self._consumer(group_id=group)) as consumer:
            consumer.assign(list(wanted))
            self._ask(consumer.commit, wanted, timeout_ms=WAIT_MS)

    def committed(
        self, group: str, topic: str, partitions: Sequence[int]
    ) -> dict[int, tuple[int, str]]:
        asked = {part: TopicPartition(topic, part) for part in partitions}
        with closing(self._consumer(group_id=group)) as consumer:
            consumer.assign(list(asked.values()))
            found = {
                part: consumer.committed(each, metadata=True, timeout_ms=WAIT_MS)
                for part, each in asked.items()
            }
        return {
            part: (each.offset, each.metadata)
            for part, each in found.items()
            if each is not None and each.offset >= 0
        }

    def offsets_at(self, topic: str, timestamp: int, partitions: Sequence[int]) -> dict[int, int]:
        asked = {TopicPartition(topic, part): timestamp for part in partitions}
        with closing(self._consumer()) as consumer:
            found = consumer.offsets_for_times(asked, timeout_ms=WAIT_MS)
        return {each.partition: -1 if at is None else at.offset for each, at in found.items()}

    def bounds(self, topic: str, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        asked = [TopicPartition(topic, part) for part in partitions]
        first = self._admin.list_partition_offsets(dict.fromkeys(asked, OffsetSpec.EARLIEST))
        last = self._admin.list_partition_offsets(dict.fromkeys(asked, OffsetSpec.LATEST))
        return {each.partition: (first[each].offset, last[each].offset) for each in asked}

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> None:
        wanted = {name: {"num_partitions": partitions, "configs": dict(configs)}}
        self._ask(self._admin.create_topics, wanted)

    def delete_topic(self, name: str) -> None:
        self._ask(self._admin.delete_topics, [name])

    def topics(self) -> dict[str, int]:
        found = self._admin.describe_topics()
        return {topic["name"]: len(topic["partitions"]) for topic in found}

    def create_partitions(self, name: str, total: int) -> None:
        self._ask(self._admin.create_partitions, {name: total})

    def configs(self, name: str) -> dict[str, str]:
        asked = [ConfigResource("topic", name)]
        found = self._ask(self._admin.describe_configs, asked, config_filter="all")
        return {key: str(entry["value"]) for key, entry in found["topic"][name].items()}

    def alter_config(self, name: str, key: str, value: str) -> None:
        wanted = [ConfigResource("topic", name, {key: value})]
        outcome = self._ask(self._admin.alter_configs, wanted)["topic"][name]
        if found := re.match(r"\[Error (\d+)\]", outcome):
            raise KafkaProblem(ErrorCode(int(found[1])).name.upper(), outcome)

    def delete_records(self, topic: str, offsets: Mapping[int, int]) -> None:
        wanted = {TopicPartition(topic, part): offset for part, offset in offsets.items()}
        self._ask(self._admin.delete_records, wanted)

    def groups(self) -> set[str]:
        return {group["group_id"] for group in self._admin.list_groups()}

    def describe_group(self, group: str) -> GroupDescription:
        found = self._ask(self._admin.describe_groups, [group])[group]
        return GroupDescription(found["group_state"].lower(), len(found["members"]))

    def delete_group(self, group: str) -> None:
        outcome = self._ask(self._admin.delete_groups, [group])[group]
        if outcome != "OK":
            raise problem(getattr(kafka_errors, outcome)())

    def cluster(self) -> tuple[str, int]:
        found = self._admin.describe_cluster()
        return found["cluster_id"], len(found["brokers"])

    def log_dirs(self, topic: str) -> dict[int, int]:
        found = self._ask(self._admin.describe_log_dirs, [topic])
        return {
            row["partition_index"]: row["partition_size"]
            for broker in found
            for log_dir in broker["log_dirs"]
            for named in log_dir["topics"]
            for row in named["partitions"]
        }

    def config_topics(self) -> set[str]:
        return set(self._ask(self._admin.list_config_resources, ["topic"]).get("topic", ()))

    def transactional(self, transactional_id: str, *, timeout_ms: int = 60_000) -> Transactional:
        return KafkaPythonTransactional(self._common, transactional_id, timeout_ms)

    def _ask(self, call: Any, *arguments: Any, **options: Any) -> Any:
        return _asked(call, *arguments, **options)


class KafkaPythonTransactional(Transactional):
    """A transactional kafka-python producer."""

    def __init__(self, common: Mapping[str, Any], transactional_id: str, timeout_ms: int) -> None:
        self._producer = KafkaProducer(
            **common,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            allow_auto_create_topics=False,
            linger_ms=5,
            max_block_ms=WAIT_MS,
        )
        try:
            _asked(self._producer.init_transactions)
        except BaseException:
            self.close()
            raise

    def begin(self) -> None:
        _asked(self._producer.begin_transaction)

    def send(self, topic: str, records: Sequence[Record]) -> list[int]:
        return list(_asked(_sent, self._producer, topic, records))

    def send_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        wanted = {
            TopicPartition(topic, part): OffsetAndMetadata(offset, "", -1)
            for part, offset in offsets.items()
        }
        _asked(self._producer.send_offsets_to_transaction, wanted, group)

    def end(self, *, commit: bool) -> None:
        producer = self._producer
        _asked(producer.commit_transaction if commit else producer.abort_transaction)

    def close(self) -> None:
        self._producer.close(timeout=WAIT_SECONDS)


def _asked(call: Any, *arguments: Any, **options: Any) -> Any:
    try:
        return call(*arguments, **options)
    except kafka_errors.KafkaError as error:
        raise problem(error) from error


def _sent(producer: KafkaProducer, topic: str, records: Sequence[Record]) -> list[int]:
    """The offsets of records, once all are delivered."""
    sent = [
        producer.send(
            topic,
            value=record.value,
            key=record.key,
            headers=list(record.headers),
            partition=record.partition,
            timestamp_ms=record.timestamp,
        )
        for record in records
    ]
    producer.flush(timeout=WAIT_SECONDS)
    return [future.get(timeout=WAIT_SECONDS).offset for future in sent]
