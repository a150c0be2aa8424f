"""A topic's switch at the broker that was asked for it.

If it leads all partitions, it copies, fences and commits. If others lead some, it asks them for
their shares in the control plane, and all go in step:

    this broker   open ── copying ── ready ──┬── fenced ──────────┬── commit
    the others           copying ── ready ──┘ └── fenced, stored ──┘  └── see that it is over

Nobody fences before all are ready, so that producers wait no longer than the slowest tail takes.
Whoever gives up deletes the request; `control/batch_index/switch_rules.py` says why that is safe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.base.errors import PenstockError
from penstock.base.pause import pause
from penstock.broker.admin_errors import InvalidConfig
from penstock.broker.diskless import is_diskless
from penstock.broker.errors import UnknownTopicId
from penstock.broker.limits import (
    SWITCH_COMMITS_MAX,
    SWITCH_FENCE_SECONDS,
    SWITCH_JOIN_SECONDS,
    SWITCH_PASS_SECONDS,
    SWITCH_POLL_SECONDS,
)
from penstock.broker.switching.errors import SwitchFailed
from penstock.broker.switching.joining import Joined
from penstock.broker.switching.patience import until_known
from penstock.broker.switching.share import is_of_living
from penstock.control import (
    InvalidCommit,
    ObjectLeaseLost,
    StaleSwitch,
    StaleTopic,
    SwitchRefused,
    SwitchRequest,
    SwitchShare,
    Topic,
    UnknownTopic,
)

if TYPE_CHECKING:
    from penstock.broker.switching.share import LocalShare, SwitchParts

Changed = Callable[[Topic], Mapping[str, str]]
"""What a topic's configs become, as the topic is now."""

REFUSALS: Final = (
    InvalidCommit,
    ObjectLeaseLost,
    StaleSwitch,
    StaleTopic,
    SwitchRefused,
    UnknownTopic,
    InvalidConfig,
)
"""Answers after which a commit can never take effect any more."""


class Coordinated:
    """One topic on its way."""

    def __init__(self, parts: SwitchParts, share: LocalShare, changed: Changed) -> None:
        self.share = share
        self._parts = parts
        self._changed = changed
        self._name = share.topic.name
        self._plane = share.part.plane
        self._request: SwitchRequest | None = None

    async def run(self) -> None:
        """Make the topic diskless, or take part where another broker was asked before.

        Its state says what became of it; raises as `TopicSwitches.switch`.
        """
        leaders = {one.leader for one in self.share.topic.partitions}
        others = leaders - {self._parts.node_id}
        if others:
            request = self.share.part.request(self.share.topic)
            opened = await self._open(request)
            if opened != request:
                await Joined(self._parts, self.share, opened).run()
                return
            self._request = request
        try:
            await self._copy(others)
        except Exception:
            if self._request is not None:
                await until_known(self._name, partial(self._plane.close_switch, self._request))
            self.share.let_producers_in()
            raise
        self.share.state = "diskless"
        await until_known(self._name, self._parts.cluster.refresh)

    async def _open(self, request: SwitchRequest) -> SwitchRequest:
        """Store a request; the one that is open then, which may be another broker's."""
        try:
            return await self._plane.open_switch(request)
        except PenstockError:
            # It may be stored all the same, and others would wait for this broker in vain.
            await until_known(self._name, partial(self._plane.close_switch, request))
            raise

    async def _copy(self, others: set[int]) -> None:
        await self.share.catch_up()
        await self._ready(others)
        await self.share.stop_producers()
        await self._fenced(others)
        await self._commit()

    async def _ready(self, others: set[int]) -> None:
        """Tell that this broker is ready, and wait until all others are."""
        if self._request is None:
            return
        own = self.share.part.share("ready")
        await self._plane.join_switch(self._request, own)
        waited = passed = 0.0
        while not _all_are(await self._shares(others), "ready", "fenced"):
            await pause(SWITCH_POLL_SECONDS)
            waited += SWITCH_POLL_SECONDS
            silent = [one for one, share in (await self._shares(others)).items() if share is None]
            if silent and waited >= SWITCH_JOIN_SECONDS:
                raise SwitchFailed(
                    f"topic {self._name!r}: brokers {silent}, which lead partitions of it,"
                    f" did not join its switch within {SWITCH_JOIN_SECONDS} s"
                )
            if waited - passed >= SWITCH_PASS_SECONDS:
                passed = waited
                await self.share.keep_up()

    async def _fenced(self, others: set[int]) -> None:
        waited = 0.0
        while not _all_are(await self._shares(others), "fenced"):
            if waited >= SWITCH_FENCE_SECONDS:
                raise SwitchFailed(
                    f"topic {self._name!r}: brokers {sorted(others)} did not stop their producers"
                    f" and copy the last records within {SWITCH_FENCE_SECONDS} s"
                )
            await pause(SWITCH_POLL_SECONDS)
            waited += SWITCH_POLL_SECONDS

    async def _shares(self, others: set[int]) -> dict[int, SwitchShare | None]:
        """The shares of other brokers, None for those that have none yet.

        What a process has brought that died and was started again counts for nothing.

        Raises:
            SwitchFailed: one cannot, or is away; or somebody gave the switch up.
        """
        if self._request is None:
            return {}
        shares = await self._stored()
        for broker_id in sorted(others):
            if self._parts.cluster.image.broker(broker_id) is None:
                raise SwitchFailed(
                    f"topic {self._name!r}: broker {broker_id}, which leads partitions of it, is"
                    " away"
                )
            share = shares.get(broker_id)
            if share is not None and share.state == "failed":
                raise SwitchFailed(f"topic {self._name!r}: broker {broker_id}: {share.reason}")
        return {broker_id: shares.get(broker_id) for broker_id in sorted(others)}

    async def _stored(self) -> dict[int, SwitchShare]:
        for running in await self._plane.running_switches():
            if running.request == self._request:
                shares = [one for one in running.shares if is_of_living(self._parts, one)]
                return {share.broker_id: share for share in shares}
        raise SwitchFailed(f"topic {self._name!r}: another broker gave the switch up; ask again")

    async def _commit(self) -> None:
        """Commit until the outcome is known; raises when it can never take effect."""
        self.share.state = "committing"
        for attempt in range(1, SWITCH_COMMITS_MAX + 1):
            topic = self._now()
            if is_diskless(topic):
                return
            commit = partial(
                self.share.part.commit,
                topic,
                self._changed(topic),
                self.share.copy,
                self._request,
            )
            try:
                await until_known(self._name, commit, refusals=REFUSALS)
            except StaleTopic:
                if attempt == SWITCH_COMMITS_MAX:
                    raise
                await until_known(self._name, self._parts.cluster.refresh)
            else:
                return

    def _now(self) -> Topic:
        found = self._parts.partitions.topics_by_id.get(self.share.topic.topic_id.bytes)
        if found is None:
            raise UnknownTopicId(f"topic {self._name!r} was deleted")
        return found.topic


def _all_are(shares: Mapping[int, SwitchShare | None], *states: str) -> bool:
    return all([share is not None and share.state in states for share in shares.values()])
