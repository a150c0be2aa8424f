"""Creation of topics that `topic_plan` has planned.

Topics of one call are written concurrently, so that the control plane batches them; one refresh of
the image opens their logs. The caller waits for the leaders of partitions with several replicas,
because not all clients retry a request to a leader that is not ready.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

from penstock.base.errors import PenstockError
from penstock.broker.admin_errors import TopicNameCollision
from penstock.broker.configs import Levels, topic_config
from penstock.broker.diskless import check_local
from penstock.broker.leader_epochs import is_unopened
from penstock.broker.tiers import check_tiers
from penstock.broker.topic_plan import TopicPlan, TopicSpec, plan_topic, unify

if TYPE_CHECKING:
    from penstock.base.system import Randomness
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.settings import BrokerSettings
    from penstock.control import ControlPlane, Topic

CONCURRENT_CHANGES_MAX: Final = 256
"""Largest number of topics that one request stores in the control plane at a time."""
LED_SECONDS: Final = 3.0
"""Longest wait for the leaders of new partitions. The topic exists even if they are late."""


class TopicAdmin:
    """Creator of topics. `diskless`: the brokers have an object store; `tiered`: an archive."""

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
        dynamic = self._cluster.image.broker_configs
        return Levels(
            file=(self._settings,),
            cluster=dynamic.get("", {}),
            broker=dynamic.get(str(self._settings.node_id), {}),
        )

    def plan(self, specs: Sequence[TopicSpec]) -> list[TopicPlan | PenstockError]:
        """Return a plan or an error for each topic; `specs` are all topics of one request."""
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
        """Store the plans and open their logs; return topics and errors in the plans' order."""
        results: list[Topic | PenstockError] = []
        for start in range(0, len(plans), CONCURRENT_CHANGES_MAX):
            chunk = plans[start : start + CONCURRENT_CHANGES_MAX]
            results += await asyncio.gather(*(self._create(plan) for plan in chunk))
        await self._cluster.refresh()
        await self.led([topic.name for topic in results if not isinstance(topic, PenstockError)])
        return results

    async def led(self, names: Collection[str]) -> None:
        """Wait until all partitions of topics have leaders, at most `LED_SECONDS`."""
        loop = asyncio.get_running_loop()
        until = loop.time() + LED_SECONDS
        while (left := until - loop.time()) > 0 and self._awaits_leaders(names):
            await self._cluster.next_image(left)

    def _awaits_leaders(self, names: Collection[str]) -> bool:
        image = self._cluster.image
        topics = [image.topics[name] for name in names if name in image.topics]
        live = {broker.broker_id for broker in image.brokers}
        return any(
            row.leader in live and is_unopened(topic, row)
            for topic in topics
            for row in topic.partitions
        )

    async def create_by_default(self, names: Sequence[str]) -> list[Topic | PenstockError]:
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
