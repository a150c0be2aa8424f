"""A running broker with a movable clock, groups of real consumers, and its admin interface."""

from __future__ import annotations

import asyncio
import http.client
import json
from typing import Any
from urllib.parse import quote

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.base.system import SystemClock
from penstock.broker.server import BrokerServer

SECOND = 1_000
TOPIC = "orders"
STEP_MS = 10 * SECOND


class MovedClock(SystemClock):
    """System clock whose wall time is moved ahead; sessions are not affected."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms

    def set(self, now_ms: int) -> None:
        self.ahead_ms = now_ms - super().now_ms()


class Scene:
    """Actions of clients, each in a thread."""

    def __init__(self, server: BrokerServer, clock: MovedClock) -> None:
        self.server = server
        self.clock = clock
        host, port = server.kafka_address
        self.bootstrap = f"{host}:{port}"
        self.conf = {"bootstrap.servers": self.bootstrap}
        self.admin = AdminClient(self.conf)
        self._producer = Producer(self.conf | {"linger.ms": 0})
        self._consumers: dict[str, Consumer] = {}

    async def create(self, topic: str = TOPIC, partitions: int = 1, **configs: str) -> None:
        named = {name.replace("_", "."): value for name, value in configs.items()}
        new = NewTopic(topic, partitions, replication_factor=1, config=named)
        futures = self.admin.create_topics([new])
        await asyncio.to_thread(futures[topic].result)

    async def produce(self, count: int, topic: str = TOPIC, partition: int = 0) -> None:
        def run() -> None:
            for number in range(count):
                self._producer.produce(topic, b"%d" % number, partition=partition)
            assert self._producer.flush(60) == 0

        await asyncio.to_thread(run)

    async def write(self, topic: str, key: bytes, value: bytes) -> None:
        def run() -> None:
            self._producer.produce(topic, value, key)
            assert self._producer.flush(60) == 0

        await asyncio.to_thread(run)

    async def commit(
        self,
        group: str,
        offset: int,
        topic: str = TOPIC,
        partition: int = 0,
        *,
        step_ms: int = STEP_MS,
    ) -> None:
        """Commit by a consumer of the group, and let time pass."""
        consumer = self._consumers.get(group)
        if consumer is None:
            consumer = self._consumers[group] = Consumer(
                self.conf | {"group.id": group, "enable.auto.commit": False}
            )
        where = [TopicPartition(topic, partition, offset)]
        await asyncio.to_thread(consumer.commit, offsets=where, asynchronous=False)
        self.clock.ahead_ms += step_ms

    async def read(self, group: str, count: int, topic: str = TOPIC) -> None:
        """Read records as a member of the group, commit, and leave it."""

        def run() -> None:
            consumer = Consumer(
                self.conf
                | {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
            )
            consumer.subscribe([topic])
            left = count
            while left:
                message = consumer.poll(60)
                assert message is not None
                assert message.error() is None
                left -= 1
            consumer.commit(asynchronous=False)
            consumer.close()

        await asyncio.to_thread(run)

    async def get(self, path: str) -> tuple[int, Any]:
        """Return the status and the JSON, or the text, of an admin response."""

        def run() -> tuple[int, Any]:
            connection = http.client.HTTPConnection("127.0.0.1", self.server.identity.admin_port)
            try:
                connection.request("GET", path)
                response = connection.getresponse()
                text = response.read()
            finally:
                connection.close()
            is_json = response.headers["content-type"] == "application/json"
            return response.status, json.loads(text) if is_json else text.decode()

        return await asyncio.to_thread(run)

    async def lag(self, group: str) -> dict[str, Any]:
        """Return the evaluation of a group."""
        status, answer = await self.get(f"/v1/groups/{quote(group, safe='')}")
        assert status == 200, answer
        found: dict[str, Any] = answer["lag"]
        return found

    async def state(self, group: str) -> str:
        return str((await self.lag(group))["state"])

    async def close(self) -> None:
        for consumer in self._consumers.values():
            await asyncio.to_thread(consumer.close)
