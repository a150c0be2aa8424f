"""Where share groups stand, by what is stored: shown, set by hand, deleted.

Who sets or deletes compares rows as leaders do, and takes no notice of them: a leader that still
has the former state in memory can store nothing over it, and reads again.

Rows of topics that are gone are swept by the brokers that coordinate their groups: when they hear
of the deletion, and when they start.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final
from uuid import UUID

from penstock.broker.coordination.limits import SAVE_KEYS_MAX
from penstock.broker.share.limits import CHANGE_ATTEMPTS_MAX, LOAD_KEYS_MAX
from penstock.broker.share.record import ShareState, decode_state, encode_state
from penstock.broker.share.sessions import Place
from penstock.broker.share.shares import place_of, share_key
from penstock.broker.share.stored import KIND, ShareStateLost
from penstock.broker.share.values import RecordState
from penstock.control import KEY_ROW, CoordinationRecord, RecordChange

if TYPE_CHECKING:
    from penstock.control import ControlPlane, MetadataImage

logger = logging.getLogger(__name__)

Rows = Mapping[str, CoordinationRecord]
Changed = Callable[[str, CoordinationRecord | None], bytes | None]
"""A key's row from the one that is stored; None for no row."""

BEFORE_ANY: Final = -1
"""The leader epoch of what no leader has stored."""


class ShareOffsets:
    """The stored states of all share groups."""

    def __init__(self, control: ControlPlane, forget: Callable[[Collection[str]], None]) -> None:
        """`forget` is told of keys whose rows are others than this broker may have in memory."""
        self._control = control
        self._forget = forget

    async def keys(self) -> list[str]:
        """The keys of all share partitions of which anything is stored."""
        return await self._control.record_keys(KIND)

    async def of_group(self, group_id: str) -> dict[Place, ShareState]:
        """What is stored of a group's share partitions.

        Raises:
            CorruptShareState: one cannot be read.
        """
        keys = [key for key in await self.keys() if place_of(key)[0] == group_id]
        return {
            place_of(key)[1:]: decode_state(key, row.value)
            for key, row in (await self._rows(keys)).items()
        }

    async def archiving(self, keys: Sequence[str]) -> list[str]:
        """Those of some share partitions that have records which wait for their dead letters.

        Raises:
            CorruptShareState: one cannot be read.
        """
        return [
            key
            for key, row in (await self._rows(keys)).items()
            if any(run.state == RecordState.ARCHIVING for run in decode_state(key, row.value).runs)
        ]

    async def _rows(self, keys: Sequence[str]) -> Rows:
        found: dict[str, CoordinationRecord] = {}
        for some in _pieces(keys, LOAD_KEYS_MAX):
            for row in await self._control.records(KIND, some):
                if row.member == KEY_ROW:
                    found[row.key] = row
        return found

    async def set(self, group_id: str, offsets: Mapping[Place, int]) -> None:
        """Have a group go on at these offsets, with nothing acquired.

        Raises:
            ShareStateLost: leaders store something new all the time.
        """
        starts = {share_key(group_id, *place): offset for place, offset in offsets.items()}

        def begun(key: str, row: CoordinationRecord | None) -> bytes:
            epoch = -1 if row is None else decode_state(key, row.value).state_epoch
            return encode_state(epoch + 1, BEFORE_ANY, starts[key], ())

        await self._change(list(starts), begun)

    async def delete(self, group_id: str, topics: Collection[UUID] | None = None) -> None:
        """Forget what is stored of a group, or of some topics; raises as `set`."""
        places = map(place_of, await self.keys())
        await self._change(
            [
                share_key(*place)
                for place in places
                if place[0] == group_id and (topics is None or place[1] in topics)
            ],
            lambda *_: None,
        )

    async def sweep(
        self, newest: Callable[[], Awaitable[MetadataImage]], owns: Callable[[str], bool]
    ) -> int:
        """Forget the topics that are gone, of groups that are this broker's; how many partitions.

        The image is read after the keys: what it lacks has been there, and is no more.
        """
        keys = await self.keys()
        known = {topic.topic_id for topic in (await newest()).topics.values()}
        left = [key for key in keys if place_of(key)[1] not in known and owns(place_of(key)[0])]
        await self._change(left, lambda *_: None)
        return len(left)

    async def _change(self, keys: Sequence[str], changed: Changed) -> None:
        """Compare and set the rows of some keys; what has changed meanwhile is looked at again."""
        for some in _pieces(keys, SAVE_KEYS_MAX):
            left: Iterable[str] = some
            for _ in range(CHANGE_ATTEMPTS_MAX):
                left = await self._try(list(left), changed)
                if not left:
                    break
            else:
                raise ShareStateLost(f"share partition {next(iter(left))} changes all the time")

    async def _try(self, keys: Sequence[str], changed: Changed) -> list[str]:
        rows = await self._rows(keys)
        changes = []
        for key in keys:
            row = rows.get(key)
            value = changed(key, row)
            if row is not None or value is not None:
                version = 0 if row is None else row.version
                changes.append(
                    RecordChange(
                        kind=KIND, key=key, expected_version=version, rows={KEY_ROW: value}
                    )
                )
        if not changes:
            return []
        saved = await self._control.save_records(changes)
        self._forget(keys)
        return [key for _, key in saved.refused]


def _pieces(keys: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    return (keys[begin : begin + size] for begin in range(0, len(keys), size))
