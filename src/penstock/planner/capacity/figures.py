"""Figures of a capacity plan for brokers and producers."""

from __future__ import annotations

from functools import partial
from typing import Final

from penstock.planner.capacity.ceilings import Deployment
from penstock.planner.capacity.inputs import CapacityInputs
from penstock.planner.capacity.objects import requests_per_second
from penstock.planner.capacity.sizing import ARITHMETIC, Sizing
from penstock.planner.quantities import format_quantity
from penstock.planner.results import Figure

IN_FLIGHT_REQUESTS: Final = 5
"""max.in.flight.requests.per.connection of Kafka's producer."""


def broker_figures(inputs: CapacityInputs, deployment: Deployment, sizing: Sizing) -> list[Figure]:
    figure = partial(Figure, group="brokers", source=ARITHMETIC, unit="brokers")
    free = sizing.free
    produce = deployment.text(deployment.produce_name(inputs))
    cpu = deployment.text(deployment.produce_cpu_name(inputs))
    needs = {
        "throughput": f"(written with replicas / {produce} MB/s"
        f" + read / {deployment.text('consume_mb_per_s')} MB/s) / {free}, at the peak",
        "cores": f"(written × {cpu} s/GB + read ×"
        f" {deployment.text('consume_cpu_s_per_gb')} s/GB) / {inputs.broker_cores:g} cores"
        f" / {free}",
        "network": f"the larger of in and out / {format_quantity(inputs.broker_network, 'bytes/s')}"
        f" / {free}",
        "disk": "(on disks + segments not deleted) /"
        f" (({format_quantity(inputs.broker_disk, 'bytes')} less the journal)"
        f" × {free} - one partition, as they do not divide evenly)",
        "partitions": f"partitions × replicas / {inputs.broker_partitions:,} per broker",
        "replicas and zones": "one for each replica, and for each zone",
    }
    rows = [
        figure(name="brokers", label="brokers", value=sizing.brokers,
               minimum=sizing.brokers_needed,
               formula="the largest need of all resources + 1, so that one may be down"),
    ]  # fmt: skip
    for name, count in sizing.brokers_by.items():
        slug = name.replace(" ", "_")
        rows.append(
            figure(name=f"brokers_by_{slug}", label=f"for {name}", value=count,
                   formula=needs[name])
        )  # fmt: skip
    rows.append(
        Figure(name="partitions_per_broker", label="replicas per broker", unit="partitions",
               value=sizing.replicas_per_broker, group="brokers",
               formula="partitions × replicas / brokers", source=ARITHMETIC)
    )  # fmt: skip
    rows.append(
        figure(name="idle_brokers", label="brokers without a partition", value=sizing.idle_brokers,
               formula="brokers - partitions × replicas, where that is more than none")
    )  # fmt: skip
    return rows


def producer_figures(
    inputs: CapacityInputs, sizing: Sizing, acknowledged_p99_ms: float
) -> list[Figure]:
    figure = partial(Figure, group="a producer", unit="bytes")
    batches = sizing.partitions * inputs.batch_bytes
    rate = sizing.peak_messages_per_second * inputs.message_bytes / inputs.producers
    waiting = rate * acknowledged_p99_ms / 1000
    filled = min(
        float(inputs.batch_bytes),
        max(rate / sizing.partitions * inputs.linger / 1000, inputs.message_bytes),
    )
    needed = max(batches, waiting)
    return [
        figure(name="producer_batches_bytes", label="one open batch per partition",
               value=batches, formula=f"{sizing.partitions} partitions ×"
               f" {format_quantity(inputs.batch_bytes, 'bytes')}",
               source="Kafka: RecordAccumulator, batch.size"),
        figure(name="producer_waiting_bytes", label="not acknowledged at the 99th percentile",
               value=waiting, formula="messages at the peak × message / producers"
               f" × {acknowledged_p99_ms:.3g} ms until the answer",
               source="Little's law"),
        figure(name="producer_memory_bytes", label="producer memory",
               value=max(float(inputs.buffer_bytes), 2.0 * needed), minimum=needed,
               setting="buffer.memory",
               formula="twice the larger of the two above, at least"
               f" {format_quantity(inputs.buffer_bytes, 'bytes')}; needed is the larger one",
               source="Kafka: ProducerConfig, buffer.memory"),
        figure(name="producer_batch_fill_bytes", label="bytes in a batch when it leaves",
               value=filled, formula="messages at the peak × message / producers / partitions"
               f" × linger {inputs.linger:g} ms; one message at least, batch.size at most",
               source="Kafka: ProducerConfig, linger.ms"),
        figure(name="produce_requests_per_second",
               label="requests of all producers to a broker, peak",
               value=requests_per_second(inputs, sizing, sizing.peak_messages_per_second),
               unit="requests/s",
               formula=f"{inputs.producers} producers, one per linger of {inputs.linger:g} ms"
               " (1 ms at least), more when requests of 1 MiB are full; at most one per message",
               source="Kafka: one ProduceRequest per broker, linger.ms"),
        figure(name="producer_request_window", label="requests under way per broker",
               value=IN_FLIGHT_REQUESTS, unit="requests",
               formula="the default, at which an idempotent producer keeps its order",
               source="Kafka: max.in.flight.requests.per.connection"),
    ]  # fmt: skip
