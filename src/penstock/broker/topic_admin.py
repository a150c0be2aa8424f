"""Stores what `topic_plan` decides: the one place of the broker that creates topics.

CreateTopics and the automatic creation by Metadata both come here. Topics of one call are
written side by side, so that the control plane commits them in few transactions; the image is
refreshed once at the end, which opens their logs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from penstock.base.errors import PenstockError
from penstock.broker.admin_errors import TopicNameCollision
from penstock.broker.configs import Levels, topic_config
from penstock.broker.diskless import check_local
from penstock.broker.tiers import check_tiers
from penstock.broker.topic_plan import TopicPlan, TopicSpec, plan_topic, unify

if TYPE_CHECKING:
    from penstock.base.system import Randomness
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.settings import BrokerSettings
    from penstock.control import ControlPlane, Topic

CONCURRENT_CHANGES_MAX: Final = 256
"""Changes of one request that wait in the control plane's queue at a time."""


class TopicAdmin:
    """Plans topics and stores them; `diskless` says whether there is an object store, `tiered`
    whether what is closed may be copied there."""

    def __init__(
        self,
        *,
        settings: BrokerSettings,
        cluster: ClusterMetadata,
        control: ControlPlane,
        randomness: Randomness,
        diskless: bool,
        tiered: bool = False,
    ) -> None:
        self._settings = settings
        self._cluster = cluster
        self._control = control
        self._randomness = randomness
        self._diskless = diskless
        self.tiered = tiered

    def levels(self) -> Levels:
        """The configuration levels below the topic, as the newest image has them."""
        dynamic = self._cluster.image.broker_configs
        return Levels(
            file=(self._settings,),
            cluster=dynamic.get("", {}),
            broker=dynamic.get(str(self._settings.node_id), {}),
        )

    def plan(self, specs: Sequence[TopicSpec]) -> list[TopicPlan | PenstockError]:
        """Plan every topic, each against the others too; an error stands in the place of a plan."""
        image, levels = self._cluster.image, self.levels()
        unified: dict[str, str] = {}
        results: list[TopicPlan | PenstockError] = []
        for spec in specs:
            try:
                topic_id = self._randomness.uuid()
                plan = plan_topic(
                    spec, topic_id, image=image, settings=self._settings, levels=levels
                )
                if not self._diskless:
                    check_local(spec.name, plan.configs)
                effective = topic_config(levels, plan.configs)
                check_tiers(spec.name, {}, plan.configs, effective, enabled=self.tiered)
                other = unified.setdefault(unify(spec.name), spec.name)
                if other != spec.name:
                    raise TopicNameCollision(
                        f"topic {spec.name!r} collides with {other!r} of the same request"
                    )
                results.append(plan)
            except PenstockError as error:
                results.append(error)
        return results

    async def create(
        self, plans: Sequence[TopicPlan | PenstockError]
    ) -> list[Topic | PenstockError]:
        """Store the plans and open their logs; errors are handed through in their places."""
        results: list[Topic | PenstockError] = []
        for start in range(0, len(plans), CONCURRENT_CHANGES_MAX):
            chunk = plans[start : start + CONCURRENT_CHANGES_MAX]
            results += await asyncio.gather(*(self._create(plan) for plan in chunk))
        await self._cluster.refresh()
        return results

    async def create_by_default(self, names: Sequence[str]) -> list[Topic | PenstockError]:
        """Create topics with the broker's defaults, for Metadata requests that allow it."""
        return await self.create(self.plan([TopicSpec(name=name) for name in names]))

    async def _create(self, plan: TopicPlan | PenstockError) -> Topic | PenstockError:
        if isinstance(plan, PenstockError):
            return plan
        try:
            return await self._control.create_topic(
                name=plan.name,
                topic_id=plan.topic_id,
                partitions=plan.partitions,
                configs=plan.configs,
                min_insync_replicas=plan.min_insync_replicas,
                internal=plan.internal,
            )
        except PenstockError as error:
            return error
