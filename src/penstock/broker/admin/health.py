"""Whether the broker is alive and ready, each with the cause when it is not.

*Alive* is false only when nothing but a restart helps: the store has failed for good. *Ready*
also asks that the metadata is loaded, that every partition this broker leads has its log, and
that the broker is not stopping.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.broker.state import BrokerState


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that must hold; `cause` is empty when it does."""

    name: str
    cause: str = ""
    vital: bool = False

    @property
    def ok(self) -> bool:
        return not self.cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """All checks of one moment."""

    checks: tuple[Check, ...]

    @property
    def ready(self) -> bool:
        return all(check.ok for check in self.checks)

    @property
    def alive(self) -> bool:
        return all(check.ok for check in self.checks if check.vital)

    def as_json(self) -> dict[str, Any]:
        return {
            "status": "ok" if self.ready else "failing",
            "checks": [
                {"name": check.name, "ok": check.ok, "cause": check.cause or None}
                for check in self.checks
            ],
        }


def health_of(state: BrokerState) -> Health:
    """Look at the broker's state; touches neither disk nor control plane."""
    failed = state.store.failed
    return Health(
        checks=(
            Check(name="storage", vital=True, cause="" if failed is None else str(failed)),
            Check(
                name="metadata",
                cause="" if state.image is not None else "the metadata has not been loaded yet",
            ),
            Check(name="diskless", cause=_diskless(state)),
            Check(name="partitions", cause=_missing_logs(state)),
            Check(name="serving", cause="the broker is stopping" if state.stopping else ""),
        )
    )


def _diskless(state: BrokerState) -> str:
    if state.diskless is not None:
        return state.diskless.failure
    if any(topic.diskless for topic in state.topics.values()):
        return "there are diskless topics, and this broker has no object store"
    return ""


def _missing_logs(state: BrokerState) -> str:
    missing = [
        f"{name}-{partition.index}"
        for name, topic in state.topics.items()
        for partition, log in zip(topic.topic.partitions, topic.logs, strict=True)
        if log is None and partition.leader == state.node_id and not topic.diskless
    ]
    if not missing:
        return ""
    shown = ", ".join(missing[:5])
    return f"{len(missing)} partition(s) without a log, the first: {shown}"
