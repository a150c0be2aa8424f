"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources; client quotas.

A change is computed from the stored configurations and written by compare-and-set. If they have
changed meanwhile, it is computed again, up to `ATTEMPTS_MAX` times. Changes of a topic's
`diskless.enable` are carried out by `migration`.

Source: Kafka's `ConfigHelper` and `ConfigAdminManager`; KIP-133, KIP-226, KIP-339, KIP-569,
KIP-1142 (ListConfigResources).
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.base.errors import PenstockError
from penstock.base.ids import validate_topic_name
from penstock.base.settings import whole_number
from penstock.broker.configuration.configs import (
    Change,
    ConfigEntry,
    ConfigSource,
    ConfigType,
    Levels,
    Operation,
    apply_broker_changes,
    apply_topic_changes,
    check_broker_configs,
    check_topic_configs,
    check_unique,
    describe_broker,
    describe_cluster_defaults,
    describe_topic,
    idle_broker_configs,
    idle_topic_configs,
    topic_config,
)
from penstock.broker.configuration.groups import (
    GROUP_KIND,
    apply_group_changes,
    check_group_configs,
    describe_group,
)
from penstock.broker.configuration.settings import BrokerSettings
from penstock.broker.metadata.leaders import check_change, is_diskless, kept
from penstock.broker.net.connection import RequestContext
from penstock.broker.net.errors import BadRequest, UnknownTopicOrPartition, error_fields
from penstock.broker.net.listeners import Identity, shown
from penstock.broker.quotas.entities import (
    Component,
    Entity,
    QuotaChange,
    altered,
    entity_of,
    matching,
    text_of,
)
from penstock.broker.telemetry.subscriptions import (
    apply_subscription_changes,
    check_subscription,
    describe_subscription,
)
from penstock.broker.topics.admin import TopicAdmin, check_tiers
from penstock.control import StaleConfigs, StaleTopic, Topic
from penstock.control.rules.diskless import DISKLESS_CONFIG
from penstock.control.values.topics import CLIENT_METRICS as CLIENT_METRICS_KIND
from penstock.control.values.topics import QUOTA
from penstock.wire.kafka.framing import UnsupportedVersion

if TYPE_CHECKING:
    from penstock.broker.admin.health import Readiness
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.migration import TopicMigrations
    from penstock.control import ControlPlane, MetadataImage


logger = logging.getLogger(__name__)

TOPIC: Final = 2
BROKER: Final = 4
BROKER_LOGGER: Final = 8
CLIENT_METRICS: Final = 16
GROUP: Final = 32
RESOURCE_TYPES: Final = (TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP)
"""Resource types that ListConfigResources accepts; broker loggers have no configurations."""
ATTEMPTS_MAX: Final = 5
UNAVAILABLE: Final = "broker.unavailable"
"""Name of a read-only configuration of a broker that lists its unavailable dependencies."""
_NAMES: Final = {
    TOPIC: "topic", BROKER: "broker", CLIENT_METRICS: "client metrics", GROUP: "group",
}  # fmt: skip
_NOT_SERVED: Final = (
    "is not supported, only topics (2), brokers (4), client metrics (16) and groups (32)"
)

Entry = dict[str, Any]
Computed = Callable[[Levels, Mapping[str, str]], Mapping[str, str | None]]


class Configs(Struct, frozen=True, kw_only=True):
    settings: BrokerSettings
    node_id: int
    control: ControlPlane
    cluster: ClusterMetadata
    migrations: TopicMigrations
    identity: Identity
    readiness: Readiness
    topic_admin: TopicAdmin

    # -- DescribeConfigs ------------------------------------------------------------------------

    async def describe_configs(self, context: RequestContext, request: Any) -> Entry:
        synonyms = request.include_synonyms
        documentation = getattr(request, "include_documentation", False)
        asked = [resource for resource in request.resources if _asks_for_causes(resource)]
        causes = ""
        if asked:
            health, _ = await asyncio.gather(self.readiness.look(), self.cluster.look())
            causes = health.causes
        else:
            await self.cluster.look()
        return {
            "results": [
                self._described(resource, causes, synonyms=synonyms, documentation=documentation)
                for resource in request.resources
            ]
        }

    def _described(
        self, resource: Any, causes: str, *, synonyms: bool, documentation: bool
    ) -> Entry:
        answer = _named(resource)
        try:
            entries = self._entries(resource)
            if _asks_for_causes(resource):
                entries.append(_unavailable(causes))
        except PenstockError as error:
            return {**answer, **error_fields(error), "configs": ()}
        answer["configs"] = [
            _entry(entry, synonyms=synonyms, documentation=documentation) for entry in entries
        ]
        return answer

    def _entries(self, resource: Any) -> list[ConfigEntry]:
        kind, name = resource.resource_type, resource.resource_name
        keys = resource.configuration_keys or None
        levels = self.topic_admin.levels()
        if kind == TOPIC:
            return describe_topic(levels, self._topic(name).configs, keys)
        if kind == GROUP:
            return describe_group(self.settings, self._group(name), keys)
        if kind == CLIENT_METRICS:
            return describe_subscription(self._subscription(name), keys)
        if kind != BROKER:
            raise BadRequest(f"resource type {kind} {_NOT_SERVED}")
        if not name:
            return describe_cluster_defaults(levels, keys)
        self._check_broker_name(name)
        return describe_broker(replace(levels, file=(self._with_addresses(),)), keys)

    def _with_addresses(self) -> BrokerSettings:
        """Return the settings with the addresses that are in use, instead of port 0 or defaults."""
        endpoints = tuple(shown(*endpoint) for endpoint in self.identity.endpoints.items())
        settings = dataclasses.replace(self.settings, advertised_listeners=endpoints)
        if self.identity.admin_port is not None:
            host, _, _ = settings.admin_listener.rpartition(":")
            settings = dataclasses.replace(
                settings, admin_listener=f"{host}:{self.identity.admin_port}"
            )
        return settings

    def _topic(self, name: str) -> Topic:
        validate_topic_name(name)
        topic = self.cluster.image.topics.get(name)
        if topic is None:
            raise UnknownTopicOrPartition(f"topic {name!r} does not exist")
        return topic

    def _group(self, name: str) -> Mapping[str, str]:
        """Return a group's stored configurations, whether or not the group exists."""
        if not name:
            raise BadRequest("the group id must not be empty")
        return self.cluster.image.entity_configs.get((GROUP_KIND, name), {})

    def _subscription(self, name: str) -> Mapping[str, str]:
        """Return the configurations of a client metrics subscription; empty without one."""
        if not name:
            raise BadRequest("the name of a client metrics subscription must not be empty")
        return self.cluster.image.entity_configs.get((CLIENT_METRICS_KIND, name), {})

    def _check_broker_name(self, name: str) -> None:
        number = whole_number(name)
        if number is None:
            raise BadRequest(f"broker name {name[:32]!r} is not a whole number")
        if number != self.node_id:
            raise BadRequest(
                f"this is broker {self.node_id}: send requests for broker {name} to that broker"
            )

    # -- ListConfigResources --------------------------------------------------------------------

    async def list_config_resources(self, context: RequestContext, request: Any) -> Entry:
        """Return the names of resources with configurations, by the requested types.

        Version 0 of the request has no types and returns only client metrics.
        """
        kinds = frozenset(getattr(request, "resource_types", (CLIENT_METRICS,)) or RESOURCE_TYPES)
        unknown = sorted(kinds.difference(RESOURCE_TYPES))
        if unknown:
            raise UnsupportedVersion(
                f"resource types {unknown} are unknown; known types are {RESOURCE_TYPES}"
            )
        await self.cluster.look()
        image = self.cluster.image
        names = {
            TOPIC: sorted(image.topics),
            BROKER: [str(broker.broker_id) for broker in image.brokers],
            CLIENT_METRICS: _named_of(image, CLIENT_METRICS_KIND),
            GROUP: _named_of(image, GROUP_KIND),
        }
        return {
            "config_resources": [
                {"resource_name": name, "resource_type": kind}
                for kind, found in names.items()
                if kind in kinds
                for name in found
            ]
        }

    # -- changes -------------------------------------------------------------------------------

    async def alter_configs(self, context: RequestContext, request: Any) -> Entry:
        def replaced(resource: Any) -> _Alteration:
            check_unique(config.name for config in resource.configs)
            configs = {config.name: config.value for config in resource.configs}
            return _Alteration(
                resource=resource,
                topic=lambda levels, current: kept(configs, current),
                broker=lambda levels, current: configs,
                group=lambda levels, current: configs,
                client_metrics=lambda levels, current: configs,
            )

        return await self._alter(request, replaced)

    async def incremental_alter_configs(self, context: RequestContext, request: Any) -> Entry:
        def changed(resource: Any) -> _Alteration:
            changes = tuple(_change(config) for config in resource.configs)
            return _Alteration(
                resource=resource,
                topic=lambda levels, current: apply_topic_changes(levels, current, changes),
                broker=lambda levels, current: apply_broker_changes(levels, current, changes),
                group=lambda _, current: apply_group_changes(self.settings, current, changes),
                client_metrics=lambda _, current: apply_subscription_changes(current, changes),
            )

        return await self._alter(request, changed)

    async def _alter(self, request: Any, read: Callable[[Any], _Alteration]) -> Entry:
        counts = Counter((item.resource_type, item.resource_name) for item in request.resources)
        await self.cluster.refresh()
        responses = []
        for resource in request.resources:
            answer = _named(resource)
            try:
                if counts[resource.resource_type, resource.resource_name] > 1:
                    raise BadRequest("Each resource must appear at most once.")
                notes = await self._apply(read(resource), validate_only=request.validate_only)
                answer["error_message"] = "; ".join(notes) or None
            except PenstockError as error:
                answer.update(error_fields(error))
            responses.append(answer)
        return {"responses": responses}

    async def _apply(self, alteration: _Alteration, *, validate_only: bool) -> tuple[str, ...]:
        """Apply the change, and return warnings about settings without effect."""
        kind = alteration.resource.resource_type
        store = _STORES.get(kind)
        if store is None:
            raise BadRequest(f"resource type {kind} {_NOT_SERVED}")
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                notes = await store(self, alteration, validate_only=validate_only)
                break
            except (StaleConfigs, StaleTopic):
                if attempt == ATTEMPTS_MAX:
                    raise
                await self.cluster.refresh()
        await self.cluster.refresh()
        if notes and not validate_only:
            name = alteration.resource.resource_name
            logger.warning("%s %s: %s", _NAMES[kind], name, "; ".join(notes))
        return notes

    async def _apply_topic(
        self, alteration: _Alteration, *, validate_only: bool
    ) -> tuple[str, ...]:
        topic = self._topic(alteration.resource.resource_name)
        configs = self._changed_topic(alteration, topic)
        if (configs.get(DISKLESS_CONFIG) == "true") is not is_diskless(topic):
            self.migrations.check(topic)
            if not validate_only:
                await self.migrations.migrate(topic, partial(self._changed_topic, alteration))
        elif not validate_only and configs != topic.configs:
            await self.control.set_topic_configs(
                topic_id=topic.topic_id, configs=configs, expected=topic.configs
            )
        return idle_topic_configs(_new(configs, topic.configs))

    def _changed_topic(self, alteration: _Alteration, topic: Topic) -> dict[str, str]:
        levels = self.topic_admin.levels()
        configs = check_topic_configs(topic.name, levels, alteration.topic(levels, topic.configs))
        effective = topic_config(levels, configs)
        enabled = self.topic_admin.tiered
        check_tiers(topic.name, topic.configs, configs, effective, enabled=enabled)
        self.topic_admin.schema_checks.check_config(topic.name, effective, topic.configs)
        return check_change(topic, configs, effective)

    async def _apply_broker(
        self, alteration: _Alteration, *, validate_only: bool
    ) -> tuple[str, ...]:
        name = alteration.resource.resource_name
        if name:
            self._check_broker_name(name)
        current = self.cluster.image.broker_configs.get(name, {})
        configs = check_broker_configs(alteration.broker(self.topic_admin.levels(), current))
        if not validate_only and configs != current:
            await self.control.set_broker_configs(broker=name, configs=configs, expected=current)
        return idle_broker_configs(_new(configs, current))

    async def _apply_group(
        self, alteration: _Alteration, *, validate_only: bool
    ) -> tuple[str, ...]:
        name = alteration.resource.resource_name
        current = self._group(name)
        changed = alteration.group(self.topic_admin.levels(), current)
        configs = check_group_configs(self.settings, name, changed)
        if not validate_only and configs != current:
            await self.control.set_entity_configs(
                kind=GROUP_KIND, changes={name: configs}, expected={name: current}
            )
        return ()

    async def _apply_client_metrics(
        self, alteration: _Alteration, *, validate_only: bool
    ) -> tuple[str, ...]:
        name = alteration.resource.resource_name
        current = self._subscription(name)
        changed = alteration.client_metrics(self.topic_admin.levels(), current)
        configs = check_subscription(name, changed)
        if not validate_only and configs != current:
            await self.control.set_entity_configs(
                kind=CLIENT_METRICS_KIND, changes={name: configs}, expected={name: current}
            )
        return ()


def _asks_for_causes(resource: Any) -> bool:
    keys = resource.configuration_keys or ()
    return resource.resource_type == BROKER and bool(resource.resource_name) and UNAVAILABLE in keys


def _unavailable(causes: str) -> ConfigEntry:
    return ConfigEntry(
        name=UNAVAILABLE,
        value=causes,
        source=ConfigSource.DEFAULT,
        type=ConfigType.STRING,
        documentation="Dependencies of the broker that are unavailable now, with the causes.",
        read_only=True,
    )


def _entry(entry: ConfigEntry, *, synonyms: bool, documentation: bool) -> Entry:
    return {
        "name": entry.name,
        "value": entry.value,
        "read_only": entry.read_only,
        "config_source": int(entry.source),
        "is_sensitive": entry.sensitive,
        "synonyms": [
            {"name": synonym.name, "value": synonym.value, "source": int(synonym.source)}
            for synonym in entry.synonyms
        ]
        if synonyms
        else (),
        "config_type": int(entry.type),
        "documentation": entry.documentation if documentation else None,
    }


def _named_of(image: MetadataImage, kind: str) -> list[str]:
    return sorted(name for of, name in image.entity_configs if of == kind)


class _Alteration(Struct, frozen=True, kw_only=True):
    """Requested change of the configurations of `resource`.

    Each of the other fields is a function for one type of resource. It computes the new
    configurations from the stored ones.
    """

    resource: Any
    topic: Computed
    broker: Computed
    group: Computed
    client_metrics: Computed


def _change(config: Any) -> Change:
    try:
        operation = Operation(config.config_operation)
    except ValueError:
        raise BadRequest(
            f"configuration {config.name}: operation {config.config_operation} is unknown"
        ) from None
    return Change(name=config.name, operation=operation, value=config.value)


def _new(configs: Mapping[str, str], current: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in configs.items() if current.get(name) != value}


_STORES: Final = {
    TOPIC: Configs._apply_topic,
    BROKER: Configs._apply_broker,
    CLIENT_METRICS: Configs._apply_client_metrics,
    GROUP: Configs._apply_group,
}
"""Methods that check and store a change, by resource type."""


def _named(resource: Any) -> Entry:
    return {"resource_type": resource.resource_type, "resource_name": resource.resource_name}


# DescribeClientQuotas and AlterClientQuotas, with the rules of `broker/quotas/`.
#
# Source: KIP-546; Kafka's `ControllerApis`.


Answer = dict[str, Any]


class ClientQuotas(Struct, frozen=True, kw_only=True):
    control: ControlPlane
    cluster: ClusterMetadata

    async def describe_client_quotas(self, context: RequestContext, request: Any) -> Answer:
        await self.cluster.look()
        components = [
            Component(kind=component.entity_type, match=component.match_type, name=component.match)
            for component in request.components
        ]
        try:
            found = list(
                matching(self.cluster.image.entity_configs, components, strict=request.strict)
            )
        except PenstockError as error:
            return {**error_fields(error), "entries": None}
        return {
            "entries": [
                {
                    "entity": _entity_parts(entity),
                    "values": [{"key": key, "value": value} for key, value in values.items()],
                }
                for entity, values in found
            ]
        }

    async def alter_client_quotas(self, context: RequestContext, request: Any) -> Answer:
        await self.cluster.refresh()
        for _ in range(ATTEMPTS_MAX - 1):
            try:
                return await self._alter(request)
            except StaleConfigs:
                await self.cluster.refresh()
        return await self._alter(request)

    async def _alter(self, request: Any) -> Answer:
        """Change the stored quotas as requested; raises StaleConfigs after a concurrent change."""
        known = self.cluster.image.entity_configs
        pairs = [
            [(part.entity_type, part.entity_name) for part in entry.entity]
            for entry in request.entries
        ]
        counts = Counter(frozenset(entity) for entity in pairs)
        changes, expected, answers = {}, {}, []
        for entry, entity in zip(request.entries, pairs, strict=True):
            answer: Answer = {
                "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity]
            }
            answers.append(answer)
            try:
                if counts[frozenset(entity)] > 1:
                    raise BadRequest("the request contains this quota entity more than once")
                owner = entity_of(entity)
                name = text_of(owner)
                current = known.get((QUOTA, name), {})
                changes[name] = _altered(owner, current, entry)
                expected[name] = current
            except PenstockError as error:
                answer |= error_fields(error)
        if changes and not request.validate_only:
            await self.control.set_entity_configs(kind=QUOTA, changes=changes, expected=expected)
            await self.cluster.refresh()
        return {"entries": answers}


def _altered(entity: Entity, current: Any, entry: Any) -> dict[str, str]:
    changes = [
        QuotaChange(key=change.key, value=None if change.remove else change.value)
        for change in entry.ops
    ]
    return altered(entity, current, changes)


def _entity_parts(entity: Entity) -> list[Answer]:
    return [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()]
