"""Operations that make a diskless topic replicated: the fence and the switch.

Locks are taken as in `migrating.py`. The switch moves the topic's batch index to an id without a
topic. It is then dropped in steps, like that of a deleted topic, and the topic may become diskless
again at once.
"""

from __future__ import annotations

from penstock.control.batch_index import migrations, partitions, replicating_rules
from penstock.control.batch_index.migration_values import MigrationRequest, TopicReplication
from penstock.control.drivers.statements import Operation
from penstock.control.epochs.operations import add_first
from penstock.control.metadata.images import Images, StampedImage
from penstock.control.sink_commits import operations as sinks
from penstock.control.values import Topic


def fence_topic(images: Images, request: MigrationRequest) -> Operation[tuple[None, StampedImage]]:
    known = yield from images.locked()
    found = yield from migrations.lock_request(request.topic_id)
    image = replicating_rules.fence(known.image, request, found, (yield from sinks.read_all()))
    return None, (yield from images.store(known, image))


def replicate_topic(
    images: Images, replication: TopicReplication
) -> Operation[tuple[Topic, StampedImage]]:
    known = yield from images.locked()
    plan = replicating_rules.plan_replication(
        known.image,
        replication,
        (yield from migrations.lock_request(replication.topic_id)),
        (yield from migrations.participants(replication.topic_id)),
        (yield from sinks.read_all()),
    )
    if not plan.epochs:
        return plan.topic, known
    yield from add_first(plan.epochs)
    yield partitions.retire(plan.topic.topic_id, replication.migration_id)
    yield migrations.delete_request(plan.topic.topic_id)
    return plan.topic, (yield from images.store(known, plan.image))
