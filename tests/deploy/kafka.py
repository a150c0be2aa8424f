"""Records that a foreign client, librdkafka, writes and reads."""

from __future__ import annotations

from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

SECONDS_MAX: Final = 60.0


def produce(topic: str, values: list[str], **options: str) -> None:
    """Write records and wait until all are acknowledged by a quorum."""
    failures: list[str] = []
    producer = Producer({"acks": "all", "linger.ms": 5, **dotted(options)})
    for value in values:
        producer.produce(
            topic,
            value,
            on_delivery=lambda error, _: failures.append(str(error)) if error else None,
        )
    assert producer.flush(SECONDS_MAX) == 0
    assert failures == []


def consume(topic: str, **options: str) -> list[str]:
    """Read all records of a topic; return their values, sorted."""
    settings = {
        "group.id": "none",
        "enable.partition.eof": True,
        "enable.auto.commit": False,
        "fetch.wait.max.ms": 10,
    }
    consumer = Consumer(settings | dotted(options))
    partitions = consumer.list_topics(topic, SECONDS_MAX).topics[topic].partitions
    consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in partitions])
    ends = 0
    values: list[str] = []
    while ends < len(partitions):
        message = consumer.poll(SECONDS_MAX)
        assert message is not None
        error, value = message.error(), message.value()
        if value is not None and error is None:
            values.append(value.decode())
        elif error is not None and error.code() == KafkaError._PARTITION_EOF:
            ends += 1
    consumer.close()
    return sorted(values)


def dotted(options: dict[str, str]) -> dict[str, str]:
    """Return options by the client's names: `bootstrap_servers` is `bootstrap.servers`."""
    return {name.replace("_", "."): value for name, value in options.items()}
