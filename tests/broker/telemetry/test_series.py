"""Exposed series of clients' metrics, and their expiry."""

from __future__ import annotations

from uuid import UUID

from penstock.base.metrics import render
from penstock.broker.telemetry.series import (
    CLIENTS_MAX,
    SERIES_PER_CLIENT_MAX,
    ClientSeries,
    Point,
    instance_text,
)
from penstock.broker.telemetry.subscriptions import ATTRIBUTES, Instance

NAME = "org.apache.kafka.producer.connection.creation.total"


def client(number: int) -> Instance:
    return Instance(
        instance_id=UUID(int=number),
        attributes=dict.fromkeys(ATTRIBUTES, "x") | {"client_id": f"c{number}"},
        version=1,
        metrics=("*",),
        interval_ms=1000,
        subscription_id=1,
    )


def shown(series: ClientSeries, now_ms: float = 0) -> list[tuple[str, float]]:
    return [(sample.metric.name, float(sample.value)) for sample in series.samples(now_ms)]  # type: ignore[arg-type]


def test_names_and_labels_are_those_of_prometheus() -> None:
    series = ClientSeries()
    attributes = (("1st", "a"), ("client_id", "b"), ("node.id", '"\n'))
    points = [Point(NAME, attributes, 3, True, True), Point("up", (), 1, False, False)]
    series.take(client(5), points, 0)
    text = render(series.samples(0)).decode()
    instance = f'client_id="c5",client_instance_id="{instance_text(UUID(int=5))}"'
    assert "kafka_client_producer_connection_creation_total{attribute_1st" in text
    assert 'attribute_client_id="b"' in text
    assert 'node_id="\\"\\n"' in text
    assert instance in text
    assert "# TYPE kafka_client_producer_connection_creation_total counter" in text
    assert "# TYPE kafka_client_up gauge" in text


def test_what_was_added_is_added_up_and_the_rest_replaced() -> None:
    series = ClientSeries()
    for value in (3, 4):
        points = [
            Point("a", (), value, True, True),
            Point("b", (), value, True, False),
            Point("c", (), value, False, False),
        ]
        series.take(client(1), points, 0)
    assert shown(series) == [
        ("kafka_client_a_total", 7),
        ("kafka_client_b_total", 4),
        ("kafka_client_c", 4),
    ]


def test_a_client_that_pushes_no_more_is_forgotten() -> None:
    series = ClientSeries()
    series.take(client(1), [Point("a", (), 1, False, False)], 0)
    series.take(client(2), [Point("a", (), 1, False, False)], 2000)
    assert len(shown(series, 3000)) == 2
    assert len(shown(series, 3001)) == 1
    assert len(shown(series, 5001)) == 0
    assert len(series) == 0


def test_clients_and_their_series_are_bounded() -> None:
    series = ClientSeries()
    points = [Point(f"p{number}", (), 1, False, False) for number in range(SERIES_PER_CLIENT_MAX)]
    more = [Point("more", (), 1, False, False), Point("p1", (), 7, False, False)]
    series.take(client(1), [*points, *more], 0)
    assert (len(series), series.metrics.dropped) == (SERIES_PER_CLIENT_MAX, 1)
    assert ("kafka_client_p1", 7) in shown(series)
    for number in range(CLIENTS_MAX):
        series.take(client(number + 2), more, 0)
    assert len(series) == CLIENTS_MAX * 2
