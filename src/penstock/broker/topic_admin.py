"""Stores what `topic_plan` decides: the one place of the broker that creates topics.

CreateTopics and the automatic creation by Metadata both come here. Topics of one call are
written side by side, so that the control plane commits them in few transactions; the image is
refreshed once at the end, which opens their logs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from penstock.base.errors import PenstockError
from penstock.broker.admin_errors import TopicNameCollision
from penstock.broker.configs import Levels
from penstock.broker.diskless import check_local
from penstock.broker.state import BrokerState
from penstock.broker.topic_plan import TopicPlan, TopicSpec, plan_topic, unify
from penstock.control import Topic

CONCURRENT_CHANGES_MAX: Final = 256
"""Changes of one request that wait in the control plane's queue at a time."""


def levels_of(state: BrokerState) -> Levels:
    """The configuration levels below the topic, as the newest image has them."""
    dynamic = state.metadata.broker_configs
    return Levels(
        file=(state.settings,),
        cluster=dynamic.get("", {}),
        broker=dynamic.get(str(state.node_id), {}),
    )


def plan_topics(state: BrokerState, specs: Sequence[TopicSpec]) -> list[TopicPlan | PenstockError]:
    """Plan every topic, each against the others too; an error stands in the place of a plan."""
    image, levels = state.metadata, levels_of(state)
    unified: dict[str, str] = {}
    results: list[TopicPlan | PenstockError] = []
    for spec in specs:
        try:
            plan = plan_topic(spec, image=image, settings=state.settings, levels=levels)
            if state.diskless is None:
                check_local(spec.name, plan.configs)
            other = unified.setdefault(unify(spec.name), spec.name)
            if other != spec.name:
                raise TopicNameCollision(
                    f"topic {spec.name!r} collides with {other!r} of the same request"
                )
            results.append(plan)
        except PenstockError as error:
            results.append(error)
    return results


async def create_topics(
    state: BrokerState, plans: Sequence[TopicPlan | PenstockError]
) -> list[Topic | PenstockError]:
    """Store the plans and open their logs; errors are handed through in their places."""
    results: list[Topic | PenstockError] = []
    for start in range(0, len(plans), CONCURRENT_CHANGES_MAX):
        chunk = plans[start : start + CONCURRENT_CHANGES_MAX]
        results += await asyncio.gather(*(_create(state, plan) for plan in chunk))
    await state.refresh()
    return results


async def auto_create(state: BrokerState, names: Sequence[str]) -> list[Topic | PenstockError]:
    """Create topics with the broker's defaults, for Metadata requests that allow it."""
    return await create_topics(state, plan_topics(state, [TopicSpec(name=n) for n in names]))


async def _create(state: BrokerState, plan: TopicPlan | PenstockError) -> Topic | PenstockError:
    if isinstance(plan, PenstockError):
        return plan
    try:
        return await state.control.create_topic(
            name=plan.name,
            topic_id=state.randomness.uuid(),
            partitions=plan.partitions,
            configs=plan.configs,
        )
    except PenstockError as error:
        return error
