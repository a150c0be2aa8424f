"""A topic's switch at a broker that leads some of its partitions, and does not coordinate it.

The broker goes in step with the others, see `coordinating.py`. Once it has stopped its producers
and stored its share, it keeps them out until the request is gone: then the topic is diskless, or
the switch can never take effect any more. If that takes too long, or the broker that coordinates
is away, it deletes the request itself.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from penstock.base.errors import PenstockError
from penstock.base.pause import pause
from penstock.broker.diskless import is_diskless
from penstock.broker.limits import SWITCH_FENCE_SECONDS, SWITCH_PASS_SECONDS, SWITCH_POLL_SECONDS
from penstock.broker.switching.patience import until_known
from penstock.broker.switching.share import is_of_living
from penstock.control import InvalidCommit, RunningSwitch, StaleSwitch, SwitchRefused, SwitchRequest

if TYPE_CHECKING:
    from penstock.broker.switching.share import LocalShare, SwitchParts
    from penstock.control.batch_index.switch_values import ShareState

logger = logging.getLogger(__name__)


class Joined:
    """One topic on its way."""

    def __init__(self, parts: SwitchParts, share: LocalShare, request: SwitchRequest) -> None:
        self.share = share
        self._parts = parts
        self._request = request
        self._name = share.topic.name
        self._plane = share.part.plane

    async def run(self) -> None:
        """Bring this broker's share, and keep producers out until it is known what came of it.

        Raises:
            PenstockError: this broker cannot; the others were told, and its partitions are local.
        """
        try:
            await self._bring()
            await self._over()
        except StaleSwitch:
            await self._settle()
        except Exception as error:
            reason = str(error) if isinstance(error, PenstockError) else "an internal error"
            await self._give_up(reason)
            await self._settle()
            raise
        else:
            await self._settle()

    async def _bring(self) -> None:
        await self._tell("copying")
        await self.share.catch_up()
        await self._tell("ready")
        waited = 0.0
        while not self._all_ready(await self._running()):
            await pause(SWITCH_POLL_SECONDS)
            waited += SWITCH_POLL_SECONDS
            if waited >= SWITCH_PASS_SECONDS:
                waited = 0.0
                await self.share.keep_up()
        await self.share.stop_producers()
        await until_known(
            self._name,
            partial(self._tell, "fenced"),
            refusals=(StaleSwitch, SwitchRefused, InvalidCommit),
        )

    async def _tell(self, state: ShareState, reason: str = "") -> None:
        copy = self.share.copy if state == "fenced" else None
        share = self.share.part.share(state, reason, copy)
        await self._plane.join_switch(self._request, share)

    async def _running(self) -> RunningSwitch:
        """The switch as it stands; raises StaleSwitch where it is over."""
        for running in await self._plane.running_switches():
            if running.request == self._request:
                owner = self._parts.cluster.image.broker(self._request.broker_id)
                if owner is None or owner.incarnation != self._request.incarnation:
                    await self._plane.close_switch(self._request)
                    break
                return running
        raise StaleSwitch(self._request.topic_id)

    def _all_ready(self, running: RunningSwitch) -> bool:
        ready = {
            one.broker_id
            for one in running.shares
            if one.state in ("ready", "fenced") and is_of_living(self._parts, one)
        }
        leaders = {one.leader for one in self.share.topic.partitions}
        return ready >= leaders | {self._request.broker_id}

    async def _over(self) -> None:
        """Wait until the request is gone; its end is this broker's to make if it does not come."""
        waited = 0.0
        while waited < SWITCH_FENCE_SECONDS:
            try:
                await self._running()
            except StaleSwitch:
                raise
            except PenstockError as error:
                logger.warning("topic %s is fenced: %s; looking on", self._name, error)
            await pause(SWITCH_POLL_SECONDS)
            waited += SWITCH_POLL_SECONDS
        await until_known(self._name, partial(self._plane.close_switch, self._request))

    async def _give_up(self, reason: str) -> None:
        """Tell the others that this broker cannot; on return its share counts for nothing."""
        tell = partial(self._tell, "failed", reason)
        try:
            await until_known(self._name, tell, refusals=(StaleSwitch,))
        except StaleSwitch:
            logger.info("topic %s: its switch was over before this broker gave up", self._name)

    async def _settle(self) -> None:
        """See what the topic is now that nothing more can become of the switch."""
        await until_known(self._name, self._parts.cluster.refresh)
        found = self._parts.partitions.topics_by_id.get(self._request.topic_id.bytes)
        if found is not None and is_diskless(found.topic):
            self.share.state = "diskless"
            return
        self.share.let_producers_in()
