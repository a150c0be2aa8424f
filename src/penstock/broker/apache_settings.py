"""Apache Kafka broker settings that have no effect here, with the reason.

Configurations written for Apache Kafka and AlterConfigs requests name them; they are accepted with
a warning. Settings whose neglect would reduce security or durability are rejected as unknown.

Source: Kafka's `KafkaConfig`, `DynamicBrokerConfig` (which of them AlterConfigs may change).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from penstock.base.settings import Kind, NoEffect, SettingInfo, render


class Idle(Struct, frozen=True, kw_only=True):
    """Settings without effect for one reason. A name that ends in a dot is a prefix."""

    names: Sequence[str]
    why: str
    dynamic: bool = False
    """Whether Apache Kafka lets AlterConfigs change them."""

    def has(self, name: str) -> bool:
        return any(
            name.startswith(own) and name != own if own.endswith(".") else name == own
            for own in self.names
        )


IDLE: Final = (
    Idle(
        names=("sasl.kerberos.",),
        why="the mechanism GSSAPI is not offered",
        dynamic=True,
    ),
    Idle(
        names=(
            "background.threads", "num.io.threads", "num.network.threads",
            "num.recovery.threads.per.data.dir", "num.replica.fetchers",
        ),
        why="a broker serves all requests on one event loop",
        dynamic=True,
    ),
    Idle(
        names=("num.replica.alter.log.dirs.threads",),
        why="a broker has one directory of logs",
    ),
    Idle(
        names=("metric.reporters",),
        why="metrics are served at /metrics of the admin address",
        dynamic=True,
    ),
    Idle(
        names=("auto.include.jmx.reporter", "kafka.metrics.", "metrics."),
        why="metrics are served at /metrics of the admin address",
    ),
    Idle(
        names=(
            "controller.listener.names", "controller.quorum.", "controller.socket.timeout.ms",
            "initial.broker.registration.timeout.ms", "inter.broker.protocol.version", "metadata.",
            "process.roles", "zookeeper.",
        ),
        why="metadata is kept in the control plane, and no broker is a controller",
    ),
    Idle(
        names=(
            "group.coordinator.", "offsets.commit.required.acks", "offsets.load.buffer.size",
            "offsets.topic.", "share.coordinator.", "transaction.state.log.",
        ),
        why="groups and transactions are kept in the control plane, not in topics",
    ),
    Idle(
        names=(
            "replica.fetch.", "replica.high.watermark.checkpoint.interval.ms", "replica.socket.",
        ),
        why="leaders send to replicas, which do not fetch",
    ),
    Idle(
        names=("log.message.downconversion.enable",),
        why="records have one format",
        dynamic=True,
    ),
    Idle(
        names=("log.cleaner.io.buffer.load.factor",),
        why="compaction sizes its tables itself",
        dynamic=True,
    ),
    Idle(
        names=(
            "log.flush.offset.checkpoint.interval.ms", "log.flush.scheduler.interval.ms",
            "log.flush.start.offset.checkpoint.interval.ms", "log.initial.task.delay.ms",
            "log.message.format.version",
        ),
        why="the journal and its checkpoints replace it",
    ),
    Idle(
        names=(
            "remote.log.metadata.", "remote.log.storage.manager.", "rlmm.config.", "rsm.config.",
        ),
        why="the archive is the store of diskless.storage.url",
    ),
)  # fmt: skip
_ANY: Final = Kind("text", render)


def idle_setting(name: str) -> SettingInfo | None:
    """Return the declaration of an Apache Kafka setting without effect here; else None."""
    group = _group(name)
    if group is None:
        return None
    return SettingInfo(
        name=name,
        doc=f"A setting of Apache Kafka. It has no effect: {group.why}.",
        unit="",
        default="",
        minimum=None,
        maximum=None,
        choices=(),
        pattern="",
        no_effect=NoEffect(why=group.why),
        like="",
        kind=_ANY,
        shown="",
        secret=False,
        type_name="str",
        attribute="",
    )


def may_be_altered(name: str) -> bool:
    """Return whether AlterConfigs accepts such a setting."""
    group = _group(name)
    return group is not None and group.dynamic


def _group(name: str) -> Idle | None:
    return next((group for group in IDLE if group.has(name)), None)
