"""Saver of consumer and share groups, and of the responses that wait for saves.

The changes of a group are numbered. A group has at most one save under way, which stores all
changes made before it. A response waits until all earlier changes of its group are durable; a crash
can therefore not undo a change that a client has seen. While saves fail, members get
COORDINATOR_NOT_AVAILABLE and the group does not change.

Source: Kafka's `CoordinatorRuntime`, whose responses wait for earlier writes to its log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Generic, TypeVar

from penstock.broker.coordination.core import Save
from penstock.broker.coordination.group_events import COORDINATOR_NOT_AVAILABLE, Accepted
from penstock.broker.coordination.modern.group import ModernGroup, ModernMember, PendingResponse
from penstock.broker.coordination.turn import Turn

SAVE_RETRY_MS: Final = 1_000
_REMOVAL: Final = -1

G = TypeVar("G", bound=ModernGroup[Any])
Rows = Mapping[str, bytes]


class GroupSaver(Generic[G]):
    """Saver of the groups of one kind, which sends the responses that depend on its saves."""

    def __init__(
        self,
        turn: Turn,
        groups: dict[str, G],
        *,
        rows: Callable[[G], Rows],
        gone: Callable[[G], None],
    ) -> None:
        """Create the saver; `rows` encodes a group, `gone` is called after its removal."""
        self._turn = turn
        self._groups = groups
        self._rows = rows
        self._gone = gone

    def answer(self, group: G, token: int, response: Any) -> None:
        """Send a response once all changes so far are durable."""
        if group.saved == group.version:
            self._turn.reply(token, response)
        else:
            group.pending_responses.append(PendingResponse(group.version, token, response))

    def save(self, group: G) -> None:
        """Save changes, unless a save is under way or must be retried first."""
        if group.saving is not None or group.failing:
            return
        if group.removal_tokens is not None:
            group.saving = _REMOVAL
            self._turn.effects.append(Save(key=group.group_id, rows={}, deletes_offsets=True))
        elif group.saved < group.version:
            self._start(group)

    def _start(self, group: G) -> None:
        group.saving = group.version
        self._turn.effects.append(Save(key=group.group_id, rows=self._rows(group)))

    def remove(self, group: G, tokens: list[int]) -> None:
        """Delete a group with its offsets, once no other save is under way."""
        if group.removal_tokens is None:
            group.removal_tokens = []
        group.removal_tokens += tokens
        self.save(group)

    def saved(self, group: G) -> None:
        done, group.saving, group.failing = group.saving, None, ""
        if done == _REMOVAL:
            self._gone(group)
            for token in group.removal_tokens or ():
                self._turn.reply(token, Accepted())
            return
        group.saved = group.saved if done is None else done
        waiting, group.pending_responses = group.pending_responses, []
        for pending in waiting:
            if pending.version <= group.saved:
                self._turn.reply(pending.token, pending.response)
            else:
                group.pending_responses.append(pending)

    def failed(self, group: G, reason: str) -> None:
        """Handle a save that failed or whose outcome is unknown."""
        done, group.saving = group.saving, None
        if done == _REMOVAL:
            tokens, group.removal_tokens = group.removal_tokens or [], None
        else:
            tokens, group.pending_responses = (
                [pending.token for pending in group.pending_responses],
                [],
            )
            group.failing = reason or "the group could not be saved"
            group.save_timer.fire = partial(self._again, group)
            self._turn.timers.start(group.save_timer, self._turn.now_ms + SAVE_RETRY_MS)
        for token in tokens:
            self._turn.refuse(token, COORDINATOR_NOT_AVAILABLE, reason)

    def _again(self, group: G) -> None:
        if self._groups.get(group.group_id) is group and group.saving is None:
            self._start(group)


def member_row(member: ModernMember, parts: Mapping[str, Callable[[], bytes]]) -> bytes:
    """Return a member's row, which consists of named parts; encode only changed parts again."""
    known = member.rows
    row = known.get("")
    if row is None:
        for name, encode in parts.items():
            if name not in known:
                known[name] = encode()
        row = known[""] = b"{%s}" % b",".join(
            [b'"%s":%s' % (name.encode(), known[name]) for name in parts]
        )
    return row


def outdate(member: ModernMember, part: str) -> None:
    member.rows.pop(part, None)
    member.rows.pop("", None)
