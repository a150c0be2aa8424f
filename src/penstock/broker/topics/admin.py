"""Creation of topics that `broker/topics/plan.py` has planned, and checks of their tiers.

Topics of one call are written concurrently, so that the control plane batches them; one refresh of
the image opens their logs. The caller waits for the leaders of partitions with several replicas,
because not all clients retry a request to a leader that is not ready.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from penstock.base.errors import PenstockError
from penstock.broker.configuration.configs import Levels, topic_config
from penstock.broker.metadata.leaders import check_local, is_unopened
from penstock.broker.net.errors import InvalidConfig, TopicNameCollision
from penstock.broker.topics.plan import TopicPlan, TopicSpec, plan_partitions, plan_topic, unify
from penstock.control.rules.tiers import REMOTE_CONFIG
from penstock.storage.log.state import AS_WHOLE

if TYPE_CHECKING:
    from penstock.base.system import Randomness
    from penstock.broker.configuration.settings import BrokerSettings
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.requests.schema_ids import SchemaChecks
    from penstock.control import ControlPlane, Topic
    from penstock.replication.placement import Replicas
    from penstock.storage.files.settings import LogConfig


# Checks of the tiered storage configurations of a topic.
#
# | configuration                                  | rule                                          |
# |------------------------------------------------|-----------------------------------------------|
# | `remote.storage.enable`                        | requires the brokers'                         |
# |                                                | `remote.log.storage.system.enable`, excludes  |
# |                                                | compaction and diskless                       |
# | a local retention                              | at most the topic's retention                 |
# | `remote.log.copy.disable`                      | requires local retention = the topic's        |
# |                                                | retention                                     |
# | `remote.storage.enable` = false, after true    | requires `remote.log.delete.on.disable`, which|
# |                                                | deletes the archived segments                 |
#
# Source: KIP-405, KIP-950; Kafka's `LogConfig.validateRemoteStorage…`.


def check_tiers(
    name: str,
    current: Mapping[str, str],
    configs: Mapping[str, str],
    effective: LogConfig,
    *,
    enabled: bool,
) -> None:
    """Check the tiered storage configurations of a new or changed topic; raises InvalidConfig.

    `current` are its stored configurations, `effective` is the configuration in effect after the
    change. `enabled`: the brokers have tiered storage.
    """
    reason = _refusal(current, effective, enabled=enabled)
    if reason:
        raise InvalidConfig(f"topic {name!r}: {reason}")


def _refusal(current: Mapping[str, str], config: LogConfig, *, enabled: bool) -> str:
    was = current.get(REMOTE_CONFIG) == "true"
    if not config.remote_storage_enable:
        if was and not config.remote_log_delete_on_disable:
            return (
                f"{REMOTE_CONFIG} cannot be set to false while the archive has segments of the"
                " topic. To delete them, also set remote.log.delete.on.disable = true. To keep them"
                " readable, set remote.log.copy.disable = true instead"
            )
        return ""
    if not enabled and not was:
        return (
            f"{REMOTE_CONFIG} = true needs remote.log.storage.system.enable = true in the"
            " configuration of all brokers"
        )
    if config.diskless_enable:
        return f"{REMOTE_CONFIG} = true and diskless.enable = true exclude each other"
    if "compact" in config.cleanup_policy:
        policy = ",".join(config.cleanup_policy)
        return f"{REMOTE_CONFIG} = true needs cleanup.policy = delete, not {policy}"
    return _local_refusal(config)


def _local_refusal(config: LogConfig) -> str:
    for unit, local, whole in (
        ("ms", config.local_retention_ms, config.retention_ms),
        ("bytes", config.local_retention_bytes, config.retention_bytes),
    ):
        if local == AS_WHOLE:
            continue
        if whole >= 0 and (local < 0 or local > whole):
            return (
                f"local.retention.{unit} = {local} must not exceed retention.{unit} = {whole};"
                f" {AS_WHOLE} means the same value"
            )
        if config.remote_log_copy_disable and local != whole:
            return (
                f"remote.log.copy.disable = true needs local.retention.{unit} = {AS_WHOLE} or the"
                f" same value as retention.{unit} = {whole}, not {local}"
            )
    return ""


CONCURRENT_CHANGES_MAX: Final = 256
"""Largest number of topics that one request stores in the control plane at a time."""
LED_SECONDS: Final = 10.0
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
        schema_checks: SchemaChecks,
        tiered: bool = False,
    ) -> None:
        self._settings = settings
        self._cluster = cluster
        self._control = control
        self._randomness = randomness
        self._diskless = diskless
        self.schema_checks = schema_checks
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
                self.schema_checks.check_config(spec.name, effective)
                other = unified.setdefault(unify(spec.name), spec.name)
                if other != spec.name:
                    raise TopicNameCollision(
                        f"topic {spec.name!r} collides with {other!r} of the same request"
                    )
                results.append(plan)
            except PenstockError as error:
                results.append(error)
        return results

    def plan_added(
        self, topic: Topic, total: int, assignments: Sequence[Replicas] | None = None
    ) -> tuple[Replicas, ...]:
        """Return the replicas of the partitions to add to a topic; raises as `plan_partitions`."""
        return plan_partitions(
            topic, total_count=total, assignments=assignments, image=self._cluster.image,
            settings=self._settings, levels=self.levels(),
        )  # fmt: skip

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
