"""Administration of the stored states of share groups: read, reset and delete them.

A change replaces a row only if its version is unchanged, like the saves of leaders. Leaders need
not cooperate: a leader with the former state in memory cannot overwrite the change, and reads the
row again. Group coordinators delete the rows of deleted topics, at their start and after each
deletion.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final
from uuid import UUID

from penstock.broker.coordination.saving import SAVE_KEYS_MAX
from penstock.broker.share.record import ShareState, decode_state, encode_state
from penstock.broker.share.sessions import Place
from penstock.broker.share.shares import LOAD_KEYS_MAX, place_of, share_key
from penstock.broker.share.stored import KIND, ShareStateLost
from penstock.broker.share.values import RecordState
from penstock.control import KEY_ROW, CoordinationRecord, RecordChange

if TYPE_CHECKING:
    from penstock.control import ControlPlane, MetadataImage

CHANGE_ATTEMPTS_MAX: Final = 5
"""Maximum number of attempts of a change that conflicts with saves of leaders."""

logger = logging.getLogger(__name__)

Rows = Mapping[str, CoordinationRecord]
Changed = Callable[[str, CoordinationRecord | None], bytes | None]
"""Function that returns the new value of a key, from its stored row; None deletes the row."""

BEFORE_ANY: Final = -1


class ShareOffsets:
    def __init__(self, control: ControlPlane, forget: Callable[[Collection[str]], None]) -> None:
        """Create the administration; `forget` is called with keys whose rows were changed."""
        self._control = control
        self._forget = forget

    async def keys(self) -> list[str]:
        return await self._control.record_keys(KIND)

    async def of_group(self, group_id: str) -> dict[Place, ShareState]:
        """Return the stored share partitions of a group.

        Raises:
            CorruptShareState: a row cannot be decoded.
        """
        keys = [key for key in await self.keys() if place_of(key)[0] == group_id]
        return {
            place_of(key)[1:]: decode_state(key, row.value)
            for key, row in (await self._rows(keys)).items()
        }

    async def archiving(self, keys: Sequence[str]) -> list[str]:
        """Return the given keys of share partitions with records that wait for dead letters.

        Raises:
            CorruptShareState: a row cannot be decoded.
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
        """Reset the share partitions of a group to these offsets; acquisitions are dropped.

        Raises:
            ShareStateLost: every attempt conflicts with saves of leaders.
        """
        starts = {share_key(group_id, *place): offset for place, offset in offsets.items()}

        def begun(key: str, row: CoordinationRecord | None) -> bytes:
            epoch = -1 if row is None else decode_state(key, row.value).state_epoch
            return encode_state(epoch + 1, BEFORE_ANY, starts[key], ())

        await self._change(list(starts), begun)

    async def delete(self, group_id: str, topics: Collection[UUID] | None = None) -> None:
        """Delete the stored state of a group, or only of the given topics; raises as `set`."""
        parsed = map(place_of, await self.keys())
        await self._change(
            [
                share_key(*place)
                for place in parsed
                if place[0] == group_id and (topics is None or place[1] in topics)
            ],
            lambda *_: None,
        )

    async def sweep(
        self, newest: Callable[[], Awaitable[MetadataImage]], owns: Callable[[str], bool]
    ) -> int:
        """Delete the rows of deleted topics, for groups of this broker; return their number.

        The image is read after the keys. If it lacks the topic of a key, the topic was deleted.
        """
        keys = await self.keys()
        known = {topic.topic_id for topic in (await newest()).topics.values()}
        left = [key for key in keys if place_of(key)[1] not in known and owns(place_of(key)[0])]
        await self._change(left, lambda *_: None)
        return len(left)

    async def _change(self, keys: Sequence[str], changed: Changed) -> None:
        for some in _pieces(keys, SAVE_KEYS_MAX):
            left: Iterable[str] = some
            for _ in range(CHANGE_ATTEMPTS_MAX):
                left = await self._try(list(left), changed)
                if not left:
                    break
            else:
                raise ShareStateLost(f"share partition {next(iter(left))} changed in each attempt")

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
