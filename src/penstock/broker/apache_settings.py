"""Apache Kafka broker settings that have no effect here, with the reason.

Configuration files that were written for Apache Kafka, and AlterConfigs requests, may contain these
settings. The broker accepts them with a warning. A setting without which security or durability
would be reduced is not in this list, so the broker rejects it as unknown.

Source: Kafka's `KafkaConfig`, and `DynamicBrokerConfig` for the settings that AlterConfigs changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from penstock.base.settings import Kind, NoEffect, SettingInfo, render


class Idle(Struct, frozen=True, kw_only=True):
    """Settings that have no effect for the same reason. A name that ends in a dot is a prefix."""

    names: Sequence[str]
    why: str
    dynamic: bool = False
    """Whether AlterConfigs may change these settings in Apache Kafka."""

    def has(self, name: str) -> bool:
        return any(
            name.startswith(own) and name != own if own.endswith(".") else name == own
            for own in self.names
        )


IDLE: Final = (
    Idle(
        names=("sasl.kerberos.",),
        why="the SASL mechanism GSSAPI (Kerberos) is not supported",
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
        why="a broker has one log directory",
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
        why="metadata is stored in the control plane, and no broker is a controller",
    ),
    Idle(
        names=(
            "group.coordinator.", "offsets.commit.required.acks", "offsets.load.buffer.size",
            "offsets.topic.", "share.coordinator.", "transaction.state.log.",
        ),
        why="groups and transactions are stored in the control plane, not in topics",
    ),
    Idle(
        names=(
            "replica.fetch.", "replica.high.watermark.checkpoint.interval.ms", "replica.socket.",
        ),
        why="leaders send records to followers, so followers do not fetch",
    ),
    Idle(
        names=("log.message.downconversion.enable",),
        why="all records have the same message format",
        dynamic=True,
    ),
    Idle(
        names=("log.cleaner.io.buffer.load.factor",),
        why="compaction computes the size of its tables",
        dynamic=True,
    ),
    Idle(
        names=(
            "log.flush.offset.checkpoint.interval.ms", "log.flush.scheduler.interval.ms",
            "log.flush.start.offset.checkpoint.interval.ms", "log.initial.task.delay.ms",
            "log.message.format.version",
        ),
        why="the journal and its checkpoints replace this mechanism",
    ),
    Idle(
        names=(
            "remote.log.metadata.", "remote.log.storage.manager.", "rlmm.config.", "rsm.config.",
        ),
        why="archived segments are stored in the object store of diskless.storage.url",
    ),
)  # fmt: skip
_ANY: Final = Kind("text", render)


def idle_setting(name: str) -> SettingInfo | None:
    """Return the declaration of an Apache Kafka setting without effect; None for other names."""
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
    """Return whether `name` is a setting without effect that AlterConfigs accepts."""
    group = _group(name)
    return group is not None and group.dynamic


def _group(name: str) -> Idle | None:
    return next((group for group in IDLE if group.has(name)), None)
