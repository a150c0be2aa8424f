"""How a local topic becomes diskless: requests, the shares of brokers in them, and the switch.

Locks are taken in the order of all diskless transactions: metadata, a topic's switch, objects,
partitions.
"""

from __future__ import annotations

from penstock.control.batch_index import extents, objects, partitions, switch_rules, switches
from penstock.control.batch_index.switch_values import SwitchRequest, SwitchShare, TopicSwitch
from penstock.control.drivers.statements import Operation
from penstock.control.metadata.images import Images, StampedImage
from penstock.control.sink_commits import operations as sinks
from penstock.control.values import Topic


def open_switch(
    images: Images, request: SwitchRequest
) -> Operation[tuple[SwitchRequest, StampedImage]]:
    """Store a request in the place of the topic's earlier one, if its broker is gone."""
    known = yield from images.locked()
    found = yield from switches.lock_request(request.topic_id)
    if found == request:
        return found, known
    first = switch_rules.check_request(known.image, request, found)
    if first is None:
        yield switches.delete_request(request.topic_id)
        yield switches.write_request(*request)
    return first or request, known


def join_switch(request: SwitchRequest, share: SwitchShare) -> Operation[None]:
    """Store a broker's share."""
    found = yield from switches.lock_request(request.topic_id)
    switch_rules.check_share(request, found, share)
    yield switches.write_share(request.topic_id, share)


def close_switch(request: SwitchRequest) -> Operation[None]:
    """Delete a request and its shares, if it is open still."""
    if (yield from switches.lock_request(request.topic_id)) == request:
        yield switches.delete_request(request.topic_id)


def switch_topic(images: Images, switch: TopicSwitch) -> Operation[tuple[Topic, StampedImage]]:
    """Make a local topic diskless, unless these objects have made it so already."""
    known = yield from images.locked()
    shares = switch_rules.all_shares(
        switch,
        (yield from switches.lock_request(switch.topic_id)),
        (yield from switches.shares(switch.topic_id)),
    )
    parts = [part for share in shares for part in share.partitions]
    written = switch_rules.objects_of(parts or switch.partitions)
    found = yield from objects.lock([one.object_id for one in written])
    plan = switch_rules.plan_switch(
        known.image,
        switch,
        shares,
        states={object_id: one.state for object_id, one in found.items()},
        sinks=(yield from sinks.read_all()),
    )
    if plan.is_made:
        return plan.topic, known
    yield from _write(plan)
    yield switches.delete_request(switch.topic_id)
    return plan.topic, (yield from images.store(known, plan.image))


def _write(plan: switch_rules.SwitchPlan) -> Operation[None]:
    yield objects.write_committed(
        [
            (object_id, "committed", "segment", size_bytes, references)
            for object_id, size_bytes, references in plan.objects
        ]
    )
    found = yield from partitions.lock_or_add(plan.rows)
    ids = {key: row.partition_id for key, row in found.items()}
    yield partitions.write_rows([(ids[key], *row[1:]) for key, row in plan.rows.items()])
    now_ms: int = yield objects.now()
    for part in plan.partitions:
        partition_id = ids[plan.topic.topic_id, part.partition]
        yield extents.insert(extents.rows_of(partition_id, part.extents))
        yield partitions.write_producers(
            [
                partitions.producer_row(partition_id, producer_id, state._replace(seen_ms=now_ms))
                for producer_id, state in part.producers.items()
            ]
        )
