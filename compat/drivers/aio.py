"""aiokafka: pure Python on asyncio. Its loop runs in a thread of the driver's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import aiokafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.abc import AbstractTokenProvider
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import KafkaError, for_code
from aiokafka.structs import OffsetAndMetadata
from kio.schema.errors import ErrorCode

from compat.drivers.port import (
    EVERYTHING,
    HEARTBEAT_MS,
    REPLICAS,
    SESSION_TIMEOUT_MS,
    WAIT_SECONDS,
    Driver,
    GroupDescription,
    KafkaProblem,
    Member,
    Record,
    Transactional,
)
from compat.security import Security

T = TypeVar("T")


class _Token(AbstractTokenProvider):  # type: ignore[misc]
    """A token that is in a file."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    async def token(self) -> str:
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


def _check(code: int, message: object = "") -> None:
    if code:
        raise for_code(code)(str(message))


class LoopThread:
    """An event loop in a thread of its own, for clients that need one."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], *, seconds: float = WAIT_SECONDS) -> T:
        """Run a coroutine there; a client error is raised under Kafka's name."""
        try:
            bounded = asyncio.wait_for(work, seconds)
            return asyncio.run_coroutine_threadsafe(bounded, self.loop).result(seconds + 5)
        except KafkaError as error:
            number = getattr(error, "errno", 0)
            if number == 0:  # one of its own
                raise KafkaProblem(type(error).__name__, str(error)) from error
            if number < 0:
                raise
            raise KafkaProblem(ErrorCode(number).name.upper(), str(error)) from error

    def close(self) -> None:
        """End the loop, and what clients have left running in it."""
        asyncio.run_coroutine_threadsafe(self._end_tasks(), self.loop).result(WAIT_SECONDS)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(WAIT_SECONDS)
        self.loop.close()

    async def _end_tasks(self) -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


class AioMember(Member, ConsumerRebalanceListener):  # type: ignore[misc]
    """A subscribed aiokafka consumer."""

    def __init__(self, thread: LoopThread, config: dict[str, Any], topic: str) -> None:
        self._loop = thread
        self._config = config
        self._topic = topic
        self._seen: list[Record] = []
        self._gone: set[int] = set()
        self._changes = 0
        self._closing = False
        self._consumer: AIOKafkaConsumer | None = None
        self._task = asyncio.run_coroutine_threadsafe(self._run(), thread.loop)

    def _check(self) -> None:
        if self._task.done():
            self._task.result()

    def assignment(self) -> frozenset[int]:
        self._check()
        owned = self._consumer.assignment() if self._consumer is not None else ()
        return frozenset(each.partition for each in owned)

    def rebalances(self) -> int:
        self._check()
        return self._changes

    def revoked(self) -> frozenset[int]:
        return frozenset(self._gone)

    def records(self) -> list[Record]:
        self._check()
        return list(self._seen)

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._changes += 1

    def on_partitions_revoked(self, revoked: Any) -> None:
        gone = frozenset(each.partition for each in revoked)
        if gone and not self._closing:
            self._changes += 1
            self._gone |= gone

    async def _run(self) -> None:
        consumer = AIOKafkaConsumer(**self._config)
        self._consumer = consumer
        try:
            consumer.subscribe([self._topic], listener=self)
            await consumer.start()
            while not self._closing:
                for messages in (await consumer.getmany(timeout_ms=50)).values():
                    self._seen.extend(_record(message) for message in messages)
        finally:
            await consumer.stop()

    def close(self) -> None:
        self._closing = True
        self._task.result(WAIT_SECONDS)


class Aio(Driver):
    """aiokafka."""

    name = "aiokafka"
    version = aiokafka.__version__
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    assignors = {"eager": "range"}
    able = EVERYTHING - {"delete_group"} | {"transactions"}

    def __init__(self, bootstrap: str, security: Security | None = None) -> None:
        super().__init__(bootstrap, security)
        self._thread = LoopThread()
        self._common = {"bootstrap_servers": bootstrap, **_options(self.security)}
        self._made: AIOKafkaAdminClient | None = None

    def close(self) -> None:
        try:
            if self._made is not None:
                self._thread.run(self._made.close())
        finally:
            self._thread.close()

    async def _admin(self) -> AIOKafkaAdminClient:
        if self._made is None:
            made = AIOKafkaAdminClient(**self._common)
            try:
                await made.start()
            except BaseException:
                await made.close()
                raise
            self._made = made
        return self._made

    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        codec: str = "none",
        idempotent: bool = False,
    ) -> list[int]:
        async def work() -> list[int]:
            producer = AIOKafkaProducer(
                **self._common,
                acks="all",
                compression_type=None if codec == "none" else codec,
                enable_idempotence=idempotent,
                linger_ms=5,
            )
            try:
                await producer.start()
                return await _sent(producer, topic, records)
            finally:
                await producer.stop()

        return self._thread.run(work())

    def consume(
        self, topic: str, starts: Mapping[int, int], count: int, *, committed: bool = False
    ) -> list[Record]:
        seen: list[Record] = []

        async def work() -> None:
            consumer = AIOKafkaConsumer(
                **self._common,
                enable_auto_commit=False,
                fetch_max_wait_ms=100,
                isolation_level="read_committed" if committed else "read_uncommitted",
            )
            try:
                await consumer.start()
                consumer.assign([TopicPartition(topic, part) for part in starts])
                for part, start in starts.items():
                    consumer.seek(TopicPartition(topic, part), start)
                while len(seen) < count:
                    for messages in (await consumer.getmany(timeout_ms=100)).values():
                        seen.extend(_record(message) for message in messages)
            finally:
                await consumer.stop()

        self._thread.run(work())
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
            "partition_assignment_strategy": (RangePartitionAssignor,),
            "fetch_max_wait_ms": 100,
        }
        return AioMember(self._thread, config, topic)

    def _consumer(self, group: str | None) -> AIOKafkaConsumer:
        return AIOKafkaConsumer(**self._common, group_id=group, enable_auto_commit=False)

    def commit(self, group: str, topic: str, offsets: Mapping[int, tuple[int, str]]) -> None:
        async def work() -> None:
            consumer = self._consumer(group)
            try:
                await consumer.start()
                consumer.assign([TopicPartition(topic, part) for part in offsets])
                await consumer.commit(
                    {
                        TopicPartition(topic, part): OffsetAndMetadata(offset, metadata)
                        for part, (offset, metadata) in offsets.items()
                    }
                )
            finally:
                await consumer.stop()

        self._thread.run(work())

    def committed(
        self, group: str, topic: str, partitions: Sequence[int]
    ) -> dict[int, tuple[int, str]]:
        async def work() -> Any:
            asked = [TopicPartition(topic, part) for part in partitions]
            return await (await self._admin()).list_consumer_group_offsets(group, partitions=asked)

        found = self._thread.run(work())
        return {
            each.partition: (at.offset, at.metadata) for each, at in found.items() if at.offset >= 0
        }

    def offsets_at(self, topic: str, timestamp: int, partitions: Sequence[int]) -> dict[int, int]:
        async def work() -> Any:
            consumer = self._consumer(None)
            try:
                await consumer.start()
                asked = {TopicPartition(topic, part): timestamp for part in partitions}
                return await consumer.offsets_for_times(asked)
            finally:
                await consumer.stop()

        found = self._thread.run(work())
        return {each.partition: -1 if at is None else at.offset for each, at in found.items()}

    def bounds(self, topic: str, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        async def work() -> Any:
            consumer = self._consumer(None)
            try:
                await consumer.start()
                asked = [TopicPartition(topic, part) for part in partitions]
                return await consumer.beginning_offsets(asked), await consumer.end_offsets(asked)
            finally:
                await consumer.stop()

        first, last = self._thread.run(work())
        return {each.partition: (first[each], last[each]) for each in first}

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> None:
        async def work() -> None:
            wanted = NewTopic(name, partitions, REPLICAS, topic_configs=dict(configs))
            answer = await (await self._admin()).create_topics([wanted])
            for _topic, code, *message in answer.topic_errors:
                _check(code, message)

        self._thread.run(work())

    def delete_topic(self, name: str) -> None:
        async def work() -> None:
            answer = await (await self._admin()).delete_topics([name])
            for _topic, code in answer.topic_error_codes:
                _check(code, name)

        self._thread.run(work())

    def topics(self) -> dict[str, int]:
        async def work() -> Any:
            return await (await self._admin()).describe_topics()

        return {topic["topic"]: len(topic["partitions"]) for topic in self._thread.run(work())}

    def create_partitions(self, name: str, total: int) -> None:
        async def work() -> None:
            await (await self._admin()).create_partitions({name: NewPartitions(total)})

        self._thread.run(work())

    def configs(self, name: str) -> dict[str, str]:
        async def work() -> dict[str, str]:
            asked = [ConfigResource(ConfigResourceType.TOPIC, name)]
            (answer,) = await (await self._admin()).describe_configs(asked)
            (code, message, _kind, _name, entries) = answer.resources[0]
            _check(code, message)
            return {entry[0]: entry[1] for entry in entries}

        return self._thread.run(work())

    def alter_config(self, name: str, key: str, value: str) -> None:
        async def work() -> None:
            wanted = [ConfigResource(ConfigResourceType.TOPIC, name, {key: value})]
            (answer,) = await (await self._admin()).alter_configs(wanted)
            for code, message, *_ in answer.resources:
                _check(code, message)

        self._thread.run(work())

    def delete_records(self, topic: str, offsets: Mapping[int, int]) -> None:
        async def work() -> None:
            wanted = {
                TopicPartition(topic, part): RecordsToDelete(offset)
                for part, offset in offsets.items()
            }
            await (await self._admin()).delete_records(wanted)

        self._thread.run(work())

    def groups(self) -> set[str]:
        async def work() -> Any:
            return await (await self._admin()).list_consumer_groups()

        return {name for name, *_ in self._thread.run(work())}

    def describe_group(self, group: str) -> GroupDescription:
        async def work() -> GroupDescription:
            (answer,) = await (await self._admin()).describe_consumer_groups([group])
            code, _name, state, _kind, _protocol, members, *_ = answer.groups[0]
            _check(code)
            return GroupDescription(state.lower(), len(members))

        return self._thread.run(work())

    def cluster(self) -> tuple[str, int]:
        async def work() -> Any:
            return await (await self._admin()).describe_cluster()

        found = self._thread.run(work())
        return found["cluster_id"], len(found["brokers"])

    def transactional(self, transactional_id: str, *, timeout_ms: int = 60_000) -> Transactional:
        return AioTransactional(self._thread, self._common, transactional_id, timeout_ms)


class AioTransactional(Transactional):
    """A transactional aiokafka producer."""

    def __init__(
        self,
        thread: LoopThread,
        common: Mapping[str, Any],
        transactional_id: str,
        timeout_ms: int,
    ) -> None:
        self._thread = thread

        async def start() -> AIOKafkaProducer:
            producer = AIOKafkaProducer(
                **common,
                transactional_id=transactional_id,
                transaction_timeout_ms=timeout_ms,
                linger_ms=5,
            )
            try:
                await producer.start()
            except BaseException:
                await producer.stop()
                raise
            return producer

        self._producer = thread.run(start())

    def begin(self) -> None:
        self._thread.run(self._producer.begin_transaction())

    def send(self, topic: str, records: Sequence[Record]) -> list[int]:
        return self._thread.run(_sent(self._producer, topic, records))

    def send_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        wanted = {
            TopicPartition(topic, part): OffsetAndMetadata(offset, "")
            for part, offset in offsets.items()
        }
        self._thread.run(self._producer.send_offsets_to_transaction(wanted, group))

    def end(self, *, commit: bool) -> None:
        producer = self._producer
        self._thread.run(producer.commit_transaction() if commit else producer.abort_transaction())

    def close(self) -> None:
        self._thread.run(self._producer.stop())


async def _sent(producer: AIOKafkaProducer, topic: str, records: Sequence[Record]) -> list[int]:
    """The offsets of records, once all are delivered."""
    sent = [
        await producer.send(
            topic,
            value=record.value,
            key=record.key,
            headers=list(record.headers),
            partition=record.partition,
            timestamp_ms=record.timestamp,
        )
        for record in records
    ]
    return [(await future).offset for future in sent]
